"""A file without a name for what a computation keeps out of memory: its room is free when its object is gone."""

from __future__ import annotations

import errno
import os
import weakref
from mmap import PAGESIZE
from pathlib import Path

import numpy as np

from graph_emb.core.errors import StorageError
from graph_emb.core.hidden import FULL_DISK, nameless_file, size_text
from graph_emb.core.page_cache import Drain


class ScratchFile:
    """Bytes of a known number, written and read by their offset; the kernel's copies of them leave memory.

    Args:
        folder: Where it lies; made where it is missing.
        num_bytes: Room that is taken at once.
        what: What is in it, for errors.
    Raises:
        StorageError: the disk has no room.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from graph_emb.core.scratch_file import ScratchFile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = ScratchFile(Path(folder), 24, "counts")
        ...     file.write(8, np.array([5, 7]))
        ...     file.flush()
        ...     file.read(8, np.empty(2, np.int64)).tolist()
        [5, 7]
    """

    def __init__(self, folder: Path, num_bytes: int, what: str) -> None:
        self._folder, self._what = folder, f"{what}, {size_text(num_bytes)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = nameless_file(folder)
            weakref.finalize(self, os.close, self._descriptor)
            os.posix_fallocate(self._descriptor, 0, max(1, num_bytes))
        except OSError as error:
            raise self._error(error) from None
        self._drain = Drain(self._descriptor)

    def write(self, at: int, values: np.ndarray) -> None:
        """Write contiguous values, of one dimension, from byte ``at`` on.

        Raises:
            StorageError: the disk does not take them.
        """
        view = values.view(np.uint8).data
        try:
            self._drain.wrote(max(PAGESIZE, len(view)))  # the kernel holds whole pages of it
            while view:
                done = os.pwrite(self._descriptor, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise self._error(error) from None

    def flush(self) -> None:
        """Put what was written on the disk, and let the kernel's copy of it leave memory.

        Raises:
            StorageError: the disk does not take it.
        """
        try:
            self._drain.finish()
        except OSError as error:
            raise self._error(error) from None

    def read(self, at: int, values: np.ndarray) -> np.ndarray:
        """Fill contiguous values, of one dimension, with the bytes from ``at`` on: these values.

        Raises:
            StorageError: the disk does not give them, or the file was cut off.
        """
        view = values.view(np.uint8).data
        try:
            while view:
                done = os.preadv(self._descriptor, [view], at)
                if not done:
                    raise OSError(errno.EIO, f"the file was cut off at byte {at}")
                view, at = view[done:], at + done
        except OSError as error:
            raise self._error(error) from None
        return values

    def _error(self, error: OSError) -> StorageError:
        room = "; choose another train.scratch, or make room" if error.errno in FULL_DISK else ""
        return StorageError(error.errno, f"{self._what}: {error.strerror}{room}", str(self._folder))
