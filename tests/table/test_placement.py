"""Placements that are words: where rows lie then, the same rows by each, and what a word excludes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.table.placement import AUTO, DEVICE, HOST, SHARED, WORDS, as_placement, device_for, in_memory
from graph_emb.transport import runtime
from tests.ranks import Ranks, with_shared_memory
from tests.transport.kvstore.cluster import Cluster

NUM, DIM = 60, 4
IN_HOST_MEMORY = (AUTO, HOST, SHARED)
LOCAL, RANKS, HOGWILD, SERVERS = ("local", False), ("collective", False), ("collective", True), ("kvstore", False)


def trained(transport: Any, placement: str) -> dict[str, Tensor]:
    """Rows and state after some steps of this rank's ids, which no other rank has."""
    emb = ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Uniform(seed=3), dtype=torch.float64, placement=placement)
    opt = ge.SparseAdagrad([emb], lr=0.1)
    for step in range(4):
        ids = torch.arange(step, NUM, 3)
        ids = ids[ids % transport.world_size == transport.rank]
        emb(torch.cat([ids, ids[ids < 12]])).square().sum().backward()
        opt.step()
        opt.zero_grad()
        transport.flush()
        transport.barrier()
    found = {"rows": emb.weight[:], "sum": emb.optm_state["sum"][:]}
    transport.barrier()
    return found


def alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def expected(local_mode: None) -> dict[str, Tensor]:
    """Rows and state of one process."""
    found = trained(runtime.current(), AUTO)
    assert not torch.equal(found["rows"], torch.zeros(NUM, DIM))
    ge.shutdown()
    return found


def on_a_rank(hogwild: bool, placement: str) -> tuple[dict[str, Tensor], int]:
    """What a rank finds, and how many rows of the table are in its reach."""
    transport = ge.init(mode="collective", timeout=60, hogwild=hogwild)
    found = trained(transport, placement)
    emb = ge.DistEmbedding(NUM, DIM, "reach", placement=placement)
    reach = len(transport.in_reach(emb.name).weight)
    transport.barrier()
    ge.shutdown()
    return found, reach


@with_shared_memory
@pytest.mark.parametrize("world_size", [1, 2])
def test_shared_rows_of_ranks_are_those_of_one_process_and_in_reach_of_all(
    ranks: Ranks, expected: dict[str, Tensor], world_size: int
) -> None:
    for found, reach in ranks.run(on_a_rank, world_size, True, SHARED):
        assert alike(found, expected)
        assert reach == NUM


def test_host_rows_of_ranks_are_those_of_one_process_and_each_has_its_own(
    ranks: Ranks, expected: dict[str, Tensor]
) -> None:
    for found, reach in ranks.run(on_a_rank, 2, False, HOST):
        assert alike(found, expected)
        assert reach == NUM // 2


@pytest.mark.dist
@pytest.mark.usefixtures("idle_servers")
def test_servers_give_the_rows_of_one_process_by_each_word(expected: dict[str, Tensor]) -> None:
    for placement in IN_HOST_MEMORY:
        assert all(alike(found, expected) for found in Cluster(2).run(trained, placement))


def test_host_rows_of_one_process_are_those_by_default(expected: dict[str, Tensor]) -> None:
    assert alike(trained(ge.init(mode="local"), HOST), expected)


@pytest.mark.parametrize(
    ("placement", "device", "job", "said"),
    [
        (HOST, "cuda", LOCAL, r" is memory of the processor, not of device cuda; pass 'device', or leave"),
        (SHARED, "meta", HOGWILD, r" is memory of the processor, not of device meta; pass 'device'"),
        (SHARED, None, LOCAL, r"this is local mode without; call graph_emb\.init\(mode='collective', hogwild=True\)"),
        (SHARED, "cpu", RANKS, r"this is collective mode without; call .*, or pass 'host'"),
        (DEVICE, "cpu", LOCAL, r" is memory of a GPU, not of device cpu; pass device='cuda', or leave one out"),
        (DEVICE, torch.device("meta"), LOCAL, r"not of device meta"),
        (DEVICE, None, SERVERS, r"servers keep rows in memory of the processor; pass 'shared'"),
        (DEVICE, "cuda:1", HOGWILD, r"hogwild=True ranks share rows .*; pass 'shared', or call .*hogwild=False"),
    ],
)
def test_a_word_is_refused_where_rows_cannot_lie_so(placement: str, device: Any, job: Any, said: str) -> None:
    mode, hogwild = job
    with pytest.raises(ConfigError, match=rf"table 't': placement='{placement}'.*{said}"):
        device_for(placement, device, "t", mode=mode, hogwild=hogwild)


@pytest.mark.parametrize(
    ("placement", "device", "job", "found"),
    [
        (AUTO, None, LOCAL, "cpu"),
        (AUTO, "cuda:1", RANKS, "cuda:1"),
        (HOST, None, SERVERS, "cpu"),
        (HOST, "cpu", HOGWILD, "cpu"),
        (SHARED, None, SERVERS, "cpu"),
        (SHARED, "cpu", HOGWILD, "cpu"),
        (ge.DeviceCache("1MiB"), "cuda", LOCAL, "cuda"),
        (ge.File("folder", "1MiB"), None, RANKS, "cpu"),
    ],
)
def test_the_device_is_that_of_the_word_or_as_asked_for(placement: Any, device: Any, job: Any, found: str) -> None:
    mode, hogwild = job
    assert device_for(placement, device, "t", mode=mode, hogwild=hogwild) == torch.device(found)


@pytest.mark.parametrize("device", [None, "cuda", "cuda:1"])
def test_a_gpu_is_asked_for_before_memory_of_it(monkeypatch: pytest.MonkeyPatch, device: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"placement='device': torch finds no GPU here; pass 'host'"):
        device_for(DEVICE, device, "t", mode="local")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_for(DEVICE, device, "t", mode="collective") == torch.device(device or "cuda")


def makers() -> dict[str, Any]:
    """What takes a placement, by name."""
    levels = torch.tensor([[0, 0], [0, 1], [1, 2]])
    return {
        "table": lambda **place: ge.DistEmbedding(3, 2, "t", **place),
        "composed": lambda **place: ge.ComposedEmbedding(levels, 2, "position", name="t", **place),
        "triples": lambda **place: KGEModel(3, 2, KGEConfig(model="distmult", dim=4), **place),
        "hashed triples": lambda **place: KGEModel(3, 2, KGEConfig(model="distmult", dim=4, table="hash"), **place),
        "network": lambda **place: InputRows({"t": 3}, SAGEConfig(dim=4), **place),
    }


@pytest.mark.parametrize("made", makers())
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"placement": HOST, "device": "meta"}, "not of device meta"),
        ({"placement": SHARED}, "this is local mode"),
        ({"placement": DEVICE, "device": "cpu"}, "not of device cpu"),
        ({"placement": "gpu"}, "pass 'auto', 'host', 'shared', 'device', graph_emb.File"),
    ],
)
def test_tables_and_models_refuse_it(local_mode: None, made: str, place: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        makers()[made](**place)


def test_words_are_memory_and_caches_are_not() -> None:
    assert WORDS == (AUTO, HOST, SHARED, DEVICE)
    assert all(in_memory(word) and as_placement(word, "t") is None for word in WORDS)
    cached = ge.DeviceCache("1MiB")
    assert not in_memory(cached)
    assert as_placement(cached, "t") is cached
