"""Readers of whatever people keep graphs in, one small file for each kind of source, behind one function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.progress import progress_shown
from graph_emb.graph.csr_readers.source import checked_file
from graph_emb.graph.readers import (  # they register
    arrays,  # noqa: F401
    chunked,  # noqa: F401
    dgl_graph,  # noqa: F401
    edge_list,  # noqa: F401
    files_of_types,  # noqa: F401
    matlab,  # noqa: F401
    memory,  # noqa: F401
    networkx_graph,  # noqa: F401
    ntriples,  # noqa: F401
    ogb,  # noqa: F401
    scipy_matrix,  # noqa: F401
    triples,  # noqa: F401
)
from graph_emb.graph.readers.clean import CleanOptions, Duplicates, KeepOrDrop, cleaned
from graph_emb.graph.readers.options import check_kinds
from graph_emb.graph.readers.source import READERS, Contents, Reader, as_path
from graph_emb.graph.typed import HeteroGraph

__all__ = ["READERS", "Contents", "Reader", "read_graph"]


def read_graph(
    source: Any,
    *,
    name: str | None = None,
    format: str | None = None,
    duplicates: Duplicates = "keep",
    self_loops: KeepOrDrop = "keep",
    undirected: bool | None = None,
    isolated: KeepOrDrop = "keep",
    reverse_types: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> HeteroGraph:
    """The graph of a file, a folder, an OGB data set or an object in memory.

    =============  ==========================================================================================
    format         source
    =============  ==========================================================================================
    memory         a HeteroGraph or a graph_emb Graph
    dgl            a DGLGraph, or a file of ``dgl.save_graphs``
    networkx       a networkx graph, or one in a ``.gpickle``, ``.pkl`` or ``.graphml`` file
    scipy          a scipy sparse matrix or array
    ogb            the name of an OGB data set, with ``root=``; or its folder
    chunked        ``metadata.json`` of DGL's chunked format, or its folder
    yaml           a ``.yaml`` file that names the files of each node and edge type
    triples        head, relation and tail as text; a folder may hold train, valid and test
    ntriples       RDF N-Triples, ``.nt``
    npz            compressed rows, or ``scipy.sparse.save_npz``
    mat            MATLAB to 7.2 with a square matrix
    edges          edge lists as csv, tsv, txt or Parquet: one file, or all files of a folder
    =============  ==========================================================================================

    Text may be gzipped. Ids may be integers or strings; ids other than 0 .. N - 1 are kept in ``node_ids``.

    Args:
        name: The graph's name in the files that are written; None: from the source.
        format: A format of the table, where the source does not say it (``triples`` never does).
        duplicates: Parallel edges of a type: ``keep``, ``drop`` (the first stays) or ``sum`` (the first stays and the
            column ``weight`` of the edge data adds up; without one each counts 1).
        self_loops: ``keep`` or ``drop``.
        undirected: Whether the reverse of each edge is added within edge types whose ends are of one node type. None:
            where the source says that an edge means both directions. True: an edge whose reverse is there gets none.
        isolated: Nodes that no edge touches: ``keep``, or ``drop`` and keep the ids of the rest in ``node_ids``.
        reverse_types: Add a type ``rev_R`` with the edges of each type ``R`` turned round (and their data), except
            to types that hold both directions already.
        progress: Whether a read of more than two seconds shows a bar; None: where standard error is a terminal.
        options: Of the format; ``docs/guides/partition-inputs.md`` lists them. An unknown one is refused.
    Returns:
        The graph; ``counts`` says what was dropped, merged or added.
    Raises:
        DataError: missing or damaged input; names file, row, value and limit.
        ConfigError: an unknown option or format, one that means nothing to the source, or a value of another kind.
    """
    own = {"name": name, "format": format, "undirected": undirected, "reverse_types": reverse_types}
    check_kinds({**own, "progress": progress})
    cleaning = CleanOptions(duplicates, self_loops, undirected, isolated, reverse_types)
    reader = READERS[format] if format is not None else _reader_of(source)
    for option in options:
        if option not in reader.options:
            kind = next(known for known, entry in READERS.items() if entry is reader)
            raise unknown_name(f"option of format {kind!r}", option, reader.options)
    check_kinds(options)
    with progress_shown(progress):
        contents = reader.read(source, **options)
    graph = cleaned(contents, cleaning)
    if graph.total_nodes == 0:
        raise DataError(f"{_shown(source)}: has no nodes; expected at least 1")
    return graph if name is None else replace(graph, name=checked_name(name))


def checked_name(name: str) -> str:
    """A graph's name that can be part of a file name."""
    if not name or name in (".", "..") or any(letter in name for letter in "/\\\0"):
        raise ConfigError(f"name {name!r}: must be a file name without '/', such as 'ddi'")
    return name


def _reader_of(source: Any) -> Reader:
    for reader in sorted(READERS.values(), key=lambda reader: reader.fallback):
        if reader.accepts(source):
            return reader
    path = as_path(source)
    if path is None:
        known = "dgl, networkx, scipy.sparse, graph_emb Graph or HeteroGraph, or a path"
        raise ConfigError(f"a {type(source).__module__}.{type(source).__name__} is no graph; expected: {known}")
    if not path.is_dir():
        checked_file(path)
    raise DataError(f"{path}: cannot tell its format; give format=, one of: {', '.join(READERS)}")


def _shown(source: Any) -> str:
    return str(source) if isinstance(source, str | Path) else f"a {type(source).__name__}"
