"""Every call of the system that a save, a load, an export or a build makes fails once: one error, nothing torn.

All calls of a save, a load and an export, one in twelve of a build; ``make faults`` lets each of a build fail too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partition
from graph_emb.core.errors import GraphEmbError
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings
from tests.checkpoint.tiny import Tiny, same
from tests.faults.shim import Faults, code_for, every_call

STEP = int(os.environ.get("FAULTS_STEP", "12"))
"""Of builds, which make many calls."""


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def failing(work: Callable[[], Any], here: Path, calls: list[str], step: int = 1) -> Iterator[tuple[str, Any]]:
    """Run the work once for each call, which fails; gives its name and number, and the error, or None.

    A call that the library can do without, such as a hint to the file system, may fail without an error.
    """
    for position in range(1, len(calls) + 1, step):
        name, error = calls[position - 1], None
        with Faults(here, position, code_for(name, position)).counting():
            try:
                work()
            except (OSError, GraphEmbError) as caught:
                error = caught
                assert str(error)
        yield f"{name}, call {position}", error


def test_a_save_that_fails_keeps_the_checkpoints_before_it(tiny: Tiny, tmp_path: Path) -> None:
    tiny.save(tmp_path / "1", step=1)
    old, folder = tiny.look(), tmp_path / "2"
    tiny.run(1)
    new = tiny.look()

    def restored(path: Path) -> Any:
        tiny.load(path)
        return tiny.look()

    calls = every_call(lambda: tiny.save(tmp_path / "0", step=2), tmp_path)
    assert {"open", "write", "fsync", "rename", "mkdir"} <= set(calls)
    assert len(calls) > 20
    errors = 0
    for where, error in failing(lambda: tiny.save(folder, step=2), tmp_path, calls):
        errors += error is not None
        assert same(tiny.look(), new), where
        assert same(restored(tmp_path / "1"), old), where
        assert folder.exists() or error is not None, where
        if folder.exists():
            assert same(restored(folder), new), where
            folder.rename(tmp_path / f"kept {where}")
        tiny.load(tmp_path / "0")
    assert errors > len(calls) / 2
    tiny.save(folder, step=2)
    assert same(restored(folder), new)
    assert not hidden(tmp_path)


def test_a_load_that_fails_changes_nothing_or_says_so(tiny: Tiny, tmp_path: Path) -> None:
    tiny.save(tmp_path / "1", step=1)
    saved = tiny.look()
    tiny.run(1)
    now = tiny.look()
    tiny.save(tmp_path / "2", step=2)
    calls = every_call(lambda: tiny.load(tmp_path / "1"), tmp_path)
    assert "open" in calls
    tiny.load(tmp_path / "2")
    for where, error in failing(lambda: tiny.load(tmp_path / "1"), tmp_path, calls):
        if error is None or "restored in part" not in str(error):
            assert same(tiny.look(), saved if error is None else now), where
        tiny.load(tmp_path / "2")


@pytest.mark.parametrize("form", ["npy", "pt", "parquet", "word2vec"])
def test_an_export_that_fails_keeps_the_rows_before_it(form: str, tmp_path: Path) -> None:
    old, new = (np.full((5, 3), value, dtype=np.float32) for value in (1, 2))
    ids = np.arange(5)
    save_embeddings(tmp_path / "rows", old, ids, (form,))
    calls = every_call(lambda: save_embeddings(tmp_path / "other", new, ids, (form,), overwrite=True), tmp_path)
    for where, error in failing(
        lambda: save_embeddings(tmp_path / "rows", new, ids, (form,), overwrite=True), tmp_path, calls
    ):
        found = load_embeddings(tmp_path / "rows" / ("embeddings.pt" if form == "pt" else "")).weights
        assert np.array_equal(found, old) or np.array_equal(found, new), where
        assert np.array_equal(found, new) or error is not None, where
    save_embeddings(tmp_path / "rows", new, ids, (form,), overwrite=True)
    assert not hidden(tmp_path / "rows")


@pytest.mark.parametrize("memory", [None, "4GB"], ids=["in memory", "streaming"])
def test_a_build_that_fails_leaves_no_partition_or_a_whole_one(memory: str | None, tmp_path: Path) -> None:
    file, place = tmp_path / "cycle.txt", tmp_path / "out" / "parts"
    file.write_text("".join(f"{i} {(i + 1) % 12}\n" for i in range(12)))

    def build(out: Path = place) -> None:
        more = {} if memory is None else {"memory": memory}
        partition.build(file, num_parts=2, out=out, seed=0, progress=False, **more)

    calls = every_call(lambda: build(tmp_path / "whole" / "parts"), tmp_path)
    assert len(calls) > 50
    for where, error in failing(build, tmp_path, calls, STEP):
        assert place.exists() or error is not None, where
        if place.exists():
            assert partition.verify(place, progress=False).problems == [], where
            place.rename(tmp_path / f"kept {where}")
    build()
    assert partition.verify(place, progress=False).problems == []
    assert not hidden(place.parent)
