"""A base and its deltas are a full save, bit for bit; a chain that is not whole is refused by the name of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.partition_book import RangeBook
from tests.growing_oracle import INIT, placed
from tests.ranks import Ranks
from tests.transport.test_growing_ranks import DIM, grads_of, ids_of

POLICIES: dict[str, dict[str, Any]] = {
    "all stay": {},
    "admission and halvings": {
        "admission": ge.SeenAtLeast(2, candidate_steps=5, max_candidates=12),
        "eviction": ge.LeastUsed(max_rows=14, low_water=0.7, half_life=3),
    },
    "unused": {"eviction": ge.Unused(2)},
    "demoted": {"eviction": ge.LeastUsed(max_rows=8, low_water=0.5, half_life=4), "on_evict": "demote"},
}
EVERY = 3


def make(
    policy: str, kind: str = "SparseAdam", folder: Path | str = "", **numbers: Any
) -> tuple[ge.DistEmbedding, ge.SparseOptimizer]:
    options = placed(POLICIES[policy], Path(folder, "rows"))
    emb = ge.DistEmbedding(ge.growing(60), DIM, "growing", INIT, dtype=torch.float64, **options)
    return emb, getattr(ge, kind)([emb], lr=0.1, **numbers)


def contents(place: Path) -> dict[str, Any]:
    """All that a full checkpoint has of the table and of a fixed one beside it."""
    checkpoint = Checkpoint(place)
    checkpoint.verify()
    found: dict[str, Any] = {}
    for name, entry in checkpoint.manifest.tables.items():
        reader = checkpoint.table(name)
        found[name] = reader.rows(-(2**63), 2**63 - 1, reader.columns), entry.numbers, entry.num_rows
        found[name + " clocks"] = {key: state.values for key, state in entry.state.items()}
        if entry.growth:
            waiting = [place / file.name for file in entry.growth.candidates]
            found[name + " growth"] = entry.growth.step, [path.read_bytes() for path in waiting]
    return found


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def chain(folder: Path, policy: str, seed: int, kind: str = "SparseAdam", **numbers: Any) -> list[Path]:
    """A base, deltas of random programs after it, and beside each delta a full save of the same moment."""
    rng = np.random.default_rng(seed)
    emb, opt = make(policy, kind, folder, **numbers)
    fixed = ge.DistEmbedding(5, 2, "fixed", dtype=torch.float64)
    everything: dict[str, Any] = {"tables": [emb, fixed], "optimizers": [opt]}
    step, places = 0, []
    for number in range(5):
        for _ in range(int(rng.integers(0, 5))):
            match rng.integers(0, 8):
                case 0:
                    emb.grow(rng.integers(-50, 50, 3))
                case 1:
                    emb.weight[[int(rng.integers(-9, 9))]] = torch.full((1, DIM), float(step), dtype=torch.float64)
                case 2:
                    emb.reset_rows(emb.ids()[:2])
                case 3 if POLICIES[policy].get("eviction"):
                    emb.evict()
                case 4 if len(emb.ids()):
                    state = next(value for value in emb.optm_state.values() if not isinstance(value, Tensor))
                    state[emb.ids()[-1:]] = torch.ones_like(state[emb.ids()[-1:]])
                case _:
                    opt.update(ids_of(step, seed % 4), grads_of(step, seed % 4), emb)
            step += 1
            fixed.weight[[0]] = torch.full((1, 2), float(step), dtype=torch.float64)
        base = places[-1] if places else None
        places.append(ge.save_checkpoint(folder / str(number), **everything, step=step, base=base))
        since = emb.shard.since
        ge.save_checkpoint(folder / f"full{number}", **everything, step=step)
        emb.shard.track(since)  # nothing changed between the two saves
    return places


pytestmark = pytest.mark.usefixtures("fresh_mode")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_base_and_deltas_are_the_full_save(tmp_path: Path, policy: str, seed: int) -> None:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("SparseAdam", {}), ("SparseRowAdagrad", {}), ("SparseSGD", {"weight_decay": 0.1, "momentum": 0.5}),
    ]  # fmt: skip
    kind, numbers = kinds[seed % 3]
    places = chain(tmp_path, policy, seed, kind, **numbers)
    for number in range(1, len(places)):
        merged = ge.merge_checkpoints(places[0], places[1 : number + 1], tmp_path / "merged")
        assert equal(contents(merged), contents(tmp_path / f"full{number}"))
    ge.shutdown()
    emb, opt = make(policy, kind, tmp_path, **numbers)
    fixed = ge.DistEmbedding(5, 2, "fixed", dtype=torch.float64)
    everything: dict[str, Any] = {"tables": [emb, fixed], "optimizers": [opt]}
    loaded = ge.load_checkpoint(places[-1], **everything)
    ge.save_checkpoint(tmp_path / "again", **everything, step=loaded.step)
    assert equal(contents(tmp_path / "again"), contents(tmp_path / "full4"))
    # A run that was loaded goes on with deltas.
    ge.load_checkpoint(places[-1], **everything)
    opt.update([1, 2], torch.ones(2, DIM, dtype=torch.float64), emb)
    more = ge.save_checkpoint(tmp_path / "more", **everything, base=places[-1])
    merged = ge.merge_checkpoints(places[0], [*places[1:], more], tmp_path / "merged")
    ge.save_checkpoint(tmp_path / "whole", **everything)
    assert equal(contents(merged), contents(tmp_path / "whole"))


def test_each_defect_of_a_chain_is_named(tmp_path: Path) -> None:
    base, *deltas = chain(tmp_path / "a", "unused", 1)
    other, *others = chain(tmp_path / "b", "unused", 2)
    for given, match in (
        ([deltas[1]], r"a/2 is delta 2 of .*a/0, and number 1 has to come: one before it is missing"),
        ([deltas[0], deltas[2]], r"a/3 is delta 3 of .*, and number 2 has to come: one before it is missing"),
        ([deltas[0], deltas[0]], r"a/1 is delta 1 of .*, and number 2 has to come: it was given already"),
        ([deltas[1], deltas[0]], r"a/2 is delta 2"),
        ([others[0]], r"b/1 is a delta of another base than .*a/0"),
        ([other], r"b/0 is a full checkpoint and no delta"),
    ):
        with pytest.raises(DataError, match=match):
            ge.merge_checkpoints(base, given, tmp_path / "merged")
    with pytest.raises(DataError, match=r"a/1 is itself a delta, number 1"):
        ge.merge_checkpoints(deltas[0], deltas[1:], tmp_path / "merged")
    with pytest.raises(ConfigError, match="no delta is given"):
        ge.merge_checkpoints(base, [], tmp_path / "merged")
    with pytest.raises(ConfigError, match="deltas is one path; give a list"):
        ge.merge_checkpoints(base, str(deltas[0]), tmp_path / "merged")
    with pytest.raises(ConfigError, match="is one of the checkpoints that are merged"):
        ge.merge_checkpoints(base, deltas, deltas[1])
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ConfigError, match="a/2 is a delta and has those rows of table 'growing' alone that changed"):
        ge.export_checkpoint(deltas[1], tmp_path / "out", table="growing")


def test_a_load_needs_every_checkpoint_that_a_delta_follows(tmp_path: Path) -> None:
    _, *deltas = chain(tmp_path, "unused", 1)
    ge.shutdown()
    emb, opt = make("unused")
    fixed = ge.DistEmbedding(5, 2, "fixed", dtype=torch.float64)
    everything: dict[str, Any] = {"tables": [emb, fixed], "optimizers": [opt]}
    shutil.move(deltas[0], tmp_path / "away")
    with pytest.raises(DataError, match=r"2 is a delta that follows .*/1, which is missing"):
        ge.load_checkpoint(deltas[1], **everything)
    shutil.copytree(tmp_path / "full1", deltas[0])
    with pytest.raises(DataError, match=r"2 is a delta that follows another checkpoint '1' than .*/1"):
        ge.load_checkpoint(deltas[1], **everything)
    shutil.rmtree(deltas[0])
    shutil.move(tmp_path / "away", deltas[0])
    file = next((deltas[0] / "tables" / "growing").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"1/tables/growing/.*: checksum"):
        ge.load_checkpoint(deltas[1], **everything)


def test_what_a_delta_cannot_follow_is_said(tmp_path: Path) -> None:
    emb, opt = make("all stay")
    opt.update([1], torch.ones(1, DIM, dtype=torch.float64), emb)
    everything: dict[str, Any] = {"tables": [emb], "optimizers": [opt]}
    first = ge.save_checkpoint(tmp_path / "1", **everything)
    second = ge.save_checkpoint(tmp_path / "2", **everything)
    for base, path, match in (
        (first, tmp_path / "3", "what changed in table 'growing' since that checkpoint is not known"),
        (second, tmp_path / "deep" / "3", "a delta lies beside its base"),
        (second, second, "under another name than '2'"),
    ):
        with pytest.raises(ConfigError, match=match):
            ge.save_checkpoint(path, **everything, base=base)
    with pytest.raises(ConfigError, match="background=True with base"):
        ge.save_checkpoint(tmp_path / "3", **everything, base=second, background=True)
    fixed = ge.DistEmbedding(5, 2, "fixed")
    place = ge.save_checkpoint(tmp_path / "4", tables=[fixed])
    with pytest.raises(ConfigError, match="has no table 'growing'; save a full checkpoint first"):
        ge.save_checkpoint(tmp_path / "5", tables=[emb], base=place)
    ge.load_checkpoint(second, **everything, weights_only=False)
    opt.close()
    ge.SparseSGD([emb], lr=0.1)
    with pytest.raises(ConfigError, match=r"has table 'growing' with state .*exp_avg.*, it has \{\} now"):
        ge.save_checkpoint(tmp_path / "5", tables=[emb], base=second)


def test_older_checkpoints_that_a_delta_follows_stay(tmp_path: Path) -> None:
    emb, opt = make("all stay")
    places: list[Path] = []
    for step in range(6):
        opt.update([step], torch.ones(1, DIM, dtype=torch.float64), emb)
        base = places[-1] if step % 3 else None  # two chains
        about: dict[str, Any] = {"tables": [emb], "optimizers": [opt], "step": step, "keep_last": 1}
        places.append(ge.save_checkpoint(tmp_path / str(step), **about, base=base))
        assert sorted(path.name for path in tmp_path.iterdir()) == [str(s) for s in range(step // 3 * 3, step + 1)]


def test_a_delta_is_little_more_than_the_rows_that_changed(tmp_path: Path) -> None:
    dim, rows, touched = 128, 4000, 400
    emb = ge.DistEmbedding(ge.growing(rows), dim, "growing", INIT)
    opt = ge.SparseAdagrad([emb], lr=0.1)
    opt.update(torch.arange(rows), torch.ones(rows, dim), emb)
    base = ge.save_checkpoint(tmp_path / "0", tables=[emb], optimizers=[opt])
    opt.update(torch.arange(0, rows, rows // touched), torch.ones(touched, dim), emb)
    place = ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], base=base)
    written = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    assert touched * 2 * 4 * dim < written <= 1.1 * touched * 2 * 4 * dim


def run(shares: list[list[int]], folder: str, numbers: list[int], load: str | None) -> None:
    """Save ``numbers`` of a chain, the first one full where nothing is loaded, and a full twin of the last."""
    ge.init(mode="collective" if len(shares) > 1 else "local")
    try:
        emb, opt = make("admission and halvings")
        everything: dict[str, Any] = {"tables": [emb], "optimizers": [opt]}
        place = None if load is None else Path(load)
        if place:
            ge.load_checkpoint(place, **everything)
        for number in numbers:
            for step in range(number * EVERY, (number + 1) * EVERY):
                mine = shares[emb.transport.rank]
                ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids_of(step, rank) for rank in mine)])
                grads = torch.cat([torch.empty(0, DIM, dtype=torch.float64), *(grads_of(step, rank) for rank in mine)])
                emb(ids).backward(grads)
                opt.step()
            place = ge.save_checkpoint(Path(folder) / str(number), **everything, base=place)
        ge.save_checkpoint(Path(folder) / "full", **everything)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_chain_of_several_numbers_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    layouts = {1: [[0, 1, 2, 3]], 2: [[0, 1], [2, 3]], 3: [[0], [1, 2], [3]]}
    run(layouts[1], str(tmp_path / "one"), [0, 1, 2, 3], None)
    folder = str(tmp_path / "many")
    ranks.run(run, 2, layouts[2], folder, [0, 1], None)
    run(layouts[1], folder, [2], f"{folder}/1")
    ranks.run(run, 3, layouts[3], folder, [3], f"{folder}/2")
    places = [tmp_path / "many" / str(number) for number in range(4)]
    merged = contents(ge.merge_checkpoints(places[0], places[1:], tmp_path / "merged"))
    whole = contents(tmp_path / "one" / "full")
    assert len(whole["growing"][0]["ids"]) > 8
    for found in (merged, whole):  # files of candidates are of ranks
        found["growing growth"] = found["growing growth"][0]
        found["growing clocks"] = {key: set(values or ()) for key, values in found["growing clocks"].items()}
    assert equal(merged, whole)


def test_a_saved_checkpoint_that_cannot_be_read_again_is_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emb, _ = make(next(iter(POLICIES)))
    emb.grow([1, 2])

    def fails(place: Path) -> str:
        raise OSError("Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr("graph_emb.checkpoint.saving.digest_of", fails)
        base = ge.save_checkpoint(tmp_path / "1", tables=[emb], step=1)
    with pytest.raises(ConfigError, match="is not known"):
        ge.save_checkpoint(tmp_path / "2", tables=[emb], step=2, base=base)
    ge.load_checkpoint(base, tables=[emb])
    emb.grow([3])
    ge.load_checkpoint(ge.save_checkpoint(tmp_path / "2", tables=[emb], step=2, base=base), tables=[emb])
    assert emb.ids().tolist() == [1, 2, 3]


def permuted(num: int = 41) -> tuple[ge.DistEmbedding, ge.SparseOptimizer, dict[str, Any]]:
    """A table of a fixed size whose rows lie in another order than their original ids, which are far apart."""
    ids = np.random.default_rng(5).permutation(41)[:num] * 10
    emb = ge.DistEmbedding(num, DIM, "fixed", INIT, dtype=torch.float64, original_ids=torch.from_numpy(ids))
    opt = ge.SparseAdam([emb], lr=0.1)
    return emb, opt, {"tables": [emb], "optimizers": [opt]}


def test_a_delta_of_a_fixed_table_has_the_rows_that_differ(tmp_path: Path) -> None:
    emb, opt, everything = permuted()
    one = torch.ones(1, DIM, dtype=torch.float64)
    changes: list[tuple[Any, set[int]]] = [
        (lambda: opt.update([3, 40, 3], one.repeat(3, 1), emb), {3, 40}),
        (lambda: emb.shard.weight[7].add_(1.0), {7}),  # as models that train in place
        (lambda: opt.update([7], one, emb), {7}),
        (lambda: emb.weight.__setitem__([1], emb.weight[[1]]), set()),  # to what it was
        (lambda: emb.shard.state["exp_avg"][9].add_(1.0), {9}),
    ]
    places = [ge.save_checkpoint(tmp_path / "0", **everything)]
    for number, (change, touched) in enumerate(changes, 1):
        change()
        places.append(ge.save_checkpoint(tmp_path / str(number), **everything, base=places[-1]))
        ge.save_checkpoint(tmp_path / f"full{number}", **everything)
        entry = Checkpoint(places[-1]).manifest.tables["fixed"]
        assert (entry.num_rows, entry.total) == (len(touched), 41)
        saved = Checkpoint(places[-1]).part("fixed").rows(-(2**63), 2**63 - 1)["ids"]
        assert set(saved.tolist()) == set(emb.original_ids.of(0, 41)[sorted(touched)].tolist())
        merged = ge.merge_checkpoints(places[0], places[1:], tmp_path / "merged")
        assert equal(contents(merged), contents(tmp_path / f"full{number}"))
    with pytest.raises(ConfigError, match="5 is a delta and has those rows of table 'fixed' alone that changed"):
        ge.export_checkpoint(places[-1], tmp_path / "out", table="fixed")
    ge.shutdown()
    _, _, everything = permuted()
    ge.load_checkpoint(places[-1], **everything)
    ge.save_checkpoint(tmp_path / "again", **everything)
    assert equal(contents(tmp_path / "again"), contents(tmp_path / "full5"))


def test_rows_that_a_base_lacks_are_in_the_delta_of_a_grown_table(tmp_path: Path) -> None:
    _, _, everything = permuted(30)
    base = ge.save_checkpoint(tmp_path / "0", **everything)
    ge.shutdown()
    emb, opt, everything = permuted()
    ge.load_checkpoint(base, **everything, allow_new_rows=True)
    place = ge.save_checkpoint(tmp_path / "1", **everything, base=base)
    assert Checkpoint(place).manifest.tables["fixed"].num_rows == 11
    ge.save_checkpoint(tmp_path / "full", **everything)
    assert equal(contents(ge.merge_checkpoints(base, [place], tmp_path / "merged")), contents(tmp_path / "full"))
    opt.update([0], torch.ones(1, DIM, dtype=torch.float64), emb)
    assert "0 new" not in str(ge.load_checkpoint(place, **everything).report)
    ge.save_checkpoint(tmp_path / "again", **everything)
    assert equal(contents(tmp_path / "again"), contents(tmp_path / "full"))
    del emb, opt, everything
    ge.shutdown()
    _, _, less = permuted(30)
    with pytest.raises(ConfigError, match="has 41 rows of table 'fixed', it has 30 now"):
        ge.save_checkpoint(tmp_path / "2", **less, base=place)
    ge.shutdown()
    grows = ge.DistEmbedding(ge.growing(99), DIM, "fixed", INIT, dtype=torch.float64)
    with pytest.raises(ConfigError, match="has table 'fixed' with a fixed size"):
        ge.save_checkpoint(tmp_path / "2", tables=[grows], base=place)


def run_fixed(folder: str, number: int) -> None:
    """A delta, or number 0, of a table that ranks share, and a full twin of it."""
    several = number % 2 == 1
    ge.init(mode="collective" if several else "local")
    try:
        policy = RangeBook([0, 4, 11]) if several else None
        emb = ge.DistEmbedding(11, DIM, "shared", INIT, dtype=torch.float64, part_policy=policy)
        opt = ge.SparseAdagrad([emb], lr=0.1)
        everything: dict[str, Any] = {"tables": [emb], "optimizers": [opt]}
        base = Path(folder) / str(number - 1) if number else None
        if base:
            ge.load_checkpoint(base, **everything)
        mine = [number, 10 - number] if emb.transport.rank == 0 else []
        opt.update(mine, torch.ones(len(mine), DIM, dtype=torch.float64), emb)
        ge.save_checkpoint(Path(folder) / str(number), **everything, base=base)
        ge.save_checkpoint(Path(folder) / f"full{number}", **everything)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_chain_of_a_fixed_table_changes_its_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    for number in range(4):
        if number % 2:
            ranks.run(run_fixed, 2, str(tmp_path), number)
        else:
            run_fixed(str(tmp_path), number)
        if number:
            assert Checkpoint(tmp_path / str(number)).manifest.tables["shared"].num_rows == 2
    merged = ge.merge_checkpoints(tmp_path / "0", [tmp_path / str(k) for k in (1, 2, 3)], tmp_path / "merged")
    found = [contents(place)["shared"] for place in (merged, tmp_path / "full3")]
    assert equal(*found)
