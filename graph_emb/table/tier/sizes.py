"""Bytes of tables in pages: what a frame and the map take, and how many pages a budget holds.

Legend: R rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from graph_emb.table.spec import StateSpec
from graph_emb.table.tier.pages import PageLayout

PAGE_BYTES = 5
"""Of a page in the map: its frame, and whether the file has it."""
FRAME_BYTES = 64
"""Of a frame in the map, at most, its share of the sketch included."""


def device_memory(num_rows: int, dim: int, dtype: torch.dtype, specs: Iterable[StateSpec], share: float) -> int:
    """The ``memory`` of a ``DeviceCache`` that holds a share of a table's rows, and a page at least.

    Args:
        num_rows, dim, dtype: Of the table.
        specs: Its optimizer state.
        share: In (0, 1].
    """
    sections, row_bytes = bytes_of_row(dim, dtype, specs)
    layout = PageLayout.of_memory(sections)
    fixed, each = bytes_of_frames(layout, 0, num_rows, row_bytes, on_device=True)
    return fixed + max(1, math.ceil(layout.num_pages(num_rows) * share)) * each


def held_pages(
    num_rows: int, dim: int, memory: int, dtype: torch.dtype = torch.float32, specs: Iterable[StateSpec] = ()
) -> tuple[int, int]:
    """How many pages ``memory`` of a ``Buckets`` holds of a table, and how many it has.

    Args:
        num_rows, dim, dtype: Of the table.
        memory: Bytes.
        specs: Its optimizer state.
    """
    sections, row_bytes = bytes_of_row(dim, dtype, specs)
    layout = PageLayout.of(sections)
    pages = layout.num_pages(num_rows)
    fixed, each = bytes_of_frames(layout, pages, num_rows, row_bytes)
    return max(0, (memory - fixed) // each), pages


def fewest_parts(num_rows: int, dim: int, memory: int) -> int | None:
    """The fewest equal parts of which ``memory`` of a ``Buckets`` holds two; None where it does not hold four pages.

    Args:
        num_rows, dim: Of the table, of float32, without state.
        memory: Bytes.
    """
    frames, pages = held_pages(num_rows, dim, memory)
    of_part = frames // 2 - 1  # a part may begin and end within a page
    return max(2, -(-pages // of_part)) if of_part >= 1 else None


def bytes_of_row(dim: int, dtype: torch.dtype, specs: Iterable[StateSpec]) -> tuple[list[int], int]:
    """Bytes of a row and of each piece of its state that is as wide, and of its state of one value."""
    sizes = [(one.kind, one.dtype_beside(dtype).itemsize) for one in specs]
    wide = [dtype.itemsize, *(size for kind, size in sizes if kind == "element")]
    return [dim * size for size in wide], sum(size for kind, size in sizes if kind == "row")


def bytes_of_frames(
    layout: PageLayout, num_pages: int, num_rows: int, row_bytes: int, on_device: bool = False
) -> tuple[int, int]:
    """Bytes of the map and of the state of one value a row, and of a frame."""
    page, frame = (0, 0) if on_device else (PAGE_BYTES, FRAME_BYTES)
    return num_pages * page + num_rows * row_bytes, sum(layout.sections) + (row_bytes << layout.shift) + frame
