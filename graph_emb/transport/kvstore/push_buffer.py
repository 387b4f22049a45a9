"""A trainer's gradients on their way to the servers of its machine: in memory that those read in place.

Legend: S sent rows, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from graph_emb.transport.kvstore import shared

SMALLEST = 1 << 24
"""Bytes of a first push buffer."""
LINE = 64  # bytes; every row block starts on a cache line


class Place(NamedTuple):
    """Where a server of this machine finds ids and gradients: offsets in the sender's push buffer, in bytes."""

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


class PushBuffer:
    """Shared memory that is filled from the front and emptied as a whole, when a flush said that all was read.

    Args:
        num_bytes: Its size.
    Attributes:
        name: Of the shared memory, until the servers have mapped it.
        memory: Its bytes.
        used: Bytes in use; 0 empties it.
        last: The place that was reserved last.
    """

    def __init__(self, num_bytes: int) -> None:
        self.name = shared.new_name()
        self.memory = shared.open_segment(self.name, (num_bytes,), torch.uint8, "the push buffer", create=True)
        self.used = 0
        self.last = Place(0, 0, 0, 0, torch.float32)

    @staticmethod
    def size_for(num_rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of a buffer that holds several pushes of this size."""
        return max(SMALLEST, 1 << (4 * _bytes(num_rows, width, dtype)).bit_length())

    def fits(self, num_rows: int, width: int, dtype: torch.dtype) -> bool:
        """Whether there is room left."""
        return self.used + _bytes(num_rows, width, dtype) <= len(self.memory)

    def reserve(self, num_rows: int, width: int, dtype: torch.dtype) -> Place:
        """Room for a push; the caller asked ``fits`` before."""
        grads_at = self.used + _lines(num_rows * 8)
        self.last = Place(self.used, grads_at, num_rows, width, dtype)
        self.used += _bytes(num_rows, width, dtype)
        return self.last

    def lend(self, ids: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``reserve``, with the ids copied in: see ``graph_emb.transport.push_packing.PushMemory``."""
        there, out = at(self.memory, self.reserve(len(ids), width, dtype))
        return there.copy_(ids), out


def _lines(num_bytes: int) -> int:
    return -(-num_bytes // LINE) * LINE


def _bytes(num_rows: int, width: int, dtype: torch.dtype) -> int:
    return _lines(num_rows * 8) + _lines(num_rows * width * dtype.itemsize)
