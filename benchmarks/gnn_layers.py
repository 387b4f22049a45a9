"""One layer of GraphSAGE and of R-GCN, forward and backward over a whole graph: ours beside DGL's, from one run.

    python benchmarks/gnn_layers.py --root ../shared/data --json gnn_layers.json

Both layers have the same values and take turns within a repeat; the median counts. Their outputs and the gradients of
the input rows must agree before anything is timed. R-GCN's peers are ``RelGraphConv`` with edges sorted by relation
and the paper's norm, and ``HeteroGraphConv`` of a ``GraphConv`` for each relation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from graph_emb.compat import dgl as compat_dgl
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import plain_dataset, typed_nodes
from graph_emb.models.gnn.networks import SAGELayer
from graph_emb.models.gnn.own_network import dgl_block
from graph_emb.models.gnn.relational import RGCNLayer
from graph_emb.sampling.blocks import Block, whole_graph

Layer = Callable[[Tensor], Tensor]


def sage(root: str, width: int) -> tuple[int, dict[str, Layer]]:
    """On ogbl-ddi, as its table and network have it."""
    from dgl.nn.pytorch import SAGEConv

    graph = read_graph(plain_dataset(load_dataset("ogbl-ddi", root)).graph)
    (block,) = whole_graph(graph, 1).blocks
    (edges,) = block.edges.values()
    ours, theirs = SAGELayer(width, width), SAGEConv(width, width, "mean")
    theirs.fc_neigh.weight.data.copy_(ours.neighbours.weight)
    theirs.fc_self.weight.data.copy_(ours.own.weight)
    theirs.fc_self.bias.data.copy_(ours.neighbours.bias)
    made = dgl_block(block)
    return edges.num_sources, {"graph_emb": lambda rows: ours(edges, rows), "SAGEConv": lambda rows: theirs(made, rows)}


def rgcn(root: str, width: int) -> tuple[int, dict[str, Layer]]:
    """On AIFB, a matrix of each relation and one of the nodes themselves."""
    from dgl.nn.pytorch import GraphConv, HeteroGraphConv, RelGraphConv

    read = typed_nodes(load_dataset("aifb", root)).graph
    named = {(src, f"r{number}", dst): ends for number, ((src, _, dst), ends) in enumerate(read.edges.items())}
    graph = HeteroGraph(read.num_nodes, named)  # torch's modules take no names with dots
    (block,) = whole_graph(graph, 1).blocks
    (ntype,) = graph.ntypes
    ours = RGCNLayer(graph.ntypes, graph.etypes, width, width)
    assert ours.loop is not None
    joint = RelGraphConv(width, width, len(graph.etypes))
    joint.linear_r.W.data.copy_(ours.relations.bases)
    joint.loop_weight.data.copy_(ours.loop[0])
    each = HeteroGraphConv(
        {etype[1]: GraphConv(width, width, "right", bias=False, allow_zero_in_degree=True) for etype in graph.etypes}
    )
    for etype, matrix in zip(graph.etypes, ours.relations.bases, strict=True):
        each.mods[etype[1]].weight.data.copy_(matrix)
    made, kinds, norm = one_relation_after_another(block)
    typed, loop = dgl_block(block), ours.loop[0]
    return made.num_src_nodes(), {
        "graph_emb": lambda rows: ours(block, {ntype: rows})[ntype],
        "RelGraphConv": lambda rows: joint(made, rows, kinds, norm, presorted=True),
        "HeteroGraphConv": lambda rows: each(typed, {ntype: rows})[ntype] + rows @ loop,
    }


def one_relation_after_another(block: Block) -> tuple[Any, Tensor, Tensor]:
    """All edges in one graph, the relation of each, and one over the neighbours of its relation."""
    import dgl

    sources, ends, kinds, norms = [], [], [], []
    for kind, edges in enumerate(block.edges.values()):
        sources.append(edges.sources)
        ends.append(edges.destinations)
        kinds.append(torch.full((edges.num_edges,), kind))
        norms.append(1.0 / edges.degrees[edges.destinations])
    (count,) = block.num_sources.values()
    made = dgl.graph((torch.cat(sources), torch.cat(ends)), num_nodes=count)
    return made, torch.cat(kinds), torch.cat(norms)[:, None]


def measured(num_nodes: int, layers: dict[str, Layer], width: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a forward and a backward pass of each layer, by repeat."""
    first, weights = torch.randn(num_nodes, width), torch.randn(num_nodes, width)
    outputs = {}
    for name, layer in layers.items():
        rows = first.clone().requires_grad_()
        out = layer(rows)
        (out * weights).sum().backward()
        assert rows.grad is not None
        outputs[name] = (out.detach(), rows.grad)
    for found in outputs.values():
        for ours, theirs in zip(outputs["graph_emb"], found, strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(repeats):
        for name, layer in layers.items():
            rows = first.clone().requires_grad_()
            begun = time.perf_counter()
            (layer(rows) * weights).sum().backward()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    compat_dgl.load()
    lines, header = [], ("graph", "width", "layer", "ms", "times ours", "from", "to")
    for name, make, width in (("ogbl-ddi", sage, 256), ("aifb", rgcn, 16), ("aifb", rgcn, 64)):
        seconds = measured(*make(args.root, width), width, args.repeats)
        for layer, taken in seconds.items():
            ratios = [theirs / ours for theirs, ours in zip(taken, seconds["graph_emb"], strict=True)]
            middle = statistics.median(taken)
            lines.append((name, width, layer, 1000 * middle, statistics.median(ratios), min(ratios), max(ratios)))
    print(tabulate(lines, headers=header, floatfmt=".2f"))
    if args.json:
        args.json.write_text(json.dumps([dict(zip(header, line, strict=True)) for line in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
