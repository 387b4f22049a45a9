"""Writer of DGL's chunked graph format and of assignment files, the input of its distributed pipeline.

Legend: N and E the ids of one type.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.storage import OutputFile, PendingFolder, write_file
from graph_emb.graph.dgl_format import storable
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment
from partition.writer import check_names, npy_writer

EdgeFormat = Literal["parquet", "csv"]
EDGE_FORMATS: tuple[EdgeFormat, ...] = ("parquet", "csv")
ASSIGNMENT_FOLDER = "assignment"


def write_chunked(
    graph: HeteroGraph,
    out: str | Path,
    *,
    assignment: Assignment | None = None,
    num_chunks: int = 1,
    edge_format: EdgeFormat = "parquet",
) -> Path:
    """Write a graph in DGL's chunked format.

    ``metadata.json`` holds the counts per type (what DGL's code reads) and per chunk (what its documentation names);
    node and edge data are npy files. Original ids go to ``node_ids/<type>.parquet``, which DGL does not read.

    Args:
        graph: Node ids in the files are positions within a type.
        out: Folder that appears when it is complete.
        assignment: Written to ``assignment/`` as well, see ``write_assignment``.
        num_chunks: Files per type and column; in csv fewer for an edge type with fewer edges.
        edge_format: ``"parquet"``, or ``"csv"`` without header.
    Returns:
        The folder.
    Raises:
        ConfigError: out is taken, num_chunks is below 1 or the format is unknown.
        DataError: a name or dtype that DGL lacks.
    """
    if edge_format not in EDGE_FORMATS:
        raise unknown_name("edge format", edge_format, EDGE_FORMATS)
    if num_chunks < 1:
        raise ConfigError(f"num_chunks is {num_chunks}; at least 1")
    check_names(graph, graph.name)
    with PendingFolder(out, refuse_existing) as folder:
        made = _Chunks(folder.path, num_chunks, edge_format)
        metadata = made.metadata(graph)
        for ntype, ids in graph.node_ids.items():
            made.write_ids(ntype, ids)
        if assignment is not None:
            (folder.path / ASSIGNMENT_FOLDER).mkdir()
            _write_assignment(folder.path / ASSIGNMENT_FOLDER, assignment)
        # last: it makes the folder a graph
        _write_text(folder.path / "metadata.json", json.dumps(metadata, indent=2) + "\n")
        return folder.publish()


def write_assignment(assignment: Assignment, out: str | Path) -> Path:
    """Write the files that DGL's ``dispatch_data.py`` and GraphStorm take for ``--partitions-dir``.

    ``<node type>.txt`` has the part of each node, one a line; ``partition_meta.json`` the number of parts. DGL accepts
    two names of a method there, so every method but ``random`` is called ``metis``.

    Raises:
        ConfigError: out is taken.
    """
    with PendingFolder(out, refuse_existing) as folder:
        _write_assignment(folder.path, assignment)
        return folder.publish()


def refuse_existing(place: Path) -> None:
    """Raise a ConfigError: these formats have no manifest, so nothing says which files may go."""
    raise ConfigError(f"{place} holds files; remove it or give another folder")


class _Chunks:
    """Files of a chunked graph under construction."""

    def __init__(self, folder: Path, num_chunks: int, edge_format: EdgeFormat) -> None:
        self.folder = folder
        self.num_chunks = num_chunks
        self.edge_format = edge_format

    def metadata(self, graph: HeteroGraph) -> dict[str, Any]:
        """Write all files and return what metadata.json says of them."""
        etypes = {":".join(etype): etype for etype in graph.etypes}
        num_edges = {name: len(graph.edges[etype][0]) for name, etype in etypes.items()}
        return {
            "graph_name": graph.name,
            "node_type": graph.ntypes,
            "edge_type": list(etypes),
            "num_nodes_per_type": list(graph.num_nodes.values()),
            "num_edges_per_type": list(num_edges.values()),
            "num_nodes_per_chunk": [self._sizes(num) for num in graph.num_nodes.values()],
            "num_edges_per_chunk": [self._edge_sizes(num) for num in num_edges.values()],
            "edges": {name: self._edges(name, *graph.edges[etype]) for name, etype in etypes.items()},
            "node_data": {
                ntype: self._columns("node_data", ntype, columns, self._sizes(graph.num_nodes[ntype]))
                for ntype, columns in graph.node_data.items()
                if columns
            },
            "edge_data": {
                name: self._columns("edge_data", name, graph.edge_data[etype], self._edge_sizes(num_edges[name]) or [0])
                for name, etype in etypes.items()
                if graph.edge_data.get(etype)
            },
        }

    def write_ids(self, ntype: str, ids: np.ndarray) -> None:
        """Original ids of a node type, by position."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._path("node_ids", f"{ntype}.parquet")
        values = ids.tolist() if ids.dtype.kind in "USO" else ids
        table = pa.table({"position": np.arange(len(ids)), "original_id": pa.array(values)})
        write_file(path, lambda stream: pq.write_table(table, stream))

    def _sizes(self, num: int) -> list[int]:
        return np.diff(np.linspace(0, num, self.num_chunks + 1).astype(np.int64)).tolist()

    def _edge_sizes(self, num: int) -> list[int]:
        """Sizes of the chunks; in csv without empty ones, as a file of 0 bytes looks like one that was cut off."""
        sizes = self._sizes(num)
        return [size for size in sizes if size] if self.edge_format == "csv" else sizes

    # The '-' before a chunk's number keeps column 'feat', chunk 10, apart from column 'feat1', chunk 0.
    def _edges(self, name: str, src: np.ndarray, dst: np.ndarray) -> dict[str, Any]:
        files = []
        for chunk, rows in enumerate(_slices(self._edge_sizes(len(src)))):
            path = self._path("edges", f"{name}-{chunk}.{self.edge_format}")
            write_file(path, partial(self._write_edges, src[rows], dst[rows]))
            files.append(path.relative_to(self.folder).as_posix())
        layout = {"name": "csv", "delimiter": " "} if self.edge_format == "csv" else {"name": "parquet"}
        return {"format": layout, "data": files}

    def _write_edges(self, src: np.ndarray, dst: np.ndarray, stream: OutputFile) -> None:
        import pyarrow as pa
        import pyarrow.csv as csv
        import pyarrow.parquet as pq

        table = pa.table({"src": src, "dst": dst})
        if self.edge_format == "csv":
            csv.write_csv(table, stream, csv.WriteOptions(include_header=False, delimiter=" "))
        else:
            pq.write_table(table, stream, compression="zstd", use_dictionary=False)

    def _columns(self, kind: str, name: str, columns: dict[str, np.ndarray], sizes: list[int]) -> dict[str, Any]:
        found = {}
        for column, values in columns.items():
            files = []
            for chunk, rows in enumerate(_slices(sizes)):
                path = self._path(f"{kind}/{name}", f"{column}-{chunk}.npy")
                piece = values[rows].astype(storable(values.dtype), copy=False)
                write_file(path, npy_writer(piece))
                files.append(path.relative_to(self.folder).as_posix())
            found[column] = {"format": {"name": "numpy"}, "data": files}
        return found

    def _path(self, kind: str, name: str) -> Path:
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def _slices(sizes: list[int]) -> list[slice]:
    return [slice(*pair) for pair in pairwise(np.cumsum([0, *sizes]).tolist())]


def _write_assignment(folder: Path, assignment: Assignment) -> None:
    for ntype, parts in assignment.parts.items():
        write_file(folder / f"{ntype}.txt", partial(_write_lines, parts))
    algorithm = "random" if assignment.method == "random" else "metis"  # DGL's dispatch refuses any other name
    meta = {"version": "1.0.0", "num_parts": assignment.num_parts, "algo_name": algorithm}
    _write_text(folder / "partition_meta.json", json.dumps(meta) + "\n")


def _write_lines(parts: np.ndarray, stream: OutputFile, rows: int = 1 << 20) -> None:
    for start in range(0, len(parts), rows):
        stream.write("".join(f"{part}\n" for part in parts[start : start + rows].tolist()).encode())


def _write_text(path: Path, text: str) -> None:
    write_file(path, lambda stream: stream.write(text.encode()))
