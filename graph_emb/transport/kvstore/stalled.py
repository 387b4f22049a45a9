"""DGL's wait for the rest of a message: what ends it where the sender is gone.

``SocketReceiver::Recv`` (DGL 1.1.3 and 2.1.0, socket_communicator.cc) takes a message's tensors one by one and goes on
until it has them all, whatever limit of time it was given. A sender that dies between two of them is waited for for
ever, in C++, where no error of Python reaches the thread. Another thread looks after the peers meanwhile and ends the
process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from graph_emb.core.errors import PeerError
from graph_emb.core.terminal import code_of, end_at_once
from graph_emb.transport.kvstore.rpc import Receive

LOOK_SECONDS = 0.5
LOOKS = 4
"""A wait for a message lasts a tenth of a second: one that so many looks find has begun to take a message. Looks are
counted, not seconds, as this process may have been stopped itself."""


class StallWatch:
    """A thread that ends this process where it waits for the rest of a message of a peer that is gone, or is stopped.

    Args:
        receive: What the main thread waits in.
        check: Raises a PeerError that names such a peer.
        name: Of this process, in front of the error.
        before: What is done with the error before the process ends.
    """

    def __init__(
        self,
        receive: Receive,
        check: Callable[[], object],
        name: str,
        before: Callable[[PeerError], object] = lambda error: None,
    ) -> None:
        self._receive, self._check, self._name, self._before = receive, check, name, before
        self._ending = threading.Event()
        threading.Thread(target=self._run, name="graph_emb stall watch", daemon=True).start()

    def _run(self) -> None:
        last, looks = None, 0
        while not self._ending.wait(LOOK_SECONDS):
            since = self._receive.since
            looks = looks + 1 if since is not None and since == last else 0
            last = since
            if looks < LOOKS:
                continue
            try:
                self._check()
            except PeerError as error:
                if self._receive.since == since:  # else the main thread goes on, and finds it too
                    self._before(error)
                    print(f"{self._name}: error: {' '.join(str(error).split())}", file=sys.stderr)
                    end_at_once(code_of(error))

    def close(self) -> None:
        """End the thread; may be repeated."""
        self._ending.set()
