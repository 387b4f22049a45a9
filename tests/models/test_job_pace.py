"""Lines of several trainers tell the pace of the job: of walks, triples and networks, in both modes.

The second rank's clock runs a million times too fast, so that it seems to work longest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.gnn import trainer as gnn
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.train import train_rgcn
from graph_emb.models.kge import training as kge
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.models.skipgram import history as skipgram
from graph_emb.models.skipgram.training import SkipGramConfig, train_skipgram
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.base import Transport
from graph_emb.transport.data_parallel import DataParallel
from graph_emb.transport.lockstep import layout
from graph_emb.transport.pace import JobPace, PaceMeter
from graph_emb.transport.process_group import ProcessGroup
from tests.models.gnn.planted import planted
from tests.models.kge.references import ring
from tests.models.skipgram.local_sgd import SMALL, WALKS, graph_of_groups
from tests.models.skipgram.test_kvstore import as_a_rank
from tests.ranks import Ranks, with_shared_memory
from tests.transport.kvstore.cluster import Cluster

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("fresh_mode", "idle_servers")]

FAST = 1_000_000
KGE = KGEConfig(dim=8, num_negatives=4, chunk_size=2, batch_size=8, epochs=3, valid_every=0)
KVSALL = KGEConfig(model="complex", dim=8, training="kvsall", batch_size=8, epochs=3, valid_every=0)
GNN = RGCNConfig(epochs=4, dropout=0.0, eval_every=2, fanouts=(4, 4), batch_size=17)


@contextmanager
def watched(transport: Transport) -> Iterator[list[dict[str, Any]]]:
    """What the pace is made of, and what tables had moved by then; with the clocks of the module's first lines."""
    seen: list[dict[str, Any]] = []
    of = JobPace.of

    def spy(told: list[list[float]]) -> JobPace:
        pace, traffic = of(told), transport.traffic
        away = sum((one.distinct - one.local) * row for one, row in _rows(transport))
        seen.append({"pace": pace, "told": told, "sent": traffic.bytes_sent, "rows": away})
        return pace

    fast = partial(PaceMeter, clock=lambda: FAST ** int(transport.rank) * time.perf_counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobPace, "of", spy)
        for module in (skipgram, kge, gnn):
            patch.setattr(module, "PaceMeter", fast)
        yield seen


def _rows(transport: Transport) -> list[tuple[Any, int]]:
    """The counts of each table, with the bytes of its rows."""
    tables: Any = transport._tables
    return [(transport.traffic_of(name), 4 * tables[name].spec.dim) for name in transport.table_names()]


def walked(transport: Any, group: Any) -> Any:
    with watched(transport) as seen:
        book = RangeBook([0, 25, 40])
        part = PartGraph.of_graph(graph_of_groups(), layout(book, 2, None, "walks"), transport.rank)
        sampler = PartitionedWalkSampler(part, group, **WALKS)
        config = SkipGramConfig(**SMALL, exchange_walks=20, epochs=2)
        result = train_skipgram(sampler, config, num_threads=1, progress=False, log_interval=0)
        return [line.as_dict() for line in result.history], seen


def walked_collective() -> Any:
    transport: Any = ge.init(mode="collective")
    try:
        return walked(transport, transport.group)
    finally:
        ge.shutdown()


def walked_with_servers(transport: Any, port: int) -> Any:
    group = as_a_rank(transport, port)
    try:
        return walked(transport, group)
    finally:
        group.close()


def test_walks_of_ranks(ranks: Ranks) -> None:
    first, second = ranks.run(walked_collective, 2)
    lines, seen = first
    assert [line["job"] for line in lines] == [line["job"] for line in second[0]], "every rank has the same lines"
    assert [line["job"]["slowest"] for line in lines] == [1] * len(lines)
    assert all(line["job"]["slowest_share"] < 0.52 for line in lines)
    tokens = [0, *(line["tokens"] for line in lines)]
    assert [sum(of_rank[0] for of_rank in one["told"]) for one in seen] == [
        after - before for before, after in pairwise(tokens)
    ]
    assert [line["job"]["bytes_out"] for line in lines] == [line["bytes_sent"] for line in lines]
    assert [line["job"]["bytes_in"] for line in lines] == [line["bytes_sent"] for line in lines]
    assert lines[-1]["bytes_sent"] > lines[0]["bytes_sent"] > 0


def test_walks_of_trainers_with_servers() -> None:
    """Rows come from the server of the other machine; walkers go from trainer to trainer."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = Cluster(trainers=2, machines=2).run(walked_with_servers, store.port)
    lines, _ = found[0]
    assert [line["job"] for line in lines] == [line["job"] for line in found[1][0]]
    assert lines[-1]["job"]["slowest"] == 1
    job = lines[-1]["job"]
    assert job["bytes_out"] == lines[-1]["bytes_sent"] > 0
    sent = sum(of_trainer[-1]["sent"] for _, of_trainer in found)
    walkers = lines[-1]["bytes_sent"] - sent
    assert walkers > 0
    assert job["bytes_in"] == walkers + sum(of_trainer[-1]["rows"] for _, of_trainer in found)


def test_one_process_has_no_job() -> None:
    walks = WalkSampler(graph_of_groups(), **WALKS)
    lines = train_skipgram(walks, SkipGramConfig(**SMALL), num_threads=1, progress=False).history
    trained = train_kge(ring(), KGE, num_threads=1)
    graph, task = planted()
    network = train_rgcn(graph, task, GNN)
    for line in (*lines, *trained.history, *network.history):
        assert line.job is None
        assert "job" not in line.as_dict()


def triples(transport: Any, config: KGEConfig) -> Any:
    with watched(transport) as seen:
        result = train_kge(ring(), config, seed=3, num_threads=1)
        return [line.as_dict() for line in result.history], seen


def triples_collective(config: KGEConfig, hogwild: bool) -> Any:
    transport = ge.init(mode="collective", hogwild=hogwild)
    try:
        return triples(transport, config)
    finally:
        ge.shutdown()


@pytest.mark.parametrize("hogwild", [False, pytest.param(True, marks=with_shared_memory)])
def test_triples_of_ranks(ranks: Ranks, hogwild: bool) -> None:
    """Ranks that share rows exchange none; others count as their tables do."""
    found = ranks.run(triples_collective, 2, KGE, hogwild)
    (lines, seen), (_, others) = found
    assert len(lines) == len(seen) == KGE.epochs
    for line, one, other in zip(lines, seen, others, strict=True):
        assert line["job"] == vars(one["pace"]) == vars(other["pace"])
        assert sum(of_rank[0] for of_rank in one["told"]) == ring().num_triples
        assert line["job"]["bytes_in"] == line["job"]["bytes_out"] == one["sent"] + other["sent"]
        assert (line["job"]["bytes_out"] > 0) == (not hogwild)
        assert (line["job"]["slowest"], line["job"]["slowest_share"] < 0.52) == (1, True)
    assert lines[0]["job"]["per_second"] > 0


def test_triples_of_trainers_with_servers() -> None:
    found = Cluster(trainers=2, machines=2).run(triples, KGE)
    (lines, seen), (_, others) = found
    for line, one, other in zip(lines, seen, others, strict=True):
        assert line["job"] == vars(one["pace"]) == vars(other["pace"])
        assert sum(of_rank[0] for of_rank in one["told"]) == ring().num_triples
        assert line["job"]["bytes_out"] == one["sent"] + other["sent"] > 0
        assert line["job"]["bytes_in"] == one["rows"] + other["rows"] > 0
        assert line["job"]["slowest"] == 1


def test_queries_count_where_they_are_trained(ranks: Ranks) -> None:
    (_, seen), _ = ranks.run(triples_collective, 2, KVSALL, False)
    queries = len({(h, r) for h, r, _ in ring().train.tolist()}) + len({(r, t) for _, r, t in ring().train.tolist()})
    assert [sum(of_rank[0] for of_rank in one["told"]) for one in seen] == [queries] * KVSALL.epochs


def networks(transport: Any, group: Any) -> Any:
    graph, task = planted()
    with watched(transport) as seen:
        result = train_rgcn(graph, task, GNN, group=group)
        return [line.as_dict() for line in result.history], seen


def networks_collective() -> Any:
    transport: Any = ge.init(mode="collective")
    try:
        return networks(transport, transport.group)
    finally:
        ge.shutdown()


def networks_with_servers(transport: Any, port: int) -> Any:
    group = as_a_rank(transport, port)
    try:
        return networks(transport, group)
    finally:
        group.close()


def check_networks(found: Any) -> None:
    (lines, seen), (_, others) = found
    task = planted()[1]
    assert [line["epoch"] for line in lines] == [2, 4]
    for line, one, other in zip(lines, seen, others, strict=True):
        assert line["job"] == vars(one["pace"]) == vars(other["pace"])
        assert sum(of_rank[0] for of_rank in one["told"]) == 2 * len(task.nodes["train"])
        assert all(of_rank[0] > 0 for of_rank in one["told"])
        assert line["job"]["slowest"] == 1
        # networks' gradients travel beside the tables' rows
        assert line["job"]["bytes_out"] > one["sent"] + other["sent"] > 0


def test_networks_of_ranks(ranks: Ranks) -> None:
    check_networks(ranks.run(networks_collective, 2))


def test_networks_of_trainers_with_servers() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check_networks(Cluster(trainers=2, machines=2).run(networks_with_servers, store.port))


def gradients_of_a_rank() -> tuple[int, int, bool]:
    """A backward of 7 numbers; bytes in and out, and whether it waited."""
    group = ProcessGroup(timeout=60)
    try:
        network = torch.nn.Linear(6, 1)
        wrapped = DataParallel(network, group)
        before = group.link.waited
        wrapped(torch.ones(2, 6)).sum().backward()
        return group.link.bytes_in, group.link.bytes_out, group.link.waited > before
    finally:
        group.close()


def test_gradients_of_networks_count_and_a_network_goes_with_its_group(ranks: Ranks) -> None:
    for _ in range(5):  # a thread of torch's and this one waited for each other in one of two
        assert ranks.run(gradients_of_a_rank, 2) == [(4 * 7, 4 * 7, True)] * 2
