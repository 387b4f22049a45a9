"""Sampled neighbourhoods: what a node receives from depends on the seed, the epoch, the round and the node alone.

Not on the batch that asks, nor on threads, ranks or parts. Legend: T destination rows, S source rows, E edges, I ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, group, mix64, njit, unit_draw
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import threads_for
from graph_emb.graph.typed import EdgeType
from graph_emb.sampling.blocks import Batch, Block, BlockEdges, all_edges
from graph_emb.sampling.walk_kernels import stream_key

SCANNED = 64
"""Fanouts above it are drawn in one pass over a node's edges, those up to it by Floyd's algorithm."""


@dataclass(frozen=True)
class InEdges:
    """The sampled edges of one type into asked nodes, one node after the other.

    Attributes:
        counts: Edges into each node, shape (T,), int64.
        sources: The node at which each edge begins, shape (E,), int64.
        edge_ids: Its position in the graph's list of its type, shape (E,), int64.
    """

    counts: Tensor
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
        self._ntypes, self._fanouts, self._seed = list(graph.num_nodes), list(fanouts), seed
        self._edges = all_edges(graph) if edges is None else edges
        self._epoch = 0

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
            found, numbers = distinct(torch.cat(pieces).numpy())
            rows[ntype] = torch.from_numpy(found)
            split = torch.from_numpy(numbers).split([len(piece) for piece in pieces])
            places |= dict(zip(leaving, split[1:], strict=True))
        counts = {ntype: len(ids) for ntype, ids in rows.items()}
        edges = {}
        for etype, found_edges in into.items():
            indptr = torch.zeros(len(found_edges.counts) + 1, dtype=torch.int64)
            torch.cumsum(found_edges.counts, 0, out=indptr[1:])
            edges[etype] = BlockEdges(indptr, places[etype], counts[etype[0]], found_edges.edge_ids)
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
    indptr, asked = edges.indptr.numpy(), rows.numpy()
    starts = kept_starts(indptr, asked, fanout)
    sources, edge_ids = np.empty((2, starts[-1]), np.int64)
    table = edges.sources.numpy(), edges.edge_ids.numpy()
    with threads_for(len(sources)) as parts:
        fill_kept(indptr, *table, asked, names.numpy(), starts, key, parts, sources, edge_ids)
    return InEdges(torch.from_numpy(np.diff(starts)), torch.from_numpy(sources), torch.from_numpy(edge_ids))


@njit(cache=True, nogil=True)
def kept_starts(indptr: np.ndarray, rows: np.ndarray, fanout: int) -> np.ndarray:
    """Where the kept edges of each row begin, and their number at the end, shape (T + 1,)."""
    starts = np.empty(len(rows) + 1, np.int64)
    starts[0] = 0
    for t in range(len(rows)):
        degree = indptr[rows[t] + 1] - indptr[rows[t]]
        starts[t + 1] = starts[t] + (degree if fanout < 0 else min(degree, fanout))
    return starts


@njit(parallel=True, cache=True, nogil=True)
def fill_kept(
    indptr: np.ndarray,
    sources: np.ndarray,
    edge_ids: np.ndarray,
    rows: np.ndarray,
    names: np.ndarray,
    starts: np.ndarray,
    key: np.uint64,
    parts: int,
    out_sources: np.ndarray,
    out_ids: np.ndarray,
) -> None:
    """Write the kept edges of each row, in the order of the row, to ``out_sources`` and ``out_ids`` (E,)."""
    num = len(rows)
    for part in prange(parts):
        for t in range(part * num // parts, (part + 1) * num // parts):
            low, first, count = indptr[rows[t]], starts[t], starts[t + 1] - starts[t]
            degree = indptr[rows[t] + 1] - low
            if count == degree:
                for k in range(count):
                    out_ids[first + k] = k
            else:
                choose(mix64(key + np.uint64(names[t]) * GOLDEN), degree, out_ids[first : first + count])
            for k in range(first, first + count):
                place = low + out_ids[k]
                out_sources[k] = sources[place]
                out_ids[k] = edge_ids[place]


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
    for k in range(count):  # Floyd (Bentley and Floyd, A Sample of Brilliance, 1987)
        last = degree - count + k
        drawn = int(unit_draw(stream, k) * (last + 1))
        at = k
        while at > 0 and out[at - 1] > drawn:
            at -= 1
        if at > 0 and out[at - 1] == drawn:
            drawn, at = last, k  # larger than all so far
        for place in range(k, at, -1):
            out[place] = out[place - 1]
        out[at] = drawn


@njit(cache=True, nogil=True)
def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of ids (I,), in the order in which they first occur, and the place of each id among them."""
    found, first, following = group(ids)
    places = np.empty(len(ids), np.int64)
    for place in range(len(found)):
        i = first[place]
        while i >= 0:
            places[i] = place
            i = following[i]
    return found, places
