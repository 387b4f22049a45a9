from __future__ import annotations

import pytest

from graph_emb.core.errors import ConfigError
from partition.adjacency import symmetric
from partition.methods import assign
from tests.partition.methods.graphs import planted, skewed

both = pytest.mark.parametrize("name", ["ldg", "fennel"])


@both
def test_a_stream_cuts_less_than_random_and_restreaming_less_again(name: str) -> None:
    graph, _ = planted(num_blocks=8, size=100)
    adjacency = symmetric(graph)
    cuts = [adjacency.cut(assign(graph, 4, name, passes=passes, balance=["nodes"]).homogeneous()) for passes in (1, 10)]
    random = adjacency.cut(assign(graph, 4, "random").homogeneous())
    assert cuts[1] < cuts[0] < 0.9 * random


@both
def test_every_limit_holds_after_a_stream(name: str) -> None:
    made = assign(skewed(), 4, name, balance=["nodes", "type:user", "train"])
    assert max(made.balance[key] for key in ("nodes", "type:user", "train")) <= 1.07


@both
def test_the_natural_order_needs_no_seed(name: str) -> None:
    graph, _ = planted()
    made = {assign(graph, 4, name, order="natural", seed=seed).homogeneous().tobytes() for seed in (1, 2)}
    assert len(made) == 1


@both
def test_bad_options_are_refused(name: str) -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match="passes is 0"):
        assign(graph, 4, name, passes=0)
    with pytest.raises(ConfigError, match="unknown order 'reverse'; known: natural, random"):
        assign(graph, 4, name, order="reverse")
