"""Rows of other parts that random walks will pull: exactly, or on large graphs by simulated walks."""

# N nodes and E edges of all types, P parts, L nodes of a walk, C columns

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graph_emb.core.progress import reading
from graph_emb.core.threads import ThreadPool, thread_count
from partition.report import loops
from partition.report.flat import FlatGraph
from partition.report.rows import destinations_by_source, on_ranges, sources_by_destination

MOST_COLUMNS = 16  # 16 float32 are a cache line, the unit in which neighbours are fetched
EXACT_WORK = 2_000_000_000
"""Edges times steps times columns up to which walks are exact: some seconds."""
SIMULATED_WALKS = 200_000
TABLE_BYTES = 1 << 28
"""Of one table of masses; on larger graphs fewer parts are carried at once."""


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
    entering, scale = sources_by_destination(flat), _inverse_out(flat)
    both = np.stack(parts, axis=1)
    columns = _Columns(len(parts), num_parts, flat.num_nodes)
    here, inside = (np.zeros((walk_length, len(columns.part))) for _ in range(2))
    with (
        ThreadPool(thread_count(None)) as threads,
        reading("walks", walk_length * len(columns.groups), "steps") as advance,
    ):
        for own in columns.groups:
            which, part = columns.which[own], columns.part[own]
            mass = (both[:, which] == part).astype(np.float32)
            after = np.empty_like(mass)
            for t in range(walk_length):
                here[t, own], inside[t, own] = _tally(threads, mass, both, which, part, scale)
                after[:] = 0.0
                entering.add(threads, mass, after)
                mass, after = after, mass
                advance(1)
    found = []
    for assignment in range(len(parts)):
        own = columns.which == assignment
        visits, remote = here[:, own] / flat.num_nodes, np.maximum(here - inside, 0.0)[:, own] / flat.num_nodes
        found.append(
            WalkForecast(visits.sum(axis=1), remote.sum(axis=1), _ratio(remote.sum(axis=0), visits.sum(axis=0)))
        )
    return found


def simulated_walks(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, walk_length: int
) -> list[WalkForecast]:
    """The mean of random walks; arguments as in ``forecast_walks``. The same walks for every assignment and run.

    The standard error of a share s is at most sqrt(s * (1 - s) / SIMULATED_WALKS), 0.001 of all visits at most.
    """
    leaving, both = destinations_by_source(flat), np.stack(parts, axis=1)
    starts = np.random.default_rng(0).integers(0, flat.num_nodes, SIMULATED_WALKS)
    cumulative = np.cumsum(leaving.values, dtype=np.float64)
    shape = (len(parts), num_parts, walk_length)
    counts: list[np.ndarray] = []

    def run(low: int, high: int) -> None:
        own = np.zeros((2, *shape), np.int64)
        loops.simulate_walks(leaving.indptr, leaving.indices, cumulative, starts, both, low, high, own[0], own[1])
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
        loops.tally_and_scale(mass, parts, which, part, scale, low, high, own[0], own[1])
        sums[high] = own + sums.get(high, 0.0)  # ranges without rows end where another one does

    on_ranges(threads, len(mass), run)
    here, inside = np.sum([sums[high] for high in sorted(sums)], axis=0)
    return here, inside


class _Columns:
    """A column for each part of each assignment, in groups that fit the memory.

    Attributes:
        which, part: The assignment and the part of each column.
        groups: Indices of the columns that are carried together.
    """

    def __init__(self, num_assignments: int, num_parts: int, num_rows: int) -> None:
        self.which = np.repeat(np.arange(num_assignments), num_parts)
        self.part = np.tile(np.arange(num_parts, dtype=np.int32), num_assignments)
        width = max(1, min(MOST_COLUMNS, TABLE_BYTES // (4 * max(num_rows, 1))))
        self.groups = [np.arange(low, min(low + width, len(self.part))) for low in range(0, len(self.part), width)]


def _ratio(share: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """share / whole, 0 where whole is 0."""
    return np.divide(share, whole, out=np.zeros(len(whole)), where=whole > 0)
