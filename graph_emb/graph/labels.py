"""Classes of nodes: any number of labels for each node, none included."""

# N nodes, L label assignments, C classes

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.graph.csr import frozen
from graph_emb.graph.ids import first_outside
from graph_emb.graph.typed import summary, summary_card

MAX_CLASSES = 2**31  # what int32 tells apart


@dataclass(frozen=True, eq=False)
class Labels:
    """Label lists of N nodes in compressed rows; a node without a label has an empty row.

    Attributes:
        indptr: Shape (N+1,), int64; the labels of node u are ``indices[indptr[u]:indptr[u+1]]``.
        indices: Shape (L,), int32, in [0, C), sorted and distinct within a row.
        num_classes: C, classes that no node has included.
        class_names: C names in the order of the classes; None: 0 .. C-1.
    Raises:
        ShapeError: dtypes or lengths do not fit each other.
        DataError: rows that fall, repeat a class or name one outside [0, C).
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    num_classes: int
    class_names: tuple[str, ...] | None = None

    __repr__ = summary
    _repr_html_ = summary_card

    def __post_init__(self) -> None:
        for name, dtype in (("indptr", np.int64), ("indices", np.int32)):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1:
                raise ShapeError(
                    f"labels: {name} has dtype {array.dtype}, shape {array.shape}; "
                    f"expected one dimension of {np.dtype(dtype)}"
                )
            object.__setattr__(self, name, frozen(array))
        indptr, indices = self.indptr, self.indices
        if not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] != len(indices):
            raise DataError(f"labels: indptr must start at 0, never fall and end at {len(indices)}; use from_lists")
        _check_range("class", indices, self.num_classes)
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        falls = (rows[1:] == rows[:-1]) & (np.diff(indices) <= 0)
        if falls.any():
            node = rows[np.argmax(falls)]
            raise DataError(f"labels: classes of node {node} are not sorted and distinct; use from_lists")
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise ShapeError(f"labels: {len(self.class_names)} names for {self.num_classes} classes")

    @classmethod
    def from_single(
        cls, classes: ArrayLike, num_classes: int | None = None, class_names: Sequence[str] | None = None
    ) -> Labels:
        """At most one label for each node.

        Args:
            classes: Shape (N,), integers; -1 for a node without a label.
            num_classes: C; by default the names given, else the largest class + 1.
        """
        values = np.asarray(classes)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ShapeError(f"labels: shape {values.shape}, dtype {values.dtype}; expected integers (N,)")
        nodes = np.flatnonzero(values != -1)
        return cls.from_pairs(nodes, values[nodes], len(values), num_classes, class_names)

    @classmethod
    def from_lists(
        cls, lists: Iterable[Iterable[int]], num_classes: int | None = None, class_names: Sequence[str] | None = None
    ) -> Labels:
        """The labels of node 0, of node 1, ...: N collections of classes, each possibly empty."""
        rows = [list(row) for row in lists]
        nodes = np.repeat(np.arange(len(rows), dtype=np.int64), [len(row) for row in rows])
        classes = [label for row in rows for label in row]
        return cls.from_pairs(nodes, classes, len(rows), num_classes, class_names)

    @classmethod
    def from_pairs(
        cls,
        nodes: ArrayLike,
        classes: ArrayLike,
        num_nodes: int,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Labels:
        """Label assignments in any order; a repeated one counts once.

        Args:
            nodes, classes: Shape (L,), integers; nodes in [0, ``num_nodes``), classes in [0, C).
            num_classes: C; by default the names given, else the largest class + 1.
        Raises:
            ShapeError: no integers.
            DataError: a node or a class is out of range, or a class does not fit int32.
        """
        who, what = _integers("nodes", nodes), _integers("classes", classes)
        names = None if class_names is None else tuple(class_names)
        if num_classes is None:
            num_classes = len(names) if names is not None else (int(what.max()) + 1 if what.size else 0)
        limit = min(num_classes, MAX_CLASSES)
        _check_range("node", who, num_nodes)
        _check_range("class", what, limit)
        distinct = np.unique(who.astype(np.int64) * max(limit, 1) + what.astype(np.int64))
        who, what = np.divmod(distinct, max(limit, 1))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(who, minlength=num_nodes))])
        return cls(indptr, what.astype(np.int32), num_classes, names)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    def longer(self, num: int) -> Labels:
        """The same with so many nodes more at the end, without labels."""
        return replace(self, indptr=np.concatenate([self.indptr, np.full(num, self.indptr[-1])]))

    @property
    def is_single(self) -> bool:
        """Whether no node has two labels."""
        return bool((np.diff(self.indptr) <= 1).all())

    def counts(self) -> NDArray[np.int64]:
        """Labels of each node, shape (N,)."""
        return np.diff(self.indptr)

    def class_counts(self) -> NDArray[np.int64]:
        """Nodes of each class, shape (C,)."""
        return np.bincount(self.indices, minlength=self.num_classes).astype(np.int64)

    def labelled(self) -> NDArray[np.int64]:
        """Nodes with at least one label, ascending."""
        return np.flatnonzero(self.counts()).astype(np.int64)

    def to_single(self) -> NDArray[np.int64]:
        """The label of each node, shape (N,), -1 for none.

        Raises:
            DataError: a node has several labels.
        """
        counts = self.counts()
        if not self.is_single:
            node = int(np.argmax(counts > 1))
            raise DataError(f"labels: node {node} has {counts[node]} labels, expected at most 1; use to_matrix()")
        classes = np.full(self.num_nodes, -1, dtype=np.int64)
        classes[counts == 1] = self.indices
        return classes

    def to_matrix(self) -> csr_array:
        """The (N, C) indicator matrix, bool."""
        data = np.ones(len(self.indices), dtype=bool)
        return csr_array((data, self.indices.copy(), self.indptr.copy()), shape=(self.num_nodes, self.num_classes))

    def to_column(self) -> NDArray:
        """A column of node data: (N,) int64 as ``to_single``, or where a node has several labels (N, C) uint8."""
        return self.to_single() if self.is_single else self.to_matrix().toarray().astype(np.uint8)

    def subset(self, nodes: ArrayLike) -> Labels:
        """Labels of the asked nodes, in their order, repeats allowed; the classes stay the same.

        Args:
            nodes: Shape (B,), integers in [0, N).
        """
        asked = np.asarray(nodes, dtype=np.int64)
        _check_range("node", asked, self.num_nodes)
        rows = self.to_matrix()[asked]
        indptr, indices = rows.indptr.astype(np.int64, copy=False), rows.indices.astype(np.int32, copy=False)
        return Labels(indptr, indices, self.num_classes, self.class_names)


def _integers(word: str, values: ArrayLike) -> NDArray[np.integer]:
    """Any integers, shape (L,), not narrowed yet."""
    given = np.asarray(values)
    if given.size == 0:
        return np.zeros(0, dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ShapeError(f"labels: {word} have shape {given.shape}, dtype {given.dtype}; expected integers (L,)")
    return given


def _check_range(word: str, values: NDArray[np.integer], limit: int) -> None:
    bad = first_outside(values, limit)
    if bad is not None:
        raise DataError(f"labels: {word} {values[bad]} at position {bad} is outside [0, {limit})")
