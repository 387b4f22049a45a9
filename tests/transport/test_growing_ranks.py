"""A growing table is the same for any number of ranks, threads and parts, bit for bit in float64.

Every test runs a module-level function on each rank; the single-process result is made in the test.
"""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
import partition
from graph_emb.core import threads as core_threads
from graph_emb.table import id_map, places
from partition.partitioned import PartitionedGraph
from tests.growing_oracle import INIT, placed
from tests.ranks import Ranks, with_shared_memory

pytestmark = pytest.mark.dist

DIM, STEPS = 3, 14
POLICIES: dict[str, dict[str, Any]] = {
    "all stay": {},
    "admission, unused": {"admission": ge.SeenAtLeast(2, candidate_steps=4), "eviction": ge.Unused(3, every=2)},
    "all limits": {
        "admission": ge.SeenAtLeast(2, candidate_steps=9, max_candidates=20),
        "eviction": ge.Unused(1, max_rows=24),
    },
    "occurrences": {
        "admission": ge.SeenAtLeast(5, count="occurrences"),
        "eviction": ge.LeastUsed(max_rows=20, half_life=5, low_water=0.7, count="occurrences"),
    },
    "least used": {"eviction": ge.LeastUsed(max_rows=20, half_life=5, low_water=0.7, floor=4)},
    "smallest norms": {"admission": ge.SeenAtLeast(2), "eviction": ge.SmallNorm(max_rows=15)},
    "demoted": {"eviction": ge.LeastRecent(max_rows=9, low_water=0.6), "on_evict": "demote"},
}


def ids_of(step: int, rank: int, shift: int = 40) -> Tensor:
    """Ids with duplicates within and across ranks; some ranks have none in some steps."""
    rng = np.random.default_rng(100 * step + rank)
    num = 0 if (step + rank) % 4 == 3 else 30
    return torch.from_numpy((rng.zipf(1.4, num) % 60 - 30) << shift)


def grads_of(step: int, rank: int) -> Tensor:
    rng = np.random.default_rng(7 + 100 * step + rank)
    return torch.from_numpy(rng.normal(size=(len(ids_of(step, rank)), DIM)))


def train(
    shares: list[list[int]],
    policy: str,
    name: str,
    numbers: dict[str, Any],
    owners: Any,
    shift: int = 40,
    threads: int | None = None,
    order: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Any]:
    """Train with the batches of shares[rank] in each step; everything that a user can see of the table.

    ``threads`` are those that even a small batch takes; ``order`` seeds a permutation of each batch, whose gradients
    are rounded such that their sums are exact in any order.
    """
    ids_of = functools.partial(globals()["ids_of"], shift=shift)
    torch.set_num_threads(threads or len(shares) % 2 + 1)
    permutations = np.random.default_rng(order)
    folder = tempfile.TemporaryDirectory()
    ge.init(mode="collective" if len(shares) > 1 else "local")
    try:
        size = ge.growing(max_rows=60)
        policies = placed(POLICIES[policy], folder.name)
        emb = ge.DistEmbedding(size, DIM, "growing", INIT, owners, dtype=dtype, **policies)
        opt = getattr(ge, name)([emb], **numbers)
        mine = shares[emb.transport.rank]
        seen, held = [], []
        for step in range(STEPS):
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids_of(step, rank) for rank in mine)])
            none = torch.empty(0, DIM, dtype=torch.float64)
            grads = torch.cat([none, *(grads_of(step, rank) for rank in mine)]).to(dtype)
            if order is not None:
                shuffled = torch.from_numpy(permutations.permutation(len(ids)))
                ids, grads = ids[shuffled], (grads[shuffled] * 1024).round() / 1024
            named = torch.tensor([int(i) for rank in mine for i in ids_of(step, rank)[:2]], dtype=torch.int64)
            if step == 4:
                emb.grow(named)
            if step == 6 and policy != "all stay":
                seen.append(emb.evict().tolist())
            if step == 8:
                emb.freeze(named)
            if step % 5 == 3:
                emb.prefetch(ids)
            if step % 3 == 2:
                _, slots = emb.lookup(ids)
                opt.apply_gradients([(grads, slots)])
            else:
                emb(ids).backward(grads)
                opt.step()
            seen.append(emb.ids().tolist())
            held.append(waiting(emb))
        ids = torch.unique(torch.cat([ids_of(step, rank) for step in range(STEPS) for rank in range(4)]))
        state = {k: v[ids] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}
        there = emb.contains(torch.stack([ids, ids + 1]))
        return {"seen": seen, "waiting": held, "rows": emb.weight[ids], "there": there, **state}
    finally:
        ge.shutdown()
        folder.cleanup()


def waiting(emb: Any) -> list[list[int]]:
    """The candidates of all ranks, with their uses and last steps, in the order of their ids."""
    own = np.stack(list(emb.shard.candidates().values()), axis=1).tolist()
    shares = emb.transport.group.gather_objects(own, "candidates") if emb.transport.world_size > 1 else [own]
    return sorted(one for share in shares for one in share)


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(value, expected[key]) if isinstance(value, Tensor) else value == expected[key]
        for key, value in found.items()
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "numbers"), [("SparseAdagrad", {"lr": 0.1}), ("SparseAdam", {"lr": 0.1, "weight_decay": 0.1})]
)
def test_any_number_of_ranks_gives_the_bits_of_one(
    ranks: Ranks, policy: str, name: str, numbers: dict[str, Any]
) -> None:
    expected = train([[0, 1, 2, 3]], policy, name, numbers, ge.HashPolicy())
    assert len({tuple(ids) for ids in expected["seen"]}) > 3
    if policy == "demoted":  # no row leaves, but from memory
        stays = train([[0, 1, 2, 3]], "all stay", name, numbers, ge.HashPolicy())
        assert [ids for k, ids in enumerate(expected["seen"]) if k != 6] == stays["seen"]
        assert same({**expected, "seen": stays["seen"]}, stays)
    for shares, parts in (([[0, 1], [2, 3]], 1), ([[0], [1], [2, 3]], 3), ([[0], [1], [2], [3]], 2)):
        for found in ranks.run(train, len(shares), shares, policy, name, numbers, ge.HashPolicy(parts)):
            assert same(found, expected)


@pytest.mark.parametrize(("dtype", "merge"), [(torch.float32, "sum"), (torch.float64, "mean")])
def test_occurrences_count_over_all_ranks_however_their_gradients_travel(
    ranks: Ranks, dtype: torch.dtype, merge: str
) -> None:
    given = "occurrences", "SparseSGD", {"lr": 0.1, "merge": merge}, ge.HashPolicy(3), 40, None, None, dtype
    expected = train([[0, 1, 2, 3]], *given)
    for found in ranks.run(train, 3, [[0], [1], [2, 3]], *given):
        assert {key: found[key] for key in ("seen", "waiting")} == {key: expected[key] for key in ("seen", "waiting")}


def sent_by_each_way_of_counting() -> list[int]:
    """The bytes that this rank sends of one step, of a table that counts steps and of one that counts occurrences."""
    ge.init(mode="collective")
    try:
        tables = [
            ge.DistEmbedding(ge.growing(60), DIM, count, admission=ge.SeenAtLeast(2, count=count))
            for count in ("steps", "occurrences")
        ]
        for emb in tables:
            ge.SparseSGD([emb], lr=1.0).update([*range(20)] * 3, torch.ones(60, DIM), emb)
        return [emb.traffic.bytes_sent for emb in tables]
    finally:
        ge.shutdown()


def test_counts_travel_where_a_table_asks_for_them_alone(ranks: Ranks) -> None:
    for steps, occurrences in ranks.run(sent_by_each_way_of_counting, 2):
        away = steps // (8 + 4 * DIM)
        assert 0 < away < 20
        assert (steps, occurrences) == (away * (8 + 4 * DIM), away * (16 + 4 * DIM))


def train_on_threads(threads: int, *args: Any) -> dict[str, Any]:
    """``train`` where a batch of any size is worth several threads."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (core_threads, id_map, places):
            patch.setattr(module, "SERIAL_ROWS", 1)
        return train(*args[:-1], threads=threads, order=args[-1])


@pytest.mark.parametrize("policy", ["admission, unused", "least used", "smallest norms"])
def test_any_number_of_threads_and_any_order_of_a_batch_give_the_same_bits(ranks: Ranks, policy: str) -> None:
    given = policy, "SparseAdam", {"lr": 0.1}, ge.HashPolicy()
    one, two = [[0, 1, 2, 3]], [[0, 1], [2, 3]]
    expected = train_on_threads(1, one, *given, 0)
    for threads, order in ((1, 1), (2, 2), (4, 3)):
        assert same(train_on_threads(threads, one, *given, order), expected)
        for found in ranks.run(train_on_threads, 2, threads, two, *given, order):
            assert same(found, expected)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """Three parts of a ring of 20 nodes; ids of ``ids_of`` with shift 0 are from -30 to 29."""
    ring = partition.HeteroGraph({"_N": 20}, {("_N", "_E", "_N"): (np.arange(20), (np.arange(20) + 1) % 20)})
    return partition.build(ring, 3, out=tmp_path_factory.mktemp("parts") / "ring", method="random", report=False)


@pytest.mark.parametrize("policy", ["all stay", "admission, unused"])
def test_owners_by_a_partition_give_the_bits_of_owners_by_hash(
    ranks: Ranks, parts: PartitionedGraph, policy: str
) -> None:
    rule = ("SparseAdam", {"lr": 0.1})
    expected = train([[0, 1, 2, 3]], policy, *rule, ge.HashPolicy(), 0)
    assert same(train([[0, 1, 2, 3]], policy, *rule, parts.policy(), 0), expected)
    for shares in ([[0, 1], [2, 3]], [[0], [1], [2, 3]], [[0], [1], [2], [3]]):
        for found in ranks.run(train, len(shares), shares, policy, *rule, parts.policy(), 0):
            assert same(found, expected)


def stored(owners: Any) -> list[int]:
    """The ids whose rows this rank stores, of 0 .. 49."""
    ge.init(mode="collective")
    try:
        emb = ge.DistEmbedding(ge.growing(60), DIM, "growing", part_policy=owners)
        assert emb.part_policy is owners
        mine = torch.arange(50) if emb.transport.rank == 0 else torch.empty(0, dtype=torch.int64)
        ge.SparseSGD([emb], lr=1.0).update(mine, torch.ones(len(mine), DIM), emb)
        return emb.shard.ids().tolist()
    finally:
        ge.shutdown()


def test_rows_lie_with_the_owners_of_their_partition(ranks: Ranks, parts: PartitionedGraph) -> None:
    found = ranks.run(stored, 3, parts.policy())
    by_hash = ranks.run(stored, 3, ge.HashPolicy(3))
    part_of = parts.policy().book.owner(torch.from_numpy(parts.node_map(inverse=True).astype(np.int64)))
    for rank in range(3):
        assert [id for id in found[rank] if id < 20] == (part_of == rank).nonzero().flatten().tolist()
        assert [id for id in found[rank] if id >= 20] == [id for id in by_hash[rank] if id >= 20]
    assert found != by_hash


def announced(folder: str) -> tuple[int, int, bool]:
    """Pages that came for a prefetch, pages that a pull then missed, and whether its rows are those of before."""
    ge.init(mode="collective")
    try:
        file, eviction = ge.File(folder, memory="99KiB"), ge.LeastRecent(max_rows=1, low_water=1)
        emb = ge.DistEmbedding(
            ge.growing(max_rows=60), 300, "growing", INIT, eviction=eviction, on_evict="demote", placement=file
        )
        opt = ge.SparseSGD([emb], lr=1.0)
        opt.update(torch.arange(16), torch.ones(16, 300), emb)
        ids = torch.tensor([[1, 2, 3, 99, 3], [3, 4, 98, 97, 5]][emb.transport.rank])
        before = emb.weight[ids]
        emb.shard.drop_cache()
        emb.prefetch(ids)
        first = emb.cache_stats()
        rows = emb(ids).detach()
        return first.prefetched, emb.cache_stats().misses - first.misses, torch.equal(rows, before)
    finally:
        ge.shutdown()


def test_rows_in_files_of_all_owners_come_for_a_prefetch(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(announced, 2, str(tmp_path))
    assert [one[1:] for one in found] == [(0, True)] * 2
    assert all(one[0] > 0 for one in found)


def overfill() -> str:
    ge.init(mode="collective")
    try:
        emb = ge.DistEmbedding(ge.growing(max_rows=20), 1, "small")
        opt = ge.SparseSGD([emb], lr=1.0)
        for step in range(5):
            first = 100 * emb.transport.rank + 10 * step
            opt.update(torch.arange(first, first + 10), torch.ones(10, 1), emb)
    except ge.GraphEmbError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        ge.shutdown()
    return ""


def test_rows_of_all_ranks_count_against_max_rows(ranks: Ranks) -> None:
    for said in ranks.run(overfill, 2):
        assert "max_rows=20" in said


def out_of_step(refused: str) -> list[str]:
    """A rank refuses what it is given, and goes on to a call in which the others are not."""
    ge.init(mode="collective")
    said = []
    try:
        emb = ge.DistEmbedding(ge.growing(max_rows=20), 1, "one")
        opt = ge.SparseSGD([emb], lr=1.0)
        emb.grow([1])
        _, slots = emb.lookup([1])
        wrong: Any = "x" if emb.transport.rank else [2]
        calls: dict[str, Any] = {
            "lookup": lambda: emb.lookup(wrong),
            "grow": lambda: emb.grow(wrong),
            "apply_gradients": lambda: opt.apply_gradients(
                [(torch.ones(1, 1), replace(slots, epoch=7 * emb.transport.rank))]
            ),
        }
        for call in (calls[refused], emb.ids):
            try:
                call()
            except ge.GraphEmbError as error:
                said.append(str(error))
    finally:
        ge.shutdown()
    return said


@pytest.mark.parametrize("refused", ["lookup", "grow", "apply_gradients"])
def test_asking_for_ids_out_of_step_is_an_error_that_names_the_calls(ranks: Ranks, refused: str) -> None:
    """``ids()`` and ``num_rows`` began without the numbers by which ranks in another call are noticed, and all waited
    until the process group's timeout; and slots were refused before the call began to count."""
    first, second = ranks.run(out_of_step, 2, refused, timeout=90)
    what = {"lookup": "pull", "grow": "grow", "apply_gradients": "push"}[refused]
    assert f"rank 0 is in {what} of table 'one', rank 1 in another call (ids of table 'one')" in first[0]
    assert f"rank 1 skipped {what} of table 'one' (joint call" in first[0]
    assert ("ids are str" in second[0]) or ("are stale" in second[0])
    assert f"rank 1 is in ids of table 'one', rank 0 in another call ({what} of table 'one')" in second[1]


def of_other_policies() -> str:
    rank = int(os.environ["RANK"])
    ge.init(mode="collective")
    try:
        ge.DistEmbedding(ge.growing(max_rows=20), 1, "one", admission=ge.SeenAtLeast(2 + rank))([1])
    except ge.GraphEmbError as error:
        return str(error)
    finally:
        ge.shutdown()
    return ""


def test_ranks_make_a_table_of_the_same_policies(ranks: Ranks) -> None:
    """Each rank decided by its own which of its ids get a row."""
    for said in ranks.run(of_other_policies, 2, timeout=90):
        assert "tables made otherwise" in said


def refuse() -> list[str]:
    said = []
    for options in ({"hogwild": True}, {}):
        ge.init(mode="collective", **options)
        try:
            ge.DistEmbedding(ge.growing(max_rows=20), 1, "one")
            said.append("")
            fixed = ge.DistEmbedding(20, 1, "two")
            fixed.transport.grow("two", torch.tensor([1]))
        except ge.GraphEmbError as error:
            said.append(str(error))
        finally:
            ge.shutdown()
    return said


@with_shared_memory
def test_a_mode_that_cannot_grow_says_so(ranks: Ranks) -> None:
    for said in ranks.run(refuse, 2):
        assert "hogwild" in said[0]
        assert "table 'two' does not grow" in said[2]
