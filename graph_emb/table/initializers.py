"""First values of tables: functions of (seed, id, column) alone, so that no layout of parts or ranks changes them.

The id is the original one: ``fill_rows_`` gives an initializer the original ids of rows that lie in partition order.

Legend: R rows, D width.
"""

from __future__ import annotations

import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, UNIT, mix64, njit, unit_draw
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.graph.original_ids import OriginalIds

CHUNK_ELEMENTS = 1 << 22
"""Elements made at a time: bounds the memory for ids and for the values of tables that are not on the CPU."""


@runtime_checkable
class Initializer(Protocol):
    """Fills rows of a table from their ids.

    One with a method ``fill_at_(weight, ids)`` takes ids in any order, (R,) int64; others are called for each run of
    consecutive ids.
    """

    def fill_(self, weight: Tensor, first_id: int) -> None: ...


@runtime_checkable
class TableInitializer(Protocol):
    """Becomes an initializer when it sees the table: it reads a file, whose ids must be the table's."""

    def for_table(self, num_rows: int, dim: int, table: str, original_ids: OriginalIds | None) -> Initializer: ...


@runtime_checkable
class OwnerInitializer(Protocol):
    """An initializer that fills all rows of an owner in one call, because it reads a file from end to end.

    ``for_owner(low, high)`` is what the owner of the rows [low, high) needs of it, and no more.
    """

    def fill_owned_(self, weight: Tensor, first_id: int, original_ids: OriginalIds | None) -> None: ...
    def for_owner(self, low: int, high: int) -> Initializer: ...


@njit(inline="always")
def _row_key(seed, id):
    return mix64(mix64(np.uint64(seed) + GOLDEN) ^ mix64(np.uint64(id) * GOLDEN + np.uint64(1)))


@njit(cache=True, nogil=True)
def _fill_uniform(out, ids, seed, low, high):
    for r in range(out.shape[0]):
        row_key = _row_key(seed, ids[r])
        for d in range(out.shape[1]):
            out[r, d] = low + (high - low) * unit_draw(row_key, d + 1)


@njit(cache=True, nogil=True)
def _fill_normal(out, ids, seed, mean, std):
    for r in range(out.shape[0]):
        row_key = _row_key(seed, ids[r])
        for d in range(out.shape[1]):
            # Box and Muller 1958, one value per column so that the width does not change the columns before it.
            a = mix64(row_key + np.uint64(2 * d + 1) * GOLDEN)
            u = (np.float64(a >> np.uint64(11)) + 1.0) * UNIT  # in (0, 1]: its logarithm is finite
            v = unit_draw(row_key, 2 * d + 2)
            out[r, d] = mean + std * math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


def _run(weight: Tensor, ids: np.ndarray, kernel: Any, *args: Any) -> None:
    """Run a fill kernel on float32 or float64 CPU rows in place, on others through a buffer."""
    if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64) and weight.is_contiguous():
        kernel(weight.numpy(), ids, *args)
        return
    buffer = np.empty(tuple(weight.shape), dtype=np.float64)
    kernel(buffer, ids, *args)
    weight.copy_(torch.from_numpy(buffer))


def _chunks(weight: Tensor) -> Iterator[tuple[int, int]]:
    """[start, stop) of pieces of rows with a bounded number of elements."""
    step = max(1, CHUNK_ELEMENTS // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], step):
        yield start, min(weight.shape[0], start + step)


@torch.no_grad()  # a user's function or object may give values that require a gradient
def fill_rows_(initializer: Initializer, weight: Tensor, first_id: int, original_ids: OriginalIds | None) -> None:
    """Write the first values of the partition-order ids first_id, first_id + 1, ... into weight, shape (R, D).

    Args:
        initializer: Given original ids, unless its values depend on none (zeros, DGL's functions).
        original_ids: None: the ids are original already.
    """
    if isinstance(initializer, OwnerInitializer):
        initializer.fill_owned_(weight, first_id, original_ids)
        return
    if original_ids is None or isinstance(initializer, (Zeros, FromFunction)):
        initializer.fill_(weight, first_id)
        return
    for start, stop in _chunks(weight):
        _fill_at_(initializer, weight[start:stop], original_ids.of(first_id + start, first_id + stop))


def _fill_at_(initializer: Initializer, weight: Tensor, ids: np.ndarray) -> None:
    """Write the rows of original ids, (R,) int64 in any order, into weight, shape (R, D)."""
    fill_at = getattr(initializer, "fill_at_", None)
    if fill_at is not None:
        fill_at(weight, ids)
        return
    for low, high in _runs(ids):
        initializer.fill_(weight[low:high], int(ids[low]))


def _runs(ids: np.ndarray) -> Iterator[tuple[int, int]]:
    """[start, stop) of the places where ids, not empty, are consecutive."""
    return itertools.pairwise([0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)])


@torch.no_grad()
def fill_rows_at_(
    initializer: Initializer, weight: Tensor, ids: np.ndarray, named: np.ndarray, original_ids: OriginalIds | None
) -> None:
    """Write the first values of some rows again into weight, shape (R, D): the values that ``fill_rows_`` wrote.

    Args:
        initializer: Of the table.
        weight: Of the table's dtype.
        ids: Partition-order ids, (R,), int64, ascending.
        named: Their original ids.
        original_ids: As in ``fill_rows_``.
    Raises:
        ConfigError: a function of the shape made them, which gave all rows of a process their values at once.
    """
    if isinstance(initializer, FromFunction):
        raise ConfigError(
            "the first values came from init_func(shape, dtype), which knows no ids; make the table with an object of "
            "graph_emb.initializers, or assign emb.weight[ids] = values"
        )
    if isinstance(initializer, OwnerInitializer):
        for low, high in _runs(ids):
            initializer.fill_owned_(weight[low:high], int(ids[low]), original_ids)
        return
    _fill_at_(initializer, weight, named)


def _check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"initializer seed {seed!r} must be an integer in [0, 2**63)")


@dataclass(frozen=True)
class Zeros:
    """All zeros, as DGL's default."""

    def fill_(self, weight: Tensor, first_id: int) -> None:
        weight.zero_()

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        weight.zero_()


class _Seeded(ABC):
    """Values by id: a range of ids is filled like any other ids."""

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """Write the rows of ids first_id, first_id + 1, ... into weight, shape (R, D)."""
        for start, stop in _chunks(weight):
            self.fill_at_(weight[start:stop], np.arange(first_id + start, first_id + stop))

    @abstractmethod
    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        """Write the rows of ids, (R,) int64, into weight, shape (R, D)."""


@dataclass(frozen=True)
class Uniform(_Seeded):
    """Uniform in [low, high).

    Args:
        low: None stands for -1 / sqrt(D).
        high: None stands for +1 / sqrt(D).
        seed: Same seed and id, same row.
    """

    low: float | None = None
    high: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        for end in (self.low, self.high):
            if end is not None and not math.isfinite(end):
                raise ConfigError(f"Uniform bound {end} must be finite")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"Uniform low {self.low} is above high {self.high}")

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        bound = 1.0 / math.sqrt(max(1, weight.shape[1]))
        low = -bound if self.low is None else float(self.low)
        high = bound if self.high is None else float(self.high)
        if low > high:
            raise ConfigError(f"Uniform low {low:g} is above high {high:g} at width {weight.shape[1]}; give both")
        _run(weight, ids, _fill_uniform, self.seed, low, high)


@dataclass(frozen=True)
class Normal(_Seeded):
    """Normal with the given mean and standard deviation (Box-Muller on the counter hash)."""

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        if not (math.isfinite(self.mean) and math.isfinite(self.std)) or self.std < 0:
            raise ConfigError(f"Normal mean {self.mean}, std {self.std}: both finite, std not negative")

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        _run(weight, ids, _fill_normal, self.seed, float(self.mean), float(self.std))


@dataclass(frozen=True)
class XavierUniform(_Seeded):
    """Uniform in +-gain * sqrt(6 / (num_embeddings + D)), as ``torch.nn.init.xavier_uniform_`` of the whole table.

    Args:
        num_embeddings: Rows of the whole table, which fixes the bound whatever part is filled.
        gain: Multiplies the bound.
        seed: Same seed and id, same row.
    """

    num_embeddings: int
    gain: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        if self.num_embeddings < 1 or not (math.isfinite(self.gain) and self.gain > 0):
            raise ConfigError(
                f"XavierUniform num_embeddings {self.num_embeddings}, gain {self.gain}: both must be positive"
            )

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        bound = self.gain * math.sqrt(6.0 / (self.num_embeddings + weight.shape[1]))
        _run(weight, ids, _fill_uniform, self.seed, -bound, bound)


class FromArray:
    """Rows copied from an array whose row i is the first value of id i.

    Args:
        array: Shape (num_embeddings, D), numpy array or tensor; it is read, never kept changed.
    """

    def __init__(self, array: np.ndarray | Tensor) -> None:
        self.array = torch.as_tensor(array).detach()
        if self.array.dim() != 2 or not self.array.is_floating_point():
            raise ShapeError(
                f"FromArray needs a floating array of shape (num_embeddings, D), got {tuple(self.array.shape)} "
                f"of {self.array.dtype}"
            )

    def fill_(self, weight: Tensor, first_id: int) -> None:
        end = first_id + weight.shape[0]
        if self.array.shape[1] != weight.shape[1] or end > self.array.shape[0]:
            raise ShapeError(
                f"FromArray has shape {tuple(self.array.shape)} but the table needs rows [{first_id}, {end}) "
                f"of width {weight.shape[1]}"
            )
        weight.copy_(self.array[first_id:end])

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        if weight.dtype == self.array.dtype and weight.is_contiguous() and weight.device == self.array.device:
            self.rows_of(ids, weight.shape[1], weight)
        else:
            weight.copy_(self.rows_of(ids, weight.shape[1]))

    def rows_of(self, ids: np.ndarray, width: int, out: Tensor | None = None) -> Tensor:
        """Copies of the rows of ids, shape (R, D), into ``out`` where it is given."""
        low, high = int(ids.min(initial=0)), int(ids.max(initial=-1))
        if self.array.shape[1] != width or high >= self.array.shape[0] or low < 0:
            needed = low if low < 0 else high
            raise ShapeError(
                f"FromArray has shape {tuple(self.array.shape)} but the table needs row {needed} of width {width}"
            )
        return torch.index_select(self.array, 0, torch.from_numpy(ids), out=out)


class FromParts:
    """Rows that ids share: the first value of id i is row ``parts[i]`` of an array.

    Args:
        rows: Shape (P, D), floating.
        parts: Shape (num_embeddings,), int64, each below P.
    """

    def __init__(self, rows: Tensor, parts: np.ndarray) -> None:
        self._rows, self._parts = FromArray(rows), parts

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """As ``Initializer.fill_``."""
        self.fill_at_(weight, np.arange(first_id, first_id + len(weight)))

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        """Write the rows of ids, (R,), into weight, shape (R, D)."""
        self._rows.fill_at_(weight, self._parts[ids])


class FromFunction:
    """DGL's form: a function ``init_func(shape, dtype) -> tensor``, called once for all rows that a process owns.

    Its values depend on the layout of parts unless they are constant; the other initializers do not.
    """

    def __init__(self, function: Any) -> None:
        self.function = function

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """Write ``function(weight.shape, weight.dtype)``, or ``function`` of a tensor of zeros, into weight."""
        if _takes_a_tensor(self.function):
            given = torch.zeros(weight.shape, dtype=weight.dtype)
            values = self.function(given)
            values = given if values is None else values
        else:
            values = self.function(tuple(weight.shape), weight.dtype)
        if not isinstance(values, Tensor) or tuple(values.shape) != tuple(weight.shape):
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"init_func returned {found}; it must return a tensor of shape {tuple(weight.shape)}")
        weight.copy_(values)


def _takes_a_tensor(function: Any) -> bool:
    """Whether a function is ``f(tensor)``: it cannot do without one argument only, and its second is no ``dtype``."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some of C tell nothing
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    return len(needed) == 1 and all(p.kind is not p.VAR_POSITIONAL and p.name != "dtype" for p in parameters)


def said_of(initializer: Initializer) -> str:
    """An initializer in words: all of one that is a function of seed and id, else its kind alone."""
    if isinstance(initializer, Scaled):
        return f"Scaled({said_of(initializer.base)}, {initializer.factor}, {initializer.stream})"
    known = isinstance(initializer, (Zeros, _Seeded)) and is_dataclass(initializer)
    return repr(initializer) if known else type(initializer).__name__


def as_initializer(init_func: object) -> Initializer | TableInitializer:
    """The initializer that an ``init_func`` argument stands for: None (zeros), an initializer, or DGL's function."""
    if init_func is None:
        return Zeros()
    if not isinstance(init_func, type):
        if isinstance(init_func, (Initializer, TableInitializer)):
            return init_func
        if callable(init_func):
            return FromFunction(init_func)
    raise ConfigError(
        f"init_func is {init_func!r}; pass None, an object of graph_emb.initializers, f(shape, dtype) or f(tensor)"
    )


def initializer_for(
    init_func: object, num_rows: int, dim: int, table: str, original_ids: OriginalIds | None
) -> Initializer:
    """``as_initializer`` of a table with this shape, name and original ids."""
    made = as_initializer(init_func)
    return made.for_table(num_rows, dim, table, original_ids) if isinstance(made, TableInitializer) else made


@dataclass(frozen=True)
class Scaled:
    """First values of one of several tables whose rows are summed: those of other ids, times a factor.

    Args:
        base: What gives the values; a function of ids.
        factor: 1 / sqrt(number of rows in a sum) keeps the norm of the sum that of one row.
        stream: Number of the table among them: tables of one seed begin with other values.
    """

    base: Initializer
    factor: float
    stream: int = 0

    def fill_(self, weight: Tensor, first_id: int) -> None:
        self.fill_at_(weight, np.arange(first_id, first_id + len(weight), dtype=np.int64))

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        _fill_at_(self.base, weight, ids + (self.stream << 40))
        weight.mul_(self.factor)
