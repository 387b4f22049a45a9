"""The part of every node: what a method makes, what writers and reports take.

Legend: N nodes of one type, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from graph_emb.core.errors import PartitionError
from graph_emb.graph.typed import HeteroGraph

Halo = Literal["dgl", "inbound"]
EdgeOwner = Literal["destination", "source", "balanced"]
"""Rule that gives an edge to a part: that of its destination (DGL's), of its source, or of the end with fewer edges."""


@dataclass
class Assignment:
    """The part that owns each node.

    Attributes:
        parts: The part of each node by node type, (N,), int32, in the order of the graph.
        num_parts: P.
        method: The registered method that made it.
        seed: What its random choices came from.
        why: Why this method was chosen, for the report.
        seconds: Wall time of the assignment, from the graph in memory.
        peak_bytes: How far the process's peak memory rose above what it held before; 0 where the system does not tell.
        balance: The fullest part's share over the mean, by constraint name: 1.0 is even.
        extended: Of a graph that has grown since, see ``partition.extending``; empty elsewhere.
        level_sizes: Of the levels that a partition had before its graph grew, coarsest first; none elsewhere.
        levels: Their parts by node type, (N, L), int32, in the order of the graph.
    """

    parts: dict[str, np.ndarray]
    num_parts: int
    method: str = "file"
    seed: int = 0
    why: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    balance: dict[str, float] = field(default_factory=dict)
    extended: dict[str, Any] = field(default_factory=dict)
    level_sizes: tuple[int, ...] = ()
    levels: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of_homogeneous(cls, graph: HeteroGraph, parts: np.ndarray, num_parts: int, **facts: object) -> Assignment:
        """Split (total nodes,) parts, types one after the other, by node type."""
        if parts.shape != (graph.total_nodes,):
            raise PartitionError(f"the assignment has shape {parts.shape}; expected ({graph.total_nodes},)")
        split = {
            ntype: parts[start : start + graph.num_nodes[ntype]].astype(np.int32, copy=False)
            for ntype, start in graph.node_offsets.items()
        }
        return cls(split, num_parts, **facts)  # type: ignore[arg-type]

    def homogeneous(self) -> np.ndarray:
        """(total nodes,), int32: types one after the other."""
        return np.concatenate([np.empty(0, np.int32), *self.parts.values()]).astype(np.int32, copy=False)

    def check(self, graph: HeteroGraph) -> None:
        """Check that every node has a part and every part a node.

        Raises:
            PartitionError: a node type is missing or unknown, has another length or dtype, a part is out of range, or
                a part is empty.
        """
        if self.num_parts < 1:
            raise PartitionError(f"{self.num_parts} parts; at least 1 is needed")
        if set(self.parts) != set(graph.num_nodes):
            names = ", ".join(self.parts) or "none"
            raise PartitionError(f"the assignment has node types {names}; the graph has {', '.join(graph.num_nodes)}")
        used = np.zeros(self.num_parts, bool)
        for ntype, num in graph.num_nodes.items():
            values = self.parts[ntype]
            if values.shape != (num,) or values.dtype.kind not in "iu":
                raise PartitionError(
                    f"node type {ntype!r}: the assignment has shape {values.shape} of {values.dtype}; "
                    f"expected ({num},) of integers"
                )
            bad = np.flatnonzero((values < 0) | (values >= self.num_parts))
            if len(bad):
                raise PartitionError(
                    f"node type {ntype!r}, node {bad[0]}: part {values[bad[0]]} is outside [0, {self.num_parts})"
                )
            used[values] = True
        if not used.all():
            empty = int(np.flatnonzero(~used)[0])
            raise PartitionError(f"part {empty} of {self.num_parts} has no node; use fewer parts or another method")
