"""When a training evaluates, looks at the test part and stops."""

from __future__ import annotations

from typing import Any

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.models.epochs import Evaluation, run_epochs
from graph_emb.models.gnn.config import RGCNConfig


def history(values: list[float], config: RGCNConfig, has_valid: bool = True) -> list[tuple[int, bool]]:
    """Epochs of the evaluations for given validation values, and whether the test part was looked at."""
    left = iter(values)
    found, *_ = run_epochs(
        config, lambda number: 0.0, lambda part: {"m": next(left) if part == "valid" else 0.5}, has_valid=has_valid
    )
    return [(e.epoch, e.test is not None) for e in found]


def test_the_test_part_is_looked_at_only_where_the_validation_value_is_the_best_so_far() -> None:
    values = [0.1, 0.3, 0.3, 0.2, 0.4]
    expected = [(2, True), (4, True), (6, False), (8, False), (10, True)]
    assert history(values, RGCNConfig(epochs=11, eval_every=2)) == expected


def test_evaluations_without_a_better_value_end_the_training() -> None:
    config = RGCNConfig(epochs=9, patience=2)
    assert [epoch for epoch, _ in history([0.1, 0.3, 0.3, 0.2], config)] == [1, 2, 3, 4]


def test_without_validation_only_the_last_epoch_is_judged() -> None:
    assert history([], RGCNConfig(epochs=5), has_valid=False) == [(5, True)]


def test_ctrl_c_raises_unless_somebody_wants_to_know() -> None:
    def stopped(number: int) -> float:
        if number == 3:
            raise KeyboardInterrupt
        return 0.0

    def judge(part: str) -> dict[str, float]:
        return {"m": 0.5}

    config, told = RGCNConfig(epochs=9), []
    with pytest.raises(KeyboardInterrupt):
        run_epochs(config, stopped, judge, has_valid=True)
    found, *_ = run_epochs(config, stopped, judge, has_valid=True, on_interrupt=lambda: told.append("now"))
    assert [e.epoch for e in found] == [1, 2]
    assert told == ["now"]


def test_an_evaluation_reads_as_json() -> None:
    found = Evaluation(3, 0.5, {"m": 0.25}, None)
    assert found.as_dict() == {"epoch": 3, "loss": 0.5, "valid": {"m": 0.25}, "test": None}


def test_a_plateau_follows_validations_and_goes_on_where_a_checkpoint_left_it() -> None:
    config, values = RGCNConfig(epochs=6, lr_decay="plateau", lr_patience=2), [0.3, 0.2, 0.3, 0.4, 0.1, 0.2]
    scales: list[float] = []
    positions = []

    def train(begun: dict[str, Any] | None = None) -> None:
        plateau, at = config.new_plateau(), begun["epoch"] if begun else 0

        def epoch(number: int) -> float:
            scales.append(plateau.scale)
            return 0.0

        left = iter(values[at:])
        run_epochs(
            config, epoch, lambda part: {"m": next(left) if part == "valid" else 0.0}, begun=begun, plateau=plateau,
            after_epoch=lambda number, position: positions.append(position()),
        )  # fmt: skip
        scales.append(plateau.scale)

    train()
    assert scales == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    scales.clear()
    train(positions[3])
    assert scales == [0.5, 0.5, 0.25]
    with pytest.raises(ConfigError, match="lr_decay='plateau' needs a validation part"):
        run_epochs(config, lambda number: 0.0, lambda part: {}, has_valid=False, plateau=config.new_plateau())
