from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.typed import HeteroGraph
from partition.methods import assign
from partition.methods.nodewise import hashes
from partition.problem import symmetric
from tests.partition.methods.graphs import planted, skewed

both = pytest.mark.parametrize("name", ["ldg", "fennel"])


def test_a_hash_depends_on_the_original_id_alone() -> None:
    ids = np.arange(100, 160)
    whole = assign(HeteroGraph({"a": 60}, {}, node_ids={"a": ids}), 3, "hash").parts["a"]
    turned = assign(HeteroGraph({"a": 60}, {}, node_ids={"a": ids[::-1]}), 3, "hash").parts["a"]
    assert whole.tolist() == turned[::-1].tolist()
    assert assign(HeteroGraph({"a": 160}, {}), 3, "hash").parts["a"][100:].tolist() == whole.tolist()


def test_a_string_hashes_alike_beside_longer_ones() -> None:
    assert hashes(np.array(["ann", "bo"]), 3)[0] == hashes(np.array(["ann", "a much longer name"]), 3)[0]
    assert hashes(np.array(["ann"]), 3)[0] != hashes(np.array(["ann"]), 4)[0]
    assert hashes(np.array(["ab"]), 0)[0] != hashes(np.array(["ba"]), 0)[0]


def test_hashes_spread_evenly() -> None:
    counts = np.bincount((hashes(np.arange(100_000), 0) % np.uint64(8)).astype(int))
    assert counts.max() / counts.mean() < 1.03


def test_random_deals_every_type_evenly() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "random", seed=2, balance=["nodes", "types"])
    assert np.ptp(np.bincount(made.parts["a"])) <= 1
    assert np.ptp(np.bincount(made.parts["b"])) <= 1
    assert np.ptp(np.bincount(made.homogeneous())) <= 1


def test_ranges_ascend_within_a_type_and_take_turns_with_the_rest() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "range", balance=["nodes", "types"])
    assert made.parts["a"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert made.parts["b"].tolist() == [0, 0, 1, 2, 2, 3, 3]  # the extra ones: parts 0, 1 of a, then 2, 3, 0 of b
    assert np.bincount(made.homogeneous()).tolist() == [5, 4, 4, 4]


def graph() -> HeteroGraph:
    return HeteroGraph({"a": 3, "b": 1}, {})


def test_all_layouts_give_the_same_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.array([1, 0, 1, 0]))
    np.save(tmp_path / "pairs.npy", np.array([[3, 0], [2, 1], [0, 1], [1, 0]]))
    (tmp_path / "flat.txt").write_text("1\n0\n1\n0\n")
    (tmp_path / "graph_part.2").write_text("3 0\n2 1\n0 1\n1 0\n")
    folder = tmp_path / "types"
    folder.mkdir()
    (folder / "a.txt").write_text("1\n0\n1\n")
    np.save(folder / "b.npy", np.array([0]))
    for name in ("flat.npy", "pairs.npy", "flat.txt", "graph_part.2", "types"):
        made = assign(graph(), 2, "file", path=tmp_path / name)
        assert made.parts["a"].tolist() == [1, 0, 1]
        assert made.parts["b"].tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n1\n", "3 parts for 4 nodes"),
        ("1\n0\n1\n2\n", r"node 3 has part 2, outside \[0, 2\)"),
        ("1\n0\nx\n0\n", "line 3: 'x'"),
        ("1\n0 1\n", "line 2: '0 1'"),
        ("0 1\n1 1\n2 0\n2 1\n", "node 2 has 2 rows"),
        ("0 1\n1 1\n2 0\n4 1\n", r"row 3 names node 4, outside \[0, 4\)"),
        ("", "0 parts for 4 nodes"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        assign(graph(), 2, "file", path=tmp_path / "x.txt")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 raised a UnicodeDecodeError, which names neither the file nor what to give."""
    (tmp_path / "parts.bin").write_bytes(bytes(range(127, 256)) * 100)
    with pytest.raises(DataError, match=r"parts\.bin, line 1: .*; expected 'part', or 'node part'") as caught:
        assign(graph(), 2, "file", path=tmp_path / "parts.bin")
    assert len(str(caught.value)) < len(str(tmp_path)) + 300


def test_what_is_wrong_with_an_array_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", np.zeros(4))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    for name, message in (("float.npy", "float64 of shape"), ("cut.npy", "cannot be read as a .npy array: EOF")):
        with pytest.raises(DataError, match=message):
            assign(graph(), 2, "file", path=tmp_path / name)
    with pytest.raises(DataError, match="0 files for node type 'a'"):
        assign(graph(), 2, "file", path=tmp_path)
    with pytest.raises(ConfigError, match="needs the option path"):
        assign(graph(), 2, "file")


def test_a_number_is_no_path() -> None:
    """On the command line path=3 is a number, and Path(3) a TypeError."""
    with pytest.raises(ConfigError, match=r"needs the option path: .*, not 3"):
        assign(graph(), 2, "file", path=3)


@both
def test_a_stream_cuts_less_than_random_and_restreaming_less_again(name: str) -> None:
    graph, _ = planted(num_blocks=8, size=100)
    adjacency = symmetric(graph)
    cuts = [adjacency.cut(assign(graph, 4, name, passes=passes, balance=["nodes"]).homogeneous()) for passes in (1, 10)]
    random = adjacency.cut(assign(graph, 4, "random").homogeneous())
    assert cuts[1] < cuts[0] < 0.9 * random


@both
def test_every_limit_holds_after_a_stream(name: str) -> None:
    made = assign(skewed(), 4, name, balance=["nodes", "type:user", "train"])
    assert max(made.balance[key] for key in ("nodes", "type:user", "train")) <= 1.07


@both
def test_the_natural_order_needs_no_seed(name: str) -> None:
    graph, _ = planted()
    made = {assign(graph, 4, name, order="natural", seed=seed).homogeneous().tobytes() for seed in (1, 2)}
    assert len(made) == 1


@both
def test_bad_options_are_refused(name: str) -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match="passes is 0"):
        assign(graph, 4, name, passes=0)
    with pytest.raises(ConfigError, match="unknown order 'reverse'; known: natural, random"):
        assign(graph, 4, name, order="reverse")
