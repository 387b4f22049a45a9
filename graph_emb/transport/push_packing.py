"""Pack a push: merge its duplicates at the sender, lay the rows out owner after owner, and let ranks exchange them.

Legend: B pushed ids, S packed rows, D width, W owners, T tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RankRanges
from graph_emb.optim.apply import Merge, check_merge, merge, presum
from graph_emb.optim.fused import FUSED
from graph_emb.optim.merging import sum_groups
from graph_emb.transport.base import Push
from graph_emb.transport.pieces import exchange_columns
from graph_emb.transport.process_group import ProcessGroup


class Packed(NamedTuple):
    """The gradients of one table on their way to the owners."""

    ids: Tensor  # (S,), owner after owner
    grads: Tensor  # (S, D); more columns where the rule prepared them
    counts: list[int]  # rows of each owner, (W,)
    how: Merge = "sum"  # the treatment of duplicates that is left to the owner
    distinct: bool = False  # whether no id stands twice
    occurrences: Tensor | None = None  # pushed rows that each stands for, (S,), where owners average or count them


PushMemory = Callable[[Tensor, int, torch.dtype], tuple[Tensor, Tensor]]
"""Lends memory for packed rows: takes ids, (S,), D and a dtype; gives the ids where they shall lie, and room (S, D)."""


def pack(
    push: Push,
    owners: RankRanges,
    dtype: torch.dtype,
    device: torch.device,
    memory: PushMemory,
    per_occurrence: bool = False,
) -> Packed:
    """Merge a push that its owners apply by itself (kvstore mode).

    A rule that wants every occurrence gets every occurrence, as does a handler (``per_occurrence``). Gradients are
    summed on ``device`` in ``dtype``.
    """
    ids, grads = _checked(push, dtype, device)
    per_occurrence = per_occurrence or push.rule.per_occurrence
    if not per_occurrence and _has_kernel(push, grads):
        return _packed_by_kernel(push, ids, grads, owners, memory)
    how = push.merge
    if not per_occurrence:
        ids, grads = merge(ids, grads, how)
        how = "sum"
    order, counts = _by_owner(ids, owners)
    there, out = memory(ids[order], grads.shape[1], dtype)
    return Packed(there, torch.index_select(grads, 0, order, out=out), counts, how, not per_occurrence)


def pack_share(
    push: Push, owners: RankRanges, dtype: torch.dtype, device: torch.device, counted: bool = False
) -> Packed:
    """Merge this rank's share of a push that the owners apply as one (collective mode), as one process would.

    Float64 sums keep what they round away as a second row (``presum``), and averages wait for the other ranks' rows
    (``settle``). Arguments as ``pack``; ``counted``: the owners want to know how often each id was pushed.
    """
    ids, grads = _checked(push, dtype, device)
    if push.merge == "sum" and _has_kernel(push, grads):
        return _packed_by_kernel(push, ids, grads, owners, None, counted)
    rows, sums, occurrences = presum(ids.to(device), push.rule.prepare(grads))
    order, counts = _by_owner(rows.cpu(), owners)
    kept = occurrences.cpu()[order] if counted or push.merge == "mean" else None
    return Packed(rows.cpu()[order], sums.index_select(0, order.to(device)), counts, push.merge, occurrences=kept)


def settle(packed: Packed) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids and gradients to be summed by the owner, shapes (S,) and (S, D), and for how many each stands, (S,), if told.

    Averages over all senders are taken here.
    """
    if packed.how == "sum":
        return packed.ids, packed.grads, packed.occurrences
    assert packed.occurrences is not None
    device = packed.grads.device
    ids, sums = merge(packed.ids.to(device), packed.grads, "sum")
    place = torch.searchsorted(ids, packed.ids.to(device))
    counts = torch.zeros(len(ids), dtype=torch.int64, device=device)
    counts.index_add_(0, place, packed.occurrences.to(device))
    return ids, sums / counts.unsqueeze(1).to(sums.dtype), counts


def _checked(push: Push, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    check_merge(push.merge)
    assert isinstance(push.grads, Tensor)  # these transports take no bags as they are
    return push.ids.detach().cpu(), push.grads.detach().to(device, dtype)


def _has_kernel(push: Push, grads: Tensor) -> bool:
    """Whether the compiled sums serve, which give the bits of the fused kernels."""
    return type(push.rule) in FUSED and grads.dtype is torch.float32 and grads.device.type == "cpu"


def _packed_by_kernel(
    push: Push, ids: Tensor, grads: Tensor, owners: RankRanges, memory: PushMemory | None, counted: bool = False
) -> Packed:
    route = owners.route(ids)
    there, out = route.ids, grads.new_empty((0 if memory else len(route.ids), grads.shape[1]))
    if memory is not None:
        there, out = memory(route.ids, grads.shape[1], grads.dtype)
    sum_groups(grads, route.first, route.following, out)
    mean = push.merge == "mean"
    occurrences = torch.bincount(route.place, minlength=len(there)) if mean or counted else None
    if mean:
        assert occurrences is not None
        out.mul_(occurrences.float().reciprocal().unsqueeze(1))
    return Packed(there, out, route.counts, distinct=True, occurrences=occurrences if counted else None)


def _by_owner(ids: Tensor, owners: RankRanges) -> tuple[Tensor, list[int]]:
    """The order of ids, (S,), that groups them by owner, and how many each owner has."""
    owner = owners.owner(ids)
    return torch.argsort(owner, stable=True), torch.bincount(owner, minlength=owners.world_size).tolist()


def exchange(group: ProcessGroup, packed: list[Packed], incoming: list[list[int]], what: str) -> list[Packed]:
    """Send the pieces of every table, (T,), to their owners and receive this rank's, in the order of the senders.

    ``incoming`` are the rows that come from each rank for each table, (T, W).
    """
    counts = [p.counts for p in packed]
    ids = exchange_columns(group, [p.ids for p in packed], counts, incoming, what)
    grads = exchange_columns(group, [p.grads for p in packed], counts, incoming, what)
    came = [Packed(i, g, n, p.how) for i, g, n, p in zip(ids, grads, incoming, packed, strict=True)]
    counted = [k for k, p in enumerate(packed) if p.occurrences is not None]
    if counted:
        columns = [p.occurrences for p in packed if p.occurrences is not None]
        found = exchange_columns(group, columns, [counts[k] for k in counted], [incoming[k] for k in counted], what)
        for k, column in zip(counted, found, strict=True):
            came[k] = came[k]._replace(occurrences=column)
    return came
