"""The external shuffle: edges go to the bucket of their destination, then each bucket is put in order.

The same brings the neighbours of each node together, both directions of the edges, for methods that stream over them.
A bucket is a range of new node ids inside one part, so the ordered buckets, one after the other, hold the edges in the
order of ``partition.relabel``: by part, then by destination, ties as in the input.

Legend: E edges, N nodes, P parts, B buckets, S slices of the input, L links (an edge is two, a self loop none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import Advance
from partition.kernels import sorting as kernels
from partition.relabel import Ranges
from partition.streaming.shared_stages import FileArray, Runs, Workplace, append_groups, write
from partition.streaming.source import Budget, EdgeSource

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

    @classmethod
    def of(cls, placed: Mapping[str, Any], slice_rows: list[int], weight: np.dtype | None) -> ShuffleLayout:
        """The layout that the stage ``place`` described, for slices of so many edges."""
        found = {name: np.array(numbers, np.int64) for name, numbers in placed.items() if isinstance(numbers, list)}
        nodes, edges = (Ranges.of_sizes(found.pop(name)[:, None]) for name in ("nodes", "edges"))
        first_rows = np.append(0, np.cumsum(slice_rows)).astype(np.int64)
        return cls(nodes, edges, **found, first_rows=first_rows, position_rows=placed["position_rows"], weight=weight)

    @property
    def record(self) -> np.dtype:
        """An edge on its way: new ids of both ends, position in the input, weight."""
        node, edge = number_type(self.nodes.total), number_type(self.edges.total)
        fields: list[Any] = [("src", node), ("dst", node), ("position", edge)]
        return np.dtype(fields + ([] if self.weight is None else [("weight", self.weight)]))


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
    """Raise a ConfigError for a node with more edges (``what``) than the memory orders at a time."""
    if len(degrees) and degrees.max() > most:
        raise ConfigError(
            f"a node has {int(degrees.max()):,} {what}; the memory orders {most:,} at a time, so give more of it"
        )


class Shuffle:
    """Moves edges from the input to ordered buckets.

    Args:
        layout: Where they go.
        both_ends: Hand cut edges to the source's part as well.
    Attributes:
        loose: The unordered edges by bucket, which may go when it is ordered.
    """

    def __init__(self, workplace: Workplace, layout: ShuffleLayout, budget: Budget, *, both_ends: bool) -> None:
        self.layout, self.budget, self.both_ends = layout, budget, both_ends
        self._work = budget.work_bytes(layout.nodes.total)
        self.step = budget.block_rows(self._work)  # edges handled at a time
        self.num_position_ranges = -(-layout.edges.total // layout.position_rows)
        self._ordered = workplace.folder("ordered")
        self._bucket_of = bucket_of(layout.first_nodes, layout.nodes.total)
        node, edge = layout.record["src"], layout.record["position"]
        # an edge on its way to the part that stores it without owning it; a position in the input and the new id there
        outer = np.dtype([("id", np.int64), ("src", node), ("dst", node)])
        pair = np.dtype([("position", edge), ("id", edge)])
        buckets, num_parts = len(layout.parts), len(layout.nodes.starts)
        self.loose = Runs(workplace.folder("loose"), buckets, len(layout.first_rows) - 1, layout.record, self.step)
        self._outer = Runs(workplace.folder("outer"), num_parts, buckets, outer, self.step)
        self._inverse = Runs(workplace.folder("inverse"), self.num_position_ranges, buckets, pair, self.step)

    def slice(self, index: int, source: EdgeSource, node_ids: np.ndarray, tick: Advance) -> dict[str, Any]:
        """Relabel the edges of one slice of the input and append each to its bucket."""
        layout, runs = self.layout, self.loose.begin(index)
        position = int(layout.first_rows[index])
        for block in source.blocks(index, self.step, self.budget.block_text(self._work)):
            rows = np.empty(len(block.src), layout.record)
            rows["src"], rows["dst"] = node_ids[block.src], node_ids[block.dst]
            rows["position"] = np.arange(position, position + len(rows))
            if layout.weight is not None:
                rows["weight"] = block.weights
            append_groups(rows, self._bucket_of[rows["dst"]], runs)
            position += len(rows)
            tick(len(rows))
        return {"rows": position - int(layout.first_rows[index])}

    def bucket(self, bucket: int, tick: Advance) -> dict[str, Any]:
        """Order one bucket; its cut edges go to the other part, its positions to their range."""
        layout = self.layout
        first_node, end = np.append(layout.first_nodes, layout.nodes.total)[bucket : bucket + 2].tolist()
        rows = self.loose.of(bucket)[:]
        order, _ = kernels.group(rows["dst"] - first_node, end - first_node)
        rows = rows.take(order)  # of records ten times as fast as rows[order]
        del order
        for name in layout.record.names or ():
            write(self._ordered / f"{bucket}.{name}", rows[name])
        outer, inverse = self._outer.begin(bucket), self._inverse.begin(bucket)
        for start in range(0, len(rows), self.step):
            block = rows[start : start + self.step]
            first = int(layout.first_edges[bucket]) + start
            ids = np.arange(first, first + len(block))
            pairs = np.empty(len(block), self._inverse.dtype)
            pairs["position"], pairs["id"] = block["position"], ids
            append_groups(pairs, block["position"] // layout.position_rows, inverse)
            if self.both_ends:
                owners = layout.parts[self._bucket_of[block["src"]]]
                cut = owners != layout.parts[bucket]
                found = np.empty(int(cut.sum()), self._outer.dtype)
                found["id"], found["src"], found["dst"] = ids[cut], block["src"][cut], block["dst"][cut]
                append_groups(found, owners[cut], outer)
        tick(len(rows))
        return {"rows": len(rows)}

    def outer(self, part: int) -> FileArray:
        """Edges that a part stores without owning them, by ascending id."""
        return self._outer.of(part)

    def column(self, name: str, part: int | None = None) -> FileArray:
        """A column of the ordered edges that a part owns; of all edges by default."""
        layout = self.layout
        buckets = [b for b, owner in enumerate(layout.parts) if part in (None, owner)]
        return FileArray(tuple(self._ordered / f"{b}.{name}" for b in buckets), layout.record[name], self.step)

    def new_ids(self, index: int) -> np.ndarray:
        """New id of each position of one range."""
        start = index * self.layout.position_rows
        out = np.empty(min(self.layout.position_rows, self.layout.edges.total - start), self._inverse.dtype["id"])
        for pairs in self._inverse.of(index).chunks():
            out[pairs["position"] - start] = pairs["id"]
        return out


class Links:
    """Groups the neighbours of each node on the disk.

    Args:
        num_nodes: N.
        workplace: Receives the links.
    """

    def __init__(self, workplace: Workplace, source: EdgeSource, budget: Budget, num_nodes: int, tick: Advance) -> None:
        self.source, self.budget, self.num_nodes, self.tick = source, budget, num_nodes, tick
        self.workplace, self._grouped = workplace, workplace.folder("neighbours")
        self._work = budget.work_bytes(num_nodes)
        self._step = budget.block_rows(self._work)
        self._first_nodes = np.zeros(0, np.int64)

    def run(self, degrees: Callable[[str], np.ndarray]) -> None:
        """All steps before the nodes can stream; ``degrees`` gives the in- or out-degrees."""

        def cut(_: int) -> dict[str, Any]:
            both = degrees("in") + degrees("out")
            most = self.budget.bucket_rows(self._work)
            check_largest(both, most, "neighbours")
            return {"first_nodes": cut_buckets(both, np.array([0, self.num_nodes]), most)[0].tolist()}

        self._first_nodes = np.array(self.workplace.run("cut", 1, cut)[0]["first_nodes"], np.int64)
        node, num_slices = number_type(self.num_nodes), len(self.source.slices)
        pair = np.dtype([("node", node), ("other", node)])
        self._loose = Runs(self.workplace.folder("links"), len(self._first_nodes), num_slices, pair, self._step)
        self.workplace.run("links", num_slices, self._slice)
        self.workplace.run("neighbours", len(self._first_nodes), self._bucket, self._loose.remove)

    def _slice(self, index: int) -> dict[str, Any]:
        rows, buckets, runs = 0, bucket_of(self._first_nodes, self.num_nodes), self._loose.begin(index)
        for block in self.source.blocks(index, self._step // 2, self.budget.block_text(self._work)):
            kept = block.src != block.dst
            src, dst = block.src[kept], block.dst[kept]
            pairs = np.empty(2 * len(src), self._loose.dtype)
            pairs["node"][: len(src)], pairs["other"][: len(src)] = src, dst
            pairs["node"][len(src) :], pairs["other"][len(src) :] = dst, src
            append_groups(pairs, buckets[pairs["node"]], runs)
            rows += len(block.src)
            self.tick(len(block.src))
        return {"rows": rows}

    def _bucket(self, bucket: int) -> dict[str, Any]:
        start, stop = np.append(self._first_nodes, self.num_nodes)[bucket : bucket + 2].tolist()
        pairs = self._loose.of(bucket)[:]
        order, starts = kernels.group(pairs["node"] - start, stop - start)
        write(self._grouped / f"{bucket}.counts", np.diff(starts))
        write(self._grouped / f"{bucket}.others", pairs["other"][order])
        return {"rows": len(pairs)}

    def _of_all(self, name: str, dtype: np.dtype) -> FileArray:
        paths = (self._grouped / f"{bucket}.{name}" for bucket in range(len(self._first_nodes)))
        return FileArray(tuple(paths), dtype, self._step)

    @property
    def counts(self) -> FileArray:
        """(N,), int64: the neighbours of each node."""
        return self._of_all("counts", np.dtype(np.int64))

    @property
    def others(self) -> FileArray:
        """(L,): the neighbours of one node after the other; parallel edges repeat them."""
        return self._of_all("others", number_type(self.num_nodes))
