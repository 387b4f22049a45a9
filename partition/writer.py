"""Writes a relabelled graph in DGL's distributed format, one part at a time.

    <name>.json                       what ``dgl.distributed`` opens
    part<i>/graph.dgl, node_feat.dgl, edge_feat.dgl
    id_maps/                          partition ids <-> original positions and ids, npy and Parquet
    report.json, report.html, timings.json, manifest.json

Legend: P parts, N and E the ids of one type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.dgl_format import (
    BlockColumn,
    Column,
    StoredGraph,
    gathered,
    storable,
    write_graph,
    write_tensors,
)
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.halo import PartArrays, PartBuilder
from partition.manifest import FileSet
from partition.relabel import Ranges, Relabelled, inverse

RESERVED_DATA = {"_ID", "inner_node", "inner_edge"}
"""Columns that DGL itself leaves out of a partition, as their meaning is its own."""
PARQUET_ROWS = FLAGS_AT_ONCE = 1 << 20
ID_MAPS = "id_maps"
TAKEN_NAMES = ("manifest", "report", "timings")
"""Graphs of these names would want a JSON that is another file of the folder."""


def type_name(kind: str | EdgeType) -> str:
    """A node type as it is, an edge type as ``source:relation:destination``."""
    return kind if isinstance(kind, str) else ":".join(kind)


def check_names(graph: HeteroGraph, name: str) -> None:
    """Refuse names that DGL's files and servers cannot hold, columns of dtypes it lacks, and graphs without edge types.

    Raises:
        DataError: a name or dtype, with the thing that has it.
    """
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


def check_config_name(name: str) -> None:
    """Refuse a graph name whose JSON would be another file of the partition.

    Raises:
        ConfigError: the name.
    """
    if name in TAKEN_NAMES:
        raise ConfigError(f"graph name {name!r}: {name}.json is another file of a partition; give another by name=")


def check_no_empty_features(relabelled: Relabelled) -> None:
    """Refuse a part without rows of a type that has data: DGL's server of that part would fail to map no bytes.

    Raises:
        PartitionError: the part and the type.
    """
    graph = relabelled.graph
    kinds: list[tuple[Ranges, int, str, dict[str, np.ndarray]]] = [
        *((relabelled.nodes, t, n, graph.node_data.get(n, {})) for t, n in enumerate(graph.ntypes)),
        *((relabelled.edges, r, type_name(e), graph.edge_data.get(e, {})) for r, e in enumerate(graph.etypes)),
    ]
    for ranges, t, name, data in kinds:
        empty = np.flatnonzero(ranges.sizes[:, t] == 0)
        columns = sorted(set(data) - RESERVED_DATA)
        if len(empty) and columns:
            raise PartitionError(
                f"part {empty[0]} has no row of type {name!r}, which has data ({columns[0]!r}): DGL's servers die on "
                "that; use fewer parts, another assignment, or --allow-empty for other readers"
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
        config[f"part-{part}"] = {
            "node_feats": f"part{part}/node_feat.dgl",
            "edge_feats": f"part{part}/edge_feat.dgl",
            "part_graph": f"part{part}/graph.dgl",
        }
    return config


def part_columns(
    node_ids: Column, node_parts: Column, num_inner_nodes: int, edge_ids: Column, num_inner_edges: int
) -> tuple[dict[str, Column], dict[str, Column]]:
    """(node data, edge data) that DGL expects in the graph of a part; inner ids come first."""
    nodes = {"_ID": node_ids, "inner_node": _leading(num_inner_nodes, node_ids.shape[0]), "part_id": node_parts}
    return nodes, {"_ID": edge_ids, "inner_edge": _leading(num_inner_edges, edge_ids.shape[0])}


def _leading(ones: int, length: int) -> BlockColumn:
    """Ones, then zeros, uint8."""

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, length, FLAGS_AT_ONCE):
            yield (np.arange(start, min(start + FLAGS_AT_ONCE, length)) < ones).astype(np.uint8)

    return BlockColumn((length,), np.dtype(np.uint8), chunks)


class Writer:
    """Writes the files of a partition into a folder under construction.

    A thread of its own hashes and writes one part while the next is made, so at most two parts are in memory.

    Args:
        files: Where they go.
        relabelled: The graph and its new ids.
        tick: Called with the rows that were written: the edges of a part, the ids of a map.
    """

    def __init__(self, files: FileSet, relabelled: Relabelled, tick: Callable[[int], object]) -> None:
        self.files = files
        self.relabelled = relabelled
        self.tick = tick

    def write_parts(self, builder: PartBuilder) -> None:
        """``part<i>/`` of every part."""
        with _in_background() as submit:
            for part in range(self.relabelled.num_parts):
                submit(self._write_part, part, builder.build(part))

    def _write_part(self, part: int, arrays: PartArrays) -> None:
        graph = self.relabelled.graph
        node_data, edge_data = part_columns(
            arrays.node_ids, arrays.node_parts, arrays.num_inner_nodes, arrays.edge_ids, arrays.num_inner_edges
        )
        if len(graph.ntypes) > 1 or len(graph.etypes) > 1:
            node_data["_TYPE"], edge_data["_TYPE"] = arrays.node_types, arrays.edge_types
        stored = StoredGraph(len(arrays.node_ids), arrays.src, arrays.dst, node_data, edge_data)
        self.files.write(f"part{part}/graph.dgl", lambda stream: write_graph(stream, stored))
        for name, columns in (("node_feat", self.node_columns(part)), ("edge_feat", self.edge_columns(part))):
            self.files.write(f"part{part}/{name}.dgl", lambda stream, c=columns: write_tensors(stream, c))
        self.tick(arrays.num_inner_edges)

    def node_columns(self, part: int) -> dict[str, BlockColumn]:
        """Data of the part's inner nodes by ``type/name``, in the order of their ids."""
        made = self.relabelled
        starts = made.nodes.typed_starts
        return {
            f"{ntype}/{name}": gathered(values, order[starts[part, t] : starts[part + 1, t]])
            for t, (ntype, order) in enumerate(made.node_order.items())
            for name, values in made.graph.node_data.get(ntype, {}).items()
            if name not in RESERVED_DATA
        }

    def edge_columns(self, part: int) -> dict[str, BlockColumn]:
        """Data of the part's inner edges by ``source:relation:destination/name``, in the order of their ids."""
        made = self.relabelled
        starts = made.edges.typed_starts
        return {
            f"{type_name(etype)}/{name}": gathered(values, order[starts[part, r] : starts[part + 1, r]])
            for r, (etype, order) in enumerate(made.edge_order.items())
            for name, values in made.graph.edge_data.get(etype, {}).items()
            if name not in RESERVED_DATA
        }

    def write_id_maps(self) -> None:
        """Both directions of every type's id map, as npy and, with the original ids, as Parquet."""
        made = self.relabelled
        node_sizes, edge_sizes = made.nodes.sizes, made.edges.sizes
        with _in_background() as submit:
            for t, (ntype, order) in enumerate(made.node_order.items()):
                submit(self._write_id_map, "node", ntype, order, node_sizes[:, t], made.graph.node_ids.get(ntype))
            for r, (etype, order) in enumerate(made.edge_order.items()):
                submit(self._write_id_map, "edge", type_name(etype), order, edge_sizes[:, r], None)

    def write_relation_names(self) -> None:
        """The names of a knowledge graph's relations by number, as Parquet; nothing where the graph has none."""
        names = self.relabelled.graph.relation_names
        if names is not None:
            self.files.manifest.relation_names = f"{ID_MAPS}/relations.parquet"
            self.files.write(self.files.manifest.relation_names, lambda stream: _write_names(stream, names))

    def _write_id_map(
        self, kind: str, name: str, order: np.ndarray, sizes: np.ndarray, original_ids: np.ndarray | None
    ) -> None:
        paths = id_map_paths(kind, name)
        self.files.manifest.id_maps.setdefault(kind, {})[name] = paths
        small = order.astype(np.int32) if len(order) <= np.iinfo(np.int32).max else order
        self.files.write(paths["to_original"], npy_writer(small))
        self.files.write(paths["to_partition"], npy_writer(inverse(small)))
        self.files.write(paths["parquet"], lambda stream: write_id_parquet(stream, order, sizes, original_ids))
        self.tick(len(order))


def id_map_paths(kind: str, name: str) -> dict[str, str]:
    """Files of the id map of a type by form; ``kind`` is node or edge."""
    stem = f"{ID_MAPS}/{kind}.{quote(name, safe=':')}"
    return {
        "to_original": f"{stem}.to_original.npy",
        "to_partition": f"{stem}.to_partition.npy",
        "parquet": f"{stem}.parquet",
    }


class Positions(Protocol):
    """Original positions by partition id, read in slices."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def finish(files: FileSet, config: dict[str, Any]) -> None:
    """Write the manifest, then the JSON that makes the folder a partition."""
    text = json.dumps(config, indent=2) + "\n"
    files.expect_text(files.manifest.config, text)
    files.write_manifest()
    files.write_text(files.manifest.config, text)


def estimated_bytes(graph: HeteroGraph) -> int:
    """Least size of a partition's files: without halo and Parquet."""
    edges = graph.total_edges * (8 + 8 + 8 + 1 + 16)
    nodes = graph.total_nodes * (8 + 1 + 8 + 16)
    columns = [*graph.node_data.values(), *graph.edge_data.values()]
    return edges + nodes + sum(values.nbytes for data in columns for values in data.values())


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
            columns = [rows, np.searchsorted(ends, rows, side="right").astype(np.int32), positions.astype(np.int64)]
            arrays = [pa.array(column) for column in columns]
            arrays.append(pa.array(values.tolist() if values.dtype.kind in "USO" else values, original))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _write_names(stream: Any, names: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"relation": np.arange(len(names)), "name": pa.array(names.tolist(), pa.string())}), stream)


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
