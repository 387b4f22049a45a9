"""Files that are written in a process of limited memory: their bytes go to the disk on the way and leave memory.

The kernel keeps a copy of what is written until it is on the disk. It counts that copy as the process's memory, and
where a cgroup limits this (v1 above all) it ends the process rather than wait for the disk.
"""

from __future__ import annotations

import os

SYNC_BYTES = 8 << 20
"""Written to a file before the kernel's copy of them has to leave memory."""


class Drain:
    """Bounds the bytes of a growing file that the kernel holds.

    Args:
        descriptor: Of the file, open for writing; whoever opened it closes it.

    Example:
        >>> import tempfile
        >>> from graph_emb.core.page_cache import Drain
        >>> with tempfile.TemporaryFile() as file:
        ...     drain = Drain(file.fileno())
        ...     for _ in range(3):
        ...         drain.wrote(file.write(bytes(1000)))
        ...     file.flush()
        ...     drain.finish()  # all 3000 bytes are on the disk, and out of memory
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._waiting = descriptor, 0

    def wrote(self, num_bytes: int) -> None:
        """Count bytes that were appended; all so far go to the disk when ``SYNC_BYTES`` wait.

        Raises:
            OSError: the disk did not take them.
        """
        self._waiting += num_bytes
        if self._waiting >= SYNC_BYTES:
            self.finish()

    def finish(self) -> None:
        """Put the file on the disk, and let the kernel's copy of it leave memory."""
        os.fsync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._waiting = 0
