"""Calls of composed tables that one rank refuses are skipped on it, and named on the others."""

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
