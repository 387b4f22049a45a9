"""Sums of rows that many ids share, and the sums of their gradients, each in one pass over a batch.

Legend: B sums, T terms of each, K tables, R distinct rows of one, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.addresses import Columns, Loop, array_at, kind_of
from graph_emb.core.compiled import njit, numbered
from graph_emb.core.threads import threads_for
from graph_emb.optim.rounding import FAST
from graph_emb.table.bags import BagGradients
from graph_emb.table.row_memory import prefetch_to_read
from graph_emb.table.shard import AHEAD, lend
from graph_emb.table.spec import accumulation_dtype

LINE_NUMBERS = 16  # of a cache line, float32: threads that share one would wait for each other
TERMS_AHEAD = 4  # sums whose rows are asked for before they are needed
DIRECT = 4  # times B: the rows of a table up to which ids are numbered through an array of them all


@dataclass(frozen=True)
class RowTerms:
    """Which rows B sums are made of: terms of K tables, those with a factor, of the first table, before those without.

    A row of the last table may stand for a chain of rows that always come with it: those of the parts in which a part
    lies. They are summed, and their gradients merged, once for each such row and not for each of the B sums.

    Attributes:
        distinct: By table each of its terms' rows once, (R,), int64.
        places: The place of each term's row among the distinct ones of its table, (T, B).
        table: Of each term, (T,).
        chain: The rows of further tables that come with each distinct row of the last one, and that row as the last
            term; None: none do.
    """

    distinct: tuple[np.ndarray, ...]
    places: np.ndarray
    table: tuple[int, ...]
    chain: RowTerms | None = None

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], sizes: Sequence[int], above: np.ndarray | None = None) -> RowTerms:
        """Of the rows of each table's terms, (t, B), all of as many sums.

        Args:
            sizes: Rows that each table has, then those that each table of ``above`` has.
            above: The rows of further tables that come with each row of the last table, (its size, L).
        """
        starts = np.cumsum([0, *(one.size for one in rows)])
        flat = np.concatenate([one.ravel() for one in rows])
        distinct, places, found = np.empty_like(flat), np.empty_like(flat), np.empty(len(rows), np.int64)
        with threads_for(len(flat)):
            _number_each(flat, starts, np.array(sizes[: len(rows)], np.int64), distinct, places, found)
        each = tuple(distinct[low : low + count] for low, count in zip(starts[:-1], found, strict=True))
        table = tuple(k for k, one in enumerate(rows) for _ in range(len(one)))
        chain = None
        if above is not None and above.shape[1]:
            last = each[-1]
            coarser = cls.of(list(columns_at(above, last)[:, None]), sizes[len(rows) :])
            chain_places = np.concatenate([coarser.places, np.arange(len(last))[None]])
            chain = cls((*coarser.distinct, last), chain_places, (*coarser.table, above.shape[1]))
        return cls(each, places.reshape(len(table), -1), table, chain)

    @property
    def wanted(self) -> tuple[np.ndarray, ...]:
        """By table the rows that sums need, each once, (R,): of the tables of terms, then of those of the chain."""
        return self.distinct if self.chain is None else (*self.distinct, *self.chain.distinct[:-1])

    def sums(self, rows: Sequence[Tensor], factors: Tensor | None) -> Tensor:
        """Sums of the terms, first to last, (B, D), in the accumulation dtype, where the rows lie.

        Args:
            rows: By table those of ``wanted``, (R, D).
            factors: Of the first f terms, (B, f), in the accumulation dtype, on the CPU; None: no term has one.
        """
        dtype, size = accumulation_dtype(rows[0].dtype), self.places.shape[1]
        of = [one.to(dtype).contiguous() for one in rows]
        if self.chain is not None:
            of, above = of[: len(self.distinct)], of[len(self.distinct) :]
            of[-1] = self.chain.sums([*above, of[-1]], None)
        factors = torch.empty((size, 0), dtype=dtype) if factors is None else factors
        if any(one.device.type != "cpu" for one in of):
            return self._sums_by_torch(of, factors)
        out = lend((size, of[0].shape[1]), dtype, of[0].device)
        jobs = _terms([of[k] for k in self.table], self.places, factors, out)
        with threads_for(size) as parts:
            _sum_terms.run(kind_of(jobs[0]), jobs, parts)
        return out

    def _sums_by_torch(self, rows: Sequence[Tensor], factors: Tensor) -> Tensor:
        """``sums`` on any device, without the chain."""
        total: Any = 0
        for t, k in enumerate(self.table):
            found = rows[k].index_select(0, torch.from_numpy(self.places[t]).to(rows[k].device))
            total = total + (found * factors[:, t : t + 1].to(found) if t < factors.shape[1] else found)
        return total

    def merged(self, grads: Tensor, factors: Tensor | None) -> list[Tensor]:
        """By table of ``wanted`` the gradients of the rows, (R, D), from those of the sums, (B, D), float32.

        Each is summed in the order of (sum, term), whatever the threads.
        """
        terms = list(range(len(self.table)))
        found = self._scattered(terms, grads, factors)
        if self.chain is not None:
            found += self.chain._scattered(terms=range(len(self.chain.table) - 1), grads=found[-1], factors=None)
        return found

    def _scattered(self, terms: Sequence[int], grads: Tensor, factors: Tensor | None) -> list[Tensor]:
        """``merged`` of some terms, the first ones."""
        width, table = grads.shape[1], [self.table[t] for t in terms]
        found = [lend((len(self.distinct[k]), width), torch.float32, grads.device) for k in range(table[-1] + 1)]
        factors = torch.empty((len(grads), 0)) if factors is None else factors.float()
        jobs = _terms([found[k] for k in table], self.places[: len(table)], factors, grads)
        with threads_for(len(grads)) as parts:
            _sum_gradients.run(kind_of(jobs[0]), jobs, max(1, min(parts, width // LINE_NUMBERS)))
        return found

    def asked(self, table: int) -> np.ndarray:
        """The rows of the terms of a table of ``wanted``, in the order of (sum, term), (B * t,)."""
        if table < len(self.distinct):
            terms = [t for t, k in enumerate(self.table) if k == table]
            return self.distinct[table][self.places[terms].T.ravel()]
        assert self.chain is not None
        k = table - len(self.distinct)
        return self.chain.distinct[k][self.chain.places[k][self.places[-1]]]


class SharedGradients:
    """Gradients of sums, (B, D), for the tables of their terms: merged for all tables in one pass, when first asked."""

    def __init__(self, shared: RowTerms, grads: Tensor, factors: Tensor | None) -> None:
        self._shared, self.grads, self._factors = shared, grads, factors

    def of(self, table: int) -> TableGradients:
        """Those of a table of ``RowTerms.wanted``."""
        return TableGradients(self, table)

    def spread(self, table: int) -> tuple[Tensor, BagGradients]:
        """The rows of a table's terms in the order of the sums, (B * t,), and their gradients."""
        shared, num = self._shared, self._shared.places.shape[1]
        factor = None if self._factors is None or table > 0 else self._factors.flatten()
        rows = shared.asked(table)
        source = torch.from_numpy(np.arange(num).repeat(len(rows) // max(1, num)))
        return torch.from_numpy(rows), BagGradients(self.grads, source, factor)

    def merged(self, table: int) -> tuple[Tensor, Tensor]:
        """The rows of a table, (R,), and the sums of their gradients, (R, D), float32."""
        return torch.from_numpy(self._shared.wanted[table]), self._merged[table]

    @cached_property
    def _merged(self) -> list[Tensor]:
        return self._shared.merged(self.grads.detach().to("cpu", torch.float32).contiguous(), self._factors)

    def of_factors(self, rows: Tensor) -> Tensor:
        """The gradients of the factors, (B, f), in the accumulation dtype, from the rows of their table, (R, D)."""
        assert self._factors is not None
        places, dtype = self._shared.places, self._factors.dtype
        grads, rows = self.grads.detach().to(rows.device, dtype).contiguous(), rows.to(dtype).contiguous()
        if rows.device.type != "cpu":
            chosen = torch.from_numpy(places[: self._factors.shape[1]]).to(rows.device)
            return torch.stack([(rows.index_select(0, one) * grads).sum(dim=1) for one in chosen], dim=1)
        found = torch.empty_like(self._factors)
        jobs = _terms([rows], places, found, grads)
        with threads_for(len(grads)) as parts:
            _factor_gradients.run(kind_of(jobs[0]), jobs, parts)
        return found


@dataclass(frozen=True)
class TableGradients:
    """The gradients of one table from those of sums: merged, or as bags, whichever is asked for.

    Attributes:
        all: Those of the sums.
        table: Of ``RowTerms.wanted``.
        scale: What all are multiplied by.
    """

    all: SharedGradients
    table: int
    scale: float = 1.0

    @property
    def grads(self) -> Tensor:
        """Of the sums, as backward handed them in, (B, D)."""
        return self.all.grads

    def __mul__(self, number: float) -> TableGradients:
        return replace(self, scale=self.scale * number)

    def spread(self) -> tuple[Tensor, BagGradients]:
        """The ids of the terms, repeats kept, (B * t,), and their gradients."""
        ids, grads = self.all.spread(self.table)
        return ids, grads if self.scale == 1.0 else grads * self.scale

    def merged(self) -> tuple[Tensor, Tensor] | None:
        """Distinct ids, (R,), and the sums of their gradients, (R, D), float32; None of float64: see ``merge``."""
        if accumulation_dtype(self.grads.dtype) is not torch.float32:
            return None
        ids, sums = self.all.merged(self.table)
        return ids, sums if self.scale == 1.0 else sums * self.scale


class CaptureSums(torch.autograd.Function):
    """Identity on sums of shared rows; its backward hands their gradients to the tables and to the factors.

    Args of ``forward``: an anchor that requires a gradient; what the factors are of, (B, f), but for a constant, or
    None; the sums, (B, D); whose they are; the trace of each table; the factors as ``RowTerms.sums`` takes them; and
    the rows of the first table, which is theirs, (R, D).
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, free: Tensor | None, found: Tensor, shared: RowTerms, traces: Sequence[Any],
        factors: Tensor | None, rows: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.like, ctx.shared, ctx.traces, ctx.factors, ctx.rows = free, shared, traces, factors, rows
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shared, factors, of_weights = ctx.shared, ctx.factors, None
        gradients = SharedGradients(shared, grad, factors)
        for table, trace in enumerate(ctx.traces):
            trace.add_shared(gradients.of(table))
        if ctx.like is not None:
            of_weights = gradients.of_factors(ctx.rows).to(ctx.like)
        return None, of_weights, None, None, None, None, None


def columns_at(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Columns of the rows of ids (B,) of a table of integers, (N, L): shape (L, B), int64."""
    found = np.empty((table.shape[1], len(ids)), np.int64)
    _columns_at(table, ids, found)
    return found


@njit(cache=True, nogil=True)
def _columns_at(table: Any, ids: Any, found: Any) -> None:
    for i in range(len(ids)):
        if i + AHEAD < len(ids):
            prefetch_to_read(table, ids[i + AHEAD])
        for k in range(len(found)):
            found[k, i] = table[ids[i], k]


@njit(cache=True, nogil=True)
def _number(ids: Any, size: int, distinct: Any, places: Any) -> int:
    """``numbered`` of ids below size, through an array of all where they are few."""
    if size > DIRECT * len(ids):
        found, at = numbered(ids)
        distinct[: len(found)] = found
        places[:] = at
        return len(found)
    known = np.full(size, -1, np.int32)
    count = 0
    for i in range(len(ids)):
        if known[ids[i]] < 0:
            known[ids[i]] = count
            distinct[count] = ids[i]
            count += 1
        places[i] = known[ids[i]]
    return count


@njit(parallel=True, cache=True, nogil=True)
def _number_each(ids: Any, starts: Any, sizes: Any, distinct: Any, places: Any, found: Any) -> None:
    for k in prange(len(found)):
        low, high = starts[k], starts[k + 1]
        found[k] = _number(ids[low:high], sizes[k], distinct[low:high], places[low:high])


ROWS, PLACES, FACTORS, SUMS = range(4)
"""The places of a term's arrays (``graph_emb.core.addresses``): of its table, then those that all terms have."""


def _terms(rows: Sequence[Tensor], places: np.ndarray, factors: Tensor, sums: Tensor) -> list[Columns]:
    """The arrays of each term, a job each of the loops below; ``sums`` are sums or their gradients."""
    shared = np.ascontiguousarray(places), factors.contiguous().numpy(), sums.numpy()
    return [(one.numpy(), *shared) for one in rows]


def _loop(function: Any) -> Loop:
    return Loop(function, fastmath=FAST, error_model="numpy")


@_loop
def _sum_terms(kind: Any, where: Any, terms: int, part: int, parts: int) -> None:
    places, factors = array_at(kind, where, 0, PLACES), array_at(kind, where, 0, FACTORS)
    out = array_at(kind, where, 0, SUMS)
    num, width = out.shape
    for i in range(part * num // parts, (part + 1) * num // parts):
        total = out[i]
        for t in range(terms if i + TERMS_AHEAD < num else 0):
            prefetch_to_read(array_at(kind, where, t, ROWS), places[t, i + TERMS_AHEAD])
        for t in range(terms):
            row = array_at(kind, where, t, ROWS)[places[t, i]]
            factor = factors[i, t] if t < factors.shape[1] else out.dtype.type(1.0)
            if t == 0:
                for d in range(width):
                    total[d] = factor * row[d]
            else:
                for d in range(width):
                    total[d] += factor * row[d]


@_loop
def _factor_gradients(kind: Any, where: Any, jobs: int, part: int, parts: int) -> None:
    """Inner products of the row of each term that has a factor and the gradient of its sum, (B, f)."""
    rows, places = array_at(kind, where, 0, ROWS), array_at(kind, where, 0, PLACES)
    out, grads = array_at(kind, where, 0, FACTORS), array_at(kind, where, 0, SUMS)
    num, width = grads.shape
    for i in range(part * num // parts, (part + 1) * num // parts):
        own = grads[i]
        for t in range(out.shape[1]):
            row = rows[places[t, i]]
            total = out.dtype.type(0.0)
            for d in range(width):
                total += row[d] * own[d]
            out[i, t] = total


@_loop
def _sum_gradients(kind: Any, where: Any, terms: int, part: int, parts: int) -> None:
    """Add each gradient to the rows of its terms. A part has columns of its own, so that any number gives one order."""
    places, factors = array_at(kind, where, 0, PLACES), array_at(kind, where, 0, FACTORS)
    grads = array_at(kind, where, 0, SUMS)
    num, width = grads.shape
    lines = (width + LINE_NUMBERS - 1) // LINE_NUMBERS
    low = part * lines // parts * LINE_NUMBERS
    high = min((part + 1) * lines // parts * LINE_NUMBERS, width)
    for t in range(terms):
        every = array_at(kind, where, t, ROWS)
        for r in range(len(every)):
            every[r, low:high] = 0.0
    for i in range(num):
        own = grads[i, low:high]
        for t in range(terms):
            total = array_at(kind, where, t, ROWS)[places[t, i], low:high]
            if t < factors.shape[1]:
                factor = factors[i, t]
                for d in range(len(own)):  # from 0: numba's loops over a range that may begin below are no vectors
                    total[d] += factor * own[d]
            else:
                for d in range(len(own)):
                    total[d] += own[d]
