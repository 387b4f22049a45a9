"""How parts of a link split are checked and ranked, compared with OGB's own Evaluator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from graph_emb import DataError, ShapeError
from graph_emb.compat.ogb import evaluator
from graph_emb.evaluate import link_split as module
from graph_emb.evaluate.link_prediction import metric_values
from graph_emb.evaluate.link_split import link_part, pairs_of
from graph_emb.evaluate.ranks import TiesWarning

EDGES = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa", "ogbl-vessel"])
def test_shared_negatives_are_judged_as_by_ogb(name: str) -> None:
    """Scores of few distinct values, so that ties decide: OGB's Hits@K is pessimistic, its ROC-AUC half."""
    judge, generator = evaluator(name), torch.Generator().manual_seed(1)
    table = torch.randint(60, (700,), generator=generator).float()
    part = {"edge": torch.randint(700, (300, 2)), "edge_neg": torch.randint(700, (400, 2))}
    ranks = link_part({"valid": part}, "valid", 700).ranks(lambda pairs: table[pairs[:, 0]])
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
    part = link_part({"test": {"edge": edge, "target_node_neg": targets}}, "test", 90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)  # a wrong target may be the right one, which OGB counts half
        found = metric_values(part.ranks(lambda pairs: weights[pairs[:, 0], pairs[:, 1]]), ["mrr"])
    scores = {"y_pred_pos": weights[edge[:, 0], edge[:, 1]], "y_pred_neg": weights[edge[:, :1], targets]}
    for name in ("ogbl-citation2", "ogbl-biokg", "ogbl-wikikg2"):
        theirs = evaluator(name).eval(scores)
        assert found == {key: pytest.approx(theirs["mrr_list"].mean().item(), rel=1e-6) for key in found}


def test_tables_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"target_node_neg has shape \(3, 2\); give \(4, M\)"):
        link_part({"valid": {"edge": EDGES, "target_node_neg": np.zeros((3, 2), int)}}, "valid", 8)
    with pytest.raises(DataError, match="no test 'edge'"):
        link_part({}, "test", 8)
    with pytest.raises(ShapeError, match="valid 'edge'"):
        link_part({"valid": {"edge": np.zeros((2, 3), int)}}, "valid", 8)


@pytest.mark.parametrize(
    ("pairs", "error", "text"),
    [
        (np.empty((0, 2), dtype=np.int64), DataError, "no test 'edge'"),
        (np.array([[0, -1]]), DataError, "names node -1"),
        (np.array([0, 1]), ShapeError, r"shape \(2,\)"),
        (np.array([[0.0, 1.0]]), ShapeError, "float64"),
    ],
)
def test_bad_pairs_are_refused(pairs: np.ndarray, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pairs_of({"test": {"edge": pairs}}, "test", "edge", 5)
