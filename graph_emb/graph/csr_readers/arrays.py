"""``.npz`` files: compressed rows under ``indptr`` and ``indices``, or what ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers.matrix import checked_rows, graph_of_matrix
from graph_emb.graph.csr_readers.source import GraphFile, ReadOptions, parsing, register
from graph_emb.graph.labels import Labels

SPLITS = {"train": ("train_idx",), "valid": ("valid_idx", "val_idx"), "test": ("test_idx",)}
_LIMIT_OF_CLASSES = 10_000_000


@register("npz")
def read_npz(file: Path, options: ReadOptions) -> GraphFile:
    """A graph from ``indptr``, ``indices`` [, ``weights``, ``directed``, ``node_ids``] (row = source).

    Without ``directed`` in the options or in the file, a symmetric matrix and one with nothing below its diagonal
    (each edge once, smaller node first) are undirected graphs. Labels come from ``label`` or ``label_indptr`` and
    ``label_indices``, node splits from ``train_idx``, ``valid_idx``, ``test_idx``.
    """
    arrays = load_arrays(file)
    if "format" in arrays and "shape" in arrays:
        with parsing(file, "a scipy.sparse file"), file.open("rb") as stream:
            matrix = sparse.load_npz(stream)
        return GraphFile(graph_of_matrix(file, matrix, options))
    if "indptr" not in arrays or "indices" not in arrays:
        shown = ", ".join(sorted(arrays)[:20]) or "none"
        raise DataError(f"{file}: no arrays 'indptr' and 'indices'; it holds: {shown}")
    indptr, indices = checked_rows(file, "", arrays["indptr"], arrays["indices"])
    num_nodes = len(indptr) - 1
    graph = graph_of_matrix(
        file,
        _matrix_of_rows(file, indptr, indices, arrays.get("weights")),
        _with_stored_direction(file, arrays, options),
        half_is_undirected=True,
        has_weights="weights" in arrays,
        node_ids=arrays.get("node_ids"),
    )
    return GraphFile(graph, labels_of_arrays(file, arrays, num_nodes), _splits(file, arrays, num_nodes))


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


def labels_of_arrays(file: Path, arrays: Mapping[str, NDArray], num_nodes: int) -> Labels | None:
    """Labels of N nodes from the arrays of a file, or None where it has none.

    Raises:
        DataError: another number of nodes, or a class out of range.
    """
    if "label" in arrays:
        classes = arrays["label"]
        if classes.ndim != 1 or classes.dtype.kind not in "iu":
            raise DataError(f"{file}: label has shape {classes.shape}, dtype {classes.dtype}; expected integers")
        checked_length(file, len(classes), num_nodes)
        if int(classes.max(initial=-1)) >= _LIMIT_OF_CLASSES:
            raise DataError(f"{file}: label {classes.max()} is outside [0, {_LIMIT_OF_CLASSES}); is it an id?")
        with parsing(file, "labels"):
            return Labels.from_single(classes)
    if "label_indptr" not in arrays or "label_indices" not in arrays:
        return None
    indptr, indices = checked_rows(file, "label_", arrays["label_indptr"], arrays["label_indices"], _LIMIT_OF_CLASSES)
    checked_length(file, len(indptr) - 1, num_nodes)
    nodes = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(indptr))
    return Labels.from_pairs(nodes, indices, num_nodes)


def checked_length(file: Path, num_labelled: int, num_nodes: int) -> None:
    """A row of labels for every node of the graph."""
    if num_labelled != num_nodes:
        raise DataError(
            f"{file}: labels of {num_labelled} nodes, but the graph has {num_nodes}; are they of another graph?"
        )


def _matrix_of_rows(
    file: Path, indptr: NDArray[np.int64], indices: NDArray[np.int64], weights: NDArray | None
) -> sparse.coo_array:
    num_nodes = len(indptr) - 1
    if weights is None:
        weights = np.ones(len(indices), dtype=np.int8)
    if weights.dtype.kind not in "biuf":
        raise DataError(f"{file}: weights holds {weights.dtype} values; expected real numbers")
    if weights.shape != indices.shape:
        raise DataError(f"{file}: weights has shape {weights.shape}, but indices has {indices.shape}")
    rows = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(indptr))
    return sparse.coo_array((weights, (rows, indices)), shape=(num_nodes, num_nodes))


def _with_stored_direction(file: Path, arrays: Mapping[str, NDArray], options: ReadOptions) -> ReadOptions:
    stored = stored_direction(file, arrays) if options.directed is None else None
    return options if stored is None else replace(options, directed=stored)


def stored_direction(file: Path, arrays: Mapping[str, NDArray]) -> bool | None:
    """Whether the file says that its arcs are directed; None: it does not say.

    Raises:
        DataError: ``directed`` is no single boolean.
    """
    if "directed" not in arrays:
        return None
    stored = arrays["directed"]
    if stored.size != 1 or stored.dtype.kind not in "biu":
        raise DataError(f"{file}: directed has shape {stored.shape}, dtype {stored.dtype}; expected one boolean")
    return bool(stored.item())


def _splits(file: Path, arrays: Mapping[str, NDArray], num_nodes: int) -> dict[str, NDArray[np.int64]] | None:
    found: dict[str, NDArray[np.int64]] = {}
    for part, names in SPLITS.items():
        for name in names:
            if name not in arrays:
                continue
            nodes = arrays[name]
            if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
                raise DataError(f"{file}: {name} has shape {nodes.shape}, dtype {nodes.dtype}; expected integers")
            bad = (nodes < 0) | (nodes >= num_nodes)
            if bad.any():
                place = int(np.argmax(bad))
                raise DataError(f"{file}: {name}[{place}] is {nodes[place]}, outside [0, {num_nodes})")
            found[part] = nodes.astype(np.int64)
    return found or None
