"""NonEdges draws uniformly from the pairs that no edge joins."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from graph_emb import ConfigError, DataError, PartitionError, ShapeError
from graph_emb.sampling.non_edges import NonEdges

PATH = torch.tensor([[0, 1], [2, 1], [1, 2], [3, 3]])  # 0 - 1 - 2, 3 alone with a loop


def test_every_ordered_non_edge_is_equally_likely_and_nothing_else_is_drawn() -> None:
    pairs = NonEdges(PATH, 4).sample(8000, torch.Generator().manual_seed(0))
    assert pairs.shape == (8000, 2)
    counts = Counter(map(tuple, pairs.tolist()))
    expected = {(0, 2), (2, 0), (0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (3, 2)}
    assert set(counts) == expected
    assert all(abs(count - 1000) < 150 for count in counts.values())  # 5 sigma


def test_a_nearly_complete_graph_yields_its_only_non_edge() -> None:
    edges = torch.combinations(torch.arange(30), 2)
    missing = (edges == torch.tensor([4, 17])).all(1)
    pairs = NonEdges(edges[~missing], 30).sample(100, torch.Generator().manual_seed(0))
    assert {tuple(sorted(pair)) for pair in pairs.tolist()} == {(4, 17)}


def test_the_same_generator_state_draws_the_same_pairs() -> None:
    draws = [NonEdges(PATH, 4).sample(50, torch.Generator().manual_seed(s)) for s in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_no_edges_and_no_draws_are_fine() -> None:
    negatives = NonEdges(torch.empty((0, 2), dtype=torch.int64), 2)
    assert set(map(tuple, negatives.sample(20, torch.Generator().manual_seed(0)).tolist())) == {(0, 1), (1, 0)}
    assert negatives.sample(0, torch.Generator()).shape == (0, 2)


@pytest.mark.parametrize(
    ("edges", "num_nodes", "error", "text"),
    [
        (torch.tensor([[0, 1]]), 2, DataError, "all 2 ordered pairs of 2 nodes are edges"),
        (torch.tensor([[0, 4]]), 4, PartitionError, r"node 4, outside \[0, 4\)"),
        (torch.tensor([[0, -1]]), 4, PartitionError, r"node -1, outside"),
        (torch.tensor([0, 1]), 4, ShapeError, "shape \\(2,\\)"),
        (torch.tensor([[0.0, 1.0]]), 4, ShapeError, "float32"),
        (torch.empty((0, 2), dtype=torch.int64), 1, ConfigError, "at least 2"),
    ],
)
def test_bad_input_is_named(edges: torch.Tensor, num_nodes: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        NonEdges(edges, num_nodes)
