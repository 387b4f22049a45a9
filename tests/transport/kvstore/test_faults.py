"""A process that dies, freezes or never comes: everybody else ends with an error that names it, soon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import psutil
import pytest
import torch

import graph_emb as ge
from graph_emb.optim.rules import SGD
from graph_emb.transport import guard
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import connect, rpc, serve
from tests.transport.kvstore.cluster import LIMIT, Cluster, _serve, shared_memory_is_clean

pytestmark = pytest.mark.dist


def train_until(transport: Any, victim: str, at: str) -> None:
    """Step for ever; trainer 1 kills itself or server 0 after a few steps, at a chosen place."""
    emb = ge.DistEmbedding(5_000, 64, name="e")
    opt = ge.SparseAdagrad([emb], lr=0.1)
    ids = torch.arange(5_000)
    transport.barrier()
    for step in range(100_000):
        if step == 3 and transport.rank == 1:
            opt.zero_grad()
            os.kill(os.getpid() if victim == "trainer 1" else server_pid(transport), signal.SIGKILL)
        if at == "barrier":
            transport.barrier()
        emb(ids).sum().backward()
        opt.step()
        if at == "flush":
            transport.flush()


def server_pid(transport: Any, server: int = 0) -> int:
    """The process that listens at a server's address."""
    port = transport._session.hosts.address(server)[1]
    for process in psutil.Process(os.getppid()).children():
        for one in process.net_connections("tcp4"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port:
                return process.pid
    raise AssertionError(f"nobody listens on port {port}")


@pytest.mark.parametrize("victim", ["trainer 1", "server 0"])
@pytest.mark.parametrize("at", ["pull", "flush", "barrier"])
def test_a_killed_process_ends_the_job_with_an_error_that_names_it(victim: str, at: str) -> None:
    with shared_memory_is_clean():
        cluster = Cluster(2)
        cluster.start(train_until, victim, at)
        outcomes = cluster.join()
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for name, outcome in outcomes.items():
        if name != victim:
            assert outcome.exit_code == 1, (name, outcome, cluster.logs[name])
            assert victim in outcome.error
            assert "without a goodbye" in outcome.error


def ends_with_an_error(transport: Any) -> None:
    transport.barrier()
    if transport.rank == 1:
        raise RuntimeError("my data is missing")
    transport.barrier()


def test_a_trainer_that_raises_ends_the_others() -> None:
    cluster = Cluster(2)
    cluster.start(ends_with_an_error)
    outcomes = cluster.join()
    assert outcomes["trainer 1"].error == "RuntimeError: my data is missing"
    assert "trainer 1" in outcomes["trainer 0"].error
    assert [outcome.exit_code for outcome in outcomes.values()] == [1, 1, 1]


def never_called(transport: Any) -> None:
    raise AssertionError("the job must not start")


def serve_one_of_two(hosts: list[str], token: str) -> None:
    """A server that waits for two trainers: for the first one as long as it takes to come."""
    accept, waits = guard.Listener.accept, iter([LIMIT])
    guard.Listener.accept = lambda self, timeout: accept(self, next(waits, timeout))  # type: ignore[method-assign]
    serve(0, hosts, 1, 2, token=token, start_timeout=2.0)


def test_a_trainer_that_never_comes_is_missed() -> None:
    cluster = Cluster(1)
    cluster.add("server 0", serve_one_of_two, (cluster.hosts, cluster.token))
    cluster.start_trainers(never_called)
    outcomes = cluster.join()
    assert "nobody came" in outcomes["server 0"].error
    assert "nobody came" in outcomes["trainer 0"].error
    assert outcomes["trainer 0"].exit_code == 1


def test_a_server_that_never_comes_is_missed() -> None:
    cluster = Cluster(1, start_timeout=1.0)
    cluster.start_trainers(never_called)
    error = cluster.join()["trainer 0"].error
    assert error.startswith(f"PeerError: no server at {cluster.hosts[0]} within 1 s")


def test_two_trainers_of_one_rank_are_told() -> None:
    cluster = Cluster(2)
    cluster.start_servers()
    cluster.trainers = 1
    cluster.start_trainers(never_called)
    cluster.start_trainers(never_called, "twin ")
    outcomes = cluster.join()
    assert "rank 0, which is taken" in outcomes["server 0"].error
    assert any("rank 0 is taken" in outcome.error for outcome in outcomes.values())


def frozen(transport: Any) -> None:
    emb = ge.DistEmbedding(4, 1, name="e")
    transport.barrier()
    pid = server_pid(transport)
    os.kill(pid, signal.SIGSTOP)
    try:
        emb.weight[0:4] = 1.0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_server_that_lives_but_does_not_answer_is_named() -> None:
    cluster = Cluster(1, answer_timeout=1.0)
    cluster.start(frozen)
    error = cluster.join()["trainer 0"].error
    assert error.startswith("PeerError: server 0 (127.0.0.1:")
    assert "did not answer within 1 s" in error


def one_is_stopped(transport: Any, at: str) -> None:
    """Trainer 1 stops itself; the others come to a barrier, to close() or step on."""
    transport._session.answer_timeout = LIMIT  # a server that compiles answers late; its own patience is as it was
    emb = ge.DistEmbedding(40, 2, name="e")
    opt = ge.SparseSGD([emb], lr=0.1)
    transport.barrier()
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if at == "barrier":
        transport.barrier()
    while at == "step":
        emb(torch.arange(40)).sum().backward()
        opt.step()


@pytest.mark.parametrize("at", ["barrier", "close", "step"])
def test_a_stopped_trainer_is_named_to_all_others(at: str) -> None:
    """Its kernel answers for it: barriers and close() waited for ever."""
    with shared_memory_is_clean():
        cluster = Cluster(3, answer_timeout=4.0)
        cluster.start(one_is_stopped, at)
        stopped = cluster.workers["trainer 1"].process
        others = [worker for name, worker in cluster.workers.items() if name != "trainer 1"]
        ended = wait([worker.process.sentinel for worker in others], timeout=LIMIT)
        while ended and len(ended) < len(others):
            more = wait([w.process.sentinel for w in others if w.process.sentinel not in ended], timeout=LIMIT)
            if not more:
                break
            ended += more
        os.kill(stopped.pid, signal.SIGCONT)
        outcomes = cluster.join()
    assert len(ended) == len(others), outcomes
    for name, outcome in outcomes.items():
        assert outcome.exit_code == 1, (name, outcome, cluster.logs[name])
        if name != "trainer 1":
            assert (
                f"trainer 1 (host {socket.gethostname()} at 127.0.0.1, pid {stopped.pid}) did not answer within 4 s"
                in outcome.error
            )


def stopped_server(transport: Any, at: str) -> None:
    transport.barrier()
    pid = server_pid(transport)
    os.kill(pid, signal.SIGSTOP)
    try:
        transport.barrier() if at == "barrier" else transport._session.close(False)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("at", ["barrier", "close"])
def test_a_stopped_server_is_named_at_a_barrier_and_at_the_end(at: str) -> None:
    cluster = Cluster(1, answer_timeout=1.0)
    cluster.start(stopped_server, at)
    error = cluster.join()["trainer 0"].error
    assert error.startswith("PeerError: server 0 (127.0.0.1:")
    assert "did not answer within 1 s and gave no sign of life" in error


def connects_late(server: int, hosts: list[str], token: str) -> None:
    connect_dgl = rpc.connect

    def late(*arguments: Any, **options: Any) -> None:
        time.sleep(3.0)
        connect_dgl(*arguments, **options)

    rpc.connect = late
    try:
        serve(server, hosts, 1, 1, token=token)
    finally:
        rpc.connect = connect_dgl


def nothing(transport: Any) -> int:
    transport.barrier()
    return transport.rank


def test_a_trainer_that_waits_for_a_late_server_is_not_taken_for_stopped() -> None:
    """It gave no sign of life before all servers were ready; the first one to be ready counted its patience."""
    cluster = Cluster(1, 2, answer_timeout=2.0)
    options = {"token": cluster.token}
    cluster.add("server 0", _serve, (0, cluster.hosts, 1, 1, options))
    cluster.add("server 1", connects_late, (1, cluster.hosts, cluster.token))
    cluster.start_trainers(nothing)
    outcomes = cluster.join()
    assert {outcome.error for outcome in outcomes.values()} == {""}, outcomes


def works_alone(transport: Any) -> float:
    """Trainer 0 keeps the interpreter busy for longer than the others' patience; they wait at the barrier."""
    begun = time.monotonic()
    while transport.rank == 0 and time.monotonic() - begun < 4.0:
        sum(range(10_000))
    transport.barrier()
    return time.monotonic() - begun


def test_a_trainer_that_works_longer_than_the_patience_is_waited_for() -> None:
    assert min(Cluster(2, answer_timeout=2.0).run(works_alone)) > 3.0


def twice_broken(transport: Any, again: dict[str, Any]) -> None:
    emb = ge.DistEmbedding(4, 1, name="e")
    transport.barrier()
    os.kill(server_pid(transport), signal.SIGKILL)
    said = []
    for call in (transport.barrier, transport.flush, lambda: ge.DistEmbedding(4, 1, name="f"), lambda: emb.weight[0]):
        with pytest.raises(ge.PeerError) as caught:
            call()
        said.append(str(caught.value))
    assert len(set(said)) == 1
    assert "server 0" in said[0]
    ge.shutdown()
    connect(**again)


def test_every_later_call_names_the_dead_again_and_close_returns() -> None:
    """A second job in such a process would abort in DGL's C++ code; it is refused before any server is waited for."""
    cluster, other = Cluster(1), Cluster(1)
    cluster.start(twice_broken, {"hosts": other.hosts, "token": other.token, "rank": 0})
    outcome = cluster.join()["trainer 0"]
    assert outcome.error == "ModeError: this process lost a peer of its last job; start a new process"
    other.join(1)


def leaves_early(transport: Any) -> None:
    transport.barrier()
    if transport.rank == 0:
        transport.barrier()


def test_a_barrier_that_can_never_be_full_ends_with_an_error() -> None:
    """A script that raised says goodbye from its exit hook; those who wait for it must not wait for ever."""
    cluster = Cluster(2)
    cluster.start(leaves_early)
    outcomes = cluster.join()
    assert "trainers [0] wait at a barrier, but trainers [1] said goodbye" in outcomes["trainer 0"].error, outcomes
    assert all(outcome.exit_code == 1 for outcome in outcomes.values())


def works_longer(transport: Any) -> float:
    emb = ge.DistEmbedding(1, 1, name="e")
    opt = ge.SparseSGD([emb], lr=1.0)
    for _ in range(40 if transport.rank == 0 else 1):
        emb(torch.tensor([0])).sum().backward()
        opt.step()
    return float(emb.weight[0])


def test_a_trainer_that_is_done_early_waits_for_the_others() -> None:
    first, second = Cluster(2, start_timeout=20.0).run(works_longer)
    assert first in (-40.0, -41.0)
    assert second <= -1.0


def dies_in_the_middle_of_a_message(transport: Any) -> None:
    emb = ge.DistEmbedding(40_000, 64, name="e")
    transport.barrier()
    pid = server_pid(transport, 1)
    os.kill(pid, signal.SIGSTOP)  # its socket fills up, so that DGL's sender waits inside of a message
    for _ in range(5):
        transport.push([Push(emb.name, torch.arange(40_000), torch.ones(40_000, 64), SGD(1.0), "sum")])
    os.kill(pid, signal.SIGKILL)
    transport.flush()


def test_a_server_that_dies_in_the_middle_of_a_message_is_an_error_too() -> None:
    """DGL's sender throws in its own thread, which ends the process by SIGABRT: here the thread is parked."""
    with shared_memory_is_clean():
        cluster = Cluster(1, 2)
        cluster.start(dies_in_the_middle_of_a_message)
        outcome = cluster.join()["trainer 0"]
    assert outcome.exit_code == 1, cluster.logs["trainer 0"]
    assert "server 1" in outcome.error


def bytes_in_sockets(queue: int) -> int:
    """What the kernel holds of all that this process has sent (TIOCOUTQ) or could read (FIONREAD) by sockets."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                total += int.from_bytes(fcntl.ioctl(int(name), queue, bytes(4)), sys.byteorder)
    return total


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def all_is_read() -> bool:
    """Whether DGL's receiver has what came; a process that was stopped goes on before it does."""
    return bytes_in_sockets(termios.FIONREAD) == 0


def read_before_it_is_late(receive: Callable[[int], Any]) -> Callable[[int], Any]:
    """A receive whose wait, where it was over while the process was stopped, ends with what came meanwhile.

    The process would look after its peers otherwise, see that one is gone, and never be within a message.
    """

    def wrapped(timeout: int) -> Any:
        found = receive(timeout)
        if found is None:
            until(all_is_read)
            found = receive(timeout)
        return found

    return wrapped


class HalfAnswer:
    """A pull handler: the trainer is stopped, so that its socket fills up within the answer; then the server ends."""

    def __init__(self, trainer: int, number: int) -> None:
        self.trainer, self.number = trainer, number

    def __call__(self, store: Any, name: str, rows: torch.Tensor) -> torch.Tensor:
        os.kill(self.trainer, signal.SIGSTOP)
        threading.Thread(target=self.end, daemon=True).start()
        return store[name][rows]

    def end(self) -> None:
        until(lambda: bytes_in_sockets(termios.TIOCOUTQ) > 100_000)
        os.kill(os.getpid(), self.number)


def takes_half_an_answer(transport: Any, number: int) -> None:
    """Its rows lie at the other machine's server."""
    emb = ge.DistEmbedding(160_000, 64, name="e")
    emb.weight[80_000:160_000]
    rpc.RECEIVE._receive = read_before_it_is_late(rpc.RECEIVE._receive)
    transport.register_pull_handler("e", HalfAnswer(os.getpid(), number))
    emb.weight[80_000:160_000]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_gone_or_stopped_in_the_middle_of_an_answer_ends_the_trainer(number: int) -> None:
    """DGL's receiver waits for the rest of a message for ever, and returns to nobody who could look after the peer."""
    with shared_memory_is_clean():
        cluster = Cluster(1, 2, answer_timeout=4.0)
        cluster.start(takes_half_an_answer, number)
        server, trainer = (psutil.Process(cluster.workers[name].process.pid) for name in ("server 1", "trainer 0"))
        ended = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
        until(lambda: not server.is_running() or server.status() in ended)
        os.kill(trainer.pid, signal.SIGCONT)
        cluster.workers["trainer 0"].process.join(LIMIT)
        if number == signal.SIGSTOP:
            os.kill(server.pid, signal.SIGCONT)
        outcomes = cluster.join()
    assert outcomes["trainer 0"].exit_code == 3, cluster.logs["trainer 0"]
    how = "without a goodbye" if number == signal.SIGKILL else "gave no sign of life: was its process stopped?"
    (line,) = [line for line in cluster.logs["trainer 0"].splitlines() if "error: " in line]
    assert line.startswith("graph-emb: trainer 0: error: server 1 (127.0.0.1:")
    assert how in line


class Stopped:
    """A push handler that stops its server, which waits for no message then: see ``read_before_it_is_late``."""

    def __call__(self, store: Any, name: str, rows: torch.Tensor, data: torch.Tensor) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        until(all_is_read)


def sends_half_a_push(transport: Any) -> None:
    """Trainer 0 ends inside of a push to a server that is stopped; trainer 1 comes to a barrier."""
    emb = ge.DistEmbedding(160_000, 64, name="e")
    transport.register_push_handler("e", Stopped())
    transport.barrier()
    if transport.rank == 0:
        server = psutil.Process(server_pid(transport, 1))
        for num in (1, 80_000):
            transport.push_data(emb.name, torch.arange(80_000, 80_000 + num), torch.ones(num, 64))
            until(lambda: server.status() == psutil.STATUS_STOPPED)
        until(lambda: bytes_in_sockets(termios.TIOCOUTQ) > 100_000)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.barrier()


def test_a_trainer_that_dies_in_the_middle_of_a_push_ends_the_server_and_the_others() -> None:
    with shared_memory_is_clean():
        cluster = Cluster(2, 2)
        cluster.start(sends_half_a_push)
        cluster.workers["trainer 0"].process.join(LIMIT)
        os.kill(cluster.workers["server 1"].process.pid, signal.SIGCONT)
        outcomes = cluster.join()
    assert outcomes["trainer 0"].exit_code == -signal.SIGKILL
    assert outcomes["server 1"].exit_code == 3, cluster.logs["server 1"]
    assert "graph-emb: server 1: error: trainer 0 (host" in cluster.logs["server 1"]
    assert outcomes["trainer 1"].exit_code == 1
    assert "trainer 0 (host" in outcomes["trainer 1"].error
