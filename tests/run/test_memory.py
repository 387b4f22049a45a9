"""Memory is counted before it is taken."""

from __future__ import annotations

from typing import Any

import pytest

from graph_emb.config.schema import ParallelSection
from graph_emb.core.errors import ConfigError
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.run.machine import check_memory, owners_of
from tests.transport.kvstore.cluster import Cluster, close_idle


def test_weights_state_and_the_returned_copy_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Memory:
        available = 4 * 1000 * 10 * 3

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    check_memory(1000, 2, SkipGramConfig(dim=10, rule="sgd"))  # two tables and the copy that is returned
    check_memory(1000, 1, SkipGramConfig(dim=10, rule="sgd"), averages=1)
    with pytest.raises(ConfigError, match=r"1000 nodes need 0.0 GiB"):
        check_memory(1000, 2, SkipGramConfig(dim=10, rule="sgd"), averages=1)
    with pytest.raises(ConfigError, match=r"model.dim = 11: 1000 nodes need 0.0 GiB"):
        check_memory(1000, 2, SkipGramConfig(dim=11, rule="sgd"))
    with pytest.raises(ConfigError, match=r"model.dim = 10, 16 numbers a node: 1000 nodes need 0.0 GiB"):
        check_memory(1000, 1, SkipGramConfig(dim=10, rule="sgd"), width=15.5)
    with pytest.raises(ConfigError, match="a rule with less state"):
        check_memory(1000, 2, SkipGramConfig(dim=10, rule="adagrad"))
    narrow = SkipGramConfig(dim=10, rule="adam", dtype="bfloat16", state_dtype="bfloat16")
    check_memory(1000, 1, narrow)  # 2 bytes of a weight, 4 of its state, 4 of the copy, of 12
    with pytest.raises(ConfigError, match="a rule with less state"):
        check_memory(1000, 1, narrow.replace(state_dtype=None))


def owners(transport: Any) -> int:
    return owners_of(ParallelSection(mode="kvstore", trainers=2, servers=3))


@pytest.mark.dist
def test_the_servers_of_all_machines_have_memory() -> None:
    """The plan of a run from files took those of one machine for all that hold rows: half of what memory held."""
    try:
        assert Cluster(2, machines=2, servers=3).run(owners) == [6, 6]
    finally:
        close_idle()


def test_processes_that_own_rows_follow_the_mode() -> None:
    sections = [
        ParallelSection(),
        ParallelSection(mode="collective", trainers=4),
        ParallelSection(mode="kvstore", servers=3),
    ]
    assert [owners_of(section) for section in sections] == [1, 4, 3]
