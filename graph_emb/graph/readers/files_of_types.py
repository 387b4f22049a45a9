"""A heterogeneous graph from tables: a YAML file names the files and columns of each node and edge type.

An unknown key or a wrong value is an error with the field's path.

.. code-block:: yaml

    name: shop
    nodes:
      user:
        files: users.csv             # one path, a list, or a pattern; a row is a node
        id: user_id                  # the column of ids; without it a row's number is the id
        features: {feat: [age, income]}
        label: segment               # text is numbered in sorted order, a missing value is -1
        masks: {train: train.csv}    # a column of 0 and 1, or a file with an id in each row
        # or split: part             # a column of the words train, valid (or val) and test
      item: {num_nodes: 100, features: {feat: items.npy}}
    edges:
      - type: [user, buys, item]
        files: [buys-*.parquet]
        source: user_id
        destination: item_id
        weight: amount
"""

# R rows, N nodes, E edges of a type

from __future__ import annotations

import glob
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.settings import limit_of
from graph_emb.core.yaml_text import parse_yaml
from graph_emb.graph.ids import arrow_ids, first_outside, first_repeated, number_ids
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import (
    MASKS,
    PART_WORDS,
    WEIGHT,
    Contents,
    ReadOptions,
    mask_of,
    parsing,
    part_of,
    register,
)
from graph_emb.graph.typed import HeteroGraph, checked_edge_type, checked_type_name

MAX_BYTES = 1 << 20


Names = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Field(min_length=1)
]
Masks = dict[Literal["train", "valid", "val", "test"], str]
Ids = Any  # int64 (R,), or an Arrow string column


class TypeFiles(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """Keys that node and edge types share.

    Attributes:
        files: Paths or patterns, relative to the YAML file.
        separator: Of text files; None: as the first line shows.
        id_type: How ids are read: as integers, as text, or as they look.
        features: Name of the data to its columns, or to one ``.npy`` file.
        label: A column or a ``.npy`` file.
        masks: For train, valid and test a column, a ``.npy`` mask or, of nodes, a text file of ids.
    """

    files: Names | None = None
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    id_type: Literal["auto", "int", "str"] = "auto"
    features: dict[str, Names] = {}
    label: str | None = None
    masks: Masks = {}

    @model_validator(mode="after")
    def _names_are_given_once(self) -> TypeFiles:
        reserved = {"label", "weight", *MASKS.values()} & set(self.features)
        if reserved:
            raise ValueError(f"features.{min(reserved)}: this name has a key of its own")
        for name in self.features:
            if not name or "/" in name:
                raise ValueError(f"features.{name}: a name must not be empty or hold '/'")
        return self


class NodeFiles(TypeFiles, frozen=True):
    """One node type; without ``files`` and ``num_nodes`` its nodes are the ids that edges name."""

    id: str | None = None
    split: str | None = None
    num_nodes: Annotated[int, Field(ge=1, strict=True)] | None = None

    @model_validator(mode="after")
    def _columns_need_files(self) -> NodeFiles:
        if self.split is not None and self.masks:
            raise ValueError("split and masks both say the parts of nodes; give one of them")
        if {"valid", "val"} <= self.masks.keys():
            raise ValueError("masks.valid and masks.val are one part; give one of them")
        if self.files is None and self.split is not None:
            raise ValueError("split needs files")
        if self.files is None and (self.id is not None or self.separator is not None or self.id_type != "auto"):
            raise ValueError("id, id_type and separator need files")
        if self.files is None and self.num_nodes is None and (self.features or self.label or self.masks):
            raise ValueError("data needs files or num_nodes: otherwise no one knows which row is which node")
        return self


class EdgeFiles(TypeFiles, frozen=True):
    """One edge type; without column names the first two columns are source and destination."""

    type: Annotated[tuple[str, str, str], AfterValidator(checked_edge_type)]
    files: Names
    source: str | None = None
    destination: str | None = None
    weight: str | None = None

    @model_validator(mode="after")
    def _both_ends(self) -> EdgeFiles:
        if (self.source is None) != (self.destination is None):
            raise ValueError("source and destination go together: name both columns or none")
        return self


class Description(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """The whole file."""

    name: str | None = None
    nodes: dict[str, NodeFiles] = {}
    edges: Annotated[list[EdgeFiles], Field(min_length=1)]

    @model_validator(mode="after")
    def _types_are_distinct(self) -> Description:
        for ntype in self.nodes:
            checked_type_name(ntype)
        types = [edge.type for edge in self.edges]
        for etype in types:
            if types.count(etype) > 1:
                raise ValueError(f"edge type {':'.join(etype)} is given twice; list all its files under one")
        return self


def first_fault(error: ValidationError) -> str:
    """Path, value and limit of the first field that pydantic refused."""
    detail = error.errors(include_url=False)[0]
    path = ".".join(map(str, detail["loc"])) or "the file"
    is_value = detail["type"] != "missing" and not isinstance(detail["input"], dict | list)
    shown = f" = {str(detail['input'])[:60]!r}" if is_value else ""
    return f"{path}{shown}: {'unknown key' if detail['type'] == 'extra_forbidden' else limit_of(detail)}"


@register("yaml", paths=(".yaml", ".yml"))
def read_yaml(file: Path, options: ReadOptions) -> Contents:
    """The graph that a YAML file describes; its paths are relative to it. The module shows one.

    Node types with a file are numbered in the order of its rows; the others by the sorted ids of their edges.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file}: above the limit of {MAX_BYTES} bytes; is it a description of a graph?")
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a YAML text: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds {type(content).__name__} at the top; expected the keys 'nodes' and 'edges'")
    try:
        described = Description.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_fault(error)}") from None
    nodes = {ntype: _Nodes(file, ntype, section) for ntype, section in described.nodes.items()}
    ends = [_ends(file, place, section) for place, section in enumerate(described.edges)]
    for ntype in [end for section in described.edges for end in section.type[::2]]:  # not a set: order counts
        nodes.setdefault(ntype, _Nodes(file, ntype, NodeFiles()))
    numbers = _number_all(nodes, described, ends)
    edge_data = {
        section.type: _columns(file, f"edges.{place}", section, rows, rows.num)
        for place, (section, (rows, *_)) in enumerate(zip(described.edges, ends, strict=True))
    }
    node_data = {
        ntype: _columns(file, f"nodes.{ntype}", node.section, node.rows, node.num, node.positions)
        for ntype, node in nodes.items()
    }
    num_nodes, edges = {ntype: node.num for ntype, node in nodes.items()}, dict(zip(edge_data, numbers, strict=True))
    ids, name = {t: node.kept for t, node in nodes.items() if node.kept is not None}, described.name or file.stem
    with parsing(file, "a graph"):
        return Contents(HeteroGraph(num_nodes, edges, node_data, edge_data, ids, name=name))


class _Rows:
    """Files with the same columns, one after the other, in the order of their names.

    Args:
        base: The YAML file; the paths or patterns stand beside it.
        text: Columns to read as strings.
    """

    def __init__(self, base: Path, patterns: list[str], separator: str | None, text: Collection[str]) -> None:
        self.parts: list[tuple[Path, tables.Table, int]] = []
        self.names: list[str] = []
        for pattern in patterns:
            files = [base.parent / pattern]
            if any(mark in pattern for mark in "*?["):
                # the folder may hold such marks, too, and means itself
                files = sorted(base.parent / name for name in glob.glob(pattern, root_dir=base.parent))
                if not files:
                    raise DataError(f"{base}: no file matches {pattern!r}")
            for file in files:
                columns = tables.read_columns(file, separator=separator, text=text)
                if self.parts and list(columns) != self.names:
                    raise DataError(f"{file}: columns {list(columns)}, unlike {self.names} of {self.parts[0][0]}")
                self.names = list(columns)
                self.parts.append((file, columns, len(next(iter(columns.values())))))
        self.num = sum(num for _, _, num in self.parts)

    def place(self, row: int) -> str:
        """File and row, from 1 and without the header, of a row of the whole."""
        for file, _, num in self.parts:
            if row < num:
                return f"{file}, row {row + 1}"
            row -= num
        return str(self.parts[-1][0])

    def _columns(self, name: str) -> list[tuple[Path, str, Any]]:
        for file, part, _ in self.parts:
            if name not in part:
                raise DataError(f"{file}: no column {name!r}; columns: {', '.join(list(part)[:20])}")
        return [(file, name, part[name]) for file, part, _ in self.parts]

    def ids(self, name: str, kind: str) -> Ids:
        """A column as ids."""
        import pyarrow as pa

        read = [tables.ids_of(*column, kind) for column in self._columns(name)]
        if len({isinstance(column, np.ndarray) for column in read}) > 1:
            raise DataError(f"{self.parts[0][0]}: {name!r}: numbers in some files, names in others; set id_type: str")
        if isinstance(read[0], np.ndarray):
            return np.concatenate(read)
        return pa.chunked_array([chunk for column in read for chunk in column.chunks], type=pa.string())

    def numbers(self, name: str, missing: int | None = None) -> np.ndarray:
        """A column as numbers, (R,) or (R, width)."""
        return tables.joined([tables.numbers_of(*column, missing) for column in self._columns(name)])

    def classes(self, name: str) -> np.ndarray:
        """A column of classes, (R,) int64, -1 where one is missing; text is numbered in sorted order."""
        import pyarrow as pa

        columns = [column for _, _, column in self._columns(name)]
        if not all(pa.types.is_string(column.type) or pa.types.is_large_string(column.type) for column in columns):
            return self.numbers(name, missing=-1)
        text = np.concatenate([column.fill_null("").to_numpy(zero_copy_only=False) for column in columns]).astype(str)
        known = np.unique(text[text != ""])
        return np.where(text == "", -1, np.searchsorted(known, text)).astype(np.int64)

    def split_masks(self, name: str) -> dict[str, np.ndarray]:
        """A column with a word of a split in each row as the mask (R,) of each part that has rows."""
        words = [str(word or "").strip().lower() for *_, column in self._columns(name) for word in column.to_pylist()]
        found = np.array([part_of(word, self.place(row)) or "" for row, word in enumerate(words)])
        return {part: found == part for part in MASKS if (found == part).any()}


class _Nodes:
    """The nodes of one type: their number (-1: as the edges say), their ids and their data."""

    def __init__(self, file: Path, ntype: str, section: NodeFiles) -> None:
        self.file, self.ntype, self.section = file, ntype, section
        self.text = [section.id] if section.id is not None and section.id_type == "str" else []
        self.rows: _Rows | None = None
        self.ids: Ids | None = None
        self.num = -1 if section.num_nodes is None else section.num_nodes
        self.kept: np.ndarray | None = None
        if section.files is None:
            return
        self.rows = rows = _Rows(file, section.files, section.separator, self.text)
        if self.num not in (-1, rows.num):
            raise DataError(f"{file}: nodes.{ntype}.num_nodes = {self.num}, but its files have {rows.num} rows")
        self.num = rows.num
        if section.id is None:
            return
        self.ids = rows.ids(section.id, section.id_type)
        self.kept = self.ids if isinstance(self.ids, np.ndarray) else self.ids.to_numpy().astype(str)
        value = first_repeated(self.kept)
        if value is not None:
            row = int(np.flatnonzero(self.kept == value)[1])
            raise DataError(f"{rows.place(row)}: {section.id} {value!r} is given twice; ids must be distinct")
        if isinstance(self.ids, np.ndarray) and np.array_equal(self.ids, np.arange(self.num)):
            self.kept = None

    def numbers(self, word: str, place: Callable[[int], str], ids: Ids) -> np.ndarray:
        """Node numbers (R,) of ids; the error names the file and row, which ``place`` tells, and the id."""
        from pyarrow import compute

        if self.ids is None:
            if not isinstance(ids, np.ndarray):
                shown = repr(ids[0].as_py())
                raise DataError(f"{place(0)}: {word} {shown} is a name, but nodes.{self.ntype} has no id column")
            bad = first_outside(ids, self.num)
            if bad is not None:
                raise DataError(f"{place(bad)}: {word} {int(ids[bad])} is outside [0, {self.num})")
            return ids
        if isinstance(self.ids, np.ndarray) != isinstance(ids, np.ndarray):
            kind = "numbers" if isinstance(ids, np.ndarray) else "names"
            raise DataError(f"{place(0)}: {word} holds {kind}, unlike the ids of {self.ntype!r}; set id_type: str")
        found = compute.index_in(_arrow(ids), value_set=_arrow(self.ids))
        if found.null_count:
            row = int(np.argmax(np.asarray(found.is_null())))
            value = ids[row].item() if isinstance(ids, np.ndarray) else ids[row].as_py()
            raise DataError(f"{place(row)}: {word} {value!r} is no id of {self.ntype!r}")
        return found.to_numpy().astype(np.int64)

    def positions(self, file: Path) -> np.ndarray:
        """Node numbers of the ids in a split file."""
        read = tables.read_columns(file, header=False, text=["0"] if self.text else [])
        ids = tables.ids_of(file, "0", read["0"])
        return self.numbers("id", lambda row: f"{file}, row {row + 1}", ids)


_Ends = tuple[_Rows, Ids, Ids]
"""The rows of one edge type with their source and destination ids."""


def _ends(file: Path, place: int, section: EdgeFiles) -> _Ends:
    named = [name for name in (section.source, section.destination) if name is not None]
    if section.id_type == "str" and not named:
        raise ConfigError(f"edge type {section.type}: id_type: str needs the names of source and destination")
    rows = _Rows(file, section.files, section.separator, named if section.id_type == "str" else ())
    if rows.num == 0:
        raise DataError(f"{file}: edges.{place}.files: have no rows; expected at least 1")
    if not named and len(rows.names) < 2:
        raise DataError(f"{rows.place(0)}: {len(rows.names)} column(s); expected source and destination")
    source, destination = named or rows.names[:2]
    return rows, rows.ids(source, section.id_type), rows.ids(destination, section.id_type)


def _number_all(
    nodes: dict[str, _Nodes], described: Description, ends: list[_Ends]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both ends of every edge type as node numbers; types without files are numbered by all edges that touch them."""
    numbers: dict[tuple[int, int], np.ndarray] = {}
    touching: dict[str, list[tuple[int, int]]] = {}
    for place, (section, (rows, *ids)) in enumerate(zip(described.edges, ends, strict=True)):
        for side, word in enumerate(("source", "destination")):
            node = nodes[section.type[2 * side]]
            if node.num < 0:
                touching.setdefault(node.ntype, []).append((place, side))
            else:
                numbers[place, side] = node.numbers(word, rows.place, ids[side])
    for ntype, places in touching.items():
        columns = [ends[place][1 + side] for place, side in places]
        if len({isinstance(column, np.ndarray) for column in columns}) > 1:
            raise DataError(f"node type {ntype!r}: ids are numbers in some files and names in others; set id_type: str")
        own, nodes[ntype].kept, nodes[ntype].num = number_ids(*([column] for column in columns))
        numbers |= {key: column.astype(np.int64, copy=False) for key, column in zip(places, own, strict=True)}
    return [(numbers[place, 0], numbers[place, 1]) for place in range(len(ends))]


def _arrow(ids: Ids) -> Any:
    return arrow_ids(ids) if isinstance(ids, np.ndarray) else ids.combine_chunks()


def _columns(
    base: Path,
    where: str,
    section: TypeFiles,
    rows: _Rows | None,
    num: int,
    positions: Callable[[Path], np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Features, label, weight and masks of a type with ``num`` rows, from its own rows or from arrays beside it.

    Args:
        positions: Reads a file of ids; None: a mask is a column or a ``.npy`` file.
    """

    def values(key: str, place: str, read: Callable[[_Rows, str], np.ndarray]) -> np.ndarray:
        if place.endswith(".npy"):
            found = tables.read_npy(base.parent / place)
            if found.ndim < 1 or len(found) != num:
                raise DataError(f"{base.parent / place}: shape {found.shape}, but {where}.{key} needs {num} rows")
            return found
        if rows is None:
            raise DataError(
                f"{base}: {where}.{key}: names columns, but the type has no files; give files or a .npy array"
            )
        return read(rows, place)

    columns: dict[str, np.ndarray] = {}
    for name, places in section.features.items():
        read = [values(f"features.{name}", place, _Rows.numbers) for place in places]
        columns[name] = read[0] if len(read) == 1 else np.column_stack(read)
    if section.label is not None:
        columns["label"] = values("label", section.label, _Rows.classes)
    if isinstance(section, EdgeFiles) and section.weight is not None:
        assert rows is not None  # edges have files
        columns[WEIGHT] = weights = rows.numbers(section.weight)
        if weights.ndim != 1 or (weights.dtype.kind == "f" and not np.isfinite(weights).all()):
            row = 0 if weights.ndim != 1 else int(np.argmax(~np.isfinite(weights)))
            raise DataError(f"{rows.place(row)}: {section.weight} is no finite number; drop the edge or set a weight")
    if isinstance(section, NodeFiles) and section.split is not None:
        assert rows is not None  # checked above
        columns |= {MASKS[part]: mask for part, mask in rows.split_masks(section.split).items()}
    for word, place in section.masks.items():
        part = PART_WORDS[word]
        if place.endswith(".npy") or (rows is not None and place in rows.names):
            mask = values(f"masks.{part}", place, _Rows.numbers)
            if mask.ndim != 1 or not np.isin(mask, (0, 1)).all():
                raise DataError(f"{base}: {where}.masks.{part}: expected 0 and 1 or true and false, one for each row")
            columns[MASKS[part]] = mask.astype(bool)
        elif positions is not None and (base.parent / place).is_file():
            columns[MASKS[part]] = mask_of(positions(base.parent / place), num)
        else:
            raise DataError(f"{base}: {where}.masks.{part} = {place!r}: is neither a column nor a file beside it")
    return columns
