"""Graphs in memory of this library, DGL and networkx, with all their data, and the files of DGL and networkx.

The chunked format is ``metadata.json`` and the csv, numpy and Parquet files that it names. DGL's own Parquet reader
runs ``eval`` on the files' metadata; here a shape is digits and commas or an error. networkx graphs are also read from
GraphML, JSON node-link data and trusted pickles.
"""

# N nodes and E edges of a type, D columns

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.dgl_format import read_graphs
from graph_emb.graph.ids import first_repeated
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.files_of_types import first_fault
from graph_emb.graph.readers.matrices import is_symmetric
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    ReadOptions,
    check_ids,
    checked_file,
    is_networkx,
    is_object_of,
    open_bytes,
    parsing,
    register,
    split_suffix,
)
from graph_emb.graph.readers.tables import fault_of_id, is_integer
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph, checked_edge_type

_ORIGINAL_IDS = "_ID"  # dgl.NID and dgl.EID: where a subgraph's nodes and edges came from
METADATA = "metadata.json"
_SHAPE = re.compile(r"\s*[\[(]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[\])]\s*\Z")
Count = Annotated[int, Field(ge=0)]
_PICKLES = ("gpickle", "pkl", "pickle")
_FILES = tuple(f".{kind}{gz}" for kind in (*_PICKLES, "graphml", "json") for gz in ("", ".gz"))
_OPTIONS = ("node_attributes", "edge_attributes", "ids", "trust_pickle")


@register("memory", objects=lambda source: isinstance(source, HeteroGraph | Graph))
def read_memory(source: Any, options: ReadOptions) -> Contents:
    """The same edges; of a ``Graph`` its arcs in the order of their sources."""
    if isinstance(source, HeteroGraph):
        return Contents(source)
    edges = {EDGE_TYPE: (source.sources().astype(np.int64), source.indices.astype(np.int64))}
    edge_data = {EDGE_TYPE: {} if source.weights is None else {WEIGHT: source.weights.copy()}}
    ids = {} if source.node_ids is None else {NODE_TYPE: source.node_ids}
    num_nodes = {NODE_TYPE: source.num_nodes}
    return Contents(HeteroGraph(num_nodes, edges, {}, edge_data, ids, symmetric=not source.directed))


@register("dgl", "index", objects=lambda source: is_object_of(source, "dgl"), paths=(".dgl", ".bin"))
def read_dgl(source: Any, options: ReadOptions) -> Contents:
    """A DGLGraph with its types and data; ``ndata['_ID']`` of a subgraph becomes the original ids.

    A file is read by our own parser: DGL's ends the process on a damaged length.
    """
    if isinstance(source, Path):
        with parsing(source, "a DGL graph file"):
            return Contents(_of_file(source, options.index))
    if options.index is not None:
        raise ConfigError(f"index={options.index} chooses a graph of a file and means nothing to a graph in memory")
    if not hasattr(source, "canonical_etypes"):
        raise ConfigError(f"a {type(source).__name__} of DGL is no DGLGraph; pass its graph")
    ends = {etype: source.edges(etype=etype, order="eid") for etype in source.canonical_etypes}
    edges = {etype: (src.cpu().numpy(), dst.cpu().numpy()) for etype, (src, dst) in ends.items()}
    edge_data = {etype: _columns(source.edges[etype].data) for etype in ends}
    node_data = {ntype: _columns(source.nodes[ntype].data) for ntype in source.ntypes}
    num_nodes = {ntype: source.num_nodes(ntype) for ntype in source.ntypes}
    return Contents(_typed(num_nodes, edges, node_data, edge_data, "graph"))


def _of_file(file: Path, index: int | None) -> HeteroGraph:
    graphs = read_graphs(file)
    if index is None and len(graphs) != 1:
        raise DataError(f"{file}: holds {len(graphs)} graphs, expected 1; choose one with index=")
    if index is not None and not 0 <= index < len(graphs):
        raise ConfigError(f"index={index} is outside [0, {len(graphs)}), the graphs of {file}")
    stored = graphs[index or 0]
    # in memory of their own, as the mapped file may change
    node_data = {ntype: {name: v.copy() for name, v in own.items()} for ntype, own in stored.node_data.items()}
    edge_data = {etype: {name: v.copy() for name, v in own.items()} for etype, own in stored.edge_data.items()}
    edges = {etype: (src.copy(), dst.copy()) for etype, (src, dst) in stored.edges.items()}
    return _typed(stored.num_nodes, edges, node_data, edge_data, file.name.rpartition(".")[0] or file.name)


def _typed(
    num_nodes: Mapping[str, int],
    edges: Mapping[EdgeType, tuple[NDArray, NDArray]],
    node_data: Mapping[str, dict[str, NDArray]],
    edge_data: Mapping[EdgeType, dict[str, NDArray]],
    name: str,
) -> HeteroGraph:
    ids = {ntype: columns.pop(_ORIGINAL_IDS) for ntype, columns in node_data.items() if _ORIGINAL_IDS in columns}
    ends = {
        etype: (src.astype(np.int64, copy=False), dst.astype(np.int64, copy=False))
        for etype, (src, dst) in edges.items()
    }
    symmetric = False
    if len(num_nodes) == len(edges) == 1:
        (etype,), (num,) = edges, num_nodes.values()
        columns = edge_data[etype]
        if WEIGHT not in columns and "w" in columns:
            columns[WEIGHT] = columns.pop("w")
        if WEIGHT in columns and columns[WEIGHT].shape[1:] == (1,):
            columns[WEIGHT] = columns[WEIGHT][:, 0]
        weights = columns.get(WEIGHT)
        symmetric = (weights is None or weights.ndim == 1) and is_symmetric(*ends[etype], weights, num)
    node_ids = {ntype: values.astype(np.int64, copy=False) for ntype, values in ids.items()}
    data = dict(node_data), dict(edge_data)
    return HeteroGraph(dict(num_nodes), ends, *data, node_ids, name=name, symmetric=symmetric)


def _columns(frame: Any) -> dict[str, NDArray]:
    return {name: frame[name].detach().cpu().numpy() for name in frame}


class _Format(BaseModel, extra="forbid", defer_build=True):
    name: Literal["csv", "numpy", "parquet"]
    delimiter: str = Field(default=" ", min_length=1, max_length=1)


class _Data(BaseModel, extra="ignore", defer_build=True):
    format: _Format
    data: list[str]


class _Metadata(BaseModel, extra="ignore", defer_build=True):
    """The fields that DGL's pipeline reads; GSProcessing adds others."""

    graph_name: str = "graph"
    node_type: list[str]
    edge_type: list[str]
    num_nodes_per_type: list[Count] | None = None
    num_nodes_per_chunk: list[list[Count]] | None = None
    num_edges_per_type: list[Count] | None = None
    num_edges_per_chunk: list[list[Count]] | None = None
    edges: dict[str, _Data]
    node_data: dict[str, dict[str, _Data]] = {}
    edge_data: dict[str, dict[str, _Data]] = {}


@register("chunked", paths=lambda path: path.name == METADATA or (path / METADATA).is_file())
def read_chunked(path: Path, options: ReadOptions) -> Contents:
    """Every node and edge type with its data; paths are relative to the metadata file."""
    file = checked_file(path / METADATA if path.is_dir() else path)
    try:
        meta = _Metadata.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise DataError(f"{file}: {first_fault(error)}") from None
    except ValueError as error:
        raise DataError(f"{file}: is no JSON text: {error}; is the file whole?") from None
    for kind, listed, given in (("edges", meta.edge_type, meta.edges), ("node_data", meta.node_type, meta.node_data)):
        for key in given:
            if key not in listed:
                raise DataError(f"{file}: {kind}.{key}: no such type; known: {', '.join(listed)}")
    num_nodes = dict(zip(meta.node_type, _counts(file, meta, "nodes", meta.node_type), strict=True))
    etypes = [checked_edge_type(name) for name in meta.edge_type]
    num_edges = _counts(file, meta, "edges", meta.edge_type, optional=True)
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    for position, (key, etype) in enumerate(zip(meta.edge_type, etypes, strict=True)):
        if key not in meta.edges:
            raise DataError(f"{file}: edges.{key}: is missing, but edge_type lists it")
        edges[etype] = _read_edges(file, etype, meta.edges[key], num_nodes)
        found, told = len(edges[etype][0]), num_edges[position] if num_edges else None
        if told not in (None, found):
            raise DataError(f"{file}: {key} has {found} edges in its files, but {told} by the metadata")
    node_data = {ntype: _read_all(file, ntype, columns) for ntype, columns in meta.node_data.items()}
    edge_data = {checked_edge_type(key): _read_all(file, key, columns) for key, columns in meta.edge_data.items()}
    with parsing(file, "a chunked graph"):
        ids = _original_ids(file, num_nodes)
        return Contents(HeteroGraph(num_nodes, edges, node_data, edge_data, ids, name=meta.graph_name))


def _original_ids(file: Path, num_nodes: dict[str, int]) -> dict[str, np.ndarray]:
    """An addition of our own writer to the format: ``node_ids/TYPE.parquet``, ``position`` and ``original_id``."""
    found = {}
    for ntype, num in num_nodes.items():
        path = file.parent / "node_ids" / f"{ntype}.parquet"
        if not path.is_file():
            continue
        read = tables.read_columns(path, ["position", "original_id"])
        position = tables.numbers_of(path, "position", read["position"])
        ids = tables.ids_of(path, "original_id", read["original_id"])
        if not np.array_equal(np.sort(position), np.arange(num)):
            raise DataError(f"{path}: positions are not each of 0 .. {num - 1} once; does it belong to this graph?")
        names = ids if isinstance(ids, np.ndarray) else ids.to_numpy(zero_copy_only=False).astype(str)
        found[ntype] = names[np.argsort(position)]
    return found


def _counts(file: Path, meta: _Metadata, kind: str, types: list[str], optional: bool = False) -> list[int]:
    """Nodes or edges of each type; DGL's code reads ``per_type``, its documents say ``per_chunk``."""
    per_type, per_chunk = getattr(meta, f"num_{kind}_per_type"), getattr(meta, f"num_{kind}_per_chunk")
    totals = per_type if per_type is not None else per_chunk and [sum(chunks) for chunks in per_chunk]
    if not totals:
        if optional or not types:
            return []
        raise DataError(f"{file}: num_{kind}_per_type: is missing; give it or num_{kind}_per_chunk")
    if len(totals) != len(types):
        raise DataError(f"{file}: num_{kind}_per_type has {len(totals)} entries for {len(types)} types")
    if per_type is not None and per_chunk is not None and per_type != [sum(chunks) for chunks in per_chunk]:
        raise DataError(f"{file}: num_{kind}_per_type {per_type} is not the sum of num_{kind}_per_chunk")
    return list(totals)


def _read_edges(file: Path, etype: EdgeType, data: _Data, num_nodes: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name in data.data:
        chunk = file.parent / name
        table = _read_file(chunk, data.format)
        if table.ndim != 2 or table.shape[1] != 2 or table.dtype.kind not in "iu":
            raise DataError(f"{chunk}: shape {table.shape}, {table.dtype}; expected two columns of integers")
        for place, (word, ntype) in enumerate((("source", etype[0]), ("destination", etype[2]))):
            if ntype not in num_nodes:
                raise DataError(f"{file}: edge type {':'.join(etype)}: {ntype!r} is not in node_type")
            column = np.ascontiguousarray(table[:, place], dtype=np.int64)
            check_ids(chunk, word, column, num_nodes[ntype])
            ends[place].append(column)
    return np.concatenate(ends[0]), np.concatenate(ends[1])


def _read_all(file: Path, owner: str, columns: dict[str, _Data]) -> dict[str, np.ndarray]:
    read = {}
    for name, data in columns.items():
        if not data.data:
            raise DataError(f"{file}: data {name!r} of {owner}: names no file")
        chunks = [_read_file(file.parent / chunk, data.format) for chunk in data.data]
        shape = next((rows.shape[1:] for rows in chunks if len(rows)), None)
        for chunk, rows in zip(data.data, chunks, strict=True):
            if len(rows) and rows.shape[1:] != shape:
                raise DataError(f"{file.parent / chunk}: rows of shape {rows.shape[1:]}; expected {shape}")
        read[name] = tables.joined(chunks)
    return read


def _read_file(file: Path, format: _Format) -> np.ndarray:
    """The rows of one file as an array; one column is (R,), unless the metadata of a Parquet file says (R, 1)."""
    from pyarrow import parquet

    if format.name == "numpy":
        return tables.read_npy(file)
    is_csv = format.name == "csv"
    read = tables.read_columns(file, separator=format.delimiter if is_csv else None, header=not is_csv)
    columns = [tables.numbers_of(file, name, column) for name, column in read.items()]
    table = columns[0] if len(columns) == 1 and columns[0].ndim == 2 else np.stack(columns, axis=1)
    stored = {} if is_csv else parquet.read_metadata(file).metadata or {}
    if b"shape" not in stored:
        return table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else table
    text = stored[b"shape"].decode("utf-8", "replace")
    found = _SHAPE.match(text)
    if found is None:
        raise DataError(f"{file}: shape {text[:60]!r} in the metadata is no list of integers")
    shape = tuple(int(number) for number in found.group(1).split(","))
    if int(np.prod(shape)) != table.size:
        raise DataError(f"{file}: shape {shape} in the metadata, but the file holds {table.size} values")
    return table.reshape(shape)


@register("networkx", *_OPTIONS, objects=is_networkx, paths=_FILES)
def read_networkx(source: Any, options: ReadOptions) -> Contents:
    """A graph of any of networkx's four classes; an edge of an undirected one means both directions.

    Nodes are numbered in the order of their ids: integers (of GraphML, texts that are all integers), or else strings
    (of a tuple: as Python writes it). An edge without ``weight`` weighs 1 where others have one.
    """
    if not isinstance(source, Path):
        return _networkx_contents(source, options, "graph", texts=False)
    suffix, _ = split_suffix(source)
    what = {"graphml": "GraphML", "json": "JSON node-link data"}.get(suffix, "a pickled networkx graph")
    with parsing(source, what):
        if suffix in _PICKLES and not options.trust_pickle:
            raise DataError(
                "a pickle can run any code; save the graph as GraphML, JSON node-link or an edge list, or say "
                "trust_pickle=True for a file of your own"
            )
        with open_bytes(source) as stream:
            graph = _load_networkx(stream, suffix)
        name = source.name.removesuffix(".gz").rpartition(".")[0] or source.name
        return _networkx_contents(graph, options, name, texts=suffix == "graphml")


def _load_networkx(stream: Any, suffix: str) -> Any:
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


def _networkx_contents(source: Any, options: ReadOptions, name: str, *, texts: bool) -> Contents:
    counts: dict[str, int] = {}
    nodes = list(source)
    ids = _networkx_ids(nodes, options.ids, texts)
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
    node_data = {NODE_TYPE: _attributes("node", node_rows, options.node_attributes, counts)}
    edge_data = {EDGE_TYPE: _attributes("edge", edge_rows, options.edge_attributes, counts)}
    node_ids = {} if is_dense else {NODE_TYPE: ids}
    edges = {EDGE_TYPE: (src, dst)}
    graph = HeteroGraph({NODE_TYPE: len(nodes)}, edges, node_data, edge_data, node_ids, counts, name)
    return Contents(graph, both_ways=not source.is_directed())


def _networkx_ids(nodes: list[Any], kind: str, texts: bool) -> NDArray:
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


def _attributes(
    kind: str, rows: Sequence[dict[str, Any]], asked: Sequence[str] | None, counts: dict[str, int]
) -> dict[str, np.ndarray]:
    """The attributes of all nodes or edges as arrays."""
    found = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, np.ndarray] = {}
    for name in found if asked is None else asked:
        try:
            rest = 1.0 if kind == "edge" and name == WEIGHT and WEIGHT in found else None
            columns[str(name)] = _attribute(kind, str(name), [row.get(name, rest) for row in rows])
        except DataError:
            if asked is not None or (kind == "edge" and name == WEIGHT):
                raise
            counts[f"{kind} attributes left out"] = counts.get(f"{kind} attributes left out", 0) + 1
    return columns


def _attribute(kind: str, name: str, values: list[Any]) -> np.ndarray:
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
