"""A placement changes no result: tables in files and on devices beside tables in memory, in every mode, and saved."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.table.placement import Cached, as_placement
from graph_emb.table.tier import cache
from graph_emb.table.tier.shard import TieredShard
from tests.ranks import Ranks

NUM, DIM = 2000, 16


def train(rank: int, world_size: int, folder: str | None, tiered: tuple[int, ...], ahead: bool) -> dict[str, Tensor]:
    """Rows and state after some steps; the ranks of ``tiered`` have their rows in files, or without a folder cached."""
    found = {}
    for name, make in {"adagrad": ge.SparseAdagrad, "row_adam": ge.SparseRowAdam}.items():
        small: Any = {"memory": "48KiB" if folder else "36KiB", "policy": "lookahead"}
        cached = ge.DeviceCache(**small) if folder is None else ge.File(folder, **small)
        placement: Any = cached if rank in tiered else "host"
        emb = ge.DistEmbedding(
            NUM, DIM, name, ge.initializers.Uniform(seed=3), dtype=torch.float64, placement=placement
        )
        opt = make([emb], lr=0.1)
        generator = torch.Generator().manual_seed(7)
        batches = [torch.randint(0, NUM, (40,), generator=generator)[rank::world_size] for _ in range(8)]
        for k, ids in enumerate(batches):
            rows = emb(ids)
            if ahead and k + 1 < len(batches):
                emb.prefetch(batches[k + 1])
            (rows * torch.arange(DIM)).square().sum().backward()
            opt.step()
            opt.zero_grad()
        found[name] = emb.weight[:]
        found.update(
            {f"{name}.{key}": state[:] for key, state in emb.optm_state.items() if not isinstance(state, Tensor)}
        )
        if rank in tiered:
            assert emb.cache_stats().dirty_writes > 0
    return found


def on_a_rank(*args: Any) -> dict[str, Tensor]:
    transport = ge.init(mode="collective", timeout=60)
    found = train(transport.rank, transport.world_size, *args)
    ge.shutdown()
    return found


@pytest.mark.parametrize("ahead", [False, True])
def test_a_rank_with_a_file_and_one_without_give_the_rows_of_one_process(
    ranks: Ranks, tmp_path: Path, local_mode: None, ahead: bool
) -> None:
    expected = train(0, 1, str(tmp_path), (), ahead)
    ge.shutdown()
    ge.init(mode="local")
    of_file = train(0, 1, str(tmp_path), (0,), ahead)
    ge.shutdown()
    ge.init(mode="local")
    on_device = train(0, 1, None, (0,), ahead)
    cached, mixed = (ranks.run(on_a_rank, 2, *of, ahead) for of in ((None, (0, 1)), (str(tmp_path), (1,))))
    for found in (of_file, on_device, *cached, *mixed):
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saved_from_any_placement_loads_into_any_other(tmp_path: Path, local_mode: None) -> None:
    places: dict[str, Any] = {
        "host": "host",
        "file": ge.File(tmp_path / "rows", memory="60KiB"),
        "page": ge.File(tmp_path / "rows", memory=23_000, policy="lfu"),
        "device": ge.DeviceCache(memory=30_000, policy="lookahead"),
        "buckets": ge.Buckets(tmp_path / "rows", memory="130KiB", parts=8),
    }
    assert {type(place) for place in places.values()} == {str, *kinds_of(Cached)}
    saved: dict[str, list[Tensor]] = {}
    for name, placement in places.items():
        emb = ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Uniform(seed=1), placement=placement)
        opt = ge.SparseAdam([emb], lr=0.1, bias_correction="row")
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            ids = torch.randint(0, NUM, (60,), generator=generator)
            emb(ids).square().sum().backward()
            opt.step()
        ge.save_checkpoint(tmp_path / name, tables=[emb], optimizers=[opt])
        saved[name] = contents(emb)
        opt.close()
        del emb, opt
    for source in places:
        for placement in places.values():
            emb = ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Uniform(seed=9), placement=placement)
            opt = ge.SparseAdam([emb], lr=0.1, bias_correction="row")
            ge.load_checkpoint(tmp_path / source, tables=[emb], optimizers=[opt])
            assert all(map(torch.equal, contents(emb), saved["host"]))
            opt.close()
            del emb, opt


def kinds_of(base: type) -> set[type]:
    """All placements there are: the classes that are made of it."""
    found = set(base.__subclasses__())
    return found.union(*map(kinds_of, found))


def contents(emb: ge.DistEmbedding) -> list[Tensor]:
    return [emb.weight[:], *(state[:] for _, state in sorted(emb.optm_state.items()))]


def test_state_dicts_and_row_programs_do_not_know_the_placement(tmp_path: Path, local_mode: None) -> None:
    found = []
    places = ("host", ge.File(tmp_path, "60KiB"), ge.DeviceCache("60KiB"), ge.Buckets(tmp_path, "130KiB", parts=8))
    assert {type(place) for place in places} == {str, *kinds_of(Cached)}
    for placement in places:
        emb = ge.DistEmbedding(NUM, DIM, None, ge.initializers.Uniform(seed=1), placement=placement)
        opt = ge.SparseAdagrad([emb], lr=0.1)
        emb.freeze(torch.arange(0, NUM, 3))
        emb(torch.arange(0, NUM, 5)).sum().backward()
        opt.step()
        emb.bag(torch.arange(60), torch.arange(0, 60, 4)).sum().backward()
        opt.step()
        kept = opt.state_dict()
        emb.reset_rows(torch.arange(50))
        emb.optm_state["sum"][7] = torch.full((DIM,), 2.0)
        mixed = contents(emb)
        kept["state"] = {emb.name: next(iter(kept["state"].values()))}
        opt.load_state_dict(kept)
        found.append([*mixed, *contents(emb), emb.quantize()(torch.arange(NUM))])
    assert all(all(map(torch.equal, found[0], one)) for one in found[1:])


def test_frames_are_free_before_rows_move_to_another_layout(
    tmp_path: Path, local_mode: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = ge.File(tmp_path, memory="60KiB")
    emb = ge.DistEmbedding(NUM, DIM, None, ge.initializers.Uniform(seed=1), placement=placement)
    emb.weight[100:600] = torch.ones(500, DIM)
    before, move, free = emb.weight[:], TieredShard._move, []

    def moved(shard: TieredShard, old: Any) -> None:
        free.append(frames() is None)
        move(shard, old)

    monkeypatch.setattr(TieredShard, "_move", moved)
    frames = weakref.ref(emb.shard._pages.columns[0])  # type: ignore[attr-defined]
    optimizer = ge.SparseAdagrad([emb], lr=0.1)
    frames = weakref.ref(emb.shard._pages.columns[0])  # type: ignore[attr-defined]
    optimizer.close()
    assert free == [True]  # what ends a training moves nothing
    assert torch.equal(emb.weight[:], before)
    optimizer = ge.SparseSGD([emb], lr=0.1)  # no state: the room of the last one's is the rows'
    assert free == [True, True]
    assert len(emb.shard._pages.columns) == 1  # type: ignore[attr-defined]
    optimizer.close()
    assert free == [True, True]
    assert torch.equal(emb.weight[:], before)


def test_first_values_of_many_pages_are_those_of_a_table_in_memory(
    tmp_path: Path, local_mode: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FILL_BYTES", 3 * 4096)
    first = ge.initializers.Uniform(seed=1)
    emb = ge.DistEmbedding(NUM, DIM, None, first, placement=ge.File(tmp_path, memory="200KiB"))
    ids = torch.arange(NUM).flip(0)[:1500]
    assert torch.equal(emb(ids), ge.DistEmbedding(NUM, DIM, None, first)(ids))
    assert emb.cache_stats().misses > 12


def test_cache_stats_of_a_table_in_memory_say_that_it_has_no_cache(local_mode: None) -> None:
    with pytest.raises(ConfigError, match="lies in memory and has no cache"):
        ge.DistEmbedding(3, 2, "t").cache_stats()


@pytest.mark.parametrize("placement", ["disk", 3, None])
def test_an_unknown_placement_is_refused(placement: Any) -> None:
    with pytest.raises(ConfigError, match=r"table 't': placement=.*pass 'auto', 'host', .*, graph_emb\.File"):
        as_placement(placement, "t")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory": "lots"}, "memory 'lots'"),
        ({"memory": 0}, "at least 1 byte"),
        ({"policy": "fifo"}, "unknown policy 'fifo'"),
        ({"leftover": "keep"}, "unknown leftover 'keep'"),
    ],
)
def test_a_wrong_option_of_a_placement_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ge.File("/tmp", **{"memory": "1MiB", **wrong})
    if "leftover" not in wrong:
        with pytest.raises(ConfigError, match=said):
            ge.DeviceCache(**{"memory": "1MiB", **wrong})


def test_a_table_in_a_file_on_a_device_is_refused(tmp_path: Path, local_mode: None) -> None:
    with pytest.raises(ConfigError, match=r"not to device meta; .*DeviceCache"):
        ge.DistEmbedding(3, 2, "t", device="meta", placement=ge.File(tmp_path, "1MiB"))


def test_columns_of_a_scan_are_on_the_device_of_the_table(local_mode: None) -> None:
    emb = ge.DistEmbedding(3, 2, "t", device="meta", placement=ge.DeviceCache("1MiB"))
    assert emb.shard.weight.device.type == "meta"
    assert all(column.device.type == "meta" for column in emb.shard._pages.columns)


def test_handlers_of_tables_in_files_are_refused(tmp_path: Path, fresh_mode: None) -> None:
    ge.init(mode="kvstore")
    emb = ge.DistEmbedding(NUM, DIM, "t", placement=ge.File(tmp_path, "1MiB"))
    with pytest.raises(ModeError, match="needs all of them in memory"):
        emb.transport.register_push_handler("t", lambda *_: None)


@pytest.mark.parametrize("memory", ["1MiB", "48KiB"])
def test_batches_with_repeats_train_as_in_memory_by_the_fused_kernels(
    tmp_path: Path, local_mode: None, memory: str
) -> None:
    """One that fits is grouped once for look-up and update; of one that does not, each turn has groups of its own."""
    generator, found = torch.Generator().manual_seed(7), []
    batches = [torch.randint(0, NUM, (900,), generator=generator).repeat(2) for _ in range(6)]
    for name, placement in {"host": "host", "file": ge.File(tmp_path, memory)}.items():
        emb = ge.DistEmbedding(NUM, DIM, name, ge.initializers.Uniform(seed=3), placement=placement)
        opt = ge.SparseAdagrad([emb], lr=0.1)
        for k, ids in enumerate(batches):
            if k == 3:
                emb.freeze(ids[:5])
            (emb(ids) * torch.arange(len(ids)).unsqueeze(1)).square().sum().backward()
            opt.step()
            opt.zero_grad()
        (state,) = [value[:] for value in emb.optm_state.values() if not isinstance(value, Tensor)]
        found.append((emb.weight[:], state))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
