from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate import ranks as module
from graph_emb.evaluate.ranks import Ranks, TiedValue, TiesWarning, rank, warn_of_ties


def test_ties_move_the_rank_by_the_three_readings() -> None:
    # Above 2.0: one (3.0); equal: two; below: one.
    found = rank(torch.tensor([2.0]), torch.tensor([3.0, 2.0, 2.0, 1.0]))
    assert found.optimistic.tolist() == [2]
    assert found.pessimistic.tolist() == [4]
    assert found.realistic.tolist() == [3.0]
    assert found.num_negatives == 4


def test_metrics_by_hand() -> None:
    # Ranks (optimistic, pessimistic): 5.0 -> (1, 1), 2.0 -> (2, 4), 0.0 -> (5, 5).
    found = rank(torch.tensor([5.0, 2.0, 0.0]), torch.tensor([3.0, 2.0, 2.0, 1.0]))
    assert found.hits(1) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found.hits(2) == pytest.approx((1 / 3, 2 / 3, 1 / 3))
    assert found.hits(3) == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert found.hits(4) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    thirds = [(1 + r + 1 / 5) / 3 for r in (1 / 3, 1 / 2, 1 / 4)]
    assert found.mrr() == pytest.approx(tuple(thirds))
    # Right pairs of 12: 4 + (1, with two ties) + 0.
    assert found.auc() == pytest.approx(((4 + 1 + 1) / 12, (4 + 3) / 12, (4 + 1) / 12))


def test_shared_negatives_equal_the_same_negatives_in_every_row() -> None:
    scores = torch.randint(0, 5, (20,), generator=torch.Generator().manual_seed(0)).float()
    positive, negative = scores[:7], scores[7:]
    shared, own = rank(positive, negative), rank(positive, negative.expand(7, -1))
    assert torch.equal(shared.optimistic, own.optimistic)
    assert torch.equal(shared.pessimistic, own.pessimistic)


def test_chunks_change_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    positive = torch.randint(0, 9, (11,), generator=generator).float()
    negative = torch.randint(0, 9, (11, 4), generator=generator).float()
    whole = rank(positive, negative)
    monkeypatch.setattr(module, "COMPARED_AT_ONCE", 9)  # two rows at a time
    pieces = rank(positive, negative)
    assert torch.equal(whole.optimistic, pieces.optimistic)
    assert torch.equal(whole.pessimistic, pieces.pessimistic)


def test_each_row_has_its_own_negatives() -> None:
    found = rank(torch.tensor([1.0, 1.0]), torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    assert found.realistic.tolist() == [1.0, 3.0]


def test_numpy_is_ranked_as_torch() -> None:
    found = rank(np.float32([2.0]), np.float32([3.0, 1.0]))
    assert found.realistic.tolist() == [2.0]


def test_a_collapsed_model_is_only_perfect_for_an_optimist() -> None:
    found = rank(torch.zeros(3), torch.zeros(99))
    assert found.hits(10) == (0.0, 1.0, 0.0)
    assert found.mrr() == pytest.approx((1 / 50.5, 1.0, 1 / 100))
    assert found.auc() == pytest.approx((0.5, 1.0, 0.0))


def test_a_gap_above_one_point_warns_and_one_below_does_not() -> None:
    with pytest.warns(TiesWarning, match=r"mrr: ties decide 2\.0 points .*optimistic 0\.5200, pessimistic 0\.5000"):
        warn_of_ties("mrr", TiedValue(0.51, 0.52, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_ties("mrr", TiedValue(0.5, 0.505, 0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_because_it_makes_ties(dtype: torch.dtype) -> None:
    with pytest.raises(ShapeError, match=r"negative scores are torch\..*float16, which rounds distinct logits to ties"):
        rank(torch.ones(2), torch.ones(2, dtype=dtype))


@pytest.mark.parametrize(
    ("positive", "negative", "error", "text"),
    [
        (
            torch.ones(2),
            torch.ones(2).double(),
            ShapeError,
            "positive scores are torch.float32, negative torch.float64",
        ),
        (torch.ones(2), torch.ones(3, 4), ShapeError, "3 rows of negative scores for 2 positives"),
        (torch.ones(2, 1), torch.ones(3), ShapeError, r"positive scores have shape \(2, 1\).* of 1 dimensions"),
        (torch.ones(2), torch.ones(1, 1, 1), ShapeError, "of 1 or 2 dimensions"),
        (torch.ones(2).long(), torch.ones(3), ShapeError, "dtype torch.int64"),
        (torch.ones(0), torch.ones(3), DataError, "no positive scores"),
        (torch.ones(2), torch.ones(2, 0), DataError, "no negative scores"),
        (torch.ones(2), torch.tensor([1.0, float("nan"), 2.0]), DataError, "1 of 3 negative scores are NaN"),
        (torch.tensor([float("nan")]), torch.ones(2), DataError, "1 of 1 positive scores are NaN"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(
    positive: torch.Tensor, negative: torch.Tensor, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        rank(positive, negative)


def test_hits_at_zero_is_refused() -> None:
    ranks = Ranks(torch.tensor([1]), torch.tensor([1]), 1)
    with pytest.raises(ConfigError, match="hits@0: K must be at least 1"):
        ranks.hits(0)
