"""What holds for every registered method."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import CompatError, ConfigError
from partition.methods import METHODS, assign
from partition.problem import constraints
from tests.partition.methods.graphs import planted, skewed

ROWS: dict[str, dict[str, Any]] = {
    "random": {},
    "hash": {},
    "range": {},
    "ldg": {},
    "fennel": {},
    "multilevel": {},
    "metis": {},
    "pymetis": {},
    "kaminpar": {},
    "mtkahypar": {},
    "file": {"path": "parts.npy"},
}
"""Every method with the options that it cannot do without."""

UNSEEDED_LIBRARIES = ("metis",)
"""Draws from the C library's generator, which nobody sets: two calls may differ."""

names = pytest.mark.parametrize("name", sorted(ROWS))


@pytest.fixture
def options(name: str, tmp_path: Path) -> dict[str, Any]:
    if name in ("pymetis", "kaminpar", "mtkahypar"):
        pytest.importorskip(name)
    _, blocks = planted()
    np.save(tmp_path / "parts.npy", blocks.astype(np.int32))
    return {key: str(tmp_path / value) if key == "path" else value for key, value in ROWS[name].items()}


def test_every_method_has_a_row() -> None:
    assert set(METHODS) == set(ROWS)


@names
def test_every_node_gets_a_part_and_what_is_promised_holds(name: str, options: dict[str, Any]) -> None:
    graph, _ = planted()
    made = assign(graph, 4, name, **options)
    made.check(graph)
    assert made.method == name
    assert made.homogeneous().dtype == np.int32
    promised = constraints(graph, METHODS[name].balance)
    for constraint, value in promised.balance(made.homogeneous(), 4).items():
        assert value <= 1.05
        assert made.balance[constraint] == value
    assert {"nodes", "edges"} <= set(made.balance)
    assert made.seconds > 0
    assert made.peak_bytes >= 0


@names
def test_the_same_seed_gives_the_same_bytes_on_one_and_two_threads(name: str, options: dict[str, Any]) -> None:
    if name in UNSEEDED_LIBRARIES:
        pytest.skip(f"{name} draws from a generator that nobody can seed")
    graph, _ = planted()
    seed = 5 if METHODS[name].seeded else 0
    first = assign(graph, 3, name, seed=seed, num_threads=1, **options) if name != "file" else None
    if first is None:
        first = assign(graph, 4, name, num_threads=1, **options)
    again = assign(graph, first.num_parts, name, seed=seed, num_threads=2, **options)
    assert first.homogeneous().tobytes() == again.homogeneous().tobytes()


@names
def test_another_seed_matters_or_is_refused(name: str, options: dict[str, Any]) -> None:
    graph, _ = planted()
    if not METHODS[name].seeded:
        with pytest.raises(ConfigError, match=f"'{name}' takes no seed, but seed is 7"):
            assign(graph, 4, name, seed=7, **options)
        return
    made = {assign(graph, 4, name, seed=seed, **options).homogeneous().tobytes() for seed in (1, 2)}
    assert len(made) == 2


@names
def test_unknown_options_are_refused(name: str, options: dict[str, Any]) -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match=f"unknown option of method '{name}' 'colour'"):
        assign(graph, 4, name, colour="red", **options)


@names
def test_parts_outside_one_to_nodes_are_refused(name: str, options: dict[str, Any]) -> None:
    graph, _ = planted()
    for parts in (0, -1, graph.total_nodes + 1):
        with pytest.raises(ConfigError, match=f"num_parts is {parts}; it must lie in 1 .. 240"):
            assign(graph, parts, name, **options)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"file"}))
def test_one_part_takes_everything(name: str) -> None:
    graph, _ = planted()
    assert not assign(graph, 1, name).homogeneous().any()


@names
def test_what_cannot_be_balanced_is_refused(name: str, options: dict[str, Any]) -> None:
    if name in ("multilevel", "ldg", "fennel", "file"):
        return  # they take every constraint
    with pytest.raises(ConfigError, match=f"method '{name}' cannot balance nodes, train"):
        assign(skewed(), 4, name, balance=["nodes", "train"], **options)


@pytest.mark.parametrize("name", ["random", "hash", "range", "file"])
def test_relation_weights_are_refused_by_methods_that_see_no_edges(name: str) -> None:
    graph, _ = planted()
    options = {"path": "nowhere.npy"} if name == "file" else {}
    with pytest.raises(ConfigError, match="takes no weights of edges"):
        assign(graph, 4, name, relation_weights={("_N", "_E", "_N"): 2}, **options)


@pytest.mark.parametrize("name", ["pymetis", "kaminpar", "mtkahypar"])
def test_a_missing_package_is_named_with_its_extra(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    graph, _ = planted()
    with pytest.raises(CompatError, match=rf"needs the package {name}: pip install 'graph_emb\[{name}\]'"):
        assign(graph, 4, name)
