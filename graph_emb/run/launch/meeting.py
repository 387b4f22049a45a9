"""Where the launchers of a job meet: a store on the first machine, through which they compare what each is about to
run before any process starts, and hear of failures afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from graph_emb.core.errors import ConfigError, GraphEmbError, PeerError, difference
from graph_emb.core.imports import importing
from graph_emb.core.terminal import one_line
from graph_emb.run.launch.plan import Machines
from graph_emb.run.machine import versions
from graph_emb.transport.guard import TOKEN_VARIABLE, new_token, token_or_environment, token_proof

TOGETHER = 300.0
"""Seconds until a machine that has not come is an error."""
LAST_WORD = timedelta(seconds=15)
LISTEN, SILENCE, TELL = 0.2, 15.0, 5.0
"""Seconds between two looks at the store, until its silence is an error, and for a last message to it."""
ERROR, TOLD, RESTART = "error", "told", "restart"
"""Facts that are not compared: why a machine cannot take part, the word of the first machine to the others, and how
often the job was started again, as far as a machine knows."""
NOT_COMPARED = {TOLD: "", RESTART: ""}
REFUSED, COMPLETE = "refused", "complete"
"""How a failure can be the last: the same would happen again, or the work was done before."""
Facts = Callable[[], Mapping[str, Any]]
Lost = Callable[[], "str | None"]
_JOB = "job"
_over: set[str] = set()
"""Names of the jobs that this process has left: the first machine may still hold the store of one for others."""


class MachinesDifferError(ConfigError):
    """A machine is about to run something else than the first one, or cannot take part; nothing was started."""


def never() -> str | None:
    """The reason of ``Lost`` where no machine gets lost."""
    return None


@contextmanager
def met(
    machines: Machines,
    facts: Facts,
    lost: Lost = never,
    within: float = TOGETHER,
    restart: int = 0,
    restart_within: float = TOGETHER,
) -> Iterator[Meeting]:
    """The meeting of a job from the moment on at which all machines are about to run the same.

    Args:
        machines: All of them and this one's place.
        facts: Asked for what has to be equal, by name, and for ``TOLD``. Versions and the hosts are added. What it
            raises is told to all machines, each of which ends with it.
        lost: Asked while machines are missing; a text says why one will not come.
        within: Seconds in which the machines have to come.
        restart: How often the job was started again, as far as this machine knows: one that replaces another hears it
            here. A restart goes on with those that came, the first one among them; the others are not
            ``Meeting.present``.
        restart_within: ``within`` of a first machine that hears so; its own start is no reason to wait for long.
    Raises:
        ConfigError: no port or no token in common; or, a MachinesDifferError and the same on all machines, one differs
            from the first or cannot take part.
        PeerError: a machine did not come in time, or does not hold the job's token.
    """
    alone = len(machines.hosts) == 1
    if not alone and machines.port == 0:
        raise ConfigError("several hosts need a port that all of them know; give --port")
    token = _token(alone)
    try:
        own = facts()
    except (GraphEmbError, OSError, MemoryError) as error:
        if alone:
            raise
        own = {ERROR: one_line(error, "use fewer processes")}
    meeting = Meeting(machines, token, within, restart, restart_within)
    try:
        meeting.agree(own, lost)
    except MachinesDifferError:
        meeting.leave()  # all machines raise it
        raise
    except BaseException as error:
        meeting.leave(failed=str(error) or type(error).__name__)
        raise
    try:
        yield meeting
    except BaseException as error:
        end = COMPLETE if getattr(error, "complete", False) else REFUSED if getattr(error, "final", True) else None
        meeting.leave(failed=str(error) or type(error).__name__, end=end)
        raise
    meeting.leave()


def _token(alone: bool) -> str:
    """The token of a job, which every process proves before anything else: the environment's, or on one machine a new
    one.

    Raises:
        ConfigError: several machines have no token in common.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None and not alone:
        raise ConfigError(
            f"several hosts need a token in common; set {TOKEN_VARIABLE} to the same value on each "
            "(docs/guides/security.md)"
        )
    return new_token() if token is None else token_or_environment(token)


class Meeting:
    """The launchers of a job; a single one tells and hears nothing.

    A thread listens, because a call to a store behind a cut cable does not return.

    Args:
        machines: All of them and this one's place.
        token: The job's; what the machines say of themselves is signed with it.
        within, restart, restart_within: As in ``met``.
    Attributes:
        port: Where the store listens, on the first machine's address alone.
        told: The ``TOLD`` of the first machine, once they agree.
        present, restart: The places of the machines that take part, and how often the job was started again, once they
            agree; the first one says it.
        end: ``REFUSED`` or ``COMPLETE`` where another machine failed and nothing should start again.
    Raises:
        PeerError: the port cannot be had, or no launcher came to the first machine in time.
    """

    def __init__(
        self,
        machines: Machines,
        token: str,
        within: float = TOGETHER,
        restart: int = 0,
        restart_within: float = TOGETHER,
    ) -> None:
        self._machines, self.token, self.told = machines, token, ""
        self._within, self._restart_within, self.restart = within, restart_within, restart
        self.present = list(range(len(machines.hosts)))
        self.end: str | None = None
        self._store: Any
        self._name, self._store = _store(machines, within)
        self.port = self._store.port
        self._others = [number for number in range(len(machines.hosts)) if number != machines.index]
        self._reason: str | None = None
        self._heard = time.monotonic()
        self._own: str | None = None
        self._chosen: str | None = None  # who takes part, as the first machine says it
        self._facts: dict[int, str] = {}
        self._first_left = False
        self._over = threading.Event()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        if self._others:
            self._listening.start()

    def agree(self, own: Mapping[str, Any], lost: Lost) -> None:
        """Return when all machines are here and about to run the same; each calls it once. As ``met``."""
        self.told = str(own.get(TOLD, ""))
        if not self._others:
            return
        facts = {**_this_machine(self._machines), **own, RESTART: self.restart}
        self._own = json.dumps(
            {name: value if isinstance(value, str) else repr(value) for name, value in facts.items()}
        )
        self._await(lost)
        found = {number: self._read(number, self._facts[number]) for number in self.present}
        _compare(found, [host.address for host in self._machines.hosts])
        self.told = found[0].get(TOLD, "")

    def _await(self, lost: Lost) -> None:
        """Wait for the machines, of a restart those that come in time; the first one says who they are."""
        own, begun = self._machines.index, time.monotonic()
        deadline = begun + self._within
        while self._chosen is None:
            if own == 0 and self._hears_of_restart():
                deadline = min(deadline, begun + self._restart_within)
            reason = self.failure() or (None if self.restart else lost())
            late, complete = time.monotonic() > deadline, len(self._facts) == len(self._machines.hosts)
            if own == 0 and (complete or (late and self.restart and own in self._facts)):
                self._chosen = json.dumps([sorted(self._facts), self.restart])
                break
            if late and not complete and not (self.restart and time.monotonic() < deadline + SILENCE):
                absent = [host.address for n, host in enumerate(self._machines.hosts) if n not in self._facts]
                reason = reason or (
                    f"host {', '.join(absent)} did not come to {self._machines.hosts[0].address}:{self.port} within "
                    f"{self._within:g} s; start the same command there, and see that the port is open"
                )
            if reason:
                raise PeerError(reason)
            time.sleep(LISTEN / 4)
        self.present, self.restart = json.loads(self._chosen)
        while not set(self.present) <= self._facts.keys():  # heard before the last of them
            if reason := self.failure():
                raise PeerError(reason)
            time.sleep(LISTEN / 4)
        if own not in self.present:
            raise PeerError("the others have gone on without this machine, which came too late")
        self._others = [number for number in self.present if number != own]

    def _hears_of_restart(self) -> bool:
        """Whether another machine has come to a restart that this one did not know of, because it replaces one."""
        found = [self._proven(number, text) for number, text in list(self._facts.items())]
        heard = max((int(facts[RESTART]) for facts in found if facts is not None), default=0)
        news, self.restart = heard > self.restart, max(heard, self.restart)
        return news

    def _read(self, number: int, text: str) -> dict[str, str]:
        """What a machine says of itself."""
        found = self._proven(number, text)
        if found is None:
            raise PeerError(
                f"host {self._machines.hosts[number].address} does not hold the token of this machine; set "
                f"{TOKEN_VARIABLE} to the same value on each"
            )
        return found

    def _proven(self, number: int, text: str) -> dict[str, str] | None:
        """What a machine that holds the token says of itself."""
        proof, _, said = text.partition(" ")
        return json.loads(said) if hmac.compare_digest(proof, self._proof(number, said)) else None

    def _proof(self, number: int, said: str) -> str:
        return token_proof(self.token, f"launcher {number}".encode(), self._name.encode(), said.encode()).hex()

    def failure(self) -> str | None:
        """Why the job must end, if another machine's share failed or the first machine is silent."""
        if self._others and not self._reason and time.monotonic() - self._heard > SILENCE:
            return f"the launcher of host {self._machines.hosts[0].address} has not answered for {SILENCE:g} s"
        return self._reason

    def stay(self) -> str | None:
        """Return when the first machine leaves, or why the job must end: a restart needs the machines that are done."""
        with contextlib.suppress(KeyboardInterrupt):  # here all is done, and the others go on
            while self._others and self._machines.index and not self._first_left:
                if reason := self.failure():
                    return reason
                time.sleep(LISTEN / 4)
        return self._reason

    def _listen(self) -> None:
        store, hosts, own = self._store, self._machines.hosts, self._machines.index
        said = chosen = left = False
        while not self._over.wait(LISTEN):
            try:
                if self._own is not None and not said:
                    store.set(f"facts/{own}", f"{self._proof(own, self._own)} {self._own}")
                    said = True
                for number in range(len(hosts)):
                    if number not in self._facts and store.check([f"facts/{number}"]):
                        self._facts[number] = store.get(f"facts/{number}").decode()
                if own == 0 and self._chosen is not None and not chosen:
                    store.set("present", self._chosen)
                    chosen = True
                elif own and self._chosen is None and store.check(["present"]):
                    self._chosen = store.get("present").decode()
                left = left or store.check(["left/0"])
                failed = [number for number in self._others if store.check([f"failed/{number}"])]
                if failed:
                    text = store.get(f"failed/{failed[0]}").decode()
                    if store.check([f"end/{failed[0]}"]):
                        self.end = store.get(f"end/{failed[0]}").decode()
                    self._reason = f"host {hosts[failed[0]].address}: {text}"
                    return
                self._first_left = left
            except RuntimeError:
                if not left:
                    self._reason = f"the launcher of host {hosts[0].address} is gone"
                    return
                self._first_left = True
            self._heard = time.monotonic()

    def leave(self, failed: str | None = None, end: str | None = REFUSED) -> None:
        """Tell the others, of a failure with its ``end``.

        The first machine holds the store until they have heard, for LAST_WORD at most.
        """
        self._over.set()
        if not self._others:
            self._store = None
            return
        telling = threading.Thread(target=self._tell, args=(failed, end), daemon=True)
        telling.start()
        telling.join(
            LAST_WORD.total_seconds() * (self._machines.index == 0) + TELL
        )  # while it waits, it holds the store
        self._listening.join(TELL)
        self._store = None  # ends the first machine's server, whose port the next job may want
        if self._machines.index:
            _over.add(self._name)

    def _tell(self, failed: str | None, end: str | None) -> None:
        store = self._store
        with contextlib.suppress(RuntimeError):  # the store is gone, or a launcher never answers: none is left to tell
            if self._machines.index == 0 and self._chosen is not None:  # the listener may not have come to it
                store.set("present", self._chosen)
            if failed is not None and end is not None:
                store.set(f"end/{self._machines.index}", end)
            if failed is not None:
                store.set(f"failed/{self._machines.index}", failed)
            store.set(f"left/{self._machines.index}", "")
            if self._machines.index == 0:
                store.wait([f"left/{number}" for number in self._others], LAST_WORD)


def _store(machines: Machines, within: float) -> tuple[str, Any]:
    """The name of a job and its store, whose server is the first machine's launcher."""
    with importing():
        from torch.distributed import TCPStore

    address, port, patience = machines.hosts[0].address, machines.port, timedelta(seconds=within)
    if machines.index == 0:
        try:
            server = socket.create_server((address, port), backlog=1024)
        except OSError as error:
            raise PeerError(f"cannot listen on {address}:{port}: {error.strerror}; give another --port") from None
        port = server.getsockname()[1]
        listening = server.detach()
        store = TCPStore(
            address, port, is_master=True, wait_for_workers=False, timeout=patience, master_listen_fd=listening
        )
        store.set(_JOB, name := secrets.token_hex(16))
        return name, store
    deadline = time.monotonic() + within
    while True:
        said = f"nothing but a job that has ended for {within:g} s"
        try:
            # torch's own way tries for a multiple of its timeout, and prints a trace of C++ each time
            socket.create_connection((address, port), timeout=max(LISTEN, deadline - time.monotonic())).close()
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=patience)
            name = store.get(_JOB).decode()
            if name not in _over:
                return name, store
        except (RuntimeError, OSError) as error:
            said = str(error).splitlines()[0]
        if time.monotonic() > deadline:
            raise PeerError(f"nobody meets at {address}:{port}: {said}; start the first host's launcher")
        time.sleep(LISTEN)


def _this_machine(machines: Machines) -> dict[str, str]:
    """What the machines of every job must have in common."""
    found = versions()
    return {
        "package": f"{found['graph_emb']}, files {_digest_of_package()}",
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: found[name] for name in ("torch", "dgl", "numpy")},
        "hosts file": "; ".join(f"{host.address} {host.trainers} {host.servers}" for host in machines.hosts),
    }


@cache
def _digest_of_package() -> str:
    """Of the sources of both packages: two checkouts may have one version."""
    whole, root = hashlib.sha256(), Path(__file__).resolve().parents[3]
    for path in sorted(file for name in ("graph_emb", "partition") for file in (root / name).rglob("*.py")):
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


def _compare(found: Mapping[int, Mapping[str, str]], addresses: list[str]) -> None:
    """Raise the first difference, the same on every machine."""
    for number, facts in found.items():
        if ERROR in facts:
            raise MachinesDifferError(f"host {addresses[number]}: {facts[ERROR]}")
    for number, facts in found.items():
        said = difference({**found[0], **NOT_COMPARED}, {**facts, **NOT_COMPARED}, addresses[0])
        if said:
            raise MachinesDifferError(f"host {addresses[number]}: {said}; nothing was started, make them equal")
