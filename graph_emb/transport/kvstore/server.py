"""``serve``: one server process, from the first handshake to the last goodbye."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.transport import guard
from graph_emb.transport.channel import Channel, SignsOfLife
from graph_emb.transport.kvstore import rpc
from graph_emb.transport.kvstore.layout import Hosts, read_hosts
from graph_emb.transport.kvstore.rpc import Answer
from graph_emb.transport.kvstore.rpc import rpc as dgl_rpc
from graph_emb.transport.kvstore.stalled import StallWatch
from graph_emb.transport.kvstore.tables import tables_of

_log = logging.getLogger("graph_emb.kvstore.server")


class ConnectedTrainer(NamedTuple):
    """A trainer as a server knows it; ``patience``: seconds without a sign of life until processes count as stopped."""

    channel: Channel
    machine: int
    patience: float


Trainers = dict[int, ConnectedTrainer]


def serve(
    server_id: int,
    hosts: str | Path | Sequence[str],
    num_servers: int = 1,
    num_clients: int = 1,
    *,
    part_config: str | Path | None = None,
    token: str | None = None,
    timeout: float = 30.0,
    start_timeout: float = 300.0,
    graph_formats: Sequence[str] = ("csc", "coo"),
) -> None:
    """Run one server until every trainer said goodbye.

    Args:
        server_id: From 0; servers of one machine have neighbouring ids, machines follow the hosts' order.
        hosts: DGL's ip_config file (``address port`` per line) or ``["address:port", ...]``, one per machine. Server j
            of a machine listens at its port + j, on that address only.
        num_servers: Servers per machine.
        num_clients: Trainers of the whole job.
        part_config: DGL's partition JSON, for trainers that use ``dgl.distributed.DistGraph``; None serves tables only.
        token: The job's token (``guard.new_token()``); None reads $GRAPH_EMB_TOKEN.
        timeout: Seconds until an unreachable trainer counts as dead.
        start_timeout: Seconds that the trainers may take to come up.
        graph_formats: Of the graph in shared memory, with part_config.
    Raises:
        ConfigError: an option is outside its limits, or there is no token.
        PeerError: a trainer died or never came; the other trainers are told before.
    """
    where = read_hosts(hosts, num_servers)
    if not 0 <= server_id < where.num_servers:
        raise ConfigError(f"server_id {server_id} is outside [0, {where.num_servers})")
    if num_clients < 1:
        raise ConfigError(f"num_clients {num_clients} must be at least 1")
    guard.check_seconds(timeout=timeout, start_timeout=start_timeout)
    secret = guard.token_or_environment(token)
    allowed = {host for host, _ in where.addresses}
    listener = guard.Listener(where.address(server_id), secret, allowed, timeout)
    trainers: Trainers = {}
    try:
        state = _server_state(server_id, where, num_clients, part_config, graph_formats)
        _meet(listener, trainers, num_clients, start_timeout)
        trainers = dict(sorted(trainers.items()))
        _connect(server_id, where, trainers, state, timeout)
        channels = [trainer.channel for trainer in trainers.values()]
        signs = SignsOfLife(channels, min(trainer.patience for trainer in trainers.values()))
        try:
            _loop(server_id, trainers, state)
        finally:
            signs.close()
        for channel in channels:
            channel.send({"bye": server_id})
        rpc.stop()
    except BaseException as error:
        _tell(trainers, f"server {server_id}: {error}" if not isinstance(error, PeerError) else str(error))
        raise
    finally:
        listener.close()
        for trainer in trainers.values():
            trainer.channel.close()


def _server_state(
    server_id: int, hosts: Hosts, num_clients: int, part_config: str | Path | None, formats: Sequence[str]
) -> Any:
    """DGL's state of a server: a KVServer, with the graph's part where there is one."""
    from dgl.distributed.dist_graph import DistGraphServer
    from dgl.distributed.kvstore import KVServer
    from dgl.distributed.server_state import ServerState

    common = (hosts.servers_per_machine, num_clients)
    with hosts.ip_config() as path:
        if part_config is None:
            return ServerState(KVServer(server_id, path, *common), None, None)
        store = DistGraphServer(server_id, path, *common, str(part_config), graph_format=tuple(formats))
    return ServerState(kv_store=store, local_g=store.client_g, partition_book=store.gpb)


def _meet(listener: guard.Listener, found: Trainers, num_clients: int, timeout: float) -> None:
    """Fill in the trainers by rank, as they come."""
    until = time.monotonic() + timeout
    while len(found) < num_clients:
        channel = listener.accept(max(0.0, until - time.monotonic()))
        try:
            hello = channel.receive(max(0.0, until - time.monotonic()))
        except PeerError:
            if channel.ended is None:
                raise
            channel.close()  # it gave up its handshake, held up by this process or the machine, and comes again
            continue
        rank = hello.get("rank")
        if not isinstance(rank, int) or not 0 <= rank < num_clients or rank in found:
            taken = "is taken" if rank in found else f"is outside [0, {num_clients})"
            channel.send({"dead": f"rank {rank} {taken}; give each trainer its own rank"})
            raise PeerError(f"a trainer at {channel.name} came with rank {rank}, which {taken}")
        channel.name = f"trainer {rank} (host {hello['host']} at {channel.address[0]}, pid {hello['pid']})"
        found[rank] = ConnectedTrainer(channel, int(hello["machine"]), float(hello["patience"]))


def _connect(server_id: int, hosts: Hosts, trainers: Trainers, state: Any, timeout: float) -> None:
    """DGL's connections in both directions, each checked before its first message is read."""
    rpc.start()
    rpc.hold_threads_when(lambda: any(trainer.channel.is_lost() for trainer in trainers.values()))
    dgl_rpc.set_rank(server_id)
    dgl_rpc.set_machine_id(hosts.machine_of(server_id))
    dgl_rpc.set_num_client(len(trainers))
    # The roles that DGL's ``init_role`` would ask every trainer for; they are known already.
    state.roles[0] = {"default": {(rank, trainer.machine) for rank, trainer in trainers.items()}}
    state.kv_store.barrier_count[0] = {"default": 0}
    opening = rpc.Opening(hosts.address(server_id)[0], len(trainers))
    machines = [trainer.machine for trainer in trainers.values()]
    for trainer in trainers.values():
        trainer.channel.send(
            {
                "listen": opening.address,
                "machines": machines,
                "graph": state.graph is not None or state.partition_book is not None,
            }
        )
    opening.join(lambda: _check_alive(trainers), timeout, "the trainers")
    answers = {rank: trainer.channel.receive(timeout) for rank, trainer in trainers.items()}
    expected = {(host, port) for answer in answers.values() for host, port in answer["from"]}
    guard.check_accepted(opening.address[1], expected)
    addresses = {rank: (answer["listen"][0], answer["listen"][1]) for rank, answer in answers.items()}
    rpc.connect(addresses.items(), timeout, group=0)
    for rank, trainer in trainers.items():
        trainer.channel.send({"from": sorted(guard.connections_from(addresses[rank]))})


def _loop(server_id: int, trainers: Trainers, state: Any) -> None:
    """Handle requests until every trainer said goodbye."""
    gone: set[int] = set()
    looked = time.monotonic()
    tables = tables_of(state.kv_store)

    def before(error: PeerError) -> None:
        _tell(trainers, str(error))
        tables.close()

    name = f"graph-emb: server {server_id}"
    watch = StallWatch(rpc.RECEIVE, lambda: _check(trainers, gone), name, before)
    try:
        while True:
            request, client, group = dgl_rpc.recv_request(rpc.SLICE_MS)
            if request is None or time.monotonic() - looked > rpc.SLICE_MS / 1000:
                _check(trainers, gone)
                if gone and (arrived := tables.arrived):  # as behind a script that raised
                    raise PeerError(
                        f"trainers {sorted(arrived)} wait at a barrier, but trainers {sorted(gone)} said goodbye; "
                        "did one of them raise, or call barrier() less often?"
                    )
                looked = time.monotonic()
            if request is None:
                if len(gone) == len(trainers):
                    return
                continue
            response = request.process_request(state)
            if isinstance(response, str):
                raise PeerError("a trainer called dgl.distributed.exit_client(); end with graph_emb.shutdown() instead")
            assert response is None or isinstance(response, (Answer, dgl_rpc.Response, list))
            answers = response if isinstance(response, list) else [] if response is None else [(client, response)]
            for target, answer in answers:
                if trainers[target].channel.is_lost():  # DGL's C++ code would abort this process
                    _check(trainers, gone)
                dgl_rpc.send_response(target, answer, group)
    finally:
        watch.close()
        tables.close()


def _check(trainers: Trainers, gone: set[int]) -> None:
    """Take goodbyes; raise when a trainer went without one, or is stopped."""
    for rank, (channel, _, patience) in trainers.items():
        if rank in gone:
            continue
        if any("bye" in message for message in channel.poll()):
            gone.add(rank)
        elif channel.ended:
            raise PeerError(f"{channel.name} {channel.ended} without a goodbye; see its log for the cause")
        else:
            channel.check_life(patience)


def _check_alive(trainers: Trainers) -> None:
    """Raise when a trainer is gone; its messages stay."""
    for channel, *_ in trainers.values():
        if channel.is_lost():
            raise PeerError(f"{channel.name} {channel.ended} while the job came up; see its log for the cause")


def _tell(trainers: Trainers, why: str) -> None:
    """Tell every trainer that is still there why the job ends."""
    for channel, *_ in trainers.values():
        if not channel.is_lost():
            try:
                channel.send({"dead": why})
            except PeerError:
                _log.warning("%s could not be told: %s", channel.name, why)
