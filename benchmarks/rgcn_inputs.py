"""Settings of R-GCN chosen by cross validation on the training entities; the test entities are not looked at.

    python benchmarks/rgcn_inputs.py --root ../shared/data --json rgcn_inputs.json

Every setting is trained on four fifths of the training entities of AIFB and judged on the rest after its last epoch,
for each fifth and seed; the same fifths for all settings.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedKFold
from tabulate import tabulate

from graph_emb.core.threads import torch_threads
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import TypedNodes, typed_nodes
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_rgcn

INPUTS = {
    "table": {},
    "onehot": {"inputs": "onehot"},
    "basis, 10": {"inputs": "basis", "num_bases": 10},
    "basis, 30": {"inputs": "basis", "num_bases": 30},
}
DROPOUTS = (0.0, 0.5)
DECAYS = (None, 5e-4)


def scores(nodes: TypedNodes, config: RGCNConfig, folds: int, seeds: range) -> list[float]:
    """Accuracy on each fifth, by each seed."""
    train, labels, found = np.asarray(nodes.split["train"]), np.asarray(nodes.labels), []
    for seed in seeds:
        cut = StratifiedKFold(folds, shuffle=True, random_state=seed)
        for kept, judged in cut.split(train, labels[train]):
            task = NodeTask(nodes.ntype, labels, {"train": train[kept], "test": train[judged]})
            result = train_rgcn(nodes.graph, task, config, seed=seed)
            assert result.best().test is not None
            found.append(result.best().test["accuracy"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    nodes = typed_nodes(load_dataset("aifb", args.root))
    lines = []
    with torch_threads(args.threads):
        for (name, inputs), dropout, decay in product(INPUTS.items(), DROPOUTS, DECAYS):
            config = RGCNConfig(**inputs, dropout=dropout, table_weight_decay=decay, eval_every=50)  # type: ignore[arg-type]
            found = scores(nodes, config, args.folds, range(args.seeds))
            lines.append((name, dropout, decay or 0, float(np.mean(found)), float(np.std(found))))
            print(tabulate([lines[-1]], tablefmt="plain", floatfmt=".4f"), flush=True)
    header = ("inputs", "dropout", "weight decay of rows", "accuracy", "std")
    print(tabulate(lines, headers=header, floatfmt=("", ".1f", ".4f", ".4f", ".4f")))
    if args.json:
        args.json.write_text(json.dumps([dict(zip(header, line, strict=True)) for line in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
