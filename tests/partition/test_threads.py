from __future__ import annotations

import numpy as np
import pytest

from graph_emb.errors import ConfigError
from partition.threads import Threads, thread_count


def test_ranges_cover_everything_once() -> None:
    with Threads(3) as threads:
        assert threads.ranges(10) == [(0, 3), (3, 6), (6, 10)]
        # one node holds nearly all the weight: it makes a range of its own
        assert threads.ranges(4, np.array([0, 1, 90, 91, 92])) == [(0, 2), (2, 2), (2, 4)]
        assert threads.ranges(0, np.array([0])) == [(0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_keep_the_order_of_the_calls_and_errors_are_raised(num_threads: int) -> None:
    def fail() -> None:
        raise ConfigError("told to")

    with Threads(num_threads) as threads:
        assert threads.run([lambda i=i: i * i for i in range(5)]) == [0, 1, 4, 9, 16]
        with pytest.raises(ConfigError, match="told to"):
            threads.run([fail, fail])


def test_the_number_of_threads_is_checked() -> None:
    assert thread_count(3) == 3
    assert thread_count(None) >= 1
    with pytest.raises(ConfigError, match="num_threads is 0; at least 1"):
        thread_count(0)
