"""Slices of edge files, blocks of bounded size, counts of the first pass; what a limit on memory and a disk allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.settings import memory_bytes
from partition.streaming.shared_stages import Workers, Workplace
from partition.streaming.source import (
    LEAST_WORK_BYTES,
    MAX_SLICES,
    MIB,
    NODE_BYTES,
    Budget,
    EdgeSource,
    Plan,
    Scan,
)
from tests.partition.streaming.edge_files import MEMORY, write_parquet

PLAN = Plan(
    input_bytes=100, num_nodes=10, num_edges=1000, num_parts=2, neighbour_passes=0, weight_bytes=0, num_slices=1,
    num_buckets=2, both_ends=True,
)  # fmt: skip


def rows_of(source: EdgeSource, num_rows: int) -> list[tuple[int, int]]:
    found = []
    for index in range(len(source.slices)):
        for block in source.blocks(index, num_rows, 1 << 20):
            assert len(block.src) <= num_rows
            found += list(zip(block.src.tolist(), block.dst.tolist(), strict=True))
    return found


@pytest.mark.parametrize("group_rows", [1, 7, 1000])
def test_slices_hold_every_edge_once_in_order(tmp_path: Path, group_rows: int) -> None:
    src, dst = np.arange(100), np.arange(100)[::-1].copy()
    (tmp_path / "edges").mkdir()
    write_parquet(tmp_path / "edges" / "a.parquet", {"src": src[:60], "dst": dst[:60]}, group_rows)
    write_parquet(tmp_path / "edges" / "b.parquet", {"src": src[60:], "dst": dst[60:]}, group_rows)
    source = EdgeSource(tmp_path / "edges", None)
    assert 1 <= len(source.slices) <= MAX_SLICES
    assert rows_of(source, 9) == list(zip(src.tolist(), dst.tolist(), strict=True))


def test_rows_are_counted_from_the_top_of_the_file(tmp_path: Path) -> None:
    src = np.arange(40)
    src[33] = -1
    source = EdgeSource(write_parquet(tmp_path / "g.parquet", {"src": src, "dst": src}, 10), None)
    with pytest.raises(DataError, match="row 34: src -1"):
        rows_of(source, 4)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    """Of a chunked graph every Parquet file, features too, was read as edges, in silence."""
    for name in ("edges", "feat"):
        write_parquet(tmp_path / f"{name}.parquet", {"0": np.arange(9), "1": np.arange(9)}, 9)
    assert len(EdgeSource(tmp_path, None).files) == 2
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"reads edge lists only.*this is read as 'chunked'; leave memory out"):
        EdgeSource(tmp_path, None)


def test_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g.tsv").write_text("anna\tbert\n")
    with pytest.raises(ConfigError, match="its ids are names"):
        rows_of(EdgeSource(tmp_path / "g.tsv", None), 10)


def test_names_of_targets_alone_are_refused(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "g.parquet", {"src": np.arange(2), "dst": np.array(["a", "b"])}, 10)
    with pytest.raises(ConfigError, match="its ids are names"):
        rows_of(EdgeSource(file, None), 10)


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_weights_are_refused_as_in_memory(tmp_path: Path, weight: float) -> None:
    columns = {"src": np.arange(30), "dst": np.arange(30), "weight": np.ones(30)}
    columns["weight"][23] = weight
    with pytest.raises(DataError, match=r"row 24: weight .* is not finite and above 0"):
        rows_of(EdgeSource(write_parquet(tmp_path / "g.parquet", columns, 10), None), 4)


def test_doubtful_weights_are_refused_as_in_memory(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1 7\n1 0 8\n")
    with pytest.raises(DataError, match="a third column without a name, '7'; say weight=True"):
        rows_of(EdgeSource(tmp_path / "g.txt", None), 10)
    assert rows_of(EdgeSource(tmp_path / "g.txt", {"weight": False}), 10) == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("name", "options", "error", "word"),
    [
        ("none.csv", {}, DataError, "none.csv"),
        ("g.npz", {}, ConfigError, "edge lists only"),
        ("empty", {}, DataError, "no edges"),
        ("g.txt", {"num_nodes": 0}, ConfigError, "num_nodes=0"),
        ("g.txt", {"num_nodes": {"a": 3}}, ConfigError, "num_nodes="),
        ("g.txt", {"num_nodes": "many"}, ConfigError, "num_nodes='many'"),
        ("g.txt", {"weight": 3}, ConfigError, "weight=3"),
        ("g.txt", {"header": "perhaps"}, ConfigError, "header="),
        ("g.txt", {"edge_type": "a:b:c"}, ConfigError, "edge_type"),
    ],
)
def test_other_sources_and_options_are_refused(
    tmp_path: Path, name: str, options: dict[str, object], error: type[Exception], word: str
) -> None:
    (tmp_path / "g.txt").write_text("0 1\n")
    (tmp_path / "g.npz").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=word):
        EdgeSource(tmp_path / name, options)


def scan_of(folder: Path, options: dict[str, object] | None = None, memory: str = MEMORY) -> tuple[Workplace, Scan]:
    source = EdgeSource(folder / "edges", options)
    place = Workplace(folder / "out", {}, Workers())
    return place, Scan(source, place, Budget.of(memory), lambda count: None)


def test_degrees_add_up_over_slices(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    write_parquet(tmp_path / "edges" / "a.parquet", {"src": np.array([0, 4, 0]), "dst": np.array([1, 0, 2])}, 2)
    write_parquet(tmp_path / "edges" / "b.parquet", {"src": np.array([1]), "dst": np.array([1])}, 2)
    place, scan = scan_of(tmp_path)
    found = [scan.slice(index) for index in range(len(scan.source.slices))]
    assert sum(each["rows"] for each in found) == 4
    assert max(each["num_nodes"] for each in found) == 5
    assert scan.degrees("in", 5).tolist() == [1, 2, 1, 0, 0]
    assert scan.degrees("out", 5).tolist() == [2, 1, 0, 0, 1]
    with pytest.raises(ConfigError, match=r"no edge has node 3 \(1 of 5 are missing\)"):
        scan.check_no_gaps(5)
    place.close(remove=True)


@pytest.mark.parametrize(("weights", "said"), [(np.ones(3), False), (np.array([1.0, 1.0, 2.0]), True)])
def test_weights_that_are_all_one_say_nothing(tmp_path: Path, weights: np.ndarray, said: bool) -> None:
    (tmp_path / "edges").mkdir()
    columns = {"src": np.arange(3), "dst": np.arange(3), "weight": weights}
    write_parquet(tmp_path / "edges" / "a.parquet", columns, 5)
    place, scan = scan_of(tmp_path)
    assert scan.slice(0)["weighted"] is said
    place.close(remove=True)


def test_weights_in_some_files_only_are_refused(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    (tmp_path / "edges" / "a.csv").write_text("src,dst,weight\n0,1,2.5\n")
    (tmp_path / "edges" / "b.csv").write_text("src,dst\n1,0\n")
    place, scan = scan_of(tmp_path)
    scan.source.slices = [[unit for units in scan.source.slices for unit in units]]
    with pytest.raises(DataError, match="only in some files"):
        scan.slice(0)
    place.close(remove=True)


def test_a_node_that_memory_has_no_room_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    (tmp_path / "edges" / "a.csv").write_text("0,1\n1,999999999999\n")
    place, scan = scan_of(tmp_path)
    with pytest.raises(ConfigError, match="node 999999999999 needs room"):
        scan.slice(0)
    place.close(remove=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("800mb", 8 * 10**8), ("4k", 4000), ("77", 77), (5, 5)],
)
def test_sizes_as_people_write_them(text: str | int, expected: int) -> None:
    assert memory_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2 gigs", "1e9", True])
def test_other_words_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="write bytes"):
        memory_bytes(text)  # type: ignore[arg-type]


def test_nodes_leave_room_to_work_or_are_refused() -> None:
    budget = Budget(300 * MIB, 200 * MIB)
    most = budget.most_nodes
    assert most == (100 * MIB - LEAST_WORK_BYTES) // NODE_BYTES
    assert budget.work_bytes(most) >= LEAST_WORK_BYTES
    with pytest.raises(ConfigError, match=f"too little for {most + 1:,} nodes"):
        budget.work_bytes(most + 1)


def test_less_memory_means_smaller_buckets_and_blocks() -> None:
    budget = Budget(300 * MIB, 200 * MIB)
    for measure in (budget.bucket_rows, budget.block_rows, budget.block_text):
        assert 0 < measure(LEAST_WORK_BYTES) < measure(10 * LEAST_WORK_BYTES)


def test_neighbours_and_cut_edges_cost_disk() -> None:
    inbound, streamed = replace(PLAN, both_ends=False), replace(PLAN, neighbour_passes=5)
    assert inbound.temporary_bytes < PLAN.temporary_bytes < streamed.temporary_bytes
    assert inbound.output_bytes < PLAN.output_bytes


def test_a_disk_without_room_is_refused(tmp_path: Path) -> None:
    PLAN.check_disk(tmp_path, 0)
    huge = replace(PLAN, num_edges=10**15)
    with pytest.raises(OSError, match="the build needs about"):
        huge.check_disk(tmp_path, 0)
    huge.check_disk(tmp_path, huge.temporary_bytes + huge.output_bytes)  # all of it is there already
