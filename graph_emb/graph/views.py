"""Views of a data set: compressed rows for walks, triples for knowledge graphs, typed nodes for graph networks."""

# N nodes, E arcs

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, GraphEmbError
from graph_emb.graph.csr import Duplicates, Graph, SelfLoops
from graph_emb.graph.datasets import Dataset, LinkSplit, NodeSplit, check_labels
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import WEIGHT
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import NODE_TYPE, EdgeType, HeteroGraph, summary

DROPPED, MERGED, ADDED = "self loops dropped", "duplicate edges merged", "reverse edges added"


@dataclass(frozen=True, eq=False)
class PlainDataset:
    """A data set of one node and one edge type; other fields as in ``Dataset``.

    Attributes:
        graph: Training edges only, in compressed rows.
        labels: Classes of the N nodes, or None.
        node_split: Nodes of ``train``, ``valid`` and ``test``, as far as there are, or None.
        features: Shape (N, F), or None.
        counts: Edges that the view dropped, merged and added.
    Raises:
        ShapeError: labels of another number of nodes.
    """

    name: str
    graph: Graph
    labels: Labels | None = None
    node_split: NodeSplit | None = None
    link_split: LinkSplit | None = None
    features: NDArray | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    __repr__ = summary

    def __post_init__(self) -> None:
        check_labels(self.name, self.labels, self.graph.num_nodes)


def plain_dataset(
    dataset: Dataset, *, symmetrize: bool = True, duplicates: Duplicates | None = None, self_loops: SelfLoops = "keep"
) -> PlainDataset:
    """A data set whose graph has one node and one edge type.

    Args:
        symmetrize, self_loops: As in ``compressed``.
        duplicates: As in ``compressed``; None: as the data set is defined.
    Raises:
        DataError: there are more types, or relations.
    """
    types = dataset.graph
    if dataset.triples is not None or _relations(types):
        raise DataError(
            f"data set {dataset.name!r} is a knowledge graph; take a model of triples, such as transe, "
            "or leave its relations out"
        )
    if not is_plain(dataset):
        raise DataError(
            f"data set {dataset.name!r} has {len(types.ntypes)} node types and {len(types.etypes)} edge types; "
            "expected one of each; metapath2vec and rgcn take such graphs"
        )
    try:
        merge = duplicates or dataset.duplicates
        graph, counts = compressed(types, symmetrize=symmetrize, duplicates=merge, self_loops=self_loops)
    except GraphEmbError as error:
        raise DataError(f"data set {dataset.name!r}: {error}") from error
    (ntype,) = types.ntypes
    return PlainDataset(
        dataset.name,
        graph,
        dataset.labels.get(ntype),
        dataset.node_split.get(ntype),
        dataset.link_split,
        dataset.features.get(ntype),
        counts,
    )


def is_plain(dataset: Dataset) -> bool:
    """Whether the graph has one node and one edge type and no relations."""
    graph = dataset.graph
    return len(graph.ntypes) == len(graph.etypes) == 1 and dataset.triples is None and not _relations(graph)


def _relations(graph: HeteroGraph) -> bool:
    return any(RELATION in columns for columns in graph.edge_data.values())


def compressed(
    graph: HeteroGraph, *, symmetrize: bool, duplicates: Duplicates = "first", self_loops: SelfLoops = "keep"
) -> tuple[Graph, dict[str, int]]:
    """The arcs of a graph of one node and one edge type in compressed rows, and what was merged and added.

    A graph that holds every arc in both directions with one weight is undirected, and stays as it is.

    Args:
        symmetrize: Add the reverse of every arc that lacks it; (u, v) and (v, u) are then one edge.
        duplicates: Of a repeated edge, ``first`` keeps the weight that comes first, ``sum`` adds them up (an edge
            without weight counts 1).
        self_loops: ``keep`` or ``drop``.
    Returns:
        The graph; its ``directed`` is False where no arc lacks its reverse. Counts that are 0 are left out.
    """
    ((src, dst),) = graph.edges.values()
    weights = next((columns[WEIGHT] for columns in graph.edge_data.values() if WEIGHT in columns), None)
    ids = next(iter(graph.node_ids.values()), None)
    policies: dict[str, Any] = {"duplicates": duplicates, "self_loops": self_loops}

    def rows(directed: bool) -> Graph:
        return Graph.from_edges(src, dst, graph.total_nodes, weights, directed, ids, **policies)

    given = rows(directed=True)
    dropped = int((src == dst).sum()) if self_loops == "drop" else 0
    counts = {DROPPED: dropped, MERGED: len(src) - dropped - given.num_arcs}
    found = _undirected(given, graph.symmetric)
    if found is None:
        found = rows(directed=False) if symmetrize else given
    counts[ADDED] = found.num_arcs - given.num_arcs
    return found, {what: count for what, count in counts.items() if count}


def _undirected(graph: Graph, symmetric: bool) -> Graph | None:
    """The graph as an undirected one where every arc has its reverse with the same weight, else None.

    Args:
        symmetric: Every arc is known to have its reverse, though perhaps with another weight.
    """
    if symmetric and graph.weights is None:
        return replace(graph, directed=False)
    if not np.array_equal(graph.degrees(), np.bincount(graph.indices, minlength=graph.num_nodes)):
        return None
    back = graph.reverse()
    if not np.array_equal(back.indices, graph.indices):
        return None
    if graph.weights is None:
        return replace(graph, directed=False)
    assert back.weights is not None
    # sums of the same weights in another order may differ in the last bit
    return graph.to_undirected("first") if np.allclose(back.weights, graph.weights, rtol=1e-6, atol=0) else None


def knowledge_graph(dataset: Dataset) -> KnowledgeGraph:
    """The triples of a data set; of a graph with types, each edge type is a relation.

    Entities of all node types share one id space, one type after the other.

    Raises:
        DataError: the graph has one node and one edge type and no relations.
    """
    graph = dataset.graph
    if dataset.triples is not None:
        return dataset.triples
    if is_plain(dataset):
        raise DataError(f"data set {dataset.name!r} has no relations; models of triples need them")
    pieces, offsets = [], graph.node_offsets
    for number, ((source, _, destination), (src, dst)) in enumerate(graph.edges.items()):
        relation = graph.edge_data.get(graph.etypes[number], {}).get(RELATION, np.full(len(src), number))
        pieces.append(np.stack([src + offsets[source], relation, dst + offsets[destination]], axis=1))
    names = graph.relation_names
    if names is None:
        names = np.array([etype[1] if len(graph.ntypes) == 1 else ":".join(etype) for etype in graph.etypes])
    ids = graph.node_ids.get(graph.ntypes[0]) if len(graph.ntypes) == 1 else None
    return KnowledgeGraph(
        dataset.name,
        graph.total_nodes,
        len(names),
        {"train": np.concatenate(pieces).astype(np.int64)},
        None if ids is None else tuple(ids.tolist()),
        tuple(names.tolist()),
        entity_types=offsets if len(graph.ntypes) > 1 else None,
    )


@dataclass(frozen=True, eq=False)
class TypedNodes:
    """A graph with typed nodes and edges, and the classes of one node type.

    Attributes:
        name: As the data set is called.
        graph: With the reverse of every edge type whose edges do not hold both directions already.
        ntype: The node type that has classes.
        labels: Shape (N,), int64, -1 where unknown; or (N, tasks), float32.
        split: Nodes of "train", "valid" (where there is one) and "test".
        features: By node type, (nodes, width), float32; types without are left out.
        class_names: In the order of the classes; None: numbers.
    """

    name: str
    graph: HeteroGraph
    ntype: str
    labels: NDArray[Any]
    split: NodeSplit
    features: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None

    __repr__ = summary


def typed_nodes(dataset: Dataset, *, merge_within: bool = False) -> TypedNodes:
    """The labelled node type of a data set, and its graph with the reverse of every edge.

    A graph of one node and one edge type holds its distinct edges in both directions; any other one has a reverse
    type for each edge type.

    Args:
        merge_within: As in ``with_reverse``, instead of a reverse type for edge types inside one node type.

    Raises:
        DataError: no node type has labels and a split.
    """
    ntype = next((ntype for ntype in dataset.labels if ntype in dataset.node_split), None)
    if ntype is None:
        missing = "split of its nodes" if dataset.labels else "labels"
        raise DataError(f"data set {dataset.name!r} has no {missing}; node classification needs both")
    labels, split = dataset.labels[ntype], dict(dataset.node_split[ntype])
    classes = labels.to_single() if labels.is_single else labels.to_matrix().toarray().astype(np.float32)
    features = {own: values.astype(np.float32) for own, values in dataset.features.items()}
    if is_plain(dataset):
        graph = read_graph(plain_dataset(dataset).graph)  # whose one type is called NODE_TYPE
        features = {NODE_TYPE: features[ntype]} if features else {}
        ntype = NODE_TYPE
    else:
        graph = with_reverse(dataset.graph) if merge_within else read_graph(dataset.graph, reverse_types=True)
    return TypedNodes(dataset.name, graph, ntype, classes, split, features, labels.class_names)


def with_reverse(graph: HeteroGraph) -> HeteroGraph:
    """The graph with every edge in both directions, as DGL's ``AddReverse`` makes it; edges keep no data.

    A relation between two types gets one from the second to the first, "rev_" before its name; a relation inside one
    type holds both directions itself.
    """
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    for (head, relation, tail), (src, dst) in graph.edges.items():
        if head == tail:
            edges[head, relation, tail] = np.concatenate([src, dst]), np.concatenate([dst, src])
        else:
            edges[head, relation, tail] = src, dst
            edges[tail, f"rev_{relation}", head] = dst, src
    return HeteroGraph(dict(graph.num_nodes), edges, node_ids=graph.node_ids, name=graph.name)
