"""What a push sends: merged at the sender, laid out owner after owner, all tables in one exchange.

Legend: B pushed ids, S sent rows, D width, W ranks, T tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graph_emb.optim.grouping import sum_groups
from graph_emb.optim.kernels import FUSED
from graph_emb.optim.merge import check_merge, merge, presum
from graph_emb.table.spec import TableSpec, accumulation_dtype
from graph_emb.transport.base import Push
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.routing import Layout


@dataclass(frozen=True)
class Parcel:
    """The gradients of one table: before the exchange for each owner, after it from each sender.

    Attributes:
        ids: Shape (S,), rank after rank; float64 rows may stand twice (``presum``).
        grads: Shape (S, D), prepared by the rule, in the table's accumulation dtype.
        occurrences: Pushed rows that each row stands for, (S,), where duplicates are averaged; else None.
        counts: Rows for (from) each rank, (W,).
        touched: Whether this rank's (any rank's) backward reached the table.
    """

    ids: Tensor
    grads: Tensor
    occurrences: Tensor | None
    counts: list[int]
    touched: bool


def pack(push: Push, places: Layout, spec: TableSpec) -> Parcel:
    """Merge the duplicates of one rank and lay the rows out owner after owner."""
    check_merge(push.merge)
    dtype = accumulation_dtype(spec.dtype)
    ids = push.ids.detach().cpu()
    grads = push.grads.detach().to(spec.device, dtype)
    if push.merge == "sum" and type(push.rule) in FUSED and dtype is torch.float32 and spec.device.type == "cpu":
        route = places.route(ids, None)
        out = grads.new_empty((len(route.ids), grads.shape[1]))
        sum_groups(grads, route.first, route.following, out)
        return Parcel(route.ids, out, None, route.counts, push.touched)
    rows, sums, occurrences = presum(ids.to(spec.device), push.rule.prepare(grads))
    owner = places.owner(rows.cpu())
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=places.world_size).tolist()
    there = order.to(spec.device)
    kept = occurrences.cpu()[order] if push.merge == "mean" else None
    return Parcel(rows.cpu()[order], sums.index_select(0, there), kept, counts, push.touched)


def unpack(parcel: Parcel, push: Push) -> tuple[Tensor, Tensor]:
    """Ids and gradients to be summed by the owner, shapes (S,) and (S, D); averages are taken here."""
    if parcel.occurrences is None:
        return parcel.ids, parcel.grads
    device = parcel.grads.device
    ids, sums = merge(parcel.ids.to(device), parcel.grads, "sum")
    place = torch.searchsorted(ids, parcel.ids.to(device))
    counts = torch.zeros(len(ids), dtype=torch.int64, device=device)
    counts.index_add_(0, place, parcel.occurrences.to(device))
    return ids, sums / counts.unsqueeze(1).to(sums.dtype)


def exchange(
    group: ProcessGroup, parcels: list[Parcel], incoming: list[list[int]], touched: list[bool], what: str
) -> list[Parcel]:
    """Send every parcel's pieces to their owners and receive those for this rank, in the order of the senders.

    Args:
        group: The processes.
        parcels: One for each table, (T,), the same tables on every rank.
        incoming: Rows that come from each rank for each table, (T, W).
        touched: Whether any rank touched each table, (T,).
        what: The words with which an error names the call.
    """
    ids = _exchange(group, [p.ids for p in parcels], parcels, incoming, what)
    grads = _exchange(group, [p.grads for p in parcels], parcels, incoming, what)
    occurrences: list[Tensor | None] = [None] * len(parcels)
    averaged = [k for k, p in enumerate(parcels) if p.occurrences is not None]
    if averaged:
        some = [parcels[k] for k in averaged]
        columns = [p.occurrences for p in some if p.occurrences is not None]
        found = _exchange(group, columns, some, [incoming[k] for k in averaged], what)
        for k, column in zip(averaged, found, strict=True):
            occurrences[k] = column
    return [
        replace(parcel, ids=i, grads=g, occurrences=o, counts=c, touched=t)
        for parcel, i, g, o, c, t in zip(parcels, ids, grads, occurrences, incoming, touched, strict=True)
    ]


def _exchange(
    group: ProcessGroup, columns: list[Tensor], parcels: list[Parcel], incoming: list[list[int]], what: str
) -> list[Tensor]:
    """One column of every parcel by one all_to_all: bytes, destination after destination, table after table."""
    if len(columns) == 1:  # nothing to interleave: no copy
        return [group.exchange(columns[0], parcels[0].counts, incoming[0], what)]
    widths = [_row_bytes(column) for column in columns]
    pieces = [column.split(parcel.counts) for column, parcel in zip(columns, parcels, strict=True)]
    ranks = range(group.world_size)
    flat = [piece[rank].contiguous().view(-1).view(torch.uint8) for rank in ranks for piece in pieces]
    to_send = [sum(p.counts[rank] * w for p, w in zip(parcels, widths, strict=True)) for rank in ranks]
    to_receive = [sum(c[rank] * w for c, w in zip(incoming, widths, strict=True)) for rank in ranks]
    came = group.exchange(torch.cat(flat), to_send, to_receive, what)
    found: list[list[Tensor]] = [[] for _ in columns]
    start = 0
    for rank in ranks:
        for k, width in enumerate(widths):
            end = start + incoming[k][rank] * width
            found[k].append(came[start:end])
            start = end
    return [
        torch.cat(parts).view(column.dtype).view(-1, *column.shape[1:])
        for parts, column in zip(found, columns, strict=True)
    ]


def _row_bytes(column: Tensor) -> int:
    return math.prod(column.shape[1:]) * column.element_size()
