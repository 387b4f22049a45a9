"""The rows of several files of one type as one table, and the features, labels and masks that they hold."""

# R rows, N nodes, D width

from __future__ import annotations

import glob
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import MASKS, checked_file, mask_of

if TYPE_CHECKING:
    from graph_emb.graph.readers.description import TypeFiles

Positions = Callable[[Path], np.ndarray]


class Rows:
    """Files with the same columns, one after the other.

    Args:
        parts: For each file its path, its columns and its number of rows.
    """

    def __init__(self, parts: list[tuple[Path, tables.Table, int]]) -> None:
        self.parts = parts
        self.num = sum(num for _, _, num in parts)

    @property
    def names(self) -> list[str]:
        return list(self.parts[0][1])

    def place(self, row: int) -> str:
        """File and row, from 1 and without the header, of a row of the whole."""
        for file, _, num in self.parts:
            if row < num:
                return f"{file}, row {row + 1}"
            row -= num
        return str(self.parts[-1][0])

    def _column(self, file: Path, part: tables.Table, name: str) -> Any:
        if name not in part:
            raise DataError(f"{file}: no column {name!r}; columns: {', '.join(list(part)[:20])}")
        return part[name]

    def ids(self, name: str, kind: str) -> Any:
        """A column as ids: int64 (R,), or an Arrow string column."""
        read = [tables.ids_of(file, name, self._column(file, part, name), kind) for file, part, _ in self.parts]
        if len({isinstance(column, np.ndarray) for column in read}) > 1:
            raise DataError(f"{self.parts[0][0]}: {name!r}: numbers in some files, names in others; set id_type: str")
        if isinstance(read[0], np.ndarray):
            return np.concatenate(read)
        import pyarrow as pa

        return pa.chunked_array([chunk for column in read for chunk in column.chunks], type=pa.string())

    def numbers(self, name: str, missing: int | None = None) -> np.ndarray:
        """A column as numbers, (R,) or (R, D)."""
        return tables.joined(
            [tables.numbers_of(file, name, self._column(file, part, name), missing) for file, part, _ in self.parts]
        )

    def classes(self, name: str) -> np.ndarray:
        """A column of classes, (R,) int64, -1 where one is missing; text is numbered in sorted order."""
        import pyarrow as pa

        columns = [self._column(file, part, name) for file, part, _ in self.parts]
        if not all(pa.types.is_string(column.type) or pa.types.is_large_string(column.type) for column in columns):
            return self.numbers(name, missing=-1)
        text = np.concatenate([column.fill_null("").to_numpy(zero_copy_only=False) for column in columns]).astype(str)
        known = np.unique(text[text != ""])
        return np.where(text == "", -1, np.searchsorted(known, text)).astype(np.int64)


def rows_of(base: Path, patterns: list[str], separator: str | None, text: Collection[str] = ()) -> Rows:
    """The files that paths or patterns beside ``base`` name, in the order of their names."""
    parts: list[tuple[Path, tables.Table, int]] = []
    for file in _matching(base, patterns):
        columns = tables.read_columns(file, separator=separator, text=text)
        if parts and list(columns) != list(parts[0][1]):
            raise DataError(f"{file}: columns {list(columns)}, unlike {list(parts[0][1])} of {parts[0][0]}")
        parts.append((file, columns, len(next(iter(columns.values())))))
    return Rows(parts)


def _matching(base: Path, patterns: list[str]) -> list[Path]:
    files: list[Path] = []
    for pattern in patterns:
        if any(mark in pattern for mark in "*?["):
            # the folder may hold such marks, too, and means itself
            found = sorted(base.parent / name for name in glob.glob(pattern, root_dir=base.parent))
            if not found:
                raise DataError(f"{base}: no file matches {pattern!r}")
            files += found
        else:
            files.append(checked_file(base.parent / pattern))
    return files


def data_of(base: Path, where: str, section: TypeFiles, rows: Rows | None, num: int) -> dict[str, np.ndarray]:
    """Features and label of a type with ``num`` rows, read from its own rows or from arrays beside it."""
    columns: dict[str, np.ndarray] = {}
    for name, places in section.features.items():
        if len(places) == 1 and places[0].endswith(".npy"):
            columns[name] = _array(base, f"{where}.features.{name}", places[0], num)
        else:
            read = [_own(base, f"{where}.features.{name}", rows).numbers(place) for place in places]
            columns[name] = read[0] if len(read) == 1 else np.column_stack(read)
    if section.label is not None:
        if section.label.endswith(".npy"):
            columns["label"] = _array(base, f"{where}.label", section.label, num)
        else:
            columns["label"] = _own(base, f"{where}.label", rows).classes(section.label)
    return columns


def mask_columns(
    base: Path, where: str, masks: Any, rows: Rows | None, num: int, positions: Positions | None
) -> dict[str, np.ndarray]:
    """Masks of train, valid and test: a column, a ``.npy`` mask, or a file of ids that ``positions`` reads."""
    columns: dict[str, np.ndarray] = {}
    for part, place in masks.items():
        owner = f"{where}.masks.{part}"
        if place.endswith(".npy"):
            columns[MASKS[part]] = _as_mask(f"{base}: {owner}", _array(base, owner, place, num))
        elif rows is not None and place in rows.names:
            columns[MASKS[part]] = _as_mask(f"{base}: {owner}", rows.numbers(place))
        elif positions is not None and (base.parent / place).is_file():
            columns[MASKS[part]] = mask_of(positions(base.parent / place), num)
        else:
            raise DataError(f"{base}: {owner} = {place!r}: is neither a column nor a file beside it")
    return columns


def _own(base: Path, owner: str, rows: Rows | None) -> Rows:
    if rows is None:
        raise DataError(f"{base}: {owner}: names columns, but the type has no files; give files or a .npy array")
    return rows


def _array(base: Path, owner: str, place: str, num: int) -> np.ndarray:
    values = tables.read_npy(base.parent / place)
    if values.ndim < 1 or len(values) != num:
        raise DataError(f"{base.parent / place}: shape {values.shape}, but {owner} needs {num} rows")
    return values


def _as_mask(owner: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or not np.isin(values, (0, 1)).all():
        raise DataError(f"{owner}: expected 0 and 1 or true and false, one for each row")
    return values.astype(bool)
