"""A graph that has grown: new nodes at the end of each type, new edges behind the old ones.

Legend: N nodes and E edges of one type.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.ids import are_among, find_ids, first_repeated
from graph_emb.graph.readers import READERS, format_of, read_graph
from graph_emb.graph.readers.source import MASKS, as_path
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.typed import EdgeType, HeldOut, HeteroGraph

log = logging.getLogger("graph_emb.graph.grown")

Ends = tuple[np.ndarray, np.ndarray]
NewEdges = Ends | Mapping[EdgeType, Ends]
KNOWN = "new edges that are held out"
"""The count of new edges that the rows are judged by."""


def grown(
    old: HeteroGraph,
    new_edges: NewEdges,
    new_nodes: int | Mapping[str, int] = 0,
    node_data: Mapping[str, Mapping[str, Any]] | None = None,
    edge_data: Mapping[EdgeType, Mapping[str, Any]] | None = None,
    node_ids: Mapping[str, Any] | None = None,
) -> HeteroGraph:
    """A graph with more nodes at the end of each type and more edges.

    A symmetric graph stays so: of a new edge between nodes of one type whose reverse is not among the new ones, it is
    added. What old nodes and edges are judged by (``held_out``) stays; new nodes are in the parts of a split that
    their masks name, and new edges in none but training.

    Args:
        new_edges: Sources and destinations, (E,) integers each, positions, old or new; by edge type where there are
            several.
        new_nodes: How many; by node type where there are several.
        node_data, edge_data: Of the new nodes and edges, by type: whatever the graph has of old ones. Masks of a split
            may be left out (False), and so may ``label``: -1, or no class.
        node_ids: Ids of the new nodes, by type, where they are not the numbers that follow the old ones.
    Raises:
        ConfigError: an option is wrong, or data of new nodes or edges is missing.
        DataError: an id is there already.
        PartitionError: a node of a new edge does not exist.
    """
    node_data, edge_data, node_ids = node_data or {}, edge_data or {}, node_ids or {}
    nodes = _by_type("new_nodes", new_nodes, list(old.num_nodes))
    edges = _by_type("new_edges", new_edges, list(old.edges))
    counted = (isinstance(more, int | np.integer) and not isinstance(more, bool) for more in nodes.values())
    if not all(counted) or min(nodes.values(), default=0) < 0:
        raise ConfigError(f"new_nodes={new_nodes!r}: give integers of at least 0")
    fresh = {ntype: int(nodes.get(ntype, 0)) for ntype in old.num_nodes}
    num_nodes = {ntype: num + fresh[ntype] for ntype, num in old.num_nodes.items()}
    for what, given, known in (("node_data", node_data, num_nodes), ("edge_data", edge_data, old.edges)):
        for kind in given:
            if kind not in known:
                raise ConfigError(f"{what}: unknown type {kind!r}; known: {list(known)}")
    more = _new_edges(old, num_nodes, edges, edge_data)
    ends = {
        etype: (np.concatenate([src, more.edges[etype][0]]), np.concatenate([dst, more.edges[etype][1]]))
        for etype, (src, dst) in old.edges.items()
    }
    data = {
        etype: {name: _joined(column, more.edge_data[etype][name]) for name, column in columns.items()}
        for etype, columns in old.edge_data.items()
        if etype in more.edge_data
    }
    counts = {**old.counts, **{what: old.counts.get(what, 0) + number for what, number in more.counts.items()}}
    columns = {
        t: _columns("node_data", t, of, {**_unknown(of, fresh[t]), **node_data.get(t, {})}, fresh[t])
        for t, of in {**{t: {} for t, given in node_data.items() if given}, **old.node_data}.items()
    }
    held = None if old.held_out is None else _held_out(old, old.held_out, num_nodes, columns)
    if held is not None and (leaked := _num_held_out(held, more, num_nodes)):
        counts[KNOWN] = counts.get(KNOWN, 0) + leaked
        log.warning("%d of the new edges are held out: rows that are trained on them know the answer", leaked)
    return replace(
        old,
        num_nodes=num_nodes,
        edges=ends,
        node_data=columns,
        edge_data={**old.edge_data, **data},
        node_ids=_ids(old, fresh, node_ids),
        counts=counts,
        held_out=held,
    )


def grown_by(old: HeteroGraph, source: Any, **options: Any) -> HeteroGraph:
    """A graph with the edges of another one, whose nodes are known by their ids; other ids are new nodes.

    Args:
        source: A HeteroGraph, or what ``read_graph`` takes. Of one node and one edge type, it may call them as it
            likes; else types are matched by name. Columns that the graph lacks are an error, others are taken along.
        options: Of ``read_graph``.
    Raises:
        DataError: ids of another kind, a file that cannot be read, or an unknown type.
        ConfigError: as ``grown``.
    """
    new = source if isinstance(source, HeteroGraph) else _read(old, source, options)
    what = str(as_path(source) or "new edges")
    if len(old.num_nodes) == len(old.edges) == len(new.num_nodes) == len(new.edges) == 1:
        new = _renamed(new, next(iter(old.num_nodes)), next(iter(old.edges)))
    for kind, known in ((new.num_nodes, old.num_nodes), (new.edges, old.edges)):
        for name in kind:
            if name not in known:
                raise DataError(f"{what}: type {name!r} is not in the graph; it has {list(known)}")
    place, fresh, ids, columns = {}, {}, {}, {}
    for ntype, num in new.num_nodes.items():
        own = new.node_ids.get(ntype, np.arange(num))
        known_ids = old.node_ids.get(ntype)
        texts = known_ids is not None and known_ids.dtype.kind == "U"
        if texts != (own.dtype.kind == "U"):
            kinds = ("texts", "numbers") if texts else ("numbers", "texts")
            raise DataError(f"{what}: ids of {ntype!r} are {kinds[1]}, those of the graph are {kinds[0]}")
        at = find_ids(known_ids, old.num_nodes[ntype], own)
        unseen = np.flatnonzero(at < 0)
        at[unseen] = old.num_nodes[ntype] + np.arange(len(unseen))
        place[ntype], fresh[ntype], ids[ntype] = at, len(unseen), own[unseen]
        columns[ntype] = {name: values[unseen] for name, values in new.node_data.get(ntype, {}).items()}
    ends = {etype: (place[etype[0]][src], place[etype[2]][dst]) for etype, (src, dst) in new.edges.items()}
    return grown(old, ends, fresh, columns, new.edge_data, ids)


def _read(old: HeteroGraph, source: Any, options: Mapping[str, Any]) -> HeteroGraph:
    """The new edges; of a file whose cells could be either, ids are of the graph's kind."""
    own = next(iter(old.node_ids.values()), None)
    kind = options.get("format") or format_of(source)
    if kind in READERS and "ids" in READERS[kind].options and "ids" not in options:
        options = {**options, "ids": "str" if own is not None and own.dtype.kind == "U" else "int"}
    return read_graph(source, **options)


def _renamed(graph: HeteroGraph, ntype: str, etype: EdgeType) -> HeteroGraph:
    def by(name: Any, of: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(zip([name], of.values(), strict=False))

    return replace(
        graph,
        num_nodes=by(ntype, graph.num_nodes),
        edges=by(etype, graph.edges),
        node_data=by(ntype, graph.node_data),
        edge_data=by(etype, graph.edge_data),
        node_ids=by(ntype, graph.node_ids),
        class_names={},
        held_out=None,
    )


def _new_edges(
    old: HeteroGraph,
    num_nodes: dict[str, int],
    edges: Mapping[EdgeType, Ends],
    edge_data: Mapping[EdgeType, Mapping[str, Any]],
) -> HeteroGraph:
    """The new edges alone, with their data, and with the reverses that a symmetric graph needs."""
    ends, columns = {}, {}
    for etype in old.edges:
        try:
            more = [_ends(etype, side) for side in edges.get(etype, ((), ()))]
        except TypeError:
            raise ConfigError(f"new_edges of {etype!r}: {edges[etype]!r:.60}; give (sources, destinations)") from None
        if len(more) != 2 or len(more[0]) != len(more[1]):
            raise ConfigError(
                f"new_edges of {etype!r}: {[len(side) for side in more]} ends; give as many of both kinds"
            )
        for side, ntype in zip(more, (etype[0], etype[2]), strict=True):
            wrong = np.flatnonzero((side < 0) | (side >= num_nodes[ntype]))
            if len(wrong):
                raise PartitionError(
                    f"new_edges: node {side[wrong[0]]} of type {ntype!r} is outside [0, {num_nodes[ntype]}); "
                    "give new_nodes"
                )
        ends[etype] = more[0], more[1]
        of = old.edge_data.get(etype, {})
        joined = _columns("edge_data", etype, of, edge_data.get(etype, {}), len(more[0]))
        columns[etype] = {name: values[len(of[name]) :] for name, values in joined.items()}
    new = HeteroGraph(num_nodes, ends, edge_data=columns)
    if old.symmetric and any(source == destination for source, _, destination in ends):
        new = read_graph(new, directed=False)  # which adds the reverses that are not there
    return replace(new, counts={what: n for what, n in new.counts.items() if what == "reverse edges added"})


def _ends(etype: EdgeType, side: Any) -> np.ndarray:
    found = np.asarray(side)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(f"new_edges of {etype!r}: ends of shape {found.shape} and {found.dtype}; give integers, (E,)")
    return found.astype(np.int64)


def _by_type(what: str, given: Any, types: list[Any]) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        if len(types) > 1:
            raise ConfigError(f"{what}: the graph has types {types}; give them by type")
        return {types[0]: given}
    for name in given:
        if name not in types:
            raise ConfigError(f"{what}: unknown type {name!r}; known: {types}")
    return given


def _unknown(columns: Mapping[str, np.ndarray], num: int) -> dict[str, np.ndarray]:
    """What nodes have of which nothing is known, where the columns have a value for that: in no split, of no class."""
    found = {name: np.zeros(num, columns[name].dtype) for name in MASKS.values() if name in columns}
    label = columns.get("label")
    if label is not None and label.ndim == 2:
        found["label"] = np.zeros((num, label.shape[1]), label.dtype)
    elif label is not None and label.dtype.kind == "i":
        found["label"] = np.full(num, -1, label.dtype)
    return found


def _columns(what: str, kind: Any, old: Mapping[str, np.ndarray], new: Mapping[str, Any], num: int) -> dict[str, Any]:
    if more := sorted(set(new) - set(old)):
        known = ", ".join(sorted(old)) or "none"
        raise ConfigError(f"{what} of {kind!r}: the graph has no column {more[0]!r}; it has {known}")
    return {name: _more(f"{what} of {kind!r}: {name!r}", column, new.get(name), num) for name, column in old.items()}


def _more(what: str, old: np.ndarray, new: Any, num: int) -> np.ndarray:
    if new is None:
        if not num:
            return old
        raise ConfigError(f"{what} is missing for {num} new ones; the old ones have it")
    found = np.asarray(new)
    if found.shape != (num, *old.shape[1:]):
        raise ConfigError(f"{what} has shape {found.shape} for {num} new ones; expected {(num, *old.shape[1:])}")
    return _joined(old, found)


def _joined(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.concatenate([old, new if old.dtype.kind == "U" else new.astype(old.dtype)])


def _ids(old: HeteroGraph, fresh: Mapping[str, int], given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The ids of all nodes, of types whose ids are not 0 .. N - 1."""
    found = {}
    for ntype, num in old.num_nodes.items():
        known, new = old.node_ids.get(ntype), given.get(ntype)
        following = np.arange(num, num + fresh[ntype])
        if known is None and (new is None or np.array_equal(new, following)):
            continue
        ids = _more(f"node_ids of {ntype!r}", np.arange(num) if known is None else known, new, fresh[ntype])
        if fresh[ntype] and (twice := first_repeated(ids)) is not None:
            raise DataError(f"node_ids of {ntype!r}: id {twice!r} is there already; new nodes have ids of their own")
        found[ntype] = ids
    return found


def _held_out(
    old: HeteroGraph, held: HeldOut, num_nodes: Mapping[str, int], columns: Mapping[str, Mapping[str, np.ndarray]]
) -> HeldOut:
    """What old nodes and edges are judged by, in the numbers of the grown graph."""
    starts = np.array(list(old.node_offsets.values()))
    shift = np.array(list(HeteroGraph(dict(num_nodes), {}).node_offsets.values())) - starts

    def moved(entities: np.ndarray) -> np.ndarray:
        """Nodes that are counted over all types, one type after the other."""
        return entities + shift[np.searchsorted(starts, entities, side="right") - 1]

    nodes = {}
    for ntype, parts in held.nodes.items():
        masks = {part: columns.get(ntype, {}).get(MASKS[part]) for part in parts if part in MASKS}
        first = old.num_nodes[ntype]
        nodes[ntype] = {
            part: own if masks.get(part) is None else np.concatenate([own, first + np.flatnonzero(masks[part][first:])])  # type: ignore[index]
            for part, own in parts.items()
        }
    labels = {ntype: of.get("label") for ntype, of in columns.items()}
    classes = {
        ntype: max(count, int(label.max(initial=-1)) + 1 if label is not None and label.ndim == 1 else 0)
        for ntype, count in held.classes.items()
        for label in [labels.get(ntype)]
    }
    triples = {
        part: np.stack([moved(own[:, 0]), own[:, 1], moved(own[:, 2])], axis=1) for part, own in held.triples.items()
    }
    negatives = {part: {side: moved(own) for side, own in of.items()} for part, of in held.negatives.items()}
    return replace(held, nodes=nodes, classes=classes, triples=triples, negatives=negatives)


def _num_held_out(held: HeldOut, new: HeteroGraph, num_nodes: Mapping[str, int]) -> int:
    """How many of the new edges are among the edges or triples that are held out."""
    total = sum(num_nodes.values())
    pairs = {part: tables["edge"] for part, tables in held.links.items() if part != "train" and "edge" in tables}
    offsets, count = new.node_offsets, 0
    for number, (etype, (src, dst)) in enumerate(new.edges.items()):
        keys = (src + offsets[etype[0]]) * total + dst + offsets[etype[2]]
        wanted = [edge[:, 0] * total + edge[:, 1] for edge in pairs.values()]
        wanted += [edge[:, 1] * total + edge[:, 0] for edge in pairs.values() if new.symmetric]
        found = are_among(keys, np.concatenate(wanted)) if wanted else np.zeros(len(keys), bool)
        relation = new.edge_data.get(etype, {}).get(RELATION, np.full(len(src), number))
        for triples in (own for part, own in held.triples.items() if part != "train"):
            for kind in np.intersect1d(relation, triples[:, 1]):
                own = triples[triples[:, 1] == kind]
                found |= (relation == kind) & are_among(keys, own[:, 0] * total + own[:, 2])
        count += int(found.sum())
    return count
