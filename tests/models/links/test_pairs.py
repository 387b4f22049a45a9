"""Pairs of a link split: what is drawn for training and how parts are ranked, compared with OGB's own Evaluator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from graph_emb import DataError, ShapeError
from graph_emb.compat.ogb import evaluator
from graph_emb.evaluate import judged_pairs as module
from graph_emb.evaluate.link_prediction import metric_values
from graph_emb.evaluate.ranks import TiesWarning
from graph_emb.models.links.pairs import judged_pairs, negative_draw

EDGES = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])
SPLIT = {"train": {"edge": EDGES, "edge_neg": EDGES + 4}}


def drawn(kind: str, numbers: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    places = torch.tensor(numbers)
    return negative_draw(kind, SPLIT, 8)(places, torch.from_numpy(EDGES)[places], generator)


def test_given_negatives_are_those_of_the_same_number() -> None:
    assert drawn("given", [2, 0]).tolist() == [[6, 7], [4, 5]]


def test_drawn_targets_keep_the_source() -> None:
    pairs = drawn("targets", [3, 1] * 50)
    assert pairs[:, 0].tolist() == [0, 1] * 50
    assert set(pairs[:, 1].tolist()) == set(range(8))


def test_non_edges_are_no_edge_in_either_direction() -> None:
    pairs = {tuple(sorted(pair)) for pair in drawn("non_edges", [0, 1, 2, 3] * 50).tolist()}
    assert pairs.isdisjoint({(0, 1), (1, 2), (2, 3), (0, 3)})
    assert all(left != right for left, right in pairs)


def test_fewer_given_negatives_than_edges_are_refused() -> None:
    with pytest.raises(DataError, match="3 training edge_neg for 4 edges"):
        negative_draw("given", {"train": {"edge": EDGES, "edge_neg": EDGES[:3]}}, 8)


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa", "ogbl-vessel"])
def test_shared_negatives_are_judged_as_by_ogb(name: str) -> None:
    """Scores of few distinct values, so that ties decide: OGB's Hits@K is pessimistic, its ROC-AUC half."""
    judge, generator = evaluator(name), torch.Generator().manual_seed(1)
    table = torch.randint(60, (700,), generator=generator).float()
    part = {"edge": torch.randint(700, (300, 2)), "edge_neg": torch.randint(700, (400, 2))}
    ranks = judged_pairs({"valid": part}, "valid").ranks(lambda pairs: table[pairs[:, 0]])
    scores = {"y_pred_pos": table[part["edge"][:, 0]], "y_pred_neg": table[part["edge_neg"][:, 0]]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)  # they are meant to decide here
        found = metric_values(ranks, [judge.eval_metric])
    assert found == {key: pytest.approx(value) for key, value in judge.eval(scores).items()}


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_negatives_of_each_edge_are_judged_as_by_ogb(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn((90, 90), generator=generator)
    edge, targets = torch.randint(90, (40, 2), generator=generator), torch.randint(90, (40, 12), generator=generator)
    part = judged_pairs({"test": {"edge": edge, "target_node_neg": targets}}, "test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)  # a wrong target may be the right one, which OGB counts half
        found = metric_values(part.ranks(lambda pairs: weights[pairs[:, 0], pairs[:, 1]]), ["mrr"])
    scores = {"y_pred_pos": weights[edge[:, 0], edge[:, 1]], "y_pred_neg": weights[edge[:, :1], targets]}
    for name in ("ogbl-citation2", "ogbl-biokg", "ogbl-wikikg2"):
        theirs = evaluator(name).eval(scores)
        assert found == {key: pytest.approx(theirs["mrr_list"].mean().item(), rel=1e-6) for key in found}


def test_tables_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"target_node_neg has shape \(3, 2\); give \(4, M\)"):
        judged_pairs({"valid": {"edge": EDGES, "target_node_neg": np.zeros((3, 2), int)}}, "valid")
    with pytest.raises(DataError, match="no test 'edge'"):
        judged_pairs({}, "test")
    with pytest.raises(ShapeError, match="valid 'edge'"):
        judged_pairs({"valid": {"edge": np.zeros((2, 3), int)}}, "valid")
