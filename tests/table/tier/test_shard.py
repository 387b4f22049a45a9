"""A shard in a file, or cached on a device, equals the shard in memory bit for bit: any rule, budget and policy."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, ModeError, StorageError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rules import SGD, Adagrad, Adam
from graph_emb.table.bags import BagGradients
from graph_emb.table.initializers import FromFunction, Uniform
from graph_emb.table.placement import POLICIES, DeviceCache, File
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.frames import PINNED
from graph_emb.table.tier.host_pages import HostPages
from graph_emb.table.tier.pages import BLOCK, PageFile, PageLayout, read_header
from graph_emb.table.tier.shard import TieredShard
from tests.optim import oracles

DIM = 32


ON_DEVICE = Path("no folder: frames on the device")


def spec_of(folder: Path | None, memory: int = 0, policy: Any = "lru", rows: int = 600, **more: Any) -> TableSpec:
    placement: Any = None if folder is None else File(folder, memory, policy)
    if folder is ON_DEVICE:
        placement = DeviceCache(memory, policy)
    return TableSpec("t", rows, DIM, RangeBook.even(rows), Uniform(seed=3), placement=placement, **more)


def least(spec: TableSpec, rule: Any) -> int:
    """The smallest budget that holds a page."""
    return budget(spec, rule, 1 << 30)


def layout_of(spec: TableSpec, rule: Any) -> tuple[PageLayout, int, int]:
    states = rule.state_specs()
    elements = [s.dtype_beside(spec.dtype).itemsize for s in states if s.kind == "element"]
    made = PageLayout.of_memory if isinstance(spec.placement, DeviceCache) else PageLayout.of
    layout = made([DIM * size for size in (spec.dtype.itemsize, *elements)])
    extra = sum(s.dtype_beside(spec.dtype).itemsize for s in states if s.kind == "row")
    return layout, extra, layout.num_pages(spec.num_rows)


def budget(spec: TableSpec, rule: Any, times: int) -> int:
    """Bytes that hold one page of each ``times``."""
    layout, extra, num = layout_of(spec, rule)
    of_map, of_frame = (0, 0) if isinstance(spec.placement, DeviceCache) else (5, 64)  # the map is on the host
    one = sum(layout.sections) + (extra << layout.shift) + of_frame
    return num * of_map + spec.num_rows * extra + max(1, num // times) * one


def both(folder: Path, rule: Any, times: int, **more: Any) -> tuple[EmbeddingShard, TieredShard]:
    spec = spec_of(folder, 1, **more)
    memory = least(spec, rule) if times == 0 else budget(spec, rule, times)
    policy = more.pop("policy", "lru")
    tiered = TieredShard(spec_of(folder, memory, policy, **more), 0, spec.num_rows)
    made = EmbeddingShard(spec_of(None, **more), 0, spec.num_rows), tiered
    for shard in made:
        shard.allocate_state(rule.state_specs())
    return made


def steps(seed: int, num: int, rows: int = 600, size: int = 90) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [0 if k == 3 else size for k in range(num)]
    return [
        (torch.randint(0, rows, (n,), generator=generator), torch.randn(n, DIM, generator=generator)) for n in sizes
    ]


def check_equal(host: EmbeddingShard, tiered: EmbeddingShard) -> None:
    everything = torch.arange(host.num_rows)
    assert torch.equal(host.read(everything), tiered.read(everything))
    assert torch.equal(host.column("weight", 0, host.num_rows), tiered.column("weight", 0, host.num_rows))
    one, other = host.read_state(everything), tiered.read_state(everything)
    assert set(one) == set(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", list(oracles.CASES))
@pytest.mark.parametrize("times", [0, 4])
@pytest.mark.parametrize("on_device", [False, True])
def test_every_rule_gives_the_bits_of_memory(tmp_path: Path, name: str, times: int, on_device: bool) -> None:
    rule = oracles.CASES[name][0]
    dtype = torch.float64 if times else torch.float32
    host, tiered = both(ON_DEVICE if on_device else tmp_path, rule, times, dtype=dtype)
    for ids, grads in steps(1, 6):
        for shard in (host, tiered):
            apply_update(rule, shard, ids, rule_grads(rule, grads.to(dtype)), prepared=rule.per_occurrence)
    check_equal(host, tiered)
    assert tiered.cache_stats().dirty_writes > 0


def rule_grads(rule: Any, grads: torch.Tensor) -> torch.Tensor:
    return rule.prepare(grads) if rule.per_occurrence else grads


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_every_policy_gives_the_bits_of_memory_with_prefetches_between_forward_and_backward(
    tmp_path: Path, policy: str, times: int, ahead: bool, on_device: bool
) -> None:
    rule = Adam(0.1, clock="row", stochastic_rounding=True, state_dtype="bfloat16")
    folder, rows = (ON_DEVICE, 300) if on_device else (tmp_path, 4800)
    host, tiered = both(folder, rule, times, policy=policy, dtype=torch.bfloat16, rows=rows)
    batches = steps(2, 14, rows, size=9)
    for k, (ids, grads) in enumerate(batches):
        if ahead:
            for later in batches[1:4] if k == 0 else batches[k + 3 : k + 4]:
                tiered.prefetch(later[0])
        assert torch.equal(host.read(ids), tiered.read(ids))
        for shard in (host, tiered):
            apply_update(rule, shard, ids, grads.bfloat16())
    check_equal(host, tiered)
    stats = tiered.cache_stats()
    assert stats.hits + stats.misses == stats.distinct
    assert stats.dirty_writes <= stats.evictions
    assert (stats.prefetched > 0) == (ahead and times > 1)


@pytest.mark.parametrize("on_device", [False, True])
def test_random_programs_equal_those_on_memory_at_every_step(tmp_path: Path, on_device: bool) -> None:
    rng = np.random.default_rng(5)
    rule = Adagrad(0.1, weight_decay=0.1, weight_decay_mode="lazy")
    host, tiered = both(ON_DEVICE if on_device else tmp_path, rule, 5)
    for _ in range(150):
        ids = torch.from_numpy(rng.integers(0, 600, rng.integers(0, 70)))
        distinct, values = ids.unique(), torch.from_numpy(rng.normal(size=(len(ids), DIM))).float()
        kind = rng.integers(0, 9)
        if kind == 0:
            tiered.prefetch(ids)
        elif kind == 1:
            tiered.flush() if len(ids) % 2 else tiered.drop_cache()
        for shard in (host, tiered):
            if kind in (2, 3, 4):
                apply_update(rule, shard, ids, values)
            elif kind == 5:
                shard.write(distinct, values[: len(distinct)])
            elif kind == 6:
                shard.settle(ids)
                shard.freeze(ids, bool(rng.integers(0, 2)) if shard is host else shard_frozen(host, ids))
            elif kind == 7:
                shard.reset(ids)
            elif kind == 8:
                shard.overwrite_state("sum", distinct, values[: len(distinct)].abs())
        assert torch.equal(host.read(ids), tiered.read(ids))
        assert torch.equal(host.state_rows("sum", ids), tiered.state_rows("sum", ids))
    check_equal(host, tiered)
    for shard in (host, tiered):
        shard.settle()
        shard.free_state()
    assert torch.equal(host.weight, tiered.column("weight", 0, 600))


def shard_frozen(shard: EmbeddingShard, ids: torch.Tensor) -> bool:
    return bool(shard.frozen is not None and len(ids) and shard.frozen[ids[0]])


@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("on_device", [False, True])
def test_gradients_of_bags_are_merged_as_in_memory(tmp_path: Path, times: int, on_device: bool) -> None:
    host, tiered = both(ON_DEVICE if on_device else tmp_path, Adagrad(0.1), times)
    ids = torch.randint(0, 600, (200,), generator=torch.Generator().manual_seed(0))
    source = torch.arange(200) // 4
    for shard in (host, tiered):
        bags = BagGradients(torch.linspace(-1, 1, 50 * DIM).view(50, DIM), source, None)
        apply_update(Adagrad(0.1), shard, ids, bags)
    check_equal(host, tiered)


def test_a_fresh_table_reads_and_writes_no_page(tmp_path: Path) -> None:
    host, tiered = both(tmp_path, Adagrad(0.1), 8)
    check_equal(host, tiered)
    tiered.read(torch.randint(0, 600, (50,)))
    stats = tiered.cache_stats()
    assert (stats.bytes_read, stats.bytes_written) == (0, 0)


def test_a_second_flush_writes_nothing(tmp_path: Path) -> None:
    _, tiered = both(tmp_path, SGD(0.1), 2)
    apply_update(SGD(0.1), tiered, torch.arange(0, 600, 7), torch.ones(86, DIM))
    tiered.flush()
    first = tiered.cache_stats().bytes_written
    tiered.flush()
    assert tiered.cache_stats().bytes_written == first > 0


@pytest.mark.parametrize("on_device", [False, True])
def test_a_dropped_cache_is_empty_and_loses_no_row(tmp_path: Path, on_device: bool) -> None:
    host, tiered = both(ON_DEVICE if on_device else tmp_path, Adagrad(0.1), 3)
    for shard in (host, tiered):
        apply_update(Adagrad(0.1), shard, torch.arange(0, 600, 5), torch.ones(120, DIM))
    tiered.drop_cache()
    assert tiered._pages.frames.resident == 0
    before = tiered.cache_stats()
    check_equal(host, tiered)
    tiered.read(torch.tensor([5, 10]))
    assert tiered.cache_stats().misses > before.misses


def test_a_page_of_host_memory_is_the_least_power_of_two_of_rows_from_256_bytes_on() -> None:
    assert [
        (one.rows, one.page_bytes) for one in map(PageLayout.of_memory, ([512, 512], [256], [255], [60, 4], [4]))
    ] == [(1, 1024), (1, 256), (2, 510), (4, 256), (64, 256)]


def test_a_device_holds_no_more_rows_than_its_budget_and_names_the_least(tmp_path: Path) -> None:
    _, tiered = both(ON_DEVICE, Adagrad(0.1), 8)
    held = sum(column.nbytes for column in tiered._pages.columns)
    assert tiered.spec.placement is not None
    assert tiered.spec.placement.memory_bytes * 0.9 < held <= tiered.spec.placement.memory_bytes
    with pytest.raises(ConfigError, match=r"memory=100 B is below the least, 256 bytes: 0 for the map"):
        TieredShard(spec_of(ON_DEVICE, 100), 0, 600)


def test_a_scan_leaves_the_cache_as_it_is(tmp_path: Path) -> None:
    _, tiered = both(tmp_path, SGD(0.1), 4)
    for start in range(0, 600, 100):
        tiered.write(torch.arange(start, start + 100), torch.full((100, DIM), float(start)))
    before, frames = tiered.cache_stats(), tiered._pages.frames.page_of.copy()
    assert tiered.read(torch.arange(50, 550)).sum() == DIM * 50 * (1 * 0 + 2 * 100 + 2 * 200 + 2 * 300 + 2 * 400 + 500)
    after = tiered.cache_stats()
    assert np.array_equal(tiered._pages.frames.page_of, frames)
    assert (after.hits, after.misses, after.evictions) == (before.hits, before.misses, before.evictions)
    assert after.scanned > before.scanned


def test_prefetched_and_never_used_batches_hold_no_frame_for_good(tmp_path: Path) -> None:
    _, tiered = both(tmp_path, SGD(0.1), 8)
    tiered.write(torch.arange(600), torch.zeros(600, DIM))
    for k in range(300):
        tiered.prefetch(torch.arange(k, k + 20))
    tiered.read(torch.tensor([3, 500, 77]))
    frames = tiered._pages.frames
    assert len(frames.announced) <= 64
    pinned = np.flatnonzero(frames.has(PINNED, np.arange(len(frames.page_of))))
    assert 0 < len(pinned) == frames.num_pinned <= frames.capacity // 2
    tiered.read(torch.from_numpy(tiered.rows_at(pinned[:1] << frames.shift)))
    assert frames.num_pinned == len(pinned) - 1
    assert not frames.has(PINNED, pinned[:1]).any()
    assert len(tiered._pages._jobs) <= 300


def test_rows_written_before_an_optimizer_comes_survive_the_new_layout(tmp_path: Path) -> None:
    tiered = TieredShard(spec_of(tmp_path, 20_000), 0, 600)
    rows = torch.tensor([5, 599, 200])
    tiered.write(rows, torch.arange(3.0 * DIM).view(3, DIM))
    tiered.allocate_state(Adam(0.1).state_specs())
    assert torch.equal(tiered.read(rows), torch.arange(3.0 * DIM).view(3, DIM))
    tiered.free_state()
    assert torch.equal(tiered.read(rows), torch.arange(3.0 * DIM).view(3, DIM))
    assert len(list(tmp_path.iterdir())) == 1


def test_the_file_goes_with_the_table(tmp_path: Path) -> None:
    _, tiered = both(tmp_path, SGD(0.1), 4)
    assert len(list(tmp_path.iterdir())) == 1
    del tiered
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_offsets_beyond_four_gib_and_rows_beyond_two_gi_elements_are_right(tmp_path: Path) -> None:
    rows = 40_000_000
    spec = TableSpec("big", rows, 64, RangeBook.even(rows), Uniform(seed=0), placement=File(tmp_path, "40MiB"))
    shard = TieredShard(spec, 0, rows)  # 10 GB on the disk, reserved and not written
    ids = torch.tensor([0, rows - 1, 17_000_000, 33_554_432, 16_777_216 * 2 - 1])
    shard.write(ids, torch.arange(5.0).view(5, 1).expand(5, 64))
    for _ in range(3):
        shard.read(torch.randint(0, rows, (4_000,)))
    assert shard.read(ids)[:, 63].tolist() == [0, 1, 2, 3, 4]
    assert shard.cache_stats().dirty_writes >= 4


def replace_descriptor(shard: TieredShard, path: str) -> None:
    """Let the table's file be another one behind its back: its error is a real one."""
    other = os.open(path, os.O_RDWR)
    os.dup2(other, shard._pages.reader.file.descriptor)
    os.close(other)


def dirtied(folder: Path) -> TieredShard:
    _, tiered = both(folder, SGD(0.1), 8)
    tiered.write(torch.arange(600), torch.ones(600, DIM))
    tiered.flush()
    return tiered


def test_a_full_disk_stops_the_step_and_every_later_one_with_table_file_and_offset(tmp_path: Path) -> None:
    tiered = dirtied(tmp_path)
    tiered.write(torch.arange(30), torch.zeros(30, DIM))
    replace_descriptor(tiered, "/dev/full")
    with pytest.raises(StorageError, match=r"table 't': write at offset \d+ failed \(No space left") as caught:
        tiered.flush()
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(StorageError, match="write at offset"):
        tiered.read(torch.tensor([1]))
    with pytest.raises(StorageError, match="write at offset"):
        apply_update(SGD(0.1), tiered, torch.tensor([1]), torch.ones(1, DIM))


def test_a_disk_error_while_reading_names_table_file_and_offset(tmp_path: Path) -> None:
    tiered = dirtied(tmp_path)
    replace_descriptor(tiered, "/proc/self/mem")  # nothing is mapped at such low addresses: EIO
    with pytest.raises(StorageError, match=r"table 't': read at offset \d+ failed \(Input/output error") as caught:
        tiered.read(torch.tensor([1, 599, 300]))
    assert caught.value.errno == errno.EIO


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    tiered = dirtied(tmp_path)
    os.truncate(tiered._pages.reader.file.path, 3 * BLOCK)
    with pytest.raises(StorageError, match=r"table 't': read at offset \d+ failed \(the file ends there"):
        tiered.read(torch.tensor([0, 599, 300]))


def test_a_file_of_another_run_is_noticed(tmp_path: Path) -> None:
    tiered = dirtied(tmp_path)
    tiered._pages.reader.file.check_own()
    path = tiered._pages.reader.file.path
    text = path.read_bytes().replace(tiered._pages.reader.file.run.encode(), b"0123456789abcdef", 1)
    path.write_bytes(text)
    with pytest.raises(StorageError, match="header of run 0123456789abcdef"):
        tiered._pages.reader.file.check_own()


def test_what_a_dead_run_left_is_refused_and_names_the_checkpoint(tmp_path: Path) -> None:
    file = PageFile(tmp_path, "t", 0, PageLayout.of([96]), 10, False)
    file.note("/ckpt/100")
    left = tmp_path / f"t.0.{'1' * 16}.rows"
    left.write_bytes(file.path.read_bytes())
    file.close()
    assert (read_header(left) or {})["checkpoint"] == "/ckpt/100"
    with pytest.raises(ConfigError, match=r"run that did not end.*load the checkpoint /ckpt/100"):
        TieredShard(spec_of(tmp_path, 30_000), 0, 600)
    fresh = TieredShard(TableSpec(
        "t", 600, DIM, RangeBook.even(600), Uniform(seed=3), placement=File(tmp_path, 30_000, leftover="remove")
    ), 0, 600)  # fmt: skip
    assert not left.exists()
    assert torch.equal(fresh.read(torch.tensor([3])), EmbeddingShard(spec_of(None), 0, 600).weight[3:4])


def test_a_living_run_keeps_its_file(tmp_path: Path) -> None:
    first = TieredShard(spec_of(tmp_path, 30_000), 0, 600)
    second = TieredShard(spec_of(tmp_path, 30_000), 0, 600)
    assert len(list(tmp_path.iterdir())) == 2
    assert first._pages.reader.file.path.exists()
    assert second._pages.reader.file.path.exists()


def test_a_budget_below_a_page_names_the_least(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"below the least, 4\d{3} bytes: 95 for the map of 19 pages"):
        TieredShard(spec_of(tmp_path, 100), 0, 600)


def test_first_values_that_are_no_function_of_the_id_are_refused(tmp_path: Path) -> None:
    zeros = FromFunction(lambda shape, dtype: torch.zeros(shape))
    spec = TableSpec("t", 6, 2, RangeBook.even(6), zeros, placement=File(tmp_path, 9999))
    with pytest.raises(ConfigError, match="values of any ids"):
        TieredShard(spec, 0, 6)


def test_another_optimizer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    host, tiered = both(tmp_path, Adagrad(0.1), 4)
    with pytest.raises(ModeError, match="trained by another optimizer"):
        tiered.allocate_state(SGD(0.1).state_specs())
    check_equal(host, tiered)


class LatePages(HostPages):
    """A lower tier of which a transfer happens when it is waited for, and no sooner."""

    def read(self, *asked: Any) -> Any:
        return Late(lambda: super(LatePages, self).read(*asked))

    def exchange(self, *asked: Any) -> Any:
        return Late(lambda: super(LatePages, self).exchange(*asked).wait())


class Late:
    def __init__(self, move: Any) -> None:
        self.wait = move


def late(tiered: TieredShard) -> None:
    """Let transfers be late."""
    tiered._pages.reader.__class__ = LatePages


def test_a_call_waits_for_every_transfer_that_brings_one_of_its_rows() -> None:
    """Of the loads of a call's pages only the latest was waited for, and threads do not end them in order."""
    rows = torch.arange(600)
    host, tiered = both(ON_DEVICE, SGD(0.1), 2)
    for shard in (host, tiered):
        shard.write(rows, torch.randn(600, DIM, generator=torch.Generator().manual_seed(0)))
    tiered.drop_cache()
    late(tiered)
    tiered.prefetch(torch.tensor([3, 4]))
    tiered.prefetch(torch.tensor([77]))
    assert torch.equal(tiered.read(torch.tensor([3, 77])), host.read(torch.tensor([3, 77])))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_held_ranges_change_no_row_and_miss_nothing(tmp_path: Path, is_late: bool, on_device: bool) -> None:
    rule = Adagrad(0.1)
    host, tiered = both(ON_DEVICE if on_device else tmp_path, rule, 2)
    if is_late and on_device:
        late(tiered)
    rng, parts = np.random.default_rng(0), [(k * 100, k * 100 + 100) for k in range(6)]
    held = [0, 1]
    for step in range(40):
        if step % 4 == 0:
            held = [held[1], int(rng.integers(0, 6))]
        tiered.hold([parts[k] for k in held])
        rows = torch.from_numpy(np.concatenate([rng.integers(*parts[k], 9) for k in held]))
        before = tiered.cache_stats().misses
        assert torch.equal(host.read(rows), tiered.read(rows))
        for shard in (host, tiered):
            apply_update(rule, shard, rows, torch.ones(len(rows), DIM) * step)
        assert tiered.cache_stats().misses == before
        if step % 7 == 0:
            anywhere = torch.from_numpy(rng.integers(0, 600, 30))
            assert torch.equal(host.read(anywhere), tiered.read(anywhere))
    check_equal(host, tiered)
    assert tiered.cache_stats().evictions > 0


@pytest.mark.parametrize("on_device", [False, True])
def test_rows_that_change_where_they_are_held_are_rows_that_were_written(tmp_path: Path, on_device: bool) -> None:
    host, tiered = both(ON_DEVICE if on_device else tmp_path, SGD(0.1), 2)
    rng = np.random.default_rng(0)
    for step in range(12):
        low = int(rng.integers(0, 500))
        tiered.hold([(low, low + 90), (0, 40)])
        for shard in (host, tiered):
            weight, (places, others) = shard.held_rows((low, low + 90), (10, 40))
            weight[torch.from_numpy(places)] += torch.arange(90.0)[:, None] * step
            weight[torch.from_numpy(others)] -= torch.arange(30.0)[:, None]
    check_equal(host, tiered)
    assert tiered.cache_stats().dirty_writes > 0
    with pytest.raises(
        ConfigError, match=r"table 't': memory holds \d+ pages, rows 0 to 300 and 300 to 600 have \d+; "
    ):
        tiered.held_rows((0, 300), (300, 600))


def test_ranges_that_memory_does_not_hold_are_brought_as_far_as_it_does(tmp_path: Path) -> None:
    _, tiered = both(tmp_path, Adagrad(0.1), 4)  # four of 19 pages of 32 rows, Adagrad's of 16: nine of 38
    ranges = [(0, 64), (64, 128), (320, 600)]
    assert tiered.num_held(ranges[:2]) == 2
    assert tiered.num_held(ranges) == 0, "not the last one, of 18 pages"
    assert tiered.num_held([(row, row + 1) for row in range(30)]) == 9, "all in two pages, or each in its own"
    tiered.hold(ranges)
    frames = tiered._pages.frames
    assert frames.resident == frames.capacity
    assert (frames.frame_of[:8] >= 0).all()
    tiered.hold([(500, 600)])
    assert (frames.frame_of[500 >> frames.shift :] >= 0).all()
    assert frames.resident == frames.capacity


def test_a_disk_error_of_an_exchange_stops_the_next_step(tmp_path: Path) -> None:
    tiered = dirtied(tmp_path)
    tiered.write(torch.arange(30), torch.zeros(30, DIM))
    replace_descriptor(tiered, "/dev/full")
    tiered.hold([(300, 340)])
    with pytest.raises(StorageError, match=r"table 't': (move|read|write) at offset \d+ failed"):
        tiered.read(torch.tensor([300, 330]))
    with pytest.raises(StorageError, match="at offset"):
        tiered.read(torch.tensor([1]))
