"""Fused updates of tables of 32 and 16 bits on the CPU: duplicates, state and weight in one pass over touched rows.

The arithmetic is that of the rules' torch form, which is the oracle in the tests. Fused, a row's lines are read
and written once; the torch form reads and writes them once per operation.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import prange, types
from numba.extending import overload

from graph_emb.core.addresses import array_at
from graph_emb.core.compiled import njit
from graph_emb.optim.merging import ask_for, merged, share
from graph_emb.optim.rounding import FAST, close, number_at, opened, put_number, row_chance, row_of, subtract
from graph_emb.optim.row_options import begin, end
from graph_emb.table.row_memory import prefetch

WEIGHT, FIRST_STATE, SECOND_STATE, CLOCK = range(4)
DISTINCT, FIRST, FOLLOWING, GRADS, SOURCE, FACTOR, IDS, DECAYS, SHARES = range(4, 13)
"""The places of a job's arrays (``graph_emb.core.addresses``): of its table; of the groups of the pushed rows, of their
gradients, and of the numbers that each touched row brings."""


def _fused(function: Callable[..., None]) -> Callable[..., None]:
    return njit(parallel=True, fastmath=FAST, cache=True, nogil=True, error_model="numpy")(function)


def _loop(function: Callable[..., None]) -> Callable[..., None]:
    return njit(fastmath=FAST, nogil=True, error_model="numpy")(function)


def _formula(function: Callable[..., None]) -> Callable[..., None]:
    return njit(forceinline=True, fastmath=FAST, error_model="numpy")(function)


f32 = np.float32


def _gradients(likes, where, j):
    """The gradients of a job, as ``merged`` takes them."""


@overload(_gradients, jit_options={"forceinline": True})
def _gradients_at(likes, where, j):
    if isinstance(likes[SOURCE], types.NoneType):
        return lambda likes, where, j: array_at(likes[GRADS], where, j, GRADS)

    def of_bags(likes, where, j):
        rows = array_at(likes[GRADS], where, j, GRADS)
        return rows, array_at(likes[SOURCE], where, j, SOURCE), array_at(likes[FACTOR], where, j, FACTOR)

    return of_bags


def _each(likes, where, j):
    """The numbers that each row brings, as ``begin`` and ``end`` take them."""


@overload(_each, jit_options={"forceinline": True})
def _each_at(likes, where, j):
    if isinstance(likes[DECAYS], types.NoneType) and isinstance(likes[SHARES], types.NoneType):
        return lambda likes, where, j: None

    def both(likes, where, j):
        return array_at(likes[DECAYS], where, j, DECAYS), array_at(likes[SHARES], where, j, SHARES)

    return both


@njit(forceinline=True)
def _groups(likes, where, j):
    """The distinct rows of a job, the first occurrence of each, and the next one of each occurrence."""
    distinct, first = array_at(likes[DISTINCT], where, j, DISTINCT), array_at(likes[FIRST], where, j, FIRST)
    return distinct, first, array_at(likes[FOLLOWING], where, j, FOLLOWING)


@njit(forceinline=True)
def _options(numbers, j):
    """The options of a job, as ``begin`` and ``end`` take them."""
    clip, clip_norm, ratio, least = f32(numbers[j, 0]), f32(numbers[j, 1]), f32(numbers[j, 2]), f32(numbers[j, 3])
    return clip, clip_norm, ratio, least, f32(numbers[j, 4]), f32(numbers[j, 5]), f32(numbers[j, 6])


@njit(forceinline=True)
def _overlap(starts, j, low, high):
    """The rows of job j, counted from its first, among rows [low, high) of all jobs."""
    return max(low, starts[j]) - starts[j], min(high, starts[j + 1]) - starts[j]


# numba compiles a form for each type of the arguments and drops the branches that are for the others: None (no state,
# no trust ratio), and state per element (two dimensions) or per row (one). State of 16 bits is rounded by ``chance``,
# with a seed for each, so that their errors have nothing in common. A rule ``alone``, without options and chance, takes
# rows of 16 bits where they lie: they are widened and rounded on the way through the registers, since passes of their
# own over a copy cost more than the memory of the next row hides.


@_formula
def _sgd_row(row, kept, g, lr, momentum):
    if kept is None:
        subtract(row, g, lr, None)
    else:
        for d in range(g.shape[0]):
            b = momentum * kept[d] + g[d]
            kept[d] = b
            put_number(row, d, number_at(row, d) - lr * b)


@_loop
def _sgd_rows(low, high, weight, buffer, likes, where, j, numbers, counts, seed, mean, alone, by_chance):
    distinct, first, following = _groups(likes, where, j)
    grads, options, each = _gradients(likes, where, j), _options(numbers, j), _each(likes, where, j)
    ids, width, ahead, at = array_at(likes[IDS], where, j, IDS), weight.shape[1], counts[j, 0], counts[j, 1]
    lr, momentum = f32(numbers[j, 7]), f32(numbers[j, 8])
    g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    bits, wide = held.view(np.uint32), np.empty(width, np.float32)
    wide_bits = wide.view(np.uint32)
    for k in range(low, high):
        if k + ahead < high:
            prefetch(weight, distinct[k + ahead])
            if buffer is not None:
                prefetch(buffer, distinct[k + ahead])
            ask_for(grads, first[k + ahead])
        r = distinct[k]
        merged(grads, first[k], following, mean, g)
        kept = None if buffer is None else opened(buffer, r, wide, wide_bits)
        if alone is None:
            row = opened(weight, r, held, bits)
            begin(row, g, options, each, k, old)
            _sgd_row(row, kept, g, lr, momentum)
            end(row, options, each, k, old)
            close(weight, r, bits, by_chance, row_chance(ids, seed, at, k))
        else:
            _sgd_row(row_of(weight, r), kept, g, lr, momentum)
        if buffer is not None:
            close(buffer, r, wide_bits, True, row_chance(ids, seed + np.uint64(1), at, k))


@_fused
def _sgd(likes, where, starts, numbers, counts, seed, parts, mean, alone, by_chance):
    for part in prange(parts):
        low, high = share(part, parts, starts[-1])
        for j in range(len(counts)):
            start, stop = _overlap(starts, j, low, high)
            if start < stop:
                weight = array_at(likes[WEIGHT], where, j, WEIGHT)
                buffer = array_at(likes[FIRST_STATE], where, j, FIRST_STATE)
                _sgd_rows(start, stop, weight, buffer, likes, where, j, numbers, counts, seed, mean, alone, by_chance)


@_formula
def _lars_row(row, kept, g, lr, momentum, eta, decay):
    of_row, of_gradient = np.float32(0.0), np.float32(0.0)
    for d in range(g.shape[0]):
        of_row += number_at(row, d) * number_at(row, d)
        of_gradient += g[d] * g[d]
    norm = np.sqrt(of_row)
    divisor = np.sqrt(of_gradient) + decay * norm
    scale = lr
    if eta * norm > 0.0 and divisor > 0.0:
        scale = lr * (eta * norm / divisor)
    for d in range(g.shape[0]):
        b = momentum * kept[d] + scale * (g[d] + decay * number_at(row, d))
        kept[d] = b
        put_number(row, d, number_at(row, d) - b)


@_loop
def _lars_rows(low, high, weight, buffer, likes, where, j, numbers, counts, seed, mean, alone, by_chance):
    distinct, first, following = _groups(likes, where, j)
    grads, options, each = _gradients(likes, where, j), _options(numbers, j), _each(likes, where, j)
    ids, width, ahead, at = array_at(likes[IDS], where, j, IDS), weight.shape[1], counts[j, 0], counts[j, 1]
    lr, momentum, eta, decay = f32(numbers[j, 7]), f32(numbers[j, 8]), f32(numbers[j, 9]), f32(numbers[j, 10])
    g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    bits, wide = held.view(np.uint32), np.empty(width, np.float32)
    wide_bits = wide.view(np.uint32)
    for k in range(low, high):
        if k + ahead < high:
            prefetch(weight, distinct[k + ahead])
            prefetch(buffer, distinct[k + ahead])
            ask_for(grads, first[k + ahead])
        r = distinct[k]
        merged(grads, first[k], following, mean, g)
        kept = opened(buffer, r, wide, wide_bits)
        if alone is None:
            row = opened(weight, r, held, bits)
            begin(row, g, options, each, k, old)
            _lars_row(row, kept, g, lr, momentum, eta, decay)
            end(row, options, each, k, old)
            close(weight, r, bits, by_chance, row_chance(ids, seed, at, k))
        else:
            _lars_row(row_of(weight, r), kept, g, lr, momentum, eta, decay)
        close(buffer, r, wide_bits, True, row_chance(ids, seed + np.uint64(1), at, k))


@_fused
def _lars(likes, where, starts, numbers, counts, seed, parts, mean, alone, by_chance):
    for part in prange(parts):
        low, high = share(part, parts, starts[-1])
        for j in range(len(counts)):
            start, stop = _overlap(starts, j, low, high)
            if start < stop:
                weight = array_at(likes[WEIGHT], where, j, WEIGHT)
                buffer = array_at(likes[FIRST_STATE], where, j, FIRST_STATE)
                _lars_rows(start, stop, weight, buffer, likes, where, j, numbers, counts, seed,
                           mean, alone, by_chance)  # fmt: skip


@_formula
def _adagrad_row(row, sums, g, by_row, lr, eps):
    if by_row is None:
        for d in range(g.shape[0]):
            s = sums[d] + g[d] * g[d]
            sums[d] = s
            put_number(row, d, number_at(row, d) - lr * g[d] / (np.sqrt(s) + eps))
    else:
        square = np.float32(0.0)
        for d in range(g.shape[0]):
            square += g[d] * g[d]
        s = sums[0] + square / np.float32(g.shape[0])
        sums[0] = s
        scale = lr / (np.sqrt(s) + eps)
        subtract(row, g, scale, square)


@_loop
def _adagrad_rows(low, high, weight, total, likes, where, j, numbers, counts, seed, mean, alone, by_chance, by_row):
    distinct, first, following = _groups(likes, where, j)
    grads, options, each = _gradients(likes, where, j), _options(numbers, j), _each(likes, where, j)
    ids, width, ahead, at = array_at(likes[IDS], where, j, IDS), weight.shape[1], counts[j, 0], counts[j, 1]
    lr, eps = f32(numbers[j, 7]), f32(numbers[j, 8])
    g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    bits, wide = held.view(np.uint32), np.empty(width if by_row is None else 1, np.float32)
    wide_bits = wide.view(np.uint32)
    for k in range(low, high):
        if k + ahead < high:
            prefetch(weight, distinct[k + ahead])
            prefetch(total, distinct[k + ahead])
            ask_for(grads, first[k + ahead])
        r = distinct[k]
        merged(grads, first[k], following, mean, g)
        sums = opened(total, r, wide, wide_bits)
        if alone is None:
            row = opened(weight, r, held, bits)
            begin(row, g, options, each, k, old)
            _adagrad_row(row, sums, g, by_row, lr, eps)
            end(row, options, each, k, old)
            close(weight, r, bits, by_chance, row_chance(ids, seed, at, k))
        else:
            _adagrad_row(row_of(weight, r), sums, g, by_row, lr, eps)
        close(total, r, wide_bits, True, row_chance(ids, seed + np.uint64(1), at, k))


@_fused
def _adagrad(likes, where, starts, numbers, counts, seed, parts, mean, alone, by_chance, by_row):
    for part in prange(parts):
        low, high = share(part, parts, starts[-1])
        for j in range(len(counts)):
            start, stop = _overlap(starts, j, low, high)
            if start < stop:
                weight = array_at(likes[WEIGHT], where, j, WEIGHT)
                total = array_at(likes[FIRST_STATE], where, j, FIRST_STATE)
                _adagrad_rows(start, stop, weight, total, likes, where, j, numbers, counts, seed,
                              mean, alone, by_chance, by_row)  # fmt: skip


@njit(inline="always")
def _corrections(step, beta1, beta2, eps, raw):
    """1 / c1, 1 / sqrt(c2) and the eps added to the corrected root (see Adam)."""
    c1 = 1.0 - beta1**step
    root2 = np.sqrt(1.0 - beta2**step)
    e = eps / root2 if raw else eps
    return np.float32(1.0 / c1), np.float32(1.0 / root2), np.float32(e)


@_formula
def _adam_row(row, first_of, second_of, g, by_row, lr, b1, b2, a1, a2, i1, i2, e, decay):
    width = g.shape[0]
    if by_row is None:
        for d in range(width):
            m = b1 * first_of[d] + a1 * g[d]
            v = b2 * second_of[d] + a2 * g[d] * g[d]
            first_of[d] = m
            second_of[d] = v
            if decay is not None:
                g[d] = (m * i1) / (np.sqrt(v) * i2 + e) + decay * number_at(row, d)
            else:
                put_number(row, d, number_at(row, d) - lr * (m * i1) / (np.sqrt(v) * i2 + e))
    else:
        square = np.float32(0.0)
        for d in range(width):
            square += g[d] * g[d]
        v = b2 * second_of[0] + a2 * (square / np.float32(width))
        second_of[0] = v
        scale = i1 / (np.sqrt(v) * i2 + e)
        if decay is None:
            scale = lr * i1 / (np.sqrt(v) * i2 + e)
        for d in range(width):
            m = b1 * first_of[d] + a1 * g[d]
            first_of[d] = m
            if decay is not None:
                g[d] = scale * m + decay * number_at(row, d)
        if decay is None:
            subtract(row, first_of, scale, None)
    if decay is not None:  # LAMB: g is the direction now
        of_row, of_step = np.float32(0.0), np.float32(0.0)
        for d in range(width):
            of_row += number_at(row, d) * number_at(row, d)
            of_step += g[d] * g[d]
        ratio = lr
        if of_row > 0.0 and of_step > 0.0:
            ratio = lr * (np.sqrt(of_row) / np.sqrt(of_step))
        subtract(row, g, ratio, None)


@_loop
def _adam_rows(low, high, weight, first_moment, second_moment, step, likes, where, j, numbers, counts, seed,
               mean, alone, by_chance, by_row, row_clock, raw, decays):  # fmt: skip
    distinct, first, following = _groups(likes, where, j)
    grads, options, each = _gradients(likes, where, j), _options(numbers, j), _each(likes, where, j)
    ids, width, ahead, at = array_at(likes[IDS], where, j, IDS), weight.shape[1], counts[j, 0], counts[j, 1]
    lr, beta1, beta2, eps, own = f32(numbers[j, 7]), numbers[j, 8], numbers[j, 9], numbers[j, 10], f32(numbers[j, 11])
    decay = None if decays is None else own
    b1, b2 = np.float32(beta1), np.float32(beta2)
    a1, a2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    bits, wide1 = held.view(np.uint32), np.empty(width, np.float32)
    wide2 = np.empty(width if by_row is None else 1, np.float32)
    bits1, bits2 = wide1.view(np.uint32), wide2.view(np.uint32)
    i1, i2, e = _corrections(step[0] if not row_clock else 1, beta1, beta2, eps, raw)
    for k in range(low, high):
        if k + ahead < high:
            prefetch(weight, distinct[k + ahead])
            prefetch(first_moment, distinct[k + ahead])
            prefetch(second_moment, distinct[k + ahead])
            if row_clock:
                prefetch(step, distinct[k + ahead])
            ask_for(grads, first[k + ahead])
        r = distinct[k]
        if row_clock:
            step[r] += 1
            i1, i2, e = _corrections(step[r], beta1, beta2, eps, raw)
        merged(grads, first[k], following, mean, g)
        first_of, second_of = opened(first_moment, r, wide1, bits1), opened(second_moment, r, wide2, bits2)
        if alone is None:
            wide_row = opened(weight, r, held, bits)
            begin(wide_row, g, options, each, k, old)
            _adam_row(wide_row, first_of, second_of, g, by_row, lr, b1, b2, a1, a2, i1, i2, e, decay)
            end(wide_row, options, each, k, old)
            close(weight, r, bits, by_chance, row_chance(ids, seed, at, k))
        else:
            row = row_of(weight, r)
            _adam_row(row, first_of, second_of, g, by_row, lr, b1, b2, a1, a2, i1, i2, e, decay)
        close(first_moment, r, bits1, True, row_chance(ids, seed + np.uint64(1), at, k))
        close(second_moment, r, bits2, True, row_chance(ids, seed + np.uint64(2), at, k))


@_fused
def _adam(likes, where, starts, numbers, counts, seed, parts, mean, alone, by_chance, by_row, row_clock, raw, decays):
    for part in prange(parts):
        low, high = share(part, parts, starts[-1])
        for j in range(len(counts)):
            start, stop = _overlap(starts, j, low, high)
            if start < stop:
                weight = array_at(likes[WEIGHT], where, j, WEIGHT)
                first_moment = array_at(likes[FIRST_STATE], where, j, FIRST_STATE)
                second_moment = array_at(likes[SECOND_STATE], where, j, SECOND_STATE)
                step = array_at(likes[CLOCK], where, j, CLOCK)
                _adam_rows(start, stop, weight, first_moment, second_moment, step, likes, where, j, numbers, counts,
                           seed, mean, alone, by_chance, by_row, row_clock, raw, decays)  # fmt: skip
