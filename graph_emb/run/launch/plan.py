"""Which machines take part, and which processes each of them starts, as plain data."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from graph_emb.core.errors import ConfigError, DataError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
SERVER_SPINS = "10000"
"""How often an idle OpenMP thread of a server looks for work before it sleeps ($GOMP_SPINCOUNT).

Libgomp's own choice lasts milliseconds, in which the thread holds a core that a trainer waits for."""


MOST_PER_CORE = 4
"""Trainers, and servers, of a machine for each of its cores, unless more are asked for."""


def check_processes(host: Host, oversubscribe: bool = False) -> None:
    """Refuse a machine's processes before the first one starts.

    Raises:
        ConfigError: more than four trainers or servers for each core, and not ``oversubscribe``.
    """
    cores = os.cpu_count() or 1
    for role, count in (("trainers", host.trainers), ("servers", host.servers)):
        if count > MOST_PER_CORE * cores and not oversubscribe:
            raise ConfigError(
                f"{count} {role} on a machine of {cores} cores: at most {MOST_PER_CORE * cores}, four for each core; "
                "take fewer, or --oversubscribe (parallel.oversubscribe=true)"
            )


@dataclass(frozen=True)
class Process:
    """One process of the job.

    Attributes:
        role: ``"trainer"`` or ``"server"``.
        rank: Its number among those of its role, over all machines.
        command: What is run.
        environment: What is added to this process's environment.
        log: The file that gets its output.
        shown: Whether its output also goes to the terminal.
    """

    role: str
    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path("log")
    shown: bool = False

    @property
    def name(self) -> str:
        """Name of the process in messages."""
        return f"{self.role} {self.rank}"


def trainers(
    command: Sequence[str],
    hosts: Sequence[Host],
    index: int,
    port: int,
    logs: Path,
    threads: int,
    environment: Mapping[str, str],
) -> list[Process]:
    """The trainers of one machine, with the variables that torchrun sets too.

    Args:
        command: What each runs.
        hosts: All machines; ranks are counted in their order.
        index: This machine's place among them.
        port: Where the first machine's launcher holds the store.
        logs: Folder of the log files.
        threads: Threads of each trainer.
        environment: Further variables.
    """
    first = sum(host.trainers for host in hosts[:index])
    world = sum(host.trainers for host in hosts)
    made = []
    for local in range(hosts[index].trainers):
        rank = first + local
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(hosts[index].trainers),
            "GROUP_RANK": str(index),
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            **dict.fromkeys(THREAD_VARIABLES, str(threads)),
            **environment,
        }
        made.append(Process("trainer", rank, tuple(command), variables, logs / f"trainer-{rank}.log", rank == 0))
    return made


def servers(
    hosts: Sequence[Host],
    index: int,
    hosts_file: Path,
    logs: Path,
    threads: int,
    environment: Mapping[str, str],
    part_config: Path | None = None,
) -> list[Process]:
    """The kvstore servers of one machine.

    Args:
        hosts: All machines, each with the same number of servers; ids are counted in their order.
        index: This machine's place among them.
        hosts_file: Where the servers listen, a line for each machine.
        logs: Folder of the log files.
        threads: Threads of each server.
        environment: Further variables: what the trainers get too, the job's token among them.
        part_config: DGL's JSON of the partition whose graph they hold, a part a machine; None: tables alone.
    """
    first = sum(host.servers for host in hosts[:index])
    made = []
    for number in range(first, first + hosts[index].servers):
        variables = {
            **dict.fromkeys(THREAD_VARIABLES, str(threads)),
            "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", SERVER_SPINS),
            **environment,
        }
        words = [str(number), str(hosts_file), str(hosts[index].servers), str(sum(host.trainers for host in hosts))]
        words += [] if part_config is None else [str(part_config)]
        command = (sys.executable, "-m", "graph_emb.run.launch.serve", *words)
        made.append(Process("server", number, command, variables, logs / f"server-{number}.log"))
    return made


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Host:
    """A machine of the job.

    Attributes:
        address: An IPv4 address or a name.
        trainers, servers: Processes to start there.
    """

    address: str
    trainers: int
    servers: int = 0


@dataclass(frozen=True)
class Machines:
    """The machines of a job, as one of them sees it.

    Attributes:
        hosts: The same list on each; ranks are counted in its order.
        index: This machine's place among them.
        port: Of the store on the first machine; 0 takes a free one (one machine only).
    """

    hosts: Sequence[Host]
    index: int = 0
    port: int = 0

    @property
    def own(self) -> Host:
        """This machine."""
        return self.hosts[self.index]

    @property
    def ranks(self) -> range:
        """The trainers of this machine."""
        first = sum(host.trainers for host in self.hosts[: self.index])
        return range(first, first + self.own.trainers)

    def only(self, places: Sequence[int]) -> Machines:
        """The machines at these places, this one among them."""
        return Machines([self.hosts[place] for place in places], list(places).index(self.index), self.port)

    def parts(self, num_parts: int) -> list[int]:
        """The parts of a partition that this machine's trainers take; see ``graph_emb.transport.lockstep.layout``."""
        world = sum(host.trainers for host in self.hosts)
        if world < num_parts:
            return [part for part in range(num_parts) if part * world // num_parts in self.ranks]
        return sorted({rank * num_parts // world for rank in self.ranks})


@dataclass(frozen=True)
class Restarts:
    """How often a failed job starts again.

    Attributes:
        most: Restarts of the whole job; 0: a failure ends it.
        wait: Seconds in which the machines of a restart have to come; it goes on with those that do.
    """

    most: int = 0
    wait: float = 60.0


def read_hosts(path: str | Path, trainers: int | None, servers: int, total: int | None = None) -> list[Host]:
    """The machines of a hosts file: a line each, ``address [trainers [servers]]``; ``#`` begins a comment.

    Args:
        path: The file.
        trainers, servers: Where a line gives none.
        total: Trainers over all machines; lines that give none share evenly what the others leave.
    Raises:
        DataError: the file is missing, empty, or a line cannot be read, has no address or repeats a machine.
        ConfigError: the trainers do not add up to ``total``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"hosts file {path}: {error}") from None
    named: dict[str, tuple[int, list[int]]] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        counts = words[1:]
        if len(counts) > 2 or not all(count.isdecimal() for count in counts):
            raise DataError(f"hosts file {path}, line {number}: {line.strip()!r} is not 'address [trainers [servers]]'")
        if counts and int(counts[0]) < 1:
            raise DataError(f"hosts file {path}, line {number}: {counts[0]} trainers; each host needs at least 1")
        if words[0] in named:
            raise DataError(f"hosts file {path}, line {number}: {words[0]} is named twice")
        named[words[0]] = number, [int(count) for count in counts]
    if not named:
        raise DataError(f"hosts file {path} names no host; write a line 'address [trainers [servers]]' for each")
    _check_addresses(path, {name: number for name, (number, _) in named.items()})
    if total is not None:
        trainers = _even_share(path, total, [counts[0] if counts else None for _, counts in named.values()])
    default = [trainers or 1, servers]
    return [Host(name, *counts, *default[len(counts) :]) for name, (_, counts) in named.items()]


def _check_addresses(path: str | Path, line_of: Mapping[str, int]) -> None:
    """Refuse names without an address, and two names of one machine."""
    names: dict[str, str] = {}
    for name, line in line_of.items():
        try:
            address = resolved(name)
        except ConfigError as error:
            raise DataError(f"hosts file {path}, line {line}: {error}") from None
        if address in names:
            first = names[address]
            raise DataError(f"hosts file {path}, line {line}: {name} is {first} of line {line_of[first]} ({address})")
        names[address] = name


def _even_share(path: str | Path, total: int, given: Sequence[int | None]) -> int | None:
    """Trainers of each host that ``given`` has none for."""
    said = sum(count for count in given if count is not None)
    open_lines = given.count(None)
    left = total - said
    if left < open_lines or (left % open_lines if open_lines else left):
        rest = f", and {open_lines} lines without a number share the rest evenly" if open_lines else ""
        raise ConfigError(
            f"parallel.trainers = {total} over all machines, but hosts file {path} gives {said} trainers{rest}; make "
            "them add up, or leave --trainers out"
        )
    return left // open_lines if open_lines else None


def own_index(hosts: Sequence[Host]) -> int:
    """The place of this machine among the hosts, found by its own addresses and name.

    Raises:
        ConfigError: none or several of the hosts are this machine.
    """
    mine = own_addresses()
    found = [index for index, host in enumerate(hosts) if host.address in mine or resolved(host.address) in mine]
    if len(found) != 1:
        named = ", ".join(host.address for host in hosts)
        raise ConfigError(f"{len(found)} of the hosts {named} are this machine; say which one by --host-index")
    return found[0]


def own_addresses() -> set[str]:
    """The IPv4 addresses and names of this machine."""
    found = {socket.gethostname(), socket.getfqdn(), "localhost"}
    for addresses in psutil.net_if_addrs().values():
        found.update(entry.address for entry in addresses if entry.family == socket.AF_INET)
    return found


def resolved(name: str) -> str:
    """The IPv4 address of a name, or the address itself.

    Raises:
        ConfigError: it has none.
    """
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigError(f"host {name!r} has no address: {error}") from None
