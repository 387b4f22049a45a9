"""Square sparse matrices as graphs: direction by symmetry, explicit zeros are no arcs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.core.log import get_logger
from graph_emb.graph.build import MAX_NODES
from graph_emb.graph.csr import Graph
from graph_emb.graph.csr_readers.source import ReadOptions, graph_of_arcs, parsing

_log = get_logger(__name__)


def graph_of_matrix(
    file: Path,
    matrix: Any,
    options: ReadOptions,
    *,
    half_is_undirected: bool = False,
    has_weights: bool = True,
    node_ids: NDArray | None = None,
) -> Graph:
    """The graph whose arcs are a matrix's non-zeros, row = source.

    Where the options do not say ``directed``: a symmetric matrix is an undirected graph, another a directed one.

    Args:
        half_is_undirected: A matrix with nothing below its diagonal is an undirected graph, too.
        has_weights: Whether the values mean anything.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"{file}: the matrix has shape {matrix.shape}; expected a square one, N nodes by N")
    if matrix.shape[0] > MAX_NODES:
        raise DataError(f"{file}: {matrix.shape[0]} nodes; at most {MAX_NODES} fit the int32 neighbour lists")
    arcs = checked_entries(file, matrix)
    if arcs.data.dtype.kind not in "biuf":
        raise DataError(f"{file}: the matrix holds {arcs.data.dtype} values; expected real numbers")
    present = arcs.data != 0
    src, dst, values = arcs.row[present], arcs.col[present], arcs.data[present]
    directed = options.directed
    symmetric = directed is not True and _is_symmetric(src, dst, values, arcs.shape)
    if directed is None:
        half = half_is_undirected and bool((src <= dst).all())
        directed = not (symmetric or half)
        _log.info("%s: read as %s by its pattern", file, "directed" if directed else "undirected")
    if symmetric and not directed:  # one spelling of each edge, so that "sum" does not count it twice
        upper = src <= dst
        src, dst, values = src[upper], dst[upper], values[upper]
    weights = values if has_weights else None
    return graph_of_arcs(
        file, src, dst, weights, options, directed=directed, num_nodes=arcs.shape[0], node_ids=node_ids
    )


def checked_entries(file: Path, matrix: Any) -> sparse.coo_array:
    """The entries of a matrix; scipy trusts row pointers that a file brought, and reads past its arrays."""
    with parsing(file, "a sparse matrix"):
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        return sparse.coo_array(matrix)


def _is_symmetric(src: NDArray, dst: NDArray, values: NDArray, shape: tuple[int, ...]) -> bool:
    # Finite doubles only: a NaN would differ from itself, and its own error comes later.
    matrix = sparse.csr_array((np.nan_to_num(values.astype(np.float64)), (src, dst)), shape=shape)
    return (matrix != matrix.T.tocsr()).nnz == 0


def checked_rows(
    file: Path, name: str, indptr: NDArray, indices: NDArray, limit: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compressed rows as int64, once they are consistent.

    Args:
        name: What the arrays are called before ``indptr`` and ``indices``, for errors.
        limit: Entries of ``indices`` lie below this; None: below the number of rows.
    Raises:
        DataError: row, value and limit of the first entry that does not fit.
    """
    for word, array in ((f"{name}indptr", indptr), (f"{name}indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{file}: {word} has shape {array.shape}, dtype {array.dtype}; expected integers")
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
    bad = (columns < 0) | (columns >= bound)
    if bad.any():
        place = int(np.argmax(bad))
        row = int(np.searchsorted(rows, place, side="right")) - 1
        raise DataError(f"{file}: {name}indices holds {columns[place]} in row {row}, outside [0, {bound})")
    return rows, columns
