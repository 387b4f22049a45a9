"""A small disk, few descriptors, little memory: one error, nothing torn, and the work is done where there is room.

Unlike the shim's, these failures meet the calls of C code too: Arrow's, torch's, numpy's.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.core.errors import GraphEmbError
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings
from tests.checkpoint.tiny import Tiny, same
from tests.ranks import PATIENCE, context

CLONE_NEWNS = 0x0002_0000  # linux/sched.h
M_MMAP_THRESHOLD = -3  # malloc.h
NO_MOUNT = "this machine lets no process mount a file system of its own"
WORKS = ["save", "npy", "parquet", "word2vec", "pt", "build", "streaming build"]


class Save:
    """A second checkpoint beside a first one."""

    def __init__(self, place: Path, aside: Path, rows: int) -> None:
        self.tiny, self.place, self.aside = Tiny(seed=1, num=rows, dim=32), place, aside
        self.tiny.run(1)
        self.old = self.tiny.look()
        self.tiny.save(place / "1", step=1)
        self.tiny.run(1)
        self.new = self.tiny.look()
        self.tiny.save(aside / "2", step=2)

    def do(self) -> None:
        self.tiny.save(self.place / "2", step=2)

    def whole(self) -> bool:
        """Whether the work is done; fails where something is torn."""
        assert same(self.tiny.look(), self.new)
        self.tiny.load(self.place / "1")
        assert same(self.tiny.look(), self.old)
        done = (self.place / "2").exists()
        self.tiny.load((self.place if done else self.aside) / "2")
        assert same(self.tiny.look(), self.new)
        return done


class Export:
    """Rows over those of before."""

    def __init__(self, place: Path, form: str, rows: int) -> None:
        self.place, self.form, self.ids = place / "rows", form, np.arange(rows)
        self.old, self.new = (np.full((rows, 32), value, dtype=np.float32) for value in (1, 2))
        save_embeddings(self.place, self.old, self.ids, (form,), overwrite=True)

    def do(self) -> None:
        save_embeddings(self.place, self.new, self.ids, (self.form,), overwrite=True)

    def whole(self) -> bool:
        found = load_embeddings(self.place / "embeddings.pt" if self.form == "pt" else self.place).weights
        assert np.array_equal(found, self.old) or np.array_equal(found, self.new)
        return np.array_equal(found, self.new)


class Build:
    """A partition of an edge list."""

    def __init__(self, place: Path, aside: Path, nodes: int, **options: Any) -> None:
        self.place, self.options, self.file = place / "out" / "parts", options, aside / "ring.txt"
        self.file.write_text("".join(f"{node} {(node + 1) % nodes}\n" for node in range(nodes)))

    def do(self) -> None:
        partition.build(self.file, num_parts=2, out=self.place, seed=0, progress=False, **self.options)

    def whole(self) -> bool:
        if self.place.exists():
            assert partition.verify(self.place, progress=False).problems == []
        return self.place.exists()


class Demote:
    """Rows of a growing table that leave memory for a file, and the file's pages that do."""

    def __init__(self, place: Path, rows: int) -> None:
        size, eviction = ge.growing(rows), ge.LeastRecent(max_rows=rows // 8, low_water=1, every=1000)
        file = ge.File(place / "demoted", "64KiB")
        self.table = ge.DistEmbedding(size, 32, eviction=eviction, on_evict="demote", placement=file)
        self.ids = torch.arange(rows)
        self.optimizer = ge.SparseAdagrad([self.table], lr=0.1)
        self.optimizer.update(self.ids, torch.ones(rows, 32), self.table)
        self.before = self.table.weight[self.ids]

    def do(self) -> None:
        self.table.evict()
        self.table.shard.drop_cache()

    def whole(self) -> bool:
        assert torch.equal(self.table.weight[self.ids], self.before)
        assert torch.equal(self.table.optm_state["sum"][self.ids], torch.ones_like(self.before))
        return self.table.shard.num_filed == len(self.ids) - len(self.ids) // 8


PLENTY = 1 << 15
"""Of kilobytes of disk; what limits a process holds inside a ``with`` alone."""


def work(name: str, place: Path, aside: Path, rows: int) -> Any:
    place.mkdir(exist_ok=True)
    if name == "save":
        return Save(place, aside, rows)
    if "build" in name:
        return Build(place, aside, rows, **({"memory": "4GB"} if name == "streaming build" else {}))
    if name == "demote":
        return Demote(place, rows)
    return Export(place, name, rows)


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def descriptors(more: int) -> Any:
    """Room for so many more open files."""
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(len(taken) + more + 1) if number not in taken]
    return limited(resource.RLIMIT_NOFILE, free[more])


def memory(megabytes: int) -> Any:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return limited(resource.RLIMIT_AS, used + (megabytes << 20))


def disk(place: Path, kilobytes: int) -> Any:
    """So much more than what lies on it."""
    state = os.statvfs(place)
    used = (state.f_blocks - state.f_bfree) * state.f_frsize
    _mount("-o", f"remount,size={used + (kilobytes << 10)}", str(place))
    return nullcontext()


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def own_mounts() -> None:
    """``os.unshare`` of Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        pytest.skip(NO_MOUNT)
    _mount("--make-rprivate", "/")


def until_it_fits(
    name: str,
    place: Path,
    aside: Path,
    room: Callable[[int], Any],
    levels: Iterable[int],
    rows: int = 4000,
    first: int | None = None,
) -> list[str]:
    """The errors of a piece of work that gets more room from level to level, until it is done.

    It is done once with plenty of room before, on ``first`` rows, to compile and to import.
    """
    work(name, place, aside, first or rows).do()
    one, errors = work(name, place, aside, rows), []
    for path in [place / "2", place / "out"]:
        shutil.rmtree(path, ignore_errors=True)
    if isinstance(one, Export):
        one = work(name, place, aside, rows)
    for number, level in enumerate(levels):
        try:
            with room(level):
                one.do()
        except (OSError, GraphEmbError, MemoryError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        except RuntimeError as error:  # torch's way, and that of threads
            if "allocate" not in str(error) and "thread" not in str(error):
                raise
            errors.append(str(error))
        room(PLENTY)
        if done := one.whole():
            break
        assert len(errors) == 1 + number, "it neither failed nor did its work"
    assert done, f"never enough: {errors[-1]}"
    hidden = [path.name for path in place.rglob(".*")]
    assert hidden == [], hidden
    return errors


def on_a_small_disk(name: str, place: Path, aside: Path) -> list[str]:
    own_mounts()
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=64m", "none", str(place))
    return until_it_fits(name, place, aside, lambda level: disk(place, level), (4 << k for k in range(13)))


def with_few_descriptors(name: str, place: Path, aside: Path) -> list[str]:
    return until_it_fits(name, place, aside, descriptors, range(60))


def with_little_memory(name: str, place: Path, aside: Path) -> list[str]:
    """From 16 MB on: Python (3.11) waits for ever for a thread that finds no memory as it starts."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)  # arrays that were freed are no room for later ones
    levels = (16 << k for k in range(8))
    # Few rows at first: what the allocators of libraries keep would be room enough for as many again.
    return until_it_fits(name, place, aside, memory, levels, rows=1_000_000, first=1000)


def _child(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ["WORLD_SIZE"] = "1"  # a job of its own, with tables in local mode
    try:
        pipe.send((True, function(*args)))
    except pytest.skip.Exception as skipped:
        pipe.send((None, str(skipped)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def in_a_child(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns in a process of its own, which may change its mounts and limits."""
    mine, theirs = context().Pipe()
    process = context().Process(target=_child, args=(theirs, function, args))
    process.start()
    theirs.close()
    try:
        assert mine.poll(PATIENCE), "no answer"
        fine, value = mine.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"it died with exit code {process.exitcode}") from None
    process.join(PATIENCE)
    if fine is None:
        pytest.skip(value)
    assert fine, value
    return value


@pytest.mark.parametrize("name", [*WORKS, "demote"])
def test_a_full_disk_tears_nothing_and_names_the_file(name: str, tmp_path: Path) -> None:
    errors = in_a_child(on_a_small_disk, name, tmp_path / "disk", tmp_path)
    assert errors
    for error in errors:
        assert re.search(r"No space left|free", error), error


@pytest.mark.parametrize("name", WORKS)
def test_a_process_without_descriptors_tears_nothing(name: str, tmp_path: Path) -> None:
    assert in_a_child(with_few_descriptors, name, tmp_path / "place", tmp_path)


@pytest.mark.parametrize("name", ["build"])
def test_failing_allocations_tear_nothing(name: str, tmp_path: Path) -> None:
    assert in_a_child(with_little_memory, name, tmp_path / "place", tmp_path)
