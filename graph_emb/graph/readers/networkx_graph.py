"""networkx graphs with the attributes of their nodes and edges: in memory, GraphML, JSON node-link, trusted pickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.graph.ids import first_repeated
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    ReadOptions,
    is_object_of,
    open_bytes,
    parsing,
    register,
    split_suffix,
)
from graph_emb.graph.readers.tables import fault_of_id, is_integer
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph

_PICKLES = ("gpickle", "pkl", "pickle")
_FILES = tuple(f".{kind}{gz}" for kind in (*_PICKLES, "graphml", "json") for gz in ("", ".gz"))
_OPTIONS = ("node_attributes", "edge_attributes", "ids", "trust_pickle")


@register("networkx", *_OPTIONS, objects=lambda source: is_object_of(source, "networkx"), paths=_FILES)
def read_networkx(source: Any, options: ReadOptions) -> Contents:
    """A graph of any of networkx's four classes; an edge of an undirected one means both directions.

    Nodes are numbered in the order of their ids: integers (of GraphML, texts that are all integers), or else strings
    (of a tuple: as Python writes it). An edge without ``weight`` weighs 1 where others have one.
    """
    if not isinstance(source, Path):
        return _contents(source, options, "graph", texts=False)
    suffix, _ = split_suffix(source)
    what = {"graphml": "GraphML", "json": "JSON node-link data"}.get(suffix, "a pickled networkx graph")
    with parsing(source, what):
        if suffix in _PICKLES and not options.trust_pickle:
            raise DataError(
                "a pickle can run any code; save the graph as GraphML, JSON node-link or an edge list, or say "
                "trust_pickle=True for a file of your own"
            )
        with open_bytes(source) as stream:
            graph = _load(stream, suffix)
        name = source.name.removesuffix(".gz").rpartition(".")[0] or source.name
        return _contents(graph, options, name, texts=suffix == "graphml")


def _load(stream: Any, suffix: str) -> Any:
    """The networkx graph of a file.

    JSON is networkx's node-link form: ``nodes`` with an ``id``, ``links`` or ``edges`` with both ends. Its own reader
    does not say which of them is wrong.
    """
    import networkx

    if suffix == "graphml":
        return networkx.read_graphml(stream)
    if suffix in _PICKLES:
        graph = pickle.load(stream)
        if not isinstance(graph, networkx.Graph):
            raise DataError(f"holds a {type(graph).__name__}; expected a networkx graph")
        return graph
    data = json.loads(stream.read())
    edges = data.get("links", data.get("edges")) if isinstance(data, dict) else None
    if not isinstance(edges, list) or not isinstance(data.get("nodes"), list):
        raise DataError("no lists 'nodes' and 'links'; expected JSON as networkx.node_link_data makes it")
    graph = networkx.MultiDiGraph() if data.get("directed") else networkx.MultiGraph()
    for position, node in enumerate(data["nodes"]):
        name = _id_in(node, "id", f"node {position}")
        if name in graph:
            raise DataError(f"node {position}: id {name!r} is given twice; expected distinct ids")
        graph.add_nodes_from([(name, {key: value for key, value in node.items() if key != "id"})])
    for position, edge in enumerate(edges):
        ends = [_id_in(edge, end, f"edge {position}") for end in ("source", "target")]
        for end in ends:
            if end not in graph:
                raise DataError(f"edge {position}: {end!r} is no id of a node")
        graph.add_edges_from([(*ends, {k: v for k, v in edge.items() if k not in ("source", "target", "key")})])
    return graph


def _id_in(record: Any, key: str, where: str) -> int | str:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise DataError(f"{where}: {key!r} is {str(value)[:60]!r}; expected an integer or a text")
    return value


def _contents(source: Any, options: ReadOptions, name: str, *, texts: bool) -> Contents:
    counts: dict[str, int] = {}
    nodes = list(source)
    ids = _ids(nodes, options.ids, texts)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    repeated = first_repeated(ids)
    if repeated is not None:
        raise DataError(f"two nodes are written {repeated!r}; expected ids that differ as strings")
    place = {nodes[old]: new for new, old in enumerate(order.tolist())}
    arcs = list(source.edges(data=True))
    src, dst = (np.fromiter((place[arc[end]] for arc in arcs), dtype=np.int64, count=len(arcs)) for end in (0, 1))
    node_rows = [source.nodes[nodes[old]] for old in order.tolist()]
    edge_rows = [{k: v for k, v in arc[2].items() if k != WEIGHT or options.weight is not False} for arc in arcs]
    is_dense = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids)))
    graph = HeteroGraph(
        {NODE_TYPE: len(nodes)},
        {EDGE_TYPE: (src, dst)},
        node_data={NODE_TYPE: _columns("node", node_rows, options.node_attributes, counts)},
        edge_data={EDGE_TYPE: _columns("edge", edge_rows, options.edge_attributes, counts)},
        node_ids={} if is_dense else {NODE_TYPE: ids},
        counts=counts,
        name=name,
    )
    return Contents(graph, both_ways=not source.is_directed())


def _ids(nodes: list[Any], kind: str, texts: bool) -> NDArray:
    """Ids (N,) as int64 or as strings.

    Args:
        kind: The option ``ids``; ``auto``: integers where all are.
        texts: The nodes come from a file in which every id is a text, so that ``7`` may be an integer.
    """
    words = [str(node) for node in nodes]
    if kind == "auto":
        numbers = map(is_integer, words) if texts else (isinstance(node, int | np.integer) for node in nodes)
        kind = "int" if all(numbers) and not any(isinstance(node, bool) for node in nodes) else "str"
    for position, word in enumerate(words):
        fault = fault_of_id(word, kind, None)
        if fault is not None:
            raise DataError(f"node {position}: {fault}")
    ids = np.array(words, dtype=str)
    return ids.astype(np.int64) if kind == "int" else ids


def _columns(
    kind: str, rows: Sequence[dict[str, Any]], asked: Sequence[str] | None, counts: dict[str, int]
) -> dict[str, np.ndarray]:
    """The attributes of all nodes or edges as arrays."""
    found = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, np.ndarray] = {}
    for name in found if asked is None else asked:
        try:
            rest = 1.0 if kind == "edge" and name == WEIGHT and WEIGHT in found else None
            columns[str(name)] = _column(kind, str(name), [row.get(name, rest) for row in rows])
        except DataError:
            if asked is not None or (kind == "edge" and name == WEIGHT):
                raise
            counts[f"{kind} attributes left out"] = counts.get(f"{kind} attributes left out", 0) + 1
    return columns


def _column(kind: str, name: str, values: list[Any]) -> np.ndarray:
    missing = next((place for place, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise DataError(f"{kind} {missing}: has no attribute {name!r}; give it one or leave the attribute out")
    try:
        column = np.array(values)
    except ValueError:
        raise DataError(f"{kind} attribute {name!r}: arrays of several shapes; expected one shape") from None
    if column.dtype.kind not in "biuf":
        raise DataError(f"{kind} attribute {name!r}: holds {type(values[0]).__name__}; expected numbers")
    return column
