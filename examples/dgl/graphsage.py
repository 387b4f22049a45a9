"""Distributed GraphSAGE whose nodes learn their inputs: DGL's transductive examples, with tables and rule of graph_emb.

    graph-emb partition build cora --parts 1 --out parts/cora
    graph-emb launch --trainers 2 --servers 1 --partition parts/cora -- examples/dgl/graphsage.py --graph cora
    graph-emb launch --trainers 2 --servers 1 --partition parts/cora -- examples/dgl/graphsage.py --graph cora --links

Under DGL's own launcher the same script runs in DGL's servers. ``--links`` trains without labels, on edges and random
pairs, and judges the rows of the test nodes by their classes all the same: each takes that of the nearest mean.
"""

from __future__ import annotations

import argparse
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import SAGEConv
from job import accuracy, begin, copies, end, mean, num_classes
from torch import Tensor, nn

import graph_emb as ge


class SAGE(nn.Module):
    """Rounds of mean aggregation."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(width, width, "mean"), SAGEConv(width, out, "mean")])

    def forward(self, blocks: list[Any], rows: Tensor) -> Tensor:
        """The rows of the last block's nodes."""
        hidden = F.dropout(F.relu(self.layers[0](blocks[0], rows)), 0.5, self.training)
        out: Tensor = self.layers[1](blocks[1], hidden)
        return out


def class_batches(args: argparse.Namespace, graph: Any, part: str, fanouts: list[int]) -> Any:
    """A loader of this trainer's nodes of a part of the split."""
    nodes = dgl.distributed.node_split(graph.ndata[f"{part}_mask"], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler(fanouts)
    return dgl.dataloading.DistNodeDataLoader(
        graph, nodes, sampler, batch_size=args.batch_size, shuffle=part == "train", drop_last=False
    )


def link_batches(args: argparse.Namespace, graph: Any) -> Any:
    """A loader of this trainer's edges with as many random pairs."""
    every = torch.ones(graph.num_edges(), dtype=torch.bool)
    edges = dgl.distributed.edge_split(every, graph.get_partition_book(), force_even=True)
    return dgl.dataloading.DistEdgeDataLoader(
        graph,
        edges,
        dgl.dataloading.NeighborSampler([10, 10]),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=False,
    )


def class_loss(network: nn.Module, emb: ge.DistEmbedding, batch: Any, labels: Any) -> Tensor:
    """Cross entropy of the classes."""
    inputs, seeds, blocks = batch
    return F.cross_entropy(network(blocks, emb(inputs)), labels[seeds])


def link_loss(network: nn.Module, emb: ge.DistEmbedding, batch: Any) -> Tensor:
    """Edges from random pairs, by the product of their rows."""
    inputs, edges, pairs, blocks = batch
    rows = network(blocks, emb(inputs))
    scores = [(rows[u] * rows[v]).sum(1) for u, v in (edges.edges(), pairs.edges())]
    truth = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
    return F.binary_cross_entropy_with_logits(torch.cat(scores), truth)


def class_means(network: nn.Module, emb: ge.DistEmbedding, batches: Any, labels: Any, width: int) -> Tensor:
    """The mean row of each class over the training nodes of all trainers, of length 1."""
    sums = torch.zeros(num_classes(labels), width)
    for inputs, seeds, blocks in batches:
        sums.index_add_(0, labels[seeds], F.normalize(network(blocks, emb(inputs))))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return F.normalize(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", required=True, help="the graph's name in its partition")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin()
    torch.manual_seed(args.seed)
    graph = dgl.distributed.DistGraph(args.graph)
    labels = graph.ndata["label"]
    first = ge.initializers.XavierUniform(graph.num_nodes(), seed=args.seed)
    policy = graph.get_node_partition_policy("_N")
    emb = ge.DistEmbedding(graph.num_nodes(), args.dim, name="node", init_func=first, part_policy=policy)
    opt = ge.SparseAdam([emb], lr=args.lr)
    out = args.dim if args.links else num_classes(labels)
    network = SAGE(args.dim, out)
    model = copies(network)
    dense = torch.optim.Adam(model.parameters(), lr=args.lr)
    train = link_batches(args, graph) if args.links else class_batches(args, graph, "train", [10, 10])
    for epoch in range(args.epochs):
        model.train()
        total = count = 0.0
        for batch in train:
            loss = link_loss(model, emb, batch) if args.links else class_loss(model, emb, batch, labels)
            dense.zero_grad()
            loss.backward()
            dense.step()
            opt.step()
            total, count = total + loss.item(), count + 1
        found = mean(total, int(count))
        if emb.transport.rank == 0:
            print(f"epoch {epoch + 1}: loss {found:.4f}", flush=True)
    network.eval()
    emb.transport.flush()
    emb.transport.barrier()
    with torch.no_grad():
        means = None
        if args.links:
            means = class_means(network, emb, class_batches(args, graph, "train", [-1, -1]), labels, args.dim)

        def predict(inputs: Any, blocks: Any) -> Tensor:
            rows: Tensor = network(blocks, emb(inputs))
            return rows if means is None else rows @ means.T

        print(f"test accuracy: {accuracy(class_batches(args, graph, 'test', [-1, -1]), predict, labels):.4f}")
    end({"node": emb}, network)


if __name__ == "__main__":
    main()
