"""The only place where rows leave a shard, meet a rule and return."""

from __future__ import annotations

from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.optim import kernels
from graph_emb.optim.merge import Merge, merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.shard import EmbeddingShard, accumulation_dtype


def check_gradient(table: str, ids: Tensor, grads: Tensor, dim: int) -> None:
    """Raise a ShapeError unless grads has one floating row of the table's width for each id."""
    if not grads.is_floating_point() or tuple(grads.shape) != (ids.numel(), dim):
        raise ShapeError(
            f"table {table!r}: gradient has shape {tuple(grads.shape)} of {grads.dtype}; "
            f"expected ({ids.numel()}, {dim}) of a floating dtype"
        )


def apply_update(
    rule: SparseRule,
    shard: EmbeddingShard,
    rows: Tensor,
    grads: Tensor,
    how: Merge = "sum",
    *,
    prepared: bool = False,
    distinct: bool = False,
) -> None:
    """Merge the gradients of duplicate rows, run the rule once per distinct row, write rows and state back.

    float32 tables on the CPU take a fused kernel where the rule has one; it equals the torch form within rounding.
    An empty batch still advances a per-table clock, so that the clock counts steps and not luck. Frozen rows of the
    shard are left out before anything is merged: neither they nor their state change.

    Args:
        rule: The arithmetic.
        shard: Mutated: weight and state of the touched rows.
        rows: Positions in the shard, shape (B,), int64, checked by the caller, repeats allowed.
        grads: Shape (B, D).
        how: The treatment of duplicates.
        prepared: Whether the sender has called ``rule.prepare`` and merged already.
        distinct: Whether the rows are known to hold no duplicates: one sender merged them all.
    """
    if not prepared:
        check_gradient(shard.spec.name, rows, grads, shard.spec.dim)
    if shard.frozen is not None:
        rows, grads = shard.without_frozen(rows, grads)
    if kernels.run(rule, shard, rows, grads, how, distinct):
        return
    apply_reference(rule, shard, rows, grads, how, prepared=prepared)


def apply_reference(
    rule: SparseRule,
    shard: EmbeddingShard,
    rows: Tensor,
    grads: Tensor,
    how: Merge = "sum",
    *,
    prepared: bool = False,
) -> None:
    """``apply_update`` by torch operations alone: any device and floating dtype, and the oracle of the kernels."""
    dtype = accumulation_dtype(shard.weight.dtype)
    grads = grads.to(shard.weight.device, dtype)
    distinct, merged = merge(rows, grads if prepared else rule.prepare(grads), how)
    weight, state = rule.update(shard.read(distinct).to(dtype), merged, shard.read_state(distinct))
    shard.write(distinct, weight)
    shard.write_state(distinct, state)
