"""The guard: strangers get nowhere, and nothing of theirs is unpickled."""

from __future__ import annotations

import math
import os
import pickle
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import graph_emb as ge
from graph_emb.transport import channel, guard
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("idle_servers")

TOKEN = guard.new_token()
PATIENCE = 100.0
"""Seconds: what is late on a busy machine is no error of these tests."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HELLO_SECONDS", PATIENCE)


@pytest.fixture
def listener() -> Iterator[guard.Listener]:
    made = guard.Listener(("127.0.0.1", 0), TOKEN, [], PATIENCE)
    yield made
    made.close()


def refused(listener: guard.Listener, num: int) -> Sequence[str]:
    """What the listener refused, when there are num of them."""
    until = time.monotonic() + PATIENCE
    while len(listener.refused) < num:
        assert time.monotonic() < until, f"refused so far: {listener.refused}"
        time.sleep(0.01)
    return listener.refused


def test_two_that_hold_the_token_talk(listener: guard.Listener) -> None:
    mine = guard.dial(listener.address, TOKEN, PATIENCE, PATIENCE)
    theirs = listener.accept(PATIENCE)
    mine.send({"rank": 1})
    mine.send({"rank": [2]})
    assert theirs.receive(PATIENCE) == {"rank": 1}
    assert theirs.receive(PATIENCE) == {"rank": [2]}
    assert theirs.poll() == []
    assert not theirs.is_lost()
    mine.close()
    with pytest.raises(ge.PeerError, match="ended"):
        theirs.receive(PATIENCE)
    theirs.close()


def test_a_channel_whose_descriptor_is_above_1023_talks() -> None:
    """It was asked by select(), which raises there; a trainer with many files open could not start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    held: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            while not held or held[-1] < 1100:
                held.append(os.dup(0))
            near, (far, _) = socket.create_connection(server.getsockname()), server.accept()
            mine, theirs = guard.Channel(near, "near", PATIENCE), guard.Channel(far, "far", PATIENCE)
            mine.send({"rank": 1})
            assert theirs.receive(PATIENCE) == {"rank": 1}
            mine.close()
            assert theirs.is_lost()
            theirs.close()
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_patience_beyond_the_kernels_is_the_kernels_longest(listener: guard.Listener) -> None:
    mine = guard.dial(listener.address, TOKEN, 1e9, PATIENCE)
    listener.accept(PATIENCE).close()
    assert 3 * mine._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == channel.LONGEST_SILENCE
    mine.close()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_times_are_positive_and_finite(seconds: float) -> None:
    with pytest.raises(ge.ConfigError, match=r"timeout .* must be a positive number of seconds, and finite"):
        ge.init(mode="kvstore", hosts=["127.0.0.1:30050"], timeout=seconds)
    with pytest.raises(ge.ConfigError, match=r"timeout.* must be a positive number of seconds, and finite"):
        ge.init(mode="collective", timeout=seconds)


def test_a_wrong_token_is_refused_on_both_sides(listener: guard.Listener) -> None:
    with pytest.raises(ge.PeerError, match="compare the token and the hosts file"):
        guard.dial(listener.address, guard.new_token(), PATIENCE, PATIENCE)
    assert "wrong token" in refused(listener, 1)[0]
    with pytest.raises(ge.PeerError, match=r"nobody came .* refused: 127\.0\.0\.1:\d+ \(wrong token\)"):
        listener.accept(0.1)


class Explosive:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_a_strangers_pickle_is_never_read(listener: guard.Listener, tmp_path: Path) -> None:
    bomb = tmp_path / "exploded"
    with socket.create_connection(listener.address) as stranger:
        stranger.sendall(pickle.dumps(Explosive(str(bomb))) * 3)
        assert "wrong token" in refused(listener, 1)[0]
    assert not bomb.exists()
    pickle.loads(pickle.dumps(Explosive(str(bomb))))
    assert bomb.exists()  # it would have worked


def test_a_silent_stranger_holds_nobody_up(listener: guard.Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HELLO_SECONDS", 0.5)
    with socket.create_connection(listener.address):
        mine = guard.dial(listener.address, TOKEN, PATIENCE, PATIENCE)
        listener.accept(PATIENCE).close()
        mine.close()
        assert "too long" in refused(listener, 1)[0] or "timed out" in listener.refused[0]


@pytest.mark.parametrize("late", ["listener", "dialer"])
def test_who_is_held_up_in_the_handshake_is_met_all_the_same(
    listener: guard.Listener, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """A process that a busy machine held up for HELLO_SECONDS was told that it had been refused, and ended the job."""
    monkeypatch.setattr(guard, "HELLO_SECONDS", 0.2)
    read, admit = guard._read, guard.Listener._admit
    held = iter([0.6])

    def hold_the_dialer(*arguments: Any) -> bytes:
        time.sleep(next(held, 0.0))
        return read(*arguments)

    def hold_the_listener(self: guard.Listener) -> None:
        time.sleep(next(held, 0.0))
        admit(self)

    if late == "dialer":
        monkeypatch.setattr(guard, "_read", hold_the_dialer)
    else:
        monkeypatch.setattr(guard.Listener, "_admit", hold_the_listener)
    mine = guard.dial(listener.address, TOKEN, PATIENCE, PATIENCE)
    mine.send({"rank": 1})
    while (theirs := listener.accept(PATIENCE)).is_lost():  # a handshake that the dialer gave up
        theirs.close()
    assert theirs.receive(PATIENCE) == {"rank": 1}
    assert next(held, None) is None
    mine.close()
    theirs.close()


def test_a_listener_that_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "HELLO_SECONDS", 0.1)
        with pytest.raises(ge.PeerError, match=r"did not answer within 0\.3 s: was its process stopped\?"):
            guard.dial(silent.getsockname()[:2], TOKEN, 5.0, 0.3)


def strangers_and_a_trainer(limit: int) -> str:
    """Let 200 silent strangers come to a listener with ``limit`` descriptors; then a trainer, which must get in.

    Returns:
        How the listener's process looked back on it.
    """
    script = f"""
import resource, sys
from graph_emb.transport import guard
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
listener = guard.Listener(("127.0.0.1", 0), sys.argv[1], [], {PATIENCE})
print(listener.address[1], flush=True)
for turn in range(2):
    channel = listener.accept({PATIENCE})
    channel.send({{"handshakes": len(listener._newcomers)}})
    assert "bye" in channel.receive({PATIENCE})
listener.close()
print("ended", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, TOKEN], stdout=subprocess.PIPE, text=True)
    strangers: list[socket.socket] = []
    try:
        assert process.stdout
        address = ("127.0.0.1", int(process.stdout.readline()))
        for _ in range(2):  # strangers that go leave it as it was
            strangers += [socket.create_connection(address) for _ in range(200)]
            mine = guard.dial(address, TOKEN, PATIENCE, PATIENCE)
            assert mine.receive(PATIENCE)["handshakes"] <= guard.MOST_OF_ONE_ADDRESS
            while strangers:
                strangers.pop().close()
            mine.send({"bye": 0})
            mine.close()
        return process.communicate(timeout=PATIENCE)[0]
    finally:
        for stranger in strangers:
            stranger.close()
        process.kill()
        process.wait()


@pytest.mark.parametrize("limit", [120, 20])
def test_silent_strangers_take_neither_the_port_nor_the_descriptors(limit: int) -> None:
    """Each held a descriptor and a thread for five seconds; the first EMFILE ended the accepting thread for good.

    20 descriptors are fewer than the open handshakes that are allowed, so that accepting fails."""
    assert strangers_and_a_trainer(limit) == "ended\n"


def test_many_of_the_job_that_come_at_once_all_get_in(listener: guard.Listener) -> None:
    """More than may shake hands at a time: those that had to make room come again."""
    strangers = [socket.create_connection(listener.address) for _ in range(guard.MOST_OF_ONE_ADDRESS)]
    with ThreadPoolExecutor(100) as pool:
        mine = list(pool.map(lambda _: guard.dial(listener.address, TOKEN, PATIENCE, PATIENCE), range(100)))
    theirs = [listener.accept(PATIENCE) for _ in mine]
    for one in [*mine, *theirs, *strangers]:
        one.close()


def test_a_listener_that_does_not_know_the_token_is_not_trusted() -> None:
    """The proof is mutual: a process that took the port first learns nothing that it could use."""
    with socket.create_server(("127.0.0.1", 0)) as false:

        def pretend() -> None:
            peer, _ = false.accept()
            with peer:
                peer.sendall(guard.MAGIC + bytes(guard.NONCE))
                guard._read(peer, guard.NONCE + guard.PROOF, time.monotonic() + PATIENCE)
                peer.sendall(bytes(guard.PROOF))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ge.PeerError, match="does not hold the job's token"):
            guard.dial(false.getsockname()[:2], TOKEN, PATIENCE, PATIENCE)
        thread.join()


def test_other_servers_are_not_mistaken_for_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            peer, _ = other.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 4)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ge.PeerError, match=r"no server of graph_emb|refused"):
            guard.dial(other.getsockname()[:2], TOKEN, PATIENCE, PATIENCE)
        thread.join()


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "0", "0.0", "0x0", "00.0.0.0", "::ffff:0.0.0.0", "::ffff:0:0", "0::0"]
)
def test_no_job_listens_on_every_interface(host: str) -> None:
    with pytest.raises(ge.ConfigError, match="opens every interface"):
        guard.Listener((host, 0), TOKEN, [], 5.0)


def test_a_token_must_be_given_and_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.TOKEN_VARIABLE, raising=False)
    with pytest.raises(ge.ConfigError, match="at least 16"):
        guard.token_or_environment(None)
    with pytest.raises(ge.ConfigError, match="has 5 characters"):
        guard.token_or_environment("12345")
    monkeypatch.setenv(guard.TOKEN_VARIABLE, TOKEN)
    assert guard.token_or_environment(None) == TOKEN
    assert len(guard.new_token()) == 64
    assert guard.new_token() != guard.new_token()


def test_a_stranger_among_the_accepted_connections_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as friend, server.accept()[0]:
            known = {friend.getsockname()[:2]}
            assert known == guard.connections_from(("127.0.0.1", port))
            guard.check_accepted(port, known)
            with socket.create_connection(("127.0.0.1", port)) as stranger, server.accept()[0]:
                name = f"127.0.0.1:{stranger.getsockname()[1]}"
                with pytest.raises(ge.PeerError, match=f"a stranger .* port {port}: {name}; nothing of it"):
                    guard.check_accepted(port, known)


def reset(one: socket.socket) -> None:
    """End a connection so that the other end's socket leaves the system's list, with what it has received."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def test_a_stranger_who_left_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stranger = socket.create_connection(("127.0.0.1", port))
        with server.accept()[0] as held, socket.create_connection(("127.0.0.1", port)) as friend:
            stranger.sendall(b"bomb")
            reset(stranger)
            assert select.select([held], [], [], PATIENCE)[0]
            known = guard.connections_from(("127.0.0.1", port))
            assert known == {friend.getsockname()}  # it waits to be accepted
            with pytest.raises(ge.PeerError, match=f"a stranger .* port {port}: one who reset it; nothing of it"):
                guard.check_accepted(port, known)
            held.close()
            with pytest.raises(
                ge.PeerError, match=f"does not hold the connection of 127.0.0.1:{friend.getsockname()[1]}"
            ):
                guard.check_accepted(port, known)


def addresses(transport: Any) -> list[tuple[str, str]]:
    """(address, state) of the sockets of this trainer and its servers."""
    transport.barrier()
    found = []
    for process in [psutil.Process(), *psutil.Process(os.getppid()).children()]:
        found += [(c.laddr.ip, c.status) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    transport.barrier()
    return found


@pytest.mark.dist
def test_every_socket_of_a_job_on_one_host_is_bound_to_loopback() -> None:
    (found,) = Cluster(1, 1, 2).run(addresses)
    assert len(found) >= 3
    assert {address for address, _ in found} == {"127.0.0.1"}


def serve_with_a_stranger(hosts: list[str], token: str, bomb: str, leaves: bool) -> None:
    """Run a server at whose DGL port a stranger is the first to connect, with a pickle in DGL's frame."""
    from graph_emb.transport.kvstore import rpc, serve

    opening, strangers = rpc.Opening.__init__, []

    def open_and_be_entered(self: Any, host: str, num_peers: int) -> None:
        opening(self, host, num_peers)
        body = pickle.dumps(Explosive(bomb))
        strangers.append(socket.create_connection(self.address))
        strangers[-1].sendall(struct.pack("<q", len(body)) + body)
        if leaves:
            reset(strangers.pop())

    rpc.Opening.__init__ = open_and_be_entered  # type: ignore[method-assign]
    serve(0, hosts, 1, 1, token=token, timeout=10.0)


@pytest.mark.dist
@pytest.mark.parametrize("leaves", [False, True])
def test_a_stranger_who_takes_a_place_at_dgls_port_ends_the_job_unread(tmp_path: Path, leaves: bool) -> None:
    """DGL's C++ code accepts whoever comes first; the job must end before it unpickles anything of his."""
    bomb = tmp_path / "exploded"
    cluster = Cluster(1, timeout=10.0)
    cluster.add("server 0", serve_with_a_stranger, (cluster.hosts, cluster.token, str(bomb), leaves))
    cluster.start_trainers(addresses)
    outcomes = cluster.join()
    assert not bomb.exists()
    for outcome in outcomes.values():
        assert re.search("a stranger connected (to DGL's RPC on port|in its place and left)", outcome.error), outcomes
        assert outcome.exit_code == 1
