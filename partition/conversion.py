"""From one form of a partition to another: DGL's folders (ours or theirs), its chunked format, assignment files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.progress import progress_shown
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.building import build
from partition.chunked import EdgeFormat, write_assignment, write_chunked
from partition.halo import Halo
from partition.options import READ_ARGUMENTS, refuse_arguments
from partition.partitioned import load

Form = Literal["dgl", "graphbolt", "chunked", "assignment"]
FORMS: tuple[Form, ...] = ("dgl", "graphbolt", "chunked", "assignment")


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
    if to not in FORMS:
        raise unknown_name("form", to, FORMS)
    own: set[str] = {
        "dgl": {"halo", "num_hops", "overwrite"},
        "graphbolt": {"halo", "num_hops", "overwrite"},
        "chunked": {"num_chunks", "edge_format"},
        "assignment": set(),
    }[to]
    given = {"halo": halo, "num_hops": num_hops, "num_chunks": num_chunks, "edge_format": edge_format}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if overwrite:
        chosen["overwrite"] = True
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
    made = build(
        graph,
        out=out,
        assignment=assignment,
        edge_owner=edge_owner,
        allow_empty=True,  # the parts are as they are
        graphbolt=to == "graphbolt",
        progress=progress,
        **chosen,
    )
    return made.path


def _opened(
    source: Any, options: Mapping[str, Any] | None, progress: bool | None
) -> tuple[HeteroGraph, Assignment | None, EdgeOwner]:
    """The graph of a source, its parts where it has some, and the owner of its edges, by default the destination."""
    path = Path(source).expanduser() if isinstance(source, (str, Path)) else None
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
