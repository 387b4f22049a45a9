"""networkx graphs with the attributes of their nodes and edges, in memory or as gpickle or GraphML files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers.networkx_graph import unpickled
from graph_emb.graph.csr_readers.source import checked_file, open_bytes, parsing, split_suffix
from graph_emb.graph.readers.source import Contents, as_path, has_suffix, is_object_of, register
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph

_is_networkx = is_object_of("networkx")
_suffixes = [f".{kind}{gz}" for kind in ("gpickle", "pkl", "pickle", "graphml") for gz in ("", ".gz")]
_is_file = has_suffix(*_suffixes)


@register("networkx", lambda source: _is_networkx(source) or _is_file(source))
def read_networkx(
    source: Any,
    *,
    node_attributes: Sequence[str] | None = None,
    edge_attributes: Sequence[str] | None = None,
) -> Contents:
    """A graph of any of networkx's four classes; an edge of an undirected one means both directions.

    Nodes are numbered in the order of their ids: integers, or else strings (of a tuple: as Python writes it).

    Args:
        node_attributes, edge_attributes: Which become data; each node or edge must have them, as numbers or arrays of
            one shape. None takes all that qualify and counts the others.
    """
    path, name = as_path(source), "graph"
    if path is not None:
        source = _load(checked_file(path))
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    counts: dict[str, int] = {}
    nodes = list(source)
    ids = _ids(nodes)
    order = np.argsort(ids, kind="stable")
    place = {nodes[old]: new for new, old in enumerate(order.tolist())}
    arcs = list(source.edges(data=True))
    src, dst = (np.fromiter((place[arc[end]] for arc in arcs), dtype=np.int64, count=len(arcs)) for end in (0, 1))
    node_columns = _columns("node", [source.nodes[nodes[old]] for old in order.tolist()], node_attributes, counts)
    edge_columns = _columns("edge", [arc[2] for arc in arcs], edge_attributes, counts)
    ids = ids[order]
    is_dense = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids)))
    graph = HeteroGraph(
        {NODE_TYPE: len(nodes)},
        {EDGE_TYPE: (src, dst)},
        node_data={NODE_TYPE: node_columns} if node_columns else {},
        edge_data={EDGE_TYPE: edge_columns} if edge_columns else {},
        node_ids={} if is_dense else {NODE_TYPE: ids},
        counts=counts,
        name=name,
    )
    return Contents(graph, both_ways=not source.is_directed())


def _load(file: Path) -> Any:
    import networkx

    suffix, gzipped = split_suffix(file)
    if suffix != "graphml":
        return unpickled(file)
    with parsing(file, "GraphML"), open_bytes(file, gzipped) as stream:
        return networkx.read_graphml(stream)


def _ids(nodes: list[Any]) -> np.ndarray:
    """Ids (N,) as int64 where all are integers, else as strings."""
    if all(isinstance(node, int | np.integer) and not isinstance(node, bool) for node in nodes):
        return np.array(nodes, dtype=np.int64)
    ids = np.array([str(node) for node in nodes], dtype=str)
    ordered = np.sort(ids)
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if repeated.size:
        raise DataError(f"two nodes are written {ordered[repeated[0]].item()!r}; expected ids that differ as strings")
    return ids


def _columns(
    kind: str, rows: Sequence[dict[str, Any]], asked: Sequence[str] | None, counts: dict[str, int]
) -> dict[str, np.ndarray]:
    """The attributes of all nodes or edges as arrays."""
    found = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, np.ndarray] = {}
    for name in found if asked is None else asked:
        try:
            columns[str(name)] = _column(kind, str(name), [row.get(name) for row in rows])
        except DataError:
            if asked is not None:
                raise
            counts[f"{kind} attributes left out"] = counts.get(f"{kind} attributes left out", 0) + 1
    return columns


def _column(kind: str, name: str, values: Iterable[Any]) -> np.ndarray:
    values = list(values)
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
