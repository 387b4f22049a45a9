"""The guard in front of DGL's RPC: a shared token, known addresses, and a check of every connection before it is read.

DGL's RPC unpickles what it receives, and its C++ code accepts the first comers. So the processes of a job first meet
here, on a channel that speaks fixed-length handshakes and JSON, never pickle; DGL's port opens only when all have
proved the token, and what it accepted is compared with what the others say they opened before a message is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Collection
from typing import Any

import psutil

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.core.log import get_logger

MAGIC = b"graph_emb guard 1"
NONCE = 32
PROOF = 32
HELLO_SECONDS = 5.0
"""Seconds for the handshake of a newcomer; a silent one is dropped and holds no other up."""
LONGEST_MESSAGE = 1 << 20
TOKEN_VARIABLE = "GRAPH_EMB_TOKEN"
SHORTEST_TOKEN = 16
LONGEST_SILENCE = 3 * 32_767.0
"""Seconds: the kernel counts the third of it, after which it probes a silent peer, in 15 bits."""

_log = get_logger("guard")

Address = tuple[str, int]


def new_token() -> str:
    """A token of 256 random bits; give every process of the job the same one."""
    return secrets.token_hex(32)


def token_or_environment(token: str | None) -> str:
    """The token, or $GRAPH_EMB_TOKEN where it is None.

    Raises:
        ConfigError: there is none, or it is short enough to be guessed.
    """
    found = token or os.environ.get(TOKEN_VARIABLE, "")
    if len(found) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the job's token has {len(found)} characters, at least {SHORTEST_TOKEN} are needed; "
            f"pass token= or set ${TOKEN_VARIABLE} to one value of graph_emb.transport.guard.new_token() everywhere"
        )
    return found


def check_seconds(**given: float) -> None:
    """Raise a ConfigError for a time that is no positive, finite number of seconds."""
    for name, seconds in given.items():
        if not 0 < seconds < math.inf:
            raise ConfigError(f"{name} {seconds!r} must be a positive number of seconds, and finite")


def token_proof(token: str, who: bytes, first: bytes, second: bytes) -> bytes:
    """HMAC-SHA256 by which a process shows that it knows the token, over the two sides' nonces."""
    return hmac.new(token.encode(), who + first + second, hashlib.sha256).digest()


def _read(sock: socket.socket, num_bytes: int, until: float) -> bytes:
    """Exactly num_bytes, all of them before ``until``: a peer that trickles bytes gains no time."""
    data = b""
    while len(data) < num_bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("handshake took too long")
        sock.settimeout(left)
        more = sock.recv(num_bytes - len(data))
        if not more:
            raise ConnectionError("connection closed")
        data += more
    return data


class Channel:
    """An authenticated connection to one process of the job; it lives as long as both processes do.

    Its silence is the sign of life: the kernel closes it when the peer's process ends, and probes an unreachable
    host until ``timeout`` has passed.

    Args:
        sock: Connected, after the handshake.
        name: The peer as errors name it.
        timeout: Seconds until an unreachable peer counts as dead; at most ``LONGEST_SILENCE``.
    """

    def __init__(self, sock: socket.socket, name: str, timeout: float) -> None:
        timeout = min(timeout, LONGEST_SILENCE)
        self.name = name
        self.address: Address = sock.getpeername()[:2]
        self._sock = sock
        self._buffer = b""
        self._ended: str | None = None
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
        try:
            self._sock.sendall(struct.pack("!I", len(data)) + data)
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
            if self._ended:
                raise PeerError(f"{self.name} {self._ended}")
            left = until - time.monotonic()
            if left <= 0:
                raise PeerError(f"{self.name} did not answer within {timeout:g} s")
            self._readable(min(left, 1.0))

    def poll(self) -> list[dict[str, Any]]:
        """At most one message that is here already; never waits. Then ``ended`` tells whether the peer is gone."""
        self._fill()
        if len(self._buffer) < 4:
            return []
        (length,) = struct.unpack("!I", self._buffer[:4])
        if length > LONGEST_MESSAGE:
            self._ended = f"sent a message of {length} bytes"
            return []
        if len(self._buffer) < 4 + length:
            return []
        data, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return [json.loads(data)]

    def is_lost(self) -> bool:
        """Whether the peer is gone, with its last messages left to be read."""
        self._fill()
        return self._ended is not None

    def _fill(self) -> None:
        if self._ended is not None:
            return
        try:
            while self._readable(0.0):
                more = self._sock.recv(65536)
                if not more:
                    self._ended = "ended"
                    return
                self._buffer += more
        except OSError as error:
            self._ended = f"is lost ({error})"

    def _readable(self, timeout: float) -> bool:
        """Whether there is something to read, the end included; waits for it ``timeout`` seconds."""
        waiting = select.poll()  # select() knows descriptors below 1024 only
        waiting.register(self._sock, select.POLLIN)
        return bool(waiting.poll(1000 * timeout))

    def fileno(self) -> int:
        """The descriptor of the connection."""
        return self._sock.fileno()

    @property
    def ended(self) -> str | None:
        """How the connection ended, as the end of a sentence; None while it lives."""
        return self._ended

    def close(self) -> None:
        """Close the connection; may be repeated."""
        self._sock.close()
        self._ended = self._ended or "ended"


def news_of(channels: Collection[Channel]) -> select.poll:
    """Ready while a channel has something to read, its end included: one system call for all of them."""
    found = select.poll()
    for channel in channels:
        found.register(channel, select.POLLIN)
    return found


class Listener:
    """Where the processes of a job come in: one port, one token, known addresses.

    Args:
        address: The address of this host and a port; port 0 takes a free one.
        token: The job's token.
        allowed: Addresses that may come in; loopback is always one of them.
        timeout: Of the channels.
    """

    def __init__(self, address: Address, token: str, allowed: Collection[str], timeout: float) -> None:
        check_address(address[0])
        self._token, self._timeout = token, timeout
        self._allowed = {*allowed, "127.0.0.1"}
        self.refused: list[str] = []
        self._welcome: list[Channel] = []
        self._changed = threading.Condition()
        try:
            self._sock = socket.create_server(address, backlog=1024)
        except OSError as error:
            raise PeerError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; give another port"
            ) from None
        self.address: Address = self._sock.getsockname()[:2]
        self._open = True
        threading.Thread(target=self._accept, name="graph_emb guard", daemon=True).start()

    def accept(self, timeout: float) -> Channel:
        """The next peer that proved the token.

        Raises:
            PeerError: no peer came within ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._welcome, timeout):
                refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
                raise PeerError(
                    f"nobody came to {self.address[0]}:{self.address[1]} within {timeout:g} s{refused}; "
                    "do all processes run and hold the same token?"
                )
            return self._welcome.pop(0)

    def close(self) -> None:
        """Stop listening; channels that were made stay."""
        self._open = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which close() alone does not
        self._sock.close()

    def _accept(self) -> None:
        while self._open:
            try:
                sock, (host, port, *_) = self._sock.accept()
            except OSError:
                return
            if host not in self._allowed:
                self._refuse(sock, f"{host}:{port} (not in the hosts file)")
                continue
            threading.Thread(target=self._meet, args=(sock, host, port), daemon=True).start()

    def _meet(self, sock: socket.socket, host: str, port: int) -> None:
        """Both sides prove that they know the token; each proof covers both nonces, so none can be replayed."""
        until = time.monotonic() + HELLO_SECONDS
        try:
            mine = secrets.token_bytes(NONCE)
            sock.sendall(MAGIC + mine)
            answer = _read(sock, NONCE + PROOF, until)
            theirs, proof = answer[:NONCE], answer[NONCE:]
            if not hmac.compare_digest(proof, token_proof(self._token, b"dialer", mine, theirs)):
                self._refuse(sock, f"{host}:{port} (wrong token)")
                return
            sock.sendall(token_proof(self._token, b"listener", mine, theirs))
            channel = Channel(sock, f"{host}:{port}", self._timeout)
        except OSError as error:
            self._refuse(sock, f"{host}:{port} ({error or type(error).__name__})")
            return
        with self._changed:
            self._welcome.append(channel)
            self._changed.notify_all()

    def _refuse(self, sock: socket.socket, who: str) -> None:
        sock.close()
        with self._changed:
            self.refused.append(who)
        _log.warning("refused %s", who)


def dial(address: Address, token: str, timeout: float, patience: float) -> Channel:
    """A channel to a listener, tried again until a process listens.

    Args:
        address: Of the listener.
        token: The job's token.
        timeout: Of the channel.
        patience: Seconds until giving up.
    Raises:
        PeerError: no process listens there, or it does not hold the same token.
    """
    name = f"{address[0]}:{address[1]}"
    until = time.monotonic() + patience
    while True:
        try:
            sock = socket.create_connection(address, timeout=min(timeout, HELLO_SECONDS))
            break
        except OSError as error:
            if time.monotonic() > until:
                raise PeerError(f"no server at {name} within {patience:g} s ({error}); is it running?") from None
            time.sleep(0.05)
    try:
        deadline = time.monotonic() + HELLO_SECONDS
        greeting = _read(sock, len(MAGIC) + NONCE, deadline)
        if not greeting.startswith(MAGIC):
            raise PeerError(f"{name} is no server of graph_emb; check the hosts file and the port")
        theirs, mine = greeting[len(MAGIC) :], secrets.token_bytes(NONCE)
        sock.sendall(mine + token_proof(token, b"dialer", theirs, mine))
        if not hmac.compare_digest(_read(sock, PROOF, deadline), token_proof(token, b"listener", theirs, mine)):
            raise PeerError(f"{name} does not hold the job's token")
    except OSError:
        sock.close()
        raise PeerError(f"{name} refused this process; compare the token and the hosts file") from None
    except PeerError:
        sock.close()
        raise
    return Channel(sock, name, timeout)


def check_address(host: str) -> None:
    """Raise a ConfigError for an address that means every interface: a job names its hosts."""
    try:
        everywhere = host in ("", "::") or socket.inet_aton(host) == bytes(4)  # "0" and "0x0" are 0.0.0.0 too
    except OSError:
        everywhere = False  # a name
    if everywhere:
        raise ConfigError(f"address {host!r} opens every interface; name the host's own address, or use 127.0.0.1")


def connections_to(port: int) -> set[Address]:
    """Remote ends of the established connections that this process accepted on a port."""
    return {
        (found.raddr.ip, found.raddr.port)
        for found in psutil.Process().net_connections("tcp4")
        if found.laddr.port == port and found.raddr
    }


def connections_from(remote: Address) -> set[Address]:
    """Local ends of the connections that this process opened to an address."""
    return {
        (found.laddr.ip, found.laddr.port)
        for found in psutil.Process().net_connections("tcp4")
        if found.raddr and (found.raddr.ip, found.raddr.port) == remote
    }


def check_accepted(port: int, expected: set[Address]) -> None:
    """Compare what DGL's RPC accepted on a port with what the authenticated peers say they opened.

    Called after DGL accepted its peers and before the first message is read, so that a stranger's bytes are never
    unpickled.

    Raises:
        PeerError: a stranger got in; the job must end.
    """
    strangers = connections_to(port) - expected
    if strangers:
        names = ", ".join(f"{host}:{number}" for host, number in sorted(strangers))
        raise PeerError(
            f"a stranger connected to DGL's RPC on port {port}: {names}; nothing of it was unpickled; start again"
        )
