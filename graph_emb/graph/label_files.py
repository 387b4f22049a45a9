"""Files of labels for the nodes of a graph: ``.npz``, ``.mat`` and text, matched by the ids of the graph."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.arrays import labels_of_arrays, load_arrays
from graph_emb.graph.readers.matlab import labels_of_variables, load_variables
from graph_emb.graph.readers.source import GZIP_ERRORS, checked_file, open_bytes, split_suffix
from graph_emb.graph.readers.tables import MAX_ID_LENGTH, is_integer

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
        return _read_text(file, gzipped, graph, header)
    if suffix not in ARRAY_SUFFIXES or gzipped:
        known = ", ".join((*TEXT_SUFFIXES, *ARRAY_SUFFIXES))
        raise DataError(f"{file}: suffix '.{suffix}' is no labels file; known: {known}")
    if header is not None:
        raise ConfigError(f"header={header} means nothing to a .{suffix} file")
    labels = _read_arrays(file, suffix, graph.num_nodes)
    if labels is None:
        expected = "label or label_indptr, label_indices" if suffix == "npz" else "group"
        raise DataError(f"{file}: holds no labels; expected {expected}")
    return labels


def _read_arrays(file: Path, suffix: str, num_nodes: int) -> Labels | None:
    if suffix == "npz":
        return labels_of_arrays(file, load_arrays(file), num_nodes)
    return labels_of_variables(file, load_variables(file), num_nodes)


def _read_text(file: Path, gzipped: bool, graph: Graph, header: bool | None) -> Labels:
    lines: list[int] = []
    ids: list[str] = []
    words: list[str] = []
    takes_names = graph.node_ids is not None and graph.node_ids.dtype.kind == "U"
    for count, (line, cells) in enumerate(_rows(file, gzipped)):
        if count == 0 and (_is_header(cells[0], takes_names) if header is None else header):
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
    nodes = _find(file, ids, lines, graph, takes_names)
    return _labels(nodes, np.array(words), graph.num_nodes)


def _rows(file: Path, gzipped: bool) -> Iterator[tuple[int, list[str]]]:
    """Line number (from 1) and cells of each line that is neither blank nor a comment."""
    separator: str | None = None
    line = 0
    try:
        with open_bytes(file, gzipped) as stream:
            for line, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
                if not text or text[0] in "#%":
                    continue
                if separator is None:
                    separator = next((mark for mark in (",", "\t") if mark in text), " ")
                yield line, _cells(text, separator)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, line {line}: byte {error.object[error.start]:#x} is not UTF-8 text") from None
    except GZIP_ERRORS as error:
        raise DataError(f"{file}: damaged or cut off after line {line}: {error}; fetch it again") from error
    except csv.Error as error:
        raise DataError(f"{file}, line {line}: {error}") from error


def _cells(text: str, separator: str) -> list[str]:
    if separator == " ":
        return text.split()
    return [cell.strip() for cell in next(csv.reader([text], delimiter=separator))]


def _is_header(cell: str, takes_names: bool) -> bool:
    return cell.lower() in _NODE_NAMES or (not takes_names and not is_integer(cell))


def _find(file: Path, ids: list[str], lines: list[int], graph: Graph, takes_names: bool) -> NDArray[np.int64]:
    """Node numbers of the ids, each known to the graph."""
    if takes_names:
        nodes = graph.find_nodes(np.array(ids))
    else:
        nodes = graph.find_nodes(np.array([min(max(int(text), -1), 2**63 - 1) for text in ids], dtype=np.int64))
    if (nodes < 0).any():
        first = int(np.argmax(nodes < 0))
        raise DataError(
            f"{file}, line {lines[first]}: node {ids[first][:60]!r} is not among the {graph.num_nodes} nodes of the "
            "graph; are the labels of another graph?"
        )
    return nodes


def _labels(nodes: NDArray[np.int64], words: NDArray[np.str_], num_nodes: int) -> Labels:
    names, classes = np.unique(words, return_inverse=True)
    texts = names.tolist()
    if all(is_integer(text) for text in texts if text):
        order = sorted(range(len(texts)), key=lambda place: (int(texts[place] or -1), texts[place]))
        none = {"", "-1"}
    else:
        order = list(range(len(texts)))
        none = {""}
    kept = [place for place in order if texts[place] not in none]
    number = np.full(len(texts), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    classes = number[classes]
    has_label = classes >= 0
    return Labels.from_pairs(
        nodes[has_label], classes[has_label], num_nodes, class_names=[texts[place] for place in kept]
    )
