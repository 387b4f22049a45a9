"""Skip-gram by trainers and servers: the arithmetic of ranks that exchange, and trainers that keep together."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram.steps import PacedSteps, WalkBatch
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, train_skipgram
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from tests.models.skipgram.local_sgd import NODES, SMALL, WALKS, exchanged, fill, graph_of_groups
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("idle_servers")

BOUNDS = [0, 25, 40]


def as_a_rank(transport: Any, port: int) -> ProcessGroup:
    """The group in which trainers bring their walkers together."""
    os.environ.update(
        RANK=str(transport.rank),
        LOCAL_RANK=str(transport.rank),
        WORLD_SIZE=str(transport.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    return ProcessGroup()


def trained_with_servers(transport: Any, port: int, config: dict[str, Any], frozen: list[int]) -> dict[str, Any]:
    """Train as one of the trainers; all rows, the history, and how often rows were pushed."""
    group = as_a_rank(transport, port)
    try:
        book = RangeBook(BOUNDS)
        part = PartGraph.of_graph(graph_of_groups(), layout(book, transport.world_size, None, "walks"), transport.rank)
        sampler = PartitionedWalkSampler(part, group, **WALKS)
        model = SkipGram(NODES, SkipGramConfig(**config), seed=3, part_policy=book)
        fill(model)
        transport.barrier()
        if frozen and transport.rank == 0:
            model.embedding.freeze(torch.tensor(frozen))
        transport.barrier()
        result = train_skipgram(sampler, model=model, num_threads=1, progress=False)
        rows = [table.weight[:] for table in model.tables]
        transport.barrier()
        return {"rows": rows, "history": result.history, "pushes": transport.traffic.steps}
    finally:
        group.close()


def run(config: dict[str, Any], machines: int, frozen: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    cluster = Cluster(trainers=2, machines=machines)
    return cluster.run(trained_with_servers, store.port, config, list(frozen))


@pytest.mark.dist
@pytest.mark.parametrize(("machines", "tables", "pool"), [(1, 2, 0), (2, 1, 0), (2, 2, 7)])
def test_sgd_adds_up_what_each_trainer_has_learnt(machines: int, tables: int, pool: int) -> None:
    config = {**SMALL, "exchange_walks": 30, "tables": tables, "negative_pool": pool}
    expected = exchanged(SkipGramConfig(**config, reduction="sum"), BOUNDS, 2, [0, 60, 120, 160])
    found = run(config, machines)
    for trainer in found:
        for mine, other in zip(trainer["rows"], expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)
        assert trainer["pushes"] == -(-160 // (30 * 2))
        assert trainer["history"][-1].walks == 160, "the walks of both trainers"
    assert (found[0]["history"][-1].local_share == 1.0) == (machines == 1)


@pytest.mark.dist
def test_frozen_rows_stay_and_all_trainers_step_alike() -> None:
    """Only the first trainer knows of the rows: both must take gradients, or they would wait for each other."""
    first = SkipGram(NODES, SkipGramConfig(**SMALL), seed=3)
    fill(first)
    found = run({**SMALL, "lr": 0.01, "batch_size": 10}, 1, frozen=(3, 30))
    rows = found[0]["rows"][0]
    assert torch.equal(rows[[3, 30]], first.embedding.weight[:][[3, 30]])
    assert not torch.equal(rows[4], first.embedding.weight[:][4])
    assert found[0]["pushes"] == found[1]["pushes"] == 160 // 10


class Meeting:
    """A transport of threads that counts what a trainer says to it."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self.calls: list[str] = []

    def flush(self) -> None:
        self.calls.append("flush")

    def barrier(self) -> None:
        self.calls.append("barrier")
        self._barrier.wait(300)


class SlowSteps:
    """Notes how many walks it did, and how far the other is."""

    optimizer = None

    def __init__(self, pause: float, size: int, done: list[int], mine: int) -> None:
        self.size, self._pause, self._done, self._mine = size, pause, done, mine
        self.leads: list[int] = []

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        time.sleep(self._pause)
        self._done[self._mine] += batch.total
        self.leads.append(self._done[self._mine] - self._done[1 - self._mine])
        return 1.0, 2.0


@pytest.mark.parametrize(("together", "size", "paced"), [(10, 1, 10), (10, 4, 12), (3, 4, 4), (1000, 4, 1000)])
def test_a_fast_trainer_waits_for_a_slow_one(together: int, size: int, paced: int) -> None:
    done, barrier = [0, 0], threading.Barrier(2)
    slow, fast = SlowSteps(0.01, size, done, 0), SlowSteps(0.0, size, done, 1)
    meetings = [Meeting(barrier), Meeting(barrier)]
    both: Any = list(zip((slow, fast), meetings, strict=True))
    steps = [PacedSteps(inner, meeting, together) for inner, meeting in both]
    assert [one.size for one in steps] == [paced, paced]
    batch = WalkBatch(np.zeros((50, 2), np.int32), np.arange(50), 0, 0, 50, 0)
    sums: list[Any] = [None, None]

    def work(number: int) -> None:
        sums[number] = steps[number].run(batch)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    pieces = -(-50 // paced)
    assert sums == [(float(pieces), 2.0 * pieces)] * 2
    assert done == [50, 50]
    assert max(fast.leads) <= paced
    assert meetings[0].calls == meetings[1].calls == ["flush", "barrier"] * pieces
