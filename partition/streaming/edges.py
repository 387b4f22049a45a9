"""The external shuffle: edges go to the bucket of their destination, then each bucket is put in order.

A bucket is a range of new node ids inside one part, so the ordered buckets, one after the other, hold the edges in the
order of ``partition.relabel``: by part, then by destination, ties as in the input.

Legend: E edges, N nodes, P parts, B buckets, S slices of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import Advance
from partition.relabel import Ranges
from partition.streaming.files import FileArray, append_groups, write
from partition.streaming.plan import Budget
from partition.streaming.shared_stages import Workplace
from partition.streaming.source import EdgeSource

INT32_MAX = np.iinfo(np.int32).max


def number_type(count: int) -> np.dtype:
    """The smaller of int32 and int64 that holds ``count``; id maps are stored by the same rule."""
    return np.dtype(np.int32 if count <= INT32_MAX else np.int64)


@dataclass(frozen=True)
class ShuffleLayout:
    """Where every edge and node goes.

    Attributes:
        nodes, edges: Ranges of homogeneous ids.
        first_nodes: New id of each bucket's first node, (B,), ascending.
        parts: Part of each bucket, (B,).
        first_edges: New id of each bucket's first edge, (B + 1,).
        first_rows: Position of each slice's first edge in the input, (S + 1,).
        position_rows: Positions of a range, for the map from positions to new ids.
        weight: dtype of the weights; None where there are none to keep.
    """

    nodes: Ranges
    edges: Ranges
    first_nodes: np.ndarray
    parts: np.ndarray
    first_edges: np.ndarray
    first_rows: np.ndarray
    position_rows: int
    weight: np.dtype | None

    @property
    def num_buckets(self) -> int:
        """B."""
        return len(self.parts)

    @property
    def record(self) -> np.dtype:
        """An edge on its way: new ids of both ends, position in the input, weight."""
        node, edge = number_type(self.nodes.total), number_type(self.edges.total)
        fields: list[Any] = [("src", node), ("dst", node), ("position", edge)]
        return np.dtype(fields + ([] if self.weight is None else [("weight", self.weight)]))

    def column_type(self, name: str) -> np.dtype:
        """dtype of a column of ordered edges."""
        return self.record[name]

    def last_node(self, bucket: int) -> int:
        """The end of a bucket's nodes."""
        return int(self.first_nodes[bucket + 1]) if bucket + 1 < self.num_buckets else self.nodes.total


def cut_buckets(degrees: np.ndarray, starts: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first node, part, first edge) of buckets of whole nodes with at most ``most`` edges, where a node allows it.

    Args:
        degrees: In-degree by new node id, (N,).
        starts: First node of each part and the end of the last, (P + 1,).
    """
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees)])
    first, parts = [], []
    for part, (start, stop) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        while start < stop:
            first.append(start)
            parts.append(part)
            start = min(stop, max(start + 1, int(np.searchsorted(ends, ends[start] + most, side="right")) - 1))
    return np.array(first, np.int64), np.array(parts, np.int64), np.append(ends[first], ends[-1])


def bucket_of(first_nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """The bucket of each node, (N,), in the smallest type: one look at it beats a search among the first nodes."""
    kind = np.min_scalar_type(len(first_nodes))
    return np.repeat(np.arange(len(first_nodes), dtype=kind), np.diff(first_nodes, append=num_nodes))


def check_largest(degrees: np.ndarray, most: int, what: str) -> None:
    """Refuse a node whose edges alone are more than the memory orders at a time.

    Raises:
        ConfigError: what of which there are too many.
    """
    if len(degrees) and degrees.max() > most:
        raise ConfigError(
            f"a node has {int(degrees.max()):,} {what}; the memory orders {most:,} at a time, so give more of it"
        )


class Shuffle:
    """Moves edges from the input to ordered buckets.

    Args:
        layout: Where they go.
        both_ends: Hand cut edges to the source's part as well.
    """

    def __init__(self, workplace: Workplace, layout: ShuffleLayout, budget: Budget, *, both_ends: bool) -> None:
        self.layout, self.budget, self.both_ends = layout, budget, both_ends
        self._loose, self._ordered = workplace.folder("loose"), workplace.folder("ordered")
        self._outer, self._inverse = workplace.folder("outer"), workplace.folder("inverse")
        self._work = budget.work_bytes(layout.nodes.total)

    @cached_property
    def _bucket_of(self) -> np.ndarray:
        return bucket_of(self.layout.first_nodes, self.layout.nodes.total)

    @property
    def step(self) -> int:
        """Edges handled at a time."""
        return self.budget.block_rows(self._work)

    def slice(self, index: int, source: EdgeSource, node_ids: np.ndarray, tick: Advance) -> dict[str, Any]:
        """Relabel the edges of one slice of the input and append each to its bucket."""
        layout = self.layout
        paths = [self._run(bucket, index) for bucket in range(layout.num_buckets)]
        for path in paths:
            path.unlink(missing_ok=True)
        position = int(layout.first_rows[index])
        for block in source.blocks(index, self.step, self.budget.block_text(self._work)):
            rows = np.empty(len(block.src), layout.record)
            rows["src"], rows["dst"] = node_ids[block.src], node_ids[block.dst]
            rows["position"] = np.arange(position, position + len(rows))
            if layout.weight is not None:
                rows["weight"] = block.weights
            append_groups(rows, self._bucket_of[rows["dst"]], paths)
            position += len(rows)
            tick(len(rows))
        return {"rows": position - int(layout.first_rows[index])}

    def _run(self, bucket: int, index: int) -> Path:
        return self._loose / f"{bucket}-{index}"

    def bucket(self, bucket: int, tick: Advance) -> dict[str, Any]:
        """Order one bucket; its cut edges go to the other part, its positions to their range."""
        from partition.kernels import relabel as kernels

        layout = self.layout
        first_node, part = int(layout.first_nodes[bucket]), int(layout.parts[bucket])
        runs = [self._run(bucket, index) for index in range(len(layout.first_rows) - 1)]
        rows = FileArray(tuple(runs), layout.record, self.step)[:]
        order, _ = kernels.group(rows["dst"] - first_node, layout.last_node(bucket) - first_node)
        rows = rows.take(order)  # of records ten times as fast as rows[order]
        del order
        for name in layout.record.names or ():
            write(self._column(name, bucket), rows[name])
        self._hand_out(rows, bucket, part)
        tick(len(rows))
        return {"rows": len(rows)}

    def remove_runs(self, bucket: int) -> None:
        """Remove the unordered edges of a bucket that is ordered."""
        for index in range(len(self.layout.first_rows) - 1):
            self._run(bucket, index).unlink(missing_ok=True)

    def _hand_out(self, rows: np.ndarray, bucket: int, part: int) -> None:
        layout = self.layout
        outer = [self._outer_run(bucket, other) for other in range(len(layout.nodes.starts))]
        inverse = [self._inverse_run(bucket, index) for index in range(self.num_position_ranges)]
        for path in (*outer, *inverse):
            path.unlink(missing_ok=True)
        for start in range(0, len(rows), self.step):
            block = rows[start : start + self.step]
            first = int(layout.first_edges[bucket]) + start
            ids = np.arange(first, first + len(block))
            pairs = np.empty(len(block), self.pair)
            pairs["position"], pairs["id"] = block["position"], ids
            append_groups(pairs, block["position"] // layout.position_rows, inverse)
            if self.both_ends:
                owners = layout.parts[self._bucket_of[block["src"]]]
                cut = owners != part
                found = np.empty(int(cut.sum()), self.outer_record)
                found["id"], found["src"], found["dst"] = ids[cut], block["src"][cut], block["dst"][cut]
                append_groups(found, owners[cut], outer)

    @property
    def pair(self) -> np.dtype:
        """A position in the input and the new id there."""
        edge = number_type(self.layout.edges.total)
        return np.dtype([("position", edge), ("id", edge)])

    @property
    def outer_record(self) -> np.dtype:
        """A cut edge on its way to the part that stores it without owning it."""
        node = number_type(self.layout.nodes.total)
        return np.dtype([("id", np.int64), ("src", node), ("dst", node)])

    @property
    def num_position_ranges(self) -> int:
        """Ranges of ``position_rows`` positions."""
        return -(-self.layout.edges.total // self.layout.position_rows)

    def _column(self, name: str, bucket: int) -> Path:
        return self._ordered / f"{bucket}.{name}"

    def _outer_run(self, bucket: int, part: int) -> Path:
        return self._outer / f"{bucket}-{part}"

    def _inverse_run(self, bucket: int, index: int) -> Path:
        return self._inverse / f"{bucket}-{index}"

    def column(self, name: str, part: int | None = None) -> FileArray:
        """A column of the ordered edges that a part owns; of all edges by default."""
        layout = self.layout
        buckets = [b for b in range(layout.num_buckets) if part is None or layout.parts[b] == part]
        return FileArray(tuple(self._column(name, b) for b in buckets), layout.column_type(name), self.step)

    def outer(self, part: int) -> FileArray:
        """Edges that a part stores without owning them, by ascending id."""
        runs = tuple(self._outer_run(bucket, part) for bucket in range(self.layout.num_buckets))
        return FileArray(runs, self.outer_record, self.step)

    def new_ids(self, index: int) -> np.ndarray:
        """New id of each position of one range."""
        runs = tuple(self._inverse_run(bucket, index) for bucket in range(self.layout.num_buckets))
        start = index * self.layout.position_rows
        out = np.empty(min(self.layout.position_rows, self.layout.edges.total - start), self.pair["id"])
        for pairs in FileArray(runs, self.pair, self.step).chunks():
            out[pairs["position"] - start] = pairs["id"]
        return out
