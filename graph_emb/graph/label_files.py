"""Files of labels for the nodes of a graph: ``.npz``, ``.mat`` and text, matched by the ids of the graph."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.matrices import labels_of_arrays, labels_of_variables, load_arrays, load_variables
from graph_emb.graph.readers.source import checked_file, split_suffix
from graph_emb.graph.readers.tables import LARGEST_ID, MAX_ID_LENGTH, is_integer, lines_of, separator_of

TEXT_SUFFIXES = ("csv", "tsv", "txt")
ARRAY_SUFFIXES = ("npz", "mat")
_NODE_NAMES = ("node", "node_id", "nodeid", "id", "user", "nodes", "name", "vertex")


def read_labels(path: str | Path, graph: Graph, *, header: bool | None = None) -> Labels:
    """The labels of a graph's nodes.

    * csv, tsv, txt [.gz]: rows ``node,label[,label...]`` in any order, a node on any number of rows; several labels of
      a cell are split at ``;``. ``node`` is the id that the graph's file used. An empty label or the integer -1 means
      none. Classes are numbered in sorted order (integers by value) and keep their texts as ``class_names``.
    * npz: ``label`` (N,) with -1 for none, or ``label_indptr`` and ``label_indices``, in the order of the nodes.
    * mat: ``group`` (N, C), as in the DeepWalk files.

    Args:
        header: Whether the first row of a text file is a header; None: it is, where its first cell is a usual name
            or no integer while all ids of the graph are integers.
    Raises:
        DataError: no such file, damaged, or of another graph: names file, line, value and limit.
    """
    file = checked_file(path)
    suffix, gzipped = split_suffix(file)
    if suffix in TEXT_SUFFIXES:
        return _read_text(file, graph, header)
    if suffix not in ARRAY_SUFFIXES or gzipped:
        known = ", ".join((*TEXT_SUFFIXES, *ARRAY_SUFFIXES))
        raise DataError(f"{file}: suffix '.{suffix}' is no labels file; known: {known}")
    if header is not None:
        raise ConfigError(f"header={header} means nothing to a .{suffix} file")
    if suffix == "npz":
        labels = labels_of_arrays(file, load_arrays(file), graph.num_nodes)
        expected = "label or label_indptr, label_indices"
    else:
        labels, expected = labels_of_variables(file, load_variables(file), graph.num_nodes), "group"
    if labels is None:
        raise DataError(f"{file}: holds no labels; expected {expected}")
    return labels


def _read_text(file: Path, graph: Graph, header: bool | None) -> Labels:
    lines: list[int] = []
    ids: list[str] = []
    words: list[str] = []
    takes_names = graph.node_ids is not None and graph.node_ids.dtype.kind == "U"
    for count, (line, cells) in enumerate(_rows(file)):
        looks_so = cells[0].lower() in _NODE_NAMES or not (takes_names or is_integer(cells[0]))
        if count == 0 and (looks_so if header is None else header):
            continue
        if len(cells) < 2:
            raise DataError(f"{file}, line {line}: 1 column, expected node,label[,label...]")
        if max(map(len, cells)) > MAX_ID_LENGTH:
            raise DataError(
                f"{file}, line {line}: a cell has more than {MAX_ID_LENGTH} characters; is it a labels file?"
            )
        if not takes_names and not is_integer(cells[0]):
            raise DataError(f"{file}, line {line}: node {cells[0][:60]!r} is not an integer, as the graph's ids are")
        found = [word for cell in cells[1:] for word in (part.strip() for part in cell.split(";")) if word] or [""]
        lines.extend([line] * len(found))
        ids.extend([cells[0]] * len(found))
        words.extend(found)
    if not ids:
        raise DataError(f"{file}: has no labels; expected rows node,label")
    asked = ids if takes_names else [min(max(int(text), -1), LARGEST_ID) for text in ids]
    nodes = graph.find_nodes(np.array(asked))
    if (nodes < 0).any():
        first = int(np.argmax(nodes < 0))
        raise DataError(
            f"{file}, line {lines[first]}: node {ids[first][:60]!r} is not among the {graph.num_nodes} nodes of the "
            "graph; are the labels of another graph?"
        )
    return _labels(nodes, np.array(words), graph.num_nodes)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number (from 1) and cells of each line that is neither blank nor a comment."""
    separator: str | None = None
    for line, text in lines_of(file, "#%", 1 << 22):
        separator = separator or separator_of(text, ",\t")
        try:
            cells = text.split() if separator == " " else next(csv.reader([text.strip()], delimiter=separator))
        except csv.Error as error:
            raise DataError(f"{file}, line {line}: {error}") from error
        yield line, [cell.strip() for cell in cells]


def _labels(nodes: NDArray[np.int64], words: NDArray[np.str_], num_nodes: int) -> Labels:
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
