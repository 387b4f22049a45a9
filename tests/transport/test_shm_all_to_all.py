"""Exchanges through mapped memory give what all_to_all gives, whatever the sizes, and notice the dead."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.transport import shm_all_to_all
from graph_emb.transport.shm_all_to_all import SharedExchange
from tests.ranks import Ranks, with_shared_memory

pytestmark = [pytest.mark.dist, with_shared_memory]
LIMIT = 240.0
"""Seconds, of a machine that is busy with other things."""


def exchange_many(rounds: int) -> list[tuple[int, bool]]:
    """Random pieces, each value telling its sender, receiver and round; the rounds that arrived right."""
    transport: Any = ge.init(mode="collective", timeout=60)
    group, found = transport.group, []
    try:
        for turn in range(rounds):
            sizes = np.random.default_rng(turn).integers(0, 1 + 4 ** (turn % 9), (group.world_size, group.world_size))
            mine, theirs = sizes[group.rank].tolist(), sizes[:, group.rank].tolist()
            send = torch.cat([torch.full((n, 2), 10_000.0 * turn + 100 * group.rank + r) for r, n in enumerate(mine)])
            if turn % 3:  # two of three lay what they send into the memory that the others map
                laid = group.outgoing(torch.empty(1, 2), len(send))
                send = laid.copy_(send)
            got = group.exchange(send, mine, theirs, "test")
            wanted = [torch.full((n, 2), 10_000.0 * turn + 100 * r + group.rank) for r, n in enumerate(theirs)]
            found.append((turn, group._shared is not None and torch.equal(got, torch.cat(wanted))))
    finally:
        ge.shutdown()
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_pieces_of_any_size_arrive_in_order(ranks: Ranks, world_size: int) -> None:
    for found in ranks.run(exchange_many, world_size, 60):
        assert found == [(turn, True) for turn in range(60)]


def lose_a_rank() -> str:
    transport: Any = ge.init(mode="collective", timeout=60)
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        transport.group.exchange(torch.zeros(2), [1, 1], [1, 1], "the last exchange")
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


def test_a_killed_rank_is_noticed_and_named() -> None:
    workers = Ranks()
    try:
        with pytest.raises(AssertionError, match="rank 1: died with exit code -9"):
            workers.run(lose_a_rank, 2)
    finally:
        workers.close()


def test_a_rank_that_was_killed_after_it_wrote_is_gone() -> None:
    """Its control memory says that rows wait; the descriptor under which they lay ended with the process."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own, theirs = np.zeros(12, np.int64), np.zeros(12, np.int64)
    theirs[:4] = 1, 0, 5, 1 << 16  # one exchange written, in descriptor 5
    exchange = SharedExchange(0, [own, theirs], [os.getpid(), ended.pid], 5.0)
    with pytest.raises(RuntimeError, match=rf"rank 1 \(process {ended.pid}\) is gone"):
        exchange.exchange(torch.zeros(1), torch.zeros(1), [0, 1], [0, 1])
    exchange.close()


def leave_early() -> str:
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        transport.group.exchange(torch.zeros(2), [1, 1], [1, 1], "the exchange of both")
        if transport.rank == 1:
            return ""
        transport.group.exchange(torch.zeros(2), [1, 1], [1, 1], "an exchange of one")
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


def test_a_rank_that_left_is_an_error_for_those_that_go_on(ranks: Ranks) -> None:
    first, second = ranks.run(leave_early, 2)
    assert "an exchange of one" in first
    assert "is gone" in first
    assert second == ""


class Clock:
    """Seconds that pass by sleeping alone; ``at`` has calls for some of them."""

    def __init__(self, at: dict[int, Callable[[], None]]) -> None:
        self.now, self.at = 0.0, at

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1
        self.at.pop(int(self.now), lambda: None)()


def two_exchanges(timeout: float) -> list[SharedExchange]:
    """Two ranks in one process."""
    controls = [np.zeros(12, np.int64) for _ in range(2)]
    return [SharedExchange(rank, controls, [os.getpid()] * 2, timeout) for rank in range(2)]


def both(rank: SharedExchange, value: float) -> torch.Tensor:
    out = torch.zeros(2)
    rank.exchange(out, torch.full((2,), value), [1, 1], [1, 1])
    return out


def test_a_rank_that_reads_20_seconds_late_gets_what_a_leaving_one_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that left took its memory along after 5 s: a healthy rank that had not mapped it yet called it gone."""
    early, late = two_exchanges(60.0)
    waits, go, memory = threading.Event(), threading.Event(), late._memory

    def held_up(rank: int, turn: int) -> np.ndarray:
        waits.set()
        assert go.wait(LIMIT)
        return memory(rank, turn)

    monkeypatch.setattr(late, "_memory", held_up)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(both, late, 2.0)
        assert both(early, 1.0).tolist() == [1.0, 2.0]
        assert waits.wait(LIMIT)
        clock = Clock({20: lambda: (go.set(), wait([reading]))})
        monkeypatch.setattr(shm_all_to_all, "time", clock)
        early.close()
        go.set()
        assert clock.now == 20
        assert reading.result().tolist() == [1.0, 2.0]
    late.close()


@pytest.mark.parametrize(("failed", "seconds"), [(False, 60), (True, 5)])
def test_a_rank_that_never_reads_is_left_in_the_end(
    failed: bool, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, stopped = two_exchanges(60.0)
    monkeypatch.setattr(shm_all_to_all, "time", Clock({}))
    if failed:
        with pytest.raises(RuntimeError, match=r"rank 1 .* did not come for 60 s"):
            both(early, 1.0)
        stopped._steps = 1
    else:
        monkeypatch.setattr(stopped, "_memory", lambda *_: (_ for _ in ()).throw(InterruptedError))
        stopped._controls[0][0] = 1  # it takes rank 0's exchange for written
        with pytest.raises(InterruptedError):
            both(stopped, 2.0)
        both(early, 1.0)
    clock = Clock({})
    monkeypatch.setattr(shm_all_to_all, "time", clock)
    early.close()
    assert seconds <= clock.now <= seconds + 1
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"rank 0 \(process \d+\) had left before this one read what it sent"):
        stopped._memory(0, 0)
    stopped.close()


def test_an_exchange_without_room_is_an_error_before_its_memory_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers grew without their pages: the first touch of one that finds no room ends the process by SIGBUS."""
    memory = SharedExchange(0, [np.zeros(10, np.int64)], [os.getpid()], 1.0)
    held = memory.outgoing(1000)

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(ge.ConfigError, match=r"rank 0: cannot share 200,000 bytes .* No space left on device"):
            memory.outgoing(100_000)
    held[:] = 1  # the smaller one is as it was
    assert len(memory.outgoing(100_000)) == 100_000
    memory.close()
