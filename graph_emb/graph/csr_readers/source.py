"""What every reader takes and gives, the registry by file suffix, and the guard around foreign parsers."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, GraphEmbError, ShapeError
from graph_emb.core.registry import Registry
from graph_emb.graph.build import Duplicates, SelfLoops
from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels

LARGEST_ID = 2**63 - 1

WeightsPolicy = Literal["auto", "require", "ignore"]
IdsPolicy = Literal["auto", "int", "str"]


@dataclass(frozen=True)
class GraphFile:
    """What one file holds: a graph, and labels and node splits where the format carries them."""

    graph: Graph
    labels: Labels | None = None
    node_split: dict[str, NDArray[np.int64]] | None = None


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``read_graph``; its docstring says what each does."""

    directed: bool | None = None
    weights: WeightsPolicy = "auto"
    duplicates: Duplicates = "first"
    self_loops: SelfLoops = "keep"
    num_nodes: int | None = None
    ids: IdsPolicy = "auto"
    header: bool | None = None
    separator: str | None = None
    comment: str = "#%"
    columns: tuple[str, ...] | None = None

    def changed(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


COMMON_OPTIONS = frozenset({"directed", "weights", "duplicates", "self_loops"})


@dataclass(frozen=True)
class Reader:
    """One file format.

    Attributes:
        read: File and options to its contents; raises DataError for whatever the file does wrong.
        options: Names of the options it obeys; the others are refused.
        gzipped: Whether the same with ``.gz`` behind it is read too.
    """

    read: Callable[[Path, ReadOptions], GraphFile]
    options: frozenset[str]
    gzipped: bool = False


READERS: Registry[Reader] = Registry("graph file format")


def register(*suffixes: str, options: frozenset[str] = frozenset(), gzipped: bool = False) -> Callable:
    """Decorator that files a reader under each suffix (without the dot)."""

    def file(read: Callable[[Path, ReadOptions], GraphFile]) -> Callable[[Path, ReadOptions], GraphFile]:
        for suffix in suffixes:
            READERS.register(suffix)(Reader(read, COMMON_OPTIONS | options, gzipped))
        return read

    return file


def checked_file(path: str | Path) -> Path:
    """The path of an existing file that is not empty.

    Raises:
        DataError: no such file, a folder, or no bytes in it.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(f"{file}: is a folder; expected a file")
        if not file.exists():
            near = file.parent if file.parent.is_dir() else None
            hint = "check the name" if near else f"there is no folder {file.parent} either"
            raise DataError(f"{file}: no such file; {hint}")
        if file.is_file() and file.stat().st_size == 0:
            raise DataError(f"{file}: is empty (0 bytes); was it written to the end?")
    except (OSError, ValueError) as error:  # a name too long, a null byte in it, a folder without access
        if isinstance(error, DataError):
            raise
        raise DataError(f"{str(file)[:200]!r}: cannot be opened: {error}") from error
    return file


def split_suffix(file: Path) -> tuple[str, bool]:
    """The lower-case suffix without its dot, and whether ``.gz`` stood behind it."""
    name = file.name.lower()
    gzipped = name.endswith(".gz")
    _, dot, suffix = name.removesuffix(".gz").rpartition(".")
    return (suffix if dot else ""), gzipped


@contextmanager
def parsing(file: Path, what: str) -> Iterator[None]:
    """Turns whatever is raised on a damaged file into one DataError that names it; warnings are dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (DataError, ShapeError) as error:
        if str(error).startswith(str(file)):
            raise
        raise DataError(f"{file}: {error}") from error
    except GraphEmbError:
        raise
    except Exception as error:  # numpy, scipy, arrow, dgl and networkx raise some twenty types here
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise DataError(f"{file}: cannot be read as {what}: {reason}; is the file whole?") from error


def open_bytes(file: Path, gzipped: bool) -> IO[bytes]:
    """The bytes of a file, unpacked where it is gzipped; use ``parsing`` or ``reading_gzip`` around reads."""
    return cast("IO[bytes]", gzip.open(file, "rb")) if gzipped else file.open("rb")


GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)


def graph_of_arcs(
    file: Path,
    src: NDArray,
    dst: NDArray,
    weights: NDArray | None,
    options: ReadOptions,
    *,
    directed: bool,
    num_nodes: int | None = None,
    node_ids: NDArray | None = None,
) -> Graph:
    """The graph of a file's arcs; what is wrong with them is told with the file's name.

    Args:
        directed: What the file means where the options do not say.
        num_nodes, node_ids: As in ``Graph.from_edges``.
    """
    if options.weights == "require" and weights is None:
        raise DataError(f"{file}: has no weights, but weights='require'; use weights='auto'")
    with parsing(file, "a graph"):
        graph = Graph.from_edges(
            src,
            dst,
            num_nodes,
            None if options.weights == "ignore" else weights,
            directed if options.directed is None else options.directed,
            node_ids,
            duplicates=options.duplicates,
            self_loops=options.self_loops,
        )
    if graph.num_arcs == 0:
        raise DataError(f"{file}: has no edges; expected at least 1")
    return graph
