"""How a text edge list is laid out: separator, header row, columns, kind of ids; found from its first lines."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import LARGEST_ID

# Column names in common use, in lower case; a header row is known by them.
SOURCE_NAMES = ("src", "source", "from", "u", "head", "start", "node1", "node_1", "id1", "fromnodeid", "src_id")
TARGET_NAMES = ("dst", "target", "to", "v", "tail", "end", "node2", "node_2", "id2", "tonodeid", "dst_id", "dest")
WEIGHT_NAMES = ("weight", "weights", "w", "edge_weight", "value")

_INTEGER = re.compile(r"-?[0-9]{1,40}\Z")
MAX_ID_LENGTH = 1024


@dataclass(frozen=True)
class Layout:
    """The form of every line of one file.

    Attributes:
        separator: One character; a blank stands for any run of blanks and tabs.
        num_columns: Columns of every line.
        places: Columns of source, target and, where it is read, weight.
        ids: ``int`` or ``str``.
        header_line: Number of the line (from 1) with the names of the columns; None: there is none.
    """

    separator: str
    num_columns: int
    places: tuple[int, ...]
    ids: str
    header_line: int | None

    @property
    def has_weight(self) -> bool:
        return len(self.places) == 3


def split_line(line: str, separator: str) -> list[str]:
    """The cells of a line, without blanks around them; only commas know quotes."""
    if separator == " ":
        return line.split()
    if separator == ",":
        with contextlib.suppress(csv.Error):  # a cell beyond its size limit: fall through to a plain split
            return [cell.strip() for row in csv.reader([line]) for cell in row]
    return [cell.strip() for cell in line.split(separator)]


def is_integer(cell: str) -> bool:
    return bool(_INTEGER.match(cell))


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own spelling of thousands; no file format has it


def find_layout(file: Path, lines: Sequence[str], first_line: int, options: ReadOptions) -> Layout:
    """The layout that the first lines show and the options allow.

    Args:
        lines: One or two that are neither blank nor comments; more are not looked at.
        first_line: Number of the first of them in the file.
    """
    where = f"{file}, line {first_line}"
    separator = options.separator or _guess_separator(lines)
    rows = [split_line(line, separator) for line in lines[:2]]
    header = _has_header(rows, options)
    places = find_columns(where, rows[0], header, options)
    body = rows[1] if header and len(rows) > 1 else rows[0]
    ids = options.ids
    if ids == "auto":
        known = [place for place in places[:2] if place < len(body)]
        ids = "int" if all(is_number(body[place]) for place in known) else "str"
    if ids == "str" and options.num_nodes is not None:
        raise ConfigError(f"num_nodes={options.num_nodes} needs ids 0 .. N-1, but the ids of {file} are names")
    return Layout(separator, len(rows[0]), places, ids, first_line if header else None)


def _guess_separator(lines: Sequence[str]) -> str:
    for separator in (",", "\t"):
        if separator in lines[0]:
            return separator
    return " "


def _has_header(rows: Sequence[Sequence[str]], options: ReadOptions) -> bool:
    """Whether the first row names columns: known names, or words where the next row has numbers."""
    first = rows[0]
    if options.header is not None:
        return options.header
    if options.columns is not None:
        return True
    names = [cell.lower() for cell in first]
    if any(name in SOURCE_NAMES for name in names) and any(name in TARGET_NAMES for name in names):
        return True
    if len(rows) < 2 or len(rows[1]) != len(first) or len(first) < 2:
        return False
    second = rows[1]
    if all(is_integer(cell) for cell in second[:2]) and not any(is_number(cell) for cell in first[:2]):
        return True
    return len(first) == 3 and is_number(second[2]) and not is_number(first[2])


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
    lower = [name.lower() for name in names]
    named = next((lower.index(name) for name in WEIGHT_NAMES if name in lower), None) if header else None
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
        lower = [name.lower() for name in names]
        src, dst = (
            next((lower.index(name) for name in known if name in lower), None) for known in (SOURCE_NAMES, TARGET_NAMES)
        )
        if src is not None and dst is not None:
            return src, dst
    if not 2 <= len(names) <= 3:
        next_step = "name them in a header row or with columns=" if len(names) > 3 else "give separator="
        raise DataError(f"{where}: {len(names)} column(s), expected 2 or 3 (source, target, weight); {next_step}")
    return 0, 1


def _place(where: str, names: Sequence[str], name: str) -> int:
    if name not in names:
        shown = ", ".join(known[:40] for known in names[:20])
        raise DataError(f"{where}: no column {name!r}; columns: {shown}")
    return names.index(name)


def fault_of_line(line: str, layout: Layout, num_nodes: int | None) -> str | None:
    """The fault of a line: value, limit and next step; None when there is none."""
    cells = split_line(line, layout.separator)
    if len(cells) != layout.num_columns:
        return f"{len(cells)} column(s), expected {layout.num_columns} as in the first line"
    for place in layout.places[:2]:
        fault = fault_of_id(cells[place], layout.ids, num_nodes)
        if fault is not None:
            return fault
    return fault_of_weight(cells[layout.places[2]]) if layout.has_weight else None


def fault_of_id(cell: str, ids: str, num_nodes: int | None) -> str | None:
    shown = repr(cell if len(cell) <= 60 else cell[:57] + "...")
    if ids == "str":
        if not cell:
            return "an id is missing"
        if len(cell) > MAX_ID_LENGTH:
            return f"id {shown} has {len(cell)} characters, expected at most {MAX_ID_LENGTH}"
        return None
    if not is_integer(cell):
        return f"id {shown} is not an integer; pass ids='str' if ids are names"
    value = int(cell)
    if cell.startswith("-") and value != 0:
        return f"id {shown} is negative; ids start at 0"
    if value > LARGEST_ID:
        return f"id {shown} is above {LARGEST_ID}; pass ids='str' if ids are names"
    if num_nodes is not None and value >= num_nodes:
        return f"id {value} is outside [0, {num_nodes}); raise num_nodes"
    return None


def fault_of_weight(cell: str) -> str | None:
    shown = repr(cell if len(cell) <= 60 else cell[:57] + "...")
    if not is_number(cell):
        return f"the weight {shown} is not a number; pass weight=False to leave it out"
    with np.errstate(over="ignore", under="ignore"):
        value = np.float32(float(cell))
    if not (np.isfinite(value) and value > 0):
        return f"weight {shown} is not finite and above 0; drop the edge or rescale the weights"
    return None
