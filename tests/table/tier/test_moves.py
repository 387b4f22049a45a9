"""Moves of pages by a queue of the kernel and without one: the same bytes, and the same errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from graph_emb.table.tier.moves import DEPTH, SHORT, close_queue, opened_queue, transfer
from graph_emb.table.tier.pages import BLOCK, SECTOR, aligned

PAGE, NUM = 4 * SECTOR, 3 * DEPTH


@pytest.fixture(params=["queue", "none"])
def queue(request: pytest.FixtureRequest) -> Iterator[int]:
    made = opened_queue() if request.param == "queue" else 0
    if request.param == "queue" and not made:
        pytest.skip("the kernel gives no queue here")
    yield made
    close_queue(made)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Of pages of zeros, opened for direct I/O where there is some."""
    path = tmp_path / "pages"
    path.write_bytes(bytes(BLOCK + NUM * PAGE))
    try:
        opened = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:
        opened = os.open(path, os.O_RDWR)
    yield opened
    os.close(opened)


def moved(
    file: int, pages: np.ndarray, frames: np.ndarray, memory: np.ndarray, write: bool, queue: int, room: int = 24
) -> tuple[int, int]:
    """Of pages with two sections, whose frames lie apart in one memory, (2, frames, PAGE / 2)."""
    half = PAGE // 2
    sections = np.array([(own.ctypes.data, half, n * half) for n, own in enumerate(memory)], np.int64)
    found: tuple[int, int] = transfer(file, pages, frames, sections, PAGE, aligned(room * PAGE), write, True, queue)
    return found


@pytest.mark.parametrize("room", [1, 24, 2 * NUM])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
def test_pages_lie_where_they_belong(file: int, queue: int, share: float, room: int) -> None:
    """Runs of many lengths, more of them than a buffer holds or a queue takes."""
    rng = np.random.default_rng(0)
    pages = np.flatnonzero(rng.random(NUM) < share)
    assert room < len(pages) or room == 2 * NUM
    given, found = rng.integers(0, 256, (2, NUM, PAGE // 2), np.uint8), np.zeros((2, NUM, PAGE // 2), np.uint8)
    frames, others = (rng.permutation(NUM)[: len(pages)] for _ in range(2))
    assert moved(file, pages, frames, given, True, queue, room) == (0, 0)
    wanted = np.zeros((NUM, 2, PAGE // 2), np.uint8)
    wanted[pages] = given[:, frames].swapaxes(0, 1)
    path = f"/proc/self/fd/{file}"
    assert np.array_equal(np.fromfile(path, np.uint8, offset=BLOCK), wanted.ravel())
    assert moved(file, pages, others, found, False, queue, room) == (0, 0)
    assert np.array_equal(found[:, others], given[:, frames])
    assert not np.delete(found, others, axis=1).any()


@pytest.mark.parametrize("rest", [0, PAGE // 2, SECTOR + 188])
@pytest.mark.parametrize("last", [26, NUM // 2])
def test_the_end_of_the_file_is_told(file: int, queue: int, last: int, rest: int) -> None:
    """Whether one page of a buffer is behind it, whose request ends before those in front of it, or nearly all are."""
    memory, end = np.zeros((2, NUM, PAGE // 2), np.uint8), BLOCK + 50 * PAGE + rest
    os.truncate(f"/proc/self/fd/{file}", end)
    pages = np.arange(0, NUM, 2)[:last]
    assert moved(file, pages, pages, memory, False, queue, 32) == (SHORT, end)
    assert moved(file, pages[:25], pages[:25], memory, False, queue) == (0, 0)


def test_an_error_is_told_with_its_place(file: int, queue: int, tmp_path: Path) -> None:
    memory = np.zeros((2, NUM, PAGE // 2), np.uint8)
    pages = np.array([3, 4, 9])
    read_only = os.open(tmp_path / "pages", os.O_RDONLY)
    assert moved(read_only, pages, pages, memory, True, queue) == (errno.EBADF, BLOCK + 3 * PAGE)
    os.close(read_only)
    full = os.open("/dev/full", os.O_RDWR)
    assert moved(full, pages, pages, memory, True, queue) == (errno.ENOSPC, BLOCK + 3 * PAGE)
    os.close(full)


def test_a_fork_moves_without_the_queue_of_its_parent(file: int, queue: int) -> None:
    memory = np.full((2, NUM, PAGE // 2), 7, np.uint8)
    pages = np.arange(1, NUM, 3)
    child = os.fork()
    if not child:
        os._exit(moved(file, pages, pages, memory, True, queue)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = np.zeros_like(memory)
    assert moved(file, pages, pages, found, False, queue) == (0, 0)
    assert (found[:, pages] == 7).all()


def calls_that_wait() -> int:
    """Reads and writes that this process made one by one."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["syscr"]) + int(counts["syscw"])


@pytest.mark.parametrize("write", [False, True])
def test_the_queue_takes_all_pages(file: int, queue: int, write: bool) -> None:
    memory, pages = np.zeros((2, NUM, PAGE // 2), np.uint8), np.arange(0, NUM, 2)
    moved(file, pages, pages, memory, write, queue)  # compiled now
    before = calls_that_wait()
    assert moved(file, pages, pages, memory, write, queue) == (0, 0)
    waited = calls_that_wait() - before
    assert waited < 20 if queue else waited >= len(pages)
