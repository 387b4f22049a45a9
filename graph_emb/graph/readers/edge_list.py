"""Edge lists as text or Parquet, one file or all files of a folder: source, target [, weight]."""

# E edges

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.progress import reading, text_bytes
from graph_emb.graph.csr_readers.layout import find_columns
from graph_emb.graph.csr_readers.parquet import narrowed_weights
from graph_emb.graph.csr_readers.source import IdsPolicy, ReadOptions, WeightsPolicy, checked_file, split_suffix
from graph_emb.graph.csr_readers.text import BLOCK_BYTES, EdgeBlock, edge_blocks, layout_of
from graph_emb.graph.ids import number_ids, number_strings
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import WEIGHT, Contents, as_path, check_ids, checked_edge_type, register
from graph_emb.graph.typed import EDGE_TYPE, EdgeType, HeteroGraph

TEXT = ("csv", "tsv", "txt", "edges", "edgelist")
PARQUET = ("parquet", "pq")


def edge_files(path: Path) -> list[Path]:
    """The file itself, or the edge lists of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if entry.is_file() and split_suffix(entry)[0] in TEXT + PARQUET)


def _is_edge_list(source: Any) -> bool:
    path = as_path(source)
    if path is None:
        return False
    if path.is_dir():
        return bool(edge_files(path))
    return split_suffix(path)[0] in TEXT + PARQUET


@register("edges", _is_edge_list, fallback=True)
def read_edges(
    source: Any,
    *,
    ids: IdsPolicy = "auto",
    num_nodes: int | Mapping[str, int] | None = None,
    weights: WeightsPolicy = "auto",
    header: bool | None = None,
    separator: str | None = None,
    comment: str = "#%",
    columns: Sequence[str] | None = None,
    edge_type: EdgeType | str | None = None,
) -> Contents:
    """Each row an edge, in file order. Ids with gaps and strings are numbered in sorted order and kept.

    Args:
        ids: ``int``, ``str``, or by the first row (text) or the column type (Parquet).
        num_nodes: Ids are node numbers below this, and nodes without an edge are kept; by node type for two types.
        weights: ``auto`` takes a third column that a header names or that holds fractions; whole numbers without a
            header may as well be times or relations and are refused. ``require`` takes them; ``ignore`` leaves out.
        header, separator, comment: Of text files, as in ``graph_emb.graph.read_graph``.
        columns: Names of source, target [, weight] in the header row or the Parquet schema.
        edge_type: Two node types have ids of their own each; without it there is one type.
    """
    check_policies(weights, ids)
    path, etype = Path(source), EDGE_TYPE if edge_type is None else checked_edge_type(edge_type)
    limits = _limits(num_nodes, etype)
    same = len(limits) == 1
    options = ReadOptions(
        weights=weights,
        ids=ids,
        num_nodes=limits[etype[0]] if same else None,
        header=header,
        separator=separator,
        comment=comment,
        columns=None if columns is None else tuple(columns),
    )
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
    return Contents(_graph(blocks, etype, limits, split_name(path)))


def check_policies(weights: str, ids: str) -> None:
    """Raise a ConfigError for an unknown policy."""
    for word, value, policy in (("weights", weights, WeightsPolicy), ("ids", ids, IdsPolicy)):
        if value not in get_args(policy):
            raise unknown_name(f"{word} policy", value, get_args(policy))


def split_name(path: Path) -> str:
    """A graph's name from its file or folder."""
    return path.name.removesuffix(".gz").partition(".")[0] or "graph"


def _limits(num_nodes: int | Mapping[str, int] | None, etype: EdgeType) -> dict[str, int | None]:
    limits: dict[str, int | None] = dict.fromkeys((etype[0], etype[2]))
    if isinstance(num_nodes, Mapping):
        for ntype, limit in num_nodes.items():
            if ntype not in limits:
                raise unknown_name("node type in num_nodes", ntype, limits)
            limits[ntype] = int(limit)
    elif num_nodes is not None:
        if len(limits) > 1:
            raise ConfigError(f"num_nodes={num_nodes}: the edges join two node types; give both, by type")
        limits[etype[0]] = int(num_nodes)
    if any(limit is not None and limit < 1 for limit in limits.values()):
        raise ConfigError(f"num_nodes={num_nodes}: must be at least 1")
    return limits


def _blocks(file: Path, options: ReadOptions) -> Iterator[EdgeBlock]:
    if split_suffix(file)[0] in PARQUET:
        yield from _parquet_blocks(file, options)
        return
    layout, first = layout_of(file, options), True
    with reading(file.name, text_bytes(file)) as advance:
        for block in edge_blocks(file, options):
            if first and options.weights == "auto" and layout is not None and layout.header_line is None:
                refuse_doubtful_weights(file, block)
            first = False
            yield block
            advance(BLOCK_BYTES)


def refuse_doubtful_weights(file: Path, block: EdgeBlock) -> None:
    """Whole numbers in a third column without a name are weights, times or relations: the user must say it."""
    weights = block.weights
    if weights is None or (weights == 1).all() or (weights != np.floor(weights)).any():
        return
    shown = int(weights[weights != 1][0])
    raise DataError(
        f"{file}: a third column without a name holds whole numbers such as {shown}; say weights='require' for "
        "weights, weights='ignore' to leave it out, or format='triples' for head, relation, tail"
    )


def _parquet_blocks(file: Path, options: ReadOptions) -> Iterator[EdgeBlock]:
    if options.separator is not None or options.header is not None:
        raise ConfigError(f"{file}: separator= and header= are for text, not for Parquet")
    names = tables.column_names(file)
    places = find_columns(str(file), names, True, options)
    chosen = [names[place] for place in places]
    read = tables.read_columns(file, chosen, text=chosen[:2] if options.ids == "str" else ())
    ends = [tables.ids_of(file, name, read[name], options.ids, options.num_nodes) for name in chosen[:2]]
    weights = None
    if len(chosen) > 2:
        weights = tables.numbers_of(file, chosen[2], read[chosen[2]])
        if weights.ndim != 1:
            raise DataError(f"{file}: column {chosen[2]!r} holds lists; expected one weight for each edge")
        narrowed_weights(file, 1, chosen[2], weights)  # what the file stores is kept, once it is known to fit
    if len(ends[0]):
        yield EdgeBlock(ends[0], ends[1], weights)


def _check_like(file: Path, block: EdgeBlock, earlier: list[EdgeBlock], same: bool) -> None:
    """Ids of a node type are of one kind (``same``: both ends are one type), and weights are in all files or none."""
    own = [_kind(ids) for ids in (block.src, block.dst)]
    if same and own[0] != own[1]:
        raise DataError(f"{file}: one end of the edges holds {own[0]}, the other {own[1]}; say ids='str'")
    if not earlier:
        return
    before = [_kind(ids) for ids in (earlier[0].src, earlier[0].dst)]
    for kind, known in zip(own, before, strict=True):
        if kind != known:
            raise DataError(f"{file}: its ids are {kind}, those of the files before are {known}; say ids='str'")
    if (block.weights is None) != (earlier[0].weights is None):
        has = "no weights" if block.weights is None else "weights"
        raise DataError(f"{file}: has {has}, unlike the files before; add them or say weights='ignore'")


def _kind(ids: Any) -> str:
    return "numbers" if isinstance(ids, np.ndarray) else "names"


def _check_limits(file: Path, block: EdgeBlock, etype: EdgeType, limits: dict[str, int | None], first_row: int) -> None:
    for word, ntype, ends in (("source", etype[0], block.src), ("target", etype[2], block.dst)):
        limit = limits[ntype]
        if limit is None:
            continue
        if not isinstance(ends, np.ndarray):
            raise ConfigError(f"num_nodes of {ntype!r} needs ids 0 .. N-1, but the ids of {file} are names")
        check_ids(file, word, ends, limit, first_row=first_row)


def _graph(blocks: list[EdgeBlock], etype: EdgeType, limits: dict[str, int | None], name: str) -> HeteroGraph:
    weights = None
    if blocks[0].weights is not None:
        weights = np.concatenate([block.weights for block in blocks])
    src, dst = (_joined([getattr(block, end) for block in blocks]) for end in ("src", "dst"))
    blocks.clear()
    num_nodes: dict[str, int] = {}
    node_ids: dict[str, np.ndarray] = {}
    if len(limits) == 1:
        limit = limits[etype[0]]
        if limit is None:
            src, dst, kept = _numbered(src, dst)
            limit = len(kept) if kept is not None else 1 + int(max(src.max(), dst.max()))
            node_ids = {} if kept is None else {etype[0]: kept}
        num_nodes[etype[0]] = limit
        ends = [src, dst]
    else:
        ends = []
        for ntype, column in ((etype[0], src), (etype[2], dst)):
            limit, kept = limits[ntype], None
            if limit is None:
                column, _, kept = _numbered(column, column[:1])
                limit = len(kept) if kept is not None else 1 + int(column.max())
            if kept is not None:
                node_ids[ntype] = kept
            num_nodes[ntype] = limit
            ends.append(column)
    edges = (ends[0].astype(np.int64, copy=False), ends[1].astype(np.int64, copy=False))
    edge_data = {} if weights is None or bool((weights == 1).all()) else {etype: {WEIGHT: weights}}
    return HeteroGraph(num_nodes, {etype: edges}, edge_data=edge_data, node_ids=node_ids, name=name)


def _joined(columns: list[Any]) -> Any:
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import pyarrow as pa

    chunks = [chunk for column in columns for chunk in (column.chunks if hasattr(column, "chunks") else [column])]
    return pa.chunked_array([chunk.cast(pa.string()) for chunk in chunks], type=pa.string())


def _numbered(src: Any, dst: Any) -> Any:
    return number_ids(src, dst) if isinstance(src, np.ndarray) else number_strings(src, dst)
