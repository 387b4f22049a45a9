"""scipy sparse matrices in memory, and matrices of any file as graphs: an edge for each non-zero, row = source."""

# N nodes, E entries

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import WEIGHT, Contents, is_object_of, parsing, register
from graph_emb.graph.typed import EDGE_TYPE, HeteroGraph, checked_edge_type

_MIX = np.uint64(0x9E3779B97F4A7C15)


@register("scipy", lambda source: is_object_of(source, "scipy") and hasattr(source, "tocoo"), "edge_type")
def read_scipy(source: Any, options: ReadOptions) -> Contents:
    """A matrix whose values become ``weight``, unless all are 1. Entries of one place are parallel edges."""
    return Contents(graph_of_matrix(source, options))


def graph_of_matrix(matrix: Any, options: ReadOptions, name: str = "graph") -> HeteroGraph:
    """The graph of a matrix; entries that are zero are no edges and are counted.

    Raises:
        DataError: values that are no real numbers, or a shape that does not fit the types of both ends.
    """
    source, relation, destination = EDGE_TYPE if options.edge_type is None else checked_edge_type(options.edge_type)
    entries = matrix.tocoo()
    if entries.ndim != 2 or entries.data.dtype.kind not in "biuf":
        raise DataError(f"a matrix of {entries.data.dtype}, shape {entries.shape}; expected real numbers, 2 dimensions")
    if source == destination and entries.shape[0] != entries.shape[1]:
        raise DataError(
            f"the matrix has shape {entries.shape}; expected a square one, or "
            "edge_type=('row type', 'relation', 'column type')"
        )
    present = entries.data != 0
    src, dst = entries.row[present].astype(np.int64), entries.col[present].astype(np.int64)
    values, zeros = entries.data[present], int((~present).sum())
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int(np.argmax(~np.isfinite(values)))
        raise DataError(f"the matrix holds {values[bad]} in row {src[bad]}; expected finite values")
    etype = (source, relation, destination)
    return HeteroGraph(
        {source: entries.shape[0], destination: entries.shape[1]},
        {etype: (src, dst)},
        edge_data={etype: {} if not options.weight and (values == 1).all() else {WEIGHT: values}},
        counts={"explicit zeros dropped": zeros} if zeros else {},
        name=name,
        symmetric=source == destination and is_symmetric(src, dst, values, entries.shape[0]),
    )


def is_symmetric(src: NDArray, dst: NDArray, values: NDArray | None, num_nodes: int) -> bool:
    """Whether each edge's reverse is there as often and with the same value.

    Args:
        src, dst: Shape (E,), int64.
        values: Shape (E,), or None where edges have none.
    """
    forward, backward = src * num_nodes + dst, dst * num_nodes + src
    sums = [int((_scrambled(keys)).sum(dtype=np.uint64)) for keys in (forward, backward)]
    if sums[0] != sums[1]:  # most directed graphs end here, without a sort
        return False
    orders = [np.argsort(keys, kind="stable") for keys in (forward, backward)]
    if not np.array_equal(forward[orders[0]], backward[orders[1]]):
        return False
    return values is None or np.array_equal(values[orders[0]], values[orders[1]])


def _scrambled(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    mixed = keys.view(np.uint64) * _MIX
    return mixed * (mixed >> np.uint64(32))


def checked_entries(file: Path, matrix: Any) -> sparse.coo_array:
    """The entries of a matrix; scipy trusts row pointers that a file brought, and reads past its arrays."""
    with parsing(file, "a sparse matrix"):
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        return sparse.coo_array(matrix)
