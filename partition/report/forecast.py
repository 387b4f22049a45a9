"""Rows of other parts that training will pull: by random walks, and by batches sampled as DGL samples them."""

# N nodes and E edges of all types, P parts, G groups, L nodes of a walk, C columns, B seeds of a batch, H hops

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, product

import numpy as np

from graph_emb.core.terminal import reading
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.readers.source import MASKS, WEIGHT
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.kernels import forecast as kernels
from partition.kernels.sorting import count_ids

MOST_COLUMNS = 16  # 16 float32 are a cache line, the unit in which neighbours are fetched
EXACT_WORK = 2_000_000_000
"""Edges times steps times columns up to which walks are exact: some seconds."""
SIMULATED_WALKS = 200_000
TABLE_BYTES = 1 << 28
"""Of one table of masses; on larger graphs fewer parts are carried at once."""
BATCHES = 64
"""Batches of an assignment, shared by its parts; each part has at least one."""
CHUNKS = 64
"""Ranges of rows, whatever the number of threads is: sums over them are added in their order."""
_NOTHING = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def on_ranges(threads: ThreadPool, size: int, run: Callable[[int, int], None]) -> None:
    """Call ``run(low, high)`` for ranges that cover [0, size)."""
    cuts = np.linspace(0, size, CHUNKS + 1).astype(np.int64).tolist()
    threads.run([partial(run, low, high) for low, high in pairwise(cuts)])


@dataclass(frozen=True)
class FlatGraph:
    """Arrays of a graph by homogeneous id, computed once for both assignments that a report compares.

    Attributes:
        graph: The graph itself.
    """

    graph: HeteroGraph

    @property
    def num_nodes(self) -> int:
        return self.graph.total_nodes

    @cached_property
    def types(self) -> dict[str, slice]:
        """Where each node type lies among the homogeneous ids."""
        starts = self.graph.node_offsets
        return {ntype: slice(starts[ntype], starts[ntype] + num) for ntype, num in self.graph.num_nodes.items()}

    @cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """``train``, ``valid`` and ``test`` where some node type has the mask, (N,), bool.

        Masks of several splits at once, one a column as in DGL's WikiCS, say nothing of one split and are left out.
        """
        masks = {}
        for part, column in MASKS.items():
            found = {n: c[column] for n, c in self.graph.node_data.items() if column in c}
            marked = {ntype: mask for ntype, mask in found.items() if mask.size == len(mask)}
            if marked:
                masks[part] = np.zeros(self.num_nodes, dtype=bool)
                for ntype, mask in marked.items():
                    masks[part][self.types[ntype]] = mask.reshape(-1).astype(bool)
        return masks

    @cached_property
    def seeds(self) -> np.ndarray:
        """Nodes that training starts from, (N,), bool: those of the train mask, or all."""
        train = self.masks.get("train")
        return train if train is not None and train.any() else np.ones(self.num_nodes, dtype=bool)

    @cached_property
    def weights(self) -> dict[EdgeType, np.ndarray] | None:
        """The column ``weight`` of every edge type, where all have one of positive numbers; else None."""
        found = {}
        for etype, (src, _) in self.graph.edges.items():
            column = self.graph.edge_data.get(etype, {}).get(WEIGHT)
            if column is None or column.shape != (len(src),) or not (np.isfinite(column) & (column > 0)).all():
                return None
            found[etype] = column.astype(np.float32)
        return found or None

    def rows(self, row_end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row u: the destinations of the edges that leave u (``row_end`` 0), or the sources of those that enter it (1).

        Returns:
            indptr, (N + 1,), int64; homogeneous ids, (E,), int32 where it can be; and the weight of each, (E,),
            float32, where every type has weights, else empty: all are 1.
        """
        offsets, edges, weights = self.graph.node_offsets, self.graph.edges, self.weights
        row_type, column_type = 2 * row_end, 2 - 2 * row_end
        indptr = np.zeros(self.num_nodes + 1, np.int64)
        for etype, ends in edges.items():
            count_ids(ends[row_end], offsets[etype[row_type]] + 1, indptr)
        np.cumsum(indptr, out=indptr)
        indices = self._room_for_ids(indptr[-1])
        values = _NO_VALUES if weights is None else np.empty(indptr[-1], np.float32)
        filled = indptr[:-1].copy()
        for etype, ends in edges.items():
            own = _NO_VALUES if weights is None else weights[etype]
            start, column_start = offsets[etype[row_type]], offsets[etype[column_type]]
            kernels.fill_rows(ends[row_end], start, ends[1 - row_end], column_start, own, filled, indices, values)
        return indptr, indices, values

    def groups_by_destination(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Edges grouped by edge type and destination, as sampling draws from each group on its own.

        A node that no edge of a type enters has no group of that type.

        Returns:
            Where each group begins, (G + 1,), int64; homogeneous sources, (E,); where the groups of each node begin,
            (N + 1,), int64, and these groups, (G,), int64.
        """
        offsets, edges = self.graph.node_offsets, self.graph.edges
        degrees = {e: np.bincount(dst, minlength=self.graph.num_nodes[e[2]]) for e, (_, dst) in edges.items()}
        entered = {etype: np.flatnonzero(degree) for etype, degree in degrees.items()}
        nodes = np.concatenate([_NOTHING, *(own + offsets[etype[2]] for etype, own in entered.items())])
        sizes = np.concatenate([_NOTHING, *(degrees[etype][own] for etype, own in entered.items())])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        sources, filled, first = self._room_for_ids(starts[-1]), starts[:-1].copy(), 0
        for etype, (src, dst) in edges.items():
            group_of = np.cumsum(degrees[etype] > 0) + (first - 1)
            first += len(entered[etype])
            kernels.fill_rows(group_of[dst], 0, src, offsets[etype[0]], _NO_VALUES, filled, sources, _NO_VALUES)
        node_starts = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=self.num_nodes))])
        return starts, sources, node_starts, np.argsort(nodes, kind="stable")

    def _room_for_ids(self, size: int) -> np.ndarray:
        return np.empty(size, np.int32 if self.num_nodes < 2**31 else np.int64)


@dataclass(frozen=True)
class WalkForecast:
    """Rows that walks of L nodes pull, counted at every visit; a walker works at the part of its start.

    Attributes:
        visits: Expected visits at each step, (L,), as a share of the walks: below 1 after dead ends.
        remote: Those of them in other parts than the start's, (L,).
        by_part: Remote share of the walks that start in each part, (P,); 0 of an empty part.
        num_simulated: Walks that the numbers are the mean of; 0: they are exact.
    """

    visits: np.ndarray
    remote: np.ndarray
    by_part: np.ndarray
    num_simulated: int = 0

    @property
    def share(self) -> float:
        """Remote share of all visits, the starts included."""
        return float(self.remote.sum() / self.visits.sum())


def forecast_walks(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, walk_length: int
) -> list[WalkForecast]:
    """Forecast the rows that a walk from every node along its out-edges pulls, for several assignments at once.

    Exact where that takes at most ``EXACT_WORK`` products, else by ``SIMULATED_WALKS`` walks from random nodes. A node
    without out-edges ends the walk. All edge types count alike, weighted where every type has weights.

    Args:
        parts: The part of each node, (N,), int32, by each assignment.
        walk_length: L.
    """
    work = flat.graph.total_edges * walk_length * num_parts * len(parts)
    run = exact_walks if work <= EXACT_WORK else simulated_walks
    return run(flat, parts, num_parts, walk_length)


def exact_walks(flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, walk_length: int) -> list[WalkForecast]:
    """The exact expectation; arguments as in ``forecast_walks``.

    The walkers of each part are carried through the graph step by step: with x(0) = 1 on the nodes of part p,
    x(t+1)[v] = sum over edges u -> v of x(t)[u] * w(u, v) / sum of w(u, .), and what lies outside of p is remote.
    Masses are float32, sums float64.
    """
    entering, scale = flat.rows(1), _inverse_out(flat)
    both = np.stack(parts, axis=1)
    # A column for each part of each assignment; those of a group are carried together, as many as fit the memory.
    which_of = np.repeat(np.arange(len(parts)), num_parts)
    part_of = np.tile(np.arange(num_parts, dtype=np.int32), len(parts))
    width = max(1, min(MOST_COLUMNS, TABLE_BYTES // (4 * max(flat.num_nodes, 1))))
    groups = [slice(low, low + width) for low in range(0, len(part_of), width)]
    here, inside = (np.zeros((walk_length, len(part_of))) for _ in range(2))
    with ThreadPool(thread_count(None)) as threads, reading("walks", walk_length * len(groups), "steps") as advance:
        for own in groups:
            which, part = which_of[own], part_of[own]
            mass = (both[:, which] == part).astype(np.float32)
            after = np.empty_like(mass)
            for t in range(walk_length):
                here[t, own], inside[t, own] = _tally(threads, mass, both, which, part, scale)
                after[:] = 0.0
                on_ranges(threads, len(after), partial(kernels.add_neighbours, *entering, mass, out=after))
                mass, after = after, mass
                advance(1)
    found = []
    for assignment in range(len(parts)):
        both_sums = here[:, which_of == assignment], np.maximum(here - inside, 0.0)[:, which_of == assignment]
        visits, remote = (sums / flat.num_nodes for sums in both_sums)
        by_part = _ratio(remote.sum(axis=0), visits.sum(axis=0))
        found.append(WalkForecast(visits.sum(axis=1), remote.sum(axis=1), by_part))
    return found


def simulated_walks(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, walk_length: int
) -> list[WalkForecast]:
    """The mean of random walks; arguments as in ``forecast_walks``. The same walks for every assignment and run.

    The standard error of a share s is at most sqrt(s * (1 - s) / SIMULATED_WALKS), 0.001 of all visits at most.
    """
    (indptr, indices, values), both = flat.rows(0), np.stack(parts, axis=1)
    starts = np.random.default_rng(0).integers(0, flat.num_nodes, SIMULATED_WALKS)
    cumulative = np.cumsum(values, dtype=np.float64)
    shape = (len(parts), num_parts, walk_length)
    counts: list[np.ndarray] = []

    def run(low: int, high: int) -> None:
        own = np.zeros((2, *shape), np.int64)
        kernels.simulate_walks(indptr, indices, cumulative, starts, both, low, high, own[0], own[1])
        counts.append(own)  # integers: their sum is the same in any order

    with ThreadPool(thread_count(None)) as threads:
        on_ranges(threads, len(starts), run)
    visits, remote = np.sum(counts, axis=0)
    return [
        WalkForecast(
            visits[k].sum(axis=0) / len(starts),
            remote[k].sum(axis=0) / len(starts),
            _ratio(remote[k].sum(axis=1), visits[k].sum(axis=1)),
            num_simulated=len(starts),
        )
        for k in range(len(parts))
    ]


def _inverse_out(flat: FlatGraph) -> np.ndarray:
    """One over the weight that leaves each node, (N,), float32; 0 where none does."""
    out, weights = np.zeros(flat.num_nodes), flat.weights or {}
    for etype, (src, _) in flat.graph.edges.items():
        own = flat.types[etype[0]]
        out[own] += np.bincount(src, weights=weights.get(etype), minlength=own.stop - own.start)
    return _ratio(np.ones(flat.num_nodes), out).astype(np.float32)


def _tally(
    threads: ThreadPool, mass: np.ndarray, parts: np.ndarray, which: np.ndarray, part: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mass of each column, all and inside its part, (C,); then the rows are scaled."""
    sums: dict[int, np.ndarray] = {}

    def run(low: int, high: int) -> None:
        own = np.zeros((2, len(part)))
        kernels.tally_and_scale(mass, parts, which, part, scale, low, high, own[0], own[1])
        sums[high] = own + sums.get(high, 0.0)  # ranges without rows end where another one does

    on_ranges(threads, len(mass), run)
    here, inside = np.sum([sums[high] for high in sorted(sums)], axis=0)
    return here, inside


def _ratio(share: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """share / whole, 0 where whole is 0."""
    return np.divide(share, whole, out=np.zeros(len(whole)), where=whole > 0)


@dataclass(frozen=True)
class SampleForecast:
    """Distinct rows that a batch of sampled neighbourhoods needs, the seeds included.

    Attributes:
        rows: Mean distinct input rows of one batch of each part, (P,); 0 of a part without seeds.
        remote: Those of them in other parts, (P,).
        batches: Batches of each part in an epoch, (P,); the last one counts by its share.
    """

    rows: np.ndarray
    remote: np.ndarray
    batches: np.ndarray

    @property
    def share(self) -> float:
        """Remote share of the rows of an epoch."""
        return float((self.remote * self.batches).sum() / (self.rows * self.batches).sum())


def forecast_samples(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, fanouts: tuple[int, ...], batch_size: int
) -> list[tuple[SampleForecast, ...]]:
    """The mean over ``BATCHES`` sampled batches: B seeds of one part, in-edges, without replacement, hop by hop.

    As in DGL, each hop samples anew for every node that the batch has so far. The same batches are drawn in every run
    and on any number of threads. Exact where fanouts are above every degree and a batch has all seeds of its part.

    Args:
        parts: The part of each node, (N,), int32, by each assignment.
        fanouts: Sampled in-edges of a node and edge type, the seeds' own first.
        batch_size: B, at most the seeds of the part.
    Returns:
        For each assignment one forecast for each hop.
    """
    groups = flat.groups_by_destination()
    hops = np.array(fanouts, np.int64)
    num_batches = max(1, BATCHES // num_parts)
    seeds = [[np.flatnonzero(flat.seeds & (own == part)) for part in range(num_parts)] for own in parts]
    every = product(range(len(parts)), range(num_parts), range(num_batches))
    tasks = [(k, part, batch) for k, part, batch in every if len(seeds[k][part])]
    found = np.zeros((2, len(parts), num_parts, len(hops)))

    def run(own: list[tuple[int, int, int]]) -> list[np.ndarray]:
        mark, reached = np.full(flat.num_nodes, -1, np.int64), np.empty(flat.num_nodes, np.int64)
        results = []
        for number, (k, part, batch) in enumerate(own):
            stream = np.random.default_rng([part, batch])
            chosen = stream.choice(seeds[k][part], min(batch_size, len(seeds[k][part])), replace=False)
            counts = np.zeros((2, len(hops)), np.int64)
            key = np.uint64(stream.integers(2**63))
            kernels.sample_batch(chosen, *groups, hops, key, mark, number, reached, parts[k], part, counts)
            results.append(counts)
        return results

    with ThreadPool(thread_count(None)) as threads, reading("samples", len(tasks), "batches") as advance:
        width = 4 * threads.num_threads
        for low in range(0, len(tasks), width):
            shares = [tasks[low : low + width][first :: threads.num_threads] for first in range(threads.num_threads)]
            answers = threads.run([lambda share=share: run(share) for share in shares])  # type: ignore[misc]
            for share, results in zip(shares, answers, strict=True):
                for (k, part, _), counts in zip(share, results, strict=True):
                    found[:, k, part] += counts
            advance(len(tasks[low : low + width]))
    forecasts = []
    for k in range(len(parts)):
        sizes, means = np.array([len(own) for own in seeds[k]]), found[:, k] / num_batches
        batches = np.where(sizes > 0, sizes / np.maximum(np.minimum(sizes, batch_size), 1), 0.0)
        forecasts.append(tuple(SampleForecast(means[0, :, hop], means[1, :, hop], batches) for hop in range(len(hops))))
    return forecasts
