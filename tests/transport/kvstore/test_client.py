"""One trainer and its servers: pulls, pushes, flushes, handlers, names and errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.transport.kvstore import shared
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

ROWS = torch.arange(24.0).view(12, 2)
PARTS = RangeBook([0, 5, 12])


def table(name: str = "t", **options: Any) -> ge.DistEmbedding:
    return ge.DistEmbedding(12, 2, name=name, init_func=ge.initializers.FromArray(ROWS), part_policy=PARTS, **options)


def pull_things(transport: Any) -> list[Tensor]:
    emb = table()
    asked = [torch.tensor(ids) for ids in ([11, 0, 11, 5, 4], [2, 2], [9], [])]
    found = [emb(ids.long()).detach() for ids in asked]
    emb.weight[torch.tensor([7, 1])] = torch.tensor([[70.0, 71], [10, 11]])
    transport.barrier()
    return [*found, emb.weight[:]]


@pytest.mark.dist
def test_pull_keeps_order_and_duplicates_over_parts_and_servers() -> None:
    with shared_memory_is_clean():
        first, second = Cluster(2, 2, 2).run(pull_things)
    for found in (first, second):
        for ids, rows in zip(([11, 0, 11, 5, 4], [2, 2], [9], []), found, strict=False):
            assert torch.equal(rows, ROWS[torch.tensor(ids).long()])
    assert first[4][7].tolist() == [70, 71]
    assert torch.equal(first[4], second[4])


def count_asked(transport: Any) -> list[int]:
    """Ids that leave the trainer in a pull with repeats."""
    from graph_emb.transport.kvstore import rpc

    emb, sent, send = table(), [], rpc.send
    if transport.rank == 0:
        rpc.send = lambda server, call: (sent.extend(len(t) for t in call.tensors), send(server, call))[1]
        emb(torch.tensor([11, 11, 11, 6, 6, 0, 1, 0]))  # 11 and 6 are of the other machine
        rpc.send = send
    transport.barrier()
    return sent


@pytest.mark.dist
def test_a_pull_asks_once_for_each_distinct_id_of_other_machines_only() -> None:
    assert Cluster(2, 2, 1).run(count_asked)[0] == [2]


def add_up(transport: Any, pushes: int) -> Tensor:
    emb = ge.DistEmbedding(100, 4, name="sum")
    opt = ge.SparseSGD([emb], lr=1.0)
    for step in range(pushes):
        ids = torch.arange(100)
        rows = emb(ids)
        (rows * float(1 + step % 3)).sum().backward()
        opt.step()
    transport.flush()
    transport.barrier()
    return emb.weight[:]


@pytest.mark.dist
@pytest.mark.parametrize("servers", [1, 2])
def test_no_update_is_lost_when_four_trainers_push_to_the_same_rows(servers: int) -> None:
    pushes = 30
    expected = -4.0 * sum(1 + step % 3 for step in range(pushes))
    for rows in Cluster(4, 1, servers, staleness=5).run(add_up, pushes):
        assert torch.equal(rows, torch.full((100, 4), expected))


def see_own_pushes(transport: Any) -> list[float]:
    emb = ge.DistEmbedding(1, 1, name="own")
    opt = ge.SparseSGD([emb], lr=1.0)
    seen = []
    for _ in range(20):
        rows = emb(torch.tensor([0]))
        seen.append(float(rows.detach()))
        rows.sum().backward()
        opt.step()
    return seen


@pytest.mark.dist
@pytest.mark.parametrize("staleness", [0, 3])
def test_a_pull_misses_at_most_staleness_own_pushes(staleness: int) -> None:
    (seen,) = Cluster(1, staleness=staleness).run(see_own_pushes)
    for step, value in enumerate(seen):
        assert -step <= value <= -(step - staleness)


def more_than_the_push_buffer(transport: Any) -> float:
    emb = ge.DistEmbedding(2000, 4, name="wide", dtype=torch.float64)
    opt = ge.SparseSGD([emb], lr=1.0)
    shared.SMALLEST = 1 << 12  # each push is larger: the buffer grows, then is emptied many times
    for _ in range(6):
        emb(torch.arange(2000)).sum().backward()
        opt.step()
    transport.flush()
    return float(emb.weight[:].sum())


@pytest.mark.dist
def test_the_push_buffer_grows_and_is_emptied() -> None:
    with shared_memory_is_clean():
        assert Cluster(1, staleness=100).run(more_than_the_push_buffer) == [-6.0 * 8000]


def hogwild(transport: Any) -> tuple[Tensor, Tensor]:
    emb = table()
    opt = ge.SparseAdam([emb], lr=0.1)
    for _ in range(3):
        emb(torch.tensor([0, 0, 5, 11])).sum().backward()
        opt.step()
    transport.flush()
    transport.barrier()
    return emb.weight[:], torch.tensor(sorted(transport._unflushed))


@pytest.mark.dist
def test_hogwild_by_one_trainer_gives_the_same_numbers() -> None:
    plain, wild = (Cluster(1, 2, 1, **options).run(hogwild)[0][0] for options in ({}, {"hogwild": True}))
    assert torch.equal(plain, wild)
    assert not torch.equal(plain, ROWS)


def change_rate(transport: Any) -> list[float]:
    emb = ge.DistEmbedding(1, 1, name="rate")
    opt = ge.SparseSGD([emb], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.1)
    seen = []
    for _ in range(3):
        emb(torch.tensor([0])).sum().backward()
        opt.step()
        schedule.step()
        seen.append(round(float(emb.weight[0]), 6))
    return seen


@pytest.mark.dist
def test_the_learning_rate_can_change_at_every_step() -> None:
    assert Cluster(1).run(change_rate) == [[-1.0, -1.1, -1.11]]


def square(data: Any, name: str, ids: Tensor, values: Tensor) -> None:
    data[name][ids] += values * values


class Scaled:
    """A handler with data of its own and no __eq__, which DGL's client would reject later."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, data: Any, name: str, ids: Tensor) -> Tensor:
        return data[name][ids] * self.factor


def with_handlers(transport: Any) -> list[Tensor]:
    emb = table()
    ids = torch.tensor([0, 6, 11])
    transport.push_data("t", ids, torch.zeros(3, 2))  # no handler: assignment
    transport.flush()
    found = [emb.weight[ids]]
    transport.register_push_handler("t", square)
    transport.register_push_handler("t", square)
    transport.push_data("t", ids.int(), torch.full((3, 2), 3.0, requires_grad=True))
    found.append(emb.weight[ids])
    opt = ge.SparseSGD([emb], lr=1.0)
    emb(torch.tensor([0, 0])).sum().backward()
    opt.step()  # the handler gets the merged gradient, 2, in place of the rule
    found.append(emb.weight[torch.tensor([0])])
    emb.weight[torch.tensor([1])] = 5.0  # stays plain assignment
    transport.register_pull_handler("t", Scaled(10.0))
    found.append(emb.weight[torch.tensor([1, 6, 1])])
    transport.register_pull_handler("t", None)
    transport.register_push_handler("t", None)
    emb(torch.tensor([1])).sum().backward()
    opt.step()
    return [*found, emb.weight[torch.tensor([1])]]


HANDLED = [[[0, 0]] * 3, [[9, 9]] * 3, [[13, 13]], [[50, 50], [90, 90], [50, 50]], [[4, 4]]]


@pytest.mark.dist
def test_handlers_of_users_run_at_the_owners() -> None:
    (found,) = Cluster(1, 2, 2).run(with_handlers)
    assert [rows.tolist() for rows in found] == HANDLED


def broken_handler(data: Any, name: str, ids: Tensor, values: Tensor) -> None:
    raise ValueError("no room on the\nblackboard")


def with_broken_handler(transport: Any) -> list[str]:
    emb = table()
    transport.barrier()
    transport.register_push_handler("t", broken_handler)
    transport.barrier()
    said = []
    if transport.rank == 1:
        for call in (transport.flush, lambda: emb(torch.tensor([0]))):
            transport.push_data("t", torch.tensor([0]), torch.ones(1, 2))
            with pytest.raises(ge.PeerError) as caught:
                call()
            said.append(str(caught.value))
    transport.flush()
    transport.barrier()
    transport.register_push_handler("t", None)
    transport.barrier()
    said.append(str(float(emb.weight[0].sum())))
    return said


@pytest.mark.dist
def test_a_failing_handler_reaches_the_trainer_that_pushed_and_the_server_lives_on() -> None:
    cluster = Cluster(2)
    other, pusher = cluster.run(with_broken_handler)
    assert other == ["1.0"]
    for said in pusher[:2]:
        assert "server 0 (127.0.0.1:" in said
        assert "failed a push of trainer 1: ValueError: no room on the blackboard" in said
    assert pusher[2] == "1.0"


def held(lock: Any) -> None:
    lock.acquire()


def mistakes(transport: Any) -> list[str]:
    said, lock = [], threading.Lock()  # what holds it belongs to this process
    emb = table()
    opt = ge.SparseAdagrad([emb], lr=0.1)
    for call in (
        lambda: ge.DistEmbedding(12, 3, name="t"),
        lambda: ge.DistEmbedding(3, 2, name="lambda", init_func=lambda shape, dtype: held(lock)),
        lambda: transport.register_push_handler("t", lambda *_: held(lock)),
        lambda: ge.SparseAdam([emb], lr=0.1),
        lambda: ge.DistEmbedding(3, 2, name="gpu", device="cuda"),
        lambda: ge.DistEmbedding(3, 2, name="parts", part_policy=RangeBook([0, 1, 2, 3])),
        lambda: transport.push_data("t", torch.tensor([0]), torch.ones(2, 2)),
        lambda: transport.push_data("t", torch.tensor([1, 12]), torch.ones(2, 2)),  # was dropped in silence
        lambda: transport.push_data("t", torch.tensor([-1, 1]), torch.ones(2, 2)),
        lambda: transport.push_data("t", torch.tensor([0.0]), torch.ones(1, 2)),
        lambda: transport.push_data("t", torch.tensor([0]), torch.ones(1, 3)),
        lambda: transport.shard("gone"),
        lambda: emb.shard.allocate_state(()),
    ):
        with pytest.raises(ge.GraphEmbError) as caught:
            call()
        said.append(f"{type(caught.value).__name__}: {caught.value}")
    opt.close()
    ge.SparseAdam([emb], lr=0.1)
    return said


@pytest.mark.dist
def test_mistakes_raise_before_anything_is_sent() -> None:
    (said,) = Cluster(1, 2).run(mistakes)
    for words, found in zip(
        (
            "ConfigError: a table 't' of another shape is alive: it has (12, 2), asked for is (12, 3)",
            "ConfigError: table 'lambda': init_func",
            "ConfigError: table 't': push handler",
            "ModeError: table 't' is trained by another optimizer",
            "ConfigError: table 'gpu': device cuda",
            "PartitionError: table 'parts': 3 parts cannot be divided among 2 machines",
            "ShapeError: table 't': 1 ids but 2 rows",
            "PartitionError: table 't': id 12 is outside [0, 12)",
            "PartitionError: table 't': id -1 is outside [0, 12)",
            "ShapeError: table 't': ids have dtype torch.float32",
            "ShapeError: table 't': values have shape (1, 3), its rows (1, 2)",
            "ModeError: no table 'gone' here; live tables: t",
            "ModeError: table 't': state in kvstore mode is made by attach()",
        ),
        said,
        strict=True,
    ):
        assert words in found


def with_rows_of_each_owner(transport: Any) -> Tensor:
    class Owned:
        """No name leads a server to it."""

        first = -1.0

        def fill_(self, weight: Tensor, first_id: int) -> None:
            weight.fill_(self.first)

        def fill_owned_(self, weight: Tensor, first_id: int, original_ids: Any) -> None:
            weight.fill_(self.first)

        def for_owner(self, low: int, high: int) -> Any:
            own = Owned()
            own.first = float(low)
            return own

    return ge.DistEmbedding(4, 1, "owned", Owned()).weight[:].flatten()


@pytest.mark.dist
def test_each_server_gets_its_share_of_an_initializer_that_the_program_defines() -> None:
    (found,) = Cluster(1, 1, 2).run(with_rows_of_each_owner)
    assert found.tolist() == [0, 0, 2, 2]


def clock_continues(transport: Any) -> tuple[int, int]:
    emb = table()
    opt = ge.SparseAdam([emb], lr=0.1)
    for _ in range(3):
        emb(torch.tensor([0])).sum().backward()
        opt.step()
    saved = opt.state_dict()
    emb(torch.tensor([0])).sum().backward()
    opt.step()
    opt.load_state_dict(saved)
    before = int(emb.shard.state["step"])
    emb(torch.tensor([0])).sum().backward()
    opt.step()
    transport.flush()
    return before, int(emb.shard.state["step"])


@pytest.mark.dist
def test_a_restored_clock_goes_on_from_there() -> None:
    assert Cluster(1, 2).run(clock_continues) == [(3, 4)]


def votes(transport: Any) -> list[int]:
    return [transport.votes(transport.rank == 0), transport.votes(True), transport.votes(False)]


@pytest.mark.dist
def test_votes_are_counted() -> None:
    assert Cluster(2).run(votes) == [[1, 2, 0]] * 2


def half_precision(transport: Any) -> list[Any]:
    found: list[Any] = []
    for dtype in (torch.float16, torch.bfloat16):
        emb = ge.DistEmbedding(10, 2, name=str(dtype), dtype=dtype)
        opt = ge.SparseAdagrad([emb], lr=1.0)
        emb(torch.arange(10)).float().sum().backward()
        opt.step()
        emb.weight[torch.tensor([0, 9])] = torch.full((2, 2), 3.0)
        found.append((emb.weight.dtype is dtype, emb.weight[:].float().sum(1).tolist()))
    return found


@pytest.mark.dist
def test_sixteen_bit_tables_travel() -> None:
    """DGL's RPC knows both dtypes; state and gradients are float32."""
    assert Cluster(1, 2).run(half_precision) == [[(True, [6.0, *[-2.0] * 8, 6.0])] * 2]
