"""Approximate indexes of hnswlib and faiss, which compare a query with few of a table's rows."""

# N rows, D width, Q asked vectors, K neighbours.

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.storage import replacing

EXACT = "exact"
LINKS, BUILD_EFFORT = 24, 200
"""Links of a row in the graph of an index, and candidates that are weighed for each when it is built."""
EFFORT = 200
ADDED_AT_ONCE = 1 << 16


class Index(ABC):
    """A navigable graph of rows (HNSW, Malkov and Yashunin 2018), numbered as in the table.

    Args:
        rows: Shape (N, D), float32; of "cosine" their length has no effect.
        metric: "cosine", "dot" or "euclidean".
        saved: A file of ``save`` over as many rows of this width; None: build it.
    Raises:
        ConfigError: the package is not installed.
        DataError: the file is none, or of other rows.
    """

    package: ClassVar[str]
    extra: ClassVar[str]

    def __init__(self, rows: NDArray[np.floating], metric: str, saved: str | Path | None = None) -> None:
        try:
            self._library: Any = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(
                f"index={self.extra!r} needs its package ({error}): pip install 'graph_emb[{self.extra}]'"
            ) from None
        self._metric, self._width = metric, rows.shape[1]
        if saved is None:
            self._build(rows)
            return
        if not Path(saved).is_file():
            raise DataError(f"{saved}: no such file; save_index writes it")
        try:
            shape = self._read(str(saved))
        except Exception as error:  # each library raises its own kind
            raise DataError(f"{saved} is no index of {self.extra}, or of another width: {error}") from error
        if shape != rows.shape:
            raise DataError(f"{saved} has rows of shape {shape}, the table {rows.shape}; build the index again")

    def save(self, path: str | Path) -> None:
        """Write the library's own file, replaced atomically."""
        with replacing(Path(path)) as draft:
            self._write(str(draft))

    def _given(self, rows: NDArray[np.floating]) -> NDArray[np.float32]:
        """Rows as the index compares them; by the dot product of rows of length 1 where cosines are asked."""
        given = np.ascontiguousarray(rows, np.float32)
        if self._metric == "cosine":
            given = given / np.maximum(np.linalg.norm(given, axis=1, keepdims=True), 1e-12)
        return given

    @abstractmethod
    def _build(self, rows: NDArray[np.floating]) -> None: ...

    @abstractmethod
    def _read(self, path: str) -> tuple[int, int]:
        """N and D of a file, which is read."""

    @abstractmethod
    def _write(self, path: str) -> None: ...

    @abstractmethod
    def search(self, asked: NDArray[np.floating], k: int, effort: int) -> NDArray[np.int64] | None:
        """Numbers of about the k nearest rows of each vector, (Q, K), in any order; None: fewer were found.

        Args:
            effort: Candidates that are kept during a search, at least k of them.
        """


class Hnswlib(Index):
    """``hnswlib.Index``; spaces "ip" (of rows of length 1 for cosines) and "l2"."""

    package, extra = "hnswlib", "hnswlib"

    def _build(self, rows: NDArray[np.floating]) -> None:
        self._index = self._library.Index(self._space, self._width)
        self._index.init_index(len(rows), M=LINKS, ef_construction=BUILD_EFFORT, random_seed=0)
        for low in range(0, len(rows), ADDED_AT_ONCE):
            part = rows[low : low + ADDED_AT_ONCE]
            self._index.add_items(self._given(part), np.arange(low, low + len(part)))

    @property
    def _space(self) -> str:
        return "l2" if self._metric == "euclidean" else "ip"

    def _read(self, path: str) -> tuple[int, int]:
        self._index = self._library.Index(self._space, self._width)
        self._index.load_index(path)
        return self._index.element_count, self._index.dim

    def _write(self, path: str) -> None:
        self._index.save_index(path)

    def search(self, asked: NDArray[np.floating], k: int, effort: int) -> NDArray[np.int64] | None:
        """As ``Index.search``."""
        self._index.set_ef(max(effort, k))
        try:
            return self._index.knn_query(self._given(asked), k)[0].astype(np.int64)
        except RuntimeError:  # it found fewer
            return None


class Faiss(Index):
    """``faiss.IndexHNSWFlat``."""

    package, extra = "faiss", "faiss"

    def _build(self, rows: NDArray[np.floating]) -> None:
        kind = self._library.METRIC_L2 if self._metric == "euclidean" else self._library.METRIC_INNER_PRODUCT
        self._index = self._library.IndexHNSWFlat(self._width, LINKS, kind)
        self._index.hnsw.efConstruction = BUILD_EFFORT
        for low in range(0, len(rows), ADDED_AT_ONCE):
            self._index.add(self._given(rows[low : low + ADDED_AT_ONCE]))

    def _read(self, path: str) -> tuple[int, int]:
        self._index = self._library.read_index(path)
        return self._index.ntotal, self._index.d

    def _write(self, path: str) -> None:
        self._library.write_index(self._index, path)

    def search(self, asked: NDArray[np.floating], k: int, effort: int) -> NDArray[np.int64] | None:
        """As ``Index.search``."""
        self._index.hnsw.efSearch = max(effort, k)
        found: NDArray[np.int64] = self._index.search(self._given(asked), k)[1]
        return None if (found < 0).any() else found


INDEXES: dict[str, type[Index]] = {"hnswlib": Hnswlib, "faiss": Faiss}


def index_of(
    name: str, rows: NDArray[np.floating], metric: str, saved: str | Path | None, effort: int | None
) -> Index | None:
    """The index of that name; None for "exact".

    Raises:
        ConfigError: an unknown name, a missing package, an effort outside its limits, or one without effect.
        DataError: as ``Index``.
    """
    if name not in (EXACT, *INDEXES):
        raise unknown_name("index", name, (EXACT, *INDEXES))
    whole = isinstance(effort, int | np.integer) and not isinstance(effort, bool)
    if effort is not None and not (whole and 1 <= effort <= 1 << 20):
        raise ConfigError(f"effort={effort!r} candidates: give a number in [1, {1 << 20}]")
    if name == EXACT:
        for field, value in (("effort", effort), ("saved", saved)):
            if value is not None:
                raise ConfigError(f"{field}={value} has no effect on index='exact'; leave it out, or take 'hnswlib'")
        return None
    return INDEXES[name](rows, metric, saved)
