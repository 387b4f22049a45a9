"""The guard in front of DGL's RPC: a shared token, known addresses, and a check of every connection before it is read.

DGL's RPC unpickles what it receives, and its C++ code accepts the first comers. So the processes of a job first meet
here, on a channel that speaks fixed-length handshakes and JSON, never pickle; DGL's port opens only when all have
proved the token, and what it accepted is compared with what the others say they opened before a message is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import secrets
import select
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.transport.channel import Address, Channel

MAGIC = b"graph_emb guard 1"
NONCE = 32
PROOF = 32
HELLO_SECONDS = 5.0
"""Seconds for the handshake of a newcomer; a silent one is dropped, holds no other up, and may come again."""
MOST_HANDSHAKES, MOST_OF_ONE_ADDRESS = 64, 32
"""Handshakes that are open at a time: a descriptor each."""
MOST_NAMED = 16
"""Refused newcomers that an error names: the latest ones."""
COME_AGAIN = b"graph_emb guard: full, try again"
"""In place of the listener's proof: the handshake ended for want of room or time."""
FULL_SECONDS = 0.05
"""Seconds until a process without a free descriptor tries again to accept."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TOKEN_VARIABLE = "GRAPH_EMB_TOKEN"
SHORTEST_TOKEN = 16

_log = logging.getLogger("graph_emb.guard")


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


@dataclass(eq=False)
class Newcomer:
    """A connection in its handshake: the listener's nonce, what has come of the answer, and when it must be whole."""

    sock: socket.socket
    host: str
    port: int
    nonce: bytes
    until: float
    answer: bytes = b""

    def fileno(self) -> int:
        return self.sock.fileno()


class Listener:
    """Where the processes of a job come in: one port, one token, known addresses.

    One thread holds at most ``MOST_HANDSHAKES`` handshakes. The oldest makes room for a newcomer, and a process of the
    job that this met comes again, so that silent strangers take neither all descriptors nor the port.

    Args:
        address: The address of this host and a port; port 0 takes a free one.
        token: The job's token.
        allowed: Addresses that may come in; loopback is always one of them.
        timeout: Of the channels.
    Attributes:
        refused: The latest that were refused, at most ``MOST_NAMED``, and why.
    """

    def __init__(self, address: Address, token: str, allowed: Collection[str], timeout: float) -> None:
        check_address(address[0])
        self._token, self._timeout = token, timeout
        self._allowed = {*allowed, "127.0.0.1"}
        self.refused: deque[str] = deque(maxlen=MOST_NAMED)
        self._newcomers: list[Newcomer] = []
        self._welcome: list[Channel] = []
        self._changed = threading.Condition()
        try:
            self._sock = socket.create_server(address, backlog=1024)
        except OSError as error:
            raise PeerError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; give another port"
            ) from None
        self._sock.setblocking(False)
        self.address: Address = self._sock.getsockname()[:2]
        self._open = True
        self._full_until = 0.0
        self._thread = threading.Thread(target=self._run, name="graph_emb guard", daemon=True)
        self._thread.start()

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
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close() alone does not
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        while self._open:
            now = time.monotonic()
            accepts = now >= self._full_until
            ends = [newcomer.until for newcomer in self._newcomers] + ([] if accepts else [self._full_until])
            ready = select.poll()
            ready.register(self._sock, select.POLLIN if accepts else 0)
            for newcomer in self._newcomers:
                ready.register(newcomer, select.POLLIN)
            found = {descriptor for descriptor, _ in ready.poll(1000 * max(0.0, min(ends) - now) if ends else None)}
            # Answers first: a process of the job that waits for its turn need not make room then.
            for newcomer in [one for one in self._newcomers if one.fileno() in found]:
                self._hear(newcomer)
            for newcomer in [one for one in self._newcomers if one.until <= time.monotonic()]:
                self._make_room(newcomer, "handshake took too long")
            if accepts and self._open and self._sock.fileno() in found:
                self._admit()
        for newcomer in self._newcomers:
            newcomer.sock.close()

    def _admit(self) -> None:
        """Accept one connection and greet it. Where there is no descriptor left, those that come wait in the kernel."""
        try:
            sock, (host, port, *_) = self._sock.accept()
        except OSError as error:
            if error.errno in _NO_ROOM and self._newcomers:
                self._make_room(self._newcomers[0])
            elif error.errno in _NO_ROOM:
                self._full_until = time.monotonic() + FULL_SECONDS
                _log.warning("cannot accept connections: %s", error.strerror)
            return  # else it was gone before it was accepted
        if host not in self._allowed:
            self._refuse(sock, f"{host}:{port} (not in the hosts file)")
            return
        neighbours = [one for one in self._newcomers if one.host == host]
        if len(neighbours) >= MOST_OF_ONE_ADDRESS:
            self._make_room(neighbours[0])
        elif len(self._newcomers) >= MOST_HANDSHAKES:
            self._make_room(self._newcomers[0])
        newcomer = Newcomer(sock, host, port, secrets.token_bytes(NONCE), time.monotonic() + HELLO_SECONDS)
        self._newcomers.append(newcomer)
        try:
            sock.setblocking(False)
            sock.sendall(MAGIC + newcomer.nonce)  # a fresh connection's buffer holds it
        except OSError as error:
            self._dismiss(newcomer, str(error))

    def _hear(self, newcomer: Newcomer) -> None:
        """Both sides prove that they know the token; each proof covers both nonces, so none can be replayed."""
        try:
            more = newcomer.sock.recv(NONCE + PROOF - len(newcomer.answer))
            if not more:
                raise ConnectionError("connection closed")
            newcomer.answer += more
            if len(newcomer.answer) < NONCE + PROOF:
                return
            theirs, proof = newcomer.answer[:NONCE], newcomer.answer[NONCE:]
            if not hmac.compare_digest(proof, token_proof(self._token, b"dialer", newcomer.nonce, theirs)):
                self._dismiss(newcomer, "wrong token")
                return
            newcomer.sock.sendall(token_proof(self._token, b"listener", newcomer.nonce, theirs))
            channel = Channel(newcomer.sock, f"{newcomer.host}:{newcomer.port}", self._timeout)
        except OSError as error:
            self._dismiss(newcomer, str(error) or type(error).__name__)
            return
        self._newcomers.remove(newcomer)
        with self._changed:
            self._welcome.append(channel)
            self._changed.notify_all()

    def _make_room(self, newcomer: Newcomer, why: str = "too many handshakes") -> None:
        """End the handshake of a newcomer that may come again."""
        with contextlib.suppress(OSError):
            newcomer.sock.sendall(COME_AGAIN)
        self._dismiss(newcomer, why)

    def _dismiss(self, newcomer: Newcomer, why: str) -> None:
        self._newcomers.remove(newcomer)
        self._refuse(newcomer.sock, f"{newcomer.host}:{newcomer.port} ({why})")

    def _refuse(self, sock: socket.socket, who: str) -> None:
        sock.close()
        with self._changed:
            self.refused.append(who)
        _log.warning("refused %s", who)


def dial(address: Address, token: str, timeout: float, patience: float) -> Channel:
    """A channel to a listener, tried again for ``patience`` seconds until a process listens, answers and has room.

    Raises:
        PeerError: no process listens or answers there, or it does not hold the same token.
    """
    name = f"{address[0]}:{address[1]}"
    until = time.monotonic() + patience
    while True:
        try:
            sock = socket.create_connection(address, timeout=min(timeout, HELLO_SECONDS))
        except OSError as error:
            if time.monotonic() > until:
                raise PeerError(f"no server at {name} within {patience:g} s ({error}); is it running?") from None
        else:
            try:
                if _prove(sock, name, token):
                    return Channel(sock, name, timeout)
                sock.close()
                if time.monotonic() > until:
                    raise PeerError(f"{name} was busy with other handshakes for {patience:g} s; is it under attack?")
            except TimeoutError:  # this process or the other one was held up, as on a busy machine
                sock.close()
                if time.monotonic() > until:
                    raise PeerError(f"{name} did not answer within {patience:g} s: was its process stopped?") from None
            except OSError:
                sock.close()
                raise PeerError(f"{name} refused this process; compare the token and the hosts file") from None
            except PeerError:
                sock.close()
                raise
        time.sleep(0.05)


def _prove(sock: socket.socket, name: str, token: str) -> bool:
    """The dialer's side of the handshake; False where the listener asks to come again.

    Raises:
        PeerError: it is no listener of ours, or does not know the token.
        OSError: it ended the connection, or is silent.
    """
    deadline = time.monotonic() + HELLO_SECONDS
    greeting = _read(sock, len(MAGIC) + NONCE, deadline)
    if not greeting.startswith(MAGIC):
        raise PeerError(f"{name} is no server of graph_emb; check the hosts file and the port")
    theirs, mine = greeting[len(MAGIC) :], secrets.token_bytes(NONCE)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then it has said why before
        sock.sendall(mine + token_proof(token, b"dialer", theirs, mine))
    proof = _read(sock, PROOF, deadline)
    if proof == COME_AGAIN:
        return False
    if not hmac.compare_digest(proof, token_proof(token, b"listener", theirs, mine)):
        raise PeerError(f"{name} does not hold the job's token")
    return True


def check_address(host: str) -> None:
    """Raise a ConfigError for an address that means every interface: a job names its hosts."""
    try:
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:0.0.0.0
        everywhere = address.is_unspecified or (mapped is not None and mapped.is_unspecified)
    except ValueError:
        try:
            everywhere = not host or socket.inet_aton(host) == bytes(4)  # "0" and "0x0" are 0.0.0.0 too
        except OSError:
            everywhere = False  # a name
    if everywhere:
        raise ConfigError(f"address {host!r} opens every interface; name the host's own address, or use 127.0.0.1")


class Connection(NamedTuple):
    """A TCP socket of this process: its own end, and the other one, None where it listens or its peer has reset it."""

    local: Address
    remote: Address | None
    listens: bool


def own_connections() -> Iterator[Connection]:
    """The IPv4 TCP sockets that this process holds, C++'s too, by their descriptors.

    The system's list of all sockets takes milliseconds, and leaves out those that were reset.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.fromfd(int(name), -1, -1) as one:
                if (one.family, one.type) != (socket.AF_INET, socket.SOCK_STREAM):
                    continue
                listens = bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                remote = None
                with contextlib.suppress(OSError):
                    remote = one.getpeername()
                yield Connection(one.getsockname(), remote, listens)


def connections_from(remote: Address) -> set[Address]:
    """Local ends of the connections that this process opened to an address."""
    return {one.local for one in own_connections() if one.remote == remote}


def check_accepted(port: int, expected: set[Address]) -> None:
    """Compare what DGL's RPC accepted on a port with what the authenticated peers say they opened.

    Called after DGL accepted its peers and before the first message is read, so that a stranger's bytes are never
    unpickled.

    Raises:
        PeerError: a stranger got in, or a peer did not, whose place one may have taken and left; the job must end.
    """
    accepted = {one.remote for one in own_connections() if one.local[1] == port and not one.listens}
    strangers = ["one who reset it" if remote is None else _named(remote) for remote in accepted - expected]
    unread = "nothing of it was unpickled; start again"
    if strangers:
        raise PeerError(f"a stranger connected to DGL's RPC on port {port}: {', '.join(sorted(strangers))}; {unread}")
    if missing := [_named(remote) for remote in expected - accepted]:
        raise PeerError(
            f"DGL's RPC on port {port} does not hold the connection of {', '.join(sorted(missing))}: that process "
            f"ended, or a stranger connected in its place and left; {unread}"
        )


def _named(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
