"""Random walks over a graph that is here whole (DeepWalk, node2vec), and edges drawn by their weight (LINE)."""

# N nodes, E arcs, B walks of a batch, L nodes of a walk.

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from graph_emb.graph.csr import Graph
from graph_emb.sampling.negatives import NegativeSampler, gathered_degrees, out_degrees
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walk_kernels import stream_key, thread_count
from graph_emb.transport.process_group import ProcessGroup


class WalkSampler(PartitionedWalkSampler):
    """Walks of ``walk_length`` nodes, ``num_walks`` from every node, in a random order of the start nodes.

    A step t -> v -> x follows the arc v -> x with a probability proportional to ``w(v, x) * bias``, where the
    bias is 1/p for x = t, 1 if t -> x is an arc, and 1/q otherwise (node2vec, Grover and Leskovec 2016; the
    distance of t and x is measured along the arcs). p = q = 1 is DeepWalk (Perozzi et al. 2014): the bias is 1.
    The first step, and every step of DeepWalk, follows the weights alone.

    A walk is a function of (seed, epoch, its index): the same for every number of threads and batch size. A node
    without out-arcs ends the walk; the rest of the row is -1.

    Args:
        graph: Rows sorted, fewer than 2^31 nodes; its weights are used where it has any.
        num_walks: Passes over all nodes in one epoch.
        walk_length: L, nodes of a walk, the start included.
        p: Return parameter, large values keep the walk from going back.
        q: In-out parameter, large values keep the walk near the previous node.
        seed: Any integer; epochs of one seed are independent.
        starts: Nodes at which walks begin, (S,) integers, distinct and ascending; None: all.
    Raises:
        ConfigError: an option is outside its limits.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.sampling.walks import WalkSampler
        >>> path = Graph.from_edges([0, 1], [1, 2], directed=True)
        >>> WalkSampler(path, walk_length=4).walks_from([0, 1])
        array([[ 0,  1,  2, -1],
               [ 1,  2, -1, -1]], dtype=int32)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        num_walks: int = 10,
        walk_length: int = 40,
        p: float = 1.0,
        q: float = 1.0,
        seed: int = 0,
        starts: np.ndarray | None = None,
    ) -> None:
        whole = PartGraph.whole(graph)
        super().__init__(whole, num_walks=num_walks, walk_length=walk_length, p=p, q=q, seed=seed, starts=starts)

    def batches(
        self, batch_size: int = 8192, *, epoch: int = 0, num_threads: int | None = None
    ) -> Iterator[np.ndarray]:
        """The walks of one epoch in order, shape (B, L), one batch in memory at a time; see ``numbered_batches``."""
        for walks, _ in self.numbered_batches(batch_size, epoch=epoch, num_threads=num_threads):
            yield walks

    def walks_from(
        self, nodes: np.ndarray, *, epoch: int = 0, first: int = 0, num_threads: int | None = None
    ) -> np.ndarray:
        """One walk from each of ``nodes``.

        Args:
            nodes: Start nodes, shape (B,), integers, repeats allowed.
            epoch: As in ``batches``.
            first: Index of the first walk; walks of equal seed, epoch, index and start are equal.
            num_threads: Threads that walk; None takes as many as torch (``torch.get_num_threads()``).
        Returns:
            Shape (B, L), int32 nodes, -1 after a dead end.
        Raises:
            ShapeError: nodes is not a vector of integers.
            PartitionError: a node is outside [0, N).
        """
        nodes = np.asarray(nodes)
        if nodes.ndim != 1 or not np.issubdtype(nodes.dtype, np.integer):
            raise ShapeError(f"start nodes have shape {nodes.shape} and dtype {nodes.dtype}; give integers (B,)")
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.graph.num_nodes:
            wrong = nodes[(nodes < 0) | (nodes >= self.graph.num_nodes)][0]
            raise PartitionError(f"start node {wrong} is outside [0, {self.graph.num_nodes}); pass row numbers")
        threads = thread_count(num_threads)
        with ThreadPoolExecutor(threads) as pool:
            index = np.arange(first, first + len(nodes))
            return self._walk(nodes.astype(np.int32), index, epoch, pool, threads)


class EdgeSampler(PartitionedWalkSampler):
    """Arcs with a probability proportional to their weight, with replacement, each a walk (source, destination).

    The source is drawn by the weight of its arcs (an alias table over the nodes), the arc by its share of them (the
    alias tables of the rows): constant time, and every rank draws the sources of all ranks but the arcs of its own
    nodes only, so that no walker travels. A draw is a function of (seed, epoch, its index) and the graph; the same for
    any number of threads, ranks and any batch size.

    Args:
        graph: This rank's part; of an undirected graph it holds both arcs of an edge, and either may be drawn.
        group: The ranks; None for a part that is the whole graph.
        draws_per_edge: Draws of an epoch for each edge, of the whole graph or of ``ends``.
        seed: Any integer; epochs of one seed are independent.
        ends: Nodes, (S,), the same on every rank: arcs with an end among these alone are drawn, and ``degrees`` are
            those of the whole graph all the same. None: all arcs.
    Raises:
        ConfigError: an option is outside its limits, or the graph has no edges.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.sampling.walks import EdgeSampler
        >>> sampler = EdgeSampler.of_graph(Graph.from_edges([0], [1], directed=True), draws_per_edge=2)
        >>> next(sampler.numbered_batches())[0]
        array([[0, 1],
               [0, 1]], dtype=int32)
    """

    def __init__(
        self,
        graph: PartGraph,
        group: ProcessGroup | None = None,
        *,
        draws_per_edge: int = 100,
        seed: int = 0,
        ends: np.ndarray | None = None,
    ) -> None:
        self._ends = ends
        super().__init__(graph, group, num_walks=draws_per_edge, walk_length=2, seed=seed)

    def _take(self, graph: PartGraph) -> None:
        whole, graph = graph, graph if self._ends is None else graph.arcs_at(self._ends)
        super()._take(graph)
        self._whole = whole
        own = np.arange(graph.low, graph.low + graph.num_own_nodes, dtype=np.int32)
        loops = int((np.repeat(own, graph.degrees()) == graph.indices).sum())
        both = len(graph.indices) if graph.directed else len(graph.indices) + loops
        sums = np.zeros(graph.num_nodes + 1)
        sums[own], sums[-1] = out_degrees(graph), both
        if self.group is not None:
            sums = self.group.sum(torch.from_numpy(sums), "degrees of edges").numpy()
        if not sums[-1]:
            raise ConfigError("the graph has no edges to draw; give one that has")
        self.num_edges = int(sums[-1]) if graph.directed else int(sums[-1]) // 2
        self._sources = NegativeSampler(sums[:-1], 1.0, seed=int(stream_key(self.seed, 4)))

    @classmethod
    def of_graph(
        cls, graph: Graph, *, draws_per_edge: int = 100, seed: int = 0, ends: np.ndarray | None = None
    ) -> EdgeSampler:
        """The edges of a graph that is in this process whole."""
        return cls(PartGraph.whole(graph), draws_per_edge=draws_per_edge, seed=seed, ends=ends)

    def degrees(self, *, weighted: bool = True) -> np.ndarray:
        return gathered_degrees(self._whole, self.group, weighted=weighted)

    def own_degrees(self) -> tuple[np.ndarray, int]:
        low, high = self._whole.layout.owned(self.rank)
        return self.degrees()[low:high] if self._whole.directed else out_degrees(self._whole), low

    @property
    def num_walks_per_epoch(self) -> int:
        """Draws of one epoch, all ranks together."""
        return self.num_walks * self.num_edges

    def _starts(self, epoch: int, batch_size: int, first: int) -> Iterator[np.ndarray]:
        for low in range(first, self.num_walks_per_epoch, batch_size):
            index = np.arange(low, min(low + batch_size, self.num_walks_per_epoch))
            yield self._sources.sample_for(index, 1, epoch=epoch)[:, 0]
