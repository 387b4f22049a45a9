"""DGL's binary files of tensors and graphs, written and read without DGL.

The layout is that of ``dgl.data.utils.save_tensors`` and ``save_graphs`` (dgl 1.1.3 and 2.1.0,
``src/graph/serialize``), little-endian throughout. DGL itself leaves 4 kB of uninitialised memory in a graph file; ours
is zero there, so that the same partition has the same bytes. Legend: N nodes, E edges.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from graph_emb.core.errors import DataError, ShapeError

TENSORS_MAGIC = 0xDD5A9FBE3FA2443F
FILE_MAGIC = 0xDD2E4FF046B4A13F
ARRAY_MAGIC = 0xDD5E40F096B4A13F
HETERO_MAGIC = 0xDD589FBE35224ABF
META_MAGIC = 0xDD3C5FFE20046ABF
CSR_MAGIC = 0xDD6CD31205DFF127
COO_MAGIC = 0xDD61FFD305DFF127
UNIT_MAGIC = 0xDD2E60F0F6B4A127

HEADER_BYTES = 4096
VERSION, HETERO_GRAPH = 2, 2
COO, CSR, CSC, ALL_FORMATS = 1, 2, 4, 7
FORMATS = {"coo": COO, "csr": CSR, "csc": CSC}
"""Forms in which a file may hold the edges of a graph, in the order in which it holds them."""
FLAGGED = 1 << 32
"""Set beside a format code since DGL 0.6; older files hold the enum instead."""

CODES = {"i": 0, "u": 1, "f": 2}
DTYPES = tuple(np.dtype(name) for name in ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))
"""The types of values that DGL and torch share."""
CHUNK_BYTES = 8 << 20


class Chunked(Protocol):
    """Values that are made a chunk at a time while they are written; ``chunks()`` starts again each time."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def chunks(self) -> Callable[[], Iterator[np.ndarray]]: ...


@dataclass(frozen=True)
class BlockColumn:
    """Values that a function yields a block at a time, from temporary files for example."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: Callable[[], Iterator[np.ndarray]]


def gathered(values: np.ndarray, positions: np.ndarray) -> BlockColumn:
    """The rows of an array at some positions, gathered a few megabytes at a time while they are written."""

    def chunks() -> Iterator[np.ndarray]:
        width = max(1, values.dtype.itemsize * math.prod(values.shape[1:]))
        step = max(1, CHUNK_BYTES // width)
        for start in range(0, len(positions), step):
            yield values[positions[start : start + step]]

    return BlockColumn((len(positions), *values.shape[1:]), values.dtype, chunks)


Column = np.ndarray | Chunked
ColumnT = TypeVar("ColumnT", bound=Column, covariant=True)


@dataclass(frozen=True)
class StoredGraph(Generic[ColumnT]):
    """A graph of one node type and one edge type with its data, as a file holds it.

    Attributes:
        num_nodes: N.
        src, dst: Local node ids in the order of the local edge ids, each (E,).
        node_data, edge_data: Columns by name, first axis N or E; ``write_graph`` takes ``Chunked`` ones, too.
    """

    num_nodes: int
    src: ColumnT
    dst: ColumnT
    node_data: Mapping[str, ColumnT]
    edge_data: Mapping[str, ColumnT]


@dataclass(frozen=True)
class StoredTypes:
    """A graph with node and edge types and their data, as a file holds it.

    Attributes:
        num_nodes: Nodes of each type.
        edges: Of each (source type, relation, destination type) the local ids of both ends, by edge id, each (E,).
        node_data, edge_data: Of each type its columns by name, first axis N or E.
    """

    num_nodes: dict[str, int]
    edges: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]]
    node_data: dict[str, dict[str, np.ndarray]]
    edge_data: dict[tuple[str, str, str], dict[str, np.ndarray]]


def storable(dtype: np.dtype) -> np.dtype:
    """The dtype under which DGL keeps values: booleans become uint8, the rest stays.

    Raises:
        DataError: DGL or torch has no such dtype.
    """
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    if dtype.newbyteorder("=") not in DTYPES:
        known = ", ".join(str(known) for known in DTYPES)
        raise DataError(f"dtype {dtype} has no counterpart in DGL; cast to one of: bool, {known}")
    return dtype.newbyteorder("<")


def write_tensors(sink: Any, tensors: Mapping[str, Column]) -> None:
    """Write named tensors in the form of ``dgl.data.utils.save_tensors``."""
    sink.write(_u64(TENSORS_MAGIC, len(tensors)))
    _write_columns(sink, tensors)


def write_graph(
    sink: Any, graph: StoredGraph[Column], formats: Collection[str] = ("coo",), edge_types: np.ndarray | None = None
) -> None:
    """Write one graph without types, in the form of ``dgl.save_graphs``.

    Args:
        formats: At least one of ``FORMATS``; csr and csc need the ends of edges as arrays.
        edge_types: Of each edge, (E,): the edges of a row of csr and csc are sorted by it, as DGL's samplers want them.
    """
    start = HEADER_BYTES + 16  # after the header, this position and an empty list of labels
    sink.write(_u64(FILE_MAGIC, VERSION, HETERO_GRAPH, 1).ljust(HEADER_BYTES, b"\0"))
    sink.write(_u64(start, 0))
    stored = sum(code for name, code in FORMATS.items() if name in formats)
    sink.write(_u64(HETERO_MAGIC) + _metagraph() + _u64(1, UNIT_MAGIC, stored | FLAGGED, ALL_FORMATS | FLAGGED))
    for code in FORMATS.values():
        if stored & code:
            sink.write(_metagraph() + _u64(COO_MAGIC if code == COO else CSR_MAGIC, graph.num_nodes, graph.num_nodes))
            for array in _edge_arrays(graph, code, edge_types):
                _write_array(sink, array)
            # not sorted: coo by source or destination, the others by the other end in a row, as far as DGL may assume
            sink.write(b"\0\0" if code == COO else b"\0")
    sink.write(_u64(1, graph.num_nodes))
    for columns in (graph.node_data, graph.edge_data):
        sink.write(_u64(1))
        _write_columns(sink, columns)
    for name in ("_N", "_E"):
        sink.write(_u64(1) + _string(name))
    sink.write(_u64(16, 1, start, 16))


def _edge_arrays(graph: StoredGraph[Column], code: int, edge_types: np.ndarray | None) -> tuple[Column, Column, Column]:
    """Of coo sources, destinations and no edge ids; else the start of each row, the other ends and the edge ids."""
    if code == COO:
        return graph.src, graph.dst, np.empty(0, np.int64)
    rows, others = (graph.src, graph.dst) if code == CSR else (graph.dst, graph.src)
    assert isinstance(rows, np.ndarray)
    assert isinstance(others, np.ndarray)
    order = np.argsort(rows, kind="stable") if edge_types is None else np.lexsort((edge_types, rows))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=graph.num_nodes))])
    return starts.astype(np.int64), others[order], order.astype(np.int64)


def _metagraph() -> bytes:
    """One node type with one edge type, in DGL's own format."""
    one = np.array([0, 1], np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    arrays = b"".join(_array_header(array.shape, array.dtype) + array.tobytes() for array in one)
    return _u64(META_MAGIC, CSR_MAGIC, 1, 1) + arrays + b"\0"


def _write_columns(sink: Any, columns: Mapping[str, Column]) -> None:
    sink.write(_u64(len(columns)))
    for name, values in columns.items():
        sink.write(_string(name))
        _write_array(sink, values)


def _write_array(sink: Any, values: Column) -> None:
    dtype = storable(values.dtype)
    sink.write(_array_header(values.shape, dtype))
    for chunk in [values] if isinstance(values, np.ndarray) else values.chunks():
        if chunk.size:
            sink.write(np.ascontiguousarray(chunk, dtype).reshape(-1).view(np.uint8).data)


def _array_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    # reserved; device (CPU, 0); dimensions; DLPack's type code, bits and lanes; shape; bytes
    fixed = struct.pack("<QQiiIBBH", ARRAY_MAGIC, 0, 1, 0, len(shape), CODES[dtype.kind], dtype.itemsize * 8, 1)
    return fixed + _u64(*shape, num_bytes)


def _u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _string(text: str) -> bytes:
    data = text.encode()
    return _u64(len(data)) + data


def read_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name: read-only views of the mapped file.

    Raises:
        DataError: the file is no DGL tensor file or is cut short.
    """
    source = _Source(path)
    source.expect(TENSORS_MAGIC, "DGL tensor file")
    source.u64()  # the number of tensors, which the list repeats
    return source.columns()


def forget(array: Any) -> None:
    """Let go of the pages of the mapped file that an array views; what is used again is read again."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    if array is not None and hasattr(array, "madvise"):  # not on Windows
        array.madvise(mmap.MADV_DONTNEED)


def read_graph(path: str | Path) -> StoredGraph[np.ndarray]:
    """The first graph of a file, as a part is stored.

    Raises:
        DataError: the file is no DGL graph file, is damaged, or holds several node or edge types.
    """
    graph = read_graphs(path)[0]
    if len(graph.edges) != 1 or len(graph.num_nodes) != 1:
        raise DataError(
            f"{path}: the graph has {len(graph.num_nodes)} node types and {len(graph.edges)} edge types; "
            "the graph of a part has one of each"
        )
    (src, dst), (num_nodes,) = next(iter(graph.edges.values())), graph.num_nodes.values()
    return StoredGraph(num_nodes, src, dst, *(next(iter(data.values())) for data in (graph.node_data, graph.edge_data)))


def read_graphs(path: str | Path) -> list[StoredTypes]:
    """All graphs of a file of ``dgl.save_graphs``: read-only views of the mapped file where it stores lists of edges.

    Raises:
        DataError: the file is no DGL graph file or is damaged.
    """
    source = _Source(path)
    source.expect(FILE_MAGIC, "DGL graph file")
    version, kind, num_graphs = source.u64(), source.u64(), source.u64()
    if (version, kind) != (VERSION, HETERO_GRAPH) or not num_graphs:
        raise DataError(
            f"{path}: DGL graph file of version {version}, kind {kind}, with {num_graphs} graphs; save it again with "
            "dgl 0.5 or newer"
        )
    source.position = HEADER_BYTES
    source.position = source.u64()
    return [source.graph() for _ in range(num_graphs)]


@dataclass(frozen=True, eq=False)
class MappedRows:
    """Rows of mapped files, one file after the other: a slice is read as float32, and its pages are let go of.

    Attributes:
        pieces: Arrays (any number, D); at least one.
    Raises:
        ShapeError: a row of a piece is no vector.
    """

    pieces: Sequence[np.ndarray]

    def __post_init__(self) -> None:
        for piece in self.pieces:
            if piece.ndim != 2:
                raise ShapeError(f"features have shape {piece.shape}; expected (nodes, width)")

    @property
    def shape(self) -> tuple[int, int]:
        """(R, D)."""
        return sum(map(len, self.pieces)), self.pieces[0].shape[1]

    def __getitem__(self, rows: slice) -> np.ndarray:
        found, first = [], 0
        for piece in self.pieces:
            found.append(piece[max(rows.start - first, 0) : max(rows.stop - first, 0)].astype(np.float32))
            forget(piece)
            first += len(piece)
        return np.concatenate(found)


class _Source:
    """A position in a mapped file."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.size = Path(path).stat().st_size
        self.position = 0
        # a file of no bytes cannot be mapped
        self.memory = np.memmap(path, np.uint8, mode="r") if self.size else np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> np.ndarray:
        stop = self.position + num_bytes
        if num_bytes < 0 or stop > self.size:
            raise DataError(f"{self.path}: cut short: {stop} bytes are needed, the file has {self.size}")
        found = self.memory[self.position : stop]
        self.position = stop
        return found

    def u64(self) -> int:
        return int.from_bytes(self.take(8).tobytes(), "little")

    def expect(self, magic: int, what: str) -> None:
        if self.u64() != magic:
            raise DataError(f"{self.path}: not a {what} (unknown bytes at {self.position - 8})")

    def string(self) -> str:
        return self.take(self.u64()).tobytes().decode(errors="replace")

    def columns(self) -> dict[str, np.ndarray]:
        return {self.string(): self.array() for _ in range(self.u64())}

    def array(self) -> np.ndarray:
        self.expect(ARRAY_MAGIC, "DGL array")
        head = self.take(24).tobytes()
        _, _, _, num_dims, code, bits, _ = struct.unpack("<QiiIBBH", head)
        shape = tuple(self.u64() for _ in range(num_dims))
        data = self.take(self.u64())
        kinds = {number: kind for kind, number in CODES.items()}
        dtype = f"{kinds.get(code)}{bits // 8}"
        if bits % 8 or dtype not in {known.str.lstrip("<|") for known in DTYPES}:
            raise DataError(f"{self.path}: an array of DLPack type {code} with {bits} bits, which numpy lacks")
        if len(data) * 8 != bits * math.prod(shape):
            raise DataError(f"{self.path}: an array of shape {shape} with {bits} bits each has {len(data)} bytes")
        return np.ndarray(shape, f"<{dtype}", data.data if data.size else b"")

    def graph(self) -> StoredTypes:
        """A graph with all its types; after it the position is that of the next."""
        self.expect(HETERO_MAGIC, "DGL graph")
        meta = self.metagraph()
        relations = [self.edges() for _ in range(self.u64())]
        num_nodes = [self.u64() for _ in range(self.u64())]
        node_data, edge_data = ([self.columns() for _ in range(self.u64())] for _ in ("nodes", "edges"))
        ntypes, names = ([self.string() for _ in range(self.u64())] for _ in ("node types", "relations"))
        lengths = [len(num_nodes), len(node_data), len(set(ntypes))], [len(edge_data), len(names), len(meta)]
        if set(lengths[0]) != {len(ntypes)} or set(lengths[1]) != {len(relations)}:
            raise DataError(f"{self.path}: counts of types differ: nodes {lengths[0]}, edges {lengths[1]}")
        if any(end >= len(ntypes) for ends in meta for end in ends):
            raise DataError(f"{self.path}: an edge type joins node type {max(map(max, meta))} of {len(ntypes)}")
        etypes = [(ntypes[src], name, ntypes[dst]) for (src, dst), name in zip(meta, names, strict=True)]
        return StoredTypes(
            dict(zip(ntypes, num_nodes, strict=True)),
            dict(zip(etypes, relations, strict=True)),
            dict(zip(ntypes, node_data, strict=True)),
            dict(zip(etypes, edge_data, strict=True)),
        )

    def metagraph(self) -> list[tuple[int, int]]:
        """The (source, destination) node type of each edge type, as numbers."""
        self.expect(META_MAGIC, "DGL graph")
        src, dst = self._ends(CSR)
        return list(zip(src.tolist(), dst.tolist(), strict=True))

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) by edge id, from whichever format comes first in the file."""
        self.expect(UNIT_MAGIC, "DGL graph")
        code = self.u64()
        self.u64()  # formats that the graph may make later
        stored = code & 0xFFFFFFFF if code >> 32 else {1: COO, 2: CSR, 3: CSC}.get(code, 0)
        found: tuple[np.ndarray, np.ndarray] | None = None
        for layout in (COO, CSR, CSC):
            if stored & layout:
                self.metagraph()
                read = self._ends(layout)
                found = found or read
        if found is None:
            raise DataError(f"{self.path}: unknown sparse format {code}")
        return found

    def _ends(self, layout: int) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of each edge as one format stores them, in the order of the edge ids; no ids: as they are."""
        self.expect(*((COO_MAGIC, "DGL list of edges") if layout == COO else (CSR_MAGIC, "DGL compressed graph")))
        self.take(16)  # rows and columns
        src, dst, ids = self.array(), self.array(), self.array()
        self.take(2 if layout == COO else 1)  # whether sorted by source and by destination, or within each row
        if layout != COO:
            sizes: np.ndarray = np.diff(src.astype(np.int64))
            if src.ndim != 1 or not len(src) or (sizes < 0).any() or sizes.sum() != len(dst):
                raise DataError(f"{self.path}: rows of a compressed graph do not fit their {len(dst)} entries")
            src = np.repeat(np.arange(len(sizes), dtype=dst.dtype), sizes)
        if layout == CSC:
            src, dst = dst, src
        if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (src, dst, ids)) or len(src) != len(dst):
            raise DataError(
                f"{self.path}: edges with ends of shape {src.shape} {src.dtype} and {dst.shape} {dst.dtype}"
            )
        if not len(ids):
            return src, dst
        if len(ids) != len(src) or ids.min() < 0 or (np.bincount(ids, minlength=len(src)) != 1).any():
            raise DataError(f"{self.path}: {len(ids)} edge ids are not each of 0 .. {len(src) - 1} once")
        ordered = np.empty(len(ids), src.dtype), np.empty(len(ids), dst.dtype)
        ordered[0][ids], ordered[1][ids] = src, dst
        return ordered
