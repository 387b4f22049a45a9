"""Buckets of nodes and neighbours by hand; that edges come out in order is claimed in test_building.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from partition.streaming.edges import Links, check_largest, cut_buckets, number_type
from partition.streaming.shared_stages import Workers, Workplace
from partition.streaming.source import Budget, EdgeSource
from tests.partition.streaming.edge_files import MEMORY, write_parquet


def test_buckets_hold_whole_nodes_of_one_part() -> None:
    degrees = np.array([2, 2, 2, 0, 9, 1, 1])
    first, parts, edges = cut_buckets(degrees, np.array([0, 2, 7]), 4)
    assert first.tolist() == [0, 2, 4, 5]  # node 4 is alone: it has more than a bucket takes
    assert parts.tolist() == [0, 1, 1, 1]
    assert edges.tolist() == [0, 4, 6, 15, 17]


def test_no_bucket_holds_more_than_asked_unless_a_node_does() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        degrees = rng.integers(0, 7, 40)
        starts = np.array([0, 11, 12, 40])
        first, parts, edges = cut_buckets(degrees, starts, 10)
        sizes, lengths = np.diff(edges), np.diff(np.append(first, 40))
        assert edges[-1] == degrees.sum()
        assert (sizes <= 10).all()
        assert (lengths > 0).all()
        assert (parts == np.searchsorted(starts, first, side="right") - 1).all()


def test_a_node_with_too_many_edges_is_named() -> None:
    check_largest(np.array([3, 4]), 4, "in-edges")
    with pytest.raises(ConfigError, match="a node has 5 in-edges; the memory orders 4"):
        check_largest(np.array([3, 5]), 4, "in-edges")


def test_numbers_take_four_bytes_while_they_fit() -> None:
    assert number_type(2**31 - 1) == np.int32
    assert number_type(2**31) == np.int64


def links_of(folder: Path, src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[Workplace, Links]:
    source = EdgeSource(write_parquet(folder / "g.parquet", {"src": src, "dst": dst}, 5), None)
    place = Workplace(folder / "out", {}, Workers())
    links = Links(place, source, Budget.of(MEMORY), num_nodes, lambda count: None)
    counts = {"in": np.bincount(dst, minlength=num_nodes), "out": np.bincount(src, minlength=num_nodes)}
    links.run(counts.__getitem__)
    return place, links


def test_a_self_loop_is_no_neighbour(tmp_path: Path) -> None:
    place, links = links_of(tmp_path, np.array([0, 1, 2]), np.array([0, 1, 1]), 3)
    pairs = np.concatenate([np.fromfile(path, np.int32) for path in sorted(links._grouped.glob("*.others"))])
    counts = np.concatenate([np.fromfile(path, np.int64) for path in sorted(links._grouped.glob("*.counts"))])
    place.close(remove=True)
    assert pairs.tolist() == [2, 1]
    assert counts.tolist() == [0, 1, 1]
