"""Random walks over a graph that one process or many hold together: the walkers travel, the arcs stay."""

# N nodes of the whole graph, R nodes with rows here, B walks of a batch that start here, L nodes of a walk, W ranks.

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph, frozen
from graph_emb.graph.partition_book import RankRanges, range_of
from graph_emb.sampling.negatives import gathered_degrees, out_degrees
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walk_kernels import (
    MAX_NODES,
    THREAD_SHARE,
    WALKER,
    alias_rows,
    at_least_one,
    check_grown,
    finite_positive,
    first_order_walks,
    second_order_walks,
    start_batches,
    stream_key,
    thread_count,
)
from graph_emb.transport.collective import JointCalls
from graph_emb.transport.lockstep import HOME, WALK
from graph_emb.transport.process_group import ProcessGroup

WALKERS = 1 << 16
"""That one process moves at a time: walks of a batch take more room than their nodes otherwise."""
HEADER = 3
"""Words before the nodes of a stretch: slot, first step, number of nodes."""


class PartitionedWalkSampler:
    """The walks of ``WalkSampler`` over a partitioned graph: the same ones, for any number of ranks and threads.

    A rank moves its walkers until each reaches a node of another rank; then one exchange sends them on, and so forth
    until no walker is left; a last exchange returns the nodes visited elsewhere. For node2vec with q other
    than 1 a walker's previous node sends its neighbours along, so that the next rank can tell which arcs it has.
    All ranks walk at the same time, and each must take every batch.

    A walk is a function of (seed, epoch, its index) and the graph in partition order. Each rank holds its own arcs
    and, during an epoch, one random order of all nodes (4 bytes each).

    Args:
        graph: This rank's part.
        group: The ranks; None for a part that is the whole graph.
        num_walks, walk_length, p, q, seed, starts: As in ``WalkSampler``; equal on all ranks, nodes in partition order.
    Attributes:
        bytes_sent: To other ranks since the start.
    Raises:
        ConfigError: an option is outside its limits, or ranks and group do not fit each other.
    """

    def __init__(
        self,
        graph: PartGraph,
        group: ProcessGroup | None = None,
        *,
        num_walks: int = 10,
        walk_length: int = 40,
        p: float = 1.0,
        q: float = 1.0,
        seed: int = 0,
        starts: np.ndarray | None = None,
    ) -> None:
        self.group = group
        self.rank, self.world_size = (0, 1) if group is None else (group.rank, group.world_size)
        self.num_walks = at_least_one("num_walks", num_walks)
        self.seed, self.bytes_sent = int(seed), 0
        self.walk_length = at_least_one("walk_length", walk_length)
        self.p, self.q = finite_positive("p", p), finite_positive("q", q)
        self._given_starts = starts
        if group is not None:
            self._agree = JointCalls(group).agree
        self._take(graph)

    def _take(self, graph: PartGraph) -> None:
        """Walk over a graph from now on; every rank must come here."""
        if not 0 < graph.num_nodes <= MAX_NODES:
            raise ConfigError(
                f"walks over {graph.num_nodes} nodes: the limit is 1 to {MAX_NODES}; node ids of walks are int32"
            )
        if (graph.rank, graph.layout.world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"the part is that of rank {graph.rank} of {graph.layout.world_size}, "
                f"this process is rank {self.rank} of {self.world_size}"
            )
        starts = None if self._given_starts is None else _checked_starts(self._given_starts, graph.num_nodes)
        if self.group is not None:
            begin = "" if starts is None else hashlib.sha256(starts.tobytes()).hexdigest()
            numbers = (self.num_walks, self.walk_length, self.p, self.q, self.seed)
            given = self.group.gather_objects((*numbers, graph.num_nodes, graph.directed, begin), "walk sampler")
            if len(set(given)) > 1:
                shown = [one[:-1] for one in given]
                raise ConfigError(f"walk options differ between ranks: {shown}, or starts do; give every rank the same")
        # Empty arrays stand for "no weights": the compiled loops have one type, and no branch costs more than a test.
        self._weights = frozen(np.empty(0, np.float32)) if graph.weights is None else graph.weights
        self._alias = alias_rows(graph.indptr, self._weights)
        self.graph, self.starts = graph, starts

    def follow(self, graph: Graph | PartGraph) -> None:
        """Walk over a graph that has grown, from the next epoch on: as a sampler that is made for it.

        New nodes begin walks as well, unless ``starts`` were given; ``degrees`` are those of the new graph. Every rank
        calls it, between two epochs.

        Args:
            graph: What ``partition.extend``, or new edges, made of the graph before: whole where this sampler's is,
                else this rank's part.
        Raises:
            ConfigError: it has fewer nodes, another direction, or is another rank's; or ``starts``, which are
                numbers of the graph before, were given to several ranks.
        """
        part = PartGraph.whole(graph) if isinstance(graph, Graph) else graph
        check_grown(self.graph.num_nodes, part.num_nodes)
        if part.directed != self.graph.directed:
            said = ["undirected", "directed"]
            raise ConfigError(f"the graph is {said[part.directed]}, the one before is {said[self.graph.directed]}")
        if self.world_size > 1 and self.starts is not None:
            raise ConfigError("starts are numbers of the partition before, which has others now; make a new sampler")
        self._take(part)

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes that walks may visit."""
        return self.graph.num_nodes

    @property
    def num_walks_per_epoch(self) -> int:
        """Walks of one epoch, over all ranks: num_walks * N, or of the starts that were given."""
        return self.num_walks * (self.graph.num_nodes if self.starts is None else len(self.starts))

    @property
    def layout(self) -> RankRanges:
        """The rank that owns each node."""
        return self.graph.layout

    def num_arcs(self) -> int:
        """Arcs of the whole graph, an undirected edge twice; every rank must call it."""
        own = np.array([len(self.graph.indices)], np.float64)
        return int(own[0] if self.group is None else self.group.sum(torch.from_numpy(own), "number of arcs")[0])

    def degrees(self, *, weighted: bool = True) -> np.ndarray:
        """Summed weights of the arcs at each node, or their number, shape (N,), float64; every rank must call it."""
        return gathered_degrees(self.graph, self.group, weighted=weighted)

    def own_degrees(self) -> tuple[np.ndarray, int]:
        """``degrees`` of the nodes that this rank owns, and the first of them; every rank must call it."""
        low, high = self.graph.layout.owned(self.rank)
        return self.degrees()[low:high] if self.graph.directed else out_degrees(self.graph), low

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
        graph, threads = self.graph, thread_count(num_threads)
        low = graph.low
        with ThreadPoolExecutor(threads) as pool:
            for starts in self._starts(epoch, batch_size, first):
                if self.graph is not graph:
                    raise ConfigError("the sampler follows another graph since this epoch began; begin it anew")
                num, mine = len(starts), (starts >= low) & (starts < low + self.graph.num_own_nodes)
                index, starts = first + np.flatnonzero(mine), starts[mine]
                del mine  # whoever takes the walks may keep them for long
                yield self._walk(starts, index, epoch, pool, threads), index
                first += num

    def _starts(self, epoch: int, batch_size: int, first: int) -> Iterator[np.ndarray]:
        """The start nodes of an epoch, over all ranks, batch by batch, (B,)."""
        num = self.graph.num_nodes if self.starts is None else len(self.starts)
        for batch in start_batches(self.seed, epoch, num, self.num_walks, batch_size, first):
            yield batch if self.starts is None else self.starts[batch]

    def _walk(
        self, starts: np.ndarray, index: np.ndarray, epoch: int, pool: ThreadPoolExecutor, threads: int
    ) -> np.ndarray:
        """The walks from this rank's starts (B,), shape (B, L); every rank comes here for every batch."""
        key = stream_key(self.seed, epoch)
        out = np.full((len(starts), self.walk_length), -1, np.int32)
        out[:, 0] = starts
        far = np.empty(0, np.int32)
        if self.group is None:
            for low in range(0, len(starts), WALKERS):
                piece = slice(low, low + WALKERS)
                self._advance(self._walkers(starts[piece], index[piece]), key, out[piece], pool, threads, far)
            return out
        walkers = self._walkers(starts, index)
        visits: list[list[np.ndarray]] = [[] for _ in range(self.world_size)]
        round_, some = 0, True
        while some:
            begin = walkers["step"].copy()
            trail = np.empty((len(walkers), self.walk_length), np.int32)
            self._advance(walkers, key, trail, pool, threads, far)
            self._keep(walkers, begin, trail, out, visits)
            walkers, far, some = self._move(walkers, round_)
            round_ += 1
        if round_ > 1:
            self._bring_home(visits, out)
        return out

    def _walkers(self, starts: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Those of walks that begin at starts (B,)."""
        walkers = np.zeros(len(starts), WALKER)
        walkers["node"], walkers["index"], walkers["home"] = starts, index, self.rank
        walkers["slot"] = np.arange(len(starts))
        walkers["previous"], walkers["step"] = -1, 1
        return walkers

    def _advance(
        self,
        walkers: np.ndarray,
        key: np.uint64,
        out: np.ndarray,
        pool: ThreadPoolExecutor,
        threads: int,
        far: np.ndarray,
    ) -> None:
        """Move walkers (B,) until their walk is complete, ends, or reaches a node that has no row here.

        ``out`` (B, L) gets the nodes that are reached now, and -1 after a dead end; ``far`` (F,) holds the neighbours
        of previous nodes outside of the part.
        """
        rows, low, (accept, other, total) = (self.graph.indptr, self.graph.indices), self.graph.low, self._alias
        biases = (not self.graph.directed, 1.0 / self.p, 1.0 / self.q)
        far = frozen(far)

        def walk_part(start: int, end: int) -> None:
            rest = (key, walkers[start:end], out[start:end])
            if self.p == 1.0 and self.q == 1.0:
                first_order_walks(*rows, accept, other, low, *rest)
            else:
                second_order_walks(*rows, self._weights, accept, other, total, low, far, *biases, *rest)

        parts = max(1, min(threads, len(walkers) // THREAD_SHARE))
        edges = [len(walkers) * part // parts for part in range(parts + 1)]
        list(pool.map(walk_part, edges[:-1], edges[1:]))

    def _keep(
        self, walkers: np.ndarray, begin: np.ndarray, trail: np.ndarray, out: np.ndarray, visits: list[list[np.ndarray]]
    ) -> None:
        """Store the nodes that walkers have reached since step ``begin``: in ``out``, or for their way home."""
        words = _stretch_words(walkers, begin, self.rank, self.world_size)
        packed = np.empty(words.sum(), np.int32)
        _pack_stretches(walkers, begin, trail, self.rank, words, out, packed)
        for pieces, piece in zip(visits, np.split(packed, np.cumsum(words)[:-1]), strict=True):
            if len(piece):
                pieces.append(piece)

    def _move(self, walkers: np.ndarray, round_: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Send unfinished walkers on; those that came, the rows that they brought, and whether any rank moved any."""
        if self.group is None or self.world_size == 1:
            return walkers[:0], np.empty(0, np.int32), False
        places = self.graph.layout
        order, counts = _travellers(walkers, self.walk_length, places.bounds, places.ranks, self.world_size)
        words = walkers.view(np.int64).reshape(len(walkers), WALKER.itemsize // 8)  # taken faster than records
        walkers = words[order].ravel().view(WALKER)
        parcels = np.split(walkers, np.cumsum(counts)[:-1])
        rows = [self._attach_rows(parcel) for parcel in parcels]
        pieces = [_words(part) for pair in zip(parcels, rows, strict=True) for part in pair]
        sizes = np.stack([counts, [len(row) for row in rows], np.full(self.world_size, len(walkers))], axis=1)
        came, coming = self._exchange(WALK, round_, pieces, sizes, np.array([WALKER.itemsize // 4, 1]))
        if not coming[:, 2].any():
            return walkers[:0], np.empty(0, np.int32), False
        start = 0
        for parcel, row in zip(came[0::2], came[1::2], strict=True):
            parcel.view(WALKER)["far"] += start
            start += len(row)
        return np.concatenate(came[0::2]).view(WALKER), np.concatenate(came[1::2]), True

    def _attach_rows(self, walkers: np.ndarray) -> np.ndarray:
        """The rows of the distinct previous nodes of walkers to one rank, and in each walker the place of its own."""
        if self.q == 1.0 or not len(walkers):  # no step depends on the arcs of the previous node
            walkers["far"], walkers["far_size"] = 0, 0
            return np.empty(0, np.int32)
        previous, place = np.unique(walkers["previous"] - np.int32(self.graph.low), return_inverse=True)
        sizes = self.graph.indptr[previous + 1] - self.graph.indptr[previous]
        ends = np.cumsum(sizes)
        walkers["far"], walkers["far_size"] = (ends - sizes)[place], sizes[place]
        rows = np.empty(ends[-1], np.int32)
        _pack_rows(self.graph.indptr, self.graph.indices, previous, rows)
        return rows

    def _bring_home(self, visits: list[list[np.ndarray]], out: np.ndarray) -> None:
        """Send the visits of other ranks' walks to them, and write those of ours that were made elsewhere."""
        pieces = [np.concatenate([np.empty(0, np.int32), *parts]) for parts in visits]
        lengths = [len(piece) for piece in pieces]
        sizes = np.stack([lengths, np.full(self.world_size, sum(lengths))], axis=1)
        for packed in self._exchange(HOME, 0, pieces, sizes, np.array([1]))[0]:
            _unpack_stretches(packed, out)

    def _exchange(
        self, call: int, number: int, pieces: list[np.ndarray], sizes: np.ndarray, words: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Send words of int32 to every rank: K pieces for each, their sizes first.

        Args:
            call, number: What the others must be in as well.
            pieces: (W * K,), rank after rank.
            sizes: (W, K + 1), entries of each piece, and the number of entries that move at all: where it is 0 on
                every rank, nothing is sent.
            words: (K,), of an entry.
        Returns:
            The pieces that came, (W * K,), and their sizes, (W, K + 1).
        Raises:
            PeerError: a rank is gone, or is in another call.
        """
        assert self.group is not None
        what = "walks over partitions"
        coming = self._agree(call, number, torch.from_numpy(sizes), what).numpy()
        if not coming[:, -1].any():
            return [np.empty(0, np.int32)] * len(pieces), coming
        to_send, to_receive = ((table[:, :-1] * words).sum(axis=1).tolist() for table in (sizes, coming))
        self.bytes_sent += 4 * (sum(to_send) - to_send[self.rank])
        came = self.group.exchange(torch.from_numpy(np.concatenate(pieces)), to_send, to_receive, what).numpy()
        ends = np.cumsum((coming[:, :-1] * words).ravel())
        return np.split(came, ends[:-1]), coming


def _checked_starts(starts: np.ndarray, num_nodes: int) -> np.ndarray:
    """Distinct nodes, ascending, as int32."""
    found = np.asarray(starts)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise ConfigError(f"starts of shape {found.shape} and {found.dtype}: give the nodes, (S,), at least one")
    if found.min() < 0 or found.max() >= num_nodes or (np.diff(found) <= 0).any():
        raise ConfigError(f"starts are not distinct, ascending nodes of [0, {num_nodes})")
    return frozen(found.astype(np.int32))


def _words(array: np.ndarray) -> np.ndarray:
    """The memory of an array as int32, so that pieces of all kinds travel in one exchange."""
    return np.ascontiguousarray(array).view(np.int32)


@njit(cache=True, nogil=True)
def _travellers(
    walkers: np.ndarray, length: int, bounds: np.ndarray, ranks: np.ndarray, world_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Group the walkers (B,) that continue with another rank by destination.

    Range i of nodes, [bounds[i], bounds[i + 1]), lies with rank ranks[i]. Returns positions, and their numbers (W,).
    """
    owner = np.empty(len(walkers), np.int32)
    counts = np.zeros(world_size, np.int64)
    for w in range(len(walkers)):
        owner[w] = -1
        node = walkers[w].node
        if node < 0 or walkers[w].step >= length:
            continue
        owner[w] = ranks[range_of(bounds, node)]
        counts[owner[w]] += 1
    cursor = np.zeros(world_size, np.int64)
    for rank in range(1, world_size):
        cursor[rank] = cursor[rank - 1] + counts[rank - 1]
    order = np.empty(counts.sum(), np.int64)
    for w in range(len(walkers)):
        if owner[w] >= 0:
            order[cursor[owner[w]]] = w
            cursor[owner[w]] += 1
    return order, counts


@njit(cache=True, nogil=True)
def _stretch_words(walkers: np.ndarray, begin: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """Words (int32) of the stretches that walkers (B,) have walked since step begin (B,), by home rank, (W,)."""
    words = np.zeros(world_size, np.int64)
    for w in range(len(walkers)):
        home, count = walkers[w].home, walkers[w].step - begin[w]
        if home != rank and count > 0:
            words[home] += HEADER + count
    return words


@njit(cache=True, nogil=True)
def _pack_stretches(
    walkers: np.ndarray,
    begin: np.ndarray,
    trail: np.ndarray,
    rank: int,
    words: np.ndarray,
    out: np.ndarray,
    packed: np.ndarray,
) -> None:
    """Copy stretches of this rank's walks to out (B, L) and pack the others into ``packed``, home after home."""
    cursor = np.zeros(len(words), np.int64)
    for home in range(1, len(words)):
        cursor[home] = cursor[home - 1] + words[home - 1]
    for w in range(len(walkers)):
        first, end, home, slot = begin[w], walkers[w].step, walkers[w].home, walkers[w].slot
        if home == rank:
            for step in range(first, end):
                out[slot, step] = trail[w, step]
        elif end > first:
            at = cursor[home]
            packed[at], packed[at + 1], packed[at + 2] = slot, first, end - first
            for step in range(first, end):
                packed[at + HEADER + step - first] = trail[w, step]
            cursor[home] = at + HEADER + end - first


@njit(cache=True, nogil=True)
def _unpack_stretches(packed: np.ndarray, out: np.ndarray) -> None:
    """Write returned stretches into the walks out (B, L)."""
    at = 0
    while at < len(packed):
        slot, first, count = packed[at], packed[at + 1], packed[at + 2]
        for i in range(count):
            out[slot, first + i] = packed[at + HEADER + i]
        at += HEADER + count


@njit(cache=True, nogil=True)
def _pack_rows(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Concatenate the neighbours of rows."""
    at = 0
    for r in rows:
        for k in range(indptr[r], indptr[r + 1]):
            out[at] = indices[k]
            at += 1
