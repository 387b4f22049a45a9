"""Graphs as matrices: scipy's in memory, ``.npz`` files (of scipy, or compressed rows) and MATLAB's ``.mat`` files.

Of a matrix each non-zero is an edge, row = source. A ``.mat`` file holds a square ``network`` and ``group`` for the
labels, as the DeepWalk benchmarks use them. Every tag of a MATLAB 5 file is checked before scipy parses it: scipy 1.17
looks a data type up by the number in the file and follows a null pointer where there is none such, so that one damaged
byte ends the process. Layout: "MAT-File Format", MathWorks, chapter 1.
"""

# N nodes, E stored edges

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import ConfigError, DataError, printable
from graph_emb.graph.ids import distinct_ids, first_outside
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.source import (
    MASKS,
    WEIGHT,
    Contents,
    ReadOptions,
    check_ids,
    is_object_of,
    mask_of,
    parsing,
    register,
)
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph, checked_edge_type

_MIX = np.uint64(0x9E3779B97F4A7C15)
SPLITS = {"train_idx": "train", "val_idx": "valid", "valid_idx": "valid", "test_idx": "test"}
"""Arrays of node numbers and the part of a split that each lists."""
_LIMIT_OF_CLASSES = 10_000_000
_NETWORK_NAMES = ("network", "net", "adj", "adjacency", "graph", "A", "W")
_LABEL_NAMES = ("group", "groups", "label", "labels", "Y")
_HEADER_BYTES = 128
_MAX_DEPTH = 32
"""Elements inside elements; each costs scipy a few levels of Python's stack."""
_MATRIX, _COMPRESSED = 14, 15
_FLAGS_TAG = (6, 8)  # type and bytes of a matrix's first element
_KNOWN_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13, _MATRIX, _COMPRESSED, 16, 17, 18})


def _in_memory(source: Any) -> bool:
    return isinstance(source, np.ndarray) or (is_object_of(source, "scipy") and hasattr(source, "tocoo"))


@register("scipy", "edge_type", objects=_in_memory)
def read_scipy(source: Any, options: ReadOptions) -> Contents:
    """A matrix whose values become ``weight``, unless all are 1. Entries of one place are parallel edges."""
    if isinstance(source, np.ndarray):
        if source.ndim != 2 or source.dtype.kind not in "biuf":
            raise DataError(
                f"an array of {source.dtype}, shape {source.shape}; expected a matrix (N, N) of real numbers"
            )
        # scipy.sparse takes no halves, and no numbers whose bytes are in another processor's order.
        native = source.dtype.newbyteorder("=")
        source = sparse.coo_array(source.astype(np.float32 if native == np.float16 else native, copy=False))
    return Contents(graph_of_matrix(source, options))


def graph_of_matrix(matrix: Any, options: ReadOptions, name: str = "graph") -> HeteroGraph:
    """The graph of a matrix; entries that are zero are no edges and are counted.

    Raises:
        DataError: values that are no real numbers, or a shape that does not fit the types of both ends.
    """
    source, relation, destination = EDGE_TYPE if options.edge_type is None else checked_edge_type(options.edge_type)
    _check_pointers(matrix)
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
    mixed = [keys.view(np.uint64) * _MIX for keys in (forward, backward)]
    sums = [int((keys * (keys >> np.uint64(32))).sum(dtype=np.uint64)) for keys in mixed]
    if sums[0] != sums[1]:  # most directed graphs end here, without a sort
        return False
    orders = [np.argsort(keys, kind="stable") for keys in (forward, backward)]
    if not np.array_equal(forward[orders[0]], backward[orders[1]]):
        return False
    return values is None or np.array_equal(values[orders[0]], values[orders[1]])


def checked_entries(file: Path, matrix: Any) -> sparse.coo_array:
    """The entries of a matrix; scipy trusts row pointers that a file brought, and reads past its arrays."""
    with parsing(file, "a sparse matrix"):
        _check_pointers(matrix)
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        return sparse.coo_array(matrix)


def _check_pointers(matrix: Any) -> None:
    """Refuse row pointers that fall: ``check_format`` does not look at them where the last one is 0 (scipy 1.17)."""
    pointers = getattr(matrix, "indptr", None)
    if pointers is None:
        return
    steps = np.diff(pointers.astype(np.int64), prepend=0)
    if (steps < 0).any() or (len(steps) and steps[0]):
        row = int(np.argmax(steps < 0))
        raise DataError(
            f"indptr of a sparse matrix is {pointers[row]} at row {row}; it must start at 0 and not fall: is it whole?"
        )


@register("npz", "edge_type", paths=(".npz",))
def read_npz(file: Path, options: ReadOptions) -> Contents:
    """Rows (``indptr``, ``indices`` [, ``weights``, ``directed``, ``node_ids``, labels, splits]) or a matrix.

    With a false ``directed`` in the file an edge means both directions, of which one or both may be stored. Without
    ``directed``, rows with nothing below the diagonal hold each edge once, so that an edge means both directions.
    """
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
    for name, part in SPLITS.items():
        if name in arrays and not (name == "val_idx" and "valid_idx" in arrays):
            nodes = _integers(file, name, arrays[name])
            check_ids(file, name, nodes, num_nodes, first_row=0)
            columns[MASKS[part]] = mask_of(nodes, num_nodes)
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


@register("mat", paths=(".mat",))
def read_mat(file: Path, options: ReadOptions) -> Contents:
    """The entries of the only square sparse variable, or of one called ``network``, and its labels."""
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
        held = ", ".join(
            f"{printable(name)} {getattr(value, 'shape', '')}" for name, value in list(variables.items())[:10]
        )
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
