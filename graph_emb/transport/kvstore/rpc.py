"""DGL's RPC with what it lacks: waits that end, connections that are checked, and threads that fail without a word;
and on it the calls of a trainer at the servers and their answers, one request and one response.

DGL 1.1.3 and 2.1.0 differ in two signatures; both are met here. A peer's death in the middle of a message ends the
whole process: ``SocketSender::SendLoop`` throws where nothing catches (socket_communicator.cc: ``tmp != -1``), which is
``std::terminate``, SIGABRT and no Python error. A terminate handler need not return: the thread is parked, and the main
thread finds the dead peer on the guard's channel.
"""

from __future__ import annotations

import ctypes
import inspect
import pickle
import select
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from graph_emb.compat.dgl import load
from graph_emb.core import errors
from graph_emb.core.errors import ConfigError, GraphEmbError, ModeError, PeerError
from graph_emb.core.terminal import end_at_once
from graph_emb.transport import guard
from graph_emb.transport.kvstore.layout import Hosts
from graph_emb.transport.traffic import LinkCounts

load()

from dgl.distributed import rpc  # noqa: E402

SERVICE = 7_340_611  # DGL's lie at 22_4xx, 700_xxx, 80x_xxx and 901_2xx; DGL's examples use numbers below 10_000_000
QUEUE_BYTES = 20 * 1024**3  # an upper bound, as DGL's: nothing is allocated
SLICE_MS = 100
"""How long a wait lasts before the peers are looked at again."""
_NET_TYPE = "net_type" in inspect.signature(rpc.create_sender).parameters

_lost: list[bool] = []


def check_startable() -> None:
    """Raise a ModeError where this process lost a peer before: DGL's threads cannot be ended, and new ones abort."""
    if _lost:
        raise ModeError("this process lost a peer of its last job; start a new process")


def start() -> None:
    """Make DGL's sender and receiver of this process, after ``check_startable``."""
    check_startable()
    rpc.reset()
    for create in (rpc.create_sender, rpc.create_receiver):
        create(QUEUE_BYTES, *(["socket"] if _NET_TYPE else []))


def abandon() -> None:
    """Leave sender and receiver as they are: a peer is gone, and DGL would wait for its goodbye for ever.

    An error that nobody catches then ends the process at once (``end_at_once``), and so does ``graph-emb``.
    """
    if not _lost:
        shown = sys.excepthook

        def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            shown(kind, error, trace)
            if not hasattr(sys, "ps1"):  # an interactive session goes on
                end_at_once(1)

        sys.excepthook = end
    _lost.append(True)


def lost_a_peer() -> bool:
    """Whether DGL's threads wait for a peer that is gone."""
    return bool(_lost)


def stop() -> None:
    """Close DGL's sender and receiver when every process has said goodbye."""
    rpc.finalize_sender()
    rpc.finalize_receiver()


class Opening:
    """DGL's receiver, listening on a free port of one address until a number of peers came in.

    Args:
        host: The address to bind.
        num_peers: Connections that DGL accepts; it stops accepting after them.
    """

    def __init__(self, host: str, num_peers: int) -> None:
        before = _listening(host)
        self._failure: Exception | None = None
        arguments = (host, 0, num_peers, True) if _NET_TYPE else (host, 0, num_peers)
        # A thread, because the C++ call waits for ever; it releases the interpreter meanwhile.
        self._thread = threading.Thread(target=self._wait, args=arguments, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while not (mine := _listening(host) - before):
            if not self._thread.is_alive() and self._failure is None:
                raise PeerError(
                    f"a stranger connected to DGL's RPC on {host} before anybody knew its port; "
                    "nothing of it was unpickled; start again"
                )
            if time.monotonic() > until or self._failure:
                raise PeerError(f"DGL's RPC cannot listen on {host}: {self._failure or 'no port opened'}")
            time.sleep(0.002)
        self.address: guard.Address = (host, mine.pop())

    def _wait(self, *arguments: Any) -> None:
        try:
            rpc.wait_for_senders(*arguments)
        except Exception as error:  # reported by the thread that waits
            self._failure = error

    def join(self, check: Callable[[], None], timeout: float, who: str) -> None:
        """Wait until all peers are connected."""
        until = time.monotonic() + timeout
        while self._thread.is_alive():
            self._thread.join(SLICE_MS / 1000)
            check()
            if time.monotonic() > until:
                raise PeerError(f"{who} did not connect to {self.address[0]}:{self.address[1]} within {timeout:g} s")
        if self._failure:
            raise PeerError(f"DGL's RPC on {self.address[0]}:{self.address[1]}: {self._failure}")


def _listening(host: str) -> set[int]:
    return {one.local[1] for one in guard.own_connections() if one.listens and one.local[0] == host}


def connect(addresses: Iterable[tuple[int, guard.Address]], timeout: float, group: int = -1) -> None:
    """Connect DGL's sender to the listening receivers of peers, (peer, address) each.

    Raises:
        PeerError: one does not accept, or refuses for about ``timeout`` seconds.
    """
    for peer, address in addresses:
        if not rpc.connect_receiver(*address, peer, group):
            raise PeerError(f"DGL's RPC cannot connect to {address[0]}:{address[1]}")
    if not rpc.connect_receiver_finalize(max(1, int(timeout / 3))):  # DGL sleeps 3 s between tries
        raise PeerError(f"DGL's RPC could not connect to its peers within {timeout:g} s")


_HANDLER = ctypes.CFUNCTYPE(None)
_DEATH_SECONDS = 5.0
"""How long the death of a peer may take to show on its channel."""

_peer_lost: list[Callable[[], bool]] = []
_installed: list[Any] = []  # the handler and its predecessor: C++ keeps the address, Python must keep the object


def hold_threads_when(lost: Callable[[], bool]) -> None:
    """From now on a thread of DGL that fails while ``lost()`` says that a peer is gone waits for ever.

    Failures of other threads, and failures while all peers live, still end the process.
    """
    _peer_lost[:] = [lost]
    if _installed:
        return
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):  # another C++ library: DGL's way of failing stays
        return
    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [_HANDLER]
    handler = _HANDLER(_on_terminate)
    before = set_terminate(handler)
    _installed.extend([handler, _HANDLER(before) if before else None])


def _on_terminate() -> None:
    python_thread = threading.get_ident() in {thread.ident for thread in threading.enumerate()}
    until = time.monotonic() + _DEATH_SECONDS
    while not python_thread and time.monotonic() < until:
        if _peer_lost[0]():
            while True:
                time.sleep(3600.0)
        time.sleep(0.01)
    before = _installed[1]
    if before is not None:
        before()


class Receive:
    """DGL's ``recv_rpc_message``; ``since``: when the wait began that has not ended, ``time.monotonic``."""

    def __init__(self, receive: Callable[[int], Any]) -> None:
        self._receive = receive
        self.since: float | None = None

    def __call__(self, timeout: int = 0) -> Any:
        self.since = time.monotonic()
        try:
            return self._receive(timeout)
        finally:
            self.since = None


class Call(rpc.Request):
    """Run a method of ``tables.Tables`` at a server for a trainer; tensors travel without pickling."""

    def __init__(self, method: str, sender: int, arguments: tuple[Any, ...] = (), *tensors: Tensor) -> None:
        self.method, self.sender, self.arguments, self.tensors = method, sender, arguments, tensors

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.method, self.sender, self.arguments, *map(_laid_out, self.tensors))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.method, self.sender, self.arguments, *tensors = state
        self.tensors = tuple(tensors)

    def process_request(self, server_state: Any) -> Any:
        """Refused: servers make the ``ServedCall`` of ``tables`` of it."""
        raise NotImplementedError(f"{self.method}: this process is no server of tables")


class Answer(rpc.Response):
    """The result of a call: a value, tensors, or the error that it raised there."""

    def __init__(self, value: Any = None, *tensors: Tensor, error: tuple[str, str] | None = None) -> None:
        self.value, self.error, self.tensors = value, error, tensors

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.value, self.error, *map(_laid_out, self.tensors))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value, self.error, *tensors = state
        self.tensors = tuple(tensors)


def _laid_out(tensor: Tensor) -> Tensor:
    """The tensor as DGL sends it: of one without numbers numpy's strides are 0, which DGL takes for gaps and aborts."""
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def describe(error: BaseException) -> tuple[str, str]:
    """An error as a response carries it: the class's name and one line."""
    text = " ".join(str(error).split()) or "no message"
    return type(error).__name__, text


def revive(error: tuple[str, str], where: str) -> GraphEmbError:
    """The error that a server described: of its own class where it is one of ours."""
    name, text = error
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, GraphEmbError):
        return kind(f"{where}: {text}")
    return PeerError(f"{where}: {name}: {text}")


class ByValue:
    """What a server can only unpickle with its code: it turns into the thing itself there."""

    def __init__(self, thing: object) -> None:
        self._data = cloudpickle.dumps(thing)

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (self._data,)


def sendable(thing: Any, what: str) -> Any:
    """The thing as every server can take it: what the program itself defines, and functions without a name, by value.

    Raises:
        ConfigError: it holds something that belongs to this process alone; nothing is sent then.
    """
    try:
        if b"__main__" not in pickle.dumps(thing):  # which is another program at a server
            return thing
    except Exception:  # functions in functions: no name leads to them
        pass
    try:
        return ByValue(thing)
    except Exception as error:
        raise ConfigError(
            f"{what} {thing!r:.80} cannot be sent to the servers ({' '.join(str(error).split())}); leave out what "
            "belongs to this process, such as files, locks and tables"
        ) from None


rpc.register_service(SERVICE, Call, Answer)
RECEIVE = rpc.recv_rpc_message = Receive(rpc.recv_rpc_message)


def send(server: int, request: rpc.Request) -> int:
    """Send a request to one server; returns the number by which its answer is known."""
    number = rpc.incr_msg_seq()
    data, tensors = rpc.serialize_to_payload(request)
    message = rpc.RPCMessage(
        request.service_id, number, rpc.get_rank(), server, data, tensors, group_id=rpc.get_group_id()
    )
    rpc.send_rpc_message(message, server)
    return number


def receive(timeout_ms: int = SLICE_MS) -> tuple[int, Any] | None:
    """(number of the request, response) of the next message, or None when none comes in time."""
    message = RECEIVE(timeout_ms)  # DGLContext puts a watched one into DGL's module
    if message is None:
        return None
    response = rpc.get_service_property(message.service_id)[1]
    return message.msg_seq, rpc.deserialize_from_payload(response, message.data, message.tensors)


class Session(ABC):
    """One trainer's way to the servers."""

    rank: int  # this trainer
    machine: int  # that it runs on
    machines: Sequence[int]  # of each trainer
    hosts: Hosts  # the servers
    answer_timeout: float  # seconds that a living server may take for an answer
    barrier_timeout: float | None  # seconds that a barrier may take; None where the deaths of trainers are seen
    news: select.poll  # ready while a peer has said something, or is gone: ``check`` looks what it is

    @abstractmethod
    def check(self) -> None:
        """Raise a PeerError that names the process when a peer is gone."""

    @abstractmethod
    def close(self, broken: bool) -> None:
        """Say goodbye; ``broken`` after an error: end the connections only."""


Asked = tuple[int, str, tuple[Any, ...], tuple[Any, ...]]
"""(server, method, arguments, tensors) of a call."""


class Exchange:
    """Calls and their answers over a session. After an error of a peer, ``broken``, every later one raises it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.broken: PeerError | None = None
        self.link = LinkCounts()
        self._near = session.hosts.servers_of(session.machine)
        self._barriers = 0

    def tell(self, server: int, method: str, *arguments: Any, tensors: Sequence[Any] = ()) -> int:
        """Send a call that has no answer, or whose answer ``ask`` collects."""
        self.check()
        if server not in self._near:
            self.link.bytes_out += sum(tensor.nbytes for tensor in tensors)
        return send(server, Call(method, self._session.rank, arguments, *tensors))

    def check(self) -> None:
        """Raise when a peer is gone: sending to it would let DGL's C++ code abort the process."""
        if self.broken is not None:
            raise PeerError(str(self.broken))
        if not self._session.news.poll(0):
            return
        try:
            self._session.check()
        except PeerError as error:
            self.broken = error
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
            if server not in self._near:
                self.link.bytes_in += sum(tensor.nbytes for tensor in answers[number].tensors)
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

    def barrier(self, numbers: Sequence[int] = ()) -> list[list[int]]:
        """Wait until every trainer called it; returns the numbers of each, in the order of ranks.

        Raises:
            PeerError: a peer is gone; where deaths are not seen, a trainer is late.
        """
        self._barriers += 1
        mine, world_size, begun = self._barriers, len(self._session.machines), time.monotonic()
        self.tell(0, "barrier", mine, list(numbers), rpc.get_rank(), world_size)
        found: list[list[int]] = []

        def take(_: int, answer: Any) -> bool:  # sent for the last comer's call: its number is not ours
            nonlocal found
            number, found = answer.value
            return bool(number == mine)

        def late() -> str:
            return f"barrier {mine}: {world_size} trainers"

        self._wait(take, late, self._session.barrier_timeout)
        self.link.waited += time.monotonic() - begun
        return found

    def _wait(self, take: Any, late: Any, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                found = receive()
                if found is not None and take(*found):
                    return
                if found is None:
                    self._session.check()
                    if until is not None and time.monotonic() > until:
                        raise PeerError(f"{late()} did not answer within {timeout:g} s; dead or unreachable")
        except GraphEmbError as error:
            if isinstance(error, PeerError):
                self.broken = error
            raise
