"""Edge lists as text or Parquet, one file or all files of a folder: source, target [, weight]."""

# E edges

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.progress import reading, text_bytes
from graph_emb.graph.ids import number_ids
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    ReadOptions,
    check_ids,
    checked_file,
    parsing,
    register,
    split_suffix,
)
from graph_emb.graph.readers.text import EdgeBlock, checked_block, edge_blocks, find_columns
from graph_emb.graph.typed import EDGE_TYPE, EdgeType, HeteroGraph, checked_edge_type

TEXT = ("csv", "tsv", "txt", "edges", "edgelist")
OPTIONS = ("ids", "num_nodes", "header", "separator", "comment", "columns", "edge_type")
PARQUET_ROWS = 1 << 20
Limits = dict[str, int | None]


def edge_files(path: Path) -> list[Path]:
    """The file itself, or the edge lists of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    known = TEXT + tables.PARQUET
    return sorted(entry for entry in path.iterdir() if entry.is_file() and split_suffix(entry)[0] in known)


def _is_edge_list(path: Path) -> bool:
    return bool(edge_files(path)) if path.is_dir() else split_suffix(path)[0] in TEXT + tables.PARQUET


@register("edges", *OPTIONS, paths=_is_edge_list, fallback=True)
def read_edges(source: Any, options: ReadOptions) -> Contents:
    """Each row an edge, in file order. Ids with gaps and strings are numbered in sorted order and kept."""
    path = Path(source)
    etype = EDGE_TYPE if options.edge_type is None else checked_edge_type(options.edge_type)
    limits = _limits(options, etype)
    same = len(limits) == 1
    options = replace(options, num_nodes=limits[etype[0]] if same else None)
    blocks: list[EdgeBlock] = []
    for file in edge_files(path):
        rows = 0
        for block in _blocks(checked_file(file), options):
            _check_like(file, block, blocks, same)
            if not same:
                _check_limits(file, block, etype, limits, rows + 1)
            rows += len(block.src)
            blocks.append(block)
    if not blocks:
        raise DataError(f"{path}: has no edges; expected at least 1")
    return Contents(_graph(blocks, etype, limits, name_of(path), bool(options.weight)))


def name_of(path: Path) -> str:
    """A graph's name from its file or folder."""
    return path.name.removesuffix(".gz").partition(".")[0] or "graph"


def _limits(options: ReadOptions, etype: EdgeType) -> Limits:
    """For each node type of the edges the limit of its ids, None: by the edges."""
    limits: Limits = dict.fromkeys((etype[0], etype[2]))
    given = {} if options.num_nodes is None else options.num_nodes
    if isinstance(given, int):
        if len(limits) > 1:
            raise ConfigError(f"num_nodes={given}: the edges join two node types; give both, by type")
        return {etype[0]: given}
    for ntype, limit in given.items():
        if ntype not in limits:
            raise unknown_name("node type in num_nodes", ntype, limits)
        limits[ntype] = int(limit)
    return limits


def _blocks(file: Path, options: ReadOptions) -> Iterator[EdgeBlock]:
    if tables.is_parquet(file):
        yield from parquet_blocks(file, options)
        return
    with reading(file.name, text_bytes(file)) as advance:
        for block in edge_blocks(file, options):
            yield block
            advance(tables.BLOCK_BYTES)


def parquet_blocks(
    file: Path,
    options: ReadOptions,
    *,
    num_rows: int | None = None,
    group: int | None = None,
    first_row: int = 1,
    buffer_size: int = 0,
) -> Iterator[EdgeBlock]:
    """The edges of a Parquet file in order, at most ``num_rows`` or ``PARQUET_ROWS`` at a time.

    Args:
        group: Only this row group, whose first row has the number ``first_row``; None: all.
        buffer_size: Bytes to read a column chunk by, so that a row group need not fit memory; 0: all of it at once.
    Raises:
        DataError: file, row, value and limit of the first value that is wrong.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if options.separator is not None or options.header is not None:
        raise ConfigError(f"{file}: separator= and header= are for text, not for Parquet")
    with (
        parsing(file, "a Parquet file"),
        parquet.ParquetFile(file, buffer_size=buffer_size, pre_buffer=False) as table,
        reading(file.name, table.metadata.num_rows if group is None else None, "rows") as advance,
    ):
        names = list(table.schema_arrow.names)
        chosen = [names[place] for place in find_columns(str(file), names, True, options)]
        groups = None if group is None else [group]
        for batch in table.iter_batches(num_rows or PARQUET_ROWS, groups, columns=chosen, use_threads=group is None):
            if batch.num_rows:
                columns = [(name, pa.chunked_array([batch.column(name)])) for name in chosen]
                yield checked_block(file, columns, options.ids, options.id_limit, first_row)
            first_row += batch.num_rows
            advance(batch.num_rows)


def _check_like(file: Path, block: EdgeBlock, earlier: list[EdgeBlock], same: bool) -> None:
    """Ids of a node type are of one kind (``same``: both ends are one type), and weights are in all files or none."""
    first = earlier[0] if earlier else block
    own, before = ([_kind(ids) for ids in (read.src, read.dst)] for read in (block, first))
    if same and own[0] != own[1]:
        raise DataError(f"{file}: one end of the edges holds {own[0]}, the other {own[1]}; say ids='str'")
    for kind, known in zip(own, before, strict=True):
        if kind != known:
            raise DataError(f"{file}: its ids are {kind}, those of the files before are {known}; say ids='str'")
    if (block.weights is None) != (first.weights is None):
        has = "no weights" if block.weights is None else "weights"
        raise DataError(f"{file}: has {has}, unlike the files before; add them or say weight=False")


def _kind(ids: Any) -> str:
    return "numbers" if isinstance(ids, np.ndarray) else "names"


def _check_limits(file: Path, block: EdgeBlock, etype: EdgeType, limits: Limits, first_row: int) -> None:
    for word, ntype, ends in (("source", etype[0], block.src), ("target", etype[2], block.dst)):
        limit = limits[ntype]
        if limit is None:
            continue
        if not isinstance(ends, np.ndarray):
            raise ConfigError(f"num_nodes of {ntype!r} needs ids 0 .. N-1, but the ids of {file} are names")
        check_ids(file, word, ends, limit, first_row=first_row)


def _graph(blocks: list[EdgeBlock], etype: EdgeType, limits: Limits, name: str, asked: bool) -> HeteroGraph:
    """One graph of all blocks; the list is emptied on the way, to save memory.

    Args:
        asked: Weights that are all 1 are kept, too.
    """
    weights = None
    if blocks[0].weights is not None:
        weights = np.concatenate([block.weights for block in blocks if block.weights is not None])
    ends: list[Any] = [[block.src for block in blocks], [block.dst for block in blocks]]
    blocks.clear()
    num_nodes: dict[str, int] = {}
    node_ids: dict[str, np.ndarray] = {}
    for ntype, limit in limits.items():
        sides = [side for side in (0, 1) if etype[2 * side] == ntype]
        if limit is None:
            numbers, known, limit = number_ids(*(ends[side] for side in sides))
            if known is not None:
                node_ids[ntype] = known
        else:
            numbers = [np.concatenate(ends[side]) for side in sides]
        for side, column in zip(sides, numbers, strict=True):
            ends[side] = column.astype(np.int64, copy=False)
        num_nodes[ntype] = limit
    if weights is not None and not asked and bool((weights == 1).all()):
        weights = None
    edge_data = {etype: {} if weights is None else {WEIGHT: weights}}
    return HeteroGraph(num_nodes, {etype: (ends[0], ends[1])}, edge_data=edge_data, node_ids=node_ids, name=name)
