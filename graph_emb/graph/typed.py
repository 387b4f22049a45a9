"""A graph with node and edge types and their data: what every reader makes and every later step takes.

Legend: N nodes and E edges of one type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, check_flags
from graph_emb.core.notebook import card
from graph_emb.graph.ids import first_outside

EdgeType = tuple[str, str, str]
"""(source node type, relation, destination node type)."""

NODE_TYPE = "_N"
EDGE_TYPE: EdgeType = ("_N", "_E", "_N")
"""DGL's names in a graph without types."""
DUPLICATES_KEPT = "duplicate edges kept"
"""The count of edges that came before: they are in the graph, nothing was done to them."""


def summary(value: Any) -> str:
    """A repr of a dataclass in which an array is its type and shape; fields that are empty or None are left out."""
    shown = {part.name: _short(getattr(value, part.name)) for part in fields(value)}
    held = [f"{name}={own}" for name, own in shown.items() if own not in ("None", "{}", "frozenset()")]
    return f"{type(value).__name__}({', '.join(held)})"


def summary_card(value: Any) -> str:
    """As ``summary``, for notebooks."""
    shown = {part.name: _short(getattr(value, part.name)) for part in fields(value)}
    return card(
        type(value).__name__, {name: own for name, own in shown.items() if own not in ("None", "{}", "frozenset()")}
    )


def _short(value: Any, most: int = 6) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        items = [f"{':'.join(key) if isinstance(key, tuple) else key}: {_short(own)}" for key, own in value.items()]
    elif isinstance(value, tuple):
        items = [_short(own) for own in value[: most + 1]]
    else:
        return repr(value)
    text = ", ".join(items if len(items) <= most else [*items[:most], f"... of {len(value)}"])
    return f"{{{text}}}" if isinstance(value, Mapping) else f"({text})"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What the rows of a graph are judged by and its columns cannot hold; nodes are numbered as in the graph.

    Attributes:
        links: Of a graph of one node type, by part, tables as OGB names them: ``edge`` (B, 2), ``edge_neg`` (M, 2),
            ``target_node_neg`` (B, M). Those of ``train`` have the training edges in the order of the source.
        triples: By part, (T, 3), int64: head, relation, tail. Nodes are counted over all types, one type after the
            other; a relation is its number in the column of the edge data, or the place of its edge type.
        negatives: By part of ``triples``, ``heads`` and ``tails`` to rank its ends against, (T, M) each.
        nodes: By node type, the nodes of each part of a split, in the order of the source.
        classes: By node type, the number of classes, those that no node has included.
    """

    links: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    triples: Mapping[str, np.ndarray] = field(default_factory=dict)
    negatives: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)

    __repr__ = summary
    _repr_html_ = summary_card

    def to_arrays(self, edges: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
        """All of it by path, such as ``links/valid/edge``, without what the graph tells: ``of_arrays`` takes it back.

        Args:
            edges: Of the graph. Training edges that are the first ones of its only type are stored as their number,
                and nodes of a split in ascending order not at all.
        """
        found: dict[str, np.ndarray] = {}
        for kind in ("links", "negatives", "nodes"):
            for first, tables in getattr(self, kind).items():
                found |= {f"{kind}/{first}/{name}": np.asarray(values) for name, values in tables.items()}
        found |= {f"triples/{part}": triples for part, triples in self.triples.items()}
        found |= {f"classes/{ntype}": np.array([count]) for ntype, count in self.classes.items()}
        ascending = [name for name, ids in found.items() if name.startswith("nodes/") and (np.diff(ids) > 0).all()]
        train = found.get(TRAIN_EDGES)
        if train is not None and len(edges) == 1:
            (ends,) = edges.values()
            if all(np.array_equal(own[: len(train)], train[:, side]) for side, own in enumerate(ends)):
                found[LEADING_EDGES] = np.array([len(train)])
                ascending.append(TRAIN_EDGES)
        return {name: _narrow(values) for name, values in found.items() if name not in ascending}

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, np.ndarray], edges: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]] | None = None
    ) -> HeldOut:
        """What ``to_arrays`` gave; without ``edges`` training edges that are stored as a number stay out."""
        found: dict[str, dict[str, Any]] = {kind.name: {} for kind in fields(cls)}
        for path, stored in arrays.items():
            kind, _, place = path.partition("/")
            values = stored.astype(np.int64) if stored.dtype.kind in "iu" else stored
            if path == LEADING_EDGES:
                if edges is not None:
                    ((src, dst),) = edges.values()
                    leading = slice(int(values[0]))
                    found[kind].setdefault("train", {})["edge"] = np.stack([src[leading], dst[leading]], axis=1)
            elif kind == "classes":
                found[kind][place] = int(values[0])
            elif kind == "triples":
                found[kind][place] = values
            else:
                first, _, name = place.rpartition("/")
                found[kind].setdefault(first, {})[name] = values
        return cls(**found)


TRAIN_EDGES, LEADING_EDGES = "links/train/edge", "links/train/leading"


def _narrow(values: np.ndarray) -> np.ndarray:
    """Integers as int32 where they fit."""
    fits = values.dtype.kind in "iu" and values.itemsize > 4 and (not values.size or values.max() < 2**31)
    return values.astype(np.int32) if fits and (not values.size or values.min() >= -(2**31)) else values


@dataclass
class HeteroGraph:
    """Directed edges by type between nodes by type. An undirected graph holds both directions.

    Attributes:
        num_nodes: Nodes of each type; the order of the keys is the order of the type ids.
        edges: For each edge type the (sources, destinations), each (E,), int64, type-local ids, in input order.
        node_data: Features, labels and masks of each node type by name, first axis N; types without are left out.
        edge_data: The same of each edge type, first axis E, in the order of ``edges``.
        node_ids: Original ids of the node types that had other ids than 0 .. N - 1, (N,), int64 or numpy strings.
        counts: Edges and nodes that the reader dropped, merged, added or left out, for the report, such as
            ``{"self loops dropped": 3}``.
        name: The graph's name in the files.
        relation_names: Of a knowledge graph, strings: the relation that each number in the column ``relation`` of the
            edge data stands for; without that column, the name of each edge type, in order, in the source.
        symmetric: Whether, by construction, the reverse of each edge is among the edges, for all edge types whose ends
            are of one node type: such an edge and its reverse are one undirected edge.
        repeats: ``sum``: weights of an edge that is listed several times add up, as the source defines them; None: the
            source says nothing.
        class_names: Of each node type whose ``label`` numbers texts, the text of each class, (C,) strings.
        held_out: What its rows are judged by beside the columns, or None.
    """

    num_nodes: dict[str, int]
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]]
    node_data: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    edge_data: dict[EdgeType, dict[str, np.ndarray]] = field(default_factory=dict)
    node_ids: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    name: str = "graph"
    relation_names: np.ndarray | None = None
    symmetric: bool = False
    class_names: dict[str, np.ndarray] = field(default_factory=dict)
    repeats: Literal["sum"] | None = None
    held_out: HeldOut | None = None

    __repr__ = summary
    _repr_html_ = summary_card

    def __post_init__(self) -> None:
        check_flags(symmetric=self.symmetric)
        for etype, (src, dst) in self.edges.items():
            name = f"edge type {':'.join(etype)}"
            for side, ids in (("sources", src), ("destinations", dst)):
                if ids.ndim != 1 or ids.dtype.kind not in "iu":
                    raise DataError(f"{name}: {side} have shape {ids.shape}, dtype {ids.dtype}; expected integers (E,)")
            if len(src) != len(dst):
                raise DataError(f"{name}: {len(src)} sources but {len(dst)} destinations")
            for side, ntype, ids in (("source", etype[0], src), ("destination", etype[2], dst)):
                if ntype not in self.num_nodes:
                    raise DataError(f"{name}: unknown node type {ntype!r}; known: {', '.join(self.num_nodes)}")
                limit = self.num_nodes[ntype]
                bad = first_outside(ids, limit)
                if bad is not None:
                    raise DataError(f"{name}, edge {bad}: {side} {int(ids[bad])} is outside [0, {limit})")
        originals = {ntype: {"original ids": own} for ntype, own in self.node_ids.items()}
        for what, by_type in (("node data", self.node_data), ("original ids", originals)):
            for ntype, columns in by_type.items():
                if ntype not in self.num_nodes:
                    raise DataError(f"{what} of unknown type {ntype!r}; known: {', '.join(self.num_nodes)}")
                _check_lengths(f"node type {ntype!r}", self.num_nodes[ntype], columns)
        for etype, columns in self.edge_data.items():
            if etype not in self.edges:
                raise DataError(f"edge data of unknown type {':'.join(etype)}")
            _check_lengths(f"edge type {':'.join(etype)}", len(self.edges[etype][0]), columns)
        self.node_data = {ntype: columns for ntype, columns in self.node_data.items() if columns}
        self.edge_data = {etype: columns for etype, columns in self.edge_data.items() if columns}

    @property
    def ntypes(self) -> list[str]:
        """Node types in the order of their type ids."""
        return list(self.num_nodes)

    @property
    def etypes(self) -> list[EdgeType]:
        """Edge types in the order of their type ids."""
        return list(self.edges)

    @property
    def total_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.num_nodes.values())

    @property
    def total_edges(self) -> int:
        """Directed edges of all types."""
        return sum(len(src) for src, _ in self.edges.values())

    @property
    def node_offsets(self) -> dict[str, int]:
        """The homogeneous id of each type's first node: types lie one after the other."""
        return dict(zip(self.num_nodes, accumulate(self.num_nodes.values(), initial=0), strict=False))


def _check_lengths(owner: str, num: int, columns: dict[str, np.ndarray]) -> None:
    for name, values in columns.items():
        if values.ndim < 1 or len(values) != num:
            raise DataError(f"{owner}: {name!r} has shape {values.shape}; expected {num} rows")


def checked_edge_type(edge_type: Any) -> EdgeType:
    """Three names; DGL joins them with colons, so none may hold one.

    Raises:
        ConfigError: another shape, or a name that DGL's files cannot hold.
    """
    parts = tuple(edge_type.split(":")) if isinstance(edge_type, str) else tuple(edge_type)
    if len(parts) != 3 or not all(isinstance(part, str) and part for part in parts):
        raise ConfigError(f"edge type {edge_type!r}: expected three names: source type, relation, destination type")
    source, relation, destination = parts
    for part in parts:
        checked_type_name(part)
    return source, relation, destination


def checked_type_name(name: str) -> str:
    """A node type or relation that DGL's file names and keys can hold."""
    if not name or any(letter in name for letter in ":/\\\0"):
        where = "must not be empty or hold ':', '/' or a backslash, by which DGL joins names"
        raise ConfigError(f"type name {name!r}: {where}")
    return name
