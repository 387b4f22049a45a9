"""One part of a partition on disk: its graph, its own rows and its columns.

Legend: as of ``partition.partitioned``.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.graph.dgl_format import StoredGraph, forget, read_graph, read_tensors
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType
from partition.relabel import Ranges, type_name


class Whole(Protocol):
    """The partition of a part, as far as the part needs it; ``PartitionedGraph`` is one."""

    path: Path
    config_path: Path
    config: Any
    ntypes: list[str]
    etypes: list[EdgeType]
    nodes: Ranges
    edges: Ranges

    def node_type_id(self, ntype: str | None = None) -> int:
        """The number of a node type."""

    def edge_type_id(self, etype: EdgeType | str | None = None) -> int:
        """The number of an edge type."""


class Part:
    """One part of a partition: its arrays are views of the mapped files.

    Args:
        whole: The partition.
        index: Which part.
    """

    def __init__(self, whole: Whole, index: int) -> None:
        self.whole = whole
        self.index = index
        try:
            files = whole.config[f"part-{index}"]
            self.files = {kind: whole.path / files[kind] for kind in ("part_graph", "node_feats", "edge_feats")}
        except (KeyError, TypeError) as error:
            raise DataError(f"{whole.config_path}: part-{index} names no {error}; the file is damaged") from error

    @cached_property
    def graph(self) -> StoredGraph[np.ndarray]:
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
        return self.whole.nodes.typed_rows(self.index, self.whole.node_type_id(ntype))

    def edge_rows(self, etype: EdgeType | str | None = None) -> slice:
        """Partition-order ids, within their type, of the part's own edges of a type."""
        return self.whole.edges.typed_rows(self.index, self.whole.edge_type_id(etype))

    def ends(self, etype: EdgeType | str | None = None, which: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) of the part's own edges of a type: partition-order ids within their types, int64.

        Args:
            etype: As of ``PartitionedGraph.policy``.
            which: Of these edges, counted from the part's first one of the type.
        """
        r = self.whole.edge_type_id(etype)
        first, start, stop = self.whole.edges.starts[self.index, [0, r, r + 1]]
        begin, end, _ = which.indices(stop - start)
        inside = slice(start - first + begin, start - first + end)
        src, dst = self.node_ids[self.graph.src[inside]], self.node_ids[self.graph.dst[inside]]
        return self.whole.nodes.split(src)[2], self.whole.nodes.split(dst)[2]

    def forget(self) -> None:
        """Let go of the pages of the graph's file; what is used again is read again."""
        forget(self.graph.src)

    def node_data(self, ntype: str | None = None) -> dict[str, np.ndarray]:
        """Columns of the part's own nodes of a type, by name."""
        return self._columns("node_feats", self.whole.ntypes[self.whole.node_type_id(ntype)])

    def edge_data(self, etype: EdgeType | str | None = None) -> dict[str, np.ndarray]:
        """Columns of the part's own edges of a type, by name."""
        return self._columns("edge_feats", type_name(self.whole.etypes[self.whole.edge_type_id(etype)]))

    def _columns(self, kind: str, name: str) -> dict[str, np.ndarray]:
        unnamed = type_name(NODE_TYPE if kind == "node_feats" else EDGE_TYPE)  # DGL before 1.0 wrote no type
        found = {}
        for key, values in read_tensors(self.files[kind]).items():
            owner, slash, column = key.rpartition("/")
            if (owner if slash else unnamed) == name:
                found[column] = values
        return found
