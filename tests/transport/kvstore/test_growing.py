"""A growing table at DGL's servers is the table of local mode, where no row is pushed by two trainers in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import GraphEmbError
from graph_emb.graph.hash_book import key_of
from graph_emb.graph.original_ids import ArrayIds
from partition.partitioned import PartPolicy
from tests.growing_oracle import INIT, placed
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

pytestmark = pytest.mark.dist

DIM, STEPS = 3, 14
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], torch.dtype]] = {
    "sgd": ("SparseSGD", {"lr": 0.1}, torch.float32),
    "adagrad": ("SparseAdagrad", {"lr": 0.1}, torch.float64),
    "adam, lazy decay": ("SparseAdam", {"lr": 0.1, "weight_decay": 0.1}, torch.float64),
    "row adam": ("SparseRowAdam", {"lr": 0.1}, torch.float32),
    "adam, lazily": ("SparseAdam", {"lr": 0.1, "weight_decay": 0.1, "weight_decay_mode": "lazy"}, torch.float64),
}
POLICIES: dict[str, dict[str, Any]] = {
    "all stay": {},
    "admission, unused": {
        "admission": ge.SeenAtLeast(2, candidate_steps=9, max_candidates=20),
        "eviction": ge.Unused(1, max_rows=24),
    },
    "least used": {
        "admission": ge.SeenAtLeast(5, count="occurrences"),
        "eviction": ge.LeastUsed(max_rows=20, half_life=5, low_water=0.7, floor=4, count="occurrences"),
    },
    "smallest norms": {"admission": ge.SeenAtLeast(2), "eviction": ge.SmallNorm(max_rows=15)},
    "demoted": {"eviction": ge.LeastRecent(max_rows=9, low_water=0.5), "on_evict": "demote"},
}
KNOWN = PartPolicy("node~_N", ge.RangeBook([0, 9, 20]), ArrayIds(np.random.default_rng(0).permutation(20), 20))


def share(step: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Ids, with repeats, and gradients of a step; those of different trainers never meet."""
    rng = np.random.default_rng(step)
    ids = rng.zipf(1.4, 60) % 60 - 30
    grads = rng.normal(size=(60, DIM))
    mine = ids % world_size == rank
    return torch.from_numpy(ids[mine]), torch.from_numpy(grads[mine])


def train(
    transport: Any, ranks: list[int], world_size: int, owners: Any = None, folder: str | Path = ""
) -> dict[str, Any]:
    """All that a user can see of a table for each policy, each with another rule; local mode trains all shares."""
    found: dict[str, Any] = {}
    for (policy, policies), (name, numbers, dtype) in zip(POLICIES.items(), OPTIMIZERS.values(), strict=True):
        size, policies = ge.growing(max_rows=60), placed(policies, folder)
        emb = ge.DistEmbedding(size, DIM, f"growing, {policy}", INIT, owners, dtype=dtype, **policies)
        opt = getattr(ge, name)([emb], **numbers)
        for step in range(STEPS):
            shares = [share(step, rank, world_size) for rank in ranks]
            ids, grads = torch.cat([ids for ids, _ in shares]), torch.cat([grads for _, grads in shares]).to(dtype)
            named = torch.cat([ids[:3] for ids, _ in shares])
            if step == 4:
                emb.grow(named)
            if step == 8:
                emb.freeze(named)
            if step == 9:
                emb.unfreeze(ids)
            transport.barrier()
            if step == 6 and "eviction" in policies:
                found[f"{policy}: gone"] = emb.evict().tolist()
            if step % 3 == 2:
                _, slots = emb.lookup(ids)
                opt.apply_gradients([(grads, slots)])
            else:
                emb(ids).backward(grads)
                opt.step()
            transport.flush()
            transport.barrier()
            found[f"{policy}: ids after {step}"] = emb.ids().tolist()
            transport.barrier()  # freeze() and grow() make rows
        ids = torch.arange(-31, 31)
        found[f"{policy}: rows"] = emb.weight[ids]
        found[f"{policy}: there"] = emb.contains(ids.view(2, 31))
        found |= {f"{policy}: {k}": v[ids] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}
        if policy == "demoted":
            assert emb.cache_stats().requested > 0
        transport.barrier()
    return found


def as_rank(transport: Any, owners: Any, folder: Path) -> dict[str, Any]:
    return train(transport, [transport.rank], transport.world_size, owners, folder)


def locally(function: Any, *args: Any) -> Any:
    ge.shutdown()
    try:
        return function(ge.init("local"), *args)
    finally:
        ge.shutdown()


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in found.items():
        same = torch.equal(value, expected[key]) if isinstance(value, Tensor) else value == expected[key]
        assert same, key


@pytest.mark.parametrize(
    ("machines", "servers", "trainers", "owners"),
    [(1, 1, 1, None), (1, 2, 2, KNOWN), (2, 1, 2, ge.HashPolicy(2)), (2, 2, 3, KNOWN)],
)
def test_a_growing_table_at_servers_equals_the_local_one(
    tmp_path: Path, machines: int, servers: int, trainers: int, owners: Any
) -> None:
    expected = locally(train, list(range(trainers)), trainers, None, tmp_path / "local")
    with shared_memory_is_clean():
        everyone = Cluster(trainers, machines, servers).run(as_rank, owners, tmp_path / "servers")
    for found in everyone:
        check_same(found, expected)


SELDOM: dict[str, dict[str, Any]] = {
    "unused": {"admission": ge.SeenAtLeast(2, candidate_steps=4), "eviction": ge.Unused(4, every=3)},
    "least used": {"eviction": ge.LeastUsed(max_rows=20, half_life=6, low_water=0.7, every=3)},
    "smallest norms": {"eviction": ge.SmallNorm(max_rows=15, every=6)},
    "least recent": {"admission": ge.SeenAtLeast(2), "eviction": ge.LeastRecent(max_rows=12, every=6)},
}


def with_few_barriers(transport: Any, ranks: list[int], world_size: int) -> dict[str, Any]:
    """Ids and rows after each barrier, of which there is one every third step."""
    found: dict[str, Any] = {}
    for name, policies in SELDOM.items():
        emb = ge.DistEmbedding(ge.growing(max_rows=60), DIM, name, INIT, dtype=torch.float64, **policies)
        opt = ge.SparseAdagrad([emb], lr=0.1)
        for step in range(STEPS + 1):
            shares = [share(step, rank, world_size) for rank in ranks]
            opt.update(torch.cat([ids for ids, _ in shares]), torch.cat([grads for _, grads in shares]), emb)
            if step % 3 == 2:
                transport.flush()
                transport.barrier()
                ids = emb.ids()
                found[f"{name} {step}"] = torch.cat([ids[:, None].double(), emb.weight[ids]], dim=1)
                transport.barrier()
    return found


def with_few_barriers_as_rank(transport: Any) -> dict[str, Any]:
    return with_few_barriers(transport, [transport.rank], transport.world_size)


def test_trainers_of_other_rows_need_a_barrier_before_a_pass_alone() -> None:
    expected = locally(with_few_barriers, [0, 1], 2)
    assert all(len(rows) for rows in expected.values())
    for found in Cluster(2, 1, 2).run(with_few_barriers_as_rank):
        check_same(found, expected)


def policies_wait_for_barriers(transport: Any) -> dict[str, Any]:
    """Of a table whose rows leave after a step without a use; the first trainer's view."""
    found: dict[str, Any] = {}
    emb = ge.DistEmbedding(ge.growing(10), 1, "one", eviction=ge.Unused(1))
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.grow([5], torch.tensor([[5.0]]))
    _, slots = emb.lookup([5])
    for id in (1, 2, 3, 4):
        opt.update([id], torch.ones(1, 1), emb)
    found["before"] = emb.ids().tolist()
    transport.barrier()
    found["after"] = emb.ids().tolist()
    try:
        opt.apply_gradients([(torch.ones(1, 1), slots)])
    except GraphEmbError as error:
        found["stale"] = str(error)
    found["left behind"] = emb.weight[[5]].tolist()
    return found


def test_rows_leave_at_barriers_and_slots_are_stale_then() -> None:
    (found,) = Cluster(1, 1, 2).run(policies_wait_for_barriers)
    assert found["before"] == [1, 2, 3, 4, 5]
    assert found["after"] == [3, 4]
    assert "the slots of 1 ids are stale: rows were evicted 1 times" in found["stale"]
    assert found["left behind"] == [[0.0]]


def steps_of_one_server(transport: Any) -> list[int]:
    """The first step is one of server 0 alone, whose keys are negative, the others are of server 1."""
    ids = torch.arange(20)
    low, high = (ids[key_of(ids) < 0][0], ids[key_of(ids) >= 0][0])
    emb = ge.DistEmbedding(ge.growing(10), 1, "one", eviction=ge.Unused(1))
    opt = ge.SparseSGD([emb], lr=1.0)
    for id in (low, high, high, high):
        opt.update(id.view(1), torch.ones(1, 1), emb)
    transport.barrier()
    return [int(high), *emb.ids().tolist()]


def test_a_server_counts_the_steps_that_touch_none_of_its_rows() -> None:
    (found,) = Cluster(1, 1, 2).run(steps_of_one_server)
    assert found == [found[0]] * 2


def near_rows(transport: Any) -> dict[str, Any]:
    """Calls to the servers by look-ups of rows that are there, that lack, and that came back after an eviction."""
    found: dict[str, Any] = {}
    emb = ge.DistEmbedding(ge.growing(40), 2, "near", INIT, eviction=ge.Unused(1))
    opt = ge.SparseSGD([emb], lr=1.0)
    calls: list[str] = []
    ask = transport._exchange.start

    def counted(asked: Any) -> Any:
        calls.extend(method for _, method, *_ in asked)
        return ask(asked)

    transport._exchange.start = counted
    ids = torch.tensor([3, -7, 3, 10**12, 5])
    first = emb(ids).detach()

    def read(name: str) -> None:
        calls.clear()
        found[name] = emb(ids).detach() - first, sorted(set(calls) - {"flush"})

    opt.update([3, -7], torch.ones(2, 2), emb)
    read("some have rows")
    opt.update([10**12, 5], torch.ones(2, 2), emb)
    read("all have rows")
    read("all again")
    transport.barrier()
    opt.update([5], torch.ones(1, 2), emb)
    opt.update([5], torch.ones(1, 2), emb)
    transport.barrier()  # all but 5 leave
    opt.update([8, 9, 10, 11], torch.ones(4, 2), emb)  # in their places
    read("rows left")
    opt.update([3, -7, 10**12], torch.ones(3, 2), emb)
    read("they came back")
    found["counts"] = transport.counts["near"].asked, transport.counts["near"].local
    return found


def test_rows_of_this_machine_are_asked_for_once() -> None:
    (found,) = Cluster(1, 1, 2).run(near_rows)
    expected = {  # of the ids 3, -7, 3, 10**12, 5: how many steps of -1 each has made
        "some have rows": ([1, 1, 1, 0, 0], ["find"]),
        "all have rows": ([1, 1, 1, 1, 1], ["find"]),
        "all again": ([1, 1, 1, 1, 1], []),
        "rows left": ([0, 0, 0, 0, 3], ["find"]),
        "they came back": ([1, 1, 1, 1, 3], ["find"]),
    }
    for name, (steps, calls) in expected.items():
        moved, made = found[name]
        assert torch.allclose(moved, -torch.tensor(steps)[:, None].expand(5, 2).float(), atol=1e-6), name
        assert made == calls, name
    assert found["counts"] == (30, 24)


def say_no(transport: Any) -> dict[str, str]:
    """The error of each call that growing tables at servers refuse."""
    emb = ge.DistEmbedding(ge.growing(3), 2, "growing", INIT)
    strict = ge.DistEmbedding(ge.growing(3, "error"), 2, "strict", INIT)
    opt = ge.SparseAdagrad([emb], lr=1.0)
    calls = {
        "evict": emb.evict,
        "missing": lambda: strict(torch.tensor([7])),
        "handler": lambda: transport.register_push_handler("growing", print),
        "push_data": lambda: transport.push_data("growing", torch.tensor([1]), torch.ones(1, 2)),
        "counts": emb.row_counts,
        "another": lambda: ge.SparseSGD([emb], lr=1.0),
        "fixed": lambda: (ge.DistEmbedding(3, 2, "fixed"), transport.grow("fixed", torch.tensor([1]))),
        "policy": lambda: ge.DistEmbedding(ge.growing(3), 2, "strange", part_policy=ge.RangeBook([0, 3])),
        "full": lambda: (opt.update([1, 2, 3, 4, 5, 6, 7, 8], torch.ones(8, 2), emb), transport.flush()),
        "total": lambda: (opt.update([1, 2], torch.ones(2, 2), emb), opt.update([3, 4], torch.ones(2, 2), emb),
                          transport.barrier()),
    }  # fmt: skip
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = ""
        except GraphEmbError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def test_what_growing_tables_at_servers_refuse_is_said() -> None:
    (said,) = Cluster(1, 1, 2).run(say_no)
    assert "table 'growing' has no eviction" in said["evict"]
    assert said["missing"].startswith("PartitionError: ")
    assert "id 7 has no row" in said["missing"]
    assert "table 'growing' grows: a push handler" in said["handler"]
    assert "table 'growing' grows: push_data" in said["push_data"]
    assert "no optimizer counts" in said["counts"] or "no trainer has rows of its state" in said["counts"]
    assert "another optimizer" in said["another"]
    assert "table 'fixed' does not grow" in said["fixed"]
    assert "ge.HashPolicy" in said["policy"]
    assert "exceed max_rows=3" in said["full"]
    assert "rows of all ranks exceed max_rows=3" in said["total"]


def hogwild(transport: Any) -> str:
    try:
        ge.DistEmbedding(ge.growing(3), 2, "growing")
    except GraphEmbError as error:
        return str(error)
    return ""


def test_hogwild_cannot_hold_a_growing_table() -> None:
    (said,) = Cluster(1, 1, 1, hogwild=True).run(hogwild)
    assert "table 'growing' grows: its owner makes each row, so hogwild=True cannot hold it" in said


def optimizers_follow(transport: Any) -> list[list[float]]:
    """Two optimizers one after the other: the state of the second begins anew, and rows stay."""
    emb = ge.DistEmbedding(ge.growing(5), 1, "growing")
    for _ in range(2):
        opt = ge.SparseAdagrad([emb], lr=1.0)
        opt.update([4, 2**62], torch.full((2, 1), 2.0), emb)
        transport.flush()
        transport.barrier()  # state goes with the last optimizer that has it, before another trainer's has begun, too
        opt.close()
        transport.barrier()
    return emb.weight[[4, 2**62, 5]].tolist()


def test_an_optimizer_after_another_one_begins_anew() -> None:
    for found in Cluster(2, 1, 2).run(optimizers_follow):
        # Each trainer steps by 1, then 1 / sqrt(2), of each optimizer, as the state is that of the table.
        assert found[0] == found[1] == [pytest.approx(-2 * (1 + 1 / 2**0.5))]
        assert found[2] == [0.0]


def rounded(transport: Any) -> list[float]:
    emb = ge.DistEmbedding(ge.growing(9), 1, "growing")
    emb.weight[list(range(8))] = torch.full((8, 1), 1 + 2**-10)
    transport.barrier()
    return emb(torch.arange(8)).flatten().tolist()


def test_rows_of_this_machine_travel_exactly_whatever_the_wire_dtype() -> None:
    for found in Cluster(2, 1, 2, wire_dtype="bfloat16").run(rounded):
        assert set(found) == {1 + 2**-10}
    for found in Cluster(2, 2, 1, wire_dtype="bfloat16").run(rounded):
        assert set(found) == {1 + 2**-10, 1.0}
