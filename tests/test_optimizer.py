"""Sparse optimizers: torch's and DGL's numbers by name, torch's interface, checks before any row changes."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from tests import dgl_standalone
from tests.optim.oracles import batches, occurrences

pytestmark = pytest.mark.usefixtures("fresh_mode")

ROWS, DIM = 11, 4
OPTIMIZERS: dict[str, Any] = {
    "SparseSGD": lambda p, **k: ge.SparseSGD(p, **{"lr": 0.1, "momentum": 0.5, **k}),
    "SparseAdagrad": lambda p, **k: ge.SparseAdagrad(p, **{"lr": 0.1, **k}),
    "SparseRowAdagrad": lambda p, **k: ge.SparseRowAdagrad(p, **{"lr": 0.1, **k}),
    "SparseAdam": lambda p, **k: ge.SparseAdam(p, **{"lr": 0.1, **k}),
    "SparseRowAdam": lambda p, **k: ge.SparseRowAdam(p, **{"lr": 0.1, **k}),
    "SparseAdamW": lambda p, **k: ge.SparseAdamW(p, **{"lr": 0.1, **k}),
    "SparseLAMB": lambda p, **k: ge.SparseLAMB(p, **{"lr": 0.1, **k}),
    "SparseRowLAMB": lambda p, **k: ge.SparseRowLAMB(p, **{"lr": 0.1, **k}),
    "SparseLARS": lambda p, **k: ge.SparseLARS(p, **{"lr": 0.1, "eta": 1.0, **k}),
}


def table(dtype: torch.dtype = torch.float32, name: str = "t") -> ge.DistEmbedding:
    return ge.DistEmbedding(ROWS, DIM, name, ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype)


def feed(emb: Any, ids: np.ndarray, grads: np.ndarray) -> None:
    """Make the given gradients come back for the given ids."""
    rows = emb(torch.from_numpy(ids))
    (rows * torch.from_numpy(grads).to(rows.dtype)).sum().backward()


def test_every_public_optimizer_is_in_the_table() -> None:
    public = {name for name in ge.__all__ if name.startswith("Sparse")} - {"SparseOptimizer"}
    assert public == set(OPTIMIZERS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused", "reference"])
@pytest.mark.parametrize("kind", ["adagrad", "adam"])
def test_compat_torch_equals_torch_for_20_steps(kind: str, dtype: torch.dtype) -> None:
    emb = table(dtype)
    peer = torch.nn.Embedding(ROWS, DIM, sparse=True, dtype=dtype)
    peer.weight.data.copy_(emb.weight[:])
    if kind == "adagrad":
        ours, theirs = ge.SparseAdagrad([emb], 0.1, 1e-6), torch.optim.Adagrad(peer.parameters(), 0.1, eps=1e-6)
    else:
        ours = ge.SparseAdam([emb], 0.1, eps=1e-2, compat="torch")
        theirs = torch.optim.SparseAdam(list(peer.parameters()), 0.1, eps=1e-2)
    with torch.sparse.check_sparse_tensor_invariants(False):
        for ids, grads in batches(ROWS, DIM):
            theirs.zero_grad()
            feed(emb, ids, grads)
            feed(peer, ids, grads)
            ours.step()
            theirs.step()
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(emb.weight[:], peer.weight.data, **tolerance)


def test_the_adagrad_rate_decays_where_dgl_stops_decaying() -> None:
    """DGL 0.8.2 and later store sqrt(G) + eps in place of G on the CPU, so their rate never decays."""
    emb = ge.DistEmbedding(1, 1)
    opt = ge.SparseAdagrad([emb], lr=0.1, compat="dgl-1.x")
    for _ in range(99):
        feed(emb, np.array([0]), np.array([[3.0]]))
        opt.step()
    before = emb.weight[0].item()
    feed(emb, np.array([0]), np.array([[3.0]]))
    opt.step()
    assert emb.shard.state["sum"].item() == pytest.approx(900.0)
    assert before - emb.weight[0].item() == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused", "reference"])
def test_compat_dgl_1_adagrad_averages_duplicates(dtype: torch.dtype) -> None:
    emb = table(dtype)
    opt = ge.SparseAdagrad([emb], lr=0.1, compat="dgl-1.x")
    weight = emb.weight[:].double().numpy()
    total = np.zeros_like(weight)
    for ids, grads in batches(ROWS, DIM):
        feed(emb, ids, grads)
        opt.step()
        for r, (g,) in occurrences(ids, grads, mean=True).items():
            total[r] += g * g
            weight[r] -= 0.1 * g / (np.sqrt(total[r]) + 1e-10)
    np.testing.assert_allclose(emb.weight[:].double().numpy(), weight, rtol=1e-4, atol=1e-5)


def test_compat_dgl_0_5_is_the_old_push_handler() -> None:
    """Two equal duplicates of g = [1, 2, 3]: the state adds mean(g * g) twice, before the update."""
    emb = ge.DistEmbedding(3, 3, init_func=lambda shape, dtype: torch.ones(shape, dtype=dtype))
    opt = ge.SparseAdagrad([emb], lr=0.1, compat="dgl-0.5")
    feed(emb, np.array([1, 1]), np.array([[1.0, 2, 3], [1, 2, 3]]))
    opt.step()
    np.testing.assert_allclose(emb.weight[1], [0.93453, 0.86907, 0.80360], atol=1e-5)
    np.testing.assert_allclose(emb.shard.state["sum"], [0, 9.3333, 0], atol=1e-4)
    feed(emb, np.array([2, 2]), np.array([[1.0, 2, 3], [-1, -2, -3]]))
    opt.step()
    assert emb.weight[2].tolist() == [1, 1, 1]
    assert emb.shard.state["sum"][2].item() == pytest.approx(9.3333, abs=1e-4)


DGL_ADAM = """
theirs = dgl.distributed.DistEmbedding(11, 4, "theirs", lambda shape, dtype: first.clone(), policy)
ours = ge.DistEmbedding(11, 4, "ours", lambda shape, dtype: first.clone(), policy)
their_opt = dgl.distributed.optim.SparseAdam([theirs], lr=0.1, eps=1e-2)
our_opt = ge.SparseAdam([ours], lr=0.1, eps=1e-2, compat="dgl-1.x")
for ids, grads in batches(11, 4):
    for emb, opt in ((theirs, their_opt), (ours, our_opt)):
        if len(ids):
            opt.zero_grad()
            (emb(torch.from_numpy(ids)) * torch.from_numpy(grads).float()).sum().backward()
            opt.step()
            opt.zero_grad()
            emb.reset_trace()
difference = (theirs._tensor[torch.arange(11)] - ours.weight[:]).abs().max().item()
moved = (ours.weight[:] - first).abs().max().item()
print(f"DIFFERENCE {difference} MOVED {moved}")
"""


def test_compat_dgl_1_adam_equals_dgls_own_for_20_steps(tmp_path: Path) -> None:
    words = dgl_standalone.run(DGL_ADAM, tmp_path).split("DIFFERENCE ")[1].split()
    assert float(words[0]) < 2e-5
    assert float(words[2]) > 0.5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_traces_are_consumed_by_step(name: str) -> None:
    emb = table()
    opt = OPTIMIZERS[name]([emb])
    feed(emb, np.array([2]), np.ones((1, DIM)))
    opt.step()
    once = emb.weight[:]
    opt.step()
    assert torch.equal(emb.weight[:], once)
    assert not torch.equal(
        once[2], ge.DistEmbedding(ROWS, DIM, init_func=ge.initializers.Uniform(-1, 1, seed=1)).weight[2]
    )


def test_a_step_that_raises_applies_no_gradient_twice() -> None:
    """Gradients were cleared after the push only: an error in the second table left those of the first behind."""

    def refuse(*_: Any) -> None:
        raise ValueError("too large")

    transport: Any = ge.init(mode="kvstore")
    first, second = table(name="first"), table(name="second")
    transport.register_push_handler("second", refuse)
    before, opt = first.weight[:], ge.SparseSGD([first, second], lr=1.0)
    (first(torch.arange(ROWS)) + second(torch.arange(ROWS))).sum().backward()
    with pytest.raises(ValueError, match="too large"):
        opt.step()
    assert not first.touched
    assert not second.touched
    opt.step()
    assert torch.equal(first.weight[:], before - 1.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_of_several_backwards_are_one_step(name: str) -> None:
    ids, grads = np.array([1, 2, 1]), np.arange(12.0).reshape(3, 4)
    results = []
    for pieces in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        ge.shutdown()
        emb = table()
        opt = OPTIMIZERS[name]([emb])
        for piece in pieces:
            feed(emb, ids[piece], grads[piece])
        opt.step()
        results.append(emb.weight[:])
    assert torch.equal(*results)


def test_zero_grad_forgets_what_came_back_but_not_what_is_to_come() -> None:
    emb = table()
    opt = ge.SparseSGD([emb], lr=1.0)
    first = emb.weight[:]
    feed(emb, np.array([0]), np.ones((1, DIM)))
    rows = emb(torch.tensor([1]))
    opt.zero_grad()
    rows.sum().backward()
    opt.step()
    assert torch.equal(emb.weight[0], first[0])
    assert torch.equal(emb.weight[1], first[1] - 1)
    with pytest.raises(ge.ConfigError, match="set_to_none"):
        opt.zero_grad(set_to_none=False)


def test_unused_tables_and_unused_outputs_are_left_alone() -> None:
    used, unused = table(name="used"), table(name="unused")
    opt = ge.SparseAdam([used, unused], lr=0.1)
    unused(torch.tensor([1]))
    feed(used, np.array([1]), np.ones((1, DIM)))
    before = unused.weight[:]
    opt.step()
    assert torch.equal(unused.weight[:], before)
    assert unused.shard.state["step"].tolist() == [0]
    assert used.shard.state["step"].tolist() == [1]


def test_torch_schedulers_drive_the_learning_rate() -> None:
    emb = table()
    opt = ge.SparseSGD([emb], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    first = emb.weight[0]
    for _ in range(3):
        feed(emb, np.array([0]), np.ones((1, DIM)))
        opt.step()
        scheduler.step()
    torch.testing.assert_close(first - emb.weight[0], torch.full((DIM,), 1.75))
    assert scheduler.get_last_lr() == [0.125]


def test_groups_have_numbers_of_their_own() -> None:
    fast, slow = table(name="fast"), table(name="slow")
    opt = ge.SparseSGD([{"params": [fast]}, {"params": [slow], "lr": 0.25}], lr=1.0)
    first = fast.weight[0]
    for emb in (fast, slow):
        feed(emb, np.array([0]), np.ones((1, DIM)))
    opt.step()
    torch.testing.assert_close(fast.weight[0], first - 1)
    torch.testing.assert_close(slow.weight[0], first - 0.25)


def test_a_group_may_be_a_generator() -> None:
    """The check of its tables used it up: the group trained nothing, and alone it was a StopIteration."""
    first, second = table(name="first"), table(name="second")
    opt = ge.SparseSGD([{"params": [first]}, {"params": (each for each in [second]), "lr": 0.25}], lr=1.0)
    assert opt.tables == {"first": first, "second": second}
    assert [len(group["params"]) for group in opt.param_groups] == [1, 1]
    third = table(name="third")
    assert ge.SparseSGD([{"params": (each for each in [third])}], lr=1.0).tables == {"third": third}


def test_a_closure_is_called_with_gradients() -> None:
    emb = table()
    opt = ge.SparseSGD([emb], lr=1.0)
    first = emb.weight[3]

    def closure() -> float:
        loss = emb(torch.tensor([3])).sum()
        loss.backward()
        return loss.item()

    assert opt.step(closure) == pytest.approx(first.sum().item())
    assert torch.equal(emb.weight[3], first - 1)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [math.nan, -0.1, math.inf])
def test_a_bad_learning_rate_names_the_table_and_changes_no_row(name: str, bad: float) -> None:
    good, emb = table(name="good"), table()
    opt = OPTIMIZERS[name]([{"params": [good]}, {"params": [emb]}])
    for each in (good, emb):
        feed(each, np.array([0]), np.ones((1, DIM)))
    before = good.weight[:], emb.weight[:]
    opt.param_groups[1]["lr"] = bad
    with pytest.raises(ge.ConfigError, match=rf"table 't': .*lr={bad!r} is outside \[0, inf\)"):
        opt.step()
    assert torch.equal(good.weight[:], before[0])
    assert torch.equal(emb.weight[:], before[1])
    opt.param_groups[1]["lr"] = 0.1
    opt.step()
    assert not torch.equal(emb.weight[:], before[1])


def test_one_optimizer_a_table_until_it_is_closed() -> None:
    emb = table()
    opt = ge.SparseAdam([emb], lr=0.1)
    with pytest.raises(ge.ModeError, match="another optimizer"):
        ge.SparseAdagrad([emb], lr=0.1)
    opt.close()
    opt.close()
    other = ge.SparseAdagrad([emb], lr=0.1)
    assert set(other.tables["t"].optm_state) == {"sum"}


def test_a_closed_optimizer_takes_no_step() -> None:
    emb = table()
    opt = ge.SparseAdagrad([emb], lr=0.1)
    emb(torch.arange(3)).sum().backward()
    opt.close()
    with pytest.raises(ge.ModeError, match="SparseAdagrad of 't' was closed; make another one"):
        opt.step()
    assert emb.touched  # for the optimizer that comes after it


def test_a_dropped_optimizer_frees_its_state() -> None:
    emb = table()
    opt = ge.SparseAdam([emb], lr=0.1)
    assert emb.optm_state
    del opt
    gc.collect()
    assert emb.optm_state == {}


def test_a_failed_construction_leaves_no_state_behind() -> None:
    free, taken = table(name="free"), table(name="taken")
    keeper = ge.SparseSGD([taken], lr=0.1)
    with pytest.raises(ge.ModeError):
        ge.SparseAdagrad([free, taken], lr=0.1)
    assert free.optm_state == {}
    assert keeper.tables["taken"] is taken
    ge.SparseAdagrad([free], lr=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: ge.SparseAdam([], lr=0.1), "params is empty"),
        (lambda e: ge.SparseAdam(None, lr=0.1), "params is None; pass a list of tables"),
        (lambda e: ge.DistEmbedding(3, 2, name=5), "table name 5 must be a text"),
        (lambda e: ge.SparseAdam(e, lr=0.1), r"\[emb\]"),
        (lambda e: ge.SparseAdam([torch.zeros(1)], lr=0.1), "DistEmbedding tables only"),
        (lambda e: ge.SparseAdam([{"params": torch.ones(())}], lr=0.1), "DistEmbedding tables only"),
        (lambda e: ge.SparseAdam([{"params": (t for t in [e, 3])}], lr=0.1), "DistEmbedding tables only"),
        (lambda e: ge.SparseAdam([{"params": None}], lr=0.1), "DistEmbedding tables only"),
        (lambda e: ge.SparseAdam([e, e], lr=0.1), "given twice"),
        (lambda e: ge.SparseAdam([{"params": [e], "momentum": 0.9}], lr=0.1), r"unknown option \['momentum'\]"),
        (lambda e: ge.SparseAdam([e], lr=0.1, betas=(0.9, 1.0)), "beta2=1.0"),
        (lambda e: ge.SparseAdam([e], lr=0.1, betas=0.9), "betas=0.9"),
        (lambda e: ge.SparseAdam([e], lr=0.1, compat="dgl-0.5"), "had no Adam"),
        (lambda e: ge.SparseSGD([e], lr=0.1, compat="dgl-1.x"), "had no sparse SGD"),
        (lambda e: ge.SparseAdam([e], lr=0.1, compat="torsh"), "did you mean 'torch'"),
        (lambda e: ge.SparseAdam([e], lr=0.1, bias_correction="rows"), "did you mean 'row'"),
        (lambda e: ge.SparseAdagrad([e], lr=0.1, merge="none"), "unknown merge 'none'"),
        (lambda e: ge.SparseAdagrad([e], lr=0.1, compat="dgl-0.5", merge="sum"), "cannot be honoured"),
        (lambda e: ge.SparseAdagrad([e], lr=0.1, initial_accumulator_value=-1.0), "initial_accumulator_value=-1.0"),
    ],
)
def test_bad_arguments_are_refused_by_name(make: Any, message: str) -> None:
    emb = table()
    with pytest.raises(ge.ConfigError, match=message):
        make(emb)
    assert emb.optm_state == {}


@pytest.mark.parametrize(
    ("compat", "options"),
    [
        ("torch", ("sum", "global", "raw")),
        ("dgl-1.x", ("mean", "row", "corrected")),
        ("fbgemm", ("sum", "global", "corrected")),
    ],
)
def test_presets_choose_and_explicit_options_win(compat: str, options: tuple[str, str, str]) -> None:
    emb = table()
    opt = ge.SparseAdam([emb], lr=0.1, compat=compat)
    saved = opt.state_dict()["options"]
    assert (saved["merge"], saved["clock"], saved["eps_placement"]) == options
    opt.close()
    opt = ge.SparseAdam([emb], lr=0.1, compat=compat, merge="mean", bias_correction="row")
    saved = opt.state_dict()["options"]
    assert (saved["merge"], saved["clock"], saved["eps_placement"]) == ("mean", "row", options[2])


def test_compat_fbgemm_adam_is_fbgemms_formula() -> None:
    """w -= lr * m_hat / (sqrt(v_hat) + eps) on the summed gradient, with the table's clock (FBGEMM 1.8)."""
    emb = ge.DistEmbedding(2, 1, dtype=torch.float64)
    opt = ge.SparseAdam([emb], lr=0.1, eps=0.5, compat="fbgemm")
    for ids in ([0], [0, 1, 1]):
        feed(emb, np.array(ids), np.full((len(ids), 1), 2.0))
        opt.step()
    m, v = 0.1 * 4.0 / (1 - 0.9**2), 0.001 * 16.0 / (1 - 0.999**2)
    assert emb.weight[1].item() == pytest.approx(-0.1 * m / (math.sqrt(v) + 0.5), rel=1e-9)
