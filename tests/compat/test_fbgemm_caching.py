"""FBGEMM's words about caches are real caches here, and change no number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graph_emb.compat.fbgemm import (
    CacheAlgorithm,
    PoolingMode,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from graph_emb.core.errors import ConfigError
from tests.compat.fbgemm_loops import ROWS, batch, module
from tests.compat.test_fbgemm import CASES

pytestmark = pytest.mark.usefixtures("fresh_mode")

CACHED = ("MANAGED_CACHING",) * 3
WIDE = (64, 96, 72)  # rows of 256 bytes and more: a page each


def train(tbe: SplitTableBatchedEmbeddingBagsCodegen, steps: int = 6, ahead: bool = False) -> list[torch.Tensor]:
    """The outputs of some steps, then all rows and state."""
    found = []
    for step in range(steps):
        ids, offsets, factors = batch(step)
        if ahead:
            tbe.prefetch(ids, offsets)
        out = tbe(ids, offsets, factors)
        if ahead and step + 1 < steps:
            tbe.prefetch(*batch(step + 1)[:2])  # between forward and backward
        found.append(out.detach().clone())
        (out * torch.arange(out.numel()).view_as(out).float().sin()).sum().backward()
    rows = [weight.clone() for weight in tbe.split_embedding_weights()]
    return [*found, *rows, *(one.clone() for of in tbe.split_optimizer_states() for one in of)]


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("algorithm", list(CacheAlgorithm))
def test_a_cached_table_gives_the_bits_of_one_in_memory(name: str, algorithm: CacheAlgorithm) -> None:
    optimizer, numbers, _ = CASES[name]
    options: dict[str, Any] = {"optimizer": optimizer, **numbers, "widths": WIDE}
    expected = train(module(**options))
    tbe = module(**options, places=CACHED, cache_algorithm=algorithm, cache_load_factor=0.3, prefetch_pipeline=True)
    found = train(tbe, ahead=True)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert all(table.cache_stats().evictions > 0 for table in tbe.tables)


def test_locations_of_one_module_may_differ() -> None:
    options: dict[str, Any] = {"weights_precision": SparseType.FP16, "pooling_mode": PoolingMode.NONE}
    decay: dict[str, Any] = {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL}
    found = train(module(**options, **decay, places=("HOST", "MANAGED_CACHING", "MANAGED")))
    assert all(map(torch.equal, found, train(module(**options, **decay))))


@pytest.mark.parametrize(
    ("options", "pages"),
    [({"cache_load_factor": 0.5}, [4, 3, 5]), ({"cache_load_factor": 0.01}, [1, 1, 1]), ({"cache_sets": 1}, [7, 5, 9])],
)
def test_a_cache_holds_the_share_of_rows_that_it_is_told(options: dict[str, Any], pages: list[int]) -> None:
    tbe = module(widths=WIDE, places=CACHED, optimizer=CASES["row_adam"][0], **options)
    assert [table.shard._pages.frames.capacity for table in tbe.tables] == pages


def test_rows_that_are_filled_in_place_are_met_by_the_next_pass() -> None:
    tbe = module(widths=WIDE, places=CACHED, cache_load_factor=1.0)
    ids, offsets, _ = batch(5)
    tbe(ids, offsets)  # the cache is warm
    for weight in tbe.split_embedding_weights():
        weight.fill_(2.0)
    sizes = offsets.diff().view(4, 3).T
    assert torch.equal(tbe(ids, offsets).detach()[:, :64], 2.0 * sizes[:, :1].expand(3, 64).float())


def test_state_dicts_load_into_tables_with_and_without_a_cache() -> None:
    kind: dict[str, Any] = {"optimizer": CASES["adam"][0], "widths": WIDE}
    one, other = module(**kind), module(**kind, places=CACHED, cache_load_factor=0.2)
    train(one)
    other.load_state_dict(one.state_dict())
    assert all(map(torch.equal, train(other), train(one)))
    third = module(**kind)
    third.load_state_dict(other.state_dict())
    assert all(map(torch.equal, third.split_embedding_weights(), other.split_embedding_weights()))


def test_flush_writes_what_the_host_lacks_once_and_a_reset_empties_the_cache() -> None:
    tbe = module(widths=WIDE, places=CACHED, cache_load_factor=1.0)
    ids, offsets, _ = batch(5)
    tbe(ids, offsets).sum().backward()
    written = [table.cache_stats().bytes_written for table in tbe.tables]
    tbe.flush()
    flushed = [table.cache_stats().bytes_written for table in tbe.tables]
    assert all(after > before for before, after in zip(written, flushed, strict=True))
    tbe.flush()
    assert [table.cache_stats().bytes_written for table in tbe.tables] == flushed
    tbe.reset_cache_states()
    assert [table.shard._pages.frames.resident for table in tbe.tables] == [0, 0, 0]


def test_counts_are_those_of_forward_passes() -> None:
    metrics = SimpleNamespace(record_cache_miss_counter=True, record_tablewise_cache_miss=True)
    tbe = module(
        widths=WIDE, places=CACHED, cache_load_factor=1.0, gather_uvm_cache_stats=True, record_cache_metrics=metrics
    )
    tbe.reset_cache_states()
    ids = torch.tensor([0, 0, 6, 4, 8, 1, 4])  # of tables 0, 0, 0, 1, 2, 2, 1
    offsets = torch.tensor([0, 3, 4, 6, 7])
    tbe(ids, offsets).sum().backward()
    assert tbe.get_uvm_cache_stats().tolist() == [3, 7, 5, 5, 0, 0]
    tbe(ids, offsets).sum().backward()
    assert tbe.get_uvm_cache_stats().tolist() == [6, 14, 10, 5, 0, 0]
    assert tbe.get_cache_miss_counter().tolist() == [1, 5]
    assert tbe.get_table_wise_cache_miss().tolist() == [2, 1, 2]
    tbe.reset_cache_miss_counter()
    assert tbe.get_cache_miss_counter().tolist() == [0, 0]
    assert tbe.get_table_wise_cache_miss().tolist() == [0, 0, 0]
    assert tbe.get_uvm_cache_stats().tolist() == [6, 14, 10, 5, 0, 0]  # each reset is of its own counts
    tbe.reset_uvm_cache_stats()
    assert tbe.get_uvm_cache_stats().tolist() == [0] * 6


def test_a_prefetched_batch_misses_nothing() -> None:
    tbe = module(widths=WIDE, places=CACHED, cache_load_factor=1.0, gather_uvm_cache_stats=True)
    ids, offsets = torch.tensor([0, 0, 6, 4, 8, 1, 4]), torch.tensor([0, 3, 4, 6, 7])
    tbe.reset_cache_states()
    tbe.prefetch(ids, offsets)
    tbe(ids, offsets)
    assert tbe.get_uvm_cache_stats().tolist() == [3, 7, 5, 0, 0, 0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "factor": ({"cache_load_factor": 0.0}, "cache_load_factor=0.0 must be above 0"),
    "sets": ({"cache_sets": -1}, "cache_sets=-1 at least 0"),
    "precision": ({"cache_precision": SparseType.FP16}, "a cache holds rows as they are"),
    "algorithm": ({"cache_algorithm": "FIFO"}, "cache_algorithm=FIFO is not offered here; offered: LRU, LFU"),
    "reserved": ({"cache_reserved_memory": 1.0}, "cache_reserved_memory=1.0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_cache_that_makes_no_sense_is_refused(what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        module(places=CACHED, **options)
    assert message in str(caught.value)


def test_counts_that_were_not_asked_for_and_streams_are_refused() -> None:
    tbe = module(places=CACHED)
    ids, offsets, _ = batch(5)
    for call in (tbe.get_uvm_cache_stats, tbe.get_cache_miss_counter, tbe.get_table_wise_cache_miss):
        with pytest.raises(ConfigError, match="make the module with"):
            call()
    with pytest.raises(ConfigError, match="forward_stream"):
        tbe.prefetch(ids, offsets, object())


def test_rows_of_all_tables_are_there_before_any_pass() -> None:
    assert [tuple(weight.shape) for weight in module(places=CACHED).split_embedding_weights()] == [
        (rows, width) for rows, width in zip(ROWS, (4, 6, 3), strict=True)
    ]
