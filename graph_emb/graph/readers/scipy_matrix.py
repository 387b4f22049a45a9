"""scipy sparse matrices in memory: an edge for each entry that is not zero, row = source."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers.source import WEIGHT, Contents, checked_edge_type, is_object_of, register
from graph_emb.graph.typed import EDGE_TYPE, EdgeType, HeteroGraph

_is_scipy = is_object_of("scipy")


@register("scipy", lambda source: _is_scipy(source) and hasattr(source, "tocoo"))
def read_scipy(source: Any, *, edge_type: EdgeType | str | None = None) -> Contents:
    """A matrix whose values become ``weight``, unless all are 1. Entries of one place are parallel edges.

    Args:
        edge_type: (source type, relation, destination type); a matrix that is not square needs two node types.
    """
    return Contents(from_matrix(source, edge_type))


def from_matrix(matrix: Any, edge_type: EdgeType | str | None = None, name: str = "graph") -> HeteroGraph:
    """The graph of a matrix; entries that are zero are no edges and are counted.

    Raises:
        DataError: values that are no real numbers, or a shape that does not fit the types.
    """
    source, relation, destination = EDGE_TYPE if edge_type is None else checked_edge_type(edge_type)
    entries = matrix.tocoo()
    if entries.ndim != 2 or entries.data.dtype.kind not in "biuf":
        raise DataError(f"a matrix of {entries.data.dtype}, shape {entries.shape}; expected real numbers, 2 dimensions")
    if source == destination and entries.shape[0] != entries.shape[1]:
        raise ConfigError(
            f"the matrix has shape {entries.shape}, not square; pass edge_type=('row type', 'relation', 'column type')"
        )
    present = entries.data != 0
    values = entries.data[present]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"the matrix holds {values[bad]} in row {entries.row[present][bad]}; expected finite values")
    edges = (entries.row[present].astype(np.int64), entries.col[present].astype(np.int64))
    etype = (source, relation, destination)
    zeros = int((~present).sum())
    return HeteroGraph(
        {source: entries.shape[0], destination: entries.shape[1]},
        {etype: edges},
        edge_data={} if (values == 1).all() else {etype: {WEIGHT: values}},
        counts={"explicit zeros dropped": zeros} if zeros else {},
        name=name,
    )
