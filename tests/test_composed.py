"""Composed tables: sums of shared rows, equal to a dense reference for every rule, in any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
import partition
from graph_emb.composed import KINDS
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from graph_emb.optimizer import OPTIMIZERS
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

N, D = 24, 3
FINE = np.arange(N) // 3  # eight parts of three nodes, two of them in each of four, ...
LEVELS = np.stack([FINE // 4, FINE // 2, FINE], axis=1)


def made(kind: str = "position-hash", levels: np.ndarray = LEVELS, **options: Any) -> ge.ComposedEmbedding:
    options = {"num_buckets": 5, "name": "node", "seed": 3, "dtype": torch.float64, **options}
    if kind in ("position", "full"):
        del options["num_buckets"]
    return ge.ComposedEmbedding(levels, D, kind, **options)


def dense_rows(emb: ge.ComposedEmbedding, tables: list[Tensor], ids: Tensor) -> Tensor:
    """The formula by plain indexing; ``tables`` are whole and in the order of ``emb.tables``."""
    if emb.kind == "full":
        return tables[0][ids]
    if emb.kind == "quotient-remainder":
        return tables[0][ids // emb.num_buckets] + tables[1][ids % emb.num_buckets]
    total: Any = 0
    if emb.kind.startswith("position"):
        for place in range(LEVELS.shape[1]):
            total = total + tables[place][torch.from_numpy(LEVELS[ids, place])]
    if emb.kind.endswith("hash"):
        buckets, weights = tables[-2][emb.buckets_of(ids)], 1 + tables[-1][ids]
        total = total + (weights[:, :, None] * buckets).sum(dim=1)
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_training_is_that_of_a_dense_reference(kind: str, rule: str) -> None:
    emb = made(kind)
    opt = OPTIMIZERS[rule]([emb], lr=0.1)
    own = []
    for place, table in enumerate(emb.tables):
        first = ge.initializers.FromArray(table.weight[:])
        own.append(ge.DistEmbedding(*table.weight.shape, f"own{place}", first, dtype=torch.float64))
    own_opt = OPTIMIZERS[rule](own, lr=0.1)
    gen = torch.Generator().manual_seed(0)
    for step in range(6):
        ids = torch.randint(0, 8 + 3 * step, (10,), generator=gen)  # nodes enter late
        wanted = torch.randn(10, D, generator=gen, dtype=torch.float64)
        ((emb(ids) - wanted) ** 2).sum().backward()
        opt.step()
        leaves = [table.weight[:].requires_grad_() for table in own]
        ((dense_rows(emb, leaves, ids) - wanted) ** 2).sum().backward()
        for table, leaf in zip(own, leaves, strict=True):
            touched = leaf.grad.abs().sum(dim=1).nonzero().flatten()
            own_opt.update(touched, leaf.grad[touched], table)
    for table, other in zip(emb.tables, own, strict=True):
        torch.testing.assert_close(table.weight[:], other.weight[:], rtol=1e-9, atol=1e-11)
    assert len(own) == {"full": 1, "hash": 2, "quotient-remainder": 2, "position": 3, "position-hash": 5}[kind]
    torch.testing.assert_close(emb.weight[:], dense_rows(emb, [table.weight[:] for table in own], torch.arange(N)))


def test_first_rows_have_the_norm_of_one_row_and_depend_on_the_seed() -> None:
    levels = np.stack([np.arange(2000) // 500, np.arange(2000) // 100], axis=1)
    rows = [ge.ComposedEmbedding(levels, 64, num_buckets=300, name=f"t{seed}", seed=seed).weight[:] for seed in (1, 2)]
    one = ge.DistEmbedding(2000, 64, "one", ge.initializers.Uniform(seed=1)).weight[:]
    assert rows[0].square().sum(dim=1).mean() == pytest.approx(float(one.square().sum(dim=1).mean()), rel=0.15)
    assert not torch.equal(*rows)


def test_hashes_are_of_original_ids_and_of_the_part_where_asked() -> None:
    order = np.random.default_rng(0).permutation(N)
    plain = made().buckets_of(torch.from_numpy(order))
    moved = ge.ComposedEmbedding(LEVELS[order], D, num_buckets=5, seed=3, name="moved", original_ids=order)
    torch.testing.assert_close(moved.buckets_of(torch.arange(N)), plain)
    within = made(num_buckets=40, scope="part", name="within").buckets_of(torch.arange(N))
    assert (within // 20 == torch.from_numpy(LEVELS[:, :1])).all()
    assert len(within.unique()) > 10


def test_levels_may_leave_parts_out_and_be_of_any_integers() -> None:
    few = np.array([[0, 7], [0, 7], [90_000, 12], [90_000, 2_000_000]], np.uint64)
    emb = ge.ComposedEmbedding(few, D, kind="position")
    first, last = (table.weight[[0, *few[1:, place].tolist()]] for place, table in enumerate(emb.tables))
    assert torch.equal(emb.weight[1:], first[1:] + last[1:])
    with pytest.raises(ConfigError, match="not nested: part 7 of level 1 lies in several parts of level 0"):
        ge.ComposedEmbedding(few + np.array([[0, 0], [1, 0], [0, 0], [0, 0]], np.uint64), D)
    assert ge.ComposedEmbedding(np.int64(3), D, kind="hash").num_embeddings == 3


@pytest.mark.parametrize("rows", [0, -1, 1.5, "x"])
def test_blocks_of_no_rows_are_refused(rows: Any) -> None:
    """Blocks of -1 rows were none at all: an export of nothing."""
    with pytest.raises(ConfigError, match=r"blocks of .* rows; give an integer of at least 1"):
        next(made("hash").blocks(rows))


def test_rows_are_read_in_blocks_and_never_assigned() -> None:
    emb = made()
    torch.testing.assert_close(torch.cat(list(emb.blocks(7))), emb.weight[:])
    assert emb.weight[4].shape == (D,)
    assert len(emb.weight) == N
    with pytest.raises(ConfigError, match="rows are sums of shared rows and cannot be assigned"):
        emb.weight[0] = 1.0
    assert emb.num_parameters == (2 + 4 + 8 + 5) * D + 2 * N


@pytest.mark.parametrize("kind", ["position-hash", "position", "hash"])
def test_new_nodes_have_the_rows_of_a_table_that_had_them_and_did_not_train_on_them(kind: str) -> None:
    joins = np.array([3, 0, 21, 20])  # whose parts the new nodes take
    levels = None if kind == "hash" else LEVELS[joins]
    small = made(kind)
    large = made(kind, np.concatenate([LEVELS, LEVELS[joins]]), name="large")
    for emb in (small, large):
        opt = ge.SparseAdagrad([emb], lr=0.1)
        for _ in range(3):
            (emb(torch.arange(N)) - 1).square().sum().backward()
            opt.step()
    torch.testing.assert_close(large.weight[:N], small.weight[:])
    torch.testing.assert_close(small.rows_of_new(np.arange(N, N + 4), levels), large.weight[N:])


def test_new_nodes_that_a_table_cannot_have_are_refused() -> None:
    emb = made("position-hash")
    with pytest.raises(ConfigError, match="kind 'position-hash' needs the 3 levels of new nodes"):
        emb.rows_of_new([24])
    with pytest.raises(ShapeError, match=r"levels have shape \(1, 2\) of int64; give integers \(1, 3\)"):
        emb.rows_of_new([24], LEVELS[:1, :2])
    with pytest.raises(PartitionError, match="id 8 is outside"):
        emb.rows_of_new([24], np.array([[1, 3, 8]]))
    with pytest.raises(PartitionError, match="id -1 is outside"):
        emb.rows_of_new([-1], LEVELS[:1])
    other = np.append(1 - LEVELS[:1, :1], LEVELS[:1, 1:], axis=1)
    with pytest.raises(
        PartitionError, match=r"a new node has the parts \[1, 0, 0\], and the finest .* \[0, 0, 0\] here"
    ):
        emb.rows_of_new([24], other)
    assert emb.rows_of_new([2**63 - 1], LEVELS[:1]).shape == (1, D)
    with pytest.raises(ConfigError, match="kind 'hash' has no levels; leave them out"):
        made("hash", name="hash").rows_of_new([24], LEVELS[:1])
    with pytest.raises(ConfigError, match="kind 'full' has no row for a new node"):
        made("full", name="full").rows_of_new([24])


def test_clipping_counts_every_table() -> None:
    emb, other = made("position"), made("position", name="other")
    emb(torch.arange(N)).sum().backward()
    norm = ge.clip_grad_norm_(emb, 1.0)
    # each of D columns: 2 parts of 12 nodes, 4 of 6, 8 of 3
    assert float(norm) == pytest.approx((D * (2 * 144 + 4 * 36 + 8 * 9)) ** 0.5)
    assert not other.tables[0].touched


PLACES = {"file": lambda folder: ge.File(folder, "600KiB"), "cache": lambda _: ge.DeviceCache("200KiB")}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_result_depends_on_the_placement(kind: str, place: str, tmp_path: Path) -> None:
    """Of 3,000 nodes, so that memory holds a part of the rows; own rows as well."""
    levels = np.stack([np.arange(3000) // 300, np.arange(3000) // 3], axis=1)
    own = None if kind == "full" else [5, 2999]
    found = []
    for placement in ("host", PLACES[place](str(tmp_path))):
        options = {"num_buckets": 900} if kind not in ("position", "full") else {}
        emb = ge.ComposedEmbedding(
            levels, 16, kind, name=f"t{len(found)}", seed=1, own_rows=own, placement=placement, **options
        )
        opt = ge.SparseAdam([emb], lr=0.1)
        for step in range(4):
            ids = torch.randint(0, 3000, (500,), generator=torch.Generator().manual_seed(step))
            emb.prefetch(ids)
            (emb(ids) - 1).square().sum().backward()
            opt.step()
        found.append(emb.weight[:])
        if placement == "host":
            with pytest.raises(ConfigError, match="memory"):
                emb.cache_stats()
        else:
            stats, memory = emb.cache_stats(), sum(table.spec.placement.memory_bytes for table in emb.tables)
            assert stats.requested == sum(table.cache_stats().requested for table in emb.tables) > 0
            assert 0.99 * placement.memory_bytes < memory <= placement.memory_bytes
    assert torch.equal(*found)


def test_a_placement_that_cannot_be_is_refused_before_a_table_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table 'node': memory=8192 bytes are shared by 5 tables, which need \d+ at"):
        made(placement=ge.File(tmp_path, "8KiB"))
    with pytest.raises(ConfigError, match=r"table 'node': ge.Buckets follows a schedule .* take ge.File"):
        made(placement=ge.Buckets(tmp_path, "1MiB"))
    with pytest.raises(ConfigError, match="table 'node': placement='disk'"):
        made(placement="disk")
    assert list(tmp_path.iterdir()) == []
    assert made("full", placement=ge.Buckets(tmp_path, "64KiB", parts=2)).weight[:].shape == (N, D)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_bags_are_those_of_the_rows(kind: str, mode: str) -> None:
    """Ids repeat within and between bags; the second bag is empty."""
    emb, other = made(kind), made(kind, name="other")
    for one, like in zip(other.tables, emb.tables, strict=True):
        one.weight[:] = like.weight[:]
    ids, offsets = torch.tensor([3, 3, 23, 0, 3, 7, 8]), torch.tensor([0, 3, 3, 5])
    factors = torch.linspace(-1, 2, 7, dtype=torch.float64).requires_grad_() if mode == "weighted" else None
    bags = emb.bag(ids, offsets, "mean" if mode == "mean" else "sum", factors)
    rows = other(ids)
    again = None if factors is None else factors.detach().clone().requires_grad_()
    rows = rows if again is None else rows * again[:, None]
    pieces = [rows[0:3], rows[3:3], rows[3:5], rows[5:7]]
    wanted = torch.stack([one.sum(dim=0) / (max(1, len(one)) if mode == "mean" else 1) for one in pieces])
    torch.testing.assert_close(bags, wanted)
    bags.square().sum().backward()
    wanted.square().sum().backward()
    for table, plain in zip(emb.tables, other.tables, strict=True):
        torch.testing.assert_close(table.sparse_grad().to_dense(), plain.sparse_grad().to_dense())
    if factors is not None:
        torch.testing.assert_close(factors.grad, again.grad)


def test_bags_of_no_ids_and_of_wrong_ones() -> None:
    emb = made()
    assert torch.equal(emb.bag(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])), torch.zeros(2, D).double())
    with pytest.raises(PartitionError, match="id 24 is outside"):
        emb.bag(torch.tensor([[24]]))
    with pytest.raises(ConfigError, match="per_sample_weights are for mode='sum'"):
        emb.bag(torch.tensor([[1]]), mode="mean", per_sample_weights=torch.ones(1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_rows_stay_until_they_are_let_go(kind: str) -> None:
    emb = made(kind, **({} if kind == "full" else {"own_rows": [1, 2]}))
    opt = ge.SparseAdam([emb], lr=0.1)
    before, others = emb.weight[:], torch.tensor([0, 20, 21, 22, 23])
    emb.freeze([1, 5])
    stepped(emb, opt, torch.arange(N))
    assert torch.equal(emb.weight[[1, 5]], before[[1, 5]])
    assert (emb.weight[others] != before[others]).any()
    emb.unfreeze([[1], [5]])
    stepped(emb, opt, torch.arange(N))
    assert (emb.weight[[1, 5]] != before[[1, 5]]).any(dim=1).all()


def test_rows_that_nodes_share_do_not_begin_anew() -> None:
    emb = made("full")
    opt, before = ge.SparseAdam([emb], lr=0.1), emb.weight[:]
    stepped(emb, opt, torch.arange(N))
    emb.reset_rows([4])
    assert torch.equal(emb.weight[4], before[4])
    assert not torch.equal(emb.weight[5], before[5])
    with pytest.raises(
        ConfigError, match=r"kind 'hash' are sums of rows that other nodes share.*\(h.buckets, h.weights"
    ):
        made("hash", name="h").reset_rows([4])


def test_composed_and_plain_tables_are_looked_up_at_once() -> None:
    emb, plain = made(), ge.DistEmbedding(9, D, "plain", ge.initializers.Uniform(seed=1), dtype=torch.float64)
    ids, own = torch.tensor([[3, 20], [3, 0]]), torch.tensor([8, 8, 1])
    rows, of_plain, again = ge.lookup([(emb, ids), (plain, own), (emb, own)])
    assert torch.equal(rows, emb.weight[ids])
    assert torch.equal(of_plain, plain.weight[own])
    assert torch.equal(again, emb.weight[own])
    (rows.sum() + 2 * again.sum() + of_plain.sum()).backward()
    assert emb.tables[0].sparse_grad().to_dense()[0].tolist() == [3.0 + 2 * 3] * D
    assert plain.sparse_grad().to_dense()[:, 0].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 2]


def trained(rank: int, world_size: int, kind: str) -> tuple[Tensor, list[Tensor]]:
    emb = made(kind)
    opt = ge.SparseAdagrad([emb], lr=0.1)
    for step in range(4):
        gen = torch.Generator().manual_seed(step)
        ids = torch.randint(0, N, (2, 6), generator=gen)
        mine = ids[rank] if world_size > 1 else ids.flatten()
        emb.prefetch(mine)
        (emb(mine) * 0.5).square().sum().backward()
        if step == 2:
            emb.freeze(mine[:3] if world_size > 1 else ids[:, :3].flatten())
        for one in [mine] if world_size > 1 else ids:
            emb.bag(one, torch.tensor([0, 2])).square().sum().backward()
        opt.step()
        opt.transport.flush()
        opt.transport.barrier()
    rows, tables = emb.weight[:], [table.weight[:] for table in emb.tables]
    opt.transport.barrier()
    return rows, tables


def in_ranks(kind: str) -> tuple[Tensor, list[Tensor]]:
    ge.init("collective")
    try:
        transport = ge.DistEmbedding(1, 1).transport
        return trained(transport.rank, transport.world_size, kind)
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["position-hash", "quotient-remainder"])
def test_two_ranks_train_what_one_process_trains_bit_for_bit(ranks: Ranks, kind: str) -> None:
    alone = trained(0, 1, kind)
    for rows, tables in ranks.run(in_ranks, 2, kind):
        for one, other in zip(tables, alone[1], strict=True):
            assert torch.equal(one, other)
        assert torch.equal(rows, alone[0])


def saved_in_ranks(folder: str, place: str, save: bool) -> Tensor:
    ge.init("collective")
    try:
        emb = made(part_policy=None if save else ge.RangeBook([0, 5, N]))
        opt = ge.SparseAdam([emb], lr=0.1)
        if save:
            emb(torch.arange(N)).square().sum().backward()
            opt.step()
            ge.save_checkpoint(f"{folder}/{place}", tables=[emb], optimizers=[opt])
        else:
            ge.load_checkpoint(f"{folder}/{place}", tables=[emb], optimizers=[opt])
        return emb.weight[:]
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_checkpoint_moves_between_one_process_and_several(ranks: Ranks, tmp_path: Path) -> None:
    many = {size: ranks.run(saved_in_ranks, size, str(tmp_path), f"{size}", True)[0] for size in (2, 4)}
    for size, rows in many.items():
        emb = made()
        opt = ge.SparseAdam([emb], lr=0.1)
        ge.load_checkpoint(tmp_path / f"{size}", tables=[emb], optimizers=[opt])
        assert torch.equal(emb.weight[:], rows)
        ge.save_checkpoint(tmp_path / f"of-{size}", tables=[emb], optimizers=[opt])
        assert all(
            torch.equal(found, rows) for found in ranks.run(saved_in_ranks, 2, str(tmp_path), f"of-{size}", False)
        )
        del emb, opt


def stepped(emb: ge.ComposedEmbedding, opt: Any, ids: Tensor) -> None:
    (emb(ids) - 1).square().sum().backward()
    opt.step()


@pytest.mark.parametrize("kind", ["position-hash", "position", "hash"])
def test_training_goes_on_in_a_table_that_has_more_nodes(tmp_path: Path, kind: str) -> None:
    """The name keeps a digest of the levels, which named all nodes: a grown table could not load its old rows."""
    small, joins = made(kind), LEVELS[[3, 21]]
    opt = ge.SparseAdam([small], lr=0.1)
    stepped(small, opt, torch.arange(5, N))
    ge.save_checkpoint(tmp_path / "1", tables=[small], optimizers=[opt])
    before, new = small.weight[:], small.rows_of_new([N, N + 1], None if kind == "hash" else joins)
    stepped(small, opt, torch.arange(3, N))
    after = small.weight[:]
    ge.shutdown()
    large = made(kind, np.concatenate([LEVELS, joins]))
    more = ge.SparseAdam([large], lr=0.1)
    loaded = ge.load_checkpoint(tmp_path / "1", tables=[large], optimizers=[more], allow_new_rows=True)
    assert torch.equal(large.weight[:N], before)
    torch.testing.assert_close(large.weight[N:], new)
    assert any("weight" in line and "exp_avg" in line for line in loaded.report)
    stepped(large, more, torch.arange(3, N))
    assert torch.equal(large.weight[:N], after)


def test_an_extended_partition_goes_on_with_the_rows_of_the_old_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    src = rng.integers(0, 60, 400)
    dst = src // 15 * 15 + rng.integers(0, 15, 400)
    graph = partition.HeteroGraph({"n": 60}, {("n", "to", "n"): (src, dst)})
    parts = partition.build(graph, 2, levels=[2, 8], out=tmp_path / "old", report=False)
    ends = np.arange(60, 66), np.arange(6) * 10
    grown = partition.extend(parts.path, ends, 6, out=tmp_path / "new", report=False)
    found = []
    for own in (parts, grown):
        emb = ge.ComposedEmbedding(
            own.levels(),
            D,
            num_buckets=5,
            name="node",
            part_policy=own.policy(),
            dtype=torch.float64,
            level_sizes=[2, 8],
        )
        opt = ge.SparseAdagrad([emb], lr=0.1)
        if not found:
            stepped(emb, opt, torch.arange(60))
            ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt])
        else:
            ge.load_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], allow_new_rows=True)
        rows = torch.empty(emb.num_embeddings, D, dtype=torch.float64)
        rows[torch.from_numpy(own.original_ids().copy())] = emb.weight[:]
        found.append(rows)
        ge.shutdown()
    assert torch.equal(found[1][:60], found[0])
    assert found[1].shape == (66, D)


def test_a_table_does_not_go_on_with_other_chains_of_old_nodes(tmp_path: Path) -> None:
    ge.save_checkpoint(tmp_path / "1", tables=[made()])
    ge.shutdown()
    grown = np.concatenate([LEVELS, LEVELS[:2]])
    changed = grown.copy()
    changed[3] = LEVELS[20]
    for levels, message in (
        (changed, "table 'node': the checkpoint has other levels of its 24 nodes than the first ones of these 26"),
        (grown[:20], "other levels of its 24 nodes than the first ones of these 20"),
        (grown[:, 1:], "other levels of its 24 nodes"),
    ):
        other = made(levels=levels)
        with pytest.raises(ConfigError, match=message):
            ge.load_checkpoint(tmp_path / "1", tables=[other], allow_new_rows=True)
        ge.shutdown()
    larger = made("position", grown)
    ge.save_checkpoint(tmp_path / "2", tables=[made("position", name="other")])
    with pytest.raises(ConfigError, match="level0"):
        ge.load_checkpoint(tmp_path / "2", tables=[larger], allow_new_rows=True)
    ge.shutdown()
    ge.save_checkpoint(tmp_path / "3", tables=[made("position")])
    ge.shutdown()
    larger = made("position", grown)
    with pytest.raises(PartitionError, match="has fewer nodes than the 26 here; pass allow_new_rows=True"):
        ge.load_checkpoint(tmp_path / "3", tables=[larger])


def test_a_checkpoint_of_another_partition_is_refused(tmp_path: Path) -> None:
    ge.save_checkpoint(tmp_path / "1", tables=[made()])
    other = ge.ComposedEmbedding(LEVELS[::-1].copy(), D, num_buckets=5, name="node", seed=3, dtype=torch.float64)
    with pytest.raises(ConfigError, match="the checkpoint has other levels of its 24 nodes"):
        ge.load_checkpoint(tmp_path / "1", tables=[other])
