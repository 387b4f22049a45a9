"""From rules and pushed gradients to the fused kernels: what each table of a step brings, and one call for all.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.addresses import Columns, Kind, Loop, kind_of
from graph_emb.core.compiled import Groups
from graph_emb.core.threads import threads_for
from graph_emb.optim import kernels
from graph_emb.optim.merging import gradients_of
from graph_emb.optim.rounding import memory_of
from graph_emb.optim.row_numbers import row_numbers
from graph_emb.optim.rule import BOUNDS, TABLE_STEP
from graph_emb.optim.rules import LAMB, LARS, SGD, Adagrad, Adam, RowAdagrad, RowAdam, RowLAMB
from graph_emb.table.bags import BagGradients
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import accumulation_dtype

ASKED = 16384
"""Bytes that are asked for before they are needed, of rows, their state and gradients: a third of a first cache."""
OFF = np.inf


class Use(NamedTuple):
    """How a rule uses a kernel: the kernel, its state of three places, numbers beside the options, choices, flags."""

    kernel: Loop
    state: tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]
    numbers: tuple[float, ...]
    choices: tuple[bool, ...] = ()
    flags: tuple[bool, ...] = ()


def _use_sgd(rule: Any, state: dict[str, np.ndarray]) -> Use:
    buffer = state.get("momentum_buffer")
    return Use(kernels._sgd, (buffer, None, None), (rule.lr, rule.momentum), (), (buffer is not None,))


def _use_lars(rule: Any, state: dict[str, np.ndarray]) -> Use:
    numbers = (rule.lr, rule.momentum, rule.eta, _own_decay(rule))
    return Use(kernels._lars, (state["momentum_buffer"], None, None), numbers)


def _use_adagrad(rule: Any, state: dict[str, np.ndarray]) -> Use:
    numbers = (float(rule.rate(state)), rule.eps)
    if rule.lr_decay:
        state["step"] += 1
    return Use(kernels._adagrad, (state["sum"], None, None), numbers, (), (state["sum"].ndim == 1,))


def _use_adam(rule: Any, state: dict[str, np.ndarray]) -> Use:
    if rule.clock == "global":
        state["step"] += 1
    second = state["exp_avg_sq"]
    numbers = (rule.lr, rule.beta1, rule.beta2, rule.eps, _own_decay(rule))
    choices = rule.clock == "row", rule.eps_placement == "raw"
    flags = second.ndim == 1, rule.own_decay is not None
    return Use(kernels._adam, (state["exp_avg"], second, state["step"]), numbers, choices, flags)


def _own_decay(rule: Any) -> float:
    """The weight decay inside the rule's own formula."""
    return rule.weight_decay if rule.weight_decay_mode == rule.own_decay else 0.0


def _options(rule: Any, state: dict[str, np.ndarray]) -> tuple[float, ...]:
    """Bounds and decay for ``begin`` and ``end``: clips, CowClip's two numbers, added, factor, max_norm."""
    *clips, max_norm = (OFF if bound is None else bound for bound in (getattr(rule, name) for name in BOUNDS))
    return tuple(map(float, (*clips, rule.clip_row_least, *rule.decays(state), max_norm)))


def _none_at_work(options: tuple[float, ...]) -> bool:
    """Whether ``begin`` and ``end`` change nothing."""
    clip, clip_norm, ratio, _, added, factor, max_norm = options
    return min(clip, clip_norm, ratio, max_norm) == OFF and added == 0.0 and factor == 1.0


FUSED: dict[type, Callable[[Any, dict[str, np.ndarray]], Use]] = {
    SGD: _use_sgd,
    LARS: _use_lars,
    Adagrad: _use_adagrad,
    RowAdagrad: _use_adagrad,
    Adam: _use_adam,
    RowAdam: _use_adam,
    LAMB: _use_adam,
    RowLAMB: _use_adam,
}
"""The rules that have a fused form; others take the torch form."""


class Prepared(NamedTuple):
    """The update of a table, ready to run: its kernel, the kind of its arrays and flags, and the arrays by place."""

    kernel: Loop
    kind: Kind
    arrays: Columns


def serves(rule: Any, shard: EmbeddingShard) -> bool:
    """Whether a rule has a fused form for a table: one of 32 or 16 bits, as it lies in the memory of the CPU."""
    weight = shard.weight
    narrow = accumulation_dtype(weight.dtype) is torch.float32 and weight.device.type == "cpu"
    return narrow and type(rule) in FUSED and all(one.is_contiguous() for one in (weight, *shard.state.values()))


def prepare(
    rule: Any,
    shard: EmbeddingShard,
    grads: Tensor | BagGradients,
    mean: bool,
    groups: Groups,
) -> Prepared:
    """Let a table's clocks and counts go on, and tell what is left to do: ``run`` does it.

    Args:
        rule, shard: Which ``serves`` found fit.
        grads: Shape (B, D), or those of bags.
        mean: Whether duplicates are averaged.
        groups: Of the pushed rows.
    """
    touched, first, following = groups
    weight, state = shard.weight, {name: memory_of(tensor) for name, tensor in shard.state.items()}
    ids, seed, at = np.empty(0, np.int64), 0, 0
    if rule.stochastic_rounding or rule.state_dtype:
        ids = np.ascontiguousarray(shard.original_ids(torch.from_numpy(touched)))
        seed, at = rule.rounding_seed, int(state[TABLE_STEP][0])
    if TABLE_STEP in state:
        state[TABLE_STEP] += 1
    options, each = _options(rule, state), row_numbers(rule, state, touched)
    optional = any(map(len, each)) or rule.stochastic_rounding or not _none_at_work(options)
    alone = not optional and weight.itemsize <= 2  # rows of 32 bits are taken where they lie anyway
    per_row = 2 * weight.shape[1] * weight.itemsize  # a gradient takes as much as its row
    state_bytes = sum(one.strides[0] for one in state.values())
    ahead = min(16, 1 + ASKED // (per_row + state_bytes))
    use = FUSED[type(rule)](rule, state)
    found = gradients_of(grads)
    of_bags = found if isinstance(found, tuple) else (found, None, None)
    numbers = np.array((*options, *use.numbers))
    counts = np.array((ahead, at, seed, mean, rule.stochastic_rounding, *use.choices), np.int64)
    arrays = (memory_of(weight), *use.state, touched, first, following, *of_bags, ids, *each, numbers, counts)
    return Prepared(use.kernel, kind_of(arrays, (alone, *use.flags)), arrays)


def run(jobs: Iterable[Prepared]) -> None:
    """Do what is left of the updates of several tables: one call for all that the same code serves."""
    alike: dict[tuple[Loop, Kind], list[Columns]] = {}
    for job in jobs:
        alike.setdefault((job.kernel, job.kind), []).append(job.arrays)
    for (kernel, kind), some in alike.items():
        rows = sum(len(arrays[kernels.DISTINCT]) for arrays in some)  # type: ignore[arg-type,misc]
        with threads_for(rows) as parts:
            kernel.run(kind, some, parts)
