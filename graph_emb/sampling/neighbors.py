"""Sampled neighbourhoods: what a node receives from depends on the seed, the epoch, the round and the node alone.

Not on the batch that asks, nor on threads, ranks or parts. Legend: T destination rows, S source rows, E edges, I ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import prange
from numba.cpython.unsafe.numbers import trailing_zeros
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, mix64, njit, numbered, unit_draw
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import threads_for
from graph_emb.graph.typed import EdgeType
from graph_emb.sampling.blocks import Batch, Block, BlockEdges, all_edges
from graph_emb.sampling.walk_kernels import check_grown, stream_key
from graph_emb.table.row_memory import prefetch_to_read

AHEAD = 4  # rows whose edges are asked for before they are needed
SCANNED = 64
"""Fanouts above it are drawn in one pass over a node's edges, those up to it by Floyd's algorithm."""


@dataclass(frozen=True)
class InEdges:
    """The sampled edges of one type into asked nodes, one node after the other.

    Attributes:
        indptr: Where the edges into each node begin, and their number at the end, shape (T + 1,), int64.
        sources: The node at which each edge begins, shape (E,), int64.
        edge_ids: Its position in the graph's list of its type, shape (E,), int64.
    """

    indptr: Tensor
    sources: Tensor
    edge_ids: Tensor


class NeighborSampling:
    """Samples the neighbourhoods of target nodes, layer by layer, without replacement.

    Args:
        graph: The whole graph; messages follow its edges.
        fanouts: For each layer, the first one first, how many in-edges of each edge type a node keeps; -1: all.
        seed: Of the draws, any integer.
        edges: ``all_edges`` of the graph, where they are at hand.
    Raises:
        ConfigError: a fanout is neither -1 nor positive.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.sampling.neighbors import NeighborSampling
        >>> star = HeteroGraph({"n": 9}, {("n", "to", "n"): (np.arange(1, 9), np.zeros(8, np.int64))})
        >>> batch = NeighborSampling(star, (3,)).sample({"n": torch.tensor([0])})
        >>> batch.blocks[0].edges["n", "to", "n"].num_edges, len(batch.inputs["n"])
        (3, 4)
    """

    def __init__(
        self,
        graph: Any,
        fanouts: Sequence[int],
        seed: int = 0,
        *,
        edges: Mapping[EdgeType, BlockEdges] | None = None,
    ) -> None:
        wrong = [fanout for fanout in fanouts if fanout < 1 and fanout != -1]
        if wrong or not fanouts:
            raise ConfigError(f"fanouts={tuple(fanouts)}: give a positive number or -1 (all) for each layer")
        self._fanouts, self._seed, self._epoch = list(fanouts), seed, 0
        self._num_nodes = dict(graph.num_nodes)
        self._ntypes = list(self._num_nodes)
        self._edges = all_edges(graph) if edges is None else edges

    def follow(self, graph: Any) -> None:
        """Sample from a graph that has grown, from the next batch on: as a sampler that is made of it.

        Args:
            graph: The whole one, with the same types.
        Raises:
            ConfigError: it has other types, or fewer nodes of one.
        """
        self._follow(graph, lambda: all_edges(graph))

    def _follow(self, graph: Any, edges: Callable[[], Mapping[EdgeType, BlockEdges]]) -> None:
        if list(graph.num_nodes) != self._ntypes:
            raise ConfigError(f"node types {list(graph.num_nodes)} to follow, those before are {self._ntypes}")
        for ntype, num in self._num_nodes.items():
            check_grown(num, graph.num_nodes[ntype])
        found = edges()
        if list(found) != list(self._edges):
            raise ConfigError(f"edge types {list(found)} to follow, those before are {list(self._edges)}")
        self._num_nodes, self._edges = dict(graph.num_nodes), found

    def start_epoch(self, epoch: int) -> None:
        """Begin the draws of an epoch, which do not depend on those of the epochs before."""
        self._epoch = epoch

    def sample(self, targets: Mapping[str, Tensor]) -> Batch:
        """The batch that computes distinct target nodes, in their order.

        Args:
            targets: Ids (B,), integers, by node type; types may be left out.
        """
        nothing = torch.empty(0, dtype=torch.int64)
        rows = {ntype: targets.get(ntype, nothing).long() for ntype in self._ntypes}
        blocks: list[Block] = []
        for layer in reversed(range(len(self._fanouts))):
            block, rows = self._round(rows, self._into(rows, layer))
            blocks.append(block)
        return Batch(rows, tuple(reversed(blocks)))

    def _into(self, ends: Mapping[str, Tensor], layer: int) -> dict[EdgeType, InEdges]:
        """The edges of each type that a layer keeps into nodes (T,)."""
        return {
            etype: kept(edges, ends[etype[2]], ends[etype[2]], self._fanouts[layer], self._key(layer, number))
            for number, (etype, edges) in enumerate(self._edges.items())
        }

    def _key(self, layer: int, etype: int) -> np.uint64:
        return stream_key(self._seed, self._epoch, len(self._fanouts) - layer, etype, 4)

    def _round(self, ends: dict[str, Tensor], into: Mapping[EdgeType, InEdges]) -> tuple[Block, dict[str, Tensor]]:
        """A round whose destinations are ``ends``, and its source rows, which begin with them."""
        places: dict[EdgeType, Tensor] = {}
        rows: dict[str, Tensor] = {}
        for ntype in self._ntypes:
            leaving = [etype for etype in into if etype[0] == ntype]
            pieces = [ends[ntype], *(into[etype].sources for etype in leaving)]
            names, numbers = numbered(torch.cat(pieces).numpy())
            rows[ntype] = torch.from_numpy(names)
            split = torch.from_numpy(numbers).split([len(piece) for piece in pieces])
            places |= dict(zip(leaving, split[1:], strict=True))
        counts = {ntype: len(ids) for ntype, ids in rows.items()}
        edges = {
            etype: BlockEdges(found.indptr, places[etype], counts[etype[0]], found.edge_ids)
            for etype, found in into.items()
        }
        return Block(counts, {ntype: len(ids) for ntype, ids in ends.items()}, edges), rows


def kept(edges: BlockEdges, rows: Tensor, names: Tensor, fanout: int, key: np.uint64) -> InEdges:
    """A sample of the edges into some rows.

    Args:
        edges: All edges of a type.
        rows: Of ``edges``, shape (T,), int64.
        names: The node of each row as every process counts nodes, shape (T,), int64: what the draws follow from.
        fanout: How many edges of a row to keep; -1: all.
        key: Of the draws.
    """
    arrays = (edges.indptr.numpy(), edges.sources.numpy(), edges.edge_ids.numpy(), rows.numpy(), names.numpy())
    with threads_for(len(rows) // 16) as parts:  # a row is less work than the rows of tables that it counts in
        found = (kept_by_one if parts == 1 else kept_by_several)(*arrays, fanout, key, parts)
    return InEdges(*map(torch.from_numpy, found))


@njit(cache=True, nogil=True)
def kept_starts(indptr: np.ndarray, rows: np.ndarray, fanout: int) -> np.ndarray:
    """Where the kept edges of each row begin, and their number at the end, shape (T + 1,)."""
    starts = np.empty(len(rows) + 1, np.int64)
    starts[0] = 0
    for t in range(len(rows)):
        degree = indptr[rows[t] + 1] - indptr[rows[t]]
        starts[t + 1] = starts[t] + (degree if fanout < 0 else min(degree, fanout))
    return starts


@njit(cache=True, nogil=True)
def fill_kept(
    indptr: np.ndarray,
    sources: np.ndarray,
    edge_ids: np.ndarray,
    rows: np.ndarray,
    names: np.ndarray,
    starts: np.ndarray,
    key: np.uint64,
    begun: int,
    end: int,
    out_sources: np.ndarray,
    out_ids: np.ndarray,
) -> None:
    """Write the kept edges of the rows from ``begun`` to ``end``, in the order of each, to the outputs (E,)."""
    for asked in range(begun, end + AHEAD):
        if asked < end:  # choose edges and ask for their memory
            low, first, count = indptr[rows[asked]], starts[asked], starts[asked + 1] - starts[asked]
            degree = indptr[rows[asked] + 1] - low
            if count == degree:
                for k in range(count):
                    out_ids[first + k] = k
            else:
                choose(mix64(key + np.uint64(names[asked]) * GOLDEN), degree, out_ids[first : first + count])
            for k in range(first, first + count):
                out_ids[k] += low
                prefetch_to_read(sources, out_ids[k])
                prefetch_to_read(edge_ids, out_ids[k])
        if asked >= begun + AHEAD:  # the memory has come
            for k in range(starts[asked - AHEAD], starts[asked - AHEAD + 1]):
                place = out_ids[k]
                out_sources[k] = sources[place]
                out_ids[k] = edge_ids[place]


@njit(cache=True, nogil=True)
def kept_by_one(indptr, sources, edge_ids, rows, names, fanout, key, parts):  # type: ignore[no-untyped-def]
    """What ``InEdges`` holds, found by one thread: starting others costs more than a few rows."""
    starts = kept_starts(indptr, rows, fanout)
    out = np.empty((2, starts[-1]), np.int64)
    fill_kept(indptr, sources, edge_ids, rows, names, starts, key, 0, len(rows), out[0], out[1])
    return starts, out[0], out[1]


@njit(parallel=True, cache=True, nogil=True)
def kept_by_several(indptr, sources, edge_ids, rows, names, fanout, key, parts):  # type: ignore[no-untyped-def]
    """``kept_by_one`` by threads."""
    starts = kept_starts(indptr, rows, fanout)
    out, num = np.empty((2, starts[-1]), np.int64), len(rows)
    for part in prange(parts):
        begun, end = part * num // parts, (part + 1) * num // parts
        fill_kept(indptr, sources, edge_ids, rows, names, starts, key, begun, end, out[0], out[1])
    return starts, out[0], out[1]


@njit(cache=True, nogil=True)
def choose(stream: np.uint64, degree: int, out: np.ndarray) -> None:
    """Write some of 0 .. degree - 1 to out (K,), in rising order, every choice of K < degree as likely."""
    count = len(out)
    if count > SCANNED:  # Knuth, The Art of Computer Programming 2, algorithm S
        taken = 0
        for k in range(degree):
            if unit_draw(stream, k) * (degree - k) < count - taken:
                out[taken] = k
                taken += 1
                if taken == count:
                    return
    # Floyd (Bentley and Floyd, A Sample of Brilliance, 1987), without branches that chance decides
    if degree <= 64:
        chosen = np.uint64(0)
        for k in range(count):
            drawn = np.uint64(np.int64(unit_draw(stream, k) * (degree - count + k + 1)))
            again = np.uint64(0) - ((chosen >> drawn) & np.uint64(1))
            chosen |= np.uint64(1) << (drawn + (again & (np.uint64(degree - count + k) - drawn)))
        for k in range(count):
            out[k] = trailing_zeros(chosen)  # type: ignore[call-arg]
            chosen &= chosen - np.uint64(1)
        return
    for k in range(count):
        out[k] = np.int64(unit_draw(stream, k) * (degree - count + k + 1))
    for k in range(count):  # put into the sorted ones before
        drawn = larger = out[k]
        again = False
        for place in range(k):
            other = out[place]
            again |= other == drawn
            out[place] = min(other, larger)
            larger = max(other, larger)
        out[k] = larger
        if again:  # it stands there twice now: the last one takes its turn, larger than all so far
            place = 0
            while out[place] != drawn:
                place += 1
            for later in range(place, k):
                out[later] = out[later + 1]
            out[k] = degree - count + k
