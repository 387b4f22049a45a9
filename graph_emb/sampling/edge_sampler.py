"""Edges drawn by their weight, as walks of two nodes: what LINE trains on."""

# N nodes, E arcs, B edges of a batch.

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RankRanges
from graph_emb.sampling.negatives import NegativeSampler, out_degrees
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walkers import stream_key
from graph_emb.transport.process_group import ProcessGroup


class EdgeSampler(PartitionedWalkSampler):
    """Arcs with a probability proportional to their weight, with replacement, each a walk (source, destination).

    The source is drawn by the weight of its arcs (an alias table over the nodes), the arc by its share of them (the
    alias tables of the rows): constant time, and every rank draws the sources of all ranks but the arcs of its own
    nodes only, so that no walker travels. A draw is a function of (seed, epoch, its index) and the graph; the same for
    any number of threads, ranks and any batch size.

    Args:
        graph: This rank's part; of an undirected graph it holds both arcs of an edge, and either may be drawn.
        group: The ranks; None for a part that is the whole graph.
        draws_per_edge: Draws of an epoch for each edge of the whole graph.
        seed: Any integer; epochs of one seed are independent.
    Raises:
        ConfigError: an option is outside its limits, or the graph has no edges.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.sampling.edge_sampler import EdgeSampler
        >>> sampler = EdgeSampler.of_graph(Graph.from_edges([0], [1], directed=True), draws_per_edge=2)
        >>> next(sampler.numbered_batches())[0]
        array([[0, 1],
               [0, 1]], dtype=int32)
    """

    def __init__(
        self, graph: PartGraph, group: ProcessGroup | None = None, *, draws_per_edge: int = 100, seed: int = 0
    ) -> None:
        super().__init__(graph, group, num_walks=draws_per_edge, walk_length=2, seed=seed)
        own = np.arange(graph.low, graph.low + graph.num_own_nodes, dtype=np.int32)
        loops = int((np.repeat(own, graph.degrees()) == graph.indices).sum())
        ends = len(graph.indices) if graph.directed else len(graph.indices) + loops
        sums = np.zeros(graph.num_nodes + 1)
        sums[own], sums[-1] = out_degrees(graph), ends
        if group is not None:
            sums = group.sum(torch.from_numpy(sums), "degrees of edges").numpy()
        if not sums[-1]:
            raise ConfigError("the graph has no edges to draw; give one that has")
        self.num_edges = int(sums[-1]) if graph.directed else int(sums[-1]) // 2
        self._sources = NegativeSampler(sums[:-1], 1.0, seed=int(stream_key(seed, 4)))

    @classmethod
    def of_graph(cls, graph: Graph, *, draws_per_edge: int = 100, seed: int = 0) -> EdgeSampler:
        """The edges of a graph that is in this process whole."""
        whole = PartGraph.of_graph(graph, RankRanges([0, graph.num_nodes], [0], 1), 0)
        return cls(whole, draws_per_edge=draws_per_edge, seed=seed)

    @property
    def num_walks_per_epoch(self) -> int:
        """Draws of one epoch, all ranks together."""
        return self.num_walks * self.num_edges

    def _starts(self, epoch: int, batch_size: int, first: int) -> Iterator[np.ndarray]:
        for low in range(first, self.num_walks_per_epoch, batch_size):
            index = np.arange(low, min(low + batch_size, self.num_walks_per_epoch))
            yield self._sources.sample_for(index, 1, epoch=epoch)[:, 0]
