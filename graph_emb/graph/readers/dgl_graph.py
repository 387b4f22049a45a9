"""DGL's graphs with all their types and data: in memory, files of ``dgl.save_graphs``, and the chunked format.

The chunked format is ``metadata.json`` and the csv, numpy and Parquet files that it names. DGL's own Parquet reader
runs ``eval`` on the files' metadata; here a shape is digits and commas or an error.
"""

# N nodes and E edges of a type, D columns

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.dgl_format import read_graphs
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.files_of_types import first_fault
from graph_emb.graph.readers.matrices import is_symmetric
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    ReadOptions,
    check_ids,
    checked_file,
    is_object_of,
    parsing,
    register,
)
from graph_emb.graph.typed import EdgeType, HeteroGraph, checked_edge_type

_ORIGINAL_IDS = "_ID"  # dgl.NID and dgl.EID: where a subgraph's nodes and edges came from


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
    return HeteroGraph(
        dict(num_nodes),
        ends,
        node_data=dict(node_data),
        edge_data=dict(edge_data),
        node_ids={ntype: values.astype(np.int64, copy=False) for ntype, values in ids.items()},
        name=name,
        symmetric=symmetric,
    )


def _columns(frame: Any) -> dict[str, NDArray]:
    return {name: frame[name].detach().cpu().numpy() for name in frame}


METADATA = "metadata.json"
_SHAPE = re.compile(r"\s*[\[(]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[\])]\s*\Z")
Count = Annotated[int, Field(ge=0)]


class _Format(BaseModel, extra="forbid"):
    name: Literal["csv", "numpy", "parquet"]
    delimiter: str = Field(default=" ", min_length=1, max_length=1)


class _Data(BaseModel, extra="ignore"):
    format: _Format
    data: list[str]


class _Metadata(BaseModel, extra="ignore"):
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
        if data.format.name != "numpy":  # which alone can tell (R,) from (R, 1)
            chunks = [rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows for rows in chunks]
        shape = next((rows.shape[1:] for rows in chunks if len(rows)), None)
        for chunk, rows in zip(data.data, chunks, strict=True):
            if len(rows) and rows.shape[1:] != shape:
                raise DataError(f"{file.parent / chunk}: rows of shape {rows.shape[1:]}; expected {shape}")
        read[name] = tables.joined(chunks)
    return read


def _read_file(file: Path, format: _Format) -> np.ndarray:
    """The rows of one file as an array."""
    from pyarrow import parquet

    if format.name == "numpy":
        return tables.read_npy(file)
    is_csv = format.name == "csv"
    read = tables.read_columns(file, separator=format.delimiter if is_csv else None, header=not is_csv)
    columns = [tables.numbers_of(file, name, column) for name, column in read.items()]
    table = columns[0] if len(columns) == 1 and columns[0].ndim == 2 else np.stack(columns, axis=1)
    stored = {} if is_csv else parquet.read_metadata(file).metadata or {}
    if b"shape" not in stored:
        return table
    text = stored[b"shape"].decode("utf-8", "replace")
    found = _SHAPE.match(text)
    if found is None:
        raise DataError(f"{file}: shape {text[:60]!r} in the metadata is no list of integers")
    shape = tuple(int(number) for number in found.group(1).split(","))
    if int(np.prod(shape)) != table.size:
        raise DataError(f"{file}: shape {shape} in the metadata, but the file holds {table.size} values")
    return table.reshape(shape)
