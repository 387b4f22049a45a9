"""One part's files from its ordered edges; neither its edges nor those of other parts are ever all in memory.

The same arrays as ``partition.halo`` makes, a block at a time. Legend: n inner nodes and h halo nodes of a part, e
inner and o outer edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from graph_emb.core.progress import Advance
from graph_emb.graph.dgl_format import BlockColumn, Column, StoredGraph, write_graph, write_tensors
from graph_emb.graph.readers.source import WEIGHT
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from partition.kernels.relabel import UNSEEN
from partition.relabel import inverse
from partition.streaming.edges import Shuffle, number_type
from partition.streaming.shared_stages import Workplace
from partition.writer import (
    id_map_paths,
    npy_writer,
    part_columns,
    type_name,
    write_id_parquet,
)

Facts = dict[str, dict[str, Any]]


class PartFiles:
    """Writes parts and id maps from a finished shuffle.

    Args:
        workplace: Receives the files.
        shuffle: Holds the ordered edges.
        tick: Called with the edges or ids of what was written.
    """

    def __init__(self, workplace: Workplace, shuffle: Shuffle, tick: Advance) -> None:
        self.workplace, self.shuffle, self.tick = workplace, shuffle, tick
        self.layout = shuffle.layout

    def part(self, part: int) -> Facts:
        """``part<i>/`` of one part; facts of its files by name."""
        start, stop = self.layout.nodes.of_part(part)
        first, end = self.layout.edges.of_part(part)
        outer = self.shuffle.outer(part)
        local, halo = self._numbered(part, start, stop)
        num_edges = end - first + len(outer)

        def edge_ids() -> Iterator[np.ndarray]:
            for begin in range(first, end, self.shuffle.step):
                yield np.arange(begin, min(begin + self.shuffle.step, end))
            for block in outer.chunks():
                yield block["id"]

        nodes = np.concatenate([np.arange(start, stop), halo])
        owners = np.concatenate([np.full(stop - start, part), self.layout.nodes.owners(halo)])
        del halo
        node_data, edge_data = part_columns(
            nodes, owners, stop - start, BlockColumn((num_edges,), np.dtype(np.int64), edge_ids), end - first
        )
        ends = [self._local_ends(name, part, start, stop, local, num_edges) for name in ("src", "dst")]
        graph = StoredGraph(len(nodes), ends[0], ends[1], node_data, edge_data)
        path = f"part{part}/graph.dgl"
        files = {path: self.workplace.write(path, lambda stream: write_graph(stream, graph))}
        weights: dict[str, Column] = {}
        if self.layout.weight is not None:
            weights[f"{type_name(EDGE_TYPE)}/{WEIGHT}"] = self.shuffle.column(WEIGHT, part)
        columns: dict[str, dict[str, Column]] = {"node_feat": {}, "edge_feat": weights}
        for name in columns:
            path = f"part{part}/{name}.dgl"
            files[path] = self.workplace.write(path, partial(write_tensors, tensors=columns[name]))
        self.tick(end - first)
        return files

    def _numbered(self, part: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(local id by new id, new ids of halo nodes, ascending)."""
        from partition.kernels import relabel as kernels

        local = np.full(self.layout.nodes.total, UNSEEN, np.int64)
        found, num_found = np.empty(len(local), np.int64), 0
        for name in ("src", "dst"):
            for ids in self._ends(name, part):
                num_found = kernels.mark_outside(ids, start, stop, local, found, num_found)
        halo = np.sort(found[:num_found])
        local[halo] = np.arange(stop - start, stop - start + num_found)
        return local, halo

    def _ends(self, name: str, part: int) -> Iterator[np.ndarray]:
        """One end of every edge that a part stores, new ids, int64."""
        for block in self.shuffle.column(name, part).chunks():
            yield block.astype(np.int64)
        for block in self.shuffle.outer(part).chunks():
            yield block[name].astype(np.int64)

    def _local_ends(
        self, name: str, part: int, start: int, stop: int, local: np.ndarray, num_edges: int
    ) -> BlockColumn:
        from partition.kernels import relabel as kernels

        def chunks() -> Iterator[np.ndarray]:
            for ids in self._ends(name, part):
                kernels.to_local(ids, start, stop, local)
                yield ids

        return BlockColumn((num_edges,), np.dtype(np.int64), chunks)

    def node_maps(self, order: np.ndarray) -> Facts:
        """The nodes' id maps; ``order`` is the original position of each new id."""
        paths = id_map_paths("node", NODE_TYPE)
        sizes = self.layout.nodes.sizes[:, 0]
        writers: dict[str, Callable[[Any], object]] = {
            paths["to_original"]: npy_writer(order),
            paths["to_partition"]: npy_writer(inverse(order)),
            paths["parquet"]: lambda stream: write_id_parquet(stream, order, sizes, None),
        }
        found = {path: self.workplace.write(path, write) for path, write in writers.items()}
        self.tick(len(order))
        return found

    def edge_map(self, form: str) -> Facts:
        """One file of the edges' id map; facts by name."""
        positions = self.shuffle.column("position")
        path = id_map_paths("edge", type_name(EDGE_TYPE))[form]
        write = {
            "to_original": npy_writer(positions),
            "to_partition": npy_writer(self._new_ids()),
            "parquet": lambda stream: write_id_parquet(stream, positions, self.layout.edges.sizes[:, 0], None),
        }[form]
        found = {path: self.workplace.write(path, write)}
        self.tick(len(positions))
        return found

    def _new_ids(self) -> BlockColumn:
        shuffle, total = self.shuffle, self.layout.edges.total

        def chunks() -> Iterator[np.ndarray]:
            for index in range(shuffle.num_position_ranges):
                yield shuffle.new_ids(index)

        return BlockColumn((total,), number_type(total), chunks)
