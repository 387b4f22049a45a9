"""Kvstore mode: tables in DGL's KVStore servers, trained by processes that do not wait for each other.

``serve`` runs a server, ``connect`` gives a trainer its transport. DGL is imported by the first call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.imports import importing, resolve
from graph_emb.transport import job

if TYPE_CHECKING:
    import torch

    from graph_emb.transport.base import Transport

HOSTS_VARIABLE = job.HOSTS_VARIABLE
SERVERS_VARIABLE = "GRAPH_EMB_SERVERS_PER_HOST"
MACHINE_VARIABLE = "GRAPH_EMB_MACHINE"
RANK_VARIABLE = job.RANK


def serve(*args: Any, **options: Any) -> None:
    """Run one server until every trainer said goodbye; see ``graph_emb.transport.kvstore.server.serve``."""
    resolve("graph_emb.transport.kvstore.server:serve")(*args, **options)


def connect(
    *,
    hosts: str | Path | Sequence[str] | None = None,
    num_servers: int | None = None,
    machine: int | None = None,
    rank: int | None = None,
    token: str | None = None,
    timeout: float = 30.0,
    start_timeout: float = 300.0,
    answer_timeout: float = 300.0,
    barrier_timeout: float = 1800.0,
    staleness: int = 0,
    hogwild: bool | None = False,
    wire_dtype: torch.dtype | str | None = None,
) -> Transport:
    """The transport of a trainer in kvstore mode.

    Where ``dgl.distributed.initialize`` was called, its connection is used. Otherwise the servers are those of
    ``hosts``; without hosts the process of a job of one stands alone, with the same interface and no server.

    Args:
        hosts: DGL's ip_config file or ``["address:port", ...]``; None reads $GRAPH_EMB_HOSTS (a file).
        num_servers: Servers per machine; None reads $GRAPH_EMB_SERVERS_PER_HOST, else 1.
        machine: The position of this trainer's machine in hosts; None reads $GRAPH_EMB_MACHINE, else 0.
        rank: This trainer, from 0; None reads $RANK, else 0.
        token: The job's token; None reads $GRAPH_EMB_TOKEN.
        timeout: Seconds until an unreachable server or trainer counts as dead.
        start_timeout: Seconds that the other processes may take to come up.
        answer_timeout: Seconds that a living server may take for an answer, and that a server or trainer may give no
            sign of life, as a stopped process does; then it is named to all others.
        barrier_timeout: Seconds that a barrier may take where DGL's own servers serve, which see no deaths.
        staleness: Own pushes of a table that a pull of it may miss; 0: a pull sees all of them.
        hogwild: Apply rows of this machine in the trainer, without asking the server that also writes them: faster,
            but updates of two processes to one row at one time can be lost. None: where the job has one machine.
        wire_dtype: ``torch.bfloat16`` or ``torch.float16``: rows and gradients that go to or come from another machine
            are rounded to it: half the bytes, inexact; those of this machine are exact. None: all are.
    Raises:
        ConfigError: an option is outside its limits, or there is no token.
        ModeError: no hosts in a job of several processes, or this process is one of DGL's samplers.
        PeerError: the servers or the other trainers did not come up.
    """
    from graph_emb.transport.guard import check_seconds

    check_seconds(
        timeout=timeout, start_timeout=start_timeout, answer_timeout=answer_timeout, barrier_timeout=barrier_timeout
    )
    given = {"hosts": hosts, "num_servers": num_servers, "machine": machine, "rank": rank, "token": token}
    named = [name for name, value in given.items() if value is not None]
    attached = job.dgl_is_initialised()
    if attached and named:
        raise ConfigError(f"{named[0]} is given, but dgl.distributed.initialize() made the connection; leave it out")
    hosts = hosts if hosts is not None else os.environ.get(HOSTS_VARIABLE)
    if hosts is None and not attached:
        if named:
            raise ConfigError(f"{named[0]} is given without hosts; name the servers' hosts or set ${HOSTS_VARIABLE}")
        job.check_alone("mode 'kvstore' without servers' hosts")
        from graph_emb.transport.base import checked_wire
        from graph_emb.transport.local import StandaloneTransport

        checked_wire(wire_dtype)  # and nothing travels
        return StandaloneTransport()
    with importing():
        from graph_emb.transport.kvstore.client import KVStoreTransport
        from graph_emb.transport.kvstore.layout import read_hosts
        from graph_emb.transport.kvstore.session import AttachedSession, GuardedSession

    if attached:
        session = AttachedSession(answer_timeout, barrier_timeout)
        return KVStoreTransport(session, staleness=staleness, hogwild=hogwild, wire_dtype=wire_dtype)
    assert hosts is not None
    guarded = GuardedSession(
        read_hosts(hosts, _number(num_servers, SERVERS_VARIABLE, 1)),
        _number(machine, MACHINE_VARIABLE, 0),
        _number(rank, RANK_VARIABLE, 0),
        token,
        timeout=timeout,
        start_timeout=start_timeout,
        answer_timeout=answer_timeout,
    )
    return KVStoreTransport(guarded, staleness=staleness, hogwild=hogwild, wire_dtype=wire_dtype)


def _number(given: int | None, variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default)) if given is None else str(given)
    if not text.isdecimal():
        raise ConfigError(f"{variable} is {text!r}; it must be a number from 0")
    return int(text)
