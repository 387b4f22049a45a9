"""Every mode counts what each table was asked for and sent, by hand, and the sum of the tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ModeError
from graph_emb.transport.traffic import Traffic
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

BOOK = ge.RangeBook([0, 4, 8])
ROW = 2 * 4  # bytes


def count() -> tuple[Traffic, Traffic, Traffic]:
    """Two pulls of one table, of which one is trained, and one of another; the sum keeps tables that are gone."""
    one, two = ge.DistEmbedding(8, 2, "one", part_policy=BOOK), ge.DistEmbedding(8, 2, "two", part_policy=BOOK)
    opt = ge.SparseSGD([one, two], lr=1.0)
    one(torch.tensor([0, 7, 7, 1, 0])).sum().backward()
    two(torch.tensor([[6, 6], [6, 0]]))
    opt.step()
    with torch.no_grad():
        one(torch.tensor([], dtype=torch.int64))
        one(torch.tensor([3]))
    transport = one.transport
    transport.flush()
    transport.barrier()
    of_one, of_two = one.traffic, two.traffic
    del two, opt
    return of_one, of_two, transport.traffic


def expected(one_away: int, two_away: int, rows_sent: bool) -> tuple[Traffic, Traffic, Traffic]:
    """With ids of other processes; ``rows_sent``: whether this process sends as many rows as it asks for."""
    served = (8 + ROW) if rows_sent else 8
    one = Traffic(6, 4, 4 - one_away, one_away * served + one_away * (8 + ROW), 1)  # ids and rows, then gradients
    two = Traffic(4, 2, 2 - two_away, two_away * served, 0)
    return one, two, Traffic(10, 6, 6 - one_away - two_away, one.bytes_sent + two.bytes_sent, 1)


@pytest.mark.parametrize("mode", ["local", "kvstore"])
def test_in_one_process_nothing_is_sent(mode: str) -> None:
    ge.init(mode=mode)
    assert count() == expected(0, 0, False)
    with pytest.raises(ModeError, match="no table 'one'"):
        ge.DistEmbedding(1, 1, "x").transport.traffic_of("one")
    emb = ge.DistEmbedding(8, 2, "one")  # a later table of the name begins at 0
    assert emb.traffic == Traffic()
    emb.traffic.asked += 1
    assert emb.traffic == Traffic()


def on_a_rank() -> tuple[Traffic, Traffic, Traffic]:
    ge.init(mode="collective", timeout=60)
    try:
        found = count()
        return found
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_count_ids_rows_and_gradients_by_table(ranks: Ranks) -> None:
    """Rank 0 owns ids 0 to 3: of table one's ids it lacks 7, of table two's 6; rank 1 lacks 0, 1, 3, and 0."""
    first, second = ranks.run(on_a_rank, 2)
    of_one = Traffic(6, 4, 3, 8 + 3 * ROW + (8 + ROW), 1)  # it serves 0, 1 and 3, and sends the gradient of 7
    of_two = Traffic(4, 2, 1, 8 + ROW, 0)
    assert first == (of_one, of_two, Traffic(10, 6, 4, of_one.bytes_sent + of_two.bytes_sent, 1))
    of_one = Traffic(6, 4, 1, 3 * 8 + ROW + 2 * (8 + ROW), 1)
    assert second == (of_one, of_two, Traffic(10, 6, 2, of_one.bytes_sent + of_two.bytes_sent, 1))


def as_trainer(transport: Any) -> tuple[Traffic, Traffic, Traffic]:
    return count()


@pytest.mark.dist
def test_trainers_count_what_they_send_to_servers() -> None:
    """Rows of the trainer's own machine are local, whichever of its servers owns them."""
    assert Cluster(1, 1, 2).run(as_trainer) == [expected(0, 0, False)]
    found = Cluster(1, 2, 1).run(as_trainer)
    assert found == [expected(1, 1, False)]
