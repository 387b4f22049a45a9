"""Data of a run of a graph network: graph, task and features, whole or as a trainer holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, Task, TripleTask
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from partition import PartitionedGraph
from partition.partitioned import PartPolicy

LINK_METRICS = {
    "ogbl-ddi": ("hits@20", "hits@10", "hits@30", "hits@50", "hits@100"),
    "ogbl-collab": ("hits@50", "hits@10", "hits@100"),
    "ogbl-ppa": ("hits@100", "hits@10", "hits@50"),
    "ogbl-citation2": ("mrr",),
    "ogbl-vessel": ("rocauc",),
}
"""OGB's metric first: it decides about early stopping."""


@dataclass(frozen=True, eq=False)
class GNNData:
    """Graph, task and features of a run, whole; or the kinds that they have where each trainer reads its own parts.

    Attributes:
        name: As the data set is called.
        graph: Messages follow its edges. With ``parts``: types and numbers of nodes, and no edges.
        task: Classes, links or triples; None: trainers read labels and split with their nodes.
        features: By node type.
        counts: Edges that were merged, added and held out.
        parts: The partition that is the data set, of which each trainer reads its own parts.
        typed: The entities of triples with the types and ids that the data set gives them, where it has several types.
        class_names: Of the classes, where they have names.
    """

    name: str
    graph: HeteroGraph
    task: Task | None
    features: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    parts: PartitionedGraph | None = None
    typed: HeteroGraph | None = None
    class_names: tuple[str, ...] | None = None

    def ids(self, ntype: str) -> np.ndarray | None:
        """Original ids of the nodes of a type, (N,); None: 0 .. N - 1."""
        if self.parts is None:
            return self.graph.node_ids.get(ntype)
        return self.parts.input_ids(self.parts.ntypes[self.graph.ntypes.index(ntype)])


@dataclass(frozen=True, eq=False)
class Held:
    """What a process holds of the data of a run.

    Attributes:
        graph: The whole graph, or the edges into a trainer's nodes.
        task: Labels and split, whole or of the trainer's nodes.
        features: By node type, of the graph's or of the trainer's nodes.
        policies: Who owns which node, by type; empty where the process is alone.
    """

    graph: HeteroGraph | OwnEdges
    task: Task
    features: Mapping[str, Any]
    policies: Mapping[str, PartPolicy]


MESSAGE_KINDS = (NodeTask, LinkTask, TripleTask, KnowledgeGraph, GivenNegatives)
"""The classes of what the first rank tells the others."""
