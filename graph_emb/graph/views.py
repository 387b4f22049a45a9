"""Views of a data set: rows for walks, triples, typed nodes for graph networks, and its numbers."""

# N nodes, E arcs, M edges of the whole graph

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, GraphEmbError, LackingError
from graph_emb.graph.csr import Duplicates, Graph, SelfLoops
from graph_emb.graph.datasets import Dataset, LinkSplit, NodeSplit, check_labels
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import REVERSE_PREFIX, WEIGHT
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph
from graph_emb.graph.typed import NODE_TYPE, EdgeType, HeldOut, HeteroGraph, summary, summary_card

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
    _repr_html_ = summary_card

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
    _check_plain(dataset)
    types = dataset.graph
    try:
        merge = duplicates or dataset.duplicates
        graph, counts = compressed(types, symmetrize=symmetrize, duplicates=merge, self_loops=self_loops)
    except GraphEmbError as error:
        raise DataError(f"data set {dataset.name!r}: {error}") from error
    (ntype,) = types.ntypes
    labels, split = dataset.labels.get(ntype), dataset.node_split.get(ntype)
    features = dataset.features.get(ntype)
    return PlainDataset(dataset.name, graph, labels, split, dataset.link_split, features, counts)


def is_plain(dataset: Dataset) -> bool:
    """Whether the graph has one node and one edge type and no relations."""
    graph = dataset.graph
    return len(graph.ntypes) == len(graph.etypes) == 1 and dataset.triples is None and not _relations(graph)


def ids_of_nodes(dataset: Dataset) -> NDArray[Any]:
    """The ids of the nodes of a data set that ``plain_dataset`` takes, (N,).

    Raises:
        DataError: there are more types, or relations.
    """
    _check_plain(dataset)
    ((ntype, number),) = dataset.graph.num_nodes.items()
    return dataset.graph.node_ids.get(ntype, np.arange(number))


def _check_plain(dataset: Dataset) -> None:
    """Raise a DataError where ``plain_dataset`` cannot take a data set."""
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
        if not symmetrize:
            found = given
        elif given.weights is None and duplicates == "first":
            found = given.to_undirected()
        else:  # the weight of the edge that comes first, whichever way it is written
            found = rows(directed=False)
    counts[ADDED] = found.num_arcs - given.num_arcs
    return found, {what: count for what, count in counts.items() if count}


def _undirected(graph: Graph, symmetric: bool) -> Graph | None:
    """The graph as an undirected one where every arc has its reverse with the same weight, else None.

    Args:
        symmetric: Every arc is known to have its reverse, though perhaps with another weight.
    """
    if not symmetric or graph.weights is not None:
        if not np.array_equal(graph.degrees(), np.bincount(graph.indices, minlength=graph.num_nodes)):
            return None
        back = graph.reverse()
        if not np.array_equal(back.indices, graph.indices):
            return None
        if graph.weights is not None and back.weights is not None:
            # sums of the same weights in another order may differ in the last bit
            same = np.allclose(back.weights, graph.weights, rtol=1e-6, atol=0)
            return graph.to_undirected("first") if same else None
    return replace(graph, directed=False)


def knowledge_graph(dataset: Dataset) -> KnowledgeGraph:
    """The triples of a data set; of a graph with types, each edge type is a relation.

    Entities of all node types share one id space, one type after the other.

    Raises:
        LackingError: the graph has one node and one edge type and no relations, not even the name of one.
    """
    graph = dataset.graph
    if dataset.triples is not None:
        return dataset.triples
    if is_plain(dataset) and graph.relation_names is None:
        raise LackingError(f"data set {dataset.name!r} has no relations; models of triples need them")
    pieces, offsets = [], graph.node_offsets
    for number, ((source, _, destination), (src, dst)) in enumerate(graph.edges.items()):
        relation = graph.edge_data.get(graph.etypes[number], {}).get(RELATION, np.full(len(src), number))
        pieces.append(np.stack([src + offsets[source], relation, dst + offsets[destination]], axis=1))
    return named_triples(dataset.name, graph, {"train": np.concatenate(pieces).astype(np.int64)})


def named_triples(name: str, graph: HeteroGraph, parts: Mapping[str, np.ndarray], **more: Any) -> KnowledgeGraph:
    """A knowledge graph with the entities, relations and held-out triples of a graph, as ``knowledge_graph`` has them.

    ``parts`` are triples in these numbers, ``more`` other fields.
    """
    names, alone = graph.relation_names, len(graph.ntypes) == 1
    if names is None:
        names = np.array([etype[1] if alone else ":".join(etype) for etype in graph.etypes])
    ids = graph.node_ids.get(graph.ntypes[0]) if alone else None
    held = graph.held_out or HeldOut()
    more["negatives"] = {part: GivenNegatives(**given) for part, given in held.negatives.items()}
    known = (None if ids is None else tuple(ids.tolist()), tuple(names.tolist()))
    more["entity_types"] = None if alone else graph.node_offsets
    return KnowledgeGraph(name, graph.total_nodes, len(names), {**parts, **held.triples}, *known, **more)


def message_graph(triples: KnowledgeGraph, *, merge_within: bool = False) -> HeteroGraph:
    """The entities with an edge type for each relation of the training triples, and the reverse of every edge.

    Args:
        merge_within: As in ``with_reverse``; else every relation has a reverse type.
    """
    graph = read_graph(triples)
    return with_reverse(graph) if merge_within else read_graph(graph, reverse_types=True)


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
    _repr_html_ = summary_card


def typed_nodes(dataset: Dataset, *, merge_within: bool = False) -> TypedNodes:
    """The labelled node type of a data set, and its graph with the reverse of every edge.

    A graph of one node and one edge type holds its distinct edges in both directions; any other one has a reverse
    type for each edge type.

    Args:
        merge_within: As in ``with_reverse``, instead of a reverse type for edge types inside one node type.

    Raises:
        LackingError: no node type has labels and a split.
    """
    ntype = labelled_type(dataset)
    labels, split = dataset.labels[ntype], dict(dataset.node_split[ntype])
    classes = classes_of(labels)
    features = {own: values.astype(np.float32) for own, values in dataset.features.items()}
    if is_plain(dataset):
        graph = read_graph(plain_dataset(dataset).graph)  # whose one type is called NODE_TYPE
        features = {NODE_TYPE: features[ntype]} if features else {}
        ntype = NODE_TYPE
    else:
        graph = with_reverses(without_reverse(dataset.graph), merge_within)
    return TypedNodes(dataset.name, graph, ntype, classes, split, features, labels.class_names)


def classes_of(labels: Labels, single: bool | None = None) -> NDArray[Any]:
    """Labels as ``TypedNodes`` has them; ``single``: as one class a node, by default where no node has two."""
    if labels.is_single if single is None else single:
        return labels.to_single()
    return labels.to_matrix().toarray().astype(np.float32)


def labelled_type(dataset: Dataset) -> str:
    """The first node type with labels and a split.

    Raises:
        LackingError: there is none.
    """
    ntype = next((ntype for ntype in dataset.labels if ntype in dataset.node_split), None)
    if ntype is None:
        missing, key = ("split of its nodes", "split") if dataset.labels else ("labels", "labels")
        raise LackingError(
            f"data set {dataset.name!r} has no {missing}; node classification needs labels and a split; name a file, "
            f"dataset.{key}"
        )
    return ntype


def with_reverses(graph: HeteroGraph, merge_within: bool) -> HeteroGraph:
    """The graph with the reverse of every edge, in types as ``typed_nodes`` makes them."""
    return with_reverse(graph) if merge_within else read_graph(graph, reverse_types=True)


def without_reverse(graph: HeteroGraph) -> HeteroGraph:
    """The graph without the types that are another one's reverse, edge by edge, as ``reverse_types=True`` adds them."""

    def is_reverse(etype: EdgeType) -> bool:
        turned = etype[2], etype[1].removeprefix(REVERSE_PREFIX), etype[0]
        if turned[1] == etype[1] or turned not in graph.edges:
            return False
        return all(map(np.array_equal, graph.edges[etype], reversed(graph.edges[turned])))

    edges = {etype: ends for etype, ends in graph.edges.items() if not is_reverse(etype)}
    data = {etype: columns for etype, columns in graph.edge_data.items() if etype in edges}
    return graph if len(edges) == len(graph.edges) else replace(graph, edges=edges, edge_data=data)


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
            edges[tail, REVERSE_PREFIX + relation, head] = dst, src
    return HeteroGraph(dict(graph.num_nodes), edges, node_ids=graph.node_ids, name=graph.name)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Counts of any data set; plain numbers, strings, lists and dicts only."""
    if is_plain(dataset):
        return describe_plain(plain_dataset(dataset, symmetrize=False))
    graph, triples = dataset.graph, dataset.triples
    found: dict[str, Any] = {"name": dataset.name, "nodes": graph.total_nodes, "edges": graph.total_edges}
    if triples is not None:
        found["relations"] = triples.num_relations
        found["triples"] = {part: len(own) for part, own in triples.parts.items()}
    found["node_types"] = dict(graph.num_nodes)
    found["edge_types"] = {" ".join(etype): len(src) for etype, (src, _) in graph.edges.items()}
    found["labels"] = {ntype: _describe_labels(labels) for ntype, labels in dataset.labels.items()} or None
    split = {t: {part: len(nodes) for part, nodes in own.items()} for t, own in dataset.node_split.items()}
    return {**found, "node_split": split or None}


TOLD_APART = ("counts", "repeats")
"""Fields that say how a graph was read, not what it is; a data set's ``duplicates`` follow from ``repeats``."""


def digest(dataset: Dataset) -> str:
    """A number by which a data set is known again: of every array in it, 32 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, dataset)
    return found.hexdigest()


def _add(found: hashlib.blake2b, value: Any) -> None:
    """Feed a value with its type and length, so that no two values read alike."""
    if isinstance(value, np.ndarray):
        kept = np.ascontiguousarray(value if value.dtype.kind != "O" else value.astype(str))
        found.update(f"array {kept.dtype.str} {kept.shape};".encode())
        found.update(kept.view(np.uint8).data if kept.size else b"")
    elif is_dataclass(value):
        _add(found, {part.name: getattr(value, part.name) for part in fields(value) if part.name not in TOLD_APART})
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)};".encode())
        for key, item in value.items():
            _add(found, key)
            _add(found, item)
    elif isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        found.update(f"items {len(items)};".encode())
        for item in items:
            _add(found, item)
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())


def describe_plain(dataset: PlainDataset) -> dict[str, Any]:
    """Counts of a data set of one node and one edge type.

    ``edges`` counts an undirected edge once, ``arcs`` what is stored. ``degree`` is of stored out-arcs; a node is
    isolated when no arc leaves or reaches it, a self loop aside. ``components`` ignores directions.
    """
    from scipy.sparse.csgraph import connected_components

    graph, split, links = dataset.graph, dataset.node_split, dataset.link_split
    degrees = graph.degrees()
    num_components, component = connected_components(graph.to_scipy(), directed=graph.directed, connection="weak")
    sizes = np.bincount(component, minlength=1)
    return {
        "name": dataset.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "arcs": graph.num_arcs,
        "directed": graph.directed,
        "weighted": graph.weights is not None,
        "ids": "0 .. N-1" if graph.node_ids is None else ("str" if graph.node_ids.dtype.kind == "U" else "int"),
        "degree": {
            "min": int(degrees.min()) if degrees.size else 0,
            "median": float(np.median(degrees)) if degrees.size else 0.0,
            "mean": float(degrees.mean()) if degrees.size else 0.0,
            "max": int(degrees.max(initial=0)),
        },
        "isolated": int((sizes == 1).sum()) if graph.num_nodes else 0,
        "self_loops": graph.num_self_loops,
        "components": int(num_components),
        "largest_component": int(sizes.max()),
        "labels": None if dataset.labels is None else _describe_labels(dataset.labels),
        "node_split": split and {part: len(nodes) for part, nodes in split.items()},
        "link_split": links and {part: {k: list(v.shape) for k, v in tables.items()} for part, tables in links.items()},
        **dataset.counts,
    }


def _describe_labels(labels: Labels) -> dict[str, Any]:
    return {
        "classes": labels.num_classes,
        "labelled": len(labels.labelled()),
        "assignments": len(labels.indices),
        "most_on_a_node": int(labels.counts().max(initial=0)),
        "largest_class": int(labels.class_counts().max(initial=0)),
    }
