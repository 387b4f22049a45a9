"""Counts of a process: what it asked of tables and sent for them, and what its link to the others carried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LinkCounts:
    """Bytes between a process and the others, and its waits for them, since the start.

    Attributes:
        bytes_in, bytes_out: Walkers, ids, rows, gradients and sampled edges from and to others; not the few numbers
            with which calls begin.
        waited: Seconds until the others came to the calls that all make together.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    waited: float = 0.0


@dataclass
class Traffic:
    """Counts of ids and bytes that a process asked for and sent, since the start: of one table or of all.

    Attributes:
        asked: Ids asked for, repeats counted.
        distinct: Ids asked for, each once a pull.
        local: Distinct ids whose rows it reads without asking another process.
        bytes_sent: Ids, rows and gradients sent to other ranks or machines.
        steps: Pushes: of a table those that touched it, of all tables those of whole steps.
    """

    asked: int = 0
    distinct: int = 0
    local: int = 0
    bytes_sent: int = 0
    steps: int = 0

    def add(self, other: Traffic) -> None:
        """Add another table's ids and bytes; its steps are not further steps."""
        self.asked += other.asked
        self.distinct += other.distinct
        self.local += other.local
        self.bytes_sent += other.bytes_sent

    @property
    def local_share(self) -> float:
        """The share of distinct ids that did not travel."""
        return self.local / self.distinct if self.distinct else 1.0
