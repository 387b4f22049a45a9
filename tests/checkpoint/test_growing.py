"""Checkpoints of growing tables: the same bits at any number of ranks before and after; misfits are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, ModeError
from graph_emb.graph.original_ids import ArrayIds
from partition.partitioned import PartPolicy
from tests.growing_oracle import INIT, placed
from tests.ranks import Ranks
from tests.transport.test_growing_ranks import DIM, grads_of, ids_of, same

POLICIES: dict[str, Any] = {
    "admission": ge.SeenAtLeast(2, candidate_steps=5, max_candidates=15),
    "eviction": ge.LeastUsed(max_rows=18, low_water=0.8, half_life=6),
}
STAYS: dict[str, Any] = {"admission": None}
CHANGE, END, SHIFT = 7, 14, 1
KNOWN = PartPolicy("node~_N", ge.RangeBook([0, 9, 20, 30]), ArrayIds(np.arange(29, -1, -1), 30))


def make(
    max_rows: int = 60, name: str = "growing", owners: Any = None, **policies: Any
) -> tuple[ge.DistEmbedding, ge.SparseOptimizer]:
    emb = ge.DistEmbedding(ge.growing(max_rows), DIM, name, INIT, owners, dtype=torch.float64, **(policies or POLICIES))
    return emb, ge.SparseAdam([emb], lr=0.1)


def train(
    shares: list[list[int]],
    first: int,
    last: int,
    load: str | None,
    save: str | None,
    owners: Any = None,
    folder: str | None = None,
) -> dict[str, Any]:
    """Steps [first, last) with the batches of shares[rank], after a load and before a save; rows are demoted to a
    folder, or stay."""
    ge.init(mode="collective" if len(shares) > 1 else "local")
    try:
        demoted = {"eviction": ge.LeastRecent(max_rows=8, low_water=0.5), "on_evict": "demote"}
        emb, opt = make(owners=owners, **(POLICIES if folder is None else placed(demoted, folder) if folder else STAYS))
        if load:
            ge.load_checkpoint(load, tables=[emb], optimizers=[opt])
        mine = shares[emb.transport.rank]
        for step in range(first, last):
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids_of(step, rank, SHIFT) for rank in mine)])
            grads = torch.cat([torch.empty(0, DIM, dtype=torch.float64), *(grads_of(step, rank) for rank in mine)])
            emb(ids).backward(grads)
            opt.step()
        if save:
            ge.save_checkpoint(save, tables=[emb], optimizers=[opt], step=last)
        ids = emb.ids()
        state = {k: v[ids] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}
        return {"ids": ids, "rows": emb.weight[ids], "step": emb.shard.step, **state}
    finally:
        ge.shutdown()


LAYOUTS = {1: [[0, 1, 2, 3]], 2: [[0, 1], [2, 3]], 3: [[0], [1, 2], [3]]}


@pytest.mark.dist
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_a_run_goes_on_with_the_same_bits_at_another_number_of_ranks(
    ranks: Ranks, tmp_path: Path, before: int, after: int
) -> None:
    place = str(tmp_path / "7")

    def run(world: int, *args: Any) -> dict[str, Any]:
        shares = LAYOUTS[world]
        return train(shares, *args) if world == 1 else ranks.run(train, world, shares, *args)[0]

    expected = train(LAYOUTS[1], 0, END, None, None)
    assert len(expected["ids"]) > 8
    run(before, 0, CHANGE, None, place, KNOWN if before < after else None)
    assert same(run(after, CHANGE, END, place, None, KNOWN if before > after else None), expected)


@pytest.mark.dist
@pytest.mark.parametrize(("before", "after", "first"), [(1, 2, "demoted"), (2, 1, "stay"), (3, 1, "demoted")])
def test_a_run_with_demoted_rows_goes_on_from_one_without_and_back(
    ranks: Ranks, tmp_path: Path, before: int, after: int, first: str
) -> None:
    place, folders = str(tmp_path / "7"), [str(tmp_path / "rows"), ""][:: 1 if first == "demoted" else -1]

    def run(world: int, *args: Any) -> dict[str, Any]:
        shares = LAYOUTS[world]
        return train(shares, *args) if world == 1 else ranks.run(train, world, shares, *args)[0]

    expected = train(LAYOUTS[1], 0, END, None, None, None, "")
    assert len(expected["ids"]) > 20
    run(before, 0, CHANGE, None, place, None, folders[0])
    assert same(run(after, CHANGE, END, place, None, None, folders[1]), expected)


pytestmark = pytest.mark.usefixtures("fresh_mode")


def test_a_background_checkpoint_of_demoted_rows_is_refused_before_it_copies_them(tmp_path: Path) -> None:
    emb, opt = make(**placed({"eviction": ge.Unused(1), "on_evict": "demote"}, tmp_path / "rows"))
    with pytest.raises(ConfigError, match="background=True: the rows of table 'growing' would be copied into memory"):
        ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], background=True)
    assert not (tmp_path / "1").exists()


def test_a_checkpoint_is_read_into_the_file(tmp_path: Path) -> None:
    emb, place = saved(tmp_path)
    ids, rows = emb.ids(), emb.weight[emb.ids()]
    ge.shutdown()
    emb, opt = make(**placed({"eviction": ge.Unused(9), "on_evict": "demote"}, tmp_path / "rows"))
    emb.grow([2**50])
    ge.load_checkpoint(place, tables=[emb], optimizers=[opt])
    assert len(emb.shard.live) == 0
    assert torch.equal(emb.ids(), ids)
    assert torch.equal(emb.weight[ids], rows)
    ge.load_checkpoint(place, tables=[emb], weights_only=True)
    opt.update(ids[:1], torch.zeros(1, DIM, dtype=torch.float64), emb)
    assert not emb.optm_state["exp_avg_sq"][ids].any()


def saved(folder: Path, steps: int = 6) -> tuple[ge.DistEmbedding, Path]:
    emb, opt = make()
    for step in range(steps):
        opt.update(ids_of(step, 0), grads_of(step, 0), emb)
    ge.save_checkpoint(folder / "6", tables=[emb], optimizers=[opt])
    return emb, folder / "6"


def test_a_table_that_has_rows_already_takes_those_of_the_checkpoint_alone(tmp_path: Path) -> None:
    emb, place = saved(tmp_path)
    ids, rows = emb.ids(), emb.weight[emb.ids()]
    ge.shutdown()
    emb, opt = make()
    emb.grow([2**50, int(ids[0])])
    emb.freeze([int(ids[0])])
    ge.load_checkpoint(place, tables=[emb], optimizers=[opt])
    assert torch.equal(emb.ids(), ids)
    assert torch.equal(emb.weight[ids], rows)
    opt.update(ids[:2], torch.ones(2, DIM, dtype=torch.float64), emb)
    assert torch.equal(emb.weight[ids[:1]], rows[:1])  # frozen still
    assert not torch.equal(emb.weight[ids[1:2]], rows[1:2])


def test_candidates_beyond_the_limit_of_the_table_that_loads_them_leave_after_its_next_step(tmp_path: Path) -> None:
    emb, opt = make(admission=ge.SeenAtLeast(3))
    for ids in ([1, 2, 3, 4, 5], [2]):
        opt.update(ids, torch.ones(len(ids), DIM, dtype=torch.float64), emb)
    ge.save_checkpoint(tmp_path / "2", tables=[emb], optimizers=[opt])
    del emb, opt
    ge.shutdown()
    emb, opt = make(admission=ge.SeenAtLeast(3, max_candidates=4))
    ge.load_checkpoint(tmp_path / "2", tables=[emb], optimizers=[opt])
    assert list(emb.shard.ending(emb.shard.step)) == []  # a barrier before that step
    assert emb.shard.candidates()["ids"].tolist() == [1, 2, 3, 4, 5]
    opt.update([1], torch.ones(1, DIM, dtype=torch.float64), emb)
    assert emb.shard.candidates()["ids"].tolist() == [1, 2, 5]


def test_a_background_checkpoint_has_the_rows_of_its_step(tmp_path: Path) -> None:
    emb, opt = make(admission=ge.SeenAtLeast(2))
    for step in range(4):
        opt.update(ids_of(step, 0), grads_of(step, 0), emb)
    ids, rows = emb.ids(), emb.weight[emb.ids()]
    pending = ge.save_checkpoint(tmp_path / "4", tables=[emb], optimizers=[opt], background=True)
    opt.update(ids_of(5, 0), grads_of(5, 0), emb)
    pending.wait()
    ge.load_checkpoint(tmp_path / "4", tables=[emb], optimizers=[opt])
    assert torch.equal(emb.ids(), ids)
    assert torch.equal(emb.weight[ids], rows)


def test_a_fixed_checkpoint_loads_into_a_growing_table_and_back(tmp_path: Path) -> None:
    fixed = ge.DistEmbedding(5, DIM, "node", INIT, dtype=torch.float64)
    ge.SparseSGD([fixed], lr=0.1).update([1, 3], torch.ones(2, DIM, dtype=torch.float64), fixed)
    ge.save_checkpoint(tmp_path / "fixed", tables=[fixed])
    rows = fixed.weight[:]
    del fixed
    ge.shutdown()
    growing = ge.DistEmbedding(ge.growing(9), DIM, "node", INIT, dtype=torch.float64)
    ge.load_checkpoint(tmp_path / "fixed", tables=[growing])
    assert growing.ids().tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(growing.weight[[0, 1, 2, 3, 4]], rows)
    growing.grow([5])
    ge.save_checkpoint(tmp_path / "grown", tables=[growing])
    ge.shutdown()
    fixed = ge.DistEmbedding(6, DIM, "node", dtype=torch.float64)
    ge.load_checkpoint(tmp_path / "grown", tables=[fixed])
    assert torch.equal(fixed.weight[:5], rows)


def test_an_export_has_the_ids_that_have_rows_however_far_apart(tmp_path: Path) -> None:
    emb = ge.DistEmbedding(ge.growing(9), 2, "node", INIT)
    emb.grow([-(2**63), 7, 2**63 - 1, 12])
    ge.save_checkpoint(tmp_path / "1", tables=[emb])
    from graph_emb.checkpoint.reader import Checkpoint

    reader = Checkpoint(tmp_path / "1").table("node")
    pieces = list(reader.pieces(most=40))
    assert len(pieces) > 1
    assert torch.cat([piece["ids"] for piece in pieces]).tolist() == [-(2**63), 7, 12, 2**63 - 1]
    assert torch.equal(torch.cat([piece["weight"] for piece in pieces]), emb.weight[[-(2**63), 7, 12, 2**63 - 1]])


def test_a_smaller_table_a_damaged_file_and_other_ways_to_save_are_refused(tmp_path: Path) -> None:
    emb, place = saved(tmp_path)
    num = emb.num_rows
    del emb
    ge.shutdown()
    small, opt = make(max_rows=num - 1, eviction=ge.Unused(5))
    with pytest.raises(ConfigError, match=rf"has {num} rows, the table here max_rows={num - 1}"):
        ge.load_checkpoint(place, tables=[small], optimizers=[opt])
    assert small.num_rows == 0
    for save in (lambda: opt.save(tmp_path / "optimizer"), lambda: opt.load_state_dict(opt.state_dict())):
        with pytest.raises(ModeError, match="table 'growing' grows"):
            save()
    (file,) = (place / "tables" / "growing").glob("*candidates*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="candidates"):
        ge.load_checkpoint(place, tables=[small], optimizers=[opt])


def test_state_dict_holds_the_rows_that_are_there() -> None:
    emb, opt = make(admission=ge.SeenAtLeast(1))
    opt.update([5, -5, 5], torch.ones(3, DIM, dtype=torch.float64), emb)
    state = opt.state_dict()["state"]["growing"]
    assert state["exp_avg"].shape == (2, DIM)
    assert np.allclose(state["exp_avg"][0] * 2, state["exp_avg"][1])
