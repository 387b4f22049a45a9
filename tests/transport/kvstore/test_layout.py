"""Who owns what: plain arithmetic, without a process."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.transport.kvstore import layout
from graph_emb.transport.kvstore.layout import Hosts, free_ports, outgoing_ports, read_hosts, server_book


def hosts(machines: int, servers: int) -> Hosts:
    return Hosts(tuple((f"10.0.0.{machine + 1}", 30050) for machine in range(machines)), servers)


def test_servers_of_a_machine_are_neighbours_with_neighbouring_ports() -> None:
    where = hosts(2, 3)
    assert where.num_servers == 6
    assert list(where.servers_of(1)) == [3, 4, 5]
    assert [where.machine_of(server) for server in range(6)] == [0, 0, 0, 1, 1, 1]
    assert where.address(4) == ("10.0.0.2", 30051)
    with where.ip_config() as path:
        assert Path(path).read_text() == "10.0.0.1 30050\n10.0.0.2 30050\n"


@pytest.mark.parametrize(
    ("book", "machines", "servers", "bounds"),
    [
        (RangeBook([0, 10]), 1, 1, [0, 10]),
        (RangeBook([0, 10]), 1, 3, [0, 4, 7, 10]),
        (RangeBook([0, 10]), 2, 2, [0, 3, 5, 8, 10]),
        (RangeBook([0, 3, 10]), 2, 1, [0, 3, 10]),
        (RangeBook([0, 3, 10]), 2, 2, [0, 2, 3, 7, 10]),
        (RangeBook([0, 1, 2, 9, 10]), 2, 1, [0, 2, 10]),
        (RangeBook([0, 0, 10]), 2, 2, [0, 0, 0, 5, 10]),
        (RangeBook([0, 0]), 2, 2, [0, 0, 0, 0, 0]),
    ],
)
def test_parts_follow_machines_and_are_split_among_servers(
    book: RangeBook, machines: int, servers: int, bounds: list[int]
) -> None:
    assert server_book(book, hosts(machines, servers), "t").bounds.tolist() == bounds


def test_parts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ge.PartitionError, match="3 parts cannot be divided among 2 machines"):
        server_book(RangeBook([0, 1, 2, 3]), hosts(2, 1), "t")


def test_hosts_are_read_from_dgls_file_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "ip_config.txt"
    file.write_text("10.0.0.1 30050\n\n10.0.0.2 40000\n", encoding="utf-8")
    assert read_hosts(file, 2) == read_hosts(["10.0.0.1:30050", "10.0.0.2:40000"], 2)


@pytest.mark.parametrize(
    ("entries", "servers", "said"),
    [
        (["10.0.0.1"], 1, r"'10\.0\.0\.1' must be an IPv4 address and a port"),
        (["10.0.0.1:http"], 1, "must be an IPv4 address and a port"),
        (["10.0.0.1:3²"], 1, "must be an IPv4 address and a port"),  # isdigit() takes it, int() raised ValueError
        ([], 1, "hosts are empty"),
        (["0.0.0.0:30050"], 1, "opens every interface"),
        (["0:30050"], 1, "opens every interface"),
        (["10.0.0.1:65535"], 2, "leaves no room for 2 servers"),
        (["10.0.0.1:30050"], 0, "must be at least 1"),
    ],
)
def test_bad_hosts_say_what_is_wrong(entries: list[str], servers: int, said: str) -> None:
    with pytest.raises(ge.ConfigError, match=said):
        read_hosts(entries, servers)


def test_free_ports_are_neighbours_that_no_outgoing_connection_takes() -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            first = free_ports(3)
            assert not {first, first + 1, first + 2} & {*outgoing_ports()}
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(4)
    monkeypatch.setattr(layout, "PORTS", range(first, first + 4))
    monkeypatch.setattr(layout, "outgoing_ports", lambda: range(first + 4, first + 5))
    with socket.create_server(("127.0.0.1", first + 1)):
        assert free_ports(2) == first + 2
        with pytest.raises(ge.ConfigError, match="no 3 neighbouring free ports"):
            free_ports(3)


def test_where_every_port_is_for_outgoing_connections_the_kernel_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "outgoing_ports", lambda: range(1, 65_536))
    assert free_ports(2) in range(1, 65_535)


def test_free_ports_belong_to_an_address_of_this_host() -> None:
    with pytest.raises(ge.ConfigError, match="no address of this machine"):
        free_ports(1, "203.0.113.7")
