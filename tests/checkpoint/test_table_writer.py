"""Work is done in its order, errors reach who asked, and what has not begun can be taken back."""

from __future__ import annotations

import threading

import pytest

from graph_emb.checkpoint.table_writer import WriterThreads


def test_results_and_errors_come_back_and_the_end_waits() -> None:
    with WriterThreads(2) as threads:
        halves = [threads.submit(divmod, 7, k) for k in range(3)]
    assert [half.result() for half in halves[1:]] == [(7, 0), (3, 1)]
    with pytest.raises(ZeroDivisionError):
        halves[0].result()


def test_what_has_not_begun_can_be_cancelled() -> None:
    begun, go = threading.Event(), threading.Event()
    with WriterThreads(1) as threads:
        first = threads.submit(lambda: (begun.set(), go.wait(30)))
        second = threads.submit(threading.Event)
        assert begun.wait(30)
        assert second.cancel()
        assert not first.cancel()
        go.set()
    assert first.result() == (None, True)
    assert second.cancelled()
