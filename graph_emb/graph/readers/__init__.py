"""Readers of every source of a graph behind one function."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.terminal import progress_shown

# They register themselves.
from graph_emb.graph.readers import edge_list, files_of_types, libraries, matrices, ogb, partitions, triples  # noqa: F401
from graph_emb.graph.readers.source import READERS, Contents, Reader, ReadOptions, as_path, checked_file, cleaned
from graph_emb.graph.typed import HeteroGraph

__all__ = ["READERS", "Contents", "ReadOptions", "Reader", "read_graph"]


def read_graph(source: Any, **options: Any) -> HeteroGraph:
    """The graph of a file, a folder, an OGB data set or an object in memory, as the source says it.

    =============  ==========================================================================================
    format         source
    =============  ==========================================================================================
    memory         a HeteroGraph or a graph_emb Graph
    dgl            a DGLGraph, or a file of ``dgl.save_graphs``
    networkx       a networkx graph, or one in GraphML, JSON (node-link) or a pickle that is trusted
    scipy          a scipy sparse matrix or array, or a numpy array (N, N) of weights
    pandas         a data frame of edges: source, target [, weight]; with head, relation and tail it is of triples
    ogb            the name of an OGB data set, with ``root=``; or its folder
    chunked        ``metadata.json`` of DGL's chunked format, or its folder
    yaml           a ``.yaml`` file that names the files of each node and edge type
    partition      the folder of a partition, the JSON in it that DGL opens, or a ``PartitionedGraph``
    triples        head, relation and tail as text or ``triples.npz``; a folder may hold train, valid and test
    ntriples       RDF N-Triples, ``.nt``
    npz            compressed rows, or ``scipy.sparse.save_npz``
    mat            MATLAB to 7.2 with a square matrix
    edges          edge lists as csv, tsv, txt or Parquet: one file, or all files of a folder
    =============  ==========================================================================================

    Text may be gzipped. Ids may be integers or strings; ids other than 0 .. N - 1 are numbered in sorted order and kept
    in ``node_ids``. Nodes are never left out unless ``isolated`` says so, edges never unless an option says so.

    Args:
        name: The graph's name in the files that are written; None: from the source.
        format: A format of the table, where the source does not say it (text never says ``triples``).
        directed: None: as the source says; edge lists and tables say nothing and hold directed edges, networkx, OGB,
            ``.npz`` and symmetric matrices tell. False: each edge stands for both directions, within edge types whose
            ends are of one node type; reverses that are missing are added. True: edges as they are stored.
        duplicates: Parallel edges of a type: ``keep`` (they are counted), ``first`` stays, or ``sum`` (the first stays
            and the weights add up; without one each counts 1).
        self_loops: ``keep`` or ``drop``.
        isolated: Nodes that no edge touches: ``keep``, or ``drop`` and keep the ids of the rest in ``node_ids``.
        reverse_types: Add a type ``rev_R`` with the edges of each type ``R`` turned round (and their data), except
            to types that hold both directions already.
        weight: None: the column that is named so (``weight``, ``w``, ``edge_weight`` ...), if any; a third column of
            text without a name is refused, as it may be a time or a relation. True: there must be one, such as that
            third column. A text: the column of this name. False: none.
        progress: Whether a read of more than two seconds shows a bar; None: where standard error is a terminal.
        ids: Of edge lists, triples and GraphML: ``int``, ``str``, or ``auto``: as the file shows.
        num_nodes: Of edge lists with integer ids: ids are node numbers below this, and nodes without an edge are kept;
            for two node types a mapping.
        header: Whether the first row of a text edge list names the columns; None finds out.
        separator: Of text, one character; None finds out.
        comment: Lines of a text edge list that begin with one of these characters are skipped.
        columns: Names of source, target [, weight] in the header row or the Parquet schema.
        edge_type: Of edge lists and matrices: (source type, relation, destination type), with ids of their own each.
        index: Which graph of a DGL file that holds several.
        node_attributes, edge_attributes: Of networkx: which become data; each node or edge must have them, as numbers
            or arrays of one shape. None takes all that qualify and counts the others.
        relations: Of triples: ``types``: each relation is an edge type, its name cleaned for DGL's files; ``column``:
            one edge type, with the relation's number in the column ``relation``.
        order: Of text triples: which column is which, a permutation of ``hrt``.
        literals: Of N-Triples: ``keep`` makes each distinct literal a node, ``drop`` leaves their statements out.
        root, download: Of OGB: the folder that holds ``ogbn_arxiv/``, and whether to fetch what is not there.
        trust_pickle: Read ``.gpickle``, ``.pkl`` and ``.pickle`` files. A pickle can run any code; only for your own.
    Returns:
        The graph; ``counts`` says what was kept twice, dropped, merged or added.
    Raises:
        DataError: missing or damaged input; names file, row, value and limit.
        ConfigError: an unknown option or format, one that means nothing to the source, or a value of another kind.
    """
    asked = ReadOptions.of(options)
    path = as_path(source)
    kind = format_of(source) if asked.format is None else asked.format
    reader = READERS[kind]
    for option in options:
        if option not in reader.options:
            raise unknown_name(f"option of format {kind!r}", option, reader.options)
    name = asked.name
    if name is not None and (name in ("", ".", "..") or any(letter in name for letter in "/\\\0")):
        raise ConfigError(f"name {name!r}: must be a file name without '/', such as 'ddi'")
    if not (reader.objects(source) if path is None else reader.paths):
        given = f"a {type(source).__name__} in memory" if path is None else f"a path, {path}"
        raise ConfigError(f"format={kind!r} does not read {given}; leave format= out")
    if path is not None:
        source = checked_file(path) if isinstance(reader.paths, tuple) else path
    with progress_shown(asked.progress):
        contents = reader.read(source, asked)
    try:
        graph = cleaned(contents, asked)
    except DataError as error:
        raise error if path is None else DataError(f"{path}: {error}") from error
    if graph.total_nodes == 0:
        raise DataError(f"{path or f'a {type(source).__name__}'}: has no nodes; expected at least 1")
    return graph if name is None else replace(graph, name=name)


def format_of(source: Any) -> str:
    """The format that ``read_graph`` takes a source to be of; a DataError or ConfigError where it is of none."""
    # The readers that look at the place come before those of an ending: the JSON of a partition is no networkx graph.
    for kind in sorted(READERS, key=lambda kind: (READERS[kind].fallback, isinstance(READERS[kind].paths, tuple))):
        with suppress(OSError, ValueError):  # a name that no file system takes
            if READERS[kind].accepts(source):
                return kind
    path = as_path(source)
    if path is None:
        known = "dgl, networkx, scipy.sparse, pandas, graph_emb Graph or HeteroGraph, or a path"
        raise ConfigError(f"a {type(source).__module__}.{type(source).__name__} is no graph; expected: {known}")
    if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        checked_file(path)
    raise DataError(f"{path}: cannot tell its format; give format=, one of: {', '.join(READERS)}")
