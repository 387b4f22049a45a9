from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.typed import HeteroGraph
from partition.problem import constraints

EDGES = ("a", "to", "b")


def graph(**columns: np.ndarray) -> HeteroGraph:
    """a0 -> b0, a1 -> b0, a2 -> b1; columns belong to type a."""
    return HeteroGraph({"a": 3, "b": 2}, {EDGES: (np.array([0, 1, 2]), np.array([0, 0, 1]))}, {"a": dict(columns)})


def weights(name: str, made: HeteroGraph | None = None, **options: str) -> list[int]:
    return constraints(made or graph(), [name], **options).weights[0].tolist()  # type: ignore[arg-type]


def test_names_become_weights_by_homogeneous_id() -> None:
    assert weights("nodes") == [1, 1, 1, 1, 1]
    assert weights("edges") == [0, 0, 0, 2, 1]
    assert weights("edges", edge_owner="source") == [1, 1, 1, 0, 0]
    assert weights("edges", edge_owner="balanced") == [1, 1, 1, 2, 1]
    assert weights("type:b") == [0, 0, 0, 1, 1]
    assert constraints(graph(), ["types"]).names == ("type:a", "type:b")


@pytest.mark.parametrize("owner", ["destination", "source", "balanced"])
def test_any_number_of_threads_counts_the_same_edges(owner: str) -> None:
    src, dst = np.random.default_rng(0).integers(6, size=(2, 50))
    made = HeteroGraph({"a": 6, "b": 6}, {EDGES: (src, dst)})
    one = constraints(made, ["edges"], edge_owner=owner).weights  # type: ignore[arg-type]
    assert one.sum() == (100 if owner == "balanced" else 50)
    for num_threads in (2, 4):
        found = constraints(made, ["edges"], edge_owner=owner, num_threads=num_threads)  # type: ignore[arg-type]
        assert (found.weights == one).all()


def test_masks_and_columns_become_weights() -> None:
    made = graph(train_mask=np.array([True, False, True]), size=np.array([3, 0, 9]), share=np.array([0.5, 0.0, 1.0]))
    assert weights("train", made) == [1, 0, 1, 0, 0]
    assert weights("weight:size", made) == [3, 0, 9, 0, 0]
    assert weights("weight:share", made) == [500_000, 0, 1_000_000, 0, 0]


@pytest.mark.parametrize("name", ["degree", "type:c", "weight:", "Nodes"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown constraint.*known: nodes, edges, types, type:a, type:b"):
        constraints(graph(), [name])


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'type:a' is given twice"):
        constraints(graph(), ["types", "type:a"])
    with pytest.raises(ConfigError, match="unknown edge_owner 'both'"):
        constraints(graph(), ["edges"], edge_owner="both")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "name", "message"),
    [
        ({}, "test", "no node type has data 'test_mask'"),
        ({"x": np.array([1, -1, 0])}, "weight:x", "below 0"),
        ({"x": np.array([1.0, np.nan, 0])}, "weight:x", "not finite"),
        ({"x": np.ones((3, 2))}, "weight:x", r"a/x is float64 \(3, 2\)"),
        ({"x": np.array(["a", "b", "c"])}, "weight:x", "needs"),
    ],
)
def test_columns_that_are_no_weights_are_refused(columns: dict, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        constraints(graph(**columns), [name])


def test_tolerances_are_one_number_or_by_name() -> None:
    assert constraints(graph(), tolerance=0.1).tolerances.tolist() == [0.1, 0.1]
    assert constraints(graph(), tolerance={"edges": 0.2}).tolerances.tolist() == [0.05, 0.2]
    with pytest.raises(ConfigError, match="'train' is not balanced; balanced: nodes, edges"):
        constraints(graph(), tolerance={"train": 0.1})
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="at least 0"):
            constraints(graph(), tolerance=bad)


def test_a_tolerance_is_checked_where_nothing_is_balanced() -> None:
    """It was checked for each name, and the method hash has none."""
    with pytest.raises(ConfigError, match=r"tolerance is -7\.0; it must be finite and at least 0"):
        constraints(graph(), [], tolerance=-7.0)
    with pytest.raises(ConfigError, match="tolerance is 'x'; it must be finite and at least 0"):
        constraints(graph(), [], tolerance="x")  # type: ignore[arg-type]


def test_a_limit_is_never_below_the_mean_rounded_up() -> None:
    # 5 nodes on 2 parts: mean 2.5, 5 % above is 2.6, yet one part must take 3
    assert constraints(graph(), ["nodes"]).limits(2).tolist() == [3]
    assert constraints(graph(), ["nodes"], 0.7).limits(2).tolist() == [4]


def test_balance_is_the_fullest_part_over_the_mean() -> None:
    made = constraints(graph())
    parts = np.array([0, 0, 0, 1, 0])
    assert made.loads(parts, 2).tolist() == [[4, 1], [1, 2]]
    assert made.balance(parts, 2) == {"nodes": 1.6, "edges": pytest.approx(4 / 3)}


def test_what_is_too_full_is_named_with_its_limit() -> None:
    made = constraints(graph())
    with pytest.raises(PartitionError, match=r"ldg: part 0 holds 4 of 5 'nodes', balance 1.600, above the limit 3 "):
        made.check(np.array([0, 0, 0, 1, 0]), 2, "ldg")
    made.check(np.array([0, 0, 1, 1, 0]), 2, "ldg")


def test_a_node_too_heavy_for_any_part_is_named() -> None:
    heavy = graph(size=np.array([8, 1, 1]))
    with pytest.raises(PartitionError, match="one node alone weighs 8"):
        constraints(heavy, ["weight:size"]).check(np.array([0, 1, 1, 1, 1]), 2, "multilevel")
