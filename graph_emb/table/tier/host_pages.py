"""Pages in memory of the host, the lower tier of a cache on a device.

Copies to a device follow its current stream, as the kernels do that read and write the frames, so a transfer is in
order with them when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graph_emb.table.row_memory import allocate
from graph_emb.table.tier.pages import PageLayout
from graph_emb.table.tier.reader import Transfer

STAGED_BYTES = 8 << 20
"""Of a section that is copied at a time."""


class HostPages:
    """All pages of a table, each section an array; the same calls as ``PageReader``, done when they return.

    Args:
        table: Whose rows these are.
        layout, num_pages: Of the pages. Memory that was never written is not touched.
        dtypes: Of the rows of each section.
    Attributes:
        bytes_read, bytes_written: So far.
    """

    def __init__(self, table: str, layout: PageLayout, num_pages: int, dtypes: Sequence[torch.dtype]) -> None:
        self.table, self.layout = table, layout
        self._sections = [
            allocate((num_pages, size // dtype.itemsize), dtype, torch.device("cpu"), table)
            for size, dtype in zip(layout.sections, dtypes, strict=True)
        ]
        self.bytes_read = self.bytes_written = 0

    def read(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Copy pages to frames; arguments as of ``PageReader.read``."""
        self.bytes_read += len(pages) * self.layout.page_bytes
        for own, column in zip(self._sections, columns, strict=True):
            if column is not None:
                _copy(own, pages, column.view(-1, own.shape[1]), frames)
        return Transfer(self.table, "", (), "read")

    def write(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Copy frames to pages; arguments as of ``PageReader.write``."""
        self.bytes_written += len(pages) * self.layout.page_bytes
        for own, column in zip(self._sections, columns, strict=True):
            if column is not None:
                _copy(column.view(-1, own.shape[1]), frames, own, pages)
        return Transfer(self.table, "", (), "write")

    def exchange(
        self, old: np.ndarray, dirty: np.ndarray, new: np.ndarray, stored: np.ndarray, frames: np.ndarray,
        columns: Sequence[Tensor],
    ) -> Transfer:  # fmt: skip
        """Copy pages out of frames and others in; arguments as of ``PageReader.exchange``."""
        self.write(old[dirty], frames[dirty], columns)
        return self.read(new[stored], frames[stored], columns)

    def section(self, number: int) -> Tensor:
        """All pages of a section, (num_pages, numbers of a page), not a copy."""
        return self._sections[number]

    def keep(self, stored: np.ndarray, dirty: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor]) -> None:
        """Nothing: memory is copied."""

    def note(self, checkpoint: str | None) -> None:
        """Nothing is left of a run that did not end."""

    def check_own(self) -> None:
        """Memory is this run's."""

    def close(self) -> None:
        """Give the memory back. May be repeated."""
        self._sections = []


def _copy(source: Tensor, at: np.ndarray, target: Tensor, to: np.ndarray) -> None:
    """``target[to] = source[at]``, between devices too; some rows at a time."""
    most = max(1, STAGED_BYTES // (source.shape[1] * source.itemsize))
    for low in range(0, len(at), most):
        rows, places = (torch.from_numpy(some[low : low + most].astype(np.int64)) for some in (at, to))
        found = source.index_select(0, rows.to(source.device))
        target.index_copy_(0, places.to(target.device), found.to(target.device))
