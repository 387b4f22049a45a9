"""Checkpoints and deltas of growing tables at DGL's servers go on in every mode and layout with the same bits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.core.errors import GraphEmbError
from tests.checkpoint.test_deltas import contents, equal
from tests.growing_oracle import INIT, placed
from tests.transport.kvstore.cluster import Cluster
from tests.transport.kvstore.test_growing import DIM, STEPS, check_same, locally, share

pytestmark = pytest.mark.dist

SAVED: dict[str, Any] = {
    "admission": ge.SeenAtLeast(2, candidate_steps=5, max_candidates=12),
    "eviction": ge.LeastUsed(max_rows=18, low_water=0.8, half_life=6),
}


DEMOTED: dict[str, Any] = {"eviction": ge.LeastRecent(max_rows=9, low_water=0.5), "on_evict": "demote"}


def go_on(
    transport: Any,
    ranks: list[int],
    world_size: int,
    steps: tuple[int, int],
    load: str | None,
    save: str | None,
    folder: str | None = None,
) -> dict[str, Any]:
    """Steps [first, last) with the given trainers' shares, after a load and before a save; rows leave for a folder, or,
    where it has no name, stay."""
    policies = SAVED if folder is None else placed(DEMOTED, folder) if folder else {}
    emb = ge.DistEmbedding(ge.growing(60), DIM, "growing", INIT, dtype=torch.float64, **policies)
    opt = ge.SparseAdam([emb], lr=0.1, weight_decay=0.1)
    if load:
        ge.load_checkpoint(load, tables=[emb], optimizers=[opt])
    for step in range(*steps):
        ids, grads = (torch.cat(column) for column in zip(*(share(step, r, world_size) for r in ranks), strict=True))
        opt.update(ids, grads, emb)
        transport.flush()
        transport.barrier()
    if save:
        saved = ge.save_checkpoint(save, tables=[emb], optimizers=[opt], step=steps[1], background=folder is None)
        if folder is None:
            saved.wait()
    ids = emb.ids()
    state = {k: v[ids] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}
    return {"ids": ids, "rows": emb.weight[ids], "step": emb.shard.step, **state}


def go_on_as_rank(transport: Any, *args: Any) -> dict[str, Any]:
    return go_on(transport, [transport.rank], transport.world_size, *args)


@pytest.mark.parametrize("way", ["from servers", "to servers", "between servers"])
def test_a_checkpoint_goes_on_in_another_mode_with_the_same_bits(tmp_path: Path, way: str) -> None:
    expected = locally(go_on, [0, 1], 2, (0, STEPS), None, None)
    assert len(expected["ids"]) > 8
    place = str(tmp_path / "7")

    def first_half(*args: Any) -> None:
        Cluster(2, 1, 2).run(go_on_as_rank, *args) if way != "to servers" else locally(go_on, [0, 1], 2, *args)

    first_half((0, 7), None, place)
    if way == "from servers":
        found = [locally(go_on, [0, 1], 2, (7, STEPS), place, None)]
    else:
        found = Cluster(2, 2, 2).run(go_on_as_rank, (7, STEPS), place, None)
    for one in found:
        check_same(one, expected)


def test_demoted_rows_of_servers_go_on_at_others_and_in_local_mode(tmp_path: Path) -> None:
    expected = locally(go_on, [0, 1], 2, (0, STEPS), None, None, "")
    assert len(expected["ids"]) > 30
    place = str(tmp_path / "7")
    Cluster(2, 1, 2).run(go_on_as_rank, (0, 7), None, place, str(tmp_path / "rows"))
    check_same(locally(go_on, [0, 1], 2, (7, STEPS), place, None, ""), expected)
    for one in Cluster(2, 2, 2).run(go_on_as_rank, (7, STEPS), place, None, str(tmp_path / "more")):
        check_same(one, expected)


def save_chain(
    transport: Any, folder: str, numbers: list[int], load: str | None, shares: list[int] | None = None
) -> str:
    """Save ``numbers`` of a chain of three steps each, and a full twin of the last one; trains all given shares.

    Returns:
        The error of a delta that follows the one before the last.
    """
    emb = ge.DistEmbedding(ge.growing(60), DIM, "growing", INIT, dtype=torch.float64, **SAVED)
    fixed = ge.DistEmbedding(20, 2, "fixed", INIT, dtype=torch.float64)
    opt, other = ge.SparseAdam([emb], lr=0.1), ge.SparseAdagrad([fixed], lr=0.1)
    everything: dict[str, Any] = {"tables": [emb, fixed], "optimizers": [opt, other]}
    ranks = shares or [transport.rank]
    places = [] if load is None else [Path(load)]
    if load is not None:
        ge.load_checkpoint(load, **everything)
    for number in numbers:
        for step in range(3 * number, 3 * number + 3):
            ids, grads = (torch.cat(column) for column in zip(*(share(step, r, 2) for r in ranks), strict=True))
            opt.update(ids, grads, emb)
            other.update([5 * number + rank for rank in ranks], torch.ones(len(ranks), 2, dtype=torch.float64), fixed)
            transport.flush()
            transport.barrier()
        if number == 2 and 0 in ranks:
            emb.weight[[-100]] = torch.ones(1, DIM, dtype=torch.float64)
        base = places[-1] if places else None
        places.append(ge.save_checkpoint(Path(folder, str(number)), **everything, base=base))
    ge.save_checkpoint(Path(folder, f"full {numbers[-1]}"), **everything)
    try:
        ge.save_checkpoint(Path(folder, "late"), **everything, base=places[-1])
    except GraphEmbError as error:
        return str(error)
    return ""


def test_a_base_and_deltas_of_servers_are_the_full_save(tmp_path: Path) -> None:
    """The chain begins at two servers, goes on at four, and ends in one process."""
    one, many = str(tmp_path / "one"), tmp_path / "many"
    assert "what changed" in locally(save_chain, one, [0, 1, 2, 3], None, [0, 1])
    for said in Cluster(2, 1, 2).run(save_chain, str(many), [0, 1], None):
        assert "what changed in table 'growing' since that checkpoint is not known" in said
    base, first = many / "0", many / "1"
    assert equal(contents(ge.merge_checkpoints(base, [first], many / "merged")), contents(many / "full 1"))
    Cluster(2, 2, 2).run(save_chain, str(many), [2], str(first))
    second = many / "2"
    assert equal(contents(ge.merge_checkpoints(base, [first, second], many / "merged")), contents(many / "full 2"))
    locally(save_chain, str(many), [3], str(second), [0, 1])
    merged = contents(ge.merge_checkpoints(base, [first, second, many / "3"], many / "merged"))
    assert equal(merged, contents(tmp_path / "one" / "full 3"))
    entries = [Checkpoint(place).manifest.tables for place in (first, second)]
    assert any(entry["growing"].growth.delta.gone for entry in entries)
    assert [entry["fixed"].num_rows for entry in entries] == [2, 2]


def pushed_early(transport: Any, folder: str) -> None:
    """The first trainer pushes to both servers at once after a save, while the second one is slow to end it."""
    emb = ge.DistEmbedding(ge.growing(40), 1, "growing")
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.grow(torch.arange(40))
    pushed = Path(folder, "pushed")
    if transport.rank == 1:
        track = transport.track

        def slowly(*args: Any) -> None:
            until = time.monotonic() + 0.5
            while not pushed.exists() and time.monotonic() < until:
                time.sleep(0.01)
            track(*args)

        transport.track = slowly
    base = ge.save_checkpoint(Path(folder, "0"), tables=[emb], optimizers=[opt])
    if transport.rank == 0:
        opt.update(torch.arange(40), torch.ones(40, 1), emb)
        transport.flush()
        pushed.touch()
    transport.__dict__.pop("track", None)
    ge.save_checkpoint(Path(folder, "1"), tables=[emb], optimizers=[opt], base=base)


def test_a_push_right_after_a_save_is_in_the_next_delta(tmp_path: Path) -> None:
    Cluster(2, 1, 2).run(pushed_early, str(tmp_path))
    assert Checkpoint(tmp_path / "1").manifest.tables["growing"].num_rows == 40


def load_frozen(transport: Any, folder: str) -> list[float]:
    emb = ge.DistEmbedding(ge.growing(9), 1, "growing")
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.grow(list(range(6)))
    base = ge.save_checkpoint(f"{folder}/0", tables=[emb], optimizers=[opt])
    emb.freeze([1, 4, 8])
    ge.load_checkpoint(base, tables=[emb], optimizers=[opt])
    opt.update(list(range(6)), torch.ones(6, 1), emb)
    return emb.weight[list(range(6))].flatten().tolist()


def test_rows_that_are_frozen_stay_so_when_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    (found,) = Cluster(1, 1, 2).run(load_frozen, str(tmp_path))
    assert found == [-1, 0, -1, -1, 0, -1]
