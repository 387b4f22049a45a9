from __future__ import annotations

import errno

from graph_emb.core.command_line import one_line


def test_memory_that_ends_is_one_line() -> None:
    told = one_line(MemoryError("Unable to\nallocate 9 TiB"), "use less")
    assert told == "out of memory (Unable to allocate 9 TiB); use less"
    assert one_line(OSError(errno.EACCES, "Permission denied", "/x"), "") == "Permission denied: /x"
