"""FBGEMM's words about caches, on tables with a ``DeviceCache``: arguments, calls, counts.

Legend: T tables.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from graph_emb.compat.fbgemm.options import MANAGED_CACHING, CacheAlgorithm, EmbeddingLocation, dtype_of, member
from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.table.placement import DEVICE, HOST, DeviceCache
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.tier.shard import TieredShard
from graph_emb.table.tier.sizes import device_memory

UVM_COUNTS = ("calls", "requested", "distinct", "misses", "conflicts", "conflict misses")
"""What ``get_uvm_cache_stats`` counts."""
REQUESTED, MISSES = UVM_COUNTS.index("requested"), UVM_COUNTS.index("misses")


def _uvm_counts(shard: TieredShard) -> Tensor:
    stats = shard.cache_stats()
    return torch.tensor([stats.calls, stats.requested, stats.distinct, stats.misses, 0, 0])


def state_rows_of(shard: EmbeddingShard) -> dict[str, Tensor]:
    """State of all rows by name, of a cached table in memory of the host."""
    if not isinstance(shard, TieredShard):
        return dict(shard.state)
    specs = shard.state_specs
    return {
        name: shard.lower_column(name) if specs[name].kind == "element" else state
        for name, state in shard.state.items()
    }


@dataclass(frozen=True)
class Caching:
    """FBGEMM's arguments about the cache of tables that are MANAGED_CACHING; its defaults.

    Args:
        cache_algorithm: LRU or LFU: our policies ``lru`` and ``lfu``.
        cache_load_factor: The share of each table's rows that the device holds, with their state.
        cache_sets: Not 0: sets of 32 rows that all tables share by their numbers of rows, instead of the factor.
        cache_precision: None or that of the rows: a cache of other numbers would change results.
        prefetch_pipeline: Allows ``prefetch`` while an earlier batch is under way, which is safe here either way.
        record_cache_metrics: An object with ``record_cache_miss_counter`` and ``record_tablewise_cache_miss``.
        gather_uvm_cache_stats: Keep the counts of ``get_uvm_cache_stats``.
    """

    cache_algorithm: Any = CacheAlgorithm.LRU
    cache_load_factor: float = 0.2
    cache_sets: int = 0
    cache_precision: Any = None
    prefetch_pipeline: bool = False
    record_cache_metrics: Any = None
    gather_uvm_cache_stats: bool = False

    @classmethod
    def taken_from(cls, given: dict[str, Any], specs: Sequence[tuple[int, int, Any, Any]]) -> Caching:
        """Take the arguments out of given.

        Raises:
            ConfigError: one that has no effect, because no table is cached; or out of its limits.
        """
        found = cls(**{name: given.pop(name) for name in cls.__dataclass_fields__ if name in given})
        cached = any(getattr(spec[2], "name", "") == MANAGED_CACHING for spec in specs)
        for name, field in cls.__dataclass_fields__.items():
            value = getattr(found, name)
            if not cached and getattr(value, "name", value) != getattr(field.default, "name", field.default):
                raise ConfigError(f"{name}={value!r} has no effect: no table is {MANAGED_CACHING}")
        if not 0 < found.cache_load_factor <= 1 or found.cache_sets < 0:
            raise ConfigError(
                f"cache_load_factor={found.cache_load_factor!r} must be above 0 and at most 1, "
                f"cache_sets={found.cache_sets!r} at least 0"
            )
        return found

    def placements(self, specs: Sequence[tuple[int, int, Any, Any]], stored: torch.dtype, state: Any) -> list[Any]:
        """Our placement of each table.

        Args:
            stored: Of the rows.
            state: The pieces of state of the optimizer, ``StateSpec`` each.
        """
        if self.cache_precision is not None and dtype_of(self.cache_precision, "cache_precision") != stored:
            raise ConfigError(f"cache_precision={self.cache_precision!r}: a cache holds rows as they are, in {stored}")
        policy: Any = member(CacheAlgorithm, self.cache_algorithm, "cache_algorithm", *CacheAlgorithm).name.lower()
        locations = [getattr(spec[2], "name", "") for spec in specs]
        cached = [location == MANAGED_CACHING for location in locations]
        total = sum(spec[0] for spec, held in zip(specs, cached, strict=True) if held)
        share = min(1.0, self.cache_sets * 32 / total) if self.cache_sets else self.cache_load_factor

        def placed(rows: int, width: int, location: str) -> Any:
            if location == MANAGED_CACHING:
                return DeviceCache(device_memory(rows, width, stored, state, share), policy)
            return DEVICE if location == EmbeddingLocation.DEVICE.name else HOST

        return [placed(*spec[:2], location) for spec, location in zip(specs, locations, strict=True)]


class CacheCalls:
    """The calls of FBGEMM's module that are about caches.

    Attributes:
        tables: Of each number below T.
        feature_table_map: The table of each feature.
    """

    tables: list[DistEmbedding]
    feature_table_map: list[int]
    _caching: Caching

    @abstractmethod
    def _num_bags(self, offsets: Tensor, of_ranks: Sequence[Sequence[int]] | None) -> list[int]: ...

    def _begin_counts(self) -> None:
        self._counts = torch.zeros(len(UVM_COUNTS), dtype=torch.int64)
        self._missed = torch.zeros(len(self.tables), dtype=torch.int64)
        self._forwards_with_misses = 0

    @property
    def _cached(self) -> list[int]:
        """Tables that are MANAGED_CACHING, of which this process has rows."""
        return [number for number, table in enumerate(self.tables) if isinstance(table.spec.placement, DeviceCache)]

    def _shard(self, number: int) -> TieredShard:
        shard = self.tables[number].shard
        assert isinstance(shard, TieredShard)
        return shard

    def prefetch(
        self,
        indices: Tensor,
        offsets: Tensor,
        forward_stream: Any = None,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Bring the rows of a batch to come into the caches; of tables without one, nothing is to be done.

        In collective mode every rank calls it, and the next pass must ask for the same ids.

        Args:
            indices, offsets, batch_size_per_feature_per_rank: As ``forward``.
            forward_stream: Refused: transfers follow the current stream.
        """
        if forward_stream is not None:
            raise ConfigError("forward_stream: transfers follow the current stream; leave it out")
        ends = self._ends(offsets, self._num_bags(offsets, batch_size_per_feature_per_rank))
        for number in self._cached:
            asked = [f for f, of in enumerate(self.feature_table_map) if of == number]
            self.tables[number].prefetch(torch.cat([indices[ends[f] : ends[f + 1]] for f in asked]))

    def reset_cache_states(self) -> None:
        """Empty the caches; rows that the host lacks are written first, so none is lost."""
        for number in self._cached:
            self._shard(number).drop_cache()

    def _note_cached(self) -> None:
        self._before = {number: _uvm_counts(self._shard(number)) for number in self._cached}

    def _ends(self, offsets: Tensor, num_bags: Sequence[int]) -> Tensor:
        """Where the ids of each feature begin, and their number, (F + 1,)."""
        return offsets.long().cpu()[[0, *accumulate(num_bags)]]

    def _count_cached(self, ends: Tensor) -> None:
        """Add what a forward pass asked of the caches, which see the distinct ids of bags."""
        missed, asked = torch.zeros_like(self._missed), ends.diff().tolist()
        for number, before in self._before.items():
            found = _uvm_counts(self._shard(number)) - before
            found[REQUESTED] = sum(asked[f] for f, of in enumerate(self.feature_table_map) if of == number)
            self._counts += found
            missed[number] = found[MISSES]
        self._missed += missed
        self._forwards_with_misses += bool(missed.any())

    def get_uvm_cache_stats(self, use_local_cache: bool = False) -> Tensor:
        """Counts of forward passes over all caches, (6,), int64: ``UVM_COUNTS`` in FBGEMM's order.

        A cache counts the calls of a table, and pages of rows where rows are shorter than 256 bytes. There are no
        conflicts here: a row may lie in any place of a cache.

        Args:
            use_local_cache: Refused: there is one set of counts.
        Raises:
            ConfigError: the module was made without ``gather_uvm_cache_stats=True``.
        """
        self._check_gathered(use_local_cache)
        return self._counts.clone()

    def _check_gathered(self, use_local_cache: bool = False) -> None:
        if not self._caching.gather_uvm_cache_stats or use_local_cache:
            raise ConfigError(
                f"use_local_cache={use_local_cache!r}, gather_uvm_cache_stats={self._caching.gather_uvm_cache_stats!r}:"
                " make the module with gather_uvm_cache_stats=True, and leave use_local_cache out"
            )

    def reset_uvm_cache_stats(self) -> None:
        """Let ``get_uvm_cache_stats`` begin at 0; the miss counters go on."""
        self._check_gathered()
        self._counts.zero_()

    def get_cache_miss_counter(self) -> Tensor:
        """(2,), int64: forward passes in which rows missed, and how many did.

        Raises:
            ConfigError: ``record_cache_metrics`` does not say ``record_cache_miss_counter``.
        """
        self._check_recorded("record_cache_miss_counter")
        return torch.tensor([self._forwards_with_misses, int(self._missed.sum())])

    def get_table_wise_cache_miss(self) -> Tensor:
        """The rows of each table that missed in forward passes, (T,), int64.

        Raises:
            ConfigError: ``record_cache_metrics`` does not say ``record_tablewise_cache_miss``.
        """
        self._check_recorded("record_tablewise_cache_miss")
        return self._missed.clone()

    def reset_cache_miss_counter(self) -> None:
        """Let the miss counters begin at 0; ``get_uvm_cache_stats`` goes on."""
        self._check_recorded("record_cache_miss_counter")
        self._missed.zero_()
        self._forwards_with_misses = 0

    def _check_recorded(self, name: str) -> None:
        if not getattr(self._caching.record_cache_metrics, name, False):
            raise ConfigError(f"no misses are counted; make the module with record_cache_metrics that says {name}")
