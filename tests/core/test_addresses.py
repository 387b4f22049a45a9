"""Loops over the arrays of several jobs: by address, in a form for each kind, in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_emb.core.addresses import Columns, Loop, array_at, flag, kind_of

ROWS, ADDED, NUMBERS = range(3)


def _add(rows, added, doubled, number):  # type: ignore[no-untyped-def]
    for r in range(rows.shape[0]):
        for d in range(rows.shape[1]):
            if doubled is None:
                rows[r, d] += number
            else:
                rows[r, d] += number + number
            if added is not None:
                rows[r, d] += added[r]


def every_part(kind, where, jobs, part, parts):  # type: ignore[no-untyped-def]
    for j in range(jobs):
        if j % parts == part:
            number = array_at(kind, where, j, NUMBERS)[0]
            _add(array_at(kind, where, j, ROWS), array_at(kind, where, j, ADDED), flag(kind, 1), number)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Loop:
    import numba

    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(every_part.__globals__, "_add", numba.njit(_add))
    return Loop(every_part)


def job(rows: int, width: int, number: float, added: bool, dtype: Any = np.float32) -> Columns:
    table = np.arange(rows * width).reshape(rows, width).astype(dtype)
    return table, np.arange(rows, dtype=np.float64) if added else None, np.array([number])


def run(loop: Loop, jobs: list[Columns], flags: tuple[bool, ...], parts: int) -> None:
    loop.run(kind_of(jobs[0], flags), jobs, parts)


def test_each_job_has_its_own_arrays_in_every_form_and_part(loop: Loop) -> None:
    for added, doubled, dtype in ((False, False, np.float32), (True, False, np.int64), (True, True, np.float32)):
        for parts in (1, 2, 5):
            jobs = [job(3, 2, 1.0, added, dtype), job(1, 5, 7.0, added, dtype), job(0, 4, 2.0, added, dtype)]
            expected = [rows.copy() for rows, _, _ in jobs]  # type: ignore[union-attr]
            run(loop, jobs, (True, doubled), parts)
            for (rows, more, number), before in zip(jobs, expected, strict=True):
                before += (1 + doubled) * int(number[0]) + (0 if more is None else more[:, None].astype(dtype))
                np.testing.assert_array_equal(rows, before)


def test_a_form_is_compiled_once_and_found_by_whoever_comes_next(loop: Loop) -> None:
    for _ in range(2):
        run(loop, [job(2, 2, 1.0, True)], (True, False), 1)
    run(loop, [job(2, 2, 1.0, True)], (False, False), 1)  # another kind
    stats = loop._compiled.stats
    assert (sum(stats.cache_misses.values()), sum(stats.cache_hits.values())) == (2, 0)
    again = Loop(every_part)
    run(again, [job(2, 2, 1.0, True)], (True, False), 1)
    stats = again._compiled.stats
    assert (sum(stats.cache_misses.values()), sum(stats.cache_hits.values())) == (0, 1)
