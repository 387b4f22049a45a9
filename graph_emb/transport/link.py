"""The link between the machines of a job: its rate and the time of a message, as given or as its ranks measure them.

Legend: W ranks.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch

from graph_emb.core.errors import ConfigError
from graph_emb.transport.process_group import ProcessGroup

PINGS = 8
"""Small messages of a measurement, of which the fastest counts."""
FIRST_BYTES, MOST_BYTES = 1 << 16, 1 << 24
"""Bytes from each machine in the first and the longest transfer of a measurement; each is twice the one before it."""
LONG_ENOUGH = 0.05
"""Seconds of a transfer that tells the rate: what a switch or a shaper lets pass at once hardly counts then."""
AGAIN = 2
"""How often the longest transfer is sent again; the fastest counts."""
LEAST_WAIT = 0.05
"""The share of a transfer that counts as waiting, at least: a wire that a processor never waits for has some rate."""
_GBIT = {"mbit": 1e-3, "gbit": 1.0}


@dataclass(frozen=True)
class Link:
    """What joins a machine to the others, each way.

    Attributes:
        gbit: 10^9 bits a second.
        latency_us: Microseconds of a message.
    """

    gbit: float
    latency_us: float = 50.0

    @classmethod
    def parse(cls, words: str) -> Link:
        """Read ``10gbit``, ``250mbit`` or ``10gbit,80us``.

        Raises:
            ConfigError: other words, or numbers that are not above 0.
        """
        found = re.fullmatch(r"(\d+\.?\d*)(mbit|gbit)(?:,(\d+\.?\d*)us)?", words.strip().lower())
        rate = latency = 0.0
        if found is not None:
            rate = float(found[1]) * _GBIT[found[2]]
            latency = cls.latency_us if found[3] is None else float(found[3])
        if not 0 < rate < math.inf or not 0 < latency < math.inf:
            raise ConfigError(f"link = {words!r}: give a rate, as 10gbit or 250mbit, and if need be 10gbit,80us")
        return cls(rate, latency)

    @classmethod
    def measure(cls, group: ProcessGroup, machine: int) -> Link | None:
        """Send small messages and longer ones between all ranks; every rank calls it.

        All send at once and receive meanwhile, each as much to every other rank, and the slowest counts. Transfers grow
        until one takes ``LONG_ENOUGH``, which is sent ``AGAIN``: at 1 Gb/s all of them are 32 MB from each machine, .3
        s. What the processes work meanwhile, copying to and from sockets, is no time of the wire (``Costs.byte_ns`` has
        it).

        Args:
            group: Of W ranks.
            machine: On which this rank is.
        Returns:
            The same on every rank, to three digits; None where nothing leaves a machine: there is one, or all ranks
            share its memory.
        Raises:
            PeerError: a process is gone or did not answer in time.
        """
        what = "measurement of the link"
        of_machine = Counter(group.gather_objects(machine, what))
        if group.same_memory or len(of_machine) == 1:
            return None

        def slowest(num: int) -> tuple[float, float]:
            """Seconds until every rank has as many numbers of each other one, and how many of them it waited."""
            numbers = torch.zeros(group.world_size, num, dtype=torch.int64)
            begun, busy = time.perf_counter(), time.process_time()
            group.exchange_numbers(numbers, what, large=num > 1)
            took = time.perf_counter() - begun
            busy = (time.process_time() - busy) / 2  # a thread sends while another one receives
            waited = max(took - busy, LEAST_WAIT * took)
            told = group.gather_objects((took, waited), what)
            return max(one for one, _ in told), max(one for _, one in told)

        slowest(1)  # connections are made
        message = min(slowest(1)[0] for _ in range(PINGS)) / (group.world_size - 1)
        pairs = max(here * (group.world_size - here) for here in of_machine.values())  # whose bytes leave one machine
        size, took = FIRST_BYTES // 2, 0.0
        while took < LONG_ENOUGH and size < MOST_BYTES:
            size *= 2
            num = max(1, size // (8 * pairs))
            took, waited = slowest(num)
        waited = min(waited, *(slowest(num)[1] for _ in range(AGAIN)))  # whatever else the machines did meanwhile
        return cls(_digits(8e-9 * 8 * num * pairs / waited), _digits(1e6 * message))

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
