"""DeepWalk and node2vec in one process, on two ranks and with two trainers and a server: are the embeddings as good?

    python benchmarks/walk_modes.py --root ../shared/data --seeds 3 --json walk_modes.json

Every run is the command ``graph-emb train`` as a user types it. BlogCatalog is judged by the micro-F1 at half of the
labels (10 shuffles), ogbl-ddi by a logistic regression on the products of two rows: Hits@20, the data set's own
measure, and the area under the curve. Mean and unbiased standard deviation are over the seeds; a mode is as good as one
process where its mean is at most one standard deviation (that of one process) below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

MODES = {
    "local": [],
    "collective": ["--trainers", "2", "--mode", "collective"],
    "kvstore": ["--trainers", "2", "--servers", "1", "--mode", "kvstore"],
}
MODELS = {"deepwalk": [], "node2vec": ["model.p=0.25", "model.q=0.25"]}


Figures = dict[str, float]


def of_labels(evaluation: dict[str, Any]) -> Figures:
    """Micro-F1 at half of the labels, in percent."""
    return {"micro-F1": 100 * evaluation["node_classification"]["ratios"][0]["micro_mean"]}


def of_links(evaluation: dict[str, Any]) -> Figures:
    """Of the test edges, in percent."""
    metrics = evaluation["link_prediction"]["parts"]["test"]["metrics"]
    return {"Hits@20": 100 * metrics["hits@20"]["value"], "AUC": 100 * metrics["auc"]["value"]}


DATASETS: dict[str, tuple[list[str], Callable[[dict[str, Any]], Figures]]] = {
    "blogcatalog": (["model.num_walks=20", "evaluate.ratios=[0.5]", "evaluate.shuffles=10"], of_labels),
    "ogbl-ddi": (["evaluate.scorer=hadamard-logreg"], of_links),
}


def trained(model: str, dataset: str, mode: str, seed: int, root: str) -> Figures:
    """The figures of one run; ends the benchmark where the command fails."""
    options, figures = DATASETS[dataset]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = ["train", model, "--dataset", dataset, "--root", root, "--threads", "1", "--seed", str(seed)]
        words += ["--out", str(out), *MODES[mode], *MODELS[model], *options]
        done = subprocess.run([sys.executable, "-m", "graph_emb", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"graph-emb {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
        return figures(json.loads((out / "metrics.json").read_text())["evaluation"])


def main() -> None:
    """Run the modes in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this - 1, at least 2")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds {args.seeds}: a standard deviation needs at least 2")
    lines, rows = [], []
    for dataset in args.datasets:
        for model in args.models:
            found: dict[str, list[Figures]] = {mode: [] for mode in MODES}
            for seed in range(args.seeds):
                for mode in MODES:
                    found[mode].append(trained(model, dataset, mode, seed, args.root))
                    print(dataset, model, mode, seed, found[mode][-1], flush=True)
            lines += [{"dataset": dataset, "model": model, "mode": m, "figures": one} for m, one in found.items()]
            for name in found["local"][0]:
                values = {mode: [one[name] for one in figures] for mode, figures in found.items()}
                least = statistics.mean(values["local"]) - statistics.stdev(values["local"])
                for mode, own in values.items():
                    verdict = "" if mode == "local" else "yes" if statistics.mean(own) >= least else "NO"
                    shown = f"{statistics.mean(own):.2f} +- {statistics.stdev(own):.2f}"
                    rows.append([dataset, model, f"{name} %", mode, shown, verdict])
    print(tabulate(rows, ["graph", "model", "figure", "mode", "mean +- std", "within one std"]))
    if args.json:
        Path(args.json).write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
