from __future__ import annotations

from partition.methods.effort import CLEAR, DENSE, EFFORTS, LARGE, LOCAL, SMALL, MultilevelSettings


def test_starts_follow_the_size_of_the_graph_without_a_cliff() -> None:
    """Graphs below four million edges once got three runs and a cycle, larger ones one run: a cliff in time and cut."""
    effort = EFFORTS["default"]
    assert effort.repeats + effort.cycles == 1
    sizes = [10_000 * 2**i for i in range(13)]  # to 41 million entries
    starts = [effort.num_starts(20_000, size, 2) for size in sizes]
    assert starts == [1, 1, 1, 2, 4, 8, 16, 20, 20, 20, 20, 20, 20]
    shared = [effort.num_starts(20_000, size, 2, ways=4) for size in sizes]
    assert shared == [1, 1, 1, 1, 1, 2, 4, 8, 12, 12, 12, 12, 12]


def test_small_graphs_and_many_parts_are_worth_one_way() -> None:
    settings = MultilevelSettings.of()
    assert [settings.ways(*size) for size in ((300_000, 32), (299_999, 2), (10**9, 33))] == [4, 1, 1]
    assert MultilevelSettings.of("high").ways(10**9, 2) == 1


def test_starts_share_their_number_over_the_depth_of_the_bisection() -> None:
    effort = EFFORTS["high"]
    assert [effort.num_starts(100, 100, parts) for parts in (2, 4, 16)] == [108, 54, 27]
    assert effort.num_starts(10**9, 10**9, 16) == 1


def test_the_default_searches_thoroughly_only_where_the_finest_level_costs_more() -> None:
    assert EFFORTS["default"].searches(1_000_000, 1_000_000) == LARGE
    assert EFFORTS["default"].searches(250_000, 1_000_000) == SMALL
    assert EFFORTS["high"].searches(1_000_000, 1_000_000) == SMALL


def test_only_dense_graphs_have_another_effort_beside_the_default() -> None:
    settings = MultilevelSettings.of()
    sizes = ((200_000, 5_000), (1_000_000, 25_000), (200_000, 5_001), (199_999, 10), (1_000_001, 10))
    assert [settings.on(*size).mixed for size in sizes] == [DENSE, DENSE, None, None, None]
    assert [settings.on(*size).effort for size in sizes[1:3]] == [CLEAR, EFFORTS["default"]]
    assert CLEAR.searches(400_000, 400_000) == SMALL
    assert MultilevelSettings.of("high").on(200_000, 5_000).mixed is None
    assert [DENSE.searches(level, 400_000) for level in (400_000, 300_000, 100_000)] == [LOCAL, LARGE, SMALL]
