"""How a trainer reaches the servers, and how it learns that one of them, or another trainer, is gone."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Protocol

from graph_emb.core.errors import ConfigError, GraphEmbError, PeerError
from graph_emb.transport import guard
from graph_emb.transport.kvstore import rpc
from graph_emb.transport.kvstore.calls import Announce, Answer, Call, revive
from graph_emb.transport.kvstore.dgl_context import DGLContext
from graph_emb.transport.kvstore.layout import Hosts
from graph_emb.transport.kvstore.rpc import rpc as dgl_rpc
from graph_emb.transport.kvstore.terminate_handler import park_threads_when


class Session(Protocol):
    """One trainer's way to the servers.

    Attributes:
        rank: This trainer.
        machine: The machine that it runs on.
        machines: The machine of each trainer.
        hosts: The servers.
        answer_timeout: Seconds that a living server may take for an answer.
        barrier_timeout: Seconds that a barrier may take; None where the deaths of trainers are seen.
    """

    @property
    def rank(self) -> int: ...
    @property
    def machine(self) -> int: ...
    @property
    def machines(self) -> Sequence[int]: ...
    @property
    def hosts(self) -> Hosts: ...
    @property
    def answer_timeout(self) -> float: ...
    @property
    def barrier_timeout(self) -> float | None: ...
    def check(self) -> None: ...
    def close(self, broken: bool) -> None: ...


class GuardedSession:
    """Meets the servers of ``serve`` through the guard, then connects DGL's RPC, and keeps watching.

    Args:
        hosts: The servers.
        machine: The machine that this trainer runs on.
        rank: This trainer, from 0.
        token: The job's token; None reads $GRAPH_EMB_TOKEN.
        timeout: Seconds until an unreachable peer counts as dead.
        start_timeout: Seconds that the other processes may take to come up.
        answer_timeout: Seconds that a living server may take for an answer.
    """

    barrier_timeout = None

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
        if not 0 <= machine < hosts.num_machines:
            raise ConfigError(f"machine {machine} is outside [0, {hosts.num_machines}); hosts name that many")
        secret = guard.token_or_environment(token)
        self._channels: list[guard.Channel] = []
        self._context: DGLContext | None = None
        try:
            for server in range(hosts.num_servers):
                channel = guard.dial(hosts.address(server), secret, timeout, start_timeout)
                channel.name = f"server {server} ({channel.name})"
                channel.send({"rank": rank, "machine": machine, "host": socket.gethostname(), "pid": os.getpid()})
                self._channels.append(channel)
            self._connect()
        except BaseException:
            for channel in self._channels:
                channel.close()
            raise

    def _connect(self) -> None:
        rpc.start()
        park_threads_when(lambda: any(channel.is_lost() for channel in self._channels))
        welcome = [self._expect(channel, "listen") for channel in self._channels]
        self.machines: Sequence[int] = welcome[0]["machines"]
        dgl_rpc.set_rank(self.rank)
        dgl_rpc.set_machine_id(self.machine)
        dgl_rpc.set_group_id(0)
        dgl_rpc.set_num_client(len(self.machines))
        dgl_rpc.set_num_server(self.hosts.num_servers)
        dgl_rpc.set_num_server_per_machine(self.hosts.servers_per_machine)
        dgl_rpc.set_num_machines(self.hosts.num_machines)
        addresses: list[guard.Address] = [(host, port) for host, port in (one["listen"] for one in welcome)]
        for server, address in enumerate(addresses):
            rpc.connect(address, server)
        rpc.finish_connecting(self._timeout)
        opening = rpc.Opening(self.hosts.addresses[self.machine][0], len(self._channels))
        for channel, address in zip(self._channels, addresses, strict=True):
            channel.send({"from": sorted(guard.connections_from(address)), "listen": opening.address})
        opening.join(self.check_alive, self._timeout, "the servers")
        opened = [self._expect(channel, "from")["from"] for channel in self._channels]
        guard.check_accepted(opening.address[1], {(host, port) for ends in opened for host, port in ends})
        if welcome[0]["graph"]:
            self._context = DGLContext(self.rank, self.machines, self.hosts, self.check)

    def _expect(self, channel: guard.Channel, key: str) -> dict[str, Any]:
        message = channel.receive(self._start_timeout)
        if "dead" in message:
            raise PeerError(message["dead"])
        assert key in message, f"{channel.name} sent {message}; expected {key!r}"
        return message

    def check_alive(self) -> None:
        """Raise a PeerError when a server is gone; leaves messages where they are."""
        for channel in self._channels:
            if channel.is_lost():
                self.check()

    def check(self) -> None:
        """Raise a PeerError that names the process when a server is gone or reports a dead trainer."""
        for channel in self._channels:
            for message in channel.poll():
                if "dead" in message:
                    raise PeerError(message["dead"])
            if channel.ended:
                raise PeerError(f"{channel.name} {channel.ended} without a goodbye; see its log for the cause")

    def close(self, broken: bool) -> None:
        """Say goodbye; the servers end when every trainer did. After an error, only the connections are closed."""
        if self._context is not None:
            self._context.leave()
        if not broken:
            try:
                for channel in self._channels:
                    channel.send({"bye": self.rank})
                for channel in self._channels:
                    # Without limit: the others may train for hours more, and a death ends the channel.
                    while "bye" not in (message := channel.receive(math.inf)):
                        if "dead" in message:
                            raise PeerError(message["dead"])
                rpc.stop()
            except PeerError:
                rpc.abandon()
                raise
            finally:
                for channel in self._channels:
                    channel.close()
        else:
            rpc.abandon()
        for channel in self._channels:
            channel.close()


class AttachedSession:
    """The connection that ``dgl.distributed.initialize`` made. DGL's servers watch nobody, so only silence tells.

    Args:
        timeout: Seconds that a server may take for an answer.
        barrier_timeout: Seconds that a barrier may take.
    """

    def __init__(self, timeout: float, barrier_timeout: float) -> None:
        from dgl.distributed import kvstore, role

        client = kvstore.get_kvstore()
        self.answer_timeout, self.barrier_timeout = timeout, barrier_timeout
        self.machine = int(client.machine_id)
        self.rank = role.get_trainer_rank()
        namebook = client._server_namebook
        per_machine = namebook[0][3]
        addresses = tuple((namebook[s][1], namebook[s][2]) for s in range(0, len(namebook), per_machine))
        self.hosts = Hosts(addresses, per_machine)
        members = _role_members()
        ranks = role.PER_ROLE_RANK["default"]
        self.machines: Sequence[int] = [machine for _, machine in sorted((ranks[c], m) for c, m in members)]

    def check(self) -> None:
        """Nothing tells before an answer is late."""

    def close(self, broken: bool) -> None:
        """DGL ends its own connection at exit; after an error its exit hook would wait for the dead for ever."""
        if broken:
            import atexit

            from dgl.distributed.dist_context import exit_client

            atexit.unregister(exit_client)


def announce(session: AttachedSession) -> None:
    """Teach DGL's servers our service: they import it when they unpickle a handler of its module."""
    from dgl.distributed.kvstore import RegisterPushHandlerRequest

    for server in range(session.hosts.num_servers):
        dgl_rpc.send_request(server, RegisterPushHandlerRequest("graph_emb", Announce()))
    for _ in range(session.hosts.num_servers):
        dgl_rpc.recv_response()


def _role_members() -> list[tuple[int, int]]:
    """(client, machine) of every trainer, as DGL's first server knows them."""
    from dgl.distributed import role

    dgl_rpc.send_request(0, role.GetRoleRequest())
    return list(dgl_rpc.recv_response().role["default"])


Asked = tuple[int, str, tuple[Any, ...], tuple[Any, ...]]
"""(server, method, arguments, tensors) of a call."""


class Exchange:
    """Calls and their answers over a session. After an error of a peer every later call raises the same error."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._broken: PeerError | None = None
        self._barriers = 0

    @property
    def broken(self) -> bool:
        """Whether a peer is gone."""
        return self._broken is not None

    def tell(self, server: int, method: str, *arguments: Any, tensors: Sequence[Any] = ()) -> int:
        """Send a call that has no answer, or whose answer ``ask`` collects."""
        self.check()
        return rpc.send(server, Call(method, self._session.rank, arguments, *tensors))

    def check(self) -> None:
        """Raise when a peer is gone: sending to it would let DGL's C++ code abort the process."""
        if self._broken is not None:
            raise PeerError(str(self._broken))
        try:
            self._session.check()
        except PeerError as error:
            self._broken = error
            raise

    def ask(self, calls: Sequence[Asked]) -> list[Answer]:
        """The answers to calls, in their order.

        Raises:
            PeerError: a server is gone or silent.
            GraphEmbError: a call failed there.
        """
        return self.finish(self.start(calls))

    def start(self, calls: Sequence[Asked]) -> list[tuple[int, int]]:
        """Send calls; ``finish`` takes what it returns and must follow before any other call."""
        return [
            (server, self.tell(server, method, *arguments, tensors=tensors))
            for server, method, arguments, tensors in calls
        ]

    def finish(self, started: Sequence[tuple[int, int]]) -> list[Answer]:
        """The answers to started calls; raises as ``ask``."""
        answers: dict[int, Answer] = {}
        waiting = {number: server for server, number in started}

        def take(number: int, answer: Answer) -> bool:
            if waiting.pop(number, None) is not None:
                answers[number] = answer
            return not waiting

        def late() -> str:
            return ", ".join(self._where(server) for server in sorted(set(waiting.values())))

        if waiting:
            self._wait(take, late, self._session.answer_timeout)
        for server, number in started:
            error = answers[number].error
            if error:
                raise revive(error, self._where(server))
        return [answers[number] for _, number in started]

    def flush(self, servers: Sequence[int]) -> list[GraphEmbError]:
        """Return when these servers have handled what this trainer pushed; an error for each that failed to."""
        failed = []
        answers = self.ask([(server, "flush", (), ()) for server in servers])
        for server, answer in zip(servers, answers, strict=True):
            if answer.value:
                more = f" (and {len(answer.value) - 1} more)" if len(answer.value) > 1 else ""
                where = f"{self._where(server)} failed a push of trainer {self._session.rank}{more}"
                failed.append(revive(answer.value[0], where))
        return failed

    def _where(self, server: int) -> str:
        host, port = self._session.hosts.address(server)
        return f"server {server} ({host}:{port})"

    def barrier(self, vote: int = 0) -> int:
        """Wait until every trainer called it; returns the sum of the votes.

        Raises:
            PeerError: a peer is gone; where deaths are not seen, somebody is late.
        """
        self._barriers += 1
        mine, world_size = self._barriers, len(self._session.machines)
        self.tell(0, "barrier", mine, vote, dgl_rpc.get_rank(), world_size)
        total = 0

        def take(_: int, answer: Any) -> bool:  # sent for the last comer's call: its number is not ours
            nonlocal total
            number, total = answer.value
            return number == mine

        def late() -> str:
            return f"barrier {mine}: {world_size} trainers"

        self._wait(take, late, self._session.barrier_timeout)
        return total

    def _wait(self, take: Any, late: Any, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                found = rpc.receive()
                if found is not None and take(*found):
                    return
                if found is None:
                    self._session.check()
                    if until is not None and time.monotonic() > until:
                        raise PeerError(f"{late()} did not answer within {timeout:g} s; dead or unreachable")
        except GraphEmbError as error:
            if isinstance(error, PeerError):
                self._broken = error
            raise
