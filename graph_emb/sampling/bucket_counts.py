"""What recipes count over all training triples, where memory holds those of few buckets: one part at a time.

Legend: n triples of a bucket, Q distinct queries of a part, R rows of a part, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from graph_emb.core.scratch_file import ScratchFile
from graph_emb.sampling.known_triples import HEAD, TAIL, EntityParts, KnownAnswers, query_keys
from graph_emb.sampling.stored_triples import StoredTriples, triples_of

OCCURRENCE = 8
"""Bytes of an entity in the file of ``PartOccurrences``."""


def buckets_of(part: int, side: int, num_parts: int) -> Iterator[int]:
    """The buckets of P x P with all triples whose heads (the side TAIL is asked for) or tails (HEAD) a part holds."""
    return (part * num_parts + other if side == TAIL else other * num_parts + part for other in range(num_parts))


def count_answers(triples: StoredTriples, num_parts: int, num_relations: int) -> None:
    """Let each triple know how many answers its two queries have: ``STORED``'s ``answers``.

    Each bucket is read four times. Memory takes a bucket, and 16 bytes for each query of a part's entities, which is
    read again for each of its buckets.

    Raises:
        StorageError: the disk does not take or give them.
    """
    for side in (TAIL, HEAD):
        for part in range(num_parts):
            keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
            for bucket in buckets_of(part, side, num_parts):
                own = KnownAnswers.of(triples_of(triples.of(bucket)[1]), side, num_relations)
                keys, counts = _added(keys, counts, own.keys, np.diff(own.starts))
            for bucket in buckets_of(part, side, num_parts):
                _, records = triples.of(bucket)
                places = np.searchsorted(keys, query_keys(triples_of(records), side, num_relations))
                records["answers"] += counts[places].astype(np.uint32)
                triples.replace(bucket, records)
    triples.flush()


def _added(keys: np.ndarray, counts: np.ndarray, more: np.ndarray, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of rising keys, and the sums of their counts: (Q,) both."""
    both = np.union1d(keys, more)
    out = np.zeros(len(both), np.int64)
    out[np.searchsorted(both, keys)] = counts
    out[np.searchsorted(both, more)] += added
    return both, out


class PartOccurrences:
    """How many training triples each entity is an end of, in a file without a name of 8 bytes an entity.

    Args:
        triples: By the buckets of P x P.
        parts: Where entities lie.
        folder: Where the file lies.
    Raises:
        StorageError: the disk has no room.
    """

    def __init__(self, triples: StoredTriples, parts: EntityParts, folder: Path) -> None:
        bounds = parts.bounds.tolist()
        self._file = ScratchFile(folder, OCCURRENCE * bounds[-1], "occurrences of entities")
        for part, (low, high) in enumerate(pairwise(bounds)):
            counts = np.zeros(high - low, np.int64)
            for side, name in ((TAIL, "head"), (HEAD, "tail")):
                for bucket in buckets_of(part, side, len(bounds) - 1):
                    rows = parts.row(triples.of(bucket)[1][name])
                    counts += np.bincount(rows - low, minlength=high - low)
            self._file.write(OCCURRENCE * low, counts)
        self._file.flush()

    def __call__(self, low: int, high: int) -> np.ndarray:
        """Of the rows [low, high): (R,), int64."""
        return self._file.read(OCCURRENCE * low, np.empty(high - low, np.int64))
