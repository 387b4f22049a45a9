"""Books: owners, rows and ids, for every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import PartitionError, ShapeError
from graph_emb.graph.partition_book import (
    DGLPolicyBook,
    PartitionBook,
    RangeBook,
    RankRanges,
    as_book,
    check_ids,
    cut,
    range_of,
)

LAYOUTS = [[10], [4, 6], [0, 3, 0, 7, 0], [1] * 10, [5, 5, 0]]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_owner_row_and_id_are_inverse_for_every_id(sizes: list[int]) -> None:
    book = RangeBook.of_sizes(sizes)
    assert isinstance(book, PartitionBook)
    expected = [(part, row) for part, size in enumerate(sizes) for row in range(size)]
    ids = torch.arange(10)
    assert list(zip(book.owner(ids).tolist(), book.to_rows(ids).tolist(), strict=True)) == expected
    for part, size in enumerate(sizes):
        assert book.part_size(part) == size  # type: ignore[arg-type]
        mine = ids[book.owner(ids) == part]
        assert torch.equal(book.to_ids(part, torch.arange(size)), mine)  # type: ignore[arg-type]


def test_order_and_duplicates_are_kept() -> None:
    book = RangeBook([0, 4, 10])
    assert book.to_rows(torch.tensor([9, 0, 9, 4])).tolist() == [5, 0, 5, 0]


def test_pieces_leave_out_parts_without_ids() -> None:
    book = RangeBook([0, 2, 2, 7, 10])
    assert book.pieces(torch.tensor([0, 1, 2, 6])) == [(0, 0, 2), (2, 2, 4)]
    assert book.pieces(torch.tensor([9, 9])) == [(3, 0, 2)]
    assert book.pieces(torch.tensor([], dtype=torch.int64)) == []
    assert cut([2, 0, 3]) == [(0, 0, 2), (2, 2, 5)]


RANGES = RankRanges([0, 4, 4, 9], [2, 0, 1], 4)


@pytest.mark.parametrize("last", [None, 2, 1])
def test_a_route_groups_distinct_ids_by_the_rank_that_owner_names(last: int | None) -> None:
    asked = torch.tensor([8, 1, 8, 0, 5, 1, 8])
    route = RANGES.route(asked, last)
    order = [rank for rank in range(4) if rank != last] + ([] if last is None else [last])
    assert torch.equal(route.ids[route.place], asked)
    assert sorted(route.ids.tolist()) == asked.unique().tolist()
    assert RANGES.owner(route.ids).tolist() == [rank for rank in order for _ in range(route.counts[rank])]
    assert asked[torch.from_numpy(route.first)].tolist() == route.ids.tolist()


def test_the_owner_of_a_range_is_its_rank_by_torch_and_compiled() -> None:
    ids = torch.arange(9)
    assert RANGES.owner(ids).tolist() == [2] * 4 + [1] * 5
    assert RANGES.owner(ids.int()).tolist() == RANGES.owner(ids).tolist()
    assert [RANGES.ranks[range_of(RANGES.bounds, row)] for row in range(9)] == RANGES.owner(ids).tolist()
    assert [RANGES.owned(rank) for rank in range(4)] == [(4, 4), (4, 9), (0, 4), (0, 0)]


def test_even_gives_the_first_parts_the_longer_ranges() -> None:
    assert RangeBook.even(10, 4).bounds.tolist() == [0, 3, 6, 8, 10]
    assert RangeBook.even(2, 4).bounds.tolist() == [0, 1, 2, 2, 2]
    assert RangeBook.even(0).num_rows == 0


@pytest.mark.parametrize("bad", [[1, 4], [0], [], [0, 5, 3]], ids=str)
def test_bounds_that_are_no_ranges_are_refused(bad: list[int]) -> None:
    with pytest.raises(PartitionError):
        RangeBook(bad)


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_an_id_out_of_range_names_table_value_and_limit(bad: int) -> None:
    with pytest.raises(PartitionError, match=rf"table 'user': id {bad} is outside \[0, 10\)"):
        check_ids(torch.tensor([3, bad]), 10, "user")
    with pytest.raises(PartitionError):
        RangeBook.even(10, 2).owner(torch.tensor([bad]))


@pytest.mark.parametrize("bad", [torch.tensor([0.0]), torch.tensor([True]), "01", torch.tensor([1], dtype=torch.uint8)])
def test_ids_that_are_no_integers_are_refused(bad: Any) -> None:
    with pytest.raises(ShapeError, match=r"integers|int64"):
        check_ids(bad, 10, "user")


@pytest.mark.parametrize("bad", [np.array([5, 2**63], np.uint64), [2**63, 2**63], [2**64 - 1], 2**63])
def test_an_id_that_is_no_int64_is_refused_and_not_taken_for_another(bad: Any) -> None:
    """As int64 it was a negative id, of which a growing table made a row."""
    with pytest.raises(PartitionError, match=r"table 'node': id (9223372036854775808|18446744073709551615) is above"):
        check_ids(bad, None, "node")
    assert check_ids(np.array([2**63 - 1], np.uint64), None, "node").tolist() == [2**63 - 1]


def test_lists_of_several_lengths_are_no_ids() -> None:
    with pytest.raises(ShapeError, match="table 'node': ids are list; pass integers"):
        check_ids([[1], [1, 2]], None, "node")  # type: ignore[list-item]


def test_rows_and_parts_outside_a_part_are_refused() -> None:
    book = RangeBook([0, 4, 10])
    with pytest.raises(PartitionError, match=r"part 0: id 4|'part 0'"):
        book.to_ids(0, torch.tensor([4]))  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match="part 2"):
        book.part_size(2)  # type: ignore[arg-type]


def test_a_policy_argument_becomes_a_book_of_the_right_size() -> None:
    book = RangeBook.even(6, 2)
    assert as_book(book, 6, "t") is book
    assert as_book(None, 6, "t") == RangeBook.even(6)

    class Policy:
        pass

    policy: Any = Policy()
    policy.book = book
    assert as_book(policy, 6, "t") is book
    with pytest.raises(PartitionError, match="covers 6 ids but num_embeddings is 7"):
        as_book(book, 7, "t")
    with pytest.raises(PartitionError, match="part_policy is a str"):
        as_book("node", 6, "t")


@pytest.fixture
def dgl_book() -> Any:
    from graph_emb.compat import dgl as compat_dgl

    compat_dgl.load()
    from dgl.distributed.graph_partition_book import RangePartitionBook

    # Homogeneous ids by (part, type): part 0 owns users 0-3 and items 4-5, part 1 users 6-7 and items 8-11.
    nodes = {"user": torch.tensor([[0, 4], [6, 8]]), "item": torch.tensor([[4, 6], [8, 12]])}
    edges = {("user", "buys", "item"): torch.tensor([[0, 7], [7, 9]])}
    return RangePartitionBook(1, 2, nodes, edges, {"user": 0, "item": 1}, {("user", "buys", "item"): 0})


def test_dgl_node_policies_give_the_ranges_of_their_type(dgl_book: Any) -> None:
    from dgl.distributed.graph_partition_book import NodePartitionPolicy

    users = as_book(NodePartitionPolicy(dgl_book, "user"), 6, "t")
    items = as_book(NodePartitionPolicy(dgl_book, "item"), 6, "t")
    assert users == RangeBook([0, 4, 6])
    assert items == RangeBook([0, 2, 6])


def test_dgl_edge_policies_give_the_ranges_of_their_type(dgl_book: Any) -> None:
    from dgl.distributed.graph_partition_book import EdgePartitionPolicy

    policy = EdgePartitionPolicy(dgl_book, ("user", "buys", "item"))
    book = as_book(policy, 9, "t")
    assert isinstance(book, DGLPolicyBook)
    assert book.bounds.tolist() == [0, 7, 9]
    ids = torch.arange(9)
    assert torch.equal(book.owner(ids), policy.to_partid(ids))
    assert torch.equal(book.to_rows(ids[7:]), policy.to_local(ids[7:]))
