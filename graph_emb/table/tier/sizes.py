"""Bytes of tables in pages: what a frame and the map take, and how many pages a budget holds.

Legend: R rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from graph_emb.core.errors import ConfigError
from graph_emb.table.placement import Buckets, DeviceCache, Placement
from graph_emb.table.spec import StateSpec
from graph_emb.table.tier.pages import PageLayout

PAGE_BYTES = 5
"""Of a page in the map: its frame, and whether the file has it."""
FRAME_BYTES = 64
"""Of a frame in the map, at most, its share of the sketch included."""
LEAST_PAGES, STATES = 2, 3
"""Pages that each of several tables holds of one budget at least, and numbers of state an element there (AMSGrad's)."""


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
    num_rows: int,
    dim: int,
    memory: int,
    dtype: torch.dtype = torch.float32,
    specs: Iterable[StateSpec] = (),
    *,
    on_device: bool = False,
) -> tuple[int, int]:
    """How many pages ``memory`` of a ``Buckets`` holds of a table, and how many it has.

    Args:
        num_rows, dim, dtype: Of the table.
        memory: Bytes.
        specs: Its optimizer state.
        on_device: Of a ``DeviceCache`` instead.
    """
    sections, row_bytes = bytes_of_row(dim, dtype, specs)
    layout = PageLayout.of_memory(sections) if on_device else PageLayout.of(sections)
    pages = layout.num_pages(num_rows)
    fixed, each = bytes_of_frames(layout, pages, num_rows, row_bytes, on_device)
    return max(0, (memory - fixed) // each), pages


def fewest_parts(num_rows: int, dim: int, memory: int, held: int) -> int | None:
    """The fewest equal parts of which ``memory`` of a ``Buckets`` holds ``held``; None where there are none.

    Args:
        num_rows, dim: Of the table, of float32, without state.
        memory: Bytes.
        held: Parts, each of at least two pages.
    """
    frames, pages = held_pages(num_rows, dim, memory)
    of_part = frames // held - 1  # a part may begin and end within a page
    return max(2, -(-pages // of_part)) if of_part >= 1 else None


def sides_of(placement: Buckets, num_rows: int, dim: int) -> tuple[Buckets, Buckets]:
    """The placements of the two tables of a grid of buckets, together with the memory of two of ``placement``.

    A part of the first table stays for a row of buckets, one of the second for a bucket. So the second one has room for
    two parts, of which one comes while the other trains, as far as the first one keeps a part; it has what is left.

    Args:
        num_rows, dim: Of each table, of float32, without state.
    """
    layout = PageLayout.of([dim * torch.float32.itemsize])
    pages = layout.num_pages(num_rows)
    fixed, each = bytes_of_frames(layout, pages, num_rows, 0)
    part = -(-pages // placement.parts) + 1  # it may begin and end within a page
    one, two = (fixed + each * min(pages, parts * part) for parts in (1, 2))
    both = 2 * placement.memory_bytes
    first = max(min(one, placement.memory_bytes), both - two)
    return replace(placement, memory=first), replace(placement, memory=both - first)


def shares_of(
    name: str, placement: Placement, shapes: Sequence[tuple[int, int]], dtype: torch.dtype
) -> list[Placement]:
    """The placement of each of several tables that share one budget in proportion to their bytes.

    Each has room for its map and, as far as it has them, ``LEAST_PAGES`` pages with the state of ``STATES`` numbers an
    element, so that no small table is without memory; what is left is divided in proportion.

    Args:
        name: Of the tables together, for errors.
        placement: With the memory of all.
        shapes: Rows and width of each.
        dtype: Of all.
    Raises:
        ConfigError: the memory is below what all need at least, or a schedule of buckets, which has none of them.
    """
    if len(shapes) == 1:
        return [placement]
    if isinstance(placement, Buckets):
        raise ConfigError(
            f"table {name!r}: ge.Buckets follows a schedule of one table's rows, and those of these {len(shapes)} "
            "tables are shared by nodes of all buckets; take ge.File(folder, memory=...)"
        )
    on_device = isinstance(placement, DeviceCache)

    def least_of(rows: int, dim: int, states: int) -> int:
        sections = [dim * dtype.itemsize] * (1 + states)
        layout = PageLayout.of_memory(sections) if on_device else PageLayout.of(sections)
        pages = layout.num_pages(rows)
        fixed, each = bytes_of_frames(layout, pages, rows, 0, on_device)
        return fixed + each * min(LEAST_PAGES, pages)

    # pages of more state have fewer rows, so that none of the layouts is the largest throughout
    least = [max(least_of(*shape, states) for states in range(STATES + 1)) for shape in shapes]
    left = placement.memory_bytes - sum(least)
    if left < 0:
        raise ConfigError(
            f"table {name!r}: memory={placement.memory_bytes} bytes are shared by {len(shapes)} tables, which need "
            f"{sum(least)} at least; raise memory"
        )
    total = sum(rows * dim for rows, dim in shapes)
    return [
        replace(placement, memory=low + left * rows * dim // total)
        for low, (rows, dim) in zip(least, shapes, strict=True)
    ]


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
