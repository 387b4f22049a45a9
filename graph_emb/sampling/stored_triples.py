"""Training triples in a file, bucket by bucket, of which memory holds those of a few buckets.

Legend: T triples, n of a piece, N buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graph_emb.core.scratch_file import ScratchFile

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


STORED = np.dtype(
    [("number", np.int64), ("head", np.int64), ("relation", np.uint32), ("answers", np.uint32), ("tail", np.int64)]
)
"""A triple in the file; ``answers``: how many both of its queries have, 0 before ``count_answers``."""
RECORD = STORED.itemsize


def triples_of(records: np.ndarray) -> np.ndarray:
    """The triples of records (n,): (n, 3), int64."""
    return np.stack([records[name].astype(np.int64) for name in ("head", "relation", "tail")], axis=1)


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
        StorageError: the disk has no room for 32 bytes a triple; from its methods, too, where it fails.
    """

    def __init__(
        self, pieces: Pieces, bucket: Callable[[np.ndarray], np.ndarray], num_buckets: int, folder: Path
    ) -> None:
        self.sizes = np.zeros(num_buckets, np.int64)
        for _, triples in pieces():
            self.sizes += np.bincount(bucket(triples), minlength=num_buckets)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._file = ScratchFile(folder, int(self._starts[-1]) * RECORD, "training triples by bucket")
        self._write(pieces, bucket)

    def _write(self, pieces: Pieces, bucket: Callable[[np.ndarray], np.ndarray]) -> None:
        following = self._starts[:-1].copy()
        for numbers, triples in pieces():
            own = bucket(triples)
            order = np.argsort(own, kind="stable")
            records, own = np.zeros(len(order), STORED), own[order]
            for name, values in zip(("number", "head", "relation", "tail"), (numbers, *triples.T), strict=True):
                records[name] = values[order]
            cuts = np.flatnonzero(np.diff(own, prepend=-1))
            for low, high in zip(cuts.tolist(), [*cuts[1:].tolist(), len(own)], strict=True):
                self._file.write(int(following[own[low]]) * RECORD, records[low:high])
                following[own[low]] += high - low
        self._file.flush()

    def of(self, bucket: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of a bucket's triples, rising, and their records: (n,) both, the latter of ``STORED``."""
        at = int(self._starts[bucket]) * RECORD
        records = self._file.read(at, np.empty(int(self.sizes[bucket]), STORED))
        records = records[np.argsort(records["number"], kind="stable")]
        return records["number"], records

    def replace(self, bucket: int, records: np.ndarray) -> None:
        """Keep these records (n,) of a bucket instead of those that ``of`` gives, as many."""
        self._file.write(int(self._starts[bucket]) * RECORD, records)

    def flush(self) -> None:
        """Put what ``replace`` wrote on the disk, and let the kernel's copy of it leave memory."""
        self._file.flush()
