"""Decay and bounds of touched rows: each option by hand, against torch, in groups, and where FBGEMM ignores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.test_optimizer import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("fresh_mode")

DTYPES = [torch.float32, torch.float64]


def row(*values: float, dtype: torch.dtype = torch.float64, more: int = 0) -> ge.DistEmbedding:
    first = torch.tensor([values] * (1 + more), dtype=dtype)
    return ge.DistEmbedding(1 + more, len(values), init_func=ge.initializers.FromArray(first), dtype=dtype)


def step(emb: Any, opt: Any, *grads: tuple[float, ...]) -> list[float]:
    """One step of row 0 with a gradient for each occurrence; its new values."""
    rows = emb(torch.zeros(len(grads), dtype=torch.int64))
    rows.backward(torch.tensor(grads, dtype=rows.dtype))
    opt.step()
    return emb.weight[0].tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
def test_each_option_by_hand(dtype: torch.dtype) -> None:
    def sgd(options: dict[str, Any], *grads: tuple[float, ...]) -> list[float]:
        emb = row(3.0, 4.0, dtype=dtype)
        return step(emb, ge.SparseSGD([emb], lr=0.5, **options), *grads)

    assert sgd({"clip_value": 1.0}, (1.0, -3.0), (1.0, 0.5)) == [2.5, 4.5]  # after the merge: 2 and -2.5
    assert sgd({"clip_row_norm": 5.0}, (6.0, 8.0)) == [1.5, 2.0]
    assert sgd({"clip_row_norm": 10.0}, (6.0, 8.0)) == [0.0, 0.0]
    assert sgd({"clip_row_ratio": 1.0}, (6.0, 8.0)) == [1.5, 2.0]  # the row's norm is 5
    assert sgd({"clip_row_ratio": 1e-9, "clip_row_least": 5.0}, (6.0, 8.0)) == [1.5, 2.0]
    assert sgd({"weight_decay": 0.5}, (1.0, 0.0)) == [1.75, 3.0]
    assert sgd({"weight_decay": 0.5, "weight_decay_mode": "decoupled"}, (1.0, 0.0)) == [1.75, 3.0]
    assert sgd({"max_norm": 2.5}, (0.0, 0.0)) == [1.5, 2.0]
    assert sgd({"maximize": True}, (1.0, 0.0)) == [3.5, 4.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
def test_l2_decay_is_part_of_the_state_and_decoupled_decay_is_not(dtype: torch.dtype) -> None:
    for mode, total in (("l2", 9.0), ("decoupled", 4.0)):
        emb = row(2.0, dtype=dtype)
        opt = ge.SparseAdagrad([emb], lr=0.1, weight_decay=0.5, weight_decay_mode=mode)
        step(emb, opt, (2.0,))
        assert emb.shard.state["sum"].item() == total


@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
def test_rows_are_counted_and_move_less_the_more_often(dtype: torch.dtype, tmp_path: Path) -> None:
    def make() -> tuple[Any, Any]:
        emb = ge.DistEmbedding(4, 1, "t", dtype=dtype)
        return emb, ge.SparseSGD([emb], lr=1.0, count_rows=True, count_power=1.0)

    emb, opt = make()
    with pytest.raises(ConfigError, match="no optimizer counts its rows"):
        ge.DistEmbedding(1, 1).row_counts()
    for ids in ([0, 0, 2], [2], [], [2, 1]):
        emb(torch.tensor(ids, dtype=torch.int64)).backward(torch.ones(len(ids), 1, dtype=dtype))
        opt.step()
    first, steps, last = emb.row_counts()
    assert (first, steps.tolist(), last.tolist()) == (0, [1, 1, 3, 0], [1, 4, 4, 0])
    torch.testing.assert_close(emb.weight[:].flatten(), torch.tensor([-2, -1, -1 - 1 / 2 - 1 / 3, 0], dtype=dtype))
    ge.save_checkpoint(tmp_path / "c", tables=[emb], optimizers=[opt], step=4)
    ge.shutdown()
    later, opt = make()
    ge.load_checkpoint(tmp_path / "c", tables=[later], optimizers=[opt])
    step(later, opt, (1.0,))
    assert later.row_counts().steps.tolist() == [2, 1, 3, 0]
    assert later.row_counts().last.tolist() == [5, 4, 4, 0]
    assert later.weight[0].item() == -2.5
    with pytest.raises(ConfigError, match="needs count_rows=True"):
        ge.SparseSGD([row(1.0)], count_power=0.5)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "AdamW"])
def test_decay_equals_torchs_where_every_row_is_touched(kind: str) -> None:
    gen = torch.Generator().manual_seed(0)
    first = torch.randn(5, 3, generator=gen, dtype=torch.float64)
    emb = ge.DistEmbedding(5, 3, init_func=ge.initializers.FromArray(first), dtype=torch.float64)
    peer = torch.nn.Parameter(first.clone())
    compat = {"compat": "fbgemm"} if kind == "AdamW" else {}  # eps as in dense Adam
    ours = getattr(ge, f"Sparse{kind}")([emb], lr=0.1, weight_decay=0.2, **compat)
    theirs = getattr(torch.optim, kind)([peer], lr=0.1, weight_decay=0.2)
    for _ in range(20):
        grad = torch.randn(5, 3, generator=gen, dtype=torch.float64)
        emb(torch.arange(5)).backward(grad)
        peer.grad = grad
        ours.step()
        theirs.step()
    torch.testing.assert_close(emb.weight[:], peer.data, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clip_value", 0.01),
        ("clip_row_norm", 0.01),
        ("clip_row_ratio", 0.01),
        ("clip_row_least", 1.0),
        ("count_power", 0.5),
        ("weight_decay", 0.5),
        ("weight_decay_mode", "other"),
        ("max_norm", 0.5),
        ("maximize", True),
    ],
)
def test_every_option_changes_the_rows_of_every_rule(name: str, dtype: torch.dtype, option: str, value: Any) -> None:
    """FBGEMM's CPU kernels take weight_decay and max_norm and ignore them."""
    default = OPTIMIZERS[name]([row(1.0)]).param_groups[0][option]
    base = {"weight_decay": 0.5} if option == "weight_decay_mode" or name == "SparseLARS" else {}
    base |= {"clip_row_least": {"clip_row_ratio": 1e-3}, "count_power": {"count_rows": True}}.get(option, {})
    base.pop(option, None)  # LARS divides by the norm of the gradient, so that its size counts beside a decay only
    if value == "other":
        value = "decoupled" if default == "l2" else "l2"

    def trained(**options: Any) -> list[float]:
        emb = row(1.0, -2.0, 0.5, dtype=dtype)
        opt = OPTIMIZERS[name]([emb], **base, **options)
        for grads in ((3.0, 1.0, -2.0), (0.5, 0.25, 1.0), (-1.0, 2.0, 0.125)):
            step(emb, opt, grads, (0.25, 0.5, 0.0))
        return emb.weight[0].tolist()

    assert trained() == trained(**{option: default})
    assert trained() != trained(**{option: value})


@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
def test_only_touched_rows_decay_and_are_bounded(dtype: torch.dtype) -> None:
    emb = row(3.0, 4.0, dtype=dtype, more=2)
    opt = ge.SparseAdam([emb], lr=0.1, weight_decay=0.5, max_norm=1.0)
    step(emb, opt, (0.0, 1.0))
    assert emb.weight[1:].tolist() == [[3.0, 4.0], [3.0, 4.0]]
    assert emb.weight[0].norm().item() == pytest.approx(1.0)


def test_groups_have_options_of_their_own_which_may_change() -> None:
    one, two = row(1.0), row(1.0)
    opt = ge.SparseSGD([{"params": [one], "weight_decay": 0.5}, {"params": [two]}], lr=1.0)
    for emb in (one, two):
        emb(torch.tensor([0])).backward(torch.zeros(1, 1, dtype=torch.float64))
    opt.step()
    assert (one.weight[0].item(), two.weight[0].item()) == (0.5, 1.0)
    opt.param_groups[1]["max_norm"] = 0.25
    assert step(two, opt, (0.0,)) == [0.25]
    saved = opt.state_dict()
    assert [group["weight_decay"] for group in saved["param_groups"]] == [0.5, 0.0]


@pytest.mark.parametrize("kind", [ge.SparseLAMB, ge.SparseRowLAMB, ge.SparseLARS])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fused", "reference"])
def test_rows_of_zeros_and_gradients_of_zeros_are_no_nan(kind: Any, dtype: torch.dtype) -> None:
    """Without a guard a table of zeros, DGL's default, never moves: the ratio of norms is 0; 0 / 0 is NaN."""
    emb = row(0.0, 0.0, dtype=dtype)
    opt = kind([emb], lr=0.1)
    assert step(emb, opt, (0.0, 0.0)) == [0.0, 0.0]
    assert step(emb, opt, (1.0, 1.0))[0] < 0
    assert torch.isfinite(emb.weight[:]).all()


def test_what_is_no_option_or_outside_its_limits_is_refused() -> None:
    emb = row(1.0)
    with pytest.raises(ConfigError, match=r"unknown SparseAdagrad option 'wieght_decay'.*did you mean 'weight_decay'"):
        ge.SparseAdagrad([emb], wieght_decay=0.1)
    for name, bad in {"clip_value": 0.0, "max_norm": -1.0, "weight_decay": -0.1, "clip_row_norm": "1"}.items():
        with pytest.raises(ConfigError, match=f"{name}="):
            ge.SparseAdam([emb], **{name: bad})
    with pytest.raises(ConfigError, match="unknown weight_decay_mode 'L2'"):
        ge.SparseAdam([emb], weight_decay=0.1, weight_decay_mode="L2")
    for compat in ("dgl-0.5", "dgl-1.x"):
        with pytest.raises(ConfigError, match="had no LAMB"):
            ge.SparseLAMB([emb], compat=compat)
        with pytest.raises(ConfigError, match="had no LARS"):
            ge.SparseLARS([emb], compat=compat)
    assert step(emb, ge.SparseSGD([emb], lr=0.5), (1.0,)) == [0.5]
