"""How much work a multilevel partition is worth: runs, starts on the coarsest level, rounds of search on each level."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graph_emb.core.errors import unknown_name
from partition.methods.base import at_least


@dataclass(frozen=True)
class Search:
    """Rounds of local search with the same parameters.

    Attributes:
        rounds: At most; a round that gains less than ``multilevel.LEAST_GAIN`` of the cut is the last.
        per_search: Boundary nodes that each search starts from; 0: all at once.
        patience: Moves without a better state that end a search.
        after: Left out where the round before gained less than this share of the cut.
    """

    rounds: int
    per_search: int
    patience: int
    after: float = 0.0


SMALL = Search(rounds=3, per_search=0, patience=400), Search(rounds=3, per_search=20, patience=60)
LARGE = Search(rounds=2, per_search=0, patience=400), Search(rounds=1, per_search=200, patience=100, after=0.005)
HUGE = LARGE[:1]
"""First from the whole boundary at once, then from a few nodes each, which finds what the first does not, but little of
it on the largest levels, where it takes longest."""
LOCAL = LARGE[0], Search(rounds=2, per_search=1, patience=25)
"""The second from each node of the boundary alone: where most edges are cut, many moves are found by nothing else."""
SMALL_ENTRIES, LARGE_ENTRIES = 3_000_000, 15_000_000
LEAST_ENTRIES, MOST_PARTS = 300_000, 32
"""Of graphs and partitions that are worth several ways: beyond, one costs as much as the rest."""
LEAST_WORK = 20_000
"""Entries that all starts together may look at in one try of each bisection, on any graph."""


@dataclass(frozen=True)
class Effort:
    """How much work a partition is worth.

    Attributes:
        repeats, cycles: Runs from scratch, and runs that start from the best parts.
        ways: In a run from scratch, from the level after the graph down to the coarsest; one for graphs of less than
            ``LEAST_ENTRIES`` and for more than ``MOST_PARTS`` parts.
        rounds: Of label propagation in each coarsening.
        growth: Mean nodes that may merge in one coarsening, as smaller steps leave more chances to refine; 1e9 leaves
            it to the limit on clusters.
        shares: Of a part's limit: the most that a cluster may hold, one after the other in repeated runs.
        coarsest, per_part: Nodes of the coarsest level, in all and for each part; the larger counts.
        starts: On the coarsest level at most, over the depth of the bisection.
        work, most_work: Entries that all starts together may look at in one try of each bisection, for each entry of
            the graph, and on any graph.
        tries: Of each bisection in a start: fewer make the starts more different.
        refined: The share of the starts that are refined, the best of them.
        thorough: The share of the graph's entries up to which a level gets the ``SMALL`` searches.
        finest: The searches on the graph itself; empty: as on any level.
    """

    repeats: int
    cycles: int
    ways: int
    rounds: int
    growth: float
    shares: tuple[float, ...]
    coarsest: int
    per_part: int
    starts: int
    work: float
    most_work: int
    tries: int
    refined: float
    thorough: float
    finest: tuple[Search, ...] = ()

    def num_starts(self, level: int, graph: int, num_parts: int, ways: int = 1) -> int:
        """At least 1, for the entries of the coarsest level and of the graph, on each of the ways."""
        most = np.clip(self.work * graph, LEAST_WORK, self.most_work) / (self.tries * max(level, 1) * ways)
        return int(np.clip(most, 1, self.starts) / max(1.0, np.log2(num_parts))) or 1

    def searches(self, level: int, graph: int) -> tuple[Search, ...]:
        """On a level, for its entries and those of the graph."""
        if self.finest and level == graph:
            return self.finest
        if level < SMALL_ENTRIES and level <= self.thorough * graph:
            return SMALL
        return LARGE if level < LARGE_ENTRIES else HUGE


EFFORTS = {
    "default": Effort(
        1, 0, ways=4, rounds=2, growth=1e9, shares=(1 / 5, 1 / 10), coarsest=400, per_part=20,
        starts=20, work=1.0, most_work=2_000_000, tries=2, refined=1 / 4, thorough=1 / 4,
    ),
    "high": Effort(
        3, 1, ways=1, rounds=3, growth=40, shares=(1 / 10, 1 / 20, 1 / 40), coarsest=1500, per_part=60,
        starts=108, work=np.inf, most_work=4_000_000, tries=2, refined=1, thorough=1,
    ),
}  # fmt: skip
CLEAR = replace(EFFORTS["default"], thorough=1.0)
DENSE = replace(EFFORTS["default"], starts=27, growth=10.0, ways=1, finest=LOCAL)
DENSE_ROW, DENSE_ENTRIES, MIXED = 40, (200_000, 1_000_000), 0.6
"""For graphs of so many entries a node at least and of this many in all: ``CLEAR``; and ``DENSE`` where the first step
leaves more than this share of the edges' weight between clusters: most of their edges are cut whatever the parts, and a
step joins nodes that have little in common. Smaller ones get too few starts for it; in larger ones single searches cost
more than they find."""
LARGEST = 1 / 20
"""Of the graph: the most that a cluster may hold. A fifth of one of two parts leaves the first parts few choices."""


@dataclass(frozen=True)
class MultilevelSettings:
    """The options of ``multilevel``: its effort, the runs from scratch and those that start from the best parts.

    Attributes:
        mixed: The effort where the first step leaves more than ``MIXED`` of the weight between clusters, if another.
    """

    effort: Effort
    repeats: int
    cycles: int
    mixed: Effort | None = None

    @classmethod
    def of(cls, effort: str = "default", repeats: int | None = None, cycles: int | None = None) -> MultilevelSettings:
        """Of the options as ``multilevel`` takes them, with its errors."""
        if effort not in tuple(EFFORTS):
            raise unknown_name("effort", effort, EFFORTS)
        given = EFFORTS[effort]
        repeats = given.repeats if repeats is None else at_least("repeats", repeats, 1)
        return cls(given, repeats, given.cycles if cycles is None else at_least("cycles", cycles, 0))

    def on(self, entries: int, num_nodes: int) -> MultilevelSettings:
        """For a graph: ``CLEAR``, and ``DENSE`` beside it, in the place of the default where it is dense."""
        least, most = DENSE_ENTRIES
        dense = least <= entries <= most and entries >= DENSE_ROW * num_nodes
        return replace(self, effort=CLEAR, mixed=DENSE) if dense and self.effort is EFFORTS["default"] else self

    def target(self, num_parts: int) -> int:
        """Nodes of the coarsest level, about."""
        return max(self.effort.coarsest, self.effort.per_part * num_parts)

    def ways(self, graph: int, num_parts: int) -> int:
        """In a run from scratch, for the entries of the graph."""
        return self.effort.ways if graph >= LEAST_ENTRIES and num_parts <= MOST_PARTS else 1

    def caps(self, totals: np.ndarray, limits: np.ndarray, run: int = 0) -> np.ndarray:
        """(C,): what a cluster may hold in one of the runs, for the (C,) totals and limits of a part."""
        share = self.effort.shares[run % len(self.effort.shares)]
        return np.maximum(np.minimum(limits * share, totals * LARGEST).astype(np.int64), 1)
