"""An authenticated connection between two processes of a job: JSON messages, the peer's end, and signs of its life."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Collection
from typing import Any

from graph_emb.core.errors import PeerError

LONGEST_MESSAGE = 1 << 20
LONGEST_SILENCE = 3 * 32_767.0
"""Seconds: the kernel counts the third of it, after which it probes a silent peer, in 15 bits."""
SIGNS_IN_PATIENCE = 8
"""Signs of life in the time after which a silent process counts as stopped."""
_SIGN_OF_LIFE = struct.pack("!I", 0)

Address = tuple[str, int]


class Channel:
    """An authenticated connection to one process of the job; it lives as long as both processes do.

    The kernel closes it when the peer's process ends, and probes an unreachable host until ``timeout`` has passed. A
    process that is stopped keeps it open: its ``SignsOfLife`` do not come then.

    Args:
        sock: Connected, after the handshake.
        name: The peer as errors name it.
        timeout: Seconds until an unreachable peer counts as dead; at most ``LONGEST_SILENCE``.
    Attributes:
        ended: How the connection ended, as the end of a sentence; None while it lives.
    """

    def __init__(self, sock: socket.socket, name: str, timeout: float) -> None:
        timeout = min(timeout, LONGEST_SILENCE)
        self.name = name
        self.address: Address = sock.getpeername()[:2]
        self._sock = sock
        self._buffer = b""
        self.ended: str | None = None
        self._sending, self._reading = threading.Lock(), threading.RLock()
        self._silent, self._looked = 0.0, time.monotonic()
        sock.settimeout(timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(timeout / 3)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(timeout / 6)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))

    def send(self, message: dict[str, Any]) -> None:
        """Send one JSON object.

        Raises:
            PeerError: the peer is gone.
        """
        data = json.dumps(message).encode()
        self._send(struct.pack("!I", len(data)) + data)

    def _send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._sock.sendall(data)
        except OSError as error:
            raise PeerError(f"{self.name} cannot be reached: {error}") from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next JSON object.

        Raises:
            PeerError: the peer is gone, or silent for ``timeout`` seconds.
        """
        until = time.monotonic() + timeout
        while True:
            for message in self.poll():
                return message
            if self.ended:
                raise PeerError(f"{self.name} {self.ended}")
            left = until - time.monotonic()
            if left <= 0:
                raise PeerError(f"{self.name} did not answer within {timeout:g} s")
            self._readable(min(left, 1.0))

    def poll(self) -> list[dict[str, Any]]:
        """At most one message that is here already; never waits. Then ``ended`` tells whether the peer is gone."""
        with self._reading:
            return self._next()

    def _next(self) -> list[dict[str, Any]]:
        self._fill()
        while self._buffer.startswith(_SIGN_OF_LIFE):
            self._buffer = self._buffer[4:]
        if len(self._buffer) < 4:
            return []
        (length,) = struct.unpack("!I", self._buffer[:4])
        if length > LONGEST_MESSAGE:
            self.ended = f"sent a message of {length} bytes"
            return []
        if len(self._buffer) < 4 + length:
            return []
        data, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return [json.loads(data)]

    def is_lost(self) -> bool:
        """Whether the peer is gone, with its last messages left to be read."""
        self._fill()
        return self.ended is not None

    def check_life(self, patience: float) -> None:
        """Look for signs of life; to be called every fraction of a second while this process waits.

        Longer times between two calls do not count: this process may have been stopped or busy itself.

        Raises:
            PeerError: nothing came for ``patience`` seconds.
        """
        now = time.monotonic()
        self._silent += min(now - self._looked, patience / SIGNS_IN_PATIENCE)
        self._looked = now
        self._fill()
        if self._silent > patience and self.ended is None:
            raise PeerError(
                f"{self.name} did not answer within {patience:g} s and gave no sign of life: was its process stopped?"
            )

    def _fill(self) -> None:
        with self._reading:
            if self.ended is not None:
                return
            try:
                while self._readable(0.0):
                    more = self._sock.recv(65536)
                    if not more:
                        self.ended = "ended"
                        return
                    self._buffer += more
                    self._silent, self._looked = 0.0, time.monotonic()
            except OSError as error:
                self.ended = f"is lost ({error})"

    def _readable(self, timeout: float) -> bool:
        """Whether there is something to read, the end included; waits for it ``timeout`` seconds."""
        waiting = select.poll()  # select() knows descriptors below 1024 only
        waiting.register(self._sock, select.POLLIN)
        return bool(waiting.poll(1000 * timeout))

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection; may be repeated."""
        self.ended = self.ended or "ended"  # first: another thread may look
        self._sock.close()


class SignsOfLife:
    """A thread that tells peers that this process runs, however busy its main thread is.

    ``patience``: seconds of silence after which the least patient of them takes this process for stopped.
    """

    def __init__(self, channels: Collection[Channel], patience: float) -> None:
        self._channels, self._pause = list(channels), patience / SIGNS_IN_PATIENCE
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="graph_emb signs of life", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(self._pause):
            for channel in list(self._channels):
                try:
                    channel._send(_SIGN_OF_LIFE)  # the peer sees only that it came
                except PeerError:  # the main thread hears of it when it looks
                    self._channels.remove(channel)

    def close(self) -> None:
        """End the thread; may be repeated."""
        self._ending.set()
