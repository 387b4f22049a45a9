"""Rows of new nodes by the parts that they join, without training, beside a network that was trained with them.

    python benchmarks/composed_new_nodes.py --root ../shared/data

Hides a share of ogbn-arxiv's nodes with their edges and trains GraphSAGE without features on the rest, its rows
composed by position and hash. Then the hidden nodes come back: ``partition.extend`` tells which parts they join,
``rows_of_new`` composes their rows, and the network, as it is, classifies them in the whole graph. Beside it the same
training with their nodes and edges there from the start; no label of a hidden node is ever trained on. Both are as
after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
import partition
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import compressed, plain_dataset
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import GNNResult, train_sage
from graph_emb.run.parallel import of_one_type
from graph_emb.sampling.blocks import whole_graph

AIM = 0.95


def levels_of(parts: Any) -> np.ndarray:
    """The part of each node at each level, (N, L), in the order of the input."""
    found = np.empty_like(np.asarray(parts.levels()))
    found[parts.original_ids()] = parts.levels()
    return found


@torch.no_grad()
def accuracy(result: GNNResult, graph: HeteroGraph, rows: torch.Tensor, labels: np.ndarray, nodes: np.ndarray) -> float:
    """Of nodes, computed in a whole graph from rows (N, D)."""
    (ntype,) = graph.num_nodes
    result.model.eval()
    network: Any = result.model
    classes = network(whole_graph(graph, len(network.layers)).blocks, {ntype: rows})[ntype].argmax(dim=1).numpy()
    return float((classes[nodes] == labels[nodes]).mean())


def measure(args: argparse.Namespace, seed: int, folder: Path) -> dict[str, float]:
    """Accuracies of the hidden nodes of one seed."""
    loaded = ge.load_dataset("ogbn-arxiv", root=args.root)
    data, graph = plain_dataset(loaded), of_one_type(compressed(loaded.graph, symmetrize=True)[0])
    (ntype,), (etype,) = graph.num_nodes, graph.edges
    total, rng = graph.total_nodes, np.random.default_rng(seed)
    place = rng.permutation(total)  # the old nodes first
    first = total - int(args.share * total)
    src, dst = (place[end] for end in graph.edges[etype])
    was = (src < first) & (dst < first)
    old, new = HeteroGraph({ntype: first}, {etype: (src[was], dst[was])}), (src[~was], dst[~was])
    grown = HeteroGraph(
        {ntype: total}, {etype: (np.concatenate([src[was], new[0]]), np.concatenate([dst[was], new[1]]))}
    )
    assert data.labels is not None
    assert data.node_split is not None
    labels = np.empty(total, np.int64)
    labels[place] = data.labels.to_single()
    split = {part: place[np.asarray(nodes)] for part, nodes in data.node_split.items()}
    task_split = {part: nodes[nodes < first] for part, nodes in split.items()}
    hidden = np.arange(first, total)
    config = SAGEConfig(
        dim=args.dim, hidden_dim=args.hidden_dim, num_layers=3, fanouts=(5, 5, 5), batch_size=args.batch_size,
        epochs=args.epochs, eval_every=args.epochs, inputs="position-hash", num_buckets=args.buckets, features=False,
    )  # fmt: skip
    parts = partition.build(old, args.levels[0], levels=args.levels, out=folder / "old", report=False, seed=seed)
    joined = partition.extend(parts.path, new, total - first, out=folder / "grown", report=False, seed=seed)
    found = {}
    task = NodeTask(ntype, labels[:first], task_split)
    result = train_sage(old, task, config, levels={ntype: levels_of(parts)}, seed=seed, progress=args.progress)
    table: Any = result.tables[ntype]
    rows = torch.cat([table.weight[:], table.rows_of_new(hidden, levels_of(joined)[first:])])
    found["by position"] = accuracy(result, grown, rows, labels, hidden)
    rows[first:] = 0
    found["rows of zeros"] = accuracy(result, grown, rows, labels, hidden)
    del result, table
    ge.shutdown()
    again = partition.build(grown, args.levels[0], levels=args.levels, out=folder / "again", report=False, seed=seed)
    task = NodeTask(ntype, labels, task_split)
    result = train_sage(grown, task, config, levels={ntype: levels_of(again)}, seed=seed, progress=args.progress)
    table = result.tables[ntype]
    found["trained again"] = accuracy(result, grown, table.weight[:], labels, hidden)
    ge.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 64, 512, 2048])
    parser.add_argument("--buckets", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--hidden-dim", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--progress", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(args, seed, Path(folder))
        ratio = found["by position"] / found["trained again"]
        rows.append({"seed": seed, **found, "by position / again": ratio, "aim": AIM})
        print(json.dumps(rows[-1]), flush=True)
    print(tabulate(rows, headers="keys", floatfmt=".4f"))


if __name__ == "__main__":
    main()
