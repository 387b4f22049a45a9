"""Machines, servers and their ranges of rows: plain arithmetic, the same in every process.

Legend: M machines, S servers per machine; server s runs on machine s // S.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.hidden import scratch_folder
from graph_emb.transport.guard import Address, check_address

if TYPE_CHECKING:
    from graph_emb.graph.partition_book import PartitionBook, RangeBook

PORTS = range(10_000, 65_536)
"""The range in which free ports are sought: well-known services have those below it."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Hosts:
    """Machines that run servers: one address each; server j of a machine listens at its port + j.

    Args:
        addresses: (IP address, first port) per machine.
        servers_per_machine: S.
    """

    addresses: tuple[Address, ...]
    servers_per_machine: int = 1

    def __post_init__(self) -> None:
        if self.servers_per_machine < 1:
            raise ConfigError(f"servers per machine {self.servers_per_machine} must be at least 1")
        if not self.addresses:
            raise ConfigError("hosts are empty; name at least one as 'address:port'")
        for host, port in self.addresses:
            check_address(host)
            if not 0 < port <= 65536 - self.servers_per_machine:
                raise ConfigError(f"host {host}: port {port} leaves no room for {self.servers_per_machine} servers")

    @property
    def num_machines(self) -> int:
        """M."""
        return len(self.addresses)

    @property
    def num_servers(self) -> int:
        """M * S."""
        return self.num_machines * self.servers_per_machine

    def machine_of(self, server: int) -> int:
        """The machine that runs a server."""
        return server // self.servers_per_machine

    def servers_of(self, machine: int) -> range:
        """The servers of a machine; the first one allocates the memory that all of them share."""
        return range(machine * self.servers_per_machine, (machine + 1) * self.servers_per_machine)

    def address(self, server: int) -> Address:
        """Where a server meets its trainers."""
        host, port = self.addresses[self.machine_of(server)]
        return host, port + server % self.servers_per_machine

    @contextlib.contextmanager
    def ip_config(self) -> Iterator[str]:
        """The path of a temporary file with the hosts, ``address port`` per line: DGL reads them from a file only."""
        with scratch_folder("graph-emb-hosts") as folder:
            path = folder / "ip_config.txt"
            path.write_text("".join(f"{host} {port}\n" for host, port in self.addresses), encoding="utf-8")
            yield str(path)


def read_hosts(hosts: str | Path | Sequence[str], servers_per_machine: int) -> Hosts:
    """Hosts from DGL's ip_config file (``address port`` per line) or from ``["address:port", ...]``.

    Raises:
        ConfigError: a line or entry has no port, or the file is missing.
    """
    if isinstance(hosts, (str, Path)):
        path = Path(hosts)
        if not path.is_file():
            raise ConfigError(f"hosts file {path} does not exist; write one 'address port' per line")
        entries = [":".join(line.split()) for line in path.read_text(encoding="utf-8").splitlines() if line.split()]
    else:
        entries = list(hosts)
    addresses = []
    for entry in entries:
        host, _, port = entry.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"host {entry!r} must be an IPv4 address and a port, such as 10.0.0.1:30050")
        addresses.append((host, int(port)))
    return Hosts(tuple(addresses), servers_per_machine)


def server_book(book: PartitionBook, hosts: Hosts, table: str) -> RangeBook:
    """The table's ranges per server: parts follow machines, a machine's rows are split evenly among its servers.

    A book of one part is split evenly among the machines; one of k * M parts gives k neighbours to each machine.

    Raises:
        PartitionError: parts are not ranges, or do not divide among the machines.
    """
    from graph_emb.graph.partition_book import RangeBook  # here: a launcher, which looks for ports, needs no numba

    if not isinstance(book, RangeBook):
        raise PartitionError(f"table {table!r}: kvstore mode needs parts that are ranges, not {type(book).__name__}")
    machines = hosts.num_machines
    if book.num_parts == 1:
        bounds = RangeBook.even(book.num_rows, machines).bounds.tolist()
    elif book.num_parts % machines == 0:
        bounds = book.bounds[:: book.num_parts // machines].tolist()
    else:
        raise PartitionError(
            f"table {table!r}: {book.num_parts} parts cannot be divided among {machines} machines; "
            "partition into as many parts as there are hosts"
        )
    sizes: list[int] = []
    for low, high in itertools.pairwise(bounds):
        within = RangeBook.even(high - low, hosts.servers_per_machine)
        sizes += [within.part_size(part) for part in range(within.num_parts)]  # type: ignore[arg-type]
    return RangeBook.of_sizes(sizes)


def free_ports(num: int, host: str = "127.0.0.1") -> int:
    """The first of ``num`` neighbouring ports that were free a moment ago: for the servers of one machine.

    They lie outside the range from which the kernel serves outgoing connections, so that none of those takes one of
    them before its server listens.

    Raises:
        ConfigError: the address is no address of this host, or nothing was found.
    """
    outgoing = outgoing_ports()
    usable = [*range(PORTS.start, outgoing.start - num + 1), *range(outgoing.stop, PORTS.stop - num + 1)]
    chance = random.SystemRandom()  # two launchers at one time should not try the same
    for _ in range(100):
        port = chance.choice(usable or [0])  # 0: the kernel picks one
        with contextlib.ExitStack() as stack:
            try:
                for offset in range(num):
                    sock = stack.enter_context(socket.socket())
                    sock.bind((host, port + offset))
                    port = port or sock.getsockname()[1]
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise ConfigError(f"host {host!r} is no address of this machine: {error.strerror}") from None
            except OverflowError:
                continue
            return port
    raise ConfigError(f"no {num} neighbouring free ports on {host}; name a port in the hosts file")


def outgoing_ports() -> range:
    """The ports that the kernel gives to outgoing connections, at any moment."""
    try:
        low, high = map(int, PORT_RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999  # Linux's own choice
    return range(low, high + 1)
