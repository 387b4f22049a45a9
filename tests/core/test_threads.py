from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from functools import partial

import numba
import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import SERIAL_ROWS, ThreadPool, counting_threads, thread_count, threads_for


def test_ranges_cover_everything_once() -> None:
    with ThreadPool(3) as threads:
        assert threads.ranges(10) == [(0, 3), (3, 6), (6, 10)]
        # one node holds nearly all the weight: it makes a range of its own
        assert threads.ranges(4, np.array([0, 1, 90, 91, 92])) == [(0, 2), (2, 2), (2, 4)]
        assert threads.ranges(0, np.array([0])) == [(0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_keep_the_order_of_the_calls_and_errors_are_raised(num_threads: int) -> None:
    def fail() -> None:
        raise ConfigError("told to")

    with ThreadPool(num_threads) as threads:
        assert threads.run([lambda i=i: i * i for i in range(5)]) == [0, 1, 4, 9, 16]
        with pytest.raises(ConfigError, match="told to"):
            threads.run([fail, fail])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_calls_run_at_once_and_all_end_before_the_first_error(num_threads: int) -> None:
    meeting, ended = threading.Barrier(num_threads), []

    def meet(number: int) -> None:
        meeting.wait(120)  # breaks where fewer threads than asked for work at once
        ended.append(number)
        raise ConfigError(f"call {number}")

    with ThreadPool(num_threads) as threads, pytest.raises(ConfigError, match="call 0"):
        threads.run([partial(meet, number) for number in range(2 * num_threads)])
    assert sorted(ended) == list(range(2 * num_threads))


def test_the_number_of_threads_is_checked() -> None:
    assert thread_count(3) == 3
    assert thread_count(None) >= 1
    with pytest.raises(ConfigError, match="num_threads is 0; at least 1"):
        thread_count(0)


def test_threads_that_count_take_no_more_memory_than_the_edges() -> None:
    assert counting_threads(4, num_nodes=10, num_edges=100) == 4
    assert counting_threads(64, num_nodes=10, num_edges=109) == 10
    assert counting_threads(64, num_nodes=10, num_edges=3) == 1
    assert counting_threads(2, num_nodes=0, num_edges=0) == 1


def test_few_rows_wake_one_thread_and_many_as_many_as_torch_has() -> None:
    threads, before = numba.get_num_threads(), torch.get_num_threads()
    for allowed in (1, threads, threads + 1):
        torch.set_num_threads(allowed)
        try:
            with threads_for(SERIAL_ROWS) as parts:
                assert parts == numba.get_num_threads() == min(allowed, threads)
        finally:
            torch.set_num_threads(before)
    with threads_for(SERIAL_ROWS - 1) as parts:
        assert parts == numba.get_num_threads() == 1
    assert numba.get_num_threads() == threads


def test_threads_come_back_after_an_error() -> None:
    threads = numba.get_num_threads()
    with contextlib.suppress(KeyError), threads_for(1):
        raise KeyError
    assert numba.get_num_threads() == threads


FIRST_STEP = """
import sys
import torch
if "set" in sys.argv:
    torch.set_num_threads(1)
import graph_emb as ge
seen = [torch.get_num_threads()]
emb = ge.DistEmbedding(1000, 8)
opt = ge.SparseAdagrad([emb], lr=0.1)
rows = emb(torch.arange(1000))
seen.append(torch.get_num_threads())
rows.sum().backward()
opt.step()
seen.append(torch.get_num_threads())
print(*seen)
"""


@pytest.mark.parametrize(("words", "environment"), [(["set"], {}), ([], {"OMP_NUM_THREADS": "1"})])
def test_the_first_pull_and_step_leave_torchs_threads_alone(words: list[str], environment: dict[str, str]) -> None:
    """numba's OpenMP layer shares libgomp with torch: its start gave torch every core, whatever the user had said."""
    known = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, *words],
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "1", "1"]
