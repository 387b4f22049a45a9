"""Memory, passes and disk of a build out of memory, printed and checked before it begins.

Legend: N nodes, E edges, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ByteSize, TypeAdapter, ValidationError

from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.core.storage import check_space

MIB = 1 << 20
RUNTIME_BYTES = 230 * MIB
"""Python with numpy, numba and pyarrow and their compiled loops; measured 200 MiB, and what allocators keep."""
NODE_BYTES = 80
"""Of all arrays with a value for each node that one step holds at the same time, at most."""
ROW_BYTES = 96
"""Of an edge of a bucket while it is ordered, copies included."""
LEAST_WORK_BYTES = 32 * MIB
MAX_BLOCK_ROWS = 1 << 20
RECORD_BYTES = 24
"""Of an edge in a temporary file, at most, without its weight."""


def memory_bytes(memory: str | int) -> int:
    """``"2GB"``, ``"800MiB"`` or a number of bytes.

    Raises:
        ConfigError: none of these.
    """
    try:
        return int(TypeAdapter(ByteSize).validate_python(memory, strict=isinstance(memory, bool)))
    except ValidationError:
        raise ConfigError(
            f"memory {memory!r}: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB"
        ) from None


@dataclass(frozen=True)
class Budget:
    """How a limit on memory is shared out.

    Attributes:
        memory: The limit, bytes.
        runtime: What the process holds without any graph.
    """

    memory: int
    runtime: int

    @classmethod
    def of(cls, memory: str | int) -> Budget:
        """Of a limit as users write it.

        Raises:
            ConfigError: unreadable, or too little for Python itself.
        """
        budget = cls(memory_bytes(memory), max(RUNTIME_BYTES, psutil.Process().memory_info().rss + 32 * MIB))
        if budget.most_nodes < 1:
            least = budget.runtime + LEAST_WORK_BYTES + NODE_BYTES
            raise ConfigError(
                f"memory {size_text(budget.memory)} is too little: Python and its libraries take "
                f"{size_text(budget.runtime)}; give at least {size_text(least)}"
            )
        return budget

    @property
    def most_nodes(self) -> int:
        """N that fits, with the least room to work in."""
        return (self.memory - self.runtime - LEAST_WORK_BYTES) // NODE_BYTES

    def work_bytes(self, num_nodes: int) -> int:
        """Bytes left after the arrays of the nodes.

        Raises:
            ConfigError: too little is left.
        """
        if num_nodes > self.most_nodes:
            least = self.runtime + LEAST_WORK_BYTES + NODE_BYTES * num_nodes
            raise ConfigError(
                f"memory {size_text(self.memory)} is too little for {num_nodes:,} nodes of {NODE_BYTES} bytes each; "
                f"give at least {size_text(least)}"
            )
        return self.memory - self.runtime - NODE_BYTES * num_nodes

    def block_rows(self, work: int) -> int:
        """Edges that are read at a time."""
        return int(min(MAX_BLOCK_ROWS, work // ROW_BYTES // 2))

    def block_text(self, work: int) -> int:
        """Bytes of text that are read at a time; Arrow holds it several times over."""
        return int(min(32 * MIB, max(MIB, work // 16)))

    def bucket_rows(self, work: int) -> int:
        """Edges that are ordered at a time."""
        return max(1, int(work // ROW_BYTES))


@dataclass(frozen=True)
class Plan:
    """The steps of one build in numbers.

    Attributes:
        input_bytes: Of the edge files.
        num_nodes, num_edges, num_parts: N, E, P.
        neighbour_passes: Times that a streaming method reads all neighbours; 0 for methods that do not look at edges.
        weight_bytes: Of an edge's weight; 0 without.
        num_slices, num_buckets: Runs that the input is cut into, and that the edges are ordered in.
        both_ends: Whether a cut edge is stored by both parts.
    """

    input_bytes: int
    num_nodes: int
    num_edges: int
    num_parts: int
    neighbour_passes: int
    weight_bytes: int
    num_slices: int
    num_buckets: int
    both_ends: bool

    @property
    def temporary_bytes(self) -> int:
        """At most, at any time: unordered and ordered edges, cut edges for the other part, counts, neighbours."""
        record = RECORD_BYTES + self.weight_bytes
        edges = self.num_edges * (2 * record + 16 + (24 if self.both_ends else 0))
        return edges + self.num_nodes * (8 * self.num_slices + 40) + self.link_bytes

    @property
    def link_bytes(self) -> int:
        """Both directions of each edge as pairs, and again as neighbours."""
        return self.num_edges * 48 if self.neighbour_passes else 0

    @property
    def output_bytes(self) -> int:
        """At most: every edge in both parts, its numbers, flags and maps."""
        stored = 2 if self.both_ends and self.num_parts > 1 else 1
        nodes = self.num_nodes * min(self.num_parts, 8) * 17 + self.num_nodes * 24
        return self.num_edges * (25 * stored + 24 + self.weight_bytes) + nodes

    def check_disk(self, folder: Path, already: int) -> None:
        """Raise an OSError when the disk lacks room for what is still to be written.

        Args:
            already: Bytes that an earlier start has left there.
        """
        check_space(folder, self.temporary_bytes + self.output_bytes - already, "the build")

    def text(self, budget: Budget) -> str:
        """The plan as text."""
        links = f", then {self.neighbour_passes} over all neighbours" if self.neighbour_passes else ""
        return (
            f"plan: {self.num_edges:,} edges between {self.num_nodes:,} nodes into {self.num_parts} parts\n"
            f"  memory {size_text(budget.memory)}: {size_text(budget.runtime)} for Python, "
            f"{size_text(NODE_BYTES * self.num_nodes)} for nodes, the rest for {self.num_buckets} buckets of edges\n"
            f"  passes: {3 if self.neighbour_passes else 2} over the input ({size_text(self.input_bytes)}), "
            f"2 over the ordered edges{links}\n"
            f"  disk: up to {size_text(self.temporary_bytes)} temporary, {size_text(self.output_bytes)} result"
        )
