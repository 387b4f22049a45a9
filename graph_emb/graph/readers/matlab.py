"""MATLAB ``.mat`` files as the DeepWalk benchmarks use them: a square ``network``, and ``group`` for the labels.

Every tag of a MATLAB 5 file is checked before scipy parses it: scipy 1.17 looks a data type up by the number in the
file and follows a null pointer where there is none such, so that one damaged byte ends the process. Layout: "MAT-File
Format", MathWorks, chapter 1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.arrays import checked_length
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.scipy_matrix import checked_entries, graph_of_matrix
from graph_emb.graph.readers.source import Contents, checked_file, has_suffix, parsing, register
from graph_emb.graph.typed import NODE_TYPE

_NETWORK_NAMES = ("network", "net", "adj", "adjacency", "graph", "A", "W")
_LABEL_NAMES = ("group", "groups", "label", "labels", "Y")

_HEADER_BYTES = 128
_MAX_DEPTH = 32
"""Elements inside elements; each costs scipy a few levels of Python's stack."""
_MATRIX, _COMPRESSED = 14, 15
_FLAGS_TAG = (6, 8)  # type and bytes of a matrix's first element
_KNOWN_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13, _MATRIX, _COMPRESSED, 16, 17, 18})


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


def check_elements(file: Path, content: bytes) -> None:
    """Every tag has a known type and values inside its element; a MATLAB 4 file, which has no tags, passes.

    Raises:
        DataError: byte offset and value of the first tag that does not fit.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER_BYTES])
    if order is not None:
        _check(file, order, content, _HEADER_BYTES, len(content))
    elif content.startswith(b"MATLAB 5"):
        raise DataError(f"{file}: the header is damaged or cut off; fetch it again")


def _check(file: Path, order: str, content: bytes, at: int, limit: int, depth: int = 0) -> None:
    if depth > _MAX_DEPTH:
        raise _fault(file, at, f"nested deeper than {_MAX_DEPTH}")
    while at < limit:
        if at + 8 > limit:
            raise _fault(file, at, f"expected a tag of 8 bytes, but {limit - at} are left")
        kind, size = struct.unpack_from(order + "II", content, at)
        begin, room = at + 8, limit - at - 8
        is_small = kind >> 16 != 0  # size and type share a word, the values are in the next
        if is_small:
            kind, size, begin, room = kind & 0xFFFF, kind >> 16, at + 4, 4
        if kind not in _KNOWN_TYPES:
            raise _fault(file, at, f"unknown data type {kind}")
        if size > room:
            raise _fault(file, at, f"{size} bytes of values, but {room} are left")
        if kind == _COMPRESSED:
            try:
                inner = zlib.decompress(content[begin : begin + size])
            except zlib.error as error:
                raise _fault(file, at, f"damaged data ({error})") from error
            _check(file, order, inner, 0, len(inner), depth + 1)
        elif kind == _MATRIX and size:
            flags = content[begin : begin + 8]
            if flags != struct.pack(order + "II", *_FLAGS_TAG):  # scipy takes these 8 bytes for granted
                raise _fault(file, begin, f"array flags {flags.hex()}, expected type 6 and 8 bytes")
            _check(file, order, content, begin, begin + size, depth + 1)
        padded = size if kind == _COMPRESSED else -(-size // 8) * 8
        at = at + 8 if is_small else begin + padded


def _fault(file: Path, at: int, what: str) -> DataError:
    return DataError(f"{file}: byte {at}: {what}; is the file whole?")
