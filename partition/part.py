"""One part of a partition on disk: its arrays are views of the mapped files."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.graph.dgl_format import StoredGraph, read_graph, read_tensors
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType

if TYPE_CHECKING:
    from partition.partitioned import PartitionedGraph


class Part:
    """One part of a partition: its arrays are views of the mapped files.

    Args:
        whole: The partition.
        index: Which part.
    """

    def __init__(self, whole: PartitionedGraph, index: int) -> None:
        self.whole = whole
        self.index = index
        try:
            files = whole.config[f"part-{index}"]
            self.files = {kind: whole.path / files[kind] for kind in ("part_graph", "node_feats", "edge_feats")}
        except (KeyError, TypeError) as error:
            raise DataError(f"{whole.config_path}: part-{index} names no {error}; the file is damaged") from error

    @cached_property
    def graph(self) -> StoredGraph:
        """The stored graph: local ids, inner nodes and edges first."""
        return read_graph(self.files["part_graph"])

    @property
    def node_ids(self) -> np.ndarray:
        """Homogeneous partition-order id of each local node, halo included, int64."""
        return self.graph.node_data["_ID"]

    @property
    def edge_ids(self) -> np.ndarray:
        """Homogeneous partition-order id of each local edge, outer ones included, int64."""
        return self.graph.edge_data["_ID"]

    @cached_property
    def num_inner_nodes(self) -> int:
        """Nodes that the part owns; they come first."""
        return int(np.count_nonzero(self.graph.node_data["inner_node"]))

    @cached_property
    def num_inner_edges(self) -> int:
        """Edges that the part owns; they come first."""
        return int(np.count_nonzero(self.graph.edge_data["inner_edge"]))

    def node_rows(self, ntype: str | None = None) -> slice:
        """Partition-order ids, within their type, of the part's own nodes of a type."""
        t = self.whole.node_type_id(ntype)
        return slice(*self.whole.nodes.typed_starts[self.index : self.index + 2, t].tolist())

    def edge_rows(self, etype: EdgeType | str | None = None) -> slice:
        """Partition-order ids, within their type, of the part's own edges of a type."""
        r = self.whole.edge_type_id(etype)
        return slice(*self.whole.edges.typed_starts[self.index : self.index + 2, r].tolist())

    def ends(self, etype: EdgeType | str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) of the part's own edges of a type: partition-order ids within their types, int64."""
        r = self.whole.edge_type_id(etype)
        first, start, stop = self.whole.edges.starts[self.index, [0, r, r + 1]]
        inside = slice(start - first, stop - first)
        src, dst = self.node_ids[self.graph.src[inside]], self.node_ids[self.graph.dst[inside]]
        return self.whole.nodes.split(src)[2], self.whole.nodes.split(dst)[2]

    def node_data(self, ntype: str | None = None) -> dict[str, np.ndarray]:
        """Columns of the part's own nodes of a type, by name."""
        return self._columns("node_feats", self.whole.ntypes[self.whole.node_type_id(ntype)])

    def edge_data(self, etype: EdgeType | str | None = None) -> dict[str, np.ndarray]:
        """Columns of the part's own edges of a type, by name."""
        return self._columns("edge_feats", ":".join(self.whole.etypes[self.whole.edge_type_id(etype)]))

    def _columns(self, kind: str, type_name: str) -> dict[str, np.ndarray]:
        found = {}
        for key, values in read_tensors(self.files[kind]).items():
            owner, slash, column = key.rpartition("/")
            if (owner if slash else _default_type(kind)) == type_name:  # DGL before 1.0 wrote no type
                found[column] = values
        return found


def _default_type(kind: str) -> str:
    return NODE_TYPE if kind == "node_feats" else ":".join(EDGE_TYPE)
