"""Connect a trainer to the servers, and notice when one of them, or another trainer, is gone."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError, PeerError
from graph_emb.transport import guard, job
from graph_emb.transport.channel import Channel, SignsOfLife
from graph_emb.transport.kvstore import rpc
from graph_emb.transport.kvstore.layout import Hosts
from graph_emb.transport.kvstore.rpc import Session
from graph_emb.transport.kvstore.rpc import rpc as dgl_rpc
from graph_emb.transport.kvstore.stalled import StallWatch
from graph_emb.transport.kvstore.tables import Announce


def dgl_policies() -> list[Any]:
    """The partition policies of the graphs that DGL has opened in this process."""
    module = sys.modules.get("dgl.distributed.kvstore")
    client = module.get_kvstore() if module is not None and job.dgl_is_initialised() else None
    return [] if client is None else list(client.all_possible_part_policy.values())


class GuardedSession(Session):
    """Meets the servers of ``serve`` through the guard, then connects DGL's RPC, and keeps watching.

    Arguments as ``graph_emb.transport.kvstore.connect``.
    """

    barrier_timeout = None  # the servers notice a trainer that does not live

    def __init__(
        self,
        hosts: Hosts,
        machine: int,
        rank: int,
        token: str | None,
        *,
        timeout: float,
        start_timeout: float,
        answer_timeout: float,
    ) -> None:
        self.hosts, self.machine, self.rank, self.answer_timeout = hosts, machine, rank, answer_timeout
        self._timeout, self._start_timeout = timeout, start_timeout
        rpc.check_startable()  # before servers are waited for
        if not 0 <= machine < hosts.num_machines:
            raise ConfigError(f"machine {machine} is outside [0, {hosts.num_machines}); hosts name that many")
        secret = guard.token_or_environment(token)
        self._channels: list[Channel] = []
        self.news = select.poll()  # one system call for all of them
        self._context: DGLContext | None = None
        self._signs: SignsOfLife | None = None
        self._stalls: StallWatch | None = None
        self._dead: str | None = None  # what a server said that a trainer's death was
        try:
            for server in range(hosts.num_servers):
                channel = guard.dial(hosts.address(server), secret, timeout, start_timeout)
                channel.name = f"server {server} ({channel.name})"
                hello = {"rank": rank, "machine": machine, "host": socket.gethostname(), "pid": os.getpid()}
                channel.send({**hello, "patience": answer_timeout})
                self._channels.append(channel)
                self.news.register(channel, select.POLLIN)
            # From here on: a server that is ready counts the silence while this trainer waits for another one.
            self._signs = SignsOfLife(self._channels, answer_timeout)
            self._connect()
            self._stalls = StallWatch(rpc.RECEIVE, self.check, f"graph-emb: trainer {rank}")
        except BaseException:
            self._end_channels()
            raise

    def _connect(self) -> None:
        rpc.start()
        rpc.hold_threads_when(self._any_lost)
        welcome = [self._expect(channel, "listen") for channel in self._channels]
        self.machines = welcome[0]["machines"]
        dgl_rpc.set_rank(self.rank)
        dgl_rpc.set_machine_id(self.machine)
        dgl_rpc.set_group_id(0)
        dgl_rpc.set_num_client(len(self.machines))
        dgl_rpc.set_num_server(self.hosts.num_servers)
        dgl_rpc.set_num_server_per_machine(self.hosts.servers_per_machine)
        dgl_rpc.set_num_machines(self.hosts.num_machines)
        addresses: list[guard.Address] = [(host, port) for host, port in (one["listen"] for one in welcome)]
        rpc.connect(enumerate(addresses), self._timeout)
        opening = rpc.Opening(self.hosts.addresses[self.machine][0], len(self._channels))
        for channel, address in zip(self._channels, addresses, strict=True):
            channel.send({"from": sorted(guard.connections_from(address)), "listen": opening.address})
        opening.join(lambda: self.check() if self._any_lost() else None, self._timeout, "the servers")
        opened = [self._expect(channel, "from")["from"] for channel in self._channels]
        guard.check_accepted(opening.address[1], {(host, port) for ends in opened for host, port in ends})
        if welcome[0]["graph"]:
            self._context = DGLContext(self.rank, self.machines, self.hosts, self.check)

    def _any_lost(self) -> bool:
        return any(channel.is_lost() for channel in self._channels)

    def _expect(self, channel: Channel, key: str) -> dict[str, Any]:
        message = channel.receive(self._start_timeout)
        if "dead" in message:
            raise PeerError(message["dead"])
        assert key in message, f"{channel.name} sent {message}; expected {key!r}"
        return message

    def check(self) -> None:
        """Raise a PeerError that names the process when a server is gone or reports a dead trainer."""
        for channel in self._channels:
            self._hear(channel)

    def _hear(self, channel: Channel) -> bool:
        """Whether the server said goodbye; raises as ``check``."""
        for message in channel.poll():
            if "bye" in message:
                return True
            self._dead = self._dead or message.get("dead")
        if self._dead is not None:
            raise PeerError(self._dead)
        if channel.ended:
            raise PeerError(f"{channel.name} {channel.ended} without a goodbye; see its log for the cause")
        channel.check_life(self.answer_timeout)
        return False

    def close(self, broken: bool) -> None:
        """Say goodbye; the servers end when every trainer did. After an error, only the connections are closed.

        Raises:
            PeerError: a server is gone or stopped, or says that a trainer is.
        """
        if self._context is not None:
            self._context.leave()
        if broken:
            rpc.abandon()
        try:
            for channel in [] if broken else self._channels:
                channel.send({"bye": self.rank})
            waiting = [] if broken else list(self._channels)
            while waiting:  # without limit for living servers: the other trainers may train for hours more
                self.news.poll(rpc.SLICE_MS)
                for channel in [one for one in waiting if self._hear(one)]:
                    waiting.remove(channel)
                    self.news.unregister(channel)
            if not broken:
                rpc.stop()
        except PeerError:
            rpc.abandon()
            raise
        finally:
            self._end_channels()

    def _end_channels(self) -> None:
        for thread in (self._signs, self._stalls):
            if thread is not None:
                thread.close()
        for channel in self._channels:
            channel.close()


class DGLContext:
    """Makes this process a client of ``dgl.distributed`` on our connection until ``leave``.

    ``dgl.distributed.initialize`` would ask the servers who has which role, and would wait for ever; here everything is
    known from the first handshake, and ``check`` looks after the peers while DGL waits.
    """

    def __init__(self, rank: int, machines: Sequence[int], hosts: Hosts, check: Callable[[], None]) -> None:
        from dgl.distributed import dist_context, kvstore, role

        self._check = check
        self._mode = os.environ.get(job.DGL_MODE)
        os.environ[job.DGL_MODE] = "distributed"
        # DGL numbers trainers machine by machine (role.init_role); node_split relies on it.
        order = sorted(range(len(machines)), key=lambda one: (machines[one], one))
        ranks = {client: position for position, client in enumerate(order)}
        role.CUR_ROLE, role.PER_ROLE_RANK, role.GLOBAL_RANK = "default", {"default": ranks}, dict(ranks)
        with hosts.ip_config() as path:
            kvstore.init_kvstore(path, hosts.servers_per_machine, "default")
        self._receive, self._fast_pull = dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull
        dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull = self._watched_receive, self._watched_pull
        dist_context.set_initialized(True)

    def leave(self) -> None:
        from dgl.distributed import dist_context, kvstore

        dist_context.set_initialized(False)
        kvstore.close_kvstore()
        dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull = self._receive, self._fast_pull
        if self._mode is None:
            os.environ.pop(job.DGL_MODE, None)
        else:
            os.environ[job.DGL_MODE] = self._mode

    def _watched_receive(self, timeout: int = 0) -> Any:
        """DGL's ``recv_rpc_message``, looking at the peers while it waits. A timeout of 0 ms is none."""
        until = time.monotonic() + timeout / 1000 if timeout else None
        while True:
            message = self._receive(rpc.SLICE_MS)
            if message is not None:
                return message
            self._check()
            if until is not None and time.monotonic() > until:
                return None

    def _watched_pull(self, *arguments: Any) -> Tensor:
        """DGL's ``fast_pull``, whose C++ code waits for the dead for ever when rows of other machines are asked."""
        name, ids, parts, _, _, _, machine, _, local_data, policy = arguments
        away = parts != machine
        if not bool(away.any()):
            return self._fast_pull(*arguments)
        from dgl.distributed.kvstore import PullRequest

        out = torch.empty((len(ids), *local_data.shape[1:]), dtype=local_data.dtype)
        asked = [(int(part), (parts == part).nonzero().flatten()) for part in parts[away].unique()]
        self._check()
        numbers = dgl_rpc.send_requests_to_machine([(part, PullRequest(name, ids[where])) for part, where in asked])
        here = (~away).nonzero().flatten()
        out[here] = local_data[policy.to_local(ids[here])]
        for (_, where), response in zip(asked, dgl_rpc.recv_responses(numbers), strict=True):
            out[where] = response.data_tensor
        return out


class AttachedSession(Session):
    """The connection that ``dgl.distributed.initialize`` made.

    DGL's servers watch no process, so only silence shows a death.
    """

    def __init__(self, timeout: float, barrier_timeout: float) -> None:
        from dgl.distributed import kvstore, role

        if role.get_role() != "default":
            raise ModeError(f"this process is a {role.get_role()} of DGL; use tables in the trainer that it works for")
        client = kvstore.get_kvstore()
        self.answer_timeout, self.barrier_timeout = timeout, barrier_timeout
        self.news = select.poll()  # never ready
        self.machine = int(client.machine_id)
        self.rank = role.get_trainer_rank()
        namebook = client._server_namebook
        per_machine = namebook[0][3]
        addresses = tuple((namebook[s][1], namebook[s][2]) for s in range(0, len(namebook), per_machine))
        self.hosts = Hosts(addresses, per_machine)
        dgl_rpc.send_request(0, role.GetRoleRequest())  # (client, machine) of every trainer
        ranks, members = role.PER_ROLE_RANK["default"], dgl_rpc.recv_response().role["default"]
        self.machines = [machine for _, machine in sorted((ranks[c], m) for c, m in members)]
        # Teach DGL's servers our service: they import it when they unpickle a handler of its module.
        for server in range(self.hosts.num_servers):
            dgl_rpc.send_request(server, kvstore.RegisterPushHandlerRequest("graph_emb", Announce()))
        for _ in range(self.hosts.num_servers):
            dgl_rpc.recv_response()

    def check(self) -> None:
        """Nothing tells before an answer is late."""

    def close(self, broken: bool) -> None:
        """DGL ends its own connection at exit; after an error its exit hook would wait for the dead for ever."""
        if broken:
            import atexit

            from dgl.distributed.dist_context import exit_client

            atexit.unregister(exit_client)
