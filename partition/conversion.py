"""From one form of a partition to another: DGL's folders (ours or theirs), its chunked format, assignment files.

Legend: N and E the ids of one type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, check_flags, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.core.storage import OutputFile, PendingFolder, json_text, write_file, write_text
from graph_emb.core.terminal import progress_shown
from graph_emb.graph.dgl_format import storable
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner, Halo
from partition.building import build
from partition.options import READ_ARGUMENTS, refuse_arguments
from partition.partitioned import load
from partition.relabel import type_name
from partition.writer import check_names, npy_writer

Form = Literal["dgl", "graphbolt", "chunked", "assignment"]
EdgeFormat = Literal["parquet", "csv"]
ASSIGNMENT_FOLDER = "assignment"


def convert(
    source: Any,
    out: str | Path,
    to: Form,
    *,
    halo: Halo | None = None,
    num_hops: int | None = None,
    num_chunks: int | None = None,
    edge_format: EdgeFormat | None = None,
    reader_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write a partition, or a graph, in another form.

    Args:
        source: A partition that this library or DGL (1.x, 2.x, ``partition_graph`` or ``dispatch_data.py``) wrote;
            for ``"chunked"`` also anything that ``graph_emb.graph.readers.read_graph`` takes.
        out: Folder to write.
        to: ``"dgl"``: DGL's distributed format with id maps, checksums and a report, the same parts and owners of edges
            (DGL 1.x and 2.x read it); ``"graphbolt"``: the same with the sampling graphs of dgl.graphbolt;
            ``"chunked"``: DGL's chunked format, with assignment files where the source has parts; ``"assignment"``:
            those files alone.
        halo, num_hops: Of ``"dgl"`` and ``"graphbolt"``, see ``build``; default: ``"dgl"`` and 1.
        num_chunks, edge_format: Of ``"chunked"``, see ``write_chunked``; default: 1 and ``"parquet"``.
        reader_options: Passed to ``graph_emb.graph.readers.read_graph`` when the source is no partition.
        overwrite: Replace a partition that is in ``out``; other forms are never replaced.
        progress: Show bars for what lasts longer than two seconds; None: where standard error is a terminal.
    Returns:
        The folder.
    Raises:
        ConfigError: an option does not belong to the form, or a graph without parts is to become a partition.
        DataError: the source cannot be read.
    """
    check_flags(overwrite=overwrite)
    check_flags(none=True, progress=progress)
    if to not in get_args(Form):
        raise unknown_name("form", to, get_args(Form))
    given = {"halo": halo, "num_hops": num_hops, "num_chunks": num_chunks, "edge_format": edge_format}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if overwrite:
        chosen["overwrite"] = True
    own = {"chunked": {"num_chunks", "edge_format"}, "assignment": set()}.get(to, {"halo", "num_hops", "overwrite"})
    foreign = sorted(set(chosen) - own)
    if foreign:
        raise ConfigError(f"{foreign[0]} has no meaning for the form {to!r}; leave it out")
    refuse_arguments("reader_options", reader_options, READ_ARGUMENTS)
    with progress_shown(progress):
        graph, assignment, edge_owner = _opened(source, reader_options, progress)
    if to == "chunked":
        return write_chunked(graph, out, assignment=assignment, **chosen)
    if assignment is None:
        raise ConfigError(f"{source} has no parts; use build to make them")
    if to == "assignment":
        return write_assignment(assignment, out)
    chosen |= {"assignment": assignment, "edge_owner": edge_owner, "progress": progress}
    # an empty part is allowed, as the parts are as they are
    return build(graph, out=out, graphbolt=to == "graphbolt", allow_empty=True, **chosen).path


def _opened(
    source: Any, options: Mapping[str, Any] | None, progress: bool | None
) -> tuple[HeteroGraph, Assignment | None, EdgeOwner]:
    """The graph of a source, its parts where it has some, and the owner of its edges, by default the destination."""
    path = user_path(source) if isinstance(source, (str, Path)) else None
    if path is not None and path.exists():
        try:
            whole = load(path)
        except DataError:
            whole = None  # a graph, then, or something that its reader names better
        if whole is not None:
            if options:
                raise ConfigError(f"{source} is a partition; reader options ({', '.join(options)}) have no effect")
            return whole.to_graph(), whole.assignment(), whole.edge_owner
    from graph_emb.graph.datasets import read_source

    return read_source(source, progress=progress, **(options or {})), None, "destination"


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
    if edge_format not in get_args(EdgeFormat):
        raise unknown_name("edge format", edge_format, get_args(EdgeFormat))
    if num_chunks < 1:
        raise ConfigError(f"num_chunks is {num_chunks}; at least 1")
    check_names(graph)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with PendingFolder(out, refuse_existing) as folder:
        made = _Chunks(folder.path, num_chunks, edge_format)
        metadata = made.metadata(graph)
        for ntype, ids in graph.node_ids.items():
            values = ids.tolist() if ids.dtype.kind in "USO" else ids
            table = pa.table({"position": np.arange(len(ids)), "original_id": pa.array(values)})
            made.write("node_ids", f"{ntype}.parquet", partial(pq.write_table, table))
        if assignment is not None:
            (folder.path / ASSIGNMENT_FOLDER).mkdir()
            _write_assignment(folder.path / ASSIGNMENT_FOLDER, assignment)
        # last: it makes the folder a graph
        write_text(folder.path / "metadata.json", json_text(metadata))
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
        self.folder, self.num_chunks, self.edge_format = folder, num_chunks, edge_format

    def metadata(self, graph: HeteroGraph) -> dict[str, Any]:
        """Write all files and return what metadata.json says of them."""
        etypes = {type_name(etype): etype for etype in graph.etypes}
        node_sizes = {ntype: self._sizes(num) for ntype, num in graph.num_nodes.items()}
        edge_sizes = {name: self._sizes(len(graph.edges[etype][0])) for name, etype in etypes.items()}
        if self.edge_format == "csv":  # without empty chunks: a file of 0 bytes looks like one that was cut off
            edge_sizes = {name: [size for size in sizes if size] for name, sizes in edge_sizes.items()}
        edge_data = {name: graph.edge_data.get(etype, {}) for name, etype in etypes.items()}
        return {
            "graph_name": graph.name,
            "node_type": graph.ntypes,
            "edge_type": list(etypes),
            "num_nodes_per_type": list(graph.num_nodes.values()),
            "num_edges_per_type": [sum(sizes) for sizes in edge_sizes.values()],
            "num_nodes_per_chunk": list(node_sizes.values()),
            "num_edges_per_chunk": list(edge_sizes.values()),
            "edges": {name: self._edges(name, *graph.edges[etype], edge_sizes[name]) for name, etype in etypes.items()},
            "node_data": self._data("node_data", graph.node_data, node_sizes),
            "edge_data": self._data("edge_data", edge_data, edge_sizes),
        }

    def _sizes(self, num: int) -> list[int]:
        return np.diff(np.linspace(0, num, self.num_chunks + 1).astype(np.int64)).tolist()

    # The '-' before a chunk's number keeps column 'feat', chunk 10, apart from column 'feat1', chunk 0.
    def _edges(self, name: str, src: np.ndarray, dst: np.ndarray, sizes: list[int]) -> dict[str, Any]:
        files = [
            self.write("edges", f"{name}-{chunk}.{self.edge_format}", partial(self._write_edges, src[rows], dst[rows]))
            for chunk, rows in enumerate(_slices(sizes))
        ]
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

    def _data(
        self, kind: str, data: Mapping[str, Mapping[str, np.ndarray]], sizes: Mapping[str, list[int]]
    ) -> dict[str, Any]:
        """Columns by type; an edge type without edges has one file of no rows."""
        found: dict[str, Any] = {}
        for name, columns in data.items():
            for column, values in columns.items():
                files = []
                for chunk, rows in enumerate(_slices(sizes[name] or [0])):
                    piece = values[rows].astype(storable(values.dtype), copy=False)
                    files.append(self.write(f"{kind}/{name}", f"{column}-{chunk}.npy", npy_writer(piece)))
                found.setdefault(name, {})[column] = {"format": {"name": "numpy"}, "data": files}
        return found

    def write(self, kind: str, name: str, write: Callable[[Any], object]) -> str:
        """Make a file: its path in the folder."""
        (self.folder / kind).mkdir(parents=True, exist_ok=True)
        write_file(self.folder / kind / name, write)
        return f"{kind}/{name}"


def _slices(sizes: list[int]) -> list[slice]:
    return [slice(*pair) for pair in pairwise(np.cumsum([0, *sizes]).tolist())]


def _write_assignment(folder: Path, assignment: Assignment) -> None:
    for ntype, parts in assignment.parts.items():
        write_file(folder / f"{ntype}.txt", partial(_write_lines, parts))
    algorithm = "random" if assignment.method == "random" else "metis"  # DGL's dispatch refuses any other name
    meta = {"version": "1.0.0", "num_parts": assignment.num_parts, "algo_name": algorithm}
    write_text(folder / "partition_meta.json", json.dumps(meta) + "\n")


def _write_lines(parts: np.ndarray, stream: OutputFile, rows: int = 1 << 20) -> None:
    for start in range(0, len(parts), rows):
        stream.write("".join(f"{part}\n" for part in parts[start : start + rows].tolist()).encode())
