"""Owners of ids that nobody has counted: any int64 id belongs to a bucket of its hash, and buckets to parts.

Legend: B asked ids, P parts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import group, mix64, njit
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.graph.partition_book import Laid, Part, PartitionBook, RangeBook, RankRanges, lay_out, range_of

NUM_BUCKETS = 4096
_FIRST = -(2**63)
_KNOWN_AT_A_TIME = 1 << 22
_SIZE = 2**64 // NUM_BUCKETS
_A = np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
_B = np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))


def key_of(ids: Tensor) -> Tensor:
    """The keys of ids, any shape, int64: ``mix64``, a bijection whose ranges hold equal shares of any ids."""
    return torch.from_numpy(keys_of(np.ascontiguousarray(ids.cpu().numpy()).reshape(-1))).view(ids.shape)


@njit(cache=True, nogil=True)
def keys_of(ids: np.ndarray) -> np.ndarray:
    """``key_of`` an array, (B,)."""
    found = np.empty(len(ids), np.int64)
    for i in range(len(ids)):
        found[i] = np.int64(mix64(np.uint64(ids[i])))
    return found


@njit(cache=True, nogil=True)
def ids_of(keys: np.ndarray) -> np.ndarray:
    """The ids of keys, (B,), int64."""
    found = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        found[i] = _id_of(keys[i])
    return found


@njit(cache=True, nogil=True, inline="always")
def _id_of(key: Any) -> Any:
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))) * _B
    x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * _A
    return np.int64(x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60)))


@dataclass(frozen=True)
class HashPolicy(PartitionBook):
    """The policy of a growing table: part p owns the p-th share of 4,096 buckets of the hash of an id.

    Patterned ids (all even, strided) spread as any others do. A table's rows do not depend on the number of parts.

    Args:
        num_parts: From 1 to 4,096; 1: all ranks share the table evenly.
    """

    num_parts: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.num_parts, bool) or not isinstance(self.num_parts, int):
            raise ConfigError(f"HashPolicy: num_parts={self.num_parts!r} must be an integer")
        if not 1 <= self.num_parts <= NUM_BUCKETS:
            raise ConfigError(f"HashPolicy: num_parts={self.num_parts} must be from 1 to {NUM_BUCKETS}")

    @property
    def num_rows(self) -> int:
        """The last id and one."""
        return 2**63

    def buckets(self) -> list[int]:
        """Part p owns the buckets [found[p], found[p + 1]), (P + 1,)."""
        return [part * NUM_BUCKETS // self.num_parts for part in range(self.num_parts + 1)]

    def owner(self, ids: Tensor) -> Tensor:
        bucket = (key_of(ids.long()) >> 52) + NUM_BUCKETS // 2
        return torch.searchsorted(torch.tensor(self.buckets()), bucket, right=True) - 1

    def to_rows(self, ids: Tensor) -> Tensor:
        raise PartitionError("rows of a growing table are made as ids come; a policy knows none")

    def to_ids(self, part: Part, rows: Tensor) -> Tensor:
        raise PartitionError("rows of a growing table are made as ids come; emb.ids() tells them")

    def part_size(self, part: Part) -> int:
        raise PartitionError("rows of a growing table are made as ids come; emb.num_rows counts them")


def ranges_of_keys(buckets: RankRanges) -> RankRanges:
    """The ranges of keys that ranks own, from their ranges of buckets."""
    bounds = [min(_FIRST + int(bucket) * _SIZE, 2**63 - 1) for bucket in buckets.bounds]
    return RankRanges(bounds, buckets.ranks.tolist(), buckets.world_size)


@dataclass(frozen=True, eq=False, kw_only=True)
class ExtendedBook(HashPolicy):
    """A partition extended to all ids: those that it knows live with its owners, others go by their hash.

    Ids are positions in the input of the partitioner, as original ids are everywhere; the nodes that
    ``partition.extend`` adds keep theirs. No row of a table depends on it.

    Args:
        num_parts: Of the partition.
        known: The ranges of its parts.
        original_ids: The id of each row of these ranges.
    """

    known: RangeBook
    original_ids: OriginalIds

    def owner(self, ids: Tensor) -> Tensor:
        parts = self.known_ranks(RankRanges(self.known.bounds.tolist(), range(self.num_parts), self.num_parts))
        found, ids = super().owner(ids), ids.long()
        inside = (ids >= 0) & (ids < len(parts))
        found[inside] = torch.from_numpy(parts)[ids[inside]].long()
        return found

    def known_ranks(self, ranges: RankRanges) -> np.ndarray:
        """The rank of each id that the partition knows, (N,).

        Args:
            ranges: The rank of each row of the partition.
        Raises:
            PartitionError: the partition's ids are not 0, 1, ..., N - 1.
            DataError: its id maps cannot be read.
        """
        num = self.known.num_rows
        found = np.empty(num, np.min_scalar_type(-ranges.world_size))
        for start in range(0, num, _KNOWN_AT_A_TIME):
            rows = self.original_ids.find(np.arange(start, min(num, start + _KNOWN_AT_A_TIME)))
            if rows.min(initial=0) < 0:
                raise PartitionError(
                    f"the partition has {num} ids and lacks id {start + int(np.argmin(rows))}; a growing table takes "
                    "policies of partitions whose original ids are positions in the input"
                )
            found[start : start + len(rows)] = ranges.owner(torch.from_numpy(rows)).numpy()
        return found

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExtendedBook) and self.known == other.known and np.array_equal(self._ids(), other._ids())
        )

    def __hash__(self) -> int:
        return hash(self.known)

    def _ids(self) -> np.ndarray:
        return self.original_ids.of(0, self.known.num_rows)

    def __repr__(self) -> str:
        return f"ExtendedBook({self.known.num_rows} known ids, {self.num_parts} parts)"


class ExtendedRanges(RankRanges):
    """The rank that stores each key: of known ids that of the partition, of others that of their hash.

    Args:
        others: The ranges of keys.
        known: The rank of each id 0 .. N - 1, (N,).
    """

    def __init__(self, others: RankRanges, known: np.ndarray) -> None:
        super().__init__(others.bounds.tolist(), others.ranks.tolist(), others.world_size)
        self._known = known

    @property
    def facts(self) -> tuple[object, ...]:
        return *super().facts, hashlib.blake2b(self._known.data, digest_size=16).hexdigest()

    def owned(self, rank: int) -> tuple[int, int]:
        raise PartitionError("what a rank stores of a partition's ids and others is no range of keys")

    def owner(self, ids: Tensor) -> Tensor:
        keys = ids.detach().cpu().long().contiguous().numpy()
        return torch.from_numpy(_owners(keys, self.bounds, self.ranks, self._known).astype(np.int64))

    def _routed(self, ids: np.ndarray, last: int) -> Laid:
        groups = group(ids)
        owners = _owners(groups[0], self.bounds, self.ranks, self._known)
        return lay_out(groups, owners, self.world_size, last)


@njit(cache=True, nogil=True)
def _owners(keys: np.ndarray, bounds: np.ndarray, ranks: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The rank of each key, (B,), int32."""
    found = np.empty(len(keys), np.int32)
    for k in range(len(keys)):
        row_id = _id_of(keys[k])
        found[k] = known[row_id] if 0 <= row_id < len(known) else ranks[range_of(bounds, keys[k])]
    return found


def growing_book(policy: object, table: str) -> HashPolicy:
    """The book that the ``part_policy`` of a growing table stands for.

    Args:
        policy: None (one part), a HashPolicy, or a policy of ``partition``.
        table: The name that an error shows.
    Raises:
        ConfigError: it is none of these.
    """
    if policy is None or isinstance(policy, HashPolicy):
        return HashPolicy() if policy is None else policy
    book = getattr(policy, "book", None)
    if not isinstance(book, RangeBook) or not hasattr(policy, "original_ids"):
        raise ConfigError(
            f"table {table!r} grows: part_policy={policy!r:.80} must be None, ge.HashPolicy(num_parts) or a policy of "
            "partition.load(...): it has to know the owner of ids that nobody has counted"
        )
    ids = policy.original_ids
    return ExtendedBook(book.num_parts, known=book, original_ids=SameIds(book.num_rows) if ids is None else ids)
