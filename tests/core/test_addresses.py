"""Loops over the arrays of several jobs: by address, in a form for each kind, in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_emb.core.addresses import Columns, Loop, RowLoop, array_at, kind_of

ROWS, ADDED, NUMBERS = range(3)


def _add(rows, added, number, low, high):  # type: ignore[no-untyped-def]
    for r in range(low, high):
        for d in range(rows.shape[1]):
            rows[r, d] += number
            if added is not None:
                rows[r, d] += added[r]


def every_part(kind, where, jobs, part, parts):  # type: ignore[no-untyped-def]
    for j in range(jobs):
        if j % parts == part:
            rows, number = array_at(kind, where, j, ROWS), array_at(kind, where, j, NUMBERS)[0]
            _add(rows, array_at(kind, where, j, ADDED), number, 0, rows.shape[0])


def some_rows(kind, where, j, low, high, first, doubled, third):  # type: ignore[no-untyped-def]
    added, number = array_at(kind, where, j, ADDED), array_at(kind, where, j, NUMBERS)[0]
    if doubled is None:
        _add(array_at(kind, where, j, ROWS), added, number, low, high)
    else:
        _add(array_at(kind, where, j, ROWS), added, number + number, low, high)
    if first is None or third is not None:
        array_at(kind, where, j, NUMBERS)[0] = -1.0


@pytest.fixture
def compiled_add(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import numba

    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(every_part.__globals__, "_add", numba.njit(_add))


@pytest.fixture
def loop(compiled_add: None) -> Loop:
    return Loop(every_part)


def job(rows: int, width: int, number: float, added: bool, dtype: Any = np.float32) -> Columns:
    table = np.arange(rows * width).reshape(rows, width).astype(dtype)
    return table, np.arange(rows, dtype=np.float64) if added else None, np.array([number])


def run(loop: Loop, jobs: list[Columns], flags: tuple[bool, ...], parts: int) -> None:
    loop.run(kind_of(jobs[0], flags), jobs, parts)


def check(loop: Loop, added: bool, flags: tuple[bool, ...], dtype: Any, parts: int, times: int) -> None:
    jobs = [job(3, 2, 1.0, added, dtype), job(1, 5, 7.0, added, dtype), job(0, 4, 2.0, added, dtype)]
    expected = [rows.copy() for rows, _, _ in jobs]  # type: ignore[union-attr]
    run(loop, jobs, flags, parts)
    for (rows, more, number), before, once in zip(jobs, expected, (1.0, 7.0, 2.0), strict=True):
        assert number == once  # type: ignore[comparison-overlap]
        before += times * int(once) + (0 if more is None else more[:, None].astype(dtype))
        np.testing.assert_array_equal(rows, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_each_job_has_its_own_arrays_in_every_form_and_part(loop: Loop, parts: int) -> None:
    for added, dtype in ((False, np.float32), (True, np.int64), (True, np.float32)):
        check(loop, added, (), dtype, parts, 1)


def test_the_rows_of_all_jobs_are_shared_and_a_flag_chooses_a_form(compiled_add: None) -> None:
    """Parts of one row and of none, and parts that begin or end inside a job."""
    loop = RowLoop(some_rows, ROWS)
    for added, doubled, dtype in ((False, False, np.float32), (True, False, np.int64), (True, True, np.float32)):
        for parts in (1, 2, 3, 5):
            check(loop, added, (True, doubled), dtype, parts, 1 + doubled)


def test_a_form_is_compiled_once_and_found_by_whoever_comes_next(compiled_add: None) -> None:
    loop = RowLoop(some_rows, ROWS)
    for _ in range(2):
        run(loop, [job(2, 2, 1.0, True)], (True, False), 1)
    run(loop, [job(2, 2, 1.0, True)], (False, False), 1)  # another kind
    stats = loop._compiled.stats
    assert (sum(stats.cache_misses.values()), sum(stats.cache_hits.values())) == (2, 0)
    again = RowLoop(some_rows, ROWS)
    run(again, [job(2, 2, 1.0, True)], (True, False), 1)
    stats = again._compiled.stats
    assert (sum(stats.cache_misses.values()), sum(stats.cache_hits.values())) == (0, 1)
