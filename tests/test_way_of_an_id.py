"""``emb(ids)`` enters few of our modules in every process: each one more is a place where a reader has to look.

A module counts when one of its Python functions runs between the call and the returned rows.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.core.threads import SERIAL_ROWS
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import LIMIT, Cluster

MOST = 6
SOURCE = str(Path(str(ge.__file__)).parent) + "/"
NUM = 4 * SERIAL_ROWS
BOOK = ge.RangeBook([0, NUM // 2, NUM])


@contextmanager
def entered() -> Iterator[set[str]]:
    """The modules of ours whose functions run inside, by their paths."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            found.add(frame.f_code.co_filename.removeprefix(SOURCE))

    gc.collect()
    gc.disable()  # what tests before have left is no part of the call
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        gc.enable()


def pulled(first: int, last: int) -> list[str]:
    """The modules of a pull of ids [first, last), each twice, after one that compiled and connected everything."""
    emb = ge.DistEmbedding(NUM, 8, "t", ge.initializers.Uniform(seed=1), BOOK)
    ids = torch.arange(first, last).repeat(2)
    emb(ids)
    with entered() as found:
        emb(ids)
    return sorted(found)


def pull_in_collective_mode(shared_memory: bool) -> list[str]:
    ge.init(mode="collective", timeout=60, shared_memory=shared_memory)
    try:
        return pulled(0, NUM)
    finally:
        ge.shutdown()


def pull_from_servers(transport: Any) -> list[list[str]]:
    """A trainer that waits for answers without a look at its peers, which it takes when one is late by SLICE_MS."""
    from graph_emb.transport.kvstore import rpc

    receive = rpc.RECEIVE
    rpc.RECEIVE = lambda _: receive(int(1000 * LIMIT))  # type: ignore[assignment]
    try:
        return pulled_from_servers()
    finally:
        rpc.RECEIVE = receive


def pulled_from_servers() -> list[list[str]]:
    found = [pulled(0, NUM // 2)]  # this machine's rows
    emb = ge.DistEmbedding(NUM, 8, "u", ge.initializers.Uniform(seed=1), BOOK)
    opt = ge.SparseAdagrad([emb], lr=0.1)
    ids = torch.arange(NUM)
    for _ in range(2):
        emb(ids).sum().backward()
        opt.step()
        with entered() as modules:  # of both machines' rows, with a push on its way
            emb(ids)
    return [*found, sorted(modules)]


def serve_and_count(*arguments: Any) -> list[str]:
    """A server; returns the modules between the last request for rows and the next request.

    It looks at its trainers when no request is there, not between two requests: that is a matter of time.
    """
    from graph_emb.transport.kvstore import rpc as waits
    from graph_emb.transport.kvstore import serve
    from graph_emb.transport.kvstore.rpc import Call, rpc

    receive, last, slice_ms = rpc.recv_request, None, waits.SLICE_MS
    kept: set[str] = set()

    def watched(_: int) -> Any:
        nonlocal last
        if isinstance(last, Call) and last.method == "pull":
            kept.clear()  # the first one compiled
            kept.update(modules)
        modules.clear()
        found = receive(slice_ms)
        last = found[0]
        return found

    server, hosts, servers, trainers, options = arguments
    rpc.recv_request, waits.SLICE_MS = watched, int(1000 * LIMIT)
    try:
        with entered() as modules:
            serve(server, hosts, servers, trainers, **options)
    finally:
        rpc.recv_request, waits.SLICE_MS = receive, slice_ms
    return sorted(kept)


def test_locally() -> None:
    found = pulled(0, NUM)
    assert {"embedding.py", "transport/local.py", "table/shard.py"} <= set(found)
    assert len(found) <= MOST, found


@pytest.mark.dist
@pytest.mark.parametrize("shared_memory", [True, False])
def test_in_every_rank_of_collective_mode(ranks: Ranks, shared_memory: bool) -> None:
    for found in ranks.run(pull_in_collective_mode, 2, shared_memory):
        assert "transport/collective.py" in found
        assert len(found) <= MOST, " ".join(found)


@pytest.mark.dist
def test_in_trainer_and_server_of_kvstore_mode() -> None:
    cluster = Cluster(1, 2, 1, answer_timeout=10 * LIMIT)  # the first sign of life comes after the test
    for server in range(2):
        cluster.add(f"server {server}", serve_and_count, (server, cluster.hosts, 1, 1, {"token": cluster.token}))
    cluster.start_trainers(pull_from_servers)
    outcomes = cluster.join()
    assert {name: outcome.error for name, outcome in outcomes.items() if outcome.exit_code} == {}
    local, remote = outcomes["trainer 0"].value
    for found in (local, remote):
        assert "transport/kvstore/client.py" in found
        assert len(found) <= MOST, " ".join(found)
    served = outcomes["server 1"].value
    assert "transport/kvstore/tables.py" in served
    assert len(served) <= MOST, served


def test_the_count_sees_a_module() -> None:
    check: Callable[..., Any] = ge.RangeBook.even(4).owner
    check(torch.arange(4))  # the first call compiles, or loads what is compiled
    with entered() as found:
        check(torch.arange(4))
    assert found == {"graph/partition_book.py"}
