"""``.npz`` files: compressed rows under ``indptr`` and ``indices``, or a file of ``scipy.sparse.save_npz``."""

# N nodes, E stored edges

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.ids import distinct_ids, first_outside
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.scipy_matrix import checked_entries, graph_of_matrix, is_symmetric
from graph_emb.graph.readers.source import (
    MASKS,
    WEIGHT,
    Contents,
    check_ids,
    checked_file,
    has_suffix,
    mask_of,
    parsing,
    register,
)
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph

SPLITS = {"train": ("train_idx",), "valid": ("valid_idx", "val_idx"), "test": ("test_idx",)}
_LIMIT_OF_CLASSES = 10_000_000


@register("npz", has_suffix(".npz"), "edge_type")
def read_npz(source: Any, options: ReadOptions) -> Contents:
    """Rows (``indptr``, ``indices`` [, ``weights``, ``directed``, ``node_ids``, labels, splits]) or a matrix.

    With a false ``directed`` in the file an edge means both directions, of which one or both may be stored. Without
    ``directed``, rows with nothing below the diagonal hold each edge once, so that an edge means both directions.
    """
    file = checked_file(source)
    arrays = load_arrays(file)
    if "format" in arrays and "shape" in arrays:
        with parsing(file, "a scipy.sparse file"), file.open("rb") as stream:
            matrix = checked_entries(file, sparse.load_npz(stream))
        with parsing(file, "a graph"):
            return Contents(graph_of_matrix(matrix, options, file.stem))
    if "indptr" not in arrays or "indices" not in arrays:
        shown = ", ".join(sorted(arrays)[:20]) or "none"
        raise DataError(f"{file}: no arrays 'indptr' and 'indices'; it holds: {shown}")
    if options.edge_type is not None:
        raise ConfigError(f"{file}: edge_type= is for matrices of scipy.sparse; this file holds {', '.join(arrays)}")
    return _of_rows(file, arrays)


def load_arrays(file: Path) -> dict[str, NDArray]:
    """All arrays of an ``.npz`` file; none may need a pickle.

    Raises:
        DataError: no zip archive, damaged, or an array of Python objects.
    """
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file}: is no .npz archive or was cut off; fetch or write it again")
    # numpy leaves a file that it opened itself open when the archive is damaged.
    with parsing(file, "an .npz archive"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name.isidentifier()}


def _of_rows(file: Path, arrays: dict[str, NDArray]) -> Contents:
    indptr, indices = _checked_rows(file, "", arrays["indptr"], arrays["indices"])
    num_nodes = len(indptr) - 1
    src, dst, weights, zeros = np.repeat(np.arange(num_nodes), np.diff(indptr)), indices, arrays.get("weights"), 0
    if weights is not None:
        if weights.dtype.kind not in "biuf":
            raise DataError(f"{file}: weights holds {weights.dtype} values; expected real numbers")
        if weights.shape != indices.shape:
            raise DataError(f"{file}: weights has shape {weights.shape}, but indices has {indices.shape}")
        present = weights != 0
        zeros = int((~present).sum())
        src, dst, weights = src[present], dst[present], weights[present]
    directed: bool | None = None  # the file does not say
    if "directed" in arrays:
        stored = arrays["directed"]
        if stored.size != 1 or stored.dtype.kind not in "biu":
            raise DataError(f"{file}: directed has shape {stored.shape}, dtype {stored.dtype}; expected one boolean")
        directed = bool(stored.item())
    half = directed is None and bool((src <= dst).all())
    labels = labels_of_arrays(file, arrays, num_nodes)
    columns = {} if labels is None else {"label": labels.to_column()}
    columns |= _masks(file, arrays, num_nodes)
    with parsing(file, "a graph"):
        graph = HeteroGraph(
            {NODE_TYPE: num_nodes},
            {EDGE_TYPE: (src, dst)},
            node_data={NODE_TYPE: columns},
            edge_data={EDGE_TYPE: {} if weights is None else {WEIGHT: weights}},
            node_ids={NODE_TYPE: distinct_ids(arrays["node_ids"], num_nodes)} if "node_ids" in arrays else {},
            counts={"explicit zeros dropped": zeros} if zeros else {},
            name=file.parent.name if file.name == "graph.npz" and file.parent.name else file.stem,
            symmetric=directed is None and not half and is_symmetric(src, dst, weights, num_nodes),
        )
    return Contents(graph, both_ways=half, undirected=directed is False)


def labels_of_arrays(file: Path, arrays: Mapping[str, NDArray], num_nodes: int) -> Labels | None:
    """Labels of N nodes from the arrays of a file, or None where it has none.

    Raises:
        DataError: another number of nodes, or a class out of range.
    """
    if "label" in arrays:
        classes = _integers(file, "label", arrays["label"])
        checked_length(file, len(classes), num_nodes)
        if int(classes.max(initial=-1)) >= _LIMIT_OF_CLASSES:
            raise DataError(f"{file}: label {classes.max()} is outside [0, {_LIMIT_OF_CLASSES}); is it an id?")
        with parsing(file, "labels"):
            return Labels.from_single(classes)
    if "label_indptr" not in arrays or "label_indices" not in arrays:
        return None
    indptr, indices = _checked_rows(file, "label_", arrays["label_indptr"], arrays["label_indices"], _LIMIT_OF_CLASSES)
    checked_length(file, len(indptr) - 1, num_nodes)
    nodes = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(indptr))
    return Labels.from_pairs(nodes, indices, num_nodes)


def checked_length(file: Path, num_labelled: int, num_nodes: int) -> None:
    """A row of labels for every node of the graph."""
    if num_labelled != num_nodes:
        raise DataError(
            f"{file}: labels of {num_labelled} nodes, but the graph has {num_nodes}; are they of another graph?"
        )


def _checked_rows(
    file: Path, name: str, indptr: NDArray, indices: NDArray, limit: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compressed rows as int64, once they are consistent.

    Args:
        name: Prefix of the names ``indptr`` and ``indices`` in the file, for errors.
        limit: Entries of ``indices`` lie below this; None: below the number of rows.
    Raises:
        DataError: row, value and limit of the first entry that does not fit.
    """
    _integers(file, f"{name}indptr", indptr)
    _integers(file, f"{name}indices", indices)
    if not len(indptr) or int(indptr[0]) != 0:
        raise DataError(f"{file}: {name}indptr must start with 0; is the file whole?")
    rows, columns = indptr.astype(np.int64), indices.astype(np.int64)
    falls = np.diff(rows) < 0
    if falls.any():
        row = int(np.argmax(falls))
        raise DataError(f"{file}: {name}indptr falls from {rows[row]} to {rows[row + 1]} at row {row}")
    if rows[-1] != len(columns):
        raise DataError(f"{file}: {name}indptr ends at {rows[-1]}, but {name}indices has {len(columns)} entries")
    bound = len(rows) - 1 if limit is None else limit
    place = first_outside(columns, bound)
    if place is not None:
        row = int(np.searchsorted(rows, place, side="right")) - 1
        raise DataError(f"{file}: {name}indices holds {columns[place]} in row {row}, outside [0, {bound})")
    return rows, columns


def _integers(file: Path, name: str, array: NDArray) -> NDArray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{file}: {name} has shape {array.shape}, dtype {array.dtype}; expected integers")
    return array


def _masks(file: Path, arrays: dict[str, NDArray], num_nodes: int) -> dict[str, NDArray]:
    masks = {}
    for part, names in SPLITS.items():
        name = next((name for name in names if name in arrays), None)
        if name is None:
            continue
        nodes = _integers(file, name, arrays[name])
        check_ids(file, name, nodes, num_nodes, first_row=0)
        masks[MASKS[part]] = mask_of(nodes, num_nodes)
    return masks
