"""The group of the processes: what it is told, and what it leaves behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import graph_emb as ge
from graph_emb.transport.kvstore.layout import free_ports
from graph_emb.transport.process_group import SHARED_VARIABLE
from tests.ranks import Ranks, with_shared_memory


@pytest.mark.parametrize("backend", ["glo", "cpu:glo", "gloo,cuda:nkcl", "undefined"])
def test_an_unknown_backend_is_named(backend: str) -> None:
    with pytest.raises(ge.ConfigError, match=r"unknown backend '.*'; known: .*gloo"):
        ge.init(mode="collective", backend=backend)
    assert not dist.is_initialized()


def held() -> set[str]:
    """The open files, each with its number, and the threads."""
    found = {f"thread {thread.id}" for thread in psutil.Process().threads()}
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the list's own, and what another thread closes now
            found.add(f"{fd.name} {fd.readlink()}")
    return found


def begin_and_end(times: int) -> list[set[str]]:
    """What each end of the mode left that was not there when it began, in a program with a group of its own."""
    dist.init_process_group("gloo")
    kept = []
    try:
        for _ in range(times):
            before = held()
            transport: Any = ge.init(mode="collective", timeout=60)
            ge.DistEmbedding(100, 2)(torch.arange(100))
            assert transport.world_size == 2
            ge.shutdown()
            dist.barrier()
            kept.append(held() - before)
    finally:
        dist.destroy_process_group()
    return kept


@pytest.mark.dist
def test_a_mode_that_ended_keeps_no_file_or_thread(ranks: Ranks) -> None:
    """The group that it made beside the program's own was never destroyed; the first one starts what stays."""
    for kept in ranks.run(begin_and_end, 2, 4):
        assert kept[1:] == [set(), set(), set()]


def refused_after_the_others(folder: str, options: dict[str, Any]) -> bool:
    """Whether the first rank, whose connecting ends late, was there when this rank had refused its options."""
    connected, connect = Path(folder, "connected"), dist.init_process_group

    def late(*args: Any, **named: Any) -> None:
        connect(*args, **named)
        time.sleep(0.5)
        connected.touch()

    if os.environ["RANK"] == "0":
        dist.init_process_group = late
    try:
        with pytest.raises(ge.ConfigError, match=r"hogwild|staleness"):
            ge.init(mode="collective", timeout=60, shared_memory=False, **options)
        return connected.exists()
    finally:
        dist.init_process_group = connect


@pytest.mark.dist
@pytest.mark.parametrize("options", [{"hogwild": True}, {"staleness": 2}])
def test_no_rank_refuses_its_options_before_all_are_connected(
    ranks: Ranks, tmp_path: Path, options: dict[str, Any]
) -> None:
    """It closed connections that the others still made, whose error then named another cause."""
    assert ranks.run(refused_after_the_others, 2, str(tmp_path), options) == [True, True]


def end_after_the_program() -> bool:
    dist.init_process_group("gloo")
    ge.init(mode="collective", timeout=60)
    dist.destroy_process_group()
    ge.shutdown()
    return dist.is_initialized()


@pytest.mark.dist
def test_a_program_may_end_its_groups_first(ranks: Ranks) -> None:
    assert ranks.run(end_after_the_program, 2) == [False, False]


def listen_without_a_launcher(port: int) -> list[tuple[str, str]]:
    """Twice in one process: (address, name of the rank's table) of what this rank listens on."""
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    os.environ["MASTER_PORT"] = str(port)
    found = []
    for name in ("first", "second"):
        transport: Any = ge.init(mode="collective", timeout=60)
        ge.DistEmbedding(100, 2, name=name)(torch.arange(100))
        found += [
            (one.laddr.ip, name)
            for one in psutil.Process().net_connections("inet")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        ]
        transport.barrier()
        ge.shutdown()
    return found


@pytest.mark.dist
def test_without_a_launcher_rank_0_listens_on_master_addr_alone(ranks: Ranks) -> None:
    """torch's rendezvous listens on [::], every interface of the machine, whatever MASTER_ADDR says."""
    first, second = ranks.run(listen_without_a_launcher, 2, free_ports(1))
    assert first == [("127.0.0.1", "first"), ("127.0.0.1", "second")]
    assert second == []


def begin_again(folder: str, held_by: str, port: int) -> int:
    """Rank 1 begins anew while rank 0, or the launcher, still holds what the last group said."""
    told = Path(folder) / held_by
    if held_by == "rank 0":
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
        os.environ["MASTER_PORT"] = str(port)
    begin, joins = dist.init_process_group, dist.rendezvous

    def tell_and_begin(*args: Any, **kwargs: Any) -> None:
        told.touch()
        begin(*args, **kwargs)

    def join_and_tell(*args: Any, **kwargs: Any) -> Any:
        found = next(joins(*args, **kwargs))
        told.touch()
        return iter([found])

    for again in range(2):
        if again and os.environ["RANK"] == "1":
            dist.init_process_group, dist.rendezvous = tell_and_begin, join_and_tell
        transport: Any = ge.init(mode="collective", timeout=60)
        total = int(transport.group.sum(torch.tensor([1]), "count")[0])
        transport.barrier()
        if not again and os.environ["RANK"] == "0":
            if held_by == "launcher":
                ge.shutdown()
            while not told.exists():
                time.sleep(0.01)
            time.sleep(0.5)  # rank 1 reads what the last group left, if it reads it at all
        ge.shutdown()
    dist.init_process_group, dist.rendezvous = begin, joins
    return total


@pytest.mark.dist
@pytest.mark.parametrize("held_by", ["rank 0", "launcher"])
def test_a_rank_may_begin_again_before_the_others_ended(ranks: Ranks, tmp_path: Path, held_by: str) -> None:
    assert ranks.run(begin_again, 2, str(tmp_path), held_by, free_ports(1)) == [2, 2]


def start_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as rank 0 of 1, without a launcher, at a MASTER_ADDR."""
    words = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": address, "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    ge.init(mode="collective", timeout=5)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_rank_0_does_not_listen_on_every_interface(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ge.ConfigError, match="opens every interface"):
        start_alone(address, monkeypatch)
    assert not dist.is_initialized()


def test_a_master_addr_of_another_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ge.PeerError, match=r"rank 0 cannot listen on MASTER_ADDR 192\.0\.2\.1:0"):
        start_alone("192.0.2.1", monkeypatch)


def shares_memory(machine: str | None, switch: str | None) -> bool:
    if machine is not None:
        platform.machine = lambda: machine
    if switch is not None:
        os.environ[SHARED_VARIABLE] = switch
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        return transport.group.same_memory
    finally:
        ge.shutdown()
        importlib.reload(platform)


@pytest.mark.dist
@with_shared_memory
@pytest.mark.parametrize(
    ("machine", "switch", "shared"),
    [(None, None, True), ("AMD64", "1", True), (None, "0", False), ("aarch64", None, False), ("ppc64le", None, False)],
)
def test_ranks_share_memory_where_stores_keep_their_order_and_unless_told_not_to(
    ranks: Ranks, machine: str | None, switch: str | None, shared: bool
) -> None:
    """A rank's counter may be seen before its data elsewhere than on x86: rows of another step, without a word."""
    assert ranks.run(shares_memory, 2, machine, switch) == [shared, shared]


def shares_memory_unless(rank: int, machine: str | None, switch: str | None) -> bool:
    other = int(os.environ["RANK"]) != rank
    return shares_memory(None if other else machine, None if other else switch)


@pytest.mark.dist
@with_shared_memory
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(("machine", "switch"), [(None, "0"), ("aarch64", None)])
def test_one_rank_that_takes_sockets_has_all_take_them(
    ranks: Ranks, rank: int, machine: str | None, switch: str | None
) -> None:
    """A switch set on one host only, or hosts of two kinds of processor: they met in two different calls, for 300 s."""
    assert ranks.run(shares_memory_unless, 3, rank, machine, switch) == [False] * 3


def large_exchange(large: bool, shared: bool) -> tuple[list[int], list[int], int]:
    """What a rank got, the sizes, and by how many groups of torch's it came."""
    os.environ[SHARED_VARIABLE] = str(int(shared))
    transport: Any = ge.init(mode="collective", timeout=60)
    group, calls, original = transport.group, set(), dist.all_to_all_single

    def noted(*args: Any, **options: Any) -> Any:
        calls.add(id(options["group"]))
        return original(*args, **options)

    try:
        rank, size = group.rank, group.world_size
        to_send = [(rank + 2 * other) % 4 for other in range(size)]
        to_receive = [(other + 2 * rank) % 4 for other in range(size)]
        send = torch.arange(sum(to_send)) + 100 * rank
        out = torch.empty(sum(to_receive), dtype=torch.int64)
        dist.all_to_all_single = noted
        exchange = group.exchange_large if large else group.exchange_into
        exchange(out, send, to_send, to_receive, "an exchange")
        return out.tolist(), to_send, len(calls)
    finally:
        dist.all_to_all_single = original
        ge.shutdown()


@pytest.mark.dist
@with_shared_memory
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("shared", [True, False])
def test_large_messages_go_up_and_down_the_ranks_by_their_own_connections(
    ranks: Ranks, world: int, shared: bool
) -> None:
    found, alone = (ranks.run(large_exchange, world, large, shared) for large in (True, False))
    assert [one[0] for one in found] == [one[0] for one in alone]
    for rank, (got, _, groups) in enumerate(found):
        wanted = []
        for other, (_, sent, _) in enumerate(found):
            first = sum(sent[:rank])
            wanted += [100 * other + place for place in range(first, first + sent[rank])]
        assert got == wanted
        assert groups == (0 if shared else 2)
    assert {one[2] for one in alone} == {0 if shared else 1}


def begun_without_a_second_group() -> tuple[str, bool]:
    def refused(*args: Any, **options: Any) -> Any:
        raise RuntimeError("Connection closed by peer")

    os.environ[SHARED_VARIABLE], original, dist.new_group = "0", dist.new_group, refused
    try:
        ge.init(mode="collective", timeout=60)
    except ge.PeerError as error:
        return str(error), dist.is_initialized()
    finally:
        dist.new_group = original
    return "", True


@pytest.mark.dist
def test_a_rank_that_goes_while_the_second_connections_are_made_is_an_error_of_the_mode(ranks: Ranks) -> None:
    for said, still in ranks.run(begun_without_a_second_group, 2):
        assert "in init: every rank still answers" in said
        assert said.endswith("Connection closed by peer")
        assert not still
