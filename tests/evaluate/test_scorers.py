from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.config import EvaluateSection
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate import scorers
from graph_emb.evaluate.link_prediction import evaluate_link
from graph_emb.evaluate.scorers import SCORERS, Dot, HadamardLogistic, as_scorer, score_pairs
from graph_emb.graph.csr import Graph
from graph_emb.graph.holdout import hold_out_edges
from graph_emb.models.skipgram.training import SkipGramConfig, train_skipgram
from graph_emb.sampling.walks import WalkSampler


def parity_graph(num_nodes: int = 40) -> tuple[torch.Tensor, dict[str, dict[str, np.ndarray]]]:
    """Nodes of one parity are joined. Dimension 0 holds the parity, dimension 1 louder noise."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(num_nodes, 2)).astype(np.float32) * 4
    rows[:, 0] = np.where(np.arange(num_nodes) % 2, 1, -1)
    left, right = np.triu_indices(num_nodes, 1)
    joined = (left + right) % 2 == 0
    pairs = np.stack([left, right], axis=1)
    held = generator.random(len(pairs)) < 0.3
    split = {
        "train": {"edge": pairs[joined & ~held]},
        "test": {"edge": pairs[joined & held], "edge_neg": pairs[~joined & held]},
    }
    return torch.from_numpy(rows), split


def test_the_product_drowns_in_a_noisy_dimension_that_regression_learns_to_ignore() -> None:
    rows, split = parity_graph()
    learned = evaluate_link(rows, split, ("auc",), scorer="hadamard-logreg", parts=("test",)).value("test", "auc")
    plain = evaluate_link(rows, split, ("auc",), scorer="dot", parts=("test",)).value("test", "auc")
    assert learned > 0.99
    assert plain < 0.8


# A common vector (10, 0) of differing length, and the group's sign: edges join rows of one sign.
SHIFTED = np.float32([[9, 1], [9, -1], [10, 1], [10, -1], [11, 1], [11, -1]])


def test_centred_products_ignore_what_all_rows_share() -> None:
    split = {"test": {"edge": np.array([[0, 2], [0, 4]]), "edge_neg": np.array([[2, 5], [0, 5], [3, 4]])}}
    centred = as_scorer("centred-dot").fit(torch.from_numpy(SHIFTED), split)
    left, right = torch.from_numpy(SHIFTED[[0, 0, 2, 0, 3]]), torch.from_numpy(SHIFTED[[2, 4, 5, 5, 4]])
    assert centred(left, right).tolist() == [1, 0, -1, -2, -1]
    assert evaluate_link(SHIFTED, split, ("auc",), "dot", ("test",)).value("test", "auc") == pytest.approx(1 / 6)
    assert evaluate_link(SHIFTED, split, ("auc",), parts=("test",)).value("test", "auc") == 1.0


@pytest.mark.data
def test_the_common_vector_of_skipgram_rows_does_not_hide_held_out_edges(shared_data: Path) -> None:
    """Rows and context rows hold the constant of PMI - log k as opposite vectors, which x . x counts as likeness."""
    with np.load(shared_data / "cora" / "graph.npz") as file:
        whole = Graph(file["indptr"].astype(np.int64), file["indices"].astype(np.int32), None, False)
    graph, split = hold_out_edges(whole, valid=0.0, test=0.1, seed=0)
    result = train_skipgram(WalkSampler(graph), SkipGramConfig(dim=64), num_threads=1, progress=False)
    rows, contexts = result.embeddings(), result.model.context.weight[:]
    assert torch.cosine_similarity(rows.mean(0), contexts.mean(0), dim=0) < -0.9
    auc = {s: evaluate_link(rows, split, ("auc",), s, ("test",)).value("test", "auc") for s in ("dot", "centred-dot")}
    assert auc["centred-dot"] > 0.83
    assert auc["dot"] < auc["centred-dot"] - 0.1


def test_the_default_is_that_of_the_command_line() -> None:
    default = inspect.signature(evaluate_link).parameters["scorer"].default
    assert default == EvaluateSection().scorer == "centred-dot"


def test_the_seed_of_the_regression_fixes_its_non_edges() -> None:
    rows, split = parity_graph()
    one = rows[:1]

    def logit(seed: int) -> float:
        return float(HadamardLogistic(seed=seed).fit(rows, split)(one, one))

    assert logit(0) == logit(0)
    assert logit(0) != logit(1)


def test_the_splits_own_training_negatives_are_used() -> None:
    rows, split = parity_graph()
    split["train"]["edge_neg"] = split["train"]["edge"][:, ::-1].copy()  # the edges themselves: nothing to learn
    weightless = HadamardLogistic().fit(rows, split)
    assert float(weightless(rows[:1], rows[:1])) == pytest.approx(0.0, abs=1e-6)


def test_max_edges_limits_what_is_learned_from() -> None:
    rows, split = parity_graph()
    one = rows[:1]
    few, all_of = HadamardLogistic(max_edges=5).fit(rows, split), HadamardLogistic().fit(rows, split)
    assert abs(float(few(one, one))) < abs(float(all_of(one, one)))  # C=1 holds weights of 10 pairs near zero
    with pytest.raises(ConfigError, match="max_edges is 0"):
        HadamardLogistic(max_edges=0)


def test_regression_without_training_edges_is_refused() -> None:
    rows, split = parity_graph()
    del split["train"]
    with pytest.raises(DataError, match="no train 'edge'"):
        evaluate_link(rows, split, ("auc",), scorer="hadamard-logreg", parts=("test",))


def test_pieces_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, split = parity_graph()
    pairs = torch.from_numpy(split["test"]["edge"][:12]).view(3, 4, 2)
    whole = score_pairs(rows, pairs, Dot().fit(rows, split))
    assert whole.shape == (3, 4)
    monkeypatch.setattr(scorers, "GATHERED_AT_ONCE", 10)  # five pairs at a time
    assert torch.equal(whole, score_pairs(rows, pairs, Dot().fit(rows, split)))
    assert torch.allclose(whole[2, 3], rows[pairs[2, 3, 0]] @ rows[pairs[2, 3, 1]])


def test_cosine_of_a_zero_row_is_zero() -> None:
    cosine = as_scorer("cosine").fit(torch.empty(0), {})
    assert cosine(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 0.0]])).tolist() == [0, 1]


def test_every_scorer_is_known_by_its_own_name() -> None:
    assert {name: scorer.name for name, scorer in SCORERS.items()} == {name: name for name in SCORERS}
