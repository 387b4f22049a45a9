"""DGL's threads end the whole process when a peer dies in the middle of a message; here they wait, and we raise.

``SocketSender::SendLoop`` throws where nothing catches (dgl 1.1.3 and 2.1.0, socket_communicator.cc: ``tmp != -1``),
which is ``std::terminate``, SIGABRT and no Python error. A terminate handler need not return: the thread is parked, and
the main thread finds the dead peer on the guard's channel.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

_HANDLER = ctypes.CFUNCTYPE(None)
_SECONDS = 5.0
"""How long the death of a peer may take to show on its channel."""

_lost: list[Callable[[], bool]] = []
_installed: list[Any] = []  # the handler and its predecessor: C++ keeps the address, Python must keep the object


def hold_threads_when(lost: Callable[[], bool]) -> None:
    """From now on a thread of DGL that fails while ``lost()`` says that a peer is gone waits for ever.

    Failures of other threads, and failures while all peers live, still end the process.
    """
    _lost[:] = [lost]
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
    until = time.monotonic() + _SECONDS
    while not python_thread and time.monotonic() < until:
        if _lost[0]():
            while True:
                time.sleep(3600.0)
        time.sleep(0.01)
    before = _installed[1]
    if before is not None:
        before()
