"""Files of labels and of the parts of a split, matched to the ids of a graph."""

# N nodes, R rows of a file

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.matrices import (
    SPLITS,
    checked_length,
    labels_of_arrays,
    labels_of_variables,
    load_arrays,
    load_variables,
)
from graph_emb.graph.readers.source import MASKS, PART_WORDS, check_ids, checked_file, part_of, split_suffix
from graph_emb.graph.readers.tables import LARGEST_ID, PARQUET, is_integer, place_of, rows_of

TEXT_SUFFIXES = ("csv", "tsv", "txt")
ARRAY_SUFFIXES = ("npz", "mat")
PARTS = tuple(MASKS)
MASK_COLUMNS = {f"{word}{end}": part for word, part in PART_WORDS.items() for end in ("", "_mask")}
SPLIT = "split"
_TRUTH = {"1": True, "true": True, "0": False, "false": False, "": False}
_NODE_NAMES = ("node", "node_id", "nodeid", "id", "user", "nodes", "name", "vertex")


class SplitFile:
    """The nodes of each part, in the order of a file, and the row that says so of each.

    Args:
        source: The file or folder.
        graph: Of N nodes.
    """

    def __init__(self, source: Path, graph: Graph) -> None:
        self.source, self._graph = source, graph
        self._part = np.full(graph.num_nodes, -1, np.int8)
        self._row = np.zeros(graph.num_nodes, np.int64)
        self._nodes: dict[str, list[NDArray[np.int64]]] = {}
        self._places: dict[str, Callable[[int], str]] = {}

    def add(self, part: str, nodes: NDArray[np.int64], rows: NDArray[np.int64], place: Callable[[int], str]) -> None:
        """Put nodes (R,) into a part; one that is there already counts once.

        Args:
            rows: Of the file, shape (R,).
            place: A row as an error shows it.
        Raises:
            DataError: a node is in another part.
        """
        number = PARTS.index(part)
        taken = (self._part[nodes] >= 0) & (self._part[nodes] != number)
        self._places[part] = place
        if taken.any():
            first = int(np.argmax(taken))
            node = int(nodes[first])
            raise DataError(
                f"{place(int(rows[first]))}: node {self._id(node)} is in {part}, and in {PARTS[self._part[node]]} by "
                f"{self._where(node)}; the parts of a split must be disjoint"
            )
        own, order = np.unique(nodes, return_index=True)
        self._nodes.setdefault(part, []).append(nodes[np.sort(order[self._part[own] < 0])])
        self._row[nodes[::-1]] = rows[::-1]
        self._part[nodes] = number

    def checked(self, labels: Labels) -> dict[str, NDArray[np.int64]]:
        """The nodes of each part.

        Args:
            labels: Of the N nodes.
        Raises:
            DataError: no node is in train or test; a node of a part has no label, or one of a class without a training
                node.
        """
        split = {part: np.concatenate(self._nodes[part]) for part in PARTS if part in self._nodes}
        split = {part: nodes for part, nodes in split.items() if len(nodes)}
        for part in ("train", "test"):
            if part not in split:
                raise DataError(f"{self.source}: no node is in {part}; a split has nodes in train and test")
        counts, seen = labels.counts(), np.zeros(labels.num_classes, bool)
        for part, nodes in split.items():
            without = counts[nodes] == 0
            if without.any():
                node = int(nodes[np.argmax(without)])
                raise DataError(f"{self._where(node)}: {part} node {self._id(node)} has no label; leave it out")
            own = labels.subset(nodes)
            if part == "train":
                seen[own.indices] = True
            strange = ~seen[own.indices]
            if strange.any():
                first = int(np.argmax(strange))
                node = int(nodes[np.searchsorted(own.indptr, first, side="right") - 1])
                number = int(own.indices[first])
                name = number if labels.class_names is None else labels.class_names[number]
                raise DataError(
                    f"{self._where(node)}: {part} node {self._id(node)} is of class {name!r}, which no train node has; "
                    "give train some, or leave the class out"
                )
        return split

    def _id(self, node: int) -> str:
        return repr(self._graph.ids_of([node])[0].item())

    def _where(self, node: int) -> str:
        return self._places[PARTS[self._part[node]]](int(self._row[node]))


def read_labels(path: str | Path, graph: Graph, *, header: bool | None = None) -> Labels:
    """The labels of a graph's nodes.

    * csv, tsv, txt [.gz], Parquet: rows ``node,label[,label...]`` in any order, a node on any number of rows; several
      labels of a cell are split at ``;``. ``node`` is the id that the graph's file used. An empty label or the integer
      -1 means none. Classes are numbered in sorted order (integers by value) and keep their texts as ``class_names``.
      Columns that a header calls ``split``, ``train``, ``val``, ``valid`` or ``test`` are no labels but a split.
    * npz: ``label`` (N,) with -1 for none, or ``label_indptr`` and ``label_indices``, in the order of the nodes.
    * mat: ``group`` (N, C), as in the DeepWalk files.

    Args:
        header: Whether the first row of a text file is a header; None: it is, where its first cell is a usual name
            or no integer while all ids of the graph are integers, or where it names the columns of a split and no node.
    Raises:
        DataError: no such file, damaged, or of another graph: names file, line, value and limit.
    """
    return read_labels_and_split(path, graph, header=header)[0]


def read_labels_and_split(
    path: str | Path, graph: Graph, *, header: bool | None = None
) -> tuple[Labels, SplitFile | None]:
    """The labels of a graph's nodes, and the split where the file has one. Arguments and errors as ``read_labels``."""
    file = checked_file(path)
    suffix, gzipped = split_suffix(file)
    if suffix in (*TEXT_SUFFIXES, *PARQUET):
        rows = _read_rows(file, graph, header, is_split=False)
        return _labels_of(rows, graph), _split_of(rows, graph) if rows.has_split else None
    if suffix not in ARRAY_SUFFIXES or gzipped:
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET, *ARRAY_SUFFIXES))
        raise DataError(f"{file}: suffix '.{suffix}' is no labels file; known: {known}")
    if header is not None:
        raise ConfigError(f"header={header} means nothing to a .{suffix} file")
    split = None
    if suffix == "npz":
        arrays = load_arrays(file)
        labels, split = labels_of_arrays(file, arrays, graph.num_nodes), _split_of_arrays(file, arrays, graph)
        expected = "label or label_indptr, label_indices"
    else:
        labels, expected = labels_of_variables(file, load_variables(file), graph.num_nodes), "group"
    if labels is None:
        raise DataError(f"{file}: holds no labels; expected {expected}")
    return labels, split


def read_split(path: str | Path, graph: Graph) -> SplitFile:
    """The nodes of ``train``, ``valid`` and ``test``; a node that is not named is in no part.

    * csv, tsv, txt [.gz], Parquet: rows ``node,part``, the part being train, valid (or val) or test; or with a header
      a column ``split``, or columns ``train``, ``valid`` (or ``val``), ``test`` of 0 and 1. Other columns are left out.
    * npz: masks ``train_mask``, ``val_mask``, ``test_mask`` (N,), or node numbers ``train_idx``, ``valid_idx`` (or
      ``val_idx``), ``test_idx``.
    * a folder with files ``train``, ``valid`` (or ``val``) and ``test`` of those suffixes, a node in each row.

    Raises:
        DataError: no such file, damaged, or of another graph; an unknown part, or a node in two: names file and line.
    """
    place = Path(path)
    if place.is_dir():
        return _split_of_folder(place, graph)
    file = checked_file(place)
    suffix, gzipped = split_suffix(file)
    if suffix in (*TEXT_SUFFIXES, *PARQUET):
        rows = _read_rows(file, graph, None, is_split=True)
        return _split_of(rows, graph)
    if suffix != "npz" or gzipped:
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET, "npz"))
        raise DataError(f"{file}: suffix '.{suffix}' is no split file; known: {known}, or a folder of train and test")
    split = _split_of_arrays(file, load_arrays(file), graph)
    if split is None:
        raise DataError(f"{file}: holds no split; expected {', '.join(MASKS.values())} or {', '.join(SPLITS)}")
    return split


@dataclass(frozen=True, eq=False)
class _NodeRows:
    """The rows of a file about nodes.

    Attributes:
        numbers: Of the rows in the file, shape (R,).
        nodes: Shape (R,).
        cells: Behind the id, of each row.
        names: Of their columns, in lower case; empty without a header.
    """

    file: Path
    numbers: NDArray[np.int64]
    nodes: NDArray[np.int64]
    cells: list[list[str]]
    names: list[str]

    @property
    def has_split(self) -> bool:
        return any(name == SPLIT or name in MASK_COLUMNS for name in self.names)

    def place(self, row: int) -> str:
        return place_of(self.file, row)

    def cell(self, row: int, column: int) -> str:
        """A cell; empty where the row is short."""
        return self.cells[row][column] if column < len(self.cells[row]) else ""


def _read_rows(file: Path, graph: Graph, header: bool | None, *, is_split: bool, least: int = 2) -> _NodeRows:
    """All rows, each with at least ``least`` cells, of which the first is the id of a node."""
    takes_names = graph.node_ids is not None and graph.node_ids.dtype.kind == "U"
    numbers: list[int] = []
    ids: list[str] = []
    cells: list[list[str]] = []
    names: list[str] = []
    for count, (number, row) in enumerate(rows_of(file)):
        if count == 0 and (not number or (_names_columns(row, graph, is_split) if header is None else header)):
            names = [name.lower() for name in row[1:]]
            continue
        if len(row) < least:
            expected = "node,part of a split" if is_split else "node,label[,label...]"
            raise DataError(f"{place_of(file, number)}: {len(row)} column, expected {expected}")
        if not takes_names and not is_integer(row[0]):
            raise DataError(f"{place_of(file, number)}: node {row[0][:60]!r} is not an integer, as the graph's ids are")
        numbers.append(number)
        ids.append(row[0])
        cells.append(row[1:])
    if not ids:
        raise DataError(f"{file}: has no {'nodes' if is_split else 'labels'}; expected rows node,label")
    nodes = graph.find_nodes(np.array(ids if takes_names else [_as_id(text) for text in ids]))
    if (nodes < 0).any():
        first = int(np.argmax(nodes < 0))
        raise DataError(
            f"{place_of(file, numbers[first])}: node {ids[first][:60]!r} is not among the {graph.num_nodes} nodes of "
            "the graph; is the file of another graph?"
        )
    return _NodeRows(file, np.array(numbers), nodes, cells, names)


def _as_id(text: str) -> int:
    return min(max(int(text), -1), LARGEST_ID)


def _names_columns(row: Sequence[str], graph: Graph, is_split: bool) -> bool:
    """Whether the first row of a text is a header."""
    takes_names = graph.node_ids is not None and graph.node_ids.dtype.kind == "U"
    if row[0].lower() in _NODE_NAMES or not (takes_names or is_integer(row[0])):
        return True
    words = [cell.lower() for cell in row[1:]]
    told = SPLIT in words or sum(word in MASK_COLUMNS for word in words) > is_split  # a,train is a row of a split
    return told and takes_names and int(graph.find_nodes(np.array([row[0]]))[0]) < 0


def _labels_of(rows: _NodeRows, graph: Graph) -> Labels:
    of_split = {place for place, name in enumerate(rows.names) if name == SPLIT or name in MASK_COLUMNS}
    if of_split and len(of_split) == len(rows.names):
        raise DataError(f"{rows.file}: holds no labels; its columns are {', '.join(rows.names)}")
    nodes: list[int] = []
    words: list[str] = []
    for node, cells in zip(rows.nodes.tolist(), rows.cells, strict=True):
        kept = [cell for place, cell in enumerate(cells) if place not in of_split]
        found = [word for cell in kept for word in (part.strip() for part in cell.split(";")) if word] or [""]
        nodes.extend([node] * len(found))
        words.extend(found)
    return _numbered(np.array(nodes), np.array(words), graph.num_nodes)


def _numbered(nodes: NDArray[np.int64], words: NDArray[np.str_], num_nodes: int) -> Labels:
    names, classes = np.unique(words, return_inverse=True)
    texts, none = names.tolist(), {""}
    order: Sequence[int] = range(len(texts))
    if all(is_integer(text) for text in texts if text):
        order = sorted(order, key=lambda place: (int(texts[place] or -1), texts[place]))
        none = {"", "-1"}
    kept = [place for place in order if texts[place] not in none]
    number = np.full(len(texts), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    classes = number[classes]
    known = classes >= 0
    return Labels.from_pairs(nodes[known], classes[known], num_nodes, class_names=[texts[place] for place in kept])


def _split_of(rows: _NodeRows, graph: Graph) -> SplitFile:
    """The split of a text or table: of its columns ``split`` and masks, or without a header of the second one."""
    columns = {place: name for place, name in enumerate(rows.names) if name == SPLIT or name in MASK_COLUMNS}
    if rows.names and not columns:
        raise DataError(
            f"{rows.file}: has no column {SPLIT}, and no mask train, valid or test; columns: {', '.join(rows.names)}"
        )
    split = SplitFile(rows.file, graph)
    for column, name in (columns or {0: SPLIT}).items():
        words = [rows.cell(row, column).lower() for row in range(len(rows.nodes))]
        if name == SPLIT:
            parts = [part_of(word, rows.place(int(row))) for word, row in zip(words, rows.numbers, strict=True)]
        else:
            bad = next((place for place, word in enumerate(words) if word not in _TRUTH), None)
            if bad is not None:
                where = rows.place(int(rows.numbers[bad]))
                raise DataError(f"{where}: {name} = {words[bad][:60]!r}; expected 0 and 1, or true and false")
            parts = [MASK_COLUMNS[name] if _TRUTH[word] else None for word in words]
        for part in PARTS:
            own = np.array([found == part for found in parts], bool)
            split.add(part, rows.nodes[own], rows.numbers[own], rows.place)
    return split


def _split_of_arrays(file: Path, arrays: Mapping[str, NDArray], graph: Graph) -> SplitFile | None:
    """The split of an ``.npz`` file, in the order of the nodes; None where it has none."""
    found = {name: arrays[name] for name in arrays if name in MASK_COLUMNS or name in SPLITS}
    if not found:
        return None
    split = SplitFile(file, graph)
    for name, array in found.items():
        if name in SPLITS:
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise DataError(f"{file}: {name} has shape {array.shape} of {array.dtype}; expected node numbers")
            check_ids(file, name, array, graph.num_nodes, first_row=0)
            nodes = array.astype(np.int64)
        else:
            if array.ndim != 1 or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
                raise DataError(f"{file}: {name} has shape {array.shape} of {array.dtype}; expected a mask (N,)")
            checked_length(file, len(array), graph.num_nodes)
            nodes = np.flatnonzero(array)
        split.add(SPLITS.get(name) or MASK_COLUMNS[name], nodes, nodes, lambda row, name=name: f"{file}: {name}")  # type: ignore[misc]
    return split


def _split_of_folder(folder: Path, graph: Graph) -> SplitFile:
    known = (*TEXT_SUFFIXES, *PARQUET)
    files = {
        PART_WORDS[stem]: entry
        for entry in sorted(folder.iterdir())
        if (stem := entry.name.partition(".")[0].lower()) in PART_WORDS and split_suffix(entry)[0] in known
    }
    if not {"train", "test"} <= files.keys():
        raise DataError(f"{folder}: is a folder without files train and test of .{', .'.join(known)}; is it a split?")
    split = SplitFile(folder, graph)
    for part in PARTS:
        if part in files:
            rows = _read_rows(files[part], graph, None, is_split=True, least=1)
            split.add(part, rows.nodes, rows.numbers, rows.place)
    return split
