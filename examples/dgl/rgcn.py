"""Distributed R-GCN that classifies entities: DGL's example, with tables and rule of graph_emb.

    graph-emb partition build aifb --parts 1 --name aifb --read reverse_types=true --out parts/aifb
    graph-emb launch --trainers 2 --servers 1 --partition parts/aifb -- examples/dgl/rgcn.py --graph aifb

Under DGL's own launcher the same script runs in DGL's servers. Every node type has a table, partitioned as the type is.
"""

from __future__ import annotations

import argparse
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import GraphConv
from job import accuracy, begin, copies, end, mean, num_classes
from torch import Tensor, nn

import graph_emb as ge


class RelationalLayer(nn.Module):
    """The mean over the neighbours by each relation through a matrix of its own, and the node through another."""

    def __init__(self, etypes: list[Any], width: int, out: int) -> None:
        super().__init__()
        self.etypes = etypes
        self.relations = nn.ModuleList(
            GraphConv(width, out, norm="right", bias=False, allow_zero_in_degree=True) for _ in etypes
        )
        self.own = nn.Linear(width, out)

    def forward(self, block: Any, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the destinations by type."""
        found = {ntype: self.own(rows[ntype][: block.num_dst_nodes(ntype)]) for ntype in rows}
        for etype, convolution in zip(self.etypes, self.relations, strict=True):
            if etype in block.canonical_etypes:  # DGL leaves out types of which no edge was sampled
                source, _, target = etype
                ends = (rows[source], rows[target][: block.num_dst_nodes(target)])
                found[target] = found[target] + convolution(block[etype], ends)
        return found


class RGCN(nn.Module):
    """Two layers."""

    def __init__(self, etypes: list[Any], width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([RelationalLayer(etypes, width, width), RelationalLayer(etypes, width, classes)])

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits by type."""
        hidden = {ntype: F.relu(values) for ntype, values in self.layers[0](blocks[0], rows).items()}
        out: dict[str, Tensor] = self.layers[1](blocks[1], hidden)
        return out


def batches(args: argparse.Namespace, graph: Any, target: str, part: str, fanouts: list[int]) -> Any:
    """A loader of this trainer's target nodes of a part of the split."""
    mask = graph.nodes[target].data[f"{part}_mask"]
    nodes = dgl.distributed.node_split(mask, graph.get_partition_book(), target, force_even=True)
    sampler = dgl.dataloading.NeighborSampler(fanouts)
    return dgl.dataloading.DistNodeDataLoader(
        graph, {target: nodes}, sampler, batch_size=args.batch_size, shuffle=part == "train", drop_last=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", required=True, help="the graph's name in its partition")
    parser.add_argument("--target", default="_N", help="the node type that is classified")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin()
    torch.manual_seed(args.seed)
    graph = dgl.distributed.DistGraph(args.graph)
    labels = graph.nodes[args.target].data["label"]
    tables = {
        ntype: ge.DistEmbedding(
            graph.num_nodes(ntype),
            args.dim,
            name=ntype,
            init_func=ge.initializers.XavierUniform(graph.num_nodes(ntype), seed=args.seed),
            part_policy=graph.get_node_partition_policy(ntype),
        )
        for ntype in graph.ntypes
    }
    opt = ge.SparseAdam(list(tables.values()), lr=args.lr)
    network = RGCN(graph.canonical_etypes, args.dim, num_classes(labels))
    model = copies(network, unused=True)
    dense = torch.optim.Adam(model.parameters(), lr=args.lr)
    first = next(iter(tables.values())).transport

    def logits(module: nn.Module, inputs: Any, blocks: Any) -> Tensor:
        ids = inputs if isinstance(inputs, dict) else {args.target: inputs}
        found: Tensor = module(blocks, {ntype: tables[ntype](ids[ntype]) for ntype in tables})[args.target]
        return found

    for epoch in range(args.epochs):
        model.train()
        total = count = 0.0
        for inputs, seeds, blocks in batches(args, graph, args.target, "train", [25, 25]):
            loss = F.cross_entropy(logits(model, inputs, blocks), labels[seeds[args.target]])
            dense.zero_grad()
            loss.backward()
            dense.step()
            opt.step()
            total, count = total + loss.item(), count + 1
        found = mean(total, int(count))
        if first.rank == 0:
            print(f"epoch {epoch + 1}: loss {found:.4f}", flush=True)
    network.eval()
    first.flush()
    first.barrier()
    test = batches(args, graph, args.target, "test", [-1, -1])
    found = accuracy(test, lambda inputs, blocks: logits(network, inputs, blocks), labels, args.target)
    print(f"test accuracy: {found:.4f}")
    end(tables, network)


if __name__ == "__main__":
    main()
