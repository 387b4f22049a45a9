"""Hosts made of network namespaces: own addresses, one switch, cables that can be cut. Needs root."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_numbers = itertools.count()
IP, TC = (shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") for name in ("ip", "tc"))
"""The tools, also where the folders of the administrator's commands are not on the path."""


class Network:
    """Hosts with the addresses 10.0.0.1, 10.0.0.2, ... on one switch."""

    def __init__(self, size: int) -> None:
        tag = f"ge{os.getpid()}n{next(_numbers)}"
        self.switch = f"{tag}s"
        self.hosts = [f"{tag}h{number}" for number in range(size)]
        self.addresses = [f"10.0.0.{number + 1}" for number in range(size)]

    def build(self) -> None:
        for name in (self.switch, *self.hosts):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for number, (host, address) in enumerate(zip(self.hosts, self.addresses, strict=True)):
            port = f"port{number}"
            _ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in (*self.hosts, self.switch):
            subprocess.run([str(IP), "netns", "del", name], check=False, capture_output=True)

    def on(self, number: int, command: list[str]) -> list[str]:
        """The command, run on a host."""
        return [str(IP), "netns", "exec", self.hosts[number], *command]

    def cut(self, number: int) -> None:
        """Pull a host's cable: nothing arrives, and nobody is told."""
        _ip("-n", self.switch, "link", "set", f"port{number}", "down")

    def slow(self, number: int, milliseconds: int) -> bool:
        """Delay what a host sends; False where this machine cannot."""
        if TC is None:
            return False
        words = [TC, "-n", self.hosts[number], "qdisc", "add", "dev", "eth0", "root", "netem", "delay"]
        done = subprocess.run([*words, f"{milliseconds}ms"], check=False, capture_output=True)
        return done.returncode == 0

    def throttle(self, number: int, megabits: int) -> None:
        """Limit the rate of what a host sends; skips the test where there is no tc."""
        if TC is None:
            pytest.skip("a slow link needs the tc command")
        words = ["qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{megabits}mbit", "latency", "400ms", "burst"]
        burst = max(16_384, 1_000 * megabits)  # of eight milliseconds: less than the kernel's tick halves fast links
        subprocess.run([TC, "-n", self.hosts[number], *words, str(burst)], check=True, capture_output=True)


@contextmanager
def network(size: int) -> Iterator[Network]:
    """A network for one test; skips the test where namespaces cannot be made."""
    if os.geteuid() != 0 or IP is None:
        pytest.skip("network namespaces need root and the ip command")
    made = Network(size)
    try:
        made.build()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


def _ip(*words: str) -> None:
    subprocess.run([str(IP), *words], check=True, capture_output=True)
