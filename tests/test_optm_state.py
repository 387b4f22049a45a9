"""``emb.optm_state``: state of rows by the ids of the whole table, read and written in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.runtime import current
from tests.ranks import Ranks
from tests.test_dgl_surface import DIM, NUM, in_mode, table
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

MODES = ["local", "collective", "kvstore", "two machines"]


def on_modes(ranks: Ranks, mode: str, function: Callable[..., Any], *args: Any) -> list[Any]:
    return Cluster(2, 2, 2).run(function, *args) if mode == "two machines" else in_mode(ranks, mode, function, *args)


def meet(transport: Any) -> None:
    transport.flush()
    transport.barrier()


def step_once(transport: Any, emb: Any, opt: Any) -> None:
    """Gradients of row k are k: each process has its own rows."""
    ids = torch.arange(NUM)[transport.rank :: transport.world_size]
    emb(ids).backward(ids.double().unsqueeze(1).expand(-1, DIM))
    opt.step()


def written_and_read(transport: Any) -> tuple[Tensor, ...]:
    """State after a step, after writes of ids of all processes, and after a further step."""
    transport = transport or current()
    emb = table("t")
    opt = ge.SparseAdam([emb], lr=0.1, bias_correction="row")
    step_once(transport, emb, opt)
    asked = [*range(transport.rank, NUM, transport.world_size), transport.rank]
    own = emb.optm_state["exp_avg"][asked]  # this process's steps are there without a flush
    first = opt._state["t"]
    assert [piece.name for piece in first] == ["t_step", "t_exp_avg", "t_exp_avg_sq"]
    assert [piece.shape for piece in first] == [(NUM,), (NUM, DIM), (NUM, DIM)]
    meet(transport)
    before = emb.optm_state["exp_avg_sq"][::-1]
    meet(transport)
    if transport.rank == 0:
        emb.optm_state["step"][[11, 2]] = torch.tensor([7, 9])
        emb.optm_state["exp_avg"][1:9] = torch.arange(8.0).unsqueeze(1)
    elif transport.lockstep:
        emb.optm_state["step"][[]] = 0
        emb.optm_state["exp_avg"][[]] = 0.0
    meet(transport)
    step_once(transport, emb, opt)
    meet(transport)
    found = before, emb.optm_state["step"][:], emb.optm_state["exp_avg"][:], own
    assert emb.optm_state["step"][11] == found[1][11]
    assert emb.optm_state["exp_avg"].count_nonzero() == found[2].count_nonzero()
    meet(transport)
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_state_is_read_and_written_by_the_ids_of_the_table(ranks: Ranks, mode: str) -> None:
    """It was the tensors of each process: ids of the whole table read the rows of others, in silence."""
    steps = torch.full((NUM,), 2.0)
    steps[11], steps[2] = 8, 10
    grads = torch.arange(float(NUM), dtype=torch.float64)
    moments = 0.1 * grads
    moments[1:9] = torch.arange(8.0)
    for before, step, moment, own in on_modes(ranks, mode, written_and_read):
        assert before.flip(0)[:, 0].tolist() == pytest.approx((0.001 * grads.square()).tolist())
        assert step.tolist() == steps.tolist()
        assert moment[:, 1].tolist() == pytest.approx((0.9 * moments + 0.1 * grads).tolist())
        first = 0 if own[0, 0] == 0 else 1
        asked = grads[first :: NUM // (len(own) - 1)]
        assert own[:, 2].tolist() == pytest.approx([*(0.1 * asked).tolist(), 0.1 * first])


def rows_of_frozen_and_lazy(transport: Any) -> tuple[float, float, float]:
    """A frozen row's sum after a write; a lazily decaying row before and after its bookkeeping is written."""
    transport = transport or current()
    frozen, lazy = table("frozen"), table("lazy")
    one = ge.SparseAdagrad([frozen], lr=0.1)
    two = ge.SparseSGD([lazy], lr=0.1, weight_decay=0.5, weight_decay_mode="lazy")
    frozen.freeze([8])
    frozen.optm_state["sum"][8 if transport.rank or not transport.lockstep else []] = 5.0
    for emb, opt in ((frozen, one), (lazy, two)):
        emb(torch.tensor([8, 1])).sum().backward()
        opt.step()
        emb(torch.tensor([1])).sum().backward()
        opt.step()
    meet(transport)
    before = lazy.weight[8]
    meet(transport)
    (name,) = (name for name, piece in lazy.optm_state.items() if not isinstance(piece, Tensor))
    now = lazy.optm_state[name][1]
    meet(transport)
    lazy.optm_state[name][8 if transport.rank or not transport.lockstep else []] = float(now)
    meet(transport)
    found = float(frozen.optm_state["sum"][8][0]), float(before[0]), float(lazy.weight[8][0])
    meet(transport)
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_writes_reach_frozen_rows_and_keep_rows_that_decay(ranks: Ranks, mode: str) -> None:
    for total, before, after in on_modes(ranks, mode, rows_of_frozen_and_lazy):
        assert total == 5.0
        assert after == pytest.approx(before, rel=1e-12)


def reads_of_two_pieces(transport: Any) -> str:
    opt = ge.SparseAdam([table("t")], lr=0.1)
    piece = opt.tables["t"].optm_state["exp_avg" if transport.rank else "exp_avg_sq"]
    with pytest.raises(ge.PeerError) as error:
        piece[[0]]
    return str(error.value)


@pytest.mark.dist
def test_ranks_that_read_different_state_are_told(ranks: Ranks) -> None:
    found = in_mode(ranks, "collective", reads_of_two_pieces)
    assert "rank 0 is in read of exp_avg_sq of table 't', rank 1 in that of another one" in found[0]


def test_what_does_not_fit_is_refused_before_a_row_changes() -> None:
    emb = table("t")
    assert emb.optm_state == {}
    opt = ge.SparseAdam([emb], lr=0.1, bias_correction="row")
    steps, moments = emb.optm_state["step"], emb.optm_state["exp_avg"]
    with pytest.raises(ge.PartitionError, match="id 12 is outside"):
        moments[[0, NUM]] = 1.0
    with pytest.raises(ge.ShapeError, match=r"'t_exp_avg': values have shape \(2, 2\); expected \(2, 3\)"):
        moments[[0, 1]] = torch.ones(2, 2)
    with pytest.raises(ge.ShapeError, match=r"values have shape \(3,\); expected \(2,\)"):
        steps[np.array([0, 1])] = [1, 2, 3]
    with pytest.raises(ge.ShapeError, match="assigned twice"):
        steps[[1, 1]] = 2
    assert moments.count_nonzero() == steps.count_nonzero() == 0
    opt.close()
    with pytest.raises(ge.ModeError, match="table 't': its optimizer, which kept step, was closed"):
        steps[[0]] = 1


def test_a_clock_of_the_whole_table_is_the_tensor_of_this_process() -> None:
    emb = table("t")
    opt = ge.SparseAdam([emb], lr=0.1, bias_correction="global")
    emb.optm_state["step"].fill_(4)
    emb([1]).sum().backward()
    opt.step()
    assert emb.optm_state["step"].tolist() == [5]
    assert [piece.name for piece in opt._state["t"]] == ["t_exp_avg", "t_exp_avg_sq"]
    row_wise = ge.SparseRowAdagrad([table("u")], lr=0.1)
    assert row_wise._state["u"].shape == (NUM,)
