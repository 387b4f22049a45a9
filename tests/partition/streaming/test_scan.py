"""Counts of the first pass, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from partition.streaming.plan import Budget
from partition.streaming.scan import Scan
from partition.streaming.shared_stages import Workers, Workplace
from partition.streaming.source import EdgeSource
from tests.partition.streaming.edge_files import MEMORY, write_parquet


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
    place, scan = scan_of(tmp_path, memory="4GB")
    with pytest.raises(ConfigError, match="node 999999999999 needs room"):
        scan.slice(0)
    place.close(remove=True)
