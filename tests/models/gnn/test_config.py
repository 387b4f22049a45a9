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


def test_blocks_are_shared_evenly() -> None:
    config = RGCNConfig(blocks=6)
    for num_trainers in (1, 2, 3, 6):
        config.check_trainers(num_trainers)
    RGCNConfig().check_trainers(3)
    message = "parallel.blocks = 6 are not shared evenly by 4 trainers; take 1, 2, 3, 6 trainers, or as many blocks as"
    with pytest.raises(ConfigError, match=message):
        config.check_trainers(4)


def test_wide_rows_take_no_narrow_products_and_no_rounding() -> None:
    with pytest.raises(ConfigError, match="precision = 'bfloat16' rounds what dtype = float64 keeps"):
        SAGEConfig(dtype="float64", precision="bfloat16")
    with pytest.raises(ConfigError, match="stochastic_rounding has no effect on rows of float64"):
        RGCNConfig(dtype="float64", stochastic_rounding=True)
    assert RGCNConfig(dtype="float64").number_bytes == (8, 8)
    assert RGCNConfig(dtype="bfloat16", state_dtype="bfloat16").number_bytes == (2, 2)
