"""Learnable edge embeddings as input to a message function, and an ablation that shows that they are used.

    python examples/edge_embeddings.py                                           # a generated graph, seconds
    python examples/edge_embeddings.py --data ogbn-arxiv --root ../shared/data   # a real one with classes and a split

The nodes are all alike: they have neither features nor rows of their own, so the network sees no more than degrees.
Edges join nodes of one class more often than not. The class of a training node teaches the rows of its edges, and these
tell the class of the nodes at their other ends; nothing but the edges' own rows can carry that.

The rows are a ``DistEmbedding`` with the partition's edge policy: one row for each edge, whatever the direction.

    learned    the table learns
    random     it keeps its first rows
    zero       it keeps rows of zeros
    shuffled   it learns; then, for the evaluation, every edge gets the row of another one
    removed    messages carry no edge row
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graph_emb as ge
import partition
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.models.gnn.edge_message import EdgeMessageLayer, both_ways
from graph_emb.sampling.blocks import BlockEdges

VARIANTS = ("learned", "random", "zero", "shuffled", "removed")


@dataclass(frozen=True)
class Data:
    """A graph whose ``src``, ``dst`` (E,) are edges of N nodes with classes (N,), -1 where unknown."""

    num_nodes: int
    src: Tensor
    dst: Tensor
    classes: Tensor
    train: Tensor
    test: Tensor


def generated(seed: int, num_nodes: int = 600, degree: int = 12, num_classes: int = 3, same: float = 0.7) -> Data:
    """Nodes of equally large classes; each edge joins a class with itself with probability ``same``, else any two."""
    rng = np.random.default_rng(seed)
    classes = np.arange(num_nodes) % num_classes
    src, dst = rng.integers(0, num_nodes, (2, num_nodes * degree // 2))
    kept = rng.random(len(src)) < same
    dst[kept] = dst[kept] // num_classes * num_classes + classes[src[kept]]
    order = torch.from_numpy(rng.permutation(num_nodes))
    cut = num_nodes * 7 // 10
    src_rows, dst_rows, labels = (torch.from_numpy(array) for array in (src, dst, classes))
    return Data(num_nodes, src_rows, dst_rows, labels, order[:cut], order[cut:])


def labelled(name: str, root: str | None) -> Data:
    """A data set whose nodes have one class each and a split; its features are left aside."""
    from graph_emb.graph.datasets import load_dataset
    from graph_emb.graph.views import typed_nodes

    data = typed_nodes(load_dataset(name, root))
    ((src, dst),) = data.graph.edges.values()
    once = src < dst
    split = {part: torch.from_numpy(nodes) for part, nodes in data.split.items()}
    ends = (torch.from_numpy(end[once].astype(np.int64)) for end in (src, dst))
    return Data(data.graph.total_nodes, *ends, torch.from_numpy(data.labels), split["train"], split["test"])


class Network(nn.Module):
    """Rounds of messages over nodes that begin alike; the last one gives a logit for each class."""

    def __init__(self, num_layers: int, hidden: int, num_classes: int, edge_dim: int) -> None:
        super().__init__()
        widths = [1, *[hidden] * num_layers]
        self.layers = nn.ModuleList(EdgeMessageLayer(a, b, edge_dim) for a, b in pairwise(widths))
        self.last = nn.Linear(hidden, num_classes)

    def forward(self, edges: BlockEdges, edge_rows: Tensor | None) -> Tensor:
        rows = torch.ones(edges.num_destinations, 1)
        for layer in self.layers:
            rows = F.relu(layer(edges, rows, edge_rows))
        return self.last(rows)


def edge_policy(data: Data, num_parts: int, folder: str) -> tuple[Any, Tensor]:
    """The partition's edge policy, and the place of each edge in partition order."""
    ends = {EDGE_TYPE: (data.src.numpy(), data.dst.numpy())}
    graph = HeteroGraph({NODE_TYPE: data.num_nodes}, ends, name="edges")
    parts = partition.build(graph, num_parts, out=folder, report=False)
    return parts.policy(etype=EDGE_TYPE), torch.from_numpy(np.array(parts.edge_map(EDGE_TYPE, inverse=True))).long()


def accuracy(
    variant: str,
    data: Data,
    *,
    seed: int = 0,
    epochs: int = 60,
    dim: int = 16,
    num_layers: int = 1,
    lr: float = 0.02,
    policy: Any = None,
    place: Tensor | None = None,
) -> float:
    """Train one variant and return the share of test nodes whose class it finds.

    Args:
        variant: One of ``VARIANTS``.
        data: The graph.
        seed: Of first rows, weights and the shuffle.
        epochs, dim, num_layers, lr: The recipe; steps are whole-graph.
        policy: Edge policy of a partition; None: one range.
        place: Where each edge's row is, (E,); None: the table is in the order of the edges.
    """
    torch.manual_seed(seed)
    edges = both_ways(data.src, data.dst, data.num_nodes)
    ids = edges.edge_ids if place is None else place[edges.edge_ids]
    network = Network(num_layers, 16, int(data.classes.max()) + 1, 0 if variant == "removed" else dim)
    dense = torch.optim.Adam(network.parameters(), lr=lr)
    table, sparse = None, None
    if variant != "removed":
        first = ge.initializers.Zeros() if variant == "zero" else ge.initializers.Normal(std=0.3, seed=seed)
        table = ge.DistEmbedding(len(data.src), dim, init_func=first, part_policy=policy)
        if variant in ("learned", "shuffled"):
            sparse = ge.SparseAdam([table], lr=lr)
    for _ in range(epochs):
        logits = network(edges, None if table is None else table(ids))
        F.cross_entropy(logits[data.train], data.classes[data.train]).backward()
        dense.step()
        dense.zero_grad()
        if sparse is not None:
            sparse.step()
        elif table is not None:
            table.clear_gradients()
    if variant == "shuffled":
        ids = torch.randperm(len(data.src))[ids]
    with torch.no_grad():
        logits = network(edges, None if table is None else table(ids))
    found = logits[data.test].argmax(dim=1) == data.classes[data.test]
    return float(found.double().mean())


def main(argv: list[str] | None = None) -> dict[str, list[float]]:
    """Print the accuracy of every variant over some seeds, and return it."""
    parser = argparse.ArgumentParser(description="Learnable edge embeddings and their ablation.")
    parser.add_argument("--data", default=None, help="a data set with node classes and a split; default: generated")
    parser.add_argument("--root", default=None, help="folder of the named data sets")
    parser.add_argument("--nodes", type=int, default=600, help="of the generated graph")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", type=int, default=2, help="parts whose edge policy the table follows")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--layers", type=int, default=1, help="rounds of messages")
    args = parser.parse_args(argv)
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for seed in range(args.seeds):
        data = generated(seed, args.nodes) if args.data is None else labelled(args.data, args.root)
        with tempfile.TemporaryDirectory() as folder:
            policy, place = edge_policy(data, args.parts, f"{folder}/parts")
            for variant, values in found.items():
                recipe = {"seed": seed, "epochs": args.epochs, "num_layers": args.layers}
                values.append(accuracy(variant, data, policy=policy, place=place, **recipe))
    for variant, values in found.items():
        print(f"{variant:9} {statistics.fmean(values):.3f}  ({', '.join(f'{value:.3f}' for value in values)})")
    return found


if __name__ == "__main__":
    main()
