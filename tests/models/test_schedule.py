from __future__ import annotations

import pytest

from graph_emb.models.schedule import Plateau, share_of_rate, share_of_step


@pytest.mark.parametrize(
    ("decay", "warmup", "done", "share"),
    [
        ("none", 0.0, 0.7, 1.0),
        ("plateau", 0.0, 0.7, 1.0),
        ("linear", 0.0, 0.0, 1.0),
        ("linear", 0.0, 0.75, 0.25),
        ("linear", 0.0, 1.0, 0.0),
        ("cosine", 0.0, 0.0, 1.0),
        ("cosine", 0.0, 0.5, 0.5),
        ("cosine", 0.0, 1 / 3, 0.75),
        ("cosine", 0.0, 1.0, 0.0),
        ("linear", 0.2, 0.05, 0.25),
        ("linear", 0.2, 0.2, 1.0),
        ("linear", 0.2, 0.6, 0.5),
        ("cosine", 0.5, 0.75, 0.5),
        ("none", 0.5, 0.25, 0.5),
    ],
)
def test_shares_by_hand(decay: str, warmup: float, done: float, share: float) -> None:
    assert share_of_rate(decay, warmup, done) == pytest.approx(share)


@pytest.mark.parametrize(
    ("warmup", "step", "total", "share"),
    [(0.0, 0, 4, 1.0), (0.5, 0, 4, 0.5), (0.5, 1, 4, 1.0), (0.5, 2, 4, 1.0), (0.5, 3, 4, 0.5), (0.5, 0, 1, 1.0)],
)
def test_a_step_of_the_warm_up_has_the_rate_of_its_end(warmup: float, step: int, total: int, share: float) -> None:
    assert share_of_step("linear", warmup, step, total) == pytest.approx(share)


def test_a_plateau_takes_a_step_for_each_patience_without_a_better_value() -> None:
    plateau, scales = Plateau(0.5, 2), []
    for since in (0, 1, 2, 3, 4, 0, 1):
        if plateau.due(since):
            plateau.reduce()
        scales.append(plateau.scale)
    assert scales == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25]
