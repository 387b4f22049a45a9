"""One part's files from its ordered edges; neither its edges nor those of other parts are ever all in memory.

The same arrays as ``partition.halo`` makes, a block at a time. Legend: n inner nodes and h halo nodes of a part, e
inner and o outer edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graph_emb.core.progress import Advance
from graph_emb.graph.dgl_format import BlockColumn
from graph_emb.graph.readers.source import WEIGHT
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from partition.halo import PartArrays
from partition.kernels.relabel import UNSEEN
from partition.manifest import write_listed
from partition.relabel import inverse, type_name
from partition.streaming.edges import Shuffle, number_type
from partition.streaming.shared_stages import Workplace
from partition.writer import Columns, Files, id_map_files, id_map_paths, part_files

Facts = dict[str, Any]
INT64, ONE_TYPE = np.dtype(np.int64), np.empty(0, np.int32)


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

    def _write(self, files: Files, count: int) -> Facts:
        """Make files of the partition: their facts by name."""
        found = {name: write_listed(self.workplace.out, name, write) for name, write in files.items()}
        self.tick(count)
        return found

    def part(self, part: int) -> Facts:
        """``part<i>/`` of one part; facts of its files by name."""
        start, stop = self.layout.nodes.of_part(part)
        first, end = self.layout.edges.of_part(part)
        outer = self.shuffle.outer(part)
        local, halo = self._numbered(part, start, stop)
        shape = (end - first + len(outer),)

        def edge_ids() -> Iterator[np.ndarray]:
            for begin in range(first, end, self.shuffle.step):
                yield np.arange(begin, min(begin + self.shuffle.step, end))
            for block in outer.chunks():
                yield block["id"]

        def local_ends(name: str) -> BlockColumn:
            from partition.kernels import relabel as kernels

            def chunks() -> Iterator[np.ndarray]:
                for ids in self._ends(name, part):
                    kernels.to_local(ids, start, stop, local)
                    yield ids

            return BlockColumn(shape, INT64, chunks)

        nodes = np.concatenate([np.arange(start, stop), halo])
        owners = np.concatenate([np.full(stop - start, part), self.layout.nodes.owners(halo)])
        del halo
        ids, ends = BlockColumn(shape, INT64, edge_ids), [local_ends(name) for name in ("src", "dst")]
        arrays = PartArrays(stop - start, end - first, ends[0], ends[1], nodes, owners, ids, ONE_TYPE, ONE_TYPE)
        weights: Columns = {}
        if self.layout.weight is not None:
            weights[f"{type_name(EDGE_TYPE)}/{WEIGHT}"] = self.shuffle.column(WEIGHT, part)
        return self._write(part_files(part, arrays, {}, weights), end - first)

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

    def node_maps(self, order: np.ndarray) -> Facts:
        """The nodes' id maps; ``order`` is the original position of each new id."""
        paths = id_map_paths("node", NODE_TYPE)
        contents = id_map_files(order, inverse(order), self.layout.nodes.sizes[:, 0])
        return self._write({paths[form]: content for form, content in contents.items()}, len(order))

    def edge_map(self, form: str) -> Facts:
        """One file of the edges' id map; facts by name."""
        shuffle, total = self.shuffle, self.layout.edges.total

        def new_ids() -> Iterator[np.ndarray]:
            yield from map(shuffle.new_ids, range(shuffle.num_position_ranges))

        back = BlockColumn((total,), number_type(total), new_ids)
        contents = id_map_files(shuffle.column("position"), back, self.layout.edges.sizes[:, 0])
        return self._write({id_map_paths("edge", type_name(EDGE_TYPE))[form]: contents[form]}, total)
