"""Random walks over a graph: DeepWalk and node2vec, streamed in batches that any number of threads reproduces."""

# N nodes, E arcs, B walks of a batch, L nodes of a walk.

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from graph_emb.data import walk_kernels
from graph_emb.errors import ConfigError, PartitionError, ShapeError
from graph_emb.graph.csr import Graph, frozen

MAX_NODES = 2**31 - 1
THREAD_SHARE = 64  # walks below which a further thread costs more than it brings


class WalkSampler:
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
    Raises:
        ConfigError: an option is outside its limits.
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
    ) -> None:
        self.graph = graph
        self.num_walks = at_least_one("num_walks", num_walks)
        self.walk_length = at_least_one("walk_length", walk_length)
        self.p = _positive("p", p)
        self.q = _positive("q", q)
        self.seed = int(seed)
        if not 0 < graph.num_nodes <= MAX_NODES:
            raise ConfigError(
                f"walks over {graph.num_nodes} nodes: the limit is 1 to {MAX_NODES}; node ids of walks are int32"
            )
        # Empty arrays stand for "no weights": the compiled loops have one type, and no branch costs more than a test.
        weights = np.empty(0, np.float32) if graph.weights is None else graph.weights
        self._weights = frozen(weights)
        self._alias = alias_rows(graph.indptr, self._weights)

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes that walks may visit."""
        return self.graph.num_nodes

    @property
    def num_walks_per_epoch(self) -> int:
        """Rows that ``batches`` yields in one epoch: num_walks * N."""
        return self.num_walks * self.graph.num_nodes

    def batches(
        self, batch_size: int = 8192, *, epoch: int = 0, num_threads: int | None = None
    ) -> Iterator[np.ndarray]:
        """The walks of one epoch, in order, never more than one batch of them in memory.

        Args:
            batch_size: B, walks of a batch; the last one may be shorter.
            epoch: Which epoch; each has walks and start orders of its own.
            num_threads: Threads that walk; None takes as many as torch (``torch.get_num_threads()``).
        Yields:
            Shape (B, L), int32 nodes, -1 after a dead end.
        """
        batch_size = at_least_one("batch_size", batch_size)
        pool_size = thread_count(num_threads)
        num_nodes = self.graph.num_nodes
        order, order_of = np.empty(0, np.int32), -1
        with ThreadPoolExecutor(pool_size) as pool:
            for low in range(0, self.num_walks_per_epoch, batch_size):
                high = min(low + batch_size, self.num_walks_per_epoch)
                starts = np.empty(high - low, np.int32)
                for round_ in range(low // num_nodes, (high - 1) // num_nodes + 1):
                    if round_ != order_of:
                        order, order_of = self._start_order(epoch, round_), round_
                    a, b = max(low, round_ * num_nodes), min(high, (round_ + 1) * num_nodes)
                    starts[a - low : b - low] = order[a - round_ * num_nodes : b - round_ * num_nodes]
                yield self._walk(starts, epoch, low, pool, pool_size)

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
        pool_size = thread_count(num_threads)
        with ThreadPoolExecutor(pool_size) as pool:
            return self._walk(nodes.astype(np.int32), epoch, first, pool, pool_size)

    def _start_order(self, epoch: int, round_: int) -> np.ndarray:
        """The start nodes of pass ``round_``: a permutation of all nodes, shape (N,), int32."""
        stream = np.random.default_rng([self.seed & (2**64 - 1), epoch, round_])
        return stream.permutation(np.arange(self.graph.num_nodes, dtype=np.int32))

    def _walk(self, starts: np.ndarray, epoch: int, first: int, pool: ThreadPoolExecutor, pool_size: int) -> np.ndarray:
        out = np.empty((len(starts), self.walk_length), np.int32)
        graph, key = self.graph, stream_key(self.seed, epoch)
        accept, other, total = self._alias

        def walk_part(low: int, high: int) -> None:
            rest = (starts[low:high], key, first + low, out[low:high])
            if self.p == 1.0 and self.q == 1.0:
                walk_kernels.first_order_walks(graph.indptr, graph.indices, accept, other, *rest)
            else:
                biases = (not graph.directed, 1.0 / self.p, 1.0 / self.q)
                walk_kernels.second_order_walks(
                    graph.indptr, graph.indices, self._weights, accept, other, total, *biases, *rest
                )

        parts = max(1, min(pool_size, len(starts) // THREAD_SHARE))
        edges = [len(starts) * part // parts for part in range(parts + 1)]
        list(pool.map(walk_part, edges[:-1], edges[1:]))
        return out


def alias_rows(indptr: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alias tables of all rows of weights, for draws in constant time.

    Args:
        indptr: Shape (N+1,), int64.
        weights: Shape (E,), float32, at least 0 with a positive sum in every row that is not empty; or empty.
    Returns:
        The chance to keep an arc, shape (E,), float32; the offset in its row that is taken otherwise, shape (E,),
        int32; the sum of each row, shape (N,), float64. All are empty where ``weights`` is.
    """
    accept, other = np.empty(len(weights), np.float32), np.empty(len(weights), np.int32)
    total = np.empty(len(indptr) - 1 if len(weights) else 0, np.float64)
    if len(weights):
        walk_kernels.fill_alias_rows(indptr, weights, accept, other, total)
    return accept, other, total


def stream_key(*words: int) -> np.uint64:
    """One 64-bit key from several integers; any change of any of them changes all its bits."""
    key = 0
    for word in words:
        key = int(walk_kernels.mix64(np.uint64((key + word * int(walk_kernels.GOLDEN)) % 2**64)))
    return np.uint64(key)


def thread_count(num_threads: int | None) -> int:
    """Threads to use; None takes as many as torch."""
    return at_least_one("num_threads", torch.get_num_threads() if num_threads is None else num_threads)


def at_least_one(option: str, value: int) -> int:
    """``value`` as an integer, or a ConfigError that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
    return int(value)


def _positive(option: str, value: float) -> float:
    value = float(value)
    if not (0.0 < value < math.inf and 1.0 / value < math.inf):
        raise ConfigError(f"{option} = {value}: must be finite and above 0; 1 means no bias")
    return value
