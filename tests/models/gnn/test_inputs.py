"""Input rows: tables where there are no features, and the norm of their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.inputs import InputRows


def test_types_without_features_get_a_table_and_others_give_their_features() -> None:
    features = np.arange(6.0).reshape(3, 2)
    inputs = InputRows({"a": 2, "b": 3}, RGCNConfig(dim=4), features={"b": features}, prefix="x-")
    assert list(inputs.tables) == ["a"]
    assert inputs.tables["a"].name == "x-a"
    assert inputs.widths == {"a": 4, "b": 2}
    assert inputs.num_parameters == 8
    rows = inputs.gather({"a": torch.tensor([1]), "b": torch.tensor([2, 0])})
    assert rows["b"].tolist() == [[4, 5], [0, 1]]
    assert torch.equal(rows["a"].detach(), inputs.tables["a"].weight[1:2])


def test_first_rows_depend_on_the_seed_and_the_type() -> None:
    def rows(seed: int, ntype: str) -> torch.Tensor:
        return InputRows({"a": 2, "b": 2}, RGCNConfig(), seed=seed).tables[ntype].weight[:]

    assert torch.equal(rows(1, "a"), rows(1, "a"))
    assert not torch.equal(rows(1, "a"), rows(1, "b"))
    assert not torch.equal(rows(1, "a"), rows(2, "a"))


@pytest.mark.parametrize(("clip_norm", "expected"), [(None, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_a_gradient_above_the_norm_is_scaled_down_to_it(clip_norm: float | None, expected: float) -> None:
    """SGD of rate 1 moves the row by its gradient: (3, 4), of norm 5."""
    inputs = InputRows({"a": 2}, RGCNConfig(dim=2, rule="sgd", lr=1.0))
    before = inputs.tables["a"].weight[1]
    rows = inputs.gather({"a": torch.tensor([1])})["a"]
    (rows * torch.tensor([3.0, 4.0])).sum().backward()
    inputs.step(clip_norm)
    moved = before - inputs.tables["a"].weight[1]
    torch.testing.assert_close(moved, torch.tensor([0.6, 0.8]) * expected)
