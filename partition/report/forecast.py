"""Rows of other parts that training will pull: by random walks, and by batches sampled as DGL samples them."""

# N nodes and E edges of all types, P parts, L nodes of a walk, C columns, B seeds of a batch, H hops

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graph_emb.core.progress import reading
from graph_emb.core.threads import ThreadPool, thread_count
from partition.kernels import forecast as kernels
from partition.report.flat import CompressedRows, FlatGraph, on_ranges

MOST_COLUMNS = 16  # 16 float32 are a cache line, the unit in which neighbours are fetched
EXACT_WORK = 2_000_000_000
"""Edges times steps times columns up to which walks are exact: some seconds."""
SIMULATED_WALKS = 200_000
TABLE_BYTES = 1 << 28
"""Of one table of masses; on larger graphs fewer parts are carried at once."""
BATCHES = 64
"""Batches of an assignment, shared by its parts; each part has at least one."""


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
    which_of, part_of = (
        np.repeat(np.arange(len(parts)), num_parts),
        np.tile(np.arange(num_parts, dtype=np.int32), len(parts)),
    )
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
                _add_neighbours(threads, entering, mass, after)
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
    leaving, both = flat.rows(0), np.stack(parts, axis=1)
    starts = np.random.default_rng(0).integers(0, flat.num_nodes, SIMULATED_WALKS)
    cumulative = np.cumsum(leaving.values, dtype=np.float64)
    shape = (len(parts), num_parts, walk_length)
    counts: list[np.ndarray] = []

    def run(low: int, high: int) -> None:
        own = np.zeros((2, *shape), np.int64)
        kernels.simulate_walks(leaving.indptr, leaving.indices, cumulative, starts, both, low, high, own[0], own[1])
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


def _add_neighbours(threads: ThreadPool, rows: CompressedRows, table: np.ndarray, out: np.ndarray) -> None:
    """Add to ``out`` (N, C) the weighted sums of the rows of ``table`` that each node names."""
    on_ranges(threads, len(out), lambda low, high: kernels.add_neighbours(*rows, table, low, high, out))


def _inverse_out(flat: FlatGraph) -> np.ndarray:
    """One over the weight that leaves each node, (N,), float32; 0 where none does."""
    out = np.zeros(flat.num_nodes)
    for etype, (src, _) in flat.graph.edges.items():
        own, weights = flat.types[etype[0]], flat.weights
        sums = np.bincount(src, weights=None if weights is None else weights[etype], minlength=own.stop - own.start)
        out[own] += sums
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
    tasks = [
        (k, part, batch)
        for k in range(len(parts))
        for part in range(num_parts)
        for batch in range(num_batches)
        if len(seeds[k][part])
    ]
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
    return [_forecasts(found[:, k] / num_batches, seeds[k], batch_size) for k in range(len(parts))]


def _forecasts(means: np.ndarray, seeds: list[np.ndarray], batch_size: int) -> tuple[SampleForecast, ...]:
    """One forecast for each hop from the means of rows and remote rows, (2, P, H)."""
    sizes = np.array([len(own) for own in seeds])
    batches = np.where(sizes > 0, sizes / np.maximum(np.minimum(sizes, batch_size), 1), 0.0)
    return tuple(SampleForecast(means[0, :, hop], means[1, :, hop], batches) for hop in range(means.shape[2]))
