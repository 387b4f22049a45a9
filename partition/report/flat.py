"""A graph and its assignment in one id space: types one after the other, as ``graph.node_offsets`` says."""

# N nodes and E edges of all types, P parts

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graph_emb.graph.readers.source import MASKS, WEIGHT
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment


@dataclass(frozen=True)
class FlatGraph:
    """Arrays of a graph by homogeneous id, computed once for both assignments that a report compares.

    Attributes:
        graph: The graph itself.
    """

    graph: HeteroGraph

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.total_nodes

    def parts_of(self, assignment: Assignment) -> np.ndarray:
        """The part of each node, (N,), int32."""
        return np.concatenate([assignment.parts[ntype] for ntype in self.graph.ntypes]).astype(np.int32, copy=False)

    @cached_property
    def types(self) -> dict[str, slice]:
        """Where each node type lies among the homogeneous ids."""
        starts = self.graph.node_offsets
        return {ntype: slice(starts[ntype], starts[ntype] + num) for ntype, num in self.graph.num_nodes.items()}

    @cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """``train``, ``valid`` and ``test`` where some node type has the mask, (N,), bool.

        Masks of several splits at once, one a column as in DGL's WikiCS, say nothing of one split and are left out.
        """
        masks = {}
        for part, column in MASKS.items():
            found = {n: c[column] for n, c in self.graph.node_data.items() if column in c}
            marked = {ntype: mask for ntype, mask in found.items() if mask.size == len(mask)}
            if marked:
                masks[part] = np.zeros(self.num_nodes, dtype=bool)
                for ntype, mask in marked.items():
                    masks[part][self.types[ntype]] = mask.reshape(-1).astype(bool)
        return masks

    @cached_property
    def seeds(self) -> np.ndarray:
        """Nodes that training starts from, (N,), bool: those of the train mask, or all."""
        train = self.masks.get("train")
        return train if train is not None and train.any() else np.ones(self.num_nodes, dtype=bool)

    @cached_property
    def weights(self) -> dict[EdgeType, np.ndarray] | None:
        """The column ``weight`` of every edge type, where all have one of positive numbers; else None."""
        found = {}
        for etype, (src, _) in self.graph.edges.items():
            column = self.graph.edge_data.get(etype, {}).get(WEIGHT)
            if column is None or column.shape != (len(src),) or not (np.isfinite(column) & (column > 0)).all():
                return None
            found[etype] = column.astype(np.float32)
        return found or None
