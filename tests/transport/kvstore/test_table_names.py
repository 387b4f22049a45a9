"""Which tables of several trainers are one: those of one name, or of one number where they have none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.transport import runtime
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.tables import Tables
from graph_emb.transport.local import LocalTransport
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean


def different_tables(transport: Any) -> str:
    size = 3 + transport.rank
    if transport.rank == 0:
        emb = ge.DistEmbedding(size, 2, name="t")
        transport.barrier()
        transport.barrier()
        return emb.name
    transport.barrier()
    with pytest.raises(ge.ConfigError) as caught:
        ge.DistEmbedding(size, 2, name="t")
    transport.barrier()
    return str(caught.value)


@pytest.mark.dist
def test_trainers_that_make_different_tables_are_told() -> None:
    said = Cluster(2).run(different_tables)[1]
    assert "trainer 1 makes it (4, 2) of torch.float32, placement=host, another one (3, 2)" in said


def unnamed(transport: Any) -> list[float]:
    """The trainers made different numbers of tables before they came together."""
    runtime._active = LocalTransport()
    before = [ge.DistEmbedding(1, 1) for _ in range(transport.rank)]
    assert len(before) == transport.rank
    runtime.shutdown()
    runtime._active = transport
    tables = [ge.DistEmbedding(3, 2), ge.DistEmbedding(4, 2)]
    opt = ge.SparseSGD(tables, lr=1.0)
    sum(emb(torch.tensor([1])).sum() * (factor + 1) for factor, emb in enumerate(tables)).backward()
    opt.step()
    transport.flush()
    transport.barrier()
    return [float(emb.weight[1].sum()) for emb in tables]


@pytest.mark.dist
def test_tables_without_a_name_are_those_of_all_trainers() -> None:
    assert Cluster(2).run(unnamed) == [[-4.0, -8.0]] * 2


def forgetful(transport: Any) -> list[float]:
    found = []
    for size in (3, 5):  # the name again, with another shape; the garbage collector frees the first, sending nothing
        emb = ge.DistEmbedding(size, 2, name="again")
        opt = ge.SparseSGD([emb], lr=1.0)
        emb(torch.tensor([size - 1])).sum().backward()
        opt.step()
        transport.flush()
        transport.barrier()
        found.append(float(emb.weight[size - 1].sum()))
        transport.barrier()
        del emb, opt
        gc.collect()
    return found


@pytest.mark.dist
def test_a_table_that_was_dropped_can_be_made_again() -> None:
    with shared_memory_is_clean():
        assert Cluster(2).run(forgetful) == [[-4.0, -4.0]] * 2


KEY, BOTH = ("t", 0), {0, 1}
STATE = (StateSpec("sum", "element", initial=0.5),)


@pytest.fixture
def servers() -> Iterator[tuple[Tables, Tables]]:
    """Two servers of one machine, by themselves: the calls of trainers reach them in the order of a test."""
    with shared_memory_is_clean():
        made = Tables(0, range(2), {}), Tables(1, range(2), {})
        yield made
        for one in made:
            one.close()


def spec() -> TableSpec:
    return TableSpec("t", 6, 2, ge.RangeBook([0, 3, 6]), ge.initializers.Uniform(-1, 1, seed=1))


def asks(trainer: int, server: Tables, names: dict[str, str] | None, optimizer: bool) -> dict[str, str]:
    """Make the table, or the state of its first optimizer, at a server; returns the names of the memory."""
    if optimizer:
        return server.attach(trainer, KEY, 1, STATE, BOTH, names).value
    return server.create(trainer, KEY, spec(), BOTH, names and names[""]).value


def rows_in(names: dict[str, str], optimizer: bool) -> torch.Tensor:
    what = "the test's own view"
    name = names["sum" if optimizer else ""]
    return shared.open_segment(name, (6, 2), torch.float32, what, create=False)


@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize("told_first", [0, 1])
def test_a_trainer_may_drop_what_another_one_is_about_to_open(
    servers: tuple[Tables, Tables], told_first: int, optimizer: bool
) -> None:
    """Its word reaches one of the two servers, the other trainer opens at both, then it reaches the other server."""
    number = int(optimizer)
    if optimizer:
        for trainer in (0, 1):
            names = asks(trainer, servers[0], None, False)
            asks(trainer, servers[1], names, False)
            for server in servers[:1]:
                server.mapped(trainer, KEY, 0)
    asks(0, servers[1], asks(0, servers[0], None, optimizer), optimizer)
    servers[0].mapped(0, KEY, number)
    servers[told_first].release(0, KEY, number)
    names = asks(1, servers[0], None, optimizer)
    asks(1, servers[1], names, optimizer)
    servers[1 - told_first].release(0, KEY, number)
    seen = rows_in(names, optimizer)
    expected = torch.full((6, 2), 0.5)
    if not optimizer:
        spec().fill_(expected, 0)
    assert torch.equal(seen, expected)
    for server, row in zip(servers, (1, 4), strict=True):
        column = "sum" if optimizer else "weight"
        server.write_column(1, KEY, number, column, torch.tensor([row]), torch.full((1, 2), 9.0))
    assert seen[[1, 4]].tolist() == [[9.0, 9.0]] * 2
    servers[0].mapped(1, KEY, number)
    for server in servers:
        server.release(1, KEY, number)
