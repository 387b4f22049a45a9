"""Calls that make shared memory: first the servers that allocate it, then those that map it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.push_buffer import Outbox
from graph_emb.transport.kvstore.session import Exchange, Session

Calls = Callable[[Sequence[int], Callable[[int], Any]], list[Any]]
"""From servers, and a function that gives the segments that a server shall map (None: allocate), to calls."""


def on_all_servers(exchange: Exchange, session: Session, calls: Calls) -> dict[str, str]:
    """Make the calls at every server; the names of this machine's segments."""
    hosts, firsts = session.hosts, _firsts(session)
    names = [answer.value for answer in exchange.ask(calls(firsts, lambda server: None))]

    def known(server: int) -> Any:
        found = names[hosts.machine_of(server)]
        return found.get("", found)

    exchange.ask(calls([server for server in range(hosts.num_servers) if server not in firsts], known))
    here: dict[str, str] = names[session.machine]
    return here


def tell_mapped(exchange: Exchange, session: Session, key: tuple[str, int], optimizer: int) -> None:
    """Let the servers that allocated know that this trainer needs the names of the segments no more."""
    for server in _firsts(session):
        exchange.tell(server, "mapped", key, optimizer)


def _firsts(session: Session) -> range:
    """The first server of each machine."""
    return range(0, session.hosts.num_servers, session.hosts.servers_per_machine)


def mapped_outbox(exchange: Exchange, servers: Sequence[int], num_bytes: int) -> Outbox:
    """An outbox of this trainer that the servers of its machine have mapped; its name is forgotten."""
    made = Outbox(num_bytes)
    try:
        exchange.ask([(server, "outbox", (made.name, len(made.memory)), ()) for server in servers])
    finally:
        shared.forget_name(made.name)
    return made
