"""MATLAB ``.mat`` files as the DeepWalk benchmarks use them: a square ``network``, and ``group`` for the labels."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.arrays import checked_length
from graph_emb.graph.readers.matlab_elements import check_elements
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.scipy_matrix import checked_entries, graph_of_matrix
from graph_emb.graph.readers.source import Contents, checked_file, has_suffix, parsing, register
from graph_emb.graph.typed import NODE_TYPE

_NETWORK_NAMES = ("network", "net", "adj", "adjacency", "graph", "A", "W")
_LABEL_NAMES = ("group", "groups", "label", "labels", "Y")


@register("mat", has_suffix(".mat"))
def read_mat(source: Any, options: ReadOptions) -> Contents:
    """The entries of the only square sparse variable, or of one called ``network``, and its labels."""
    file = checked_file(source)
    variables = load_variables(file)
    with parsing(file, "a graph"):
        graph = graph_of_matrix(checked_entries(file, _network(file, variables)), options, file.stem)
    labels = labels_of_variables(file, variables, graph.total_nodes)
    if labels is not None:
        graph.node_data[NODE_TYPE] = {"label": labels.to_column()}
        if labels.class_names is not None:
            graph.class_names[NODE_TYPE] = np.array(labels.class_names)
    return Contents(graph)


def load_variables(file: Path) -> dict[str, Any]:
    """The named variables of a file of MATLAB 4 to 7.2."""
    from scipy import io

    content = file.read_bytes()
    if content.startswith(b"MATLAB 7.3"):
        raise DataError(f"{file}: MATLAB 7.3 files (HDF5) are not read; save it with -v7")
    check_elements(file, content)
    with parsing(file, "a MATLAB file"):
        return {name: value for name, value in io.loadmat(BytesIO(content)).items() if not name.startswith("__")}


def _network(file: Path, variables: Mapping[str, Any]) -> Any:
    for name in _NETWORK_NAMES:
        if name in variables and _is_matrix(variables[name]):
            return variables[name]
    square = [name for name, value in variables.items() if sparse.issparse(value) and value.shape[0] == value.shape[1]]
    if len(square) != 1:
        held = ", ".join(f"{name} {getattr(value, 'shape', '')}" for name, value in list(variables.items())[:10])
        raise DataError(
            f"{file}: {len(square)} square sparse variables, expected 1 or one called 'network'; it holds: {held}"
        )
    return variables[square[0]]


def _is_matrix(value: Any) -> bool:
    return sparse.issparse(value) or (isinstance(value, np.ndarray) and value.ndim == 2 and value.size > 1)


def labels_of_variables(file: Path, variables: Mapping[str, Any], num_nodes: int) -> Labels | None:
    """Labels from an (N, C) indicator matrix or an (N, 1) column of classes; None where there is neither."""
    value = next((variables[name] for name in _LABEL_NAMES if name in variables), None)
    if value is None:
        return None
    if not _is_matrix(value) or (not sparse.issparse(value) and value.dtype.kind not in "biuf"):
        raise DataError(f"{file}: the labels are no matrix of numbers; expected one row for each node")
    if 1 in value.shape and not sparse.issparse(value):
        column = value.ravel()
        checked_length(file, len(column), num_nodes)
        names, classes = np.unique(column, return_inverse=True)
        return Labels.from_single(classes.ravel(), class_names=[f"{name:g}" for name in names])
    checked_length(file, value.shape[0], num_nodes)
    nodes, classes = checked_entries(file, value).nonzero()
    return Labels.from_pairs(nodes, classes, num_nodes, num_classes=value.shape[1])
