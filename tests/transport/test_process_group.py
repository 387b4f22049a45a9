"""The group of the processes: what it is told, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import graph_emb as ge
from tests.ranks import Ranks


@pytest.mark.parametrize("backend", ["glo", "cpu:glo", "gloo,cuda:nkcl", "undefined"])
def test_an_unknown_backend_is_named(backend: str) -> None:
    with pytest.raises(ge.ConfigError, match=r"unknown backend '.*'; known: .*gloo"):
        ge.init(mode="collective", backend=backend)
    assert not dist.is_initialized()


def begin_and_end(times: int) -> list[tuple[int, int]]:
    """Open files and threads after each end of the mode, in a program with a group of its own."""
    dist.init_process_group("gloo")
    found = []
    try:
        for _ in range(times):
            transport: Any = ge.init(mode="collective", timeout=60)
            ge.DistEmbedding(100, 2)(torch.arange(100))
            assert transport.world_size == 2
            ge.shutdown()
            dist.barrier()
            found.append((psutil.Process().num_fds(), psutil.Process().num_threads()))
    finally:
        dist.destroy_process_group()
    return found


@pytest.mark.dist
def test_a_mode_that_ended_keeps_no_file_or_thread(ranks: Ranks) -> None:
    """The group that it made beside the program's own was never destroyed."""
    for found in ranks.run(begin_and_end, 2, 4):
        assert len(set(found[1:])) == 1


def end_after_the_program() -> bool:
    dist.init_process_group("gloo")
    ge.init(mode="collective", timeout=60)
    dist.destroy_process_group()
    ge.shutdown()
    return dist.is_initialized()


@pytest.mark.dist
def test_a_program_may_end_its_groups_first(ranks: Ranks) -> None:
    assert ranks.run(end_after_the_program, 2) == [False, False]
