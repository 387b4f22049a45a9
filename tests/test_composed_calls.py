"""Ranks that give composed tables other ids or options: each error names what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from tests.ranks import Ranks
from tests.test_composed import LEVELS, N, made

pytestmark = pytest.mark.usefixtures("fresh_mode")

CALLS: dict[str, Any] = {
    "pull": lambda emb, ids: emb(ids),
    "bag": lambda emb, ids: emb.bag(ids, [0]),
    "prefetch": lambda emb, ids: emb.prefetch(ids),
    "freeze": lambda emb, ids: emb.freeze(ids),
    "new nodes": lambda emb, ids: emb.rows_of_new([30], LEVELS[:1] + 100 * (np.array(ids) >= N)),
}


def out_of_step(call: str) -> list[str]:
    """A rank refuses its ids, and goes on to the next call."""
    ge.init("collective")
    said = []
    try:
        emb = made()
        for ids in ([N * emb.transport.rank], [1]):
            try:
                (CALLS[call] if not said else CALLS["pull"])(emb, ids)
                said.append("")
            except ge.GraphEmbError as error:
                said.append(str(error))
    finally:
        ge.shutdown()
    return said


@pytest.mark.dist
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_refuses_its_ids_has_skipped_the_call(ranks: Ranks, call: str) -> None:
    """The ids were looked at before the call began to count: the next call of the one took the place of this one, and
    the ranks went on with steps that did not belong together."""
    first, second = ranks.run(out_of_step, 2, call, timeout=90)
    assert "is outside" in second[0]
    assert "rank 1 skipped" in first[0]
    assert "rank 1 skipped" in second[1]


def made_apart(what: str, first: Any, second: Any) -> str:
    ge.init("collective")
    try:
        rank = ge.DistEmbedding(1, 1).transport.rank
        made(**{what: second if rank else first})
        return ""
    except ge.GraphEmbError as error:
        return str(error)
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize(("what", "first", "second"), [("seed", 3, 4), ("own_rows", [2, 5], [2, 6])])
def test_ranks_that_would_make_other_rows_of_a_node_are_told(ranks: Ranks, what: str, first: Any, second: Any) -> None:
    """Names, sizes and levels were the same: each rank composed, and trained, its own sums of the shared rows."""
    said = ranks.run(made_apart, 2, what, first, second, timeout=90)
    assert said == [f"table 'node': rank 1 gives another {what} than rank 0; give all ranks the same"] * 2
    assert ranks.run(made_apart, 2, what, first, first, timeout=90) == ["", ""]
