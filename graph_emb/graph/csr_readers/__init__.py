"""Readers of graph files, one small file for each format, chosen by suffix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.graph.build import Duplicates, SelfLoops
from graph_emb.graph.csr import Graph
from graph_emb.graph.csr_readers import arrays, dgl_graph, matlab, networkx_graph, parquet, text  # noqa: F401 (they register)
from graph_emb.graph.csr_readers.source import (
    READERS,
    GraphFile,
    IdsPolicy,
    Reader,
    ReadOptions,
    WeightsPolicy,
    checked_file,
    split_suffix,
)

__all__ = ["READERS", "GraphFile", "ReadOptions", "Reader", "read_graph", "read_graph_file"]


def read_graph(
    path: str | Path,
    *,
    format: str | None = None,
    directed: bool | None = None,
    weights: WeightsPolicy = "auto",
    duplicates: Duplicates = "first",
    self_loops: SelfLoops = "keep",
    num_nodes: int | None = None,
    ids: IdsPolicy = "auto",
    header: bool | None = None,
    separator: str | None = None,
    comment: str = "#%",
    columns: Sequence[str] | None = None,
) -> Graph:
    """The graph of a file.

    ======================================  ========================================================================
    suffix                                  contents
    ======================================  ========================================================================
    csv, tsv, txt, edges, edgelist [.gz]    edge list: source, target [, weight]; separated by commas, tabs or blanks
    parquet, pq                             edge list: columns src, dst [, weight], or the first two or three
    npz                                     ``indptr``, ``indices`` [, ``weights``] (row = source), or scipy.sparse
    mat                                     MATLAB to 7.2 with a square matrix, ``network`` for example
    dgl, bin                                one homogeneous graph of ``dgl.save_graphs``
    gpickle, pkl, pickle [.gz]              a pickled networkx graph; nothing in it is run
    graphml [.gz]                           GraphML
    ======================================  ========================================================================

    Args:
        format: A suffix of the table, for a file that is called otherwise.
        directed: None leaves it to the file: edge lists are undirected; networkx graphs say it; ``.npz`` files may
            say it (``directed``); other matrices are undirected where symmetric. ``indptr`` and ``indices`` with
            nothing below the diagonal (each edge once) are undirected, too. False adds the missing reverse arcs.
        weights: ``auto`` reads them where there are some, ``require`` fails without, ``ignore`` leaves them out.
        duplicates, self_loops: As in ``Graph.from_edges``.
        num_nodes: Edge lists with integer ids: ids are node numbers below this; nodes without an edge are kept.
        ids: ``int``, ``str``, or by the first row (text), the column type (parquet) or all nodes (graphml).
        header: Whether the first row of a text file names the columns; None finds out.
        separator: Of a text file, one character; None finds out.
        comment: Lines of a text file that begin with one of these characters are skipped.
        columns: Names of source, target [, weight] in the header row or the Parquet schema.
    Raises:
        DataError: no such file, or not as described; names file, line, value and limit.
        ConfigError: an option is unknown to the format or outside its limits.
    """
    options = ReadOptions(
        directed=directed,
        weights=weights,
        duplicates=duplicates,
        self_loops=self_loops,
        num_nodes=num_nodes,
        ids=ids,
        header=header,
        separator=separator,
        comment=comment,
        columns=None if columns is None else tuple(columns),
    )
    return read_graph_file(path, options, format=format).graph


def read_graph_file(path: str | Path, options: ReadOptions | None = None, *, format: str | None = None) -> GraphFile:
    """The graph of a file with the labels and splits that came with it; see ``read_graph``."""
    file, options = checked_file(path), options or ReadOptions()
    suffix, gzipped = split_suffix(file)
    if format is not None:
        suffix = format.lower().lstrip(".").removesuffix(".gz")
    if suffix not in READERS:
        shown = f"suffix '.{suffix}'" if suffix else "no suffix"
        raise DataError(f"{file}: {shown} is no graph file; known: {', '.join(READERS)}; or give format=")
    reader = READERS[suffix]
    if gzipped and not reader.gzipped:
        raise DataError(f"{file}: a gzipped .{suffix} file is not read; unpack it first")
    _check_options(suffix, reader, options)
    return reader.read(file, options)


def _check_options(suffix: str, reader: Reader, options: ReadOptions) -> None:
    """Every option that was given means something to the reader."""
    for name in options.changed():
        if name not in reader.options:
            known = ", ".join(sorted(reader.options))
            raise ConfigError(f"{name}={getattr(options, name)!r} means nothing to a .{suffix} file; known: {known}")
    for name, policy in (
        ("weights", WeightsPolicy),
        ("ids", IdsPolicy),
        ("duplicates", Duplicates),
        ("self_loops", SelfLoops),
    ):
        if getattr(options, name) not in get_args(policy):
            raise unknown_name(f"{name} policy", getattr(options, name), get_args(policy))
