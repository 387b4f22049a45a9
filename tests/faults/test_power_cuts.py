"""A cut of power at any moment of a save leaves checkpoints that load as they were, or that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import GraphEmbError
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings
from tests.checkpoint.tiny import Tiny, same
from tests.faults.power import PowerCuts

CUTS = 60
"""Of each case; as many again of what is left when the save has returned."""


def states(cuts: PowerCuts, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Folders as cuts leave them, and whether the save had returned."""
    rng, end = np.random.default_rng(0), len(cuts.log)
    for k in range(2 * CUTS):
        ended = k >= CUTS
        place = folder / str(k)
        cuts.cut(end if ended else int(rng.integers(end)), place, rng)
        yield place, ended


def found(tiny: Tiny, checkpoint: Path) -> bool:
    """Whether a checkpoint loads; else it is refused."""
    try:
        tiny.load(checkpoint)
    except (GraphEmbError, OSError):
        return False
    return True


def test_a_checkpoint_is_whole_or_refused_and_whole_when_the_save_has_returned(tiny: Tiny, tmp_path: Path) -> None:
    (here := tmp_path / "run").mkdir()
    saved = tiny.look()
    with PowerCuts(here).counting() as cuts:
        tiny.save(here / "new")
    whole = 0
    for place, ended in states(cuts, tmp_path):
        tiny.run(1)
        if found(tiny, place / "new"):
            assert same(tiny.look(), saved)
            whole += not ended
        else:
            assert not ended
    assert whole < CUTS


@pytest.mark.parametrize("swaps", [True, False])
def test_a_checkpoint_that_replaces_another_leaves_one_of_both(
    tiny: Tiny, tmp_path: Path, swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps:  # as where the system cannot exchange two names: for a moment neither has the name
        monkeypatch.setattr("graph_emb.core.storage.swap_names", lambda *_: False)
    (here := tmp_path / "run").mkdir()
    tiny.save(here / "one")
    old = tiny.look()
    tiny.run(1)
    new = tiny.look()
    with PowerCuts(here).counting() as cuts:
        tiny.save(here / "one")
    met = set()
    for place, ended in states(cuts, tmp_path):
        tiny.run(1)
        if found(tiny, place / "one"):
            look = tiny.look()
            assert same(look, new) or (same(look, old) and not ended)
            met.add(same(look, new))
        else:
            assert not swaps
            assert not ended
    assert met == {True, False}


def test_old_checkpoints_leave_when_the_new_one_is_on_the_disk(tiny: Tiny, tmp_path: Path) -> None:
    (here := tmp_path / "run").mkdir()
    looks = {}
    for name in ("1", "2"):
        tiny.run(1)
        looks[name] = tiny.look()
        with PowerCuts(here).counting() as cuts:
            tiny.save(here / name, step=int(name), keep_last=1)
    met = set()
    for place, ended in states(cuts, tmp_path):
        tiny.run(1)
        loads = []
        for name, look in looks.items():
            if (place / name).exists() and found(tiny, place / name):
                assert same(tiny.look(), look)
                loads.append(name)
        assert loads
        assert "2" in loads or not ended
        met.update(loads)
    assert met == {"1", "2"}


@pytest.mark.parametrize("form", ["npy", "word2vec"])
def test_an_export_over_another_one_is_one_of_both(form: str, tmp_path: Path) -> None:
    (here := tmp_path / "run").mkdir()
    ids = [np.arange(700), np.arange(700)[::-1].copy()]
    rows = [np.random.default_rng(k).normal(size=(700, 3)).astype(np.float32) for k in range(2)]
    save_embeddings(here / "rows", rows[0], ids[0], (form,))
    with PowerCuts(here).counting() as cuts:
        save_embeddings(here / "rows", rows[1], ids[1], (form,), overwrite=True)
    met = set()
    for place, ended in states(cuts, tmp_path):
        try:
            read = load_embeddings(place / "rows")
        except (GraphEmbError, OSError):
            assert not ended
            continue
        is_new = np.array_equal(read.weights, rows[1])
        assert np.array_equal(read.weights, rows[int(is_new)])
        assert np.array_equal(read.node_ids, ids[int(is_new)])
        assert is_new or not ended
        met.add(is_new)
    assert True in met
