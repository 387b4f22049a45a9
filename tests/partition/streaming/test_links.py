"""Neighbours on the disk, by hand; what becomes of them is claimed in test_building.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partition.constraints import Constraints
from partition.streaming import links as module
from partition.streaming.links import Links
from partition.streaming.plan import Budget
from partition.streaming.shared_stages import Workers, Workplace
from partition.streaming.source import EdgeSource
from tests.partition.streaming.edge_files import MEMORY, write_parquet


def links_of(folder: Path, src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[Workplace, Links]:
    source = EdgeSource(write_parquet(folder / "g.parquet", {"src": src, "dst": dst}, 5), None)
    place = Workplace(folder / "out", {}, Workers())
    links = Links(place, source, Budget.of(MEMORY), num_nodes, lambda count: None)
    counts = {"in": np.bincount(dst, minlength=num_nodes), "out": np.bincount(src, minlength=num_nodes)}
    links.run(counts.__getitem__)
    return place, links


@pytest.mark.parametrize("order", ["natural", "random"])
def test_two_rings_end_in_two_parts(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Even nodes form one ring, odd nodes the other; each edge is there once, so its other end must learn of it.
    monkeypatch.setattr(module, "CHUNK_LINKS", 6)  # several chunks
    src = np.arange(20)
    place, links = links_of(tmp_path, src, (src + 2) % 20, 20)
    wanted = Constraints(("nodes",), np.ones((1, 20), np.int64), np.array([0.1]))
    parts = links.stream(wanted, 2, 3, "fennel", {"passes": 20, "order": order}, lambda count: None)
    place.close(remove=True)
    assert np.bincount(parts).tolist() == [10, 10]
    assert (parts[src] != parts[(src + 2) % 20]).sum() <= 4  # two cuts of each ring at most


def test_a_self_loop_is_no_neighbour(tmp_path: Path) -> None:
    place, links = links_of(tmp_path, np.array([0, 1, 2]), np.array([0, 1, 1]), 3)
    pairs = np.concatenate([np.fromfile(path, np.int32) for path in sorted(links._grouped.glob("*.others"))])
    counts = np.concatenate([np.fromfile(path, np.int64) for path in sorted(links._grouped.glob("*.counts"))])
    place.close(remove=True)
    assert pairs.tolist() == [2, 1]
    assert counts.tolist() == [0, 1, 1]
