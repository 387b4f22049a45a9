"""Training triples in a file, bucket by bucket, of which memory holds those of a few buckets.

Legend: T triples, n of a piece, N buckets.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path

import numpy as np

from graph_emb.core.errors import StorageError
from graph_emb.core.hidden import nameless_file, size_text
from graph_emb.core.page_cache import Drain

Pieces = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""All triples, in any order, some at a time: their numbers in the graph, (n,), and themselves, (n, 3), int64."""


@dataclass(frozen=True, eq=False)
class TriplesOnDisk:
    """The training triples of a graph that holds none, and where they may be put in another order.

    Attributes:
        pieces: All of them; may be called more than once.
        folder: For a file of 32 bytes a triple.
    """

    pieces: Pieces
    folder: Path


RECORD = 32
"""Bytes of a triple in the file: its number, head, relation and tail."""


class StoredTriples:
    """Triples by bucket in a file without a name, which is gone with this.

    Args:
        pieces: The triples; called twice.
        bucket: The bucket of triples (n, 3) in [0, N), (n,).
        num_buckets: N.
        folder: Where the file lies.
    Attributes:
        sizes: Triples of each bucket, (N,).
    Raises:
        StorageError: the disk has no room for 32 bytes a triple.
    """

    def __init__(
        self, pieces: Pieces, bucket: Callable[[np.ndarray], np.ndarray], num_buckets: int, folder: Path
    ) -> None:
        self.sizes = np.zeros(num_buckets, np.int64)
        for _, triples in pieces():
            self.sizes += np.bincount(bucket(triples), minlength=num_buckets)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = nameless_file(folder)
            weakref.finalize(self, os.close, self._file)
            os.posix_fallocate(self._file, 0, max(1, int(self._starts[-1]) * RECORD))
            self._write(pieces, bucket)
        except OSError as error:
            raise StorageError(
                error.errno,
                f"training triples: {size_text(int(self._starts[-1]) * RECORD)} of them by bucket: {error.strerror}; "
                "choose another train.scratch, or make room",
                str(folder),
            ) from None

    def _write(self, pieces: Pieces, bucket: Callable[[np.ndarray], np.ndarray]) -> None:
        following, drain = self._starts[:-1].copy(), Drain(self._file)
        for numbers, triples in pieces():
            own = bucket(triples)
            order = np.argsort(own, kind="stable")
            records, own = np.column_stack([numbers, triples])[order].astype(np.int64), own[order]
            cuts = np.flatnonzero(np.diff(own, prepend=-1))
            for low, high in zip(cuts.tolist(), [*cuts[1:].tolist(), len(own)], strict=True):
                at = int(following[own[low]]) * RECORD
                drain.wrote(max(PAGESIZE, (high - low) * RECORD))  # the kernel holds whole pages of it
                view = records[low:high].data.cast("B")
                while view:
                    done = os.pwrite(self._file, view, at)
                    view, at = view[done:], at + done
                following[own[low]] += high - low
        drain.finish()

    def of(self, bucket: int) -> tuple[np.ndarray, np.ndarray]:
        """The triples of a bucket by rising number: (n,) and (n, 3)."""
        records = np.empty((int(self.sizes[bucket]), 4), np.int64)
        view, at = records.data.cast("B") if len(records) else memoryview(b""), int(self._starts[bucket]) * RECORD
        while view:
            done = os.preadv(self._file, [view], at)
            if not done:
                raise StorageError(5, f"training triples: the file ends at byte {at}; start anew", str(self._folder))
            view, at = view[done:], at + done
        records = records[np.argsort(records[:, 0], kind="stable")]
        return records[:, 0], records[:, 1:]
