"""``opt.save`` and ``opt.load`` over other numbers of processes, parts and modes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import graph_emb as ge
from tests.checkpoint.layouts import Layout, Reference, everywhere, reference
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

SAVED = [
    Layout("local", 3, 1),
    Layout("collective", 3, 4),
    Layout("collective", 2, 2),
    Layout("kvstore", 4, 1),  # servers of three machines without a trainer
    Layout("kvstore", 2, 4),
]
LOADED = [
    Layout("local", 2, 1),
    Layout("collective", 1, 2),
    Layout("collective", 2, 4),
    Layout("kvstore", 3, 2),
    Layout("kvstore", 2, 4),
]


@pytest.fixture(scope="module")
def uninterrupted() -> Reference:
    return reference()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks, uninterrupted: Reference) -> list[Path]:
    folder = tmp_path_factory.mktemp("saved")
    for layout in SAVED:
        everywhere("save_state_at", layout, folder, uninterrupted, ranks=ranks)
    return [folder / layout.name for layout in SAVED]


@pytest.mark.dist
@pytest.mark.parametrize("layout", LOADED, ids=lambda layout: layout.name)
def test_state_of_any_layout_goes_on_bit_for_bit(
    layout: Layout, saved: list[Path], ranks: Ranks, uninterrupted: Reference
) -> None:
    assert everywhere("load_state_at", layout, saved, uninterrupted, ranks=ranks) == []


# Rows that decay lazily, whose state is what they lack


def decaying(lr: float = 0.1) -> tuple[ge.DistEmbedding, ge.SparseSGD]:
    emb = ge.DistEmbedding(6, 2, "t", lambda shape, dtype: torch.ones(shape, dtype=dtype), dtype=torch.float64)
    return emb, ge.SparseSGD([emb], lr=lr, weight_decay=0.5, weight_decay_mode="lazy")


def step(emb: ge.DistEmbedding, opt: ge.SparseSGD, ids: list[int]) -> None:
    emb(torch.tensor(ids, dtype=torch.int64)).sum().backward()
    opt.step()


def save_decaying(folder: str) -> torch.Tensor:
    ge.init("collective", timeout=60)
    emb, opt = decaying()
    for ids in ([0, 1], [4]):
        step(emb, opt, ids if opt.rank == 0 else [])
    opt.save(Path(folder, "opt"))
    rows = emb.weight[:]
    ge.shutdown()
    return rows


@pytest.mark.dist
def test_rows_that_decay_lazily_go_on(ranks: Ranks, tmp_path: Path) -> None:
    rows, _ = ranks.run(save_decaying, 2, str(tmp_path))
    emb, opt = decaying()
    step(emb, opt, [5])
    emb.weight[:] = rows
    opt.load(tmp_path / "opt")
    assert torch.equal(emb.weight[:], rows)
    step(emb, opt, [1])
    expected = rows * 0.95
    expected[1] -= 0.1
    assert torch.allclose(emb.weight[:], expected, rtol=1e-12, atol=0)


# What does not fit


def try_load(folder: str) -> tuple[str, float]:
    """Of each of two ranks the error, and the sum of the state after it."""
    ge.init("collective", timeout=60)
    try:
        emb = ge.DistEmbedding(6, 2, "t")
        opt = ge.SparseAdagrad([emb], lr=0.3)
        with pytest.raises(ge.DataError) as error:
            opt.load(Path(folder, "opt"))
        assert opt.param_groups[0]["lr"] == 0.3
        return str(error.value), float(emb.optm_state["sum"][:].sum())
    finally:
        ge.shutdown()


def save_on_two(folder: str) -> None:
    ge.init("collective", timeout=60)
    emb = ge.DistEmbedding(6, 2, "t")
    opt = ge.SparseAdagrad([emb], lr=0.1)
    emb(torch.arange(6)).sum().backward()
    opt.step()
    opt.save(Path(folder, "opt"))
    ge.shutdown()


@pytest.mark.dist
def test_files_of_two_saves_are_no_state(ranks: Ranks, tmp_path: Path) -> None:
    """A save that ended after one of two files left a mixture that was loaded in silence."""
    ranks.run(save_on_two, 2, str(tmp_path))
    shutil.copy(tmp_path / "opt_1", tmp_path / "before")
    ranks.run(save_on_two, 2, str(tmp_path))
    shutil.copy(tmp_path / "before", tmp_path / "opt_1")
    (first, state), (second, other) = ranks.run(try_load, 2, str(tmp_path))
    assert "opt_1 is of another save than the file of rank 0 (2 processes, that one 2)" in second
    assert "1 of 2 ranks failed" in first
    assert state == other == 0


@pytest.mark.dist
def test_a_file_that_is_gone_is_missed_by_all(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(save_on_two, 2, str(tmp_path))
    (tmp_path / "opt_1").unlink()
    (first, state), (second, _) = ranks.run(try_load, 2, str(tmp_path))
    assert "1 of 2 ranks failed" in first
    assert "no optimizer state at" in second
    assert state == 0
    emb = ge.DistEmbedding(6, 2, "t")
    with pytest.raises(ge.DataError, match=r"opt_1; save\(\) writes it"):
        ge.SparseAdagrad([emb]).load(tmp_path / "opt")


@pytest.mark.parametrize(
    ("num", "original", "message"),
    [(7, None, "table 't' has 6 rows, the one here 7"), (6, [1, 2, 3, 4, 5, 9], "ids that the one here has not")],
)
def test_state_of_another_graph_is_refused(num: int, original: list[int] | None, message: str, tmp_path: Path) -> None:
    opt = ge.SparseAdagrad([ge.DistEmbedding(6, 2, "t")])
    opt.save(tmp_path / "opt")
    ge.shutdown()
    emb = ge.DistEmbedding(num, 2, "t", original_ids=None if original is None else torch.tensor(original))
    other = ge.SparseAdagrad([emb])
    with pytest.raises(ge.GraphEmbError, match=message):
        other.load(tmp_path / "opt")
