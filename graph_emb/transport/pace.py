"""Pace of a job: what all trainers get done in a second, which of them the others wait for, and what travels."""

# W trainers.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_emb.transport.traffic import LinkCounts

NANO = 1_000_000_000


@dataclass(frozen=True)
class JobPace:
    """The pace of several trainers since the line of the history before; every trainer finds the same numbers.

    A trainer works while it does not wait for others: the one that works longest is the one that they wait for.

    Attributes:
        per_second: Items that all trainers together trained in a second: tokens, triples, nodes or edges.
        slowest: The rank of the trainer that worked longest; the first one of several.
        slowest_share: Its pace as a share of the usual one: the mean time of work over its own, at most 1.
        bytes_in, bytes_out: That all trainers received and sent since they began, as ``LinkCounts`` has them.
    """

    per_second: float
    slowest: int
    slowest_share: float
    bytes_in: int
    bytes_out: int

    @classmethod
    def of(cls, told: Sequence[Sequence[float]]) -> JobPace:
        """The pace of what ``PaceMeter.take`` gave on each trainer, (W, 5) in the order of ranks."""
        items, seconds, worked, bytes_in, bytes_out = zip(*told, strict=True)
        longest = max(worked)
        return cls(
            per_second=float(sum(items) / max(seconds) * NANO) if max(seconds) else 0.0,
            slowest=worked.index(longest),
            slowest_share=float(sum(worked) / len(worked) / longest) if longest else 1.0,
            bytes_in=int(sum(bytes_in)),
            bytes_out=int(sum(bytes_out)),
        )

    def said(self, unit: str = "") -> str:
        """For a bar, after a comma; the rate where ``unit``, a plural, is given: other bars show it themselves."""
        rate = f", {self.per_second:,.0f} {unit}/s" if unit else ""
        share = f"{self.slowest_share:.2f}".removeprefix("0")
        mib = [f"{size / 2**20:,.0f} MiB" for size in (self.bytes_in, self.bytes_out)]
        travel = f", {mib[0]} in, {mib[1]} out" if self.bytes_in or self.bytes_out else ""
        return f"{rate}, slowest {self.slowest} ({share}x){travel}"


def without_job(line: dict[str, Any]) -> dict[str, Any]:
    """A line of a history as JSON has it: without ``job`` where one trainer has none."""
    return line if line["job"] is not None else {name: value for name, value in line.items() if name != "job"}


def with_job(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line that was written ``without_job``, or before there was one."""
    job = line.get("job")
    return {**line, "job": None if job is None else JobPace(**job)}


class PaceMeter:
    """One trainer's share of the pace: what it trained, how long it worked, what it received and sent.

    Training is between ``begin`` and ``end``, which take turns; evaluations and callbacks are outside.

    Args:
        links: To the other trainers and to servers.
        clock: Seconds.
    Attributes:
        items: Trained since the last ``take``; the caller counts.
    """

    def __init__(self, *links: LinkCounts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._links = list({id(link): link for link in links}.values())
        self._clock, self.items = clock, 0
        self._before = self._carried()
        self._seconds = self._worked = 0.0
        self._begun: tuple[float, float] | None = None

    def begin(self) -> None:
        """Training goes on from here."""
        self._begun = self._clock(), self._waited()

    def end(self) -> None:
        """Training rests from here; nothing where it rests already."""
        if self._begun is None:
            return
        seconds, waited = self._clock() - self._begun[0], self._waited() - self._begun[1]
        self._begun = None
        self._seconds += seconds
        self._worked += max(0.0, seconds - waited)

    def take(self) -> list[int]:
        """This trainer's numbers for ``JobPace.of``, (5,); counts of items and time begin again at 0."""
        resumes = self._begun is not None
        self.end()
        carried = [now - before for now, before in zip(self._carried(), self._before, strict=True)]
        told = [self.items, int(self._seconds * NANO), int(self._worked * NANO), *carried]
        self.items, self._seconds, self._worked = 0, 0.0, 0.0
        if resumes:
            self.begin()
        return told

    def table(self, rank: int, num_ranks: int) -> np.ndarray:
        """``take`` at the row of this trainer, (W, 5), float64, and zeros elsewhere: summed, it is that of all."""
        own = self.take()
        found = np.zeros((num_ranks, len(own)))
        found[rank] = own
        return found

    def _waited(self) -> float:
        return sum(link.waited for link in self._links)

    def _carried(self) -> tuple[int, int]:
        return sum(link.bytes_in for link in self._links), sum(link.bytes_out for link in self._links)
