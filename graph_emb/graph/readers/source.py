"""The contract of readers, the registry that ``read_graph`` chooses from, and the guard around foreign parsers."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from graph_emb.core.errors import DataError, GraphEmbError, ShapeError
from graph_emb.core.registry import Registry
from graph_emb.graph.ids import first_outside
from graph_emb.graph.readers.options import COMMON_OPTIONS, ReadOptions
from graph_emb.graph.typed import HeteroGraph

MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
"""Part of a split to the column of node data that marks it, named as DGL names it."""
WEIGHT = "weight"
"""The column of edge data that "sum" adds up and walks follow."""


@dataclass(frozen=True)
class Contents:
    """A source as it is stored, before the options of every source are applied.

    Attributes:
        graph: No edge was dropped, merged or turned round.
        both_ways: Each stored edge stands for both directions: the other one is added by default.
        undirected: The same, but some edges may be stored in both directions: only what is missing is added.
    """

    graph: HeteroGraph
    both_ways: bool = False
    undirected: bool = False


@dataclass(frozen=True)
class Reader:
    """One kind of source.

    Attributes:
        accepts: Whether a source is of this kind; cheap, opens no file, never raises.
        read: Source and options to contents; raises DataError for whatever the source does wrong.
        options: Names of the options that mean something to it, those of every source included.
        fallback: Asked only when no other reader accepts the source.
    """

    accepts: Callable[[Any], bool]
    read: Callable[[Any, ReadOptions], Contents]
    options: tuple[str, ...]
    fallback: bool = False


READERS: Registry[Reader] = Registry("graph format")


def register(
    name: str, accepts: Callable[[Any], bool], *options: str, fallback: bool = False
) -> Callable[[Callable[[Any, ReadOptions], Contents]], Callable[[Any, ReadOptions], Contents]]:
    """Decorator that files a reader under the name that ``format=`` chooses it by, with its own options."""

    def file(read: Callable[[Any, ReadOptions], Contents]) -> Callable[[Any, ReadOptions], Contents]:
        READERS.register(name)(Reader(accepts, read, (*COMMON_OPTIONS, *options), fallback))
        return read

    return file


def as_path(source: Any) -> Path | None:
    """The path that a string or path object is, None for anything else."""
    return Path(source) if isinstance(source, str | Path) else None


def has_suffix(*suffixes: str) -> Callable[[Any], bool]:
    """Whether a source is a path with one of these endings (lower case, with their dot)."""

    def accepts(source: Any) -> bool:
        path = as_path(source)
        return path is not None and path.name.lower().endswith(suffixes)

    return accepts


def is_object_of(source: Any, package: str) -> bool:
    """Whether a source's class or one of its bases is defined in a package, which is not imported."""
    return any(base.__module__.partition(".")[0] == package for base in type(source).__mro__)


def mask_of(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Node numbers as a mask, (N,), bool."""
    mask = np.zeros(num_nodes, dtype=bool)
    mask[nodes] = True
    return mask


def check_ids(file: Path, word: str, ids: np.ndarray, limit: int, *, first_row: int = 1) -> None:
    """Ids lie in [0, limit); the error names the file, row (``first_row`` is that of the first id) and value."""
    row = first_outside(ids, limit)
    if row is not None:
        raise DataError(f"{file}, row {first_row + row}: {word} {int(ids[row])} is outside [0, {limit})")


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


def open_bytes(file: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where it is called ``.gz``; use ``parsing`` around reads."""
    return cast("IO[bytes]", gzip.open(file, "rb")) if split_suffix(file)[1] else file.open("rb")
