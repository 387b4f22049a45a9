"""``.npz`` files: compressed rows under ``indptr`` and ``indices``, or what ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr_readers.arrays import SPLITS, labels_of_arrays, load_arrays, stored_direction
from graph_emb.graph.csr_readers.matrix import checked_entries, checked_rows
from graph_emb.graph.csr_readers.source import checked_file, parsing
from graph_emb.graph.readers.memory import label_column
from graph_emb.graph.readers.scipy_matrix import from_matrix
from graph_emb.graph.readers.source import MASKS, WEIGHT, Contents, check_ids, has_suffix, mask_of, register
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph


@register("npz", has_suffix(".npz"))
def read_npz(source: Any, *, edge_type: EdgeType | str | None = None) -> Contents:
    """Rows (``indptr``, ``indices`` [, ``weights``, ``directed``, ``node_ids``, labels, splits]) or a matrix.

    With a false ``directed`` in the file an edge means both directions, of which one or both may be stored. Without
    ``directed``, rows with nothing below the diagonal hold each edge once, so that an edge means both directions. A
    matrix of ``scipy.sparse`` is taken as it is stored.

    Args:
        edge_type: As in the reader of scipy matrices; of compressed rows both ends are one type.
    """
    file = checked_file(source)
    arrays = load_arrays(file)
    if "format" in arrays and "shape" in arrays:
        from scipy import sparse

        with parsing(file, "a scipy.sparse file"), file.open("rb") as stream:
            matrix = checked_entries(file, sparse.load_npz(stream))
        with parsing(file, "a graph"):
            return Contents(from_matrix(matrix, edge_type, file.stem))
    if edge_type is not None:
        raise ConfigError(f"{file}: edge_type= is for matrices of scipy.sparse; this file holds {', '.join(arrays)}")
    if "indptr" not in arrays or "indices" not in arrays:
        shown = ", ".join(sorted(arrays)[:20]) or "none"
        raise DataError(f"{file}: no arrays 'indptr' and 'indices'; it holds: {shown}")
    return _from_rows(file, arrays)


def _from_rows(file: Path, arrays: dict[str, np.ndarray]) -> Contents:
    indptr, indices = checked_rows(file, "", arrays["indptr"], arrays["indices"])
    num_nodes = len(indptr) - 1
    src = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(indptr))
    directed = stored_direction(file, arrays)
    both_ways = directed is None and bool((src <= indices).all())
    columns: dict[str, np.ndarray] = {}
    labels = labels_of_arrays(file, arrays, num_nodes)
    if labels is not None:
        columns["label"] = label_column(labels)
    columns |= _masks(file, arrays, num_nodes)
    with parsing(file, "a graph"):
        graph = HeteroGraph(
            {NODE_TYPE: num_nodes},
            {EDGE_TYPE: (src, indices)},
            node_data={NODE_TYPE: columns} if columns else {},
            edge_data={EDGE_TYPE: {WEIGHT: arrays["weights"]}} if "weights" in arrays else {},
            node_ids={NODE_TYPE: arrays["node_ids"]} if "node_ids" in arrays else {},
            name=file.parent.name if file.name == "graph.npz" and file.parent.name else file.stem,
        )
    return Contents(graph, both_ways, undirected=directed is False)


def _masks(file: Path, arrays: dict[str, np.ndarray], num_nodes: int) -> dict[str, np.ndarray]:
    masks = {}
    for part, names in SPLITS.items():
        nodes = next((arrays[name] for name in names if name in arrays), None)
        if nodes is None:
            continue
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
            raise DataError(f"{file}: {names[0]} has shape {nodes.shape}, dtype {nodes.dtype}; expected integers")
        check_ids(file, names[0], nodes, num_nodes, first_row=0)
        masks[MASKS[part]] = mask_of(nodes, num_nodes)
    return masks
