"""Owners of ids that nobody has counted: any int64 id belongs to a bucket of its hash, and buckets to parts.

Legend: B asked ids, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import mix64, njit
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.partition_book import Part, PartitionBook, RankRanges

NUM_BUCKETS = 4096
_FIRST = -(2**63)
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
        x = np.uint64(keys[i])
        x = (x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))) * _B
        x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * _A
        found[i] = np.int64(x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60)))
    return found


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
