"""repartition: other parts, the same graph, data and original ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.core.errors import ConfigError
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts
from tests.partition.test_partitioned import by_dgl


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_everything_moves_along(tmp_path: Path, num_parts: int) -> None:
    graph = heterogeneous()
    partition.build(graph, out=tmp_path / "three", assignment=random_parts(graph, 3), report=False)
    again = partition.repartition(
        tmp_path / "three", num_parts, "random", out=tmp_path / "new", balance=("nodes",), tolerance=1.0, report=False
    )
    assert again.num_parts == num_parts
    assert partition.verify(again.path, graph).problems == []


def test_a_partition_of_dgl_counts_as_an_input_in_its_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = partition.load(by_dgl(homogeneous(), tmp_path / "dgl", 3))
    again = partition.repartition(
        theirs.path, 2, "random", out=tmp_path / "new", balance=("nodes",), tolerance=1.0, report=False
    )
    assert "has no id maps" in caplog.text
    assert partition.verify(again.path, theirs.to_graph()).problems == []
    assert sorted(again.node_map()) == np.arange(40).tolist()


def test_the_place_of_the_source_is_taken(tmp_path: Path) -> None:
    graph = homogeneous()
    partition.build(graph, out=tmp_path / "out", assignment=random_parts(graph, 3), report=False)
    with pytest.raises(ConfigError, match="holds a partition"):
        partition.repartition(tmp_path / "out", 2, "random", out=tmp_path / "out")
    again = partition.repartition(
        tmp_path / "out", 2, "random", out=tmp_path / "out", overwrite=True, balance=("nodes",), tolerance=1.0
    )
    assert again.num_parts == 2
    assert partition.verify(again.path, graph).sound
