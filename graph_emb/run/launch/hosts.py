"""Which machines take part, and which of them this one is."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from graph_emb.core.errors import ConfigError, DataError

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


def read_hosts(path: str | Path, trainers: int, servers: int) -> list[Host]:
    """The machines of a hosts file: a line each, ``address [trainers [servers]]``; ``#`` begins a comment.

    Args:
        path: The file.
        trainers, servers: Where a line gives none.
    Raises:
        DataError: the file is missing, empty, or a line cannot be read or repeats an address.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"hosts file {path}: {error}") from None
    hosts: list[Host] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        counts = words[1:]
        if len(counts) > 2 or not all(count.isdecimal() for count in counts):
            raise DataError(f"hosts file {path}, line {number}: {line.strip()!r} is not 'address [trainers [servers]]'")
        given = [int(count) for count in counts] + [trainers, servers][len(counts) :]
        if given[0] < 1:
            raise DataError(f"hosts file {path}, line {number}: {given[0]} trainers; each host needs at least 1")
        if any(words[0] == host.address for host in hosts):
            raise DataError(f"hosts file {path}, line {number}: {words[0]} is named twice")
        hosts.append(Host(words[0], *given))
    if not hosts:
        raise DataError(f"hosts file {path} names no host; write a line 'address [trainers [servers]]' for each")
    return hosts


def own_index(hosts: list[Host]) -> int:
    """The place of this machine among the hosts, found by its own addresses and name.

    Raises:
        ConfigError: none or several of the hosts are this machine.
    """
    mine = own_addresses()
    found = [index for index, host in enumerate(hosts) if host.address in mine or _resolved(host.address) in mine]
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


def _resolved(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigError(f"host {name!r} has no address: {error}") from None
