"""The pace of a job: sums over trainers, the one that works longest, and the bytes of each link, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graph_emb.transport.pace import JobPace, PaceMeter, with_job, without_job
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.traffic import LinkCounts
from tests.ranks import Ranks

SECOND = 1_000_000_000


def test_the_pace_sums_what_trainers_did_and_names_the_one_that_worked_longest() -> None:
    """Work of 2, 3 and 1 seconds: the mean is 2, so the second trainer keeps 2/3 of the usual pace."""
    told = [[100, 4 * SECOND, 2 * SECOND, 10, 1], [50, 3 * SECOND, 3 * SECOND, 20, 2], [50, 2 * SECOND, SECOND, 30, 3]]
    assert JobPace.of(told) == JobPace(50.0, 1, pytest.approx(2 / 3), 60, 6)
    assert JobPace.of(told[::-1]).slowest == 1
    assert JobPace.of([[0, 0, 0, 0, 0]] * 2) == JobPace(0.0, 0, 1.0, 0, 0), "nobody has trained yet"


def test_a_bar_says_who_is_slow_and_what_travels() -> None:
    pace = JobPace(12345.6, 3, 0.818, 3 << 20, 5 << 20)
    assert pace.said() == ", slowest 3 (.82x), 3 MiB in, 5 MiB out"
    assert pace.said("triples") == ", 12,346 triples/s, slowest 3 (.82x), 3 MiB in, 5 MiB out"
    assert JobPace(1.0, 0, 1.0, 0, 0).said() == ", slowest 0 (1.00x)", "of rows that all share nothing travels"


def test_a_line_of_one_trainer_has_no_job_and_a_line_of_several_comes_back() -> None:
    pace = JobPace(2.0, 1, 0.5, 3, 4)
    assert without_job({"epoch": 1, "job": None}) == {"epoch": 1}
    assert with_job({"epoch": 1}) == {"epoch": 1, "job": None}
    line = without_job({"epoch": 1, "job": vars(pace)})
    assert with_job(line) == {"epoch": 1, "job": pace}


def ticks(*seconds: float) -> Any:
    times: Iterator[float] = iter(seconds)
    return lambda: next(times)


def test_waiting_is_no_work_and_rests_are_no_time() -> None:
    link = LinkCounts(bytes_in=7, bytes_out=7, waited=100.0)
    meter = PaceMeter(link, link, clock=ticks(0, 10, 50, 56, 56, 60))  # one link that is given twice counts once
    meter.begin()  # 0
    link.waited += 4
    link.bytes_in, link.bytes_out = link.bytes_in + 2, link.bytes_out + 3
    meter.end()  # 10
    link.waited += 30  # an evaluation's
    meter.end()
    meter.begin()  # 50
    meter.items += 5
    assert meter.take() == [5, 16 * SECOND, 12 * SECOND, 2, 3]  # 56
    link.waited += 1  # it runs on
    meter.end()  # 60
    assert meter.take() == [0, 4 * SECOND, 3 * SECOND, 2, 3], "bytes go on, times and items begin again"


def test_the_table_of_a_trainer_is_its_row_of_the_sum() -> None:
    meters = [PaceMeter(LinkCounts(), clock=ticks(0, rank + 1)) for rank in range(3)]
    for rank, meter in enumerate(meters):
        meter.begin()
        meter.end()
        meter.items = 10 * rank
    told = sum(meter.table(rank, 3) for rank, meter in enumerate(meters))
    assert told[:, :3].tolist() == [[0, SECOND, SECOND], [10, 2 * SECOND, 2 * SECOND], [20, 3 * SECOND, 3 * SECOND]]
    assert JobPace.of(told.tolist()).per_second == 10.0


def carried_by_a_rank(shared_memory: bool) -> list[tuple[int, int]]:
    """Bytes in and out after each of several calls."""
    group = ProcessGroup(timeout=60, shared_memory=shared_memory)
    found, rank = [], group.rank
    try:

        def note() -> None:
            found.append((group.link.bytes_in, group.link.bytes_out))

        note()  # how a group begins is no traffic
        waited = group.link.waited
        group.exchange_numbers(torch.zeros(2, 16, dtype=torch.int64), "numbers")
        group.sum(torch.zeros(3), "sum")
        group.gather_objects({"a": 1}, "objects")
        assert group.link.waited > waited
        note()
        sent = torch.zeros((5, 3))  # rank 0 keeps 1 row and sends 4; rank 1 sends 3 and keeps 2
        to_send, to_receive = ([1, 4], [1, 3]) if rank == 0 else ([3, 2], [4, 2])
        group.exchange(sent, to_send, to_receive, "rows")
        note()
        none = torch.zeros((0, 3))
        group.exchange(none, [0, 0], [0, 0], "nothing")
        note()
        targets: list[list[torch.Tensor]] = [[], []]
        targets[1 - rank] = [torch.empty(2, dtype=torch.int64), torch.empty(8, dtype=torch.uint8)]
        sizes = [0, 0]
        sizes[1 - rank] = 24
        group.exchange_pieces(targets, torch.zeros(24, dtype=torch.uint8), sizes, "pieces")
        note()
        return found
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_link_counts_what_crosses_and_not_what_stays(ranks: Ranks, shared_memory: bool) -> None:
    first, second = ranks.run(carried_by_a_rank, 2, shared_memory)
    row = 3 * 4
    assert first == [(0, 0), (0, 0), *[(3 * row, 4 * row)] * 2, (3 * row + 24, 4 * row + 24)]
    assert second == [(0, 0), (0, 0), *[(4 * row, 3 * row)] * 2, (4 * row + 24, 3 * row + 24)]
