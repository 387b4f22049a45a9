"""Edge lists as text or Parquet, one file or all files of a folder, or a data frame: source, target [, weight].

The first lines of a text (csv, tsv, txt, also gzipped) show its layout: separator, header row, columns, kind of ids.
Arrow parses blocks of whole lines in native code; only when that fails, or a value is out of range, is the same block
read again line by line, to name the line at fault.
"""

# E edges

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.terminal import reading, text_bytes
from graph_emb.graph.csr import narrow_weights
from graph_emb.graph.ids import number_ids
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    ReadOptions,
    check_ids,
    checked_file,
    columns_of_frame,
    is_frame,
    parsing,
    register,
    split_suffix,
)
from graph_emb.graph.typed import EDGE_TYPE, EdgeType, HeteroGraph, checked_edge_type

if TYPE_CHECKING:
    import pyarrow as pa

# Column names in common use, in lower case; a header row is known by them.
SOURCE_NAMES = ("src", "source", "from", "u", "head", "start", "node1", "node_1", "id1", "fromnodeid", "src_id")
TARGET_NAMES = ("dst", "target", "to", "v", "tail", "end", "node2", "node_2", "id2", "tonodeid", "dst_id", "dest")
WEIGHT_NAMES = ("weight", "weights", "w", "edge_weight", "value")

_HEAD_BYTES = 1 << 20
_LINE_STARTS = (b"\n", b" ", b"\t")  # what a comment can follow; looking for these three is far cheaper than a regex
_BLANK_LINE = re.compile(rb"(?m)^[ \t]+\r?$")
_BLANKS = re.compile(rb"[ \t]+")
TEXT = ("csv", "tsv", "txt", "edges", "edgelist")
OPTIONS = ("ids", "num_nodes", "header", "separator", "comment", "columns", "edge_type")
PARQUET_ROWS = 1 << 20
Limits = dict[str, int | None]


@dataclass(frozen=True)
class EdgeBlock:
    """Some consecutive edges of a file.

    Attributes:
        src, dst: Shape (E,), int64 arrays, or Arrow strings where ids are names.
        weights: Shape (E,), float32 of text and as stored of Parquet, or None where none is read.
    """

    src: NDArray[np.int64] | pa.ChunkedArray
    dst: NDArray[np.int64] | pa.ChunkedArray
    weights: NDArray | None


def edge_blocks(file: Path, options: ReadOptions, block_bytes: int = tables.BLOCK_BYTES) -> Iterator[EdgeBlock]:
    """The edges of a text file in order, in blocks of about ``block_bytes`` bytes of text.

    Raises:
        DataError: file, line, value and limit of the first line that is wrong.
    """
    layout = _layout_of(file, options, block_bytes)
    if layout is None:
        return
    for first_line, text in tables.line_blocks(file, block_bytes):
        block = layout.parse(first_line, text)
        if block is not None and len(block.src):
            yield block


def checked_block(
    file: Path, columns: list[tuple[str, pa.ChunkedArray]], ids: str, limit: int | None, first_row: int = 1
) -> EdgeBlock:
    """The edges of two or three named columns; weights stay as they are stored.

    Raises:
        DataError: an id is missing or out of range; a weight is no number, or not finite and above 0 in float32.
    """
    src, dst = (tables.ids_of(file, *end, ids, limit, first_row=first_row) for end in columns[:2])
    if len(columns) == 2:
        return EdgeBlock(src, dst, None)
    name, column = columns[2]
    values = tables.numbers_of(file, name, column, first_row=first_row)
    if values.ndim != 1:
        raise DataError(f"{file}: column {name!r} holds lists; expected one weight for each edge")
    _, bad = narrow_weights(values)
    if bad is not None:
        raise DataError(
            f"{file}, row {first_row + bad}: {name} {values[bad].item()!r} is not finite and above 0; "
            "drop the edge or rescale the weights"
        )
    return EdgeBlock(src, dst, values)


def _layout_of(file: Path, options: ReadOptions, block_bytes: int) -> _Layout | None:
    """The layout that the first two lines show and the options allow; None: only blank lines and comments."""
    found = list(islice(tables.lines_of(file, options.comment, min(block_bytes, _HEAD_BYTES)), 2))
    if not found:
        return None
    first_line, first = found[0]
    separator = options.separator or tables.separator_of(first, ",\t")
    rows = [tables.split_line(line, separator) for _, line in found]
    header = _has_header(rows, options)
    places = find_columns(f"{file}, line {first_line}", rows[0], header, options)
    ids = options.ids
    if ids == "auto":
        body = rows[1] if header and len(rows) > 1 else rows[0]
        known = [place for place in places[:2] if place < len(body)]
        ids = "int" if all(tables.is_number(body[place]) for place in known) else "str"
    if ids == "str" and options.num_nodes is not None:
        raise ConfigError(f"num_nodes={options.num_nodes} needs ids 0 .. N-1, but the ids of {file} are names")
    return _Layout(file, options, separator, len(rows[0]), places, ids, first_line if header else 0)


def _has_header(rows: Sequence[Sequence[str]], options: ReadOptions) -> bool:
    """Whether the first row names columns: known names, or words where the next row has numbers."""
    first = rows[0]
    if options.header is not None:
        return options.header
    if options.columns is not None:
        return True
    if None not in (_position(first, SOURCE_NAMES), _position(first, TARGET_NAMES)):
        return True
    if len(rows) < 2 or len(rows[1]) != len(first) or len(first) < 2:
        return False
    second = rows[1]
    if all(tables.is_integer(cell) for cell in second[:2]) and not any(tables.is_number(cell) for cell in first[:2]):
        return True
    return len(first) == 3 and tables.is_number(second[2]) and not tables.is_number(first[2])


def find_columns(where: str, names: Sequence[str], header: bool, options: ReadOptions) -> tuple[int, ...]:
    """Positions of source, target and, where there is one, weight.

    Source and target are as asked, by their names, or the first two. A weight is what ``columns`` or ``weight`` say,
    else the column that is named like one. Of three columns without names the last may be a weight, a time or a
    relation, so that the caller must say it.

    Args:
        where: The file and line of the names, for errors.
        names: Names of the columns, or without a header the cells of the first row.
    """
    if (options.columns is not None or isinstance(options.weight, str)) and not header:
        option = "weight" if options.columns is None else "columns"
        raise ConfigError(f"{option}= names columns of a header row; with header=False there is none")
    src, dst, *told = _ends(where, names, header, options)
    if options.weight is False:
        return src, dst
    if isinstance(options.weight, str):
        return src, dst, _place(where, names, options.weight)
    if told or (options.columns is not None and options.weight is None):
        return src, dst, *told
    named = _position(names, WEIGHT_NAMES) if header else None
    if named is not None and named not in (src, dst):
        return src, dst, named
    if options.weight is True:
        if len(names) != 3 or {src, dst} != {0, 1}:
            raise DataError(f"{where}: no weight column, but weight=True; name the column with weight=")
        return src, dst, 2
    if len(names) == 3 and not header:
        raise DataError(
            f"{where}: a third column without a name, {names[2][:40]!r}; say weight=True if it is a weight, "
            "weight=False to leave it out, or format='triples' for head, relation, tail"
        )
    return src, dst


def _ends(where: str, names: Sequence[str], header: bool, options: ReadOptions) -> tuple[int, ...]:
    """Positions of source and target, and of the weight where ``columns`` names three."""
    if options.columns is not None:
        asked = options.columns
        if len(asked) not in (2, 3) or len(set(asked)) != len(asked):
            raise ConfigError(f"columns={list(asked)}: expected 2 or 3 different names: source, target, weight")
        return tuple(_place(where, names, name) for name in asked)
    if header:
        src, dst = _position(names, SOURCE_NAMES), _position(names, TARGET_NAMES)
        if src is not None and dst is not None:
            return src, dst
    if not 2 <= len(names) <= 3:
        next_step = "name them in a header row or with columns=" if len(names) > 3 else "give separator="
        raise DataError(f"{where}: {len(names)} column(s), expected 2 or 3 (source, target, weight); {next_step}")
    return 0, 1


def _position(names: Sequence[str], known: Sequence[str]) -> int | None:
    """The column with the first of the known names."""
    lower = [name.lower() for name in names]
    return next((lower.index(name) for name in known if name in lower), None)


def _place(where: str, names: Sequence[str], name: str) -> int:
    if name not in names:
        shown = ", ".join(known[:40] for known in names[:20])
        raise DataError(f"{where}: no column {name!r}; columns: {shown}")
    return names.index(name)


@dataclass(frozen=True)
class _Layout:
    """The form of every line of one file.

    Attributes:
        separator: One character; a blank stands for any run of blanks and tabs.
        num_columns: Columns of every line.
        places: Columns of source, target and, where it is read, weight.
        ids: ``int`` or ``str``.
        header_line: Number of the line (from 1) with the names of the columns; 0: there is none.
    """

    file: Path
    options: ReadOptions
    separator: str
    num_columns: int
    places: tuple[int, ...]
    ids: str
    header_line: int

    def parse(self, first_line: int, text: bytes) -> EdgeBlock | None:
        """The edges of a block; None where all lines are blank, comments or the header."""
        import pyarrow as pa

        try:
            clean = self._cleaned(first_line, text)
            if not clean or clean.isspace():
                return None
            try:
                table = self._table(clean)
            except pa.ArrowInvalid:  # rare: lines of blanks; dropping them costs a pass
                table = self._table(_BLANK_LINE.sub(b"", clean))
            columns = list(zip(table.column_names, table.columns, strict=True))
            block = checked_block(self.file, columns, self.ids, self.options.id_limit)
        except (pa.ArrowException, ValueError) as error:
            raise self._fault(first_line, text, str(error)) from error
        weights = None if block.weights is None else block.weights.astype(np.float32)
        return EdgeBlock(block.src, block.dst, weights)

    def _cleaned(self, first_line: int, text: bytes) -> bytes:
        """The text as Arrow expects it: no header, no comments, single blanks between cells."""
        if self.header_line >= first_line:
            past = self.header_line - first_line + 1
            lines = text.split(b"\n", past)
            text = lines[past] if len(lines) > past else b""
        marks = [mark.encode() for mark in self.options.comment if mark.encode() in text]
        if any(text.startswith(mark) or before + mark in text for mark in marks for before in _LINE_STARTS):
            any_mark = b"|".join(re.escape(mark) for mark in marks)
            text = re.sub(rb"(?m)^[ \t]*(?:" + any_mark + rb").*$", b"", text)
        if self.separator == " ":
            if b"\r" in text:
                text = text.replace(b"\r", b"")
            if b"\t" in text or b"  " in text:
                text = _BLANKS.sub(b" ", text)
            if text.startswith(b" ") or b"\n " in text:
                text = text.removeprefix(b" ").replace(b"\n ", b"\n")
            if b" \n" in text or text.endswith(b" "):
                text = text.removesuffix(b" ").replace(b" \n", b"\n")
        return text

    def _table(self, text: bytes) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        names = [f"c{place}" for place in range(self.num_columns)]
        kind = pa.int64() if self.ids == "int" else pa.string()
        types: dict[str, pa.DataType] = {names[place]: kind for place in self.places[:2]}
        if len(self.places) == 3:
            types[names[self.places[2]]] = pa.float64()
        wanted = [names[place] for place in self.places]
        return csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(column_names=names, block_size=1 << 22),
            csv.ParseOptions(delimiter=self.separator, quote_char='"' if self.separator == "," else False),
            csv.ConvertOptions(column_types=types, include_columns=wanted, null_values=[]),
        )

    def _fault(self, first_line: int, text: bytes, reason: str) -> DataError:
        """The error that names the first line at fault."""
        lines = tables.numbered_lines(self.file, text, first_line, self.options.comment)
        try:
            for number, line in lines:
                if number == self.header_line:
                    continue
                cells = tables.split_line(line, self.separator)
                if len(cells) == self.num_columns:
                    faults = [
                        tables.fault_of_id(cells[place], self.ids, self.options.id_limit) for place in self.places[:2]
                    ]
                    faults += [fault_of_weight(cells[place]) for place in self.places[2:]]
                else:
                    faults = [f"{len(cells)} column(s), expected {self.num_columns} as in the first line"]
                for fault in faults:
                    if fault is not None:
                        return DataError(f"{self.file}, line {number}: {fault}")
        except DataError as error:
            return error
        last = first_line + text.count(b"\n")
        short = " ".join(reason.split())[:160]
        return DataError(f"{self.file}: lines {first_line} to {last} cannot be parsed: {short}")


def fault_of_weight(cell: str) -> str | None:
    shown = repr(cell if len(cell) <= 60 else cell[:57] + "...")
    if not tables.is_number(cell):
        return f"the weight {shown} is not a number; pass weight=False to leave it out"
    if narrow_weights(np.array([float(cell)]))[1] is not None:
        return f"weight {shown} is not finite and above 0; drop the edge or rescale the weights"
    return None


def edge_files(path: Path) -> list[Path]:
    """The file itself, or the edge lists of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    known = TEXT + tables.PARQUET
    return sorted(entry for entry in path.iterdir() if entry.is_file() and split_suffix(entry)[0] in known)


def _is_edge_list(path: Path) -> bool:
    return bool(edge_files(path)) if path.is_dir() else split_suffix(path)[0] in TEXT + tables.PARQUET


@register("edges", *OPTIONS, paths=_is_edge_list, fallback=True)
def read_edges(path: Path, options: ReadOptions) -> Contents:
    """Each row an edge, in file order. Ids with gaps and strings are numbered in sorted order and kept."""
    etype = EDGE_TYPE if options.edge_type is None else checked_edge_type(options.edge_type)
    limits = _limits(options, etype)
    same = len(limits) == 1
    options = replace(options, num_nodes=limits[etype[0]] if same else None)
    blocks: list[EdgeBlock] = []
    for file in edge_files(path):
        rows = 0
        for block in _blocks(checked_file(file), options):
            _check_block(file, block, blocks, etype, limits, rows + 1)
            rows += len(block.src)
            blocks.append(block)
    if not blocks:
        raise DataError(f"{path}: has no edges; expected at least 1")
    return Contents(_graph(blocks, etype, limits, name_of(path), bool(options.weight)))


@register("pandas", "ids", "num_nodes", "columns", "edge_type", objects=is_frame, fallback=True)
def read_frame(source: Any, options: ReadOptions) -> Contents:
    """Each row of a pandas data frame an edge, its columns found and its ids numbered as those of a file are."""
    etype = EDGE_TYPE if options.edge_type is None else checked_edge_type(options.edge_type)
    limits = _limits(options, etype)
    names = [str(name) for name in source.columns]
    places = find_columns("the data frame", names, True, options)
    columns, where = columns_of_frame(source, places)
    if not len(source):
        raise DataError(f"{where}: has no edges; expected at least 1")
    limit = limits[etype[0]] if len(limits) == 1 else None
    block = checked_block(where, columns, options.ids, limit, first_row=0)
    _check_block(where, block, [], etype, limits, 0)
    return Contents(_graph([block], etype, limits, "graph", bool(options.weight)))


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


def _check_block(
    file: Path, block: EdgeBlock, earlier: list[EdgeBlock], etype: EdgeType, limits: Limits, first_row: int
) -> None:
    """Ids of a node type are of one kind and below its limit, and weights are in all files or none."""
    same = len(limits) == 1
    first = earlier[0] if earlier else block
    own, before = (
        ["numbers" if isinstance(ids, np.ndarray) else "names" for ids in (read.src, read.dst)]
        for read in (block, first)
    )
    if same and own[0] != own[1]:
        raise DataError(f"{file}: one end of the edges holds {own[0]}, the other {own[1]}; say ids='str'")
    for kind, known in zip(own, before, strict=True):
        if kind != known:
            raise DataError(f"{file}: its ids are {kind}, those of the files before are {known}; say ids='str'")
    if (block.weights is None) != (first.weights is None):
        has = "no weights" if block.weights is None else "weights"
        raise DataError(f"{file}: has {has}, unlike the files before; add them or say weight=False")
    for word, ntype, ends in (("source", etype[0], block.src), ("target", etype[2], block.dst)):
        if (limit := limits[ntype]) is not None and not same:  # of one type, the parser checked them
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
