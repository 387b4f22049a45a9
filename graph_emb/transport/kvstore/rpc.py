"""DGL's RPC with what it lacks: waits that end, connections that are checked, and threads that fail without a word.

DGL 1.1.3 and 2.1.0 differ in two signatures; both are met here. A peer's death in the middle of a message ends the
whole process: ``SocketSender::SendLoop`` throws where nothing catches (socket_communicator.cc: ``tmp != -1``), which is
``std::terminate``, SIGABRT and no Python error. A terminate handler need not return: the thread is parked, and the main
thread finds the dead peer on the guard's channel.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from graph_emb.compat.dgl import load
from graph_emb.core.errors import ModeError, PeerError
from graph_emb.transport import guard

load()

from dgl.distributed import rpc  # noqa: E402

QUEUE_BYTES = 20 * 1024**3  # an upper bound, as DGL's: nothing is allocated
SLICE_MS = 100
"""How long a wait lasts before the peers are looked at again."""
_NET_TYPE = "net_type" in inspect.signature(rpc.create_sender).parameters

_lost: list[bool] = []

Check = Callable[[], None]


def start() -> None:
    """Make DGL's sender and receiver of this process.

    Raises:
        ModeError: this process lost a peer before; DGL's threads cannot be ended then, and making new ones aborts.
    """
    if _lost:
        raise ModeError("this process lost a peer of its last job; start a new process")
    rpc.reset()
    for create in (rpc.create_sender, rpc.create_receiver):
        if _NET_TYPE:
            create(QUEUE_BYTES, "socket")
        else:
            create(QUEUE_BYTES)


def abandon() -> None:
    """Leave sender and receiver as they are: a peer is gone, and DGL would wait for its goodbye for ever."""
    _lost.append(True)


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

    def join(self, check: Check, timeout: float, who: str) -> None:
        """Wait until all peers are connected.

        Raises:
            PeerError: they are not within ``timeout`` seconds, or ``check`` raises.
        """
        until = time.monotonic() + timeout
        while self._thread.is_alive():
            self._thread.join(SLICE_MS / 1000)
            check()
            if time.monotonic() > until:
                raise PeerError(f"{who} did not connect to {self.address[0]}:{self.address[1]} within {timeout:g} s")
        if self._failure:
            raise PeerError(f"DGL's RPC on {self.address[0]}:{self.address[1]}: {self._failure}")


def _listening(host: str) -> set[int]:
    found = psutil.Process().net_connections("tcp4")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN and one.laddr.ip == host}


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
