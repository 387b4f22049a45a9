"""Recipes of graph networks refuse values outside their limits."""

from __future__ import annotations

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim", 0), ("epochs", 0), ("batch_size", 0), ("patience", 0), ("num_bases", 0), ("lr", 0.0),
        ("dense_lr", -1.0), ("clip_norm", float("inf")), ("dropout", 1.0), ("weight_decay", -0.1), ("rule", "lion"),
        ("init", "ones"), ("fanouts", (5,)), ("eval_every", 51),
    ],
)  # fmt: skip
def test_values_outside_their_limits_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        RGCNConfig().replace(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("predictor_layers", 1), ("precision", "float16")])
def test_values_of_sage_outside_their_limits_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        SAGEConfig().replace(**{field: value})  # type: ignore[arg-type]
