"""Walkers, their steps and the order of their starts: shared by walks over a whole graph and over a part of it."""

# N nodes of the whole graph, R nodes with rows here, E arcs of those rows, B walks of a batch, L nodes of a walk.

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.core.splitmix import GOLDEN, mix64
from graph_emb.graph.csr import frozen
from graph_emb.sampling import walk_kernels
from graph_emb.transport.process_group import ProcessGroup

MAX_NODES = 2**31 - 1
THREAD_SHARE = 64  # walks below which a further thread costs more than it brings

WALKER = np.dtype(
    [
        ("index", np.int64),  # of the walk in its epoch
        ("far", np.int64),  # where the row of the previous node starts among the rows that travelled,
        ("far_size", np.int32),  # and how many neighbours it has; 0: it did not travel
        ("home", np.int32),  # the rank that asked for the walk,
        ("slot", np.int32),  # and the walk's place in its batch
        ("node", np.int32),  # the walker's node; -1 after a dead end
        ("previous", np.int32),  # the node before; -1 at the start
        ("step", np.int32),  # nodes of the walk so far
        ("draw", np.int32),  # random numbers that node2vec has used
    ],
    align=True,
)
"""An unfinished walk. It depends on this record and the seed only, so that another process can continue it."""


def walkers_at(nodes: np.ndarray, index: np.ndarray, home: int = 0) -> np.ndarray:
    """Walkers at the start of their walks, shape (B,), slots in order."""
    walkers = np.zeros(len(nodes), WALKER)
    walkers["node"], walkers["index"], walkers["home"] = nodes, index, home
    walkers["slot"] = np.arange(len(nodes))
    walkers["previous"], walkers["step"] = -1, 1
    return walkers


class Stepper:
    """Moves walkers over the rows of a range of nodes by the transition rule of ``WalkSampler``.

    Args:
        indptr: Shape (R+1,), int64.
        indices: Shape (E,), int32, numbers in the whole graph, sorted within a row.
        weights: Shape (E,), float32, above 0; None: all are 1.
        directed: Whether an arc may lack its reverse.
        low: The first node that has its row here.
        walk_length: L.
        p, q: Return and in-out parameter.
    Raises:
        ConfigError: an option is outside its limits.
    """

    def __init__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        weights: np.ndarray | None,
        directed: bool,
        low: int,
        walk_length: int,
        p: float,
        q: float,
    ) -> None:
        self.walk_length = at_least_one("walk_length", walk_length)
        self.p, self.q = _positive("p", p), _positive("q", q)
        # Empty arrays stand for "no weights": the compiled loops have one type, and no branch costs more than a test.
        self._rows = (frozen(indptr), frozen(indices))
        self._weights = frozen(np.empty(0, np.float32) if weights is None else weights)
        self._alias = alias_rows(indptr, self._weights)
        self._low = low
        self._biases = (not directed, 1.0 / self.p, 1.0 / self.q)

    @property
    def first_order(self) -> bool:
        """Whether a step depends on the node alone (DeepWalk)."""
        return self.p == 1.0 and self.q == 1.0

    @property
    def asks_for_arcs(self) -> bool:
        """Whether a step depends on the arcs of the previous node."""
        return self.q != 1.0

    def advance(
        self,
        walkers: np.ndarray,
        key: np.uint64,
        out: np.ndarray,
        pool: ThreadPoolExecutor,
        pool_size: int,
        far: np.ndarray | None = None,
    ) -> None:
        """Move every walker until its walk is complete, ends, or reaches a node that has no row here.

        Args:
            walkers: Shape (B,), ``WALKER``, each on a node of the range; changed.
            key: Of the epoch.
            out: Shape (B, L), int32; gets the nodes that are reached now, and -1 after a dead end.
            pool: The threads that walk, ``pool_size`` of them.
            far: Shape (F,), int32: neighbours of previous nodes outside of the range.
        """
        accept, other, total = self._alias
        elsewhere = frozen(np.empty(0, np.int32) if far is None else far)

        def walk_part(start: int, end: int) -> None:
            rest = (key, walkers[start:end], out[start:end])
            if self.first_order:
                walk_kernels.first_order_walks(*self._rows, accept, other, self._low, *rest)
            else:
                walk_kernels.second_order_walks(
                    *self._rows, self._weights, accept, other, total, self._low, elsewhere, *self._biases, *rest
                )

        parts = max(1, min(pool_size, len(walkers) // THREAD_SHARE))
        edges = [len(walkers) * part // parts for part in range(parts + 1)]
        list(pool.map(walk_part, edges[:-1], edges[1:]))


class WalkStream(ABC):
    """Walks of a graph in batches: the base of all samplers.

    A walk is a function of (seed, epoch, its index) and the graph: the same for every number of threads and ranks, and
    for every batch size.

    Args:
        rows: indptr, indices, weights and ``directed``, as ``Stepper`` takes them, of the nodes from ``low`` on.
        low: The first node whose walks start here.
        num_nodes: N.
        num_walks: Walks from every node in an epoch.
        walk_length: L.
        p, q: Return and in-out parameter.
        seed: Any integer.
        group: The ranks that walk together; None: this process alone.
    Raises:
        ConfigError: an option is outside its limits.
    """

    def __init__(
        self,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray | None, bool],
        low: int,
        num_nodes: int,
        num_walks: int,
        walk_length: int,
        p: float,
        q: float,
        seed: int,
        group: ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self.rank, self.world_size = (0, 1) if group is None else (group.rank, group.world_size)
        self.num_walks = at_least_one("num_walks", num_walks)
        self.seed = int(seed)
        self._num_nodes = check_num_nodes(num_nodes)
        self._low, self._high = low, low + len(rows[0]) - 1
        self._stepper = Stepper(*rows, low, walk_length, p, q)
        self.walk_length, self.p, self.q = self._stepper.walk_length, self._stepper.p, self._stepper.q

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes that walks may visit."""
        return self._num_nodes

    @property
    def num_walks_per_epoch(self) -> int:
        """Walks of one epoch, over all ranks: num_walks * N."""
        return self.num_walks * self._num_nodes

    @abstractmethod
    def degrees(self) -> np.ndarray:
        """Summed weights of the arcs at each node, shape (N,), float64; every rank must call it."""

    def numbered_batches(
        self, batch_size: int = 8192, *, epoch: int = 0, first: int = 0, num_threads: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The walks of one epoch that start at a node of this rank; every rank must take all batches.

        Args:
            batch_size: Walks of a batch, over all ranks.
            epoch: Which epoch; each has its own walks and start orders.
            first: Walks of the epoch, over all ranks, that are left out.
            num_threads: Threads that walk; None takes as many as torch (``torch.get_num_threads()``).
        Yields:
            Shape (B, L), int32 nodes, -1 after a dead end, and shape (B,), int64, the index of each walk in the
            epoch, rising. With several ranks B may be 0; every rank gets the same number of batches.
        Raises:
            PeerError: a rank is gone, or is in another call.
        """
        batch_size = at_least_one("batch_size", batch_size)
        pool_size = thread_count(num_threads)
        with ThreadPoolExecutor(pool_size) as pool:
            for starts in self._starts(epoch, batch_size, first):
                own = np.flatnonzero((starts >= self._low) & (starts < self._high))
                index = first + own
                yield self._walk(starts[own], index, epoch, pool, pool_size), index
                first += len(starts)

    def _starts(self, epoch: int, batch_size: int, first: int) -> Iterator[np.ndarray]:
        """The start nodes of an epoch, over all ranks, batch by batch, (B,)."""
        return start_batches(self.seed, epoch, self._num_nodes, self.num_walks, batch_size, first)

    @abstractmethod
    def _walk(
        self, starts: np.ndarray, index: np.ndarray, epoch: int, pool: ThreadPoolExecutor, pool_size: int
    ) -> np.ndarray:
        """The walks from this rank's starts (B,), shape (B, L); every rank comes here for every batch."""


def start_batches(
    seed: int, epoch: int, num_nodes: int, num_walks: int, batch_size: int, first: int = 0
) -> Iterator[np.ndarray]:
    """The start nodes of an epoch, batch by batch: ``num_walks`` random orders of all nodes, one after the other.

    ``first`` walks are left out, without being walked.

    Yields:
        Shape (B,), int32; the last batch may be shorter.
    """
    total = num_walks * num_nodes
    order, order_of = np.empty(0, np.int32), -1
    for low in range(first, total, batch_size):
        high = min(low + batch_size, total)
        starts = np.empty(high - low, np.int32)
        for round_ in range(low // num_nodes, (high - 1) // num_nodes + 1):
            if round_ != order_of:
                stream = np.random.default_rng([seed & (2**64 - 1), epoch, round_])
                order, order_of = stream.permutation(np.arange(num_nodes, dtype=np.int32)), round_
            a, b = max(low, round_ * num_nodes), min(high, (round_ + 1) * num_nodes)
            starts[a - low : b - low] = order[a - round_ * num_nodes : b - round_ * num_nodes]
        yield starts


def alias_rows(indptr: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alias tables of all rows of weights, for draws in constant time.

    Args:
        indptr: Shape (R+1,), int64.
        weights: Shape (E,), float32, at least 0 with a positive sum in every row that is not empty; or empty.
    Returns:
        The chance to keep an arc, shape (E,), float32; the offset in its row that is taken otherwise, shape (E,),
        int32; the sum of each row, shape (R,), float64. All are empty where ``weights`` is.
    """
    accept, other = np.empty(len(weights), np.float32), np.empty(len(weights), np.int32)
    total = np.empty(len(indptr) - 1 if len(weights) else 0, np.float64)
    if len(weights):
        walk_kernels.fill_alias_rows(frozen(indptr), frozen(weights), accept, other, total)
    return accept, other, total


def stream_key(*words: int) -> np.uint64:
    """One 64-bit key from several integers; any change of any of them changes all its bits."""
    key = 0
    for word in words:
        key = int(mix64(np.uint64((key + word * int(GOLDEN)) % 2**64)))
    return np.uint64(key)


def thread_count(num_threads: int | None) -> int:
    """Threads to use; None takes as many as torch."""
    return at_least_one("num_threads", torch.get_num_threads() if num_threads is None else num_threads)


def at_least_one(option: str, value: int) -> int:
    """``value`` as an integer, or a ConfigError that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
    return int(value)


def check_num_nodes(num_nodes: int) -> int:
    """``num_nodes``, or a ConfigError above the range of int32."""
    if not 0 < num_nodes <= MAX_NODES:
        raise ConfigError(f"walks over {num_nodes} nodes: the limit is 1 to {MAX_NODES}; node ids of walks are int32")
    return num_nodes


def _positive(option: str, value: float) -> float:
    value = float(value)
    if not (0.0 < value < math.inf and 1.0 / value < math.inf):
        raise ConfigError(f"{option} = {value}: must be finite and above 0; 1 means no bias")
    return value
