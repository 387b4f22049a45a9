"""A trainer's gradients on their way: merged once, into memory that the servers of its machine read in place.

Legend: B pushed ids, S sent rows, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from graph_emb.optim.grouping import sum_groups
from graph_emb.optim.kernels import FUSED
from graph_emb.optim.merge import Merge, check_merge, merge
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import shared
from graph_emb.transport.routing import Layout

SMALLEST = 1 << 24
"""Bytes of a first outbox."""
LINE = 64  # bytes; every row block starts on a cache line


class Place(NamedTuple):
    """Where a server of this machine finds ids and gradients: offsets in the sender's outbox, in bytes."""

    ids_at: int
    grads_at: int
    num_rows: int
    width: int
    dtype: torch.dtype


def at(memory: Tensor, place: Place) -> tuple[Tensor, Tensor]:
    """The ids (S,) and gradients (S, D) at a place, sharing memory."""
    return (
        _view(memory, place.ids_at, (place.num_rows,), torch.int64),
        _view(memory, place.grads_at, (place.num_rows, place.width), place.dtype),
    )


def _view(memory: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Outbox:
    """Shared memory that is filled from the front and emptied as a whole, when a flush said that all was read.

    Args:
        num_bytes: Its size.
    """

    def __init__(self, num_bytes: int) -> None:
        self.name = shared.new_name()
        self.memory = shared.open_segment(self.name, (num_bytes,), torch.uint8, create=True)
        self._used = 0

    @staticmethod
    def size_for(num_rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of an outbox that holds several pushes of this size."""
        return max(SMALLEST, 1 << (4 * _bytes(num_rows, width, dtype)).bit_length())

    def fits(self, num_rows: int, width: int, dtype: torch.dtype) -> bool:
        """Whether there is room left."""
        return self._used + _bytes(num_rows, width, dtype) <= len(self.memory)

    def reserve(self, num_rows: int, width: int, dtype: torch.dtype) -> Place:
        """Room for a push; the caller asked ``fits`` before."""
        grads_at = self._used + _lines(num_rows * 8)
        place = Place(self._used, grads_at, num_rows, width, dtype)
        self._used += _bytes(num_rows, width, dtype)
        return place

    def clear(self) -> None:
        """Everything was read."""
        self._used = 0


def _lines(num_bytes: int) -> int:
    return -(-num_bytes // LINE) * LINE


def _bytes(num_rows: int, width: int, dtype: torch.dtype) -> int:
    return _lines(num_rows * 8) + _lines(num_rows * width * dtype.itemsize)


class Packed(NamedTuple):
    """What one push sends: rows server after server.

    Attributes:
        ids: Shape (S,).
        grads: Shape (S, D).
        pieces: (server, start, end) of the rows of each server that owns some.
        how: What the owner still has to do with duplicates.
        distinct: Whether there are none.
        place: Where ids and gradients lie in the outbox.
    """

    ids: Tensor
    grads: Tensor
    pieces: list[tuple[int, int, int]]
    how: Merge
    distinct: bool
    place: Place


class Room(Protocol):
    """Gives outbox memory for a number of rows."""

    def __call__(self, num_rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Place]: ...


def pack(push: Push, owners: Layout, dtype: torch.dtype, room: Room) -> Packed:
    """Merge the duplicates of a push and lay the rows out server after server, in the outbox.

    A rule that wants every occurrence gets every occurrence.

    Args:
        push: Ids and gradients on any device.
        owners: Who owns which id.
        dtype: In which gradients are summed.
        room: Gives the outbox and a place for S rows of width D.
    """
    check_merge(push.merge)
    ids, grads = push.ids.detach().cpu(), push.grads.detach().to("cpu", dtype)
    if type(push.rule) in FUSED and dtype is torch.float32:  # the bits of the fused kernels
        route = owners.route(ids)
        memory, place = room(len(route.ids), grads.shape[1], dtype)
        there, out = at(memory, place)
        there.copy_(route.ids)
        sum_groups(grads, route.first, route.following, out)
        if push.merge == "mean":
            out.mul_(torch.bincount(route.place, minlength=len(there)).float().reciprocal().unsqueeze(1))
        return Packed(there, out, cut(route.counts), "sum", True, place)
    how = push.merge
    if push.rule.per_occurrence:
        order = torch.argsort(owners.owner(ids), stable=True)
        ids, grads = ids[order], grads[order]
    else:
        ids, grads = merge(ids, grads, how)  # ascending ids: the servers' ranges are neighbours
        how = "sum"
    memory, place = room(len(ids), grads.shape[1], dtype)
    there, out = at(memory, place)
    there.copy_(ids)
    out.copy_(grads)
    counts = torch.bincount(owners.owner(ids), minlength=owners.world_size).tolist()
    return Packed(there, out, cut(counts), how, not push.rule.per_occurrence, place)


def cut(counts: list[int]) -> list[tuple[int, int, int]]:
    """(server, start, end) of the rows of each server that has some."""
    found, start = [], 0
    for server, count in enumerate(counts):
        if count:
            found.append((server, start, start + count))
        start += count
    return found
