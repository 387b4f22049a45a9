"""The only place where rows leave shards, meet a rule and return; and the merging of duplicates of one step before.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import Groups, group, group_each
from graph_emb.core.errors import ShapeError, unknown_name
from graph_emb.optim import fused
from graph_emb.optim.merging import sum_groups
from graph_emb.optim.rounding import DIGITS, round_stochastically
from graph_emb.optim.rule import TABLE_STEP, SparseRule
from graph_emb.table.bags import BagGradients
from graph_emb.table.shard import EmbeddingShard, gather, lend
from graph_emb.table.spec import accumulation_dtype

Merge = Literal["sum", "mean"]
MERGES = ("sum", "mean")


def check_gradient(table: str, ids: Tensor, grads: Tensor, dim: int) -> None:
    """Raise a ShapeError unless grads has one floating row of the table's width for each id."""
    if not grads.is_floating_point() or tuple(grads.shape) != (ids.numel(), dim):
        raise ShapeError(
            f"table {table!r}: gradient has shape {tuple(grads.shape)} of {grads.dtype}; "
            f"expected ({ids.numel()}, {dim}) of a floating dtype"
        )


class Update(NamedTuple):
    """The gradients that a table meets in a step.

    Attributes:
        rule: The arithmetic.
        shard: Mutated: weight and state of the touched rows.
        rows: Positions in the shard, shape (B,), int64, checked by the caller, repeats allowed.
        grads: Shape (B, D), or those of bags, which a fused kernel merges from the bags themselves.
        how: The treatment of duplicates.
        prepared: Whether the sender has called ``rule.prepare`` and merged already.
        distinct: Whether the rows are known to hold no duplicates: one sender merged them all.
        places: Of the rows of a growing table, where an earlier look-up told them.
        groups: Of the rows, where the caller knows them: as ``group`` returns them.
        occurrences: For how many of the step's gradients each stands, (B,), where a sender has merged some; None: one.
    """

    rule: SparseRule
    shard: EmbeddingShard
    rows: Tensor
    grads: Tensor | BagGradients
    how: Merge = "sum"
    prepared: bool = False
    distinct: bool = False
    places: np.ndarray | None = None
    groups: Groups | None = None
    occurrences: Tensor | None = None


class _Turn(NamedTuple):
    """Rows in memory, of one update, that are merged and changed together."""

    update: Update
    shard: EmbeddingShard
    at: Tensor
    grads: Tensor | BagGradients

    def known_groups(self) -> Groups | None:
        """The groups of the rows, where nobody need look for them."""
        if self.update.distinct:
            places = self.at.detach().cpu().contiguous().numpy()
            return places, np.arange(len(places)), np.full(len(places), -1)
        if isinstance(self.grads, BagGradients):
            return self.grads.groups
        groups = self.update.groups
        if groups is None or len(self.at) < len(self.update.rows):  # some of the rows
            return None
        if self.at is self.update.rows:
            return groups
        _, first, following = groups
        return self.at.detach().cpu().contiguous().numpy()[first], first, following


def apply_update(
    rule: SparseRule,
    shard: EmbeddingShard,
    rows: Tensor,
    grads: Tensor | BagGradients,
    how: Merge = "sum",
    **known: Any,
) -> None:
    """``apply_updates`` of one table; arguments as those of ``Update``."""
    apply_updates([Update(rule, shard, rows, grads, how, **known)])


def apply_updates(updates: Sequence[Update]) -> None:
    """Merge the gradients of duplicate rows, run the rule once per distinct row, write rows and state back.

    Tables of 32 and 16 bits on the CPU take a fused kernel where the rule has one, all tables of the step in one call
    for each kind of rule and table; it equals the torch form within rounding. An empty batch still advances a per-table
    clock, so that the clock counts steps and not luck. Frozen rows of a shard are left out before anything is merged:
    neither they nor their state change.

    Args:
        updates: Of distinct tables. Gradients are checked before the first row changes.
    """
    for update in updates:
        if not update.prepared and isinstance(update.grads, Tensor):
            check_gradient(update.shard.spec.name, update.rows, update.grads, update.shard.spec.dim)
        check_merge(update.how)
    waiting: list[_Turn] = []
    try:
        for update in updates:
            shard, rows, grads = update.shard.begin_update(update.rows, update.grads, update.places, update.occurrences)
            if shard.frozen is not None:
                rows, grads = shard.without_frozen(rows, grads)
            for stored, at, part in shard.updating(rows, grads):
                turn = _Turn(update, stored, at, part)
                if not fused.serves(update.rule, stored):
                    of_rows = part.rows() if isinstance(part, BagGradients) else part
                    apply_reference(update.rule, stored, at, of_rows, update.how, prepared=update.prepared)
                elif stored is shard:
                    waiting.append(turn)
                else:  # its memory is for other rows in the next turn
                    _run([turn])
    finally:  # an error is that of one table: those before it have taken the step
        _run(waiting)


def _run(turns: list[_Turn]) -> None:
    """Do the turns by the fused kernels."""
    if not turns:
        return
    groups = [turn.known_groups() for turn in turns]
    asked = [
        turn.at.detach().cpu().contiguous().numpy() for turn, known in zip(turns, groups, strict=True) if not known
    ]
    found = iter(group_each(asked))
    fused.run(
        fused.prepare(turn.update.rule, turn.shard, turn.grads, turn.update.how == "mean", known or next(found))
        for turn, known in zip(turns, groups, strict=True)
    )


def apply_reference(
    rule: SparseRule, shard: EmbeddingShard, rows: Tensor, grads: Tensor, how: Merge = "sum", *, prepared: bool = False
) -> None:
    """``apply_update`` by torch operations alone: any device and floating dtype, and the oracle of the kernels."""
    dtype = accumulation_dtype(shard.weight.dtype)
    grads = grads.to(shard.weight.device, dtype)
    distinct, merged = merge(rows, grads if prepared else rule.prepare(grads), how)
    kept = shard.read_state(distinct)
    wide = {name: value.to(dtype) if value.dtype in DIGITS else value for name, value in kept.items()}
    weight, state = rule.update(gather(shard.weight, distinct).to(dtype), merged, wide)
    narrow = [name for name, value in kept.items() if value.dtype in DIGITS]
    by_chance = getattr(rule, "stochastic_rounding", False)
    if by_chance or narrow:
        chance = rule.rounding_seed, int(state[TABLE_STEP]) - 1, shard.original_ids(distinct)  # type: ignore[attr-defined]
        if by_chance:
            weight = round_stochastically(weight, shard.weight.dtype, *chance)
        for number, name in enumerate(narrow, 1):  # a seed for each, so that their errors have nothing in common
            columns = state[name].view(len(distinct), state[name].shape[1:].numel())
            rounded = round_stochastically(columns, kept[name].dtype, chance[0] + number, *chance[1:])
            state[name] = rounded.view(state[name].shape)
    shard.write(distinct, weight)
    shard.write_state(distinct, state)


def check_merge(how: str) -> None:
    """Raise a ConfigError unless ``how`` names a known treatment of duplicates."""
    if how not in MERGES:
        raise unknown_name("merge", how, MERGES)


def merge(rows: Tensor, grads: Tensor, how: Merge = "sum") -> tuple[Tensor, Tensor]:
    """Distinct rows, ascending, with their gradients summed (or averaged).

    Float64 sums carry their rounding errors along (``exact_sums``), so that the result does not depend on how the
    occurrences were grouped on the way: any number of processes gives the same bits. Other dtypes add in the order
    of position: the same input gives the same bits on every run.

    Args:
        rows: Shape (B,), int64, repeats allowed.
        grads: Shape (B, D).
        how: ``"sum"`` is the true gradient of the loss; ``"mean"`` divides by the number of occurrences (DGL 1.x).
    Returns:
        Shapes (R,) and (R, D).
    """
    check_merge(how)
    if grads.dtype is torch.float64:
        distinct, counts, merged, _ = exact_sums(rows, grads)
    else:
        distinct, counts, merged = _sums(rows, grads)
    if how == "mean":
        merged = merged / counts.unsqueeze(1).to(merged.dtype)
    return distinct, merged


def exact_sums(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct rows, ascending, with unevaluated sums: the total of a row is ``high + low``.

    Each addition keeps what it rounds away (two-sum: Knuth, TAOCP 4.2.2). For terms of one row whose magnitudes
    span less than about 2^40, high + low is the exact total whatever the order, and its rounding is unique.

    Args:
        rows: Shape (B,), int64.
        grads: Shape (B, D), float64.
    Returns:
        Distinct rows (R,), occurrences (R,), high (R, D) and low (R, D), normalised: high is the rounded total.
        Where high is not finite, low is meaningless.
    """
    distinct, counts, ordered = _by_row(rows, grads)
    starts = counts.cumsum(0) - counts
    high = ordered.index_select(0, starts) if len(starts) else ordered[:0]
    low = torch.zeros_like(high)
    for k in range(1, int(counts.max()) if len(counts) else 0):
        more = (counts > k).nonzero().flatten()
        a, x = high.index_select(0, more), ordered.index_select(0, starts[more] + k)
        total = a + x
        part = total - a
        high[more] = total
        low[more] += (a - (total - part)) + (x - part)
    rounded = torch.where(high.isfinite(), high + low, high)
    return distinct, counts, rounded, low - (rounded - high)


def merged_bags(ids: Tensor, grads: BagGradients) -> tuple[Tensor, Tensor]:
    """Gradients of bags as a tensor, (R, D), with their ids: summed where the order of sums is free, else one an id.

    Float64 tables keep one an id, (B, D), because only ``merge`` sums those exactly.
    """
    if grads.device.type != "cpu" or accumulation_dtype(grads.grads.dtype) is not torch.float32:
        return ids, grads.rows()
    distinct, first, following = group(ids.numpy()) if grads.groups is None else grads.groups
    out = lend((len(distinct), grads.grads.shape[1]), torch.float32, grads.device)
    sum_groups(grads, first, following, out)
    return torch.from_numpy(distinct), out


def presum(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fewer rows with the same total: what a sender may merge without changing the owner's result.

    Float64 totals that do not fit one number travel as two rows, the second one holding what the first rounds away.

    Returns:
        rows (S,), repeated at most once; grads (S, D); and the occurrences that each row stands for (S,), 0 for a
        second row.
    """
    if grads.dtype is not torch.float64:
        distinct, counts, sums = _sums(rows, grads)
        return distinct, sums, counts
    distinct, counts, high, low = exact_sums(rows, grads)
    rest = (high.isfinite().all(dim=1) & (low != 0).any(dim=1)).nonzero().flatten()
    rows = torch.cat([distinct, distinct[rest]])
    return rows, torch.cat([high, low[rest]]), torch.cat([counts, torch.zeros_like(rest)])


def _by_row(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows, their counts, and the gradients in the order (row, position)."""
    sorted_rows, order = torch.sort(rows, stable=True)
    distinct, counts = torch.unique_consecutive(sorted_rows, return_counts=True)
    return distinct, counts, grads.index_select(0, order)


def _sums(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows, their counts, and the sums of their gradients in the order of position."""
    distinct, counts, ordered = _by_row(rows, grads)
    merged = ordered if len(distinct) == len(rows) else torch.segment_reduce(ordered, "sum", lengths=counts)
    return distinct, counts, merged
