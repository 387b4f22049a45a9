"""Writes a relabelled graph in DGL's distributed format, one part at a time.

    <name>.json                       what ``dgl.distributed`` opens
    part<i>/graph.dgl, node_feat.dgl, edge_feat.dgl
    id_maps/                          partition ids <-> original positions and ids, npy and Parquet
    held_out.dgl                      edges, triples and splits that rows are judged by, in the order of the input
    report.json, report.html, timings.json, manifest.json

Legend: P parts, N and E the ids of one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.core.storage import json_text
from graph_emb.core.terminal import Advance
from graph_emb.graph.dgl_format import BlockColumn, Column, StoredGraph, gathered, storable, write_graph, write_tensors
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.manifest import FORMS, NAME, FileSet
from partition.relabel import RESERVED_DATA, PartArrays, PartBuilder, Ranges, Relabelled, inverse, type_name
from partition.streaming.shared_stages import FileArray

PARQUET_ROWS, FLAGS_AT_ONCE = 1 << 18, 1 << 20
ID_MAPS = "id_maps"
HELD_OUT = "held_out.dgl"
Columns = dict[str, Column]
Positions = np.ndarray | FileArray
"""Original positions by partition id, read in slices."""
TAKEN_NAMES = ("manifest", "report", "timings")
"""Graphs of these names would want a JSON that is another file of the folder."""


def check_names(graph: HeteroGraph, taken: Sequence[str] = ()) -> None:
    """Refuse names that DGL's files and servers cannot hold, columns of dtypes it lacks, and graphs without edge types.

    Args:
        taken: Names whose JSON would be another file of the folder.
    Raises:
        ConfigError: the graph's name is taken.
        DataError: a name or dtype, with the thing that has it.
    """
    name = graph.name
    if name in taken:
        raise ConfigError(f"graph name {name!r}: {name}.json is another file of a partition; give another by name=")
    if not name or "/" in name or name.startswith("."):
        raise DataError(f"graph name {name!r}: it becomes a file name; use letters, digits, '-' and '_'")
    for text in {*graph.ntypes, *(word for etype in graph.etypes for word in etype)}:
        if not text or "/" in text or ":" in text:
            raise DataError(f"type name {text!r}: DGL joins names by ':' and '/', so neither may be inside; rename it")
    if not graph.etypes:
        raise DataError(f"graph {name!r} has no edge type, and DGL cannot load such parts; add a type without edges")
    owners: list[tuple[str, dict[str, np.ndarray]]] = [
        *((f"node type {ntype!r}", columns) for ntype, columns in graph.node_data.items()),
        *((f"edge type {type_name(etype)!r}", columns) for etype, columns in graph.edge_data.items()),
    ]
    for owner, columns in owners:
        for column, values in columns.items():
            if not column or "/" in column:
                raise DataError(
                    f"{owner}: column {column!r}: DGL joins names by '/', so it may not be inside; rename it"
                )
            try:
                storable(values.dtype)
            except DataError as error:
                raise DataError(f"{owner}, column {column!r}: {error}") from None


def check_no_empty_features(relabelled: Relabelled) -> None:
    """Raise a PartitionError for a part without rows of a type with data: DGL's server would fail to map no bytes."""
    for ranges, orders, data in relabelled.kinds.values():
        for t, kind in enumerate(orders):
            empty = np.flatnonzero(ranges.sizes[:, t] == 0)
            columns = sorted(set(data.get(kind, {})) - RESERVED_DATA)
            if len(empty) and columns:
                raise PartitionError(
                    f"part {empty[0]} has no row of type {type_name(kind)!r}, which has data ({columns[0]!r}): DGL's "
                    "servers die on that; use fewer parts, another assignment, or --allow-empty for other readers"
                )


def dgl_config(
    ntypes: list[str], etypes: list[EdgeType], nodes: Ranges, edges: Ranges, name: str, method: str, num_hops: int
) -> dict[str, Any]:
    """The JSON that ``dgl.distributed`` opens."""
    names = [type_name(etype) for etype in etypes]
    config: dict[str, Any] = {
        "graph_name": name,
        "num_nodes": nodes.total,
        "num_edges": edges.total,
        "part_method": method,
        "num_parts": len(nodes.starts),
        "halo_hops": num_hops,
        "node_map": nodes.as_json(ntypes),
        "edge_map": edges.as_json(names),
        "ntypes": {ntype: t for t, ntype in enumerate(ntypes)},
        "etypes": {etype: r for r, etype in enumerate(names)},
    }
    for part in range(len(nodes.starts)):
        files = ("node_feats", "node_feat"), ("edge_feats", "edge_feat"), ("part_graph", "graph")
        config[f"part-{part}"] = {key: f"part{part}/{stem}.dgl" for key, stem in files}
    return config


Types = tuple[Column, Column] | None
Files = dict[str, Callable[[Any], object]]
"""Functions that write a file to a stream, by its name."""


def part_files(
    part: int,
    arrays: PartArrays,
    node_feat: Columns,
    edge_feat: Columns,
    types: Types = None,
    formats: Sequence[str] = ("coo",),
) -> Files:
    """``part<i>/`` of one part: the graph with the columns that DGL expects, and data by ``type/name``."""
    num_nodes, num_edges = arrays.node_ids.shape[0], arrays.edge_ids.shape[0]
    node_data: dict[str, Column] = {"_ID": arrays.node_ids, "inner_node": _leading(arrays.num_inner_nodes, num_nodes)}
    edge_data: dict[str, Column] = {"_ID": arrays.edge_ids, "inner_edge": _leading(arrays.num_inner_edges, num_edges)}
    node_data["part_id"] = arrays.node_parts
    if types is not None:
        node_data["_TYPE"], edge_data["_TYPE"] = types
    graph = StoredGraph(num_nodes, arrays.src, arrays.dst, node_data, edge_data)
    return {
        f"part{part}/graph.dgl": partial(
            write_graph, graph=graph, formats=formats, edge_types=None if types is None else arrays.edge_types
        ),
        f"part{part}/node_feat.dgl": partial(write_tensors, tensors=node_feat),
        f"part{part}/edge_feat.dgl": partial(write_tensors, tensors=edge_feat),
    }


def _leading(ones: int, length: int) -> BlockColumn:
    """Ones, then zeros, uint8."""

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, length, FLAGS_AT_ONCE):
            yield (np.arange(start, min(start + FLAGS_AT_ONCE, length)) < ones).astype(np.uint8)

    return BlockColumn((length,), np.dtype(np.uint8), chunks)


def write_parts(files: FileSet, builder: PartBuilder, tick: Advance, formats: Sequence[str] = ("coo",)) -> None:
    """``part<i>/`` of every part, with its edges in these formats.

    A thread of its own hashes and writes one part while the next is made, so at most two parts are in memory.
    """
    made = builder.relabelled

    def inner_data(kind: str, part: int) -> Columns:
        ranges, orders, data = made.kinds[kind]
        return {
            f"{type_name(key)}/{name}": gathered(values, order[ranges.typed_rows(part, t)])
            for t, (key, order) in enumerate(orders.items())
            for name, values in data.get(key, {}).items()
            if name not in RESERVED_DATA
        }

    def write(part: int, arrays: PartArrays) -> None:
        several = len(made.node_order) > 1 or len(made.edge_order) > 1
        types = (arrays.node_types, arrays.edge_types) if several else None
        node_feat, edge_feat = (inner_data(kind, part) for kind in ("node", "edge"))
        for name, content in part_files(part, arrays, node_feat, edge_feat, types, formats).items():
            files.write(name, content)
        tick(arrays.num_inner_edges)

    with _in_background() as submit:
        for part in range(made.num_parts):
            submit(write, part, builder.build(part))


def write_id_maps(files: FileSet, made: Relabelled, tick: Advance) -> None:
    """Both directions of every type's id map, as npy and, with the original ids, as Parquet."""

    def write(kind: str, name: str, order: np.ndarray, sizes: np.ndarray, original_ids: np.ndarray | None) -> None:
        small = order.astype(np.int32) if len(order) <= np.iinfo(np.int32).max else order
        contents = id_map_files(small, inverse(small), sizes, original_ids)
        files.manifest.id_maps.setdefault(kind, {})[name] = paths = id_map_paths(kind, name)
        for form in FORMS:
            files.write(paths[form], contents.pop(form))  # lets go of the way back before the Parquet file
        tick(len(order))

    with _in_background() as submit:
        for kind, (ranges, orders, _) in made.kinds.items():
            for t, (key, order) in enumerate(orders.items()):
                original_ids = made.graph.node_ids.get(key) if kind == "node" else None
                submit(write, kind, type_name(key), order, ranges.sizes[:, t], original_ids)


def write_relation_names(files: FileSet, names: np.ndarray | None) -> None:
    """The names of a knowledge graph's relations by number, as Parquet; nothing where the graph has none."""
    if names is None:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"relation": np.arange(len(names)), "name": pa.array(names.tolist(), pa.string())})
    files.manifest.relation_names = f"{ID_MAPS}/relations.parquet"
    files.write(files.manifest.relation_names, lambda stream: pq.write_table(table, stream))


def write_held_out(files: FileSet, graph: HeteroGraph) -> None:
    """What the graph holds out, as tensors by name; nothing where it holds out nothing."""
    tensors = {} if graph.held_out is None else graph.held_out.to_arrays(graph.edges)
    if tensors:
        files.manifest.held_out = HELD_OUT
        files.write(HELD_OUT, partial(write_tensors, tensors=tensors))


def id_map_paths(kind: str, name: str) -> dict[str, str]:
    """Files of the id map of a type by form; ``kind`` is node or edge."""
    stem = f"{ID_MAPS}/{kind}.{quote(name, safe=':')}"
    return {form: f"{stem}.{form}.npy" for form in FORMS[:2]} | {FORMS[2]: f"{stem}.parquet"}


def id_map_files(order: Positions, back: Column, sizes: np.ndarray, original_ids: np.ndarray | None = None) -> Files:
    """What writes each form of an id map, from the original position of each partition id and the way back."""
    return {
        "to_original": npy_writer(order),
        "to_partition": npy_writer(back),
        "parquet": partial(write_id_parquet, order=order, sizes=sizes, original_ids=original_ids),
    }


def finish(files: FileSet, config: dict[str, Any]) -> None:
    """Write the manifest, then the JSON that makes the folder a partition."""
    text = json_text(config)
    files.expect_text(files.manifest.config, text)
    files.write_unlisted(NAME, files.manifest.to_json())
    files.write_text(files.manifest.config, text)


def estimated_bytes(graph: HeteroGraph) -> int:
    """Least size of a partition's files: without halo and Parquet."""
    edges = graph.total_edges * (8 + 8 + 8 + 1 + 16)
    nodes = graph.total_nodes * (8 + 1 + 8 + 16)
    columns = [*graph.node_data.values(), *graph.edge_data.values()]
    held = {} if graph.held_out is None else graph.held_out.to_arrays(graph.edges)
    numbers = sum(values.nbytes for data in (*columns, held) for values in data.values())
    return edges + nodes + numbers


def npy_writer(values: Column) -> Callable[[Any], None]:
    """A function that writes an array as npy to a stream without seeking."""

    def write(stream: Any) -> None:
        like = np.broadcast_to(np.empty((), values.dtype), values.shape)
        header = np.lib.format.header_data_from_array_1_0(like)
        np.lib.format.write_array_header_1_0(stream, {**header, "fortran_order": False})
        for chunk in [values] if isinstance(values, np.ndarray) else values.chunks():
            if chunk.size:
                stream.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)

    return write


def write_id_parquet(stream: Any, order: Positions, sizes: np.ndarray, original_ids: np.ndarray | None) -> None:
    """Columns partition_id, part, position (in the input) and original_id; a row for each partition id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ends = np.cumsum(sizes)
    original = pa.string() if original_ids is not None and original_ids.dtype.kind in "USO" else pa.int64()
    schema = pa.schema(
        [("partition_id", pa.int64()), ("part", pa.int32()), ("position", pa.int64()), ("original_id", original)]
    )
    # ascending numbers take next to nothing as differences, and permutations take no dictionary
    encodings = {"partition_id": "DELTA_BINARY_PACKED", "position": "PLAIN"}
    with pq.ParquetWriter(
        stream, schema, compression="zstd", use_dictionary=["part"], column_encoding=encodings
    ) as writer:
        for start in range(0, len(order), PARQUET_ROWS):
            rows = np.arange(start, min(start + PARQUET_ROWS, len(order)))
            positions = order[start : start + PARQUET_ROWS]
            values = positions if original_ids is None else original_ids[positions]
            columns = [rows, np.searchsorted(ends, rows, side="right"), positions, values]
            arrays = [_arrow_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _arrow_array(values: np.ndarray, kind: Any) -> Any:
    """Strings, or integers by their memory: ``pyarrow.array`` of numpy's arrays imports pandas."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.array(values.tolist(), kind)
    numbers = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


@contextmanager
def _in_background() -> Iterator[Callable[..., None]]:
    """``submit(function, *args)`` to one thread, at most one call ahead; its errors are raised here."""
    with ThreadPoolExecutor(1) as pool:
        pending: Future[None] | None = None

        def submit(function: Callable[..., None], *args: Any) -> None:
            nonlocal pending
            if pending is not None:
                pending.result()
            pending = pool.submit(function, *args)

        yield submit
        if pending is not None:
            pending.result()
