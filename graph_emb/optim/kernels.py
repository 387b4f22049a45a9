"""Fused updates of tables of 32 and 16 bits on the CPU: duplicates, state and weight in one pass over touched rows.

The arithmetic is that of the rules' torch form, which is the oracle in the tests. Fused, a row's lines are read
and written once; the torch form reads and writes them once per operation.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba.extending import overload

from graph_emb.core.addresses import RowLoop, array_at
from graph_emb.core.compiled import njit
from graph_emb.optim.merging import ask_for, merged
from graph_emb.optim.rounding import FAST, close, number_at, opened, put_number, row_chance, row_of, subtract
from graph_emb.optim.row_options import begin, end
from graph_emb.table.row_memory import keep_alive, prefetch, uncounted

WEIGHT, FIRST_STATE, SECOND_STATE, CLOCK = range(4)
DISTINCT, FIRST, FOLLOWING, GRADS, SOURCE, FACTOR, IDS, DECAYS, SHARES, NUMBERS, COUNTS = range(4, 15)
"""The places of a job's arrays (``graph_emb.core.addresses``): of its table; of the groups of the pushed rows, of their
gradients, of the numbers that each touched row brings; its own numbers, and counts and choices."""


def _fused(function: Callable[..., None]) -> RowLoop:
    return RowLoop(function, DISTINCT, fastmath=FAST, error_model="numpy")


def _formula(function: Callable[..., None]) -> Callable[..., None]:
    return njit(forceinline=True, fastmath=FAST, error_model="numpy")(function)


f32 = np.float32


def _gradients(kind, where, j):
    """The gradients of a job, as ``merged`` takes them."""


@overload(_gradients, inline="always")
def _gradients_at(kind, where, j):
    if kind.kind.arrays[SOURCE] is None:
        return lambda kind, where, j: array_at(kind, where, j, GRADS)

    def of_bags(kind, where, j):
        rows = array_at(kind, where, j, GRADS)
        return rows, array_at(kind, where, j, SOURCE), array_at(kind, where, j, FACTOR)

    return of_bags


@njit(forceinline=True)
def _options(numbers):
    """The options of a job, as ``begin`` and ``end`` take them."""
    clip, clip_norm, ratio, least = f32(numbers[0]), f32(numbers[1]), f32(numbers[2]), f32(numbers[3])
    return clip, clip_norm, ratio, least, f32(numbers[4]), f32(numbers[5]), f32(numbers[6])


@njit(forceinline=True)
def _counts(counts):
    """Rows asked for ahead, steps before this one, the seed, whether repeats are averaged, and rounding is chance."""
    return counts[0], counts[1], np.uint64(counts[2]), counts[3] != 0, counts[4] != 0


# numba compiles a form for each kind and drops the branches that are for the others, by flags that are None: no state,
# state per element and not per row, no decay inside the formula. State of 16 bits is rounded by ``chance``, with a seed
# for each, so that their errors have nothing in common. A rule ``alone``, without options and chance, takes rows of 16
# bits where they lie: they are widened and rounded on the way through the registers, since passes of their own over a
# copy cost more than the memory of the next row hides.


@_formula
def _sgd_row(row, kept, g, lr, momentum):
    if kept is None:
        subtract(row, g, lr, None)
    else:
        for d in range(g.shape[0]):
            b = momentum * kept[d] + g[d]
            kept[d] = b
            put_number(row, d, number_at(row, d) - lr * b)


@_fused
def _sgd(kind, where, j, low, high, alone, has_buffer, _):
    distinct, first = array_at(kind, where, j, DISTINCT), array_at(kind, where, j, FIRST)
    following, grads = array_at(kind, where, j, FOLLOWING), _gradients(kind, where, j)
    each, ids = (array_at(kind, where, j, DECAYS), array_at(kind, where, j, SHARES)), array_at(kind, where, j, IDS)
    weight, numbers = array_at(kind, where, j, WEIGHT), array_at(kind, where, j, NUMBERS)
    buffer = array_at(kind, where, j, FIRST_STATE)
    counts, width = array_at(kind, where, j, COUNTS), weight.shape[1]
    options, (ahead, at, seed, mean, by_chance) = _options(numbers), _counts(counts)
    lr, momentum = f32(numbers[7]), f32(numbers[8])
    scratch = np.empty((4, width), np.float32)
    rows = uncounted(scratch)
    g, held, old, wide = rows[0], rows[1], rows[2], rows[3]
    bits = held.view(np.uint32)
    wide_bits = wide.view(np.uint32)
    for k in range(low, high):
        if k + ahead < high:
            prefetch(weight, distinct[k + ahead])
            if has_buffer is not None:
                prefetch(buffer, distinct[k + ahead])
            ask_for(grads, first[k + ahead])
        r = distinct[k]
        merged(grads, first[k], following, mean, g)
        kept = None if has_buffer is None else opened(buffer, r, wide, wide_bits)
        if alone is None:
            row = opened(weight, r, held, bits)
            begin(row, g, options, each, k, old)
            _sgd_row(row, kept, g, lr, momentum)
            end(row, options, each, k, old)
            close(weight, r, bits, by_chance, row_chance(ids, seed, at, k))
        else:
            _sgd_row(row_of(weight, r), kept, g, lr, momentum)
        if has_buffer is not None:
            close(buffer, r, wide_bits, True, row_chance(ids, seed + np.uint64(1), at, k))
    keep_alive(scratch)


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


@_fused
def _lars(kind, where, j, low, high, alone, _, __):
    distinct, first = array_at(kind, where, j, DISTINCT), array_at(kind, where, j, FIRST)
    following, grads = array_at(kind, where, j, FOLLOWING), _gradients(kind, where, j)
    each, ids = (array_at(kind, where, j, DECAYS), array_at(kind, where, j, SHARES)), array_at(kind, where, j, IDS)
    weight, numbers = array_at(kind, where, j, WEIGHT), array_at(kind, where, j, NUMBERS)
    buffer = array_at(kind, where, j, FIRST_STATE)
    counts, width = array_at(kind, where, j, COUNTS), weight.shape[1]
    options, (ahead, at, seed, mean, by_chance) = _options(numbers), _counts(counts)
    lr, momentum, eta, decay = f32(numbers[7]), f32(numbers[8]), f32(numbers[9]), f32(numbers[10])
    scratch = np.empty((4, width), np.float32)
    rows = uncounted(scratch)
    g, held, old, wide = rows[0], rows[1], rows[2], rows[3]
    bits = held.view(np.uint32)
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
    keep_alive(scratch)


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


@_fused
def _adagrad(kind, where, j, low, high, alone, by_row, _):
    distinct, first = array_at(kind, where, j, DISTINCT), array_at(kind, where, j, FIRST)
    following, grads = array_at(kind, where, j, FOLLOWING), _gradients(kind, where, j)
    each, ids = (array_at(kind, where, j, DECAYS), array_at(kind, where, j, SHARES)), array_at(kind, where, j, IDS)
    weight, numbers = array_at(kind, where, j, WEIGHT), array_at(kind, where, j, NUMBERS)
    total = array_at(kind, where, j, FIRST_STATE)
    counts, width = array_at(kind, where, j, COUNTS), weight.shape[1]
    options, (ahead, at, seed, mean, by_chance) = _options(numbers), _counts(counts)
    lr, eps = f32(numbers[7]), f32(numbers[8])
    scratch = np.empty((4, width), np.float32)
    rows = uncounted(scratch)
    g, held, old, wide = rows[0], rows[1], rows[2], rows[3][: width if by_row is None else 1]
    bits = held.view(np.uint32)
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
    keep_alive(scratch)


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


@_fused
def _adam(kind, where, j, low, high, alone, by_row, decays):
    distinct, first = array_at(kind, where, j, DISTINCT), array_at(kind, where, j, FIRST)
    following, grads = array_at(kind, where, j, FOLLOWING), _gradients(kind, where, j)
    each, ids = (array_at(kind, where, j, DECAYS), array_at(kind, where, j, SHARES)), array_at(kind, where, j, IDS)
    weight, numbers = array_at(kind, where, j, WEIGHT), array_at(kind, where, j, NUMBERS)
    first_moment, second_moment = array_at(kind, where, j, FIRST_STATE), array_at(kind, where, j, SECOND_STATE)
    step = array_at(kind, where, j, CLOCK)
    counts, width = array_at(kind, where, j, COUNTS), weight.shape[1]
    options, (ahead, at, seed, mean, by_chance) = _options(numbers), _counts(counts)
    lr, beta1, beta2, eps, own = f32(numbers[7]), numbers[8], numbers[9], numbers[10], f32(numbers[11])
    decay, row_clock, raw = None if decays is None else own, counts[5] != 0, counts[6] != 0
    b1, b2 = np.float32(beta1), np.float32(beta2)
    a1, a2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    scratch = np.empty((5, width), np.float32)
    rows = uncounted(scratch)
    g, held, old, wide1, wide2 = rows[0], rows[1], rows[2], rows[3], rows[4][: width if by_row is None else 1]
    bits = held.view(np.uint32)
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
    keep_alive(scratch)
