from __future__ import annotations

from partition.methods.effort import EFFORTS, LARGE, SMALL


def test_starts_follow_the_size_of_the_graph_without_a_cliff() -> None:
    """Graphs below four million edges once got three runs and a cycle, larger ones one run: a cliff in time and cut."""
    effort = EFFORTS["default"]
    assert effort.repeats + effort.cycles == 1
    sizes = [10_000 * 2**i for i in range(13)]  # to 41 million entries
    starts = [effort.num_starts(20_000, size, 2) for size in sizes]
    assert starts == [1, 1, 1, 1, 2, 4, 8, 16, 25, 25, 25, 25, 25]


def test_starts_share_their_number_over_the_depth_of_the_bisection() -> None:
    effort = EFFORTS["high"]
    assert [effort.num_starts(100, 100, parts) for parts in (2, 4, 16)] == [108, 54, 27]
    assert effort.num_starts(10**9, 10**9, 16) == 1


def test_the_default_searches_thoroughly_only_where_the_finest_level_costs_more() -> None:
    assert EFFORTS["default"].searches(1_000_000, 1_000_000) == LARGE
    assert EFFORTS["default"].searches(250_000, 1_000_000) == SMALL
    assert EFFORTS["high"].searches(1_000_000, 1_000_000) == SMALL
