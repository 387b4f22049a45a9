"""Random walks over a graph that many processes hold together: the walkers travel, the arcs stay."""

# N nodes of the whole graph, B walks of a batch that start here, L nodes of a walk, W ranks.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.graph.partition_book import RankRanges, range_of
from graph_emb.sampling.negatives import gathered_degrees, own_degrees
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walkers import (
    WALKER,
    WalkStream,
    stream_key,
    walkers_at,
)
from graph_emb.transport.lockstep import HEAD, HOME, WALK
from graph_emb.transport.process_group import ProcessGroup

HEADER = 3
"""Words before the nodes of a stretch: slot, first step, number of nodes."""


class PartitionedWalkSampler(WalkStream):
    """The walks of ``WalkSampler`` over a partitioned graph: the same ones, for any number of ranks.

    A rank moves its walkers until each reaches a node of another rank; then one exchange sends them on, and so forth
    until no walker is left; a last exchange returns the nodes visited elsewhere. For node2vec with q other
    than 1 a walker's previous node sends its neighbours along, so that the next rank can tell which arcs it has.
    All ranks walk at the same time, and each must take every batch.

    A walk is a function of (seed, epoch, its index) and the graph in partition order. Each rank holds its own arcs
    and, during an epoch, one random order of all nodes (4 bytes each).

    Args:
        graph: This rank's part.
        group: The ranks; None for a part that is the whole graph.
        num_walks, walk_length, p, q, seed: As in ``WalkSampler``; equal on all ranks.
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
    ) -> None:
        rows = (graph.indptr, graph.indices, graph.weights, graph.directed)
        super().__init__(rows, graph.low, graph.num_nodes, num_walks, walk_length, p, q, seed, group)
        self.graph = graph
        if (graph.rank, graph.layout.world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"the part is that of rank {graph.rank} of {graph.layout.world_size}, "
                f"this process is rank {self.rank} of {self.world_size}"
            )
        self.bytes_sent = 0
        if group is not None:
            options = (num_walks, walk_length, p, q, self.seed, graph.num_nodes, graph.directed)
            given = group.gather_objects(options, "walk sampler")
            if len(set(given)) > 1:
                raise ConfigError(f"walk options differ between ranks: {given}; give every rank the same")

    @property
    def layout(self) -> RankRanges:
        """The rank that owns each node."""
        return self.graph.layout

    def degrees(self) -> np.ndarray:
        """See ``WalkStream.degrees``."""
        return gathered_degrees(self.graph, self.group)

    def own_degrees(self) -> tuple[np.ndarray, int]:
        """``degrees`` of the nodes that this rank owns, and the first of them; every rank must call it."""
        return own_degrees(self.graph, self.group), self.graph.low

    def _walk(
        self, starts: np.ndarray, index: np.ndarray, epoch: int, pool: ThreadPoolExecutor, pool_size: int
    ) -> np.ndarray:
        key = stream_key(self.seed, epoch)
        out = np.full((len(starts), self.walk_length), -1, np.int32)
        out[:, 0] = starts
        walkers, far = walkers_at(starts, index, self.rank), np.empty(0, np.int32)
        visits: list[list[np.ndarray]] = [[] for _ in range(self.world_size)]
        round_, some = 0, True
        while some:
            begin = walkers["step"].copy()
            trail = np.empty((len(walkers), self.walk_length), np.int32)
            self._stepper.advance(walkers, key, trail, pool, pool_size, far)
            self._keep(walkers, begin, trail, out, visits)
            walkers, far, some = self._move(walkers, round_)
            round_ += 1
        if round_ > 1:
            self._bring_home(visits, out)
        return out

    def _keep(
        self,
        walkers: np.ndarray,
        begin: np.ndarray,
        trail: np.ndarray,
        out: np.ndarray,
        visits: list[list[np.ndarray]],
    ) -> None:
        """Store the nodes that walkers have reached since step ``begin``: in ``out``, or for their way home."""
        words = _stretch_words(walkers, begin, self.rank, self.world_size)
        packed = np.empty(words.sum(), np.int32)
        _pack_stretches(walkers, begin, trail, self.rank, words, out, packed)
        for pieces, piece in zip(visits, np.split(packed, np.cumsum(words)[:-1]), strict=True):
            if len(piece):
                pieces.append(piece)

    def _move(self, walkers: np.ndarray, round_: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Send unfinished walkers to the owners of their nodes.

        Returns:
            The walkers that came, the rows that they brought, and whether any moved between any ranks.
        """
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
        if not self._stepper.asks_for_arcs or not len(walkers):
            walkers["far"], walkers["far_size"] = 0, 0
            return np.empty(0, np.int32)
        previous, place = np.unique(walkers["previous"] - np.int32(self._low), return_inverse=True)
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
        ones, num = [1] * self.world_size, sizes.shape[1]
        head = torch.zeros(self.world_size, HEAD, dtype=torch.int64)
        head[:, :3] = torch.tensor([call, number, num])
        head[:, 3 : 3 + num] = torch.from_numpy(sizes)
        got = self.group.exchange(head, ones, ones, what)
        wrong = (got[:, :3] != head[:, :3]).any(dim=1).nonzero().flatten().tolist()
        if wrong:
            raise PeerError(
                f"rank {self.rank} is in {what}, rank {', '.join(map(str, wrong))} in another call; every rank takes "
                "the same batches in the same order"
            )
        coming = got[:, 3 : 3 + num].numpy()
        if not coming[:, -1].any():
            return [np.empty(0, np.int32)] * len(pieces), coming
        to_send, to_receive = ((table[:, :-1] * words).sum(axis=1).tolist() for table in (sizes, coming))
        self.bytes_sent += 4 * (sum(to_send) - to_send[self.rank])
        came = self.group.exchange(torch.from_numpy(np.concatenate(pieces)), to_send, to_receive, what).numpy()
        ends = np.cumsum((coming[:, :-1] * words).ravel())
        return np.split(came, ends[:-1]), coming


def _words(array: np.ndarray) -> np.ndarray:
    """The memory of an array as int32, so that pieces of all kinds travel in one exchange."""
    return np.ascontiguousarray(array).view(np.int32)


@njit(cache=True, nogil=True)
def _travellers(
    walkers: np.ndarray, length: int, bounds: np.ndarray, ranks: np.ndarray, world_size: int
) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover - compiled
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
def _stretch_words(
    walkers: np.ndarray, begin: np.ndarray, rank: int, world_size: int
) -> np.ndarray:  # pragma: no cover - compiled
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
) -> None:  # pragma: no cover - compiled
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
def _unpack_stretches(packed: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover - compiled
    """Write returned stretches into the walks out (B, L)."""
    at = 0
    while at < len(packed):
        slot, first, count = packed[at], packed[at + 1], packed[at + 2]
        for i in range(count):
            out[slot, first + i] = packed[at + HEADER + i]
        at += HEADER + count


@njit(cache=True, nogil=True)
def _pack_rows(
    indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray
) -> None:  # pragma: no cover - compiled
    """Concatenate the neighbours of rows."""
    at = 0
    for r in rows:
        for k in range(indptr[r], indptr[r + 1]):
            out[at] = indices[k]
            at += 1
