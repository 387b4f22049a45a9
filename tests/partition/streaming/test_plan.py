"""What a limit on memory and a disk allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError
from partition.streaming.plan import LEAST_WORK_BYTES, MIB, NODE_BYTES, Budget, Plan, memory_bytes

PLAN = Plan(
    input_bytes=100, num_nodes=10, num_edges=1000, num_parts=2, neighbour_passes=0, weight_bytes=0, num_slices=1,
    num_buckets=2, both_ends=True,
)  # fmt: skip


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
