"""Owners of any id: by hash, and of the ids that a partition knows by its parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.hash_book import ExtendedBook, HashPolicy, growing_book, ids_of, key_of
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.initializers import Zeros
from graph_emb.table.spec import TableSpec
from graph_emb.transport.lockstep import identity, layout, layout_of_keys
from partition.partitioned import PartPolicy

ORDER = np.array([5, 0, 3, 1, 2, 4])  # partition-order ids 0 and 1 are in part 0, 2 to 5 in part 2
POLICY = PartPolicy("node~_N", RangeBook([0, 2, 2, 6]), ArrayIds(ORDER, 6))
PART_OF = {5: 0, 0: 0, 3: 2, 1: 2, 2: 2, 4: 2}
STRANGE = torch.tensor([-1, 6, 7, -(2**63), 2**63 - 1, 10**12])


def test_known_ids_belong_to_their_part_and_others_to_that_of_their_hash() -> None:
    book = growing_book(POLICY, "t")
    assert book.owner(torch.arange(6)).tolist() == [PART_OF[k] for k in range(6)]
    assert torch.equal(book.owner(STRANGE), HashPolicy(3).owner(STRANGE))
    without_map = growing_book(PartPolicy("node~_N", RangeBook([0, 2, 6])), "t")
    assert without_map.owner(torch.arange(6)).tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_rank_stores_the_known_ids_that_it_stores_of_a_fixed_table(world_size: int) -> None:
    policy = PartPolicy("node~_N", RangeBook([0, 2, 6]), ArrayIds(ORDER, 6))
    ranges = layout_of_keys(growing_book(policy, "t"), world_size, None, "t")
    fixed = layout(policy.book, world_size, None, "t")
    keys = key_of(torch.from_numpy(ORDER))
    assert torch.equal(ranges.owner(keys), fixed.owner(torch.arange(6)))
    others = layout_of_keys(HashPolicy(2), world_size, None, "t")
    assert torch.equal(ranges.owner(key_of(STRANGE)), others.owner(key_of(STRANGE)))


@pytest.mark.parametrize("last", [None, 0, 2])
def test_a_route_groups_keys_by_the_rank_that_owner_names(last: int | None) -> None:
    ranges = layout_of_keys(growing_book(POLICY, "t"), 3, None, "t")
    asked = key_of(torch.cat([torch.arange(6), STRANGE, torch.arange(6), STRANGE[:2]]))
    route = ranges.route(asked, last)
    assert torch.equal(route.ids[route.place], asked)
    assert sorted(route.ids.tolist()) == asked.unique().tolist()
    order = [rank for rank in range(3) if rank != last] + ([] if last is None else [last])
    expected = [rank for rank in order for _ in range(route.counts[rank])]
    assert ranges.owner(route.ids).tolist() == expected


def test_tables_of_two_partitions_are_told_apart() -> None:
    """Ranks that looked a key up by another partition would read first values at a rank that is not the owner."""
    spec = TableSpec("t", 9, 2, HashPolicy(3), Zeros())
    other = PartPolicy("node~_N", POLICY.book, ArrayIds(ORDER[::-1].copy(), 6))
    numbers = {
        identity(spec, 1, layout_of_keys(growing_book(policy, "t"), 3, None, "t"))
        for policy in (POLICY, other, HashPolicy(3), POLICY)
    }
    assert len(numbers) == 3


def test_books_are_equal_where_parts_and_ids_are() -> None:
    again = PartPolicy("node~_N", RangeBook([0, 2, 2, 6]), ArrayIds(ORDER.copy(), 6))
    other = PartPolicy("node~_N", RangeBook([0, 2, 2, 6]), ArrayIds(ORDER[::-1].copy(), 6))
    assert growing_book(POLICY, "t") == growing_book(again, "t")
    assert growing_book(POLICY, "t") != growing_book(other, "t")
    assert growing_book(POLICY, "t") != HashPolicy(3)
    assert isinstance(growing_book(POLICY, "t"), ExtendedBook)


def test_keys_give_their_ids_back() -> None:
    ids = torch.cat([torch.arange(-5, 6), STRANGE])
    assert ids_of(key_of(ids).numpy()).tolist() == ids.tolist()


@pytest.mark.parametrize("policy", [RangeBook([0, 6]), 3, "node~_N", object()])
def test_a_policy_of_another_kind_is_named(policy: object) -> None:
    with pytest.raises(
        ConfigError, match=r"table 't' grows: part_policy=.* must be None, ge.HashPolicy\(num_parts\) or"
    ):
        growing_book(policy, "t")


def test_original_ids_that_are_no_positions_are_named() -> None:
    policy = PartPolicy("node~_N", RangeBook([0, 2, 3]), ArrayIds(np.array([0, 7, 1]), 3))
    with pytest.raises(PartitionError, match="the partition has 3 ids and lacks id 2"):
        layout_of_keys(growing_book(policy, "t"), 2, None, "t")
