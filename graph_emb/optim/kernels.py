"""Fused updates of tables of 32 and 16 bits on the CPU: duplicates, state and weight in one pass over touched rows.

The arithmetic is that of the rules' torch form, which is the oracle in the tests. Fused, a row's lines are read
and written once; the torch form reads and writes them once per operation.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
from torch import Tensor

from graph_emb.core.compiled import Groups, group, njit
from graph_emb.core.threads import threads_for
from graph_emb.optim.rounding import (
    FAST,
    close,
    memory_of,
    number_at,
    opened,
    put_number,
    row_chance,
    row_of,
    subtract,
    widened,
)
from graph_emb.optim.row_numbers import row_numbers
from graph_emb.optim.row_options import begin, end
from graph_emb.optim.rule import BOUNDS, TABLE_STEP
from graph_emb.optim.rules import LAMB, LARS, SGD, Adagrad, Adam, RowAdagrad, RowAdam, RowLAMB
from graph_emb.table.bags import BagGradients
from graph_emb.table.row_memory import prefetch, prefetch_to_read
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import accumulation_dtype

NOTHING = np.float32(0.0)


def _add(grads, i, out, more):
    """Add the gradient of occurrence i to out, or put it there: a row of its own, or a multiple of its bag's."""


@overload(_add, jit_options={"forceinline": True, "fastmath": FAST, "error_model": "numpy"})
def _added(grads, i, out, more):
    if isinstance(grads, types.BaseTuple):

        def of_bag(grads, i, out, more):
            rows, source, factor = grads
            s, f = source[i], factor[i]
            for d in range(out.shape[0]):
                out[d] = (out[d] if more else NOTHING) + f * rows[s, d]

        return of_bag
    if grads.dtype == types.uint16:

        def of_bfloats(grads, i, out, more):
            for d in range(out.shape[0]):
                out[d] = (out[d] if more else NOTHING) + widened(grads[i, d])

        return of_bfloats

    def own(grads, i, out, more):
        for d in range(out.shape[0]):
            out[d] = (out[d] if more else NOTHING) + grads[i, d]

    return own


def _ask_for(grads, i):
    """Ask for the memory of the gradient of occurrence i."""


@overload(_ask_for, inline="always")
def _asked(grads, i):
    if isinstance(grads, types.BaseTuple):
        return lambda grads, i: None  # a bag's is that of the ids beside it
    return lambda grads, i: prefetch_to_read(grads, i)


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def merged(grads, start, following, mean, out):
    """Sum (or average) the gradients of one row's occurrences into out, first to last."""
    count, i = 0, start
    while i >= 0:
        _add(grads, i, out, count > 0)
        count += 1
        i = following[i]
    if mean and count > 1:
        scale = np.float32(1.0) / np.float32(count)
        for d in range(out.shape[0]):
            out[d] *= scale


@njit(inline="always")
def share(part, parts, num):
    """The rows [low, high) of one of several equal shares."""
    return part * num // parts, (part + 1) * num // parts


@njit(parallel=True, cache=True, nogil=True)
def _sum_groups(grads, first, following, parts, out):
    for part in prange(parts):
        low, high = share(part, parts, len(first))
        for k in range(low, high):
            merged(grads, first[k], following, False, out[k])


def sum_groups(grads: Tensor | BagGradients, first: np.ndarray, following: np.ndarray, out: Tensor) -> None:
    """Sum the gradients of each group, first to last.

    Args:
        grads: Shape (B, D), float32 on the CPU; those of bags of any floating dtype.
        first, following: The groups, as ``group`` returns them.
        out: Contiguous memory for the sums, shape (R, D).
    """
    with threads_for(len(first)) as parts:
        _sum_groups(_arrays(grads), first, following, parts, out.numpy())


def _arrays(grads: Tensor | BagGradients) -> Any:
    """Gradients as the kernels take them: (B, D), or those of bags with the bag and factor of each id.

    Float32, or bfloat16 as it is: a pass that widens them all takes as long as the update.
    """
    if isinstance(grads, Tensor):
        kept = grads.detach().cpu().contiguous()
        return memory_of(kept if kept.dtype is torch.bfloat16 else kept.float())
    factor = torch.ones(len(grads.source)) if grads.factor is None else grads.factor.float()
    return _arrays(grads.grads.float()), grads.source.numpy(), factor.numpy()


ASKED = 16384
"""Bytes that are asked for before they are needed, of rows, their state and gradients: a third of a first cache."""


def _fused(function: Callable[..., None]) -> Callable[..., None]:
    return njit(parallel=True, fastmath=FAST, cache=True, nogil=True, error_model="numpy")(function)


def _formula(function: Callable[..., None]) -> Callable[..., None]:
    return njit(forceinline=True, fastmath=FAST, error_model="numpy")(function)


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


@_fused
def _sgd(weight, buffer, distinct, first, following, grads, mean, parts, ahead, alone, options, each, by_chance, chance,
         lr, momentum):  # fmt: skip
    width = weight.shape[1]
    ids, seed, at = chance
    for part in prange(parts):
        low, high = share(part, parts, len(distinct))
        g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
        bits, wide = held.view(np.uint32), np.empty(width, np.float32)
        wide_bits = wide.view(np.uint32)
        for k in range(low, high):
            if k + ahead < high:
                prefetch(weight, distinct[k + ahead])
                if buffer is not None:
                    prefetch(buffer, distinct[k + ahead])
                _ask_for(grads, first[k + ahead])
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
def _lars(weight, buffer, distinct, first, following, grads, mean, parts, ahead, alone, options, each, by_chance,
          chance, lr, momentum, eta, decay):  # fmt: skip
    width = weight.shape[1]
    ids, seed, at = chance
    for part in prange(parts):
        low, high = share(part, parts, len(distinct))
        g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
        bits, wide = held.view(np.uint32), np.empty(width, np.float32)
        wide_bits = wide.view(np.uint32)
        for k in range(low, high):
            if k + ahead < high:
                prefetch(weight, distinct[k + ahead])
                prefetch(buffer, distinct[k + ahead])
                _ask_for(grads, first[k + ahead])
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
def _adagrad(weight, total, by_row, distinct, first, following, grads, mean, parts, ahead, alone, options, each,
             by_chance, chance, lr, eps):  # fmt: skip
    width = weight.shape[1]
    ids, seed, at = chance
    for part in prange(parts):
        low, high = share(part, parts, len(distinct))
        g, held, old = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
        bits, wide = held.view(np.uint32), np.empty(width if by_row is None else 1, np.float32)
        wide_bits = wide.view(np.uint32)
        for k in range(low, high):
            if k + ahead < high:
                prefetch(weight, distinct[k + ahead])
                prefetch(total, distinct[k + ahead])
                _ask_for(grads, first[k + ahead])
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
def _adam(weight, first_moment, second_moment, by_row, step, distinct, first, following, grads, mean, parts, ahead,
          alone, options, each, by_chance, chance, lr, beta1, beta2, eps, row_clock, raw, decay):  # fmt: skip
    width = weight.shape[1]
    ids, seed, at = chance
    b1, b2 = np.float32(beta1), np.float32(beta2)
    a1, a2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    for part in prange(parts):
        low, high = share(part, parts, len(distinct))
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
                _ask_for(grads, first[k + ahead])
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


f32 = np.float32
OFF = np.inf


def _run_sgd(rule: Any, weight: np.ndarray, state: dict[str, np.ndarray], batch: tuple) -> None:
    _sgd(weight, state.get("momentum_buffer"), *batch, f32(rule.lr), f32(rule.momentum))


def _run_lars(rule: Any, weight: np.ndarray, state: dict[str, np.ndarray], batch: tuple) -> None:
    numbers = (rule.lr, rule.momentum, rule.eta, _own_decay(rule))
    _lars(weight, state["momentum_buffer"], *batch, *map(f32, numbers))


def _run_adagrad(rule: Any, weight: np.ndarray, state: dict[str, np.ndarray], batch: tuple) -> None:
    _adagrad(weight, state["sum"], _by_row(state["sum"]), *batch, f32(rule.rate(state)), f32(rule.eps))
    if rule.lr_decay:
        state["step"] += 1


def _run_adam(rule: Any, weight: np.ndarray, state: dict[str, np.ndarray], batch: tuple) -> None:
    if rule.clock == "global":
        state["step"] += 1
    decay = None if rule.own_decay is None else f32(_own_decay(rule))
    second = state["exp_avg_sq"]
    _adam(
        weight, state["exp_avg"], second, _by_row(second), state["step"], *batch, f32(rule.lr), float(rule.beta1),
        float(rule.beta2), float(rule.eps), rule.clock == "row", rule.eps_placement == "raw", decay,
    )  # fmt: skip


def _by_row(state: np.ndarray) -> bool | None:
    """None of state per element, else True, which a kernel tells apart when it is compiled."""
    return None if state.ndim == 2 else True


def _own_decay(rule: Any) -> float:
    """The weight decay inside the rule's own formula."""
    return rule.weight_decay if rule.weight_decay_mode == rule.own_decay else 0.0


def _options(rule: Any, state: dict[str, np.ndarray]) -> tuple[np.float32, ...]:
    """Bounds and decay for ``begin`` and ``end``: clips, CowClip's two numbers, added, factor, max_norm."""
    *clips, max_norm = (OFF if bound is None else bound for bound in (getattr(rule, name) for name in BOUNDS))
    return tuple(map(f32, (*clips, rule.clip_row_least, *rule.decays(state), max_norm)))


def _none_at_work(options: tuple[np.float32, ...]) -> bool:
    """Whether ``begin`` and ``end`` change nothing."""
    clip, clip_norm, ratio, _, added, factor, max_norm = options
    return min(clip, clip_norm, ratio, max_norm) == OFF and added == 0.0 and factor == 1.0


FUSED: dict[type, Callable[[Any, np.ndarray, dict[str, np.ndarray], tuple], None]] = {
    SGD: _run_sgd,
    LARS: _run_lars,
    Adagrad: _run_adagrad,
    RowAdagrad: _run_adagrad,
    Adam: _run_adam,
    RowAdam: _run_adam,
    LAMB: _run_adam,
    RowLAMB: _run_adam,
}
"""The rules that have a fused form; others take the torch form."""


def run(
    rule: Any,
    shard: EmbeddingShard,
    rows: Tensor,
    grads: Tensor | BagGradients,
    mean: bool,
    distinct: bool = False,
    groups: Groups | None = None,
) -> bool:
    """Apply a rule by its fused kernel, or return False with nothing changed where there is none.

    Arguments as ``apply_update``; the weight must be of 32 or 16 bits on the CPU for the fused form.
    """
    fused = FUSED.get(type(rule))
    weight = shard.weight
    if fused is None or accumulation_dtype(weight.dtype) is not torch.float32 or weight.device.type != "cpu":
        return False
    places = rows.detach().cpu().contiguous().numpy()
    if distinct:
        touched, first, following = places, np.arange(len(places)), np.full(len(places), -1)
    else:
        known = grads.groups if isinstance(grads, BagGradients) else groups
        touched, first, following = group(places) if known is None else known
    state = {name: memory_of(tensor) for name, tensor in shard.state.items()}
    chance = (np.empty(0, np.int64), np.uint64(0), 0)
    if rule.stochastic_rounding or rule.state_dtype:
        ids = shard.original_ids(torch.from_numpy(touched))
        chance = (ids, np.uint64(rule.rounding_seed), int(state[TABLE_STEP][0]))
    if TABLE_STEP in state:
        state[TABLE_STEP] += 1
    options, each = _options(rule, state), row_numbers(rule, state, touched)
    optional = each is not None or rule.stochastic_rounding or not _none_at_work(options)
    alone = None if optional or weight.itemsize > 2 else True  # rows of 32 bits are taken where they lie anyway
    per_row = 2 * weight.shape[1] * weight.itemsize  # a gradient takes as much as its row
    state_bytes = sum(tensor[:1].nbytes for tensor in shard.state.values())
    ahead = min(16, 1 + ASKED // (per_row + state_bytes))
    with threads_for(len(touched)) as parts:
        batch = (
            touched,
            first,
            following,
            _arrays(grads),
            mean,
            parts,
            ahead,
            alone,
            options,
            each,
            rule.stochastic_rounding,
            chance,
        )
        fused(rule, memory_of(weight), state, batch)
    return True
