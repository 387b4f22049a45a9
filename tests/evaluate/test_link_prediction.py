from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from graph_emb.compat.ogb import evaluator
from graph_emb.config import EvaluateSection
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate import link_prediction as module
from graph_emb.evaluate.link_prediction import (
    HITS_AT,
    SCORERS,
    Dot,
    HadamardLogistic,
    dealt_scores,
    evaluate_link,
    hits,
    link_part,
    metric_values,
    mrr,
    ogb_metrics,
    pairs_of,
    roc_auc,
    score_pairs,
)
from graph_emb.evaluate.ranks import TiesWarning
from graph_emb.graph.csr import Graph
from graph_emb.graph.held_out import hold_out_edges
from graph_emb.models.links.training import FrozenRows, LinkPredictor, score_links
from graph_emb.models.skipgram.training import SkipGramConfig, train_skipgram
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks


def scores(shape: tuple[int, ...], seed: int, levels: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if levels:
        return torch.randint(0, levels, shape, generator=generator).float()
    return torch.randn(shape, generator=generator)


def test_hits_by_hand_with_a_tie_at_the_kth_negative() -> None:
    negative = torch.tensor([0.9, 0.7, 0.7, 0.1])
    positive = torch.tensor([1.0, 0.8, 0.7, 0.2])
    # K-th best negatives: 0.9, 0.7, 0.7; only what is strictly above counts.
    assert hits(positive, negative, (1,)) == {1: 0.25}
    with pytest.warns(TiesWarning, match=r"hits@3: ties decide 25\.0 points"):
        assert hits(positive, negative, (1, 3)) == {1: 0.25, 3: 0.5}


def test_hits_with_fewer_than_k_negatives_is_one_as_in_ogb() -> None:
    assert hits(torch.tensor([0.0]), torch.tensor([1.0, 2.0]), (2, 3)) == {2: 0.0, 3: 1.0}


@pytest.mark.parametrize("levels", [0, 30])
def test_hits_equal_ogbs_evaluator(levels: int) -> None:
    positive, negative = scores((200,), 0, levels), scores((150,), 1, levels)
    judge = evaluator("ogbl-ddi")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        ours = hits(positive, negative)
    assert len(ours) == len(HITS_AT)
    for k, value in ours.items():
        judge.K = k
        theirs = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})[f"hits@{k}"]
        assert value == pytest.approx(theirs, rel=1e-12)
        assert 0 < value < 1


@pytest.mark.parametrize("levels", [0, 30])
def test_mrr_equals_ogbs_evaluator(levels: int) -> None:
    positive, negative = scores((50,), 0, levels), scores((50, 40), 1, levels)
    theirs = evaluator("ogbl-citation2").eval({"y_pred_pos": positive, "y_pred_neg": negative})["mrr_list"].mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        assert mrr(positive, negative) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("levels", [0, 6])
def test_auc_equals_scikit_learn(levels: int) -> None:
    positive, negative = scores((50,), 0, levels), scores((70,), 1, levels)
    truth = np.arange(120) < 50
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        ours = roc_auc(positive, negative)
    assert ours == pytest.approx(roc_auc_score(truth, torch.cat([positive, negative]).numpy()))


@pytest.mark.parametrize(
    ("judge", "value"), [(lambda p, n: hits(p, n, (10,)), {10: 0.0}), (mrr, 1 / 26), (roc_auc, 0.5)]
)
def test_a_collapsed_model_warns(judge: Callable[[torch.Tensor, torch.Tensor], object], value: object) -> None:
    with pytest.warns(TiesWarning, match="the scores have collapsed or are saturated"):
        assert judge(torch.ones(5), torch.ones(50)) == pytest.approx(value)


def test_ogb_metrics_are_the_evaluators_at_every_k() -> None:
    positive, negative = scores((200,), 0), scores((150,), 1)
    assert ogb_metrics("ogbl-ddi", positive, negative).keys() == {"hits@20"}
    by_k = ogb_metrics("ogbl-ddi", positive, negative, HITS_AT)
    assert by_k == {f"hits@{k}": value for k, value in hits(positive, negative).items()}


def test_ogb_metrics_take_numpy_where_ogbs_mrr_fails_on_it() -> None:
    positive, negative = scores((50,), 0), scores((50, 40), 1)
    found = ogb_metrics("ogbl-citation2", positive.numpy(), negative.numpy())
    assert found.keys() == {"hits@1", "hits@3", "hits@10", "mrr"}
    assert found["mrr"] == pytest.approx(mrr(positive, negative), rel=1e-6)
    assert found["hits@10"] == pytest.approx(hits(positive, negative, (10,))[10])


def test_ogb_metrics_of_an_auc_data_set() -> None:
    positive, negative = scores((50,), 0), scores((70,), 1)
    assert ogb_metrics("ogbl-vessel", positive, negative) == {"rocauc": pytest.approx(roc_auc(positive, negative))}
    with pytest.raises(ConfigError, match="judged by rocauc, not by Hits@K"):
        ogb_metrics("ogbl-vessel", positive, negative, (10,))


def test_ogb_metrics_refuse_what_ogb_would_misjudge() -> None:
    with pytest.raises(DataError, match="1 of 1 positive scores are NaN"):
        ogb_metrics("ogbl-ddi", torch.tensor([math.nan]), torch.ones(30))
    with pytest.raises(ShapeError, match="bfloat16"):
        ogb_metrics("ogbl-ddi", torch.ones(3), torch.ones(30).bfloat16())
    with pytest.raises(ShapeError, match="of 2 dimensions"):
        ogb_metrics("ogbl-citation2", torch.ones(3), torch.ones(30))


# Two clusters: nodes 0, 1, 2 point one way, 3, 4, 5 the other; node 2 is short, node 5 long.
ROWS = np.float32([[1, 0.1], [1, 0.2], [0.1, 0.0], [0.1, 1], [0.2, 1], [0, 9]])
SPLIT = {
    "train": {"edge": np.array([[0, 1], [3, 4], [4, 5], [1, 2]])},
    "valid": {"edge": np.array([[0, 2]]), "edge_neg": np.array([[0, 3], [1, 5]])},
    "test": {"edge": np.array([[3, 5], [0, 2]]), "edge_neg": np.array([[0, 5], [1, 3], [2, 4]])},
}


def test_dot_products_of_embeddings_by_hand() -> None:
    found = evaluate_link(ROWS, SPLIT, ("hits@1", "hits@2", "mrr", "auc"), scorer="dot")
    # Test edges 9.0, 0.1; non-edges 0.9, 0.3, 0.02: ranks 1 and 3.
    assert found.value("test", "hits@1") == 0.5
    assert found.value("test", "hits@2") == 0.5
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 3) / 2)
    assert found.value("test", "auc") == pytest.approx(4 / 6)
    # The valid edge has 0.1; non-edges 0.2 and 1.8.
    assert found.value("valid", "mrr") == pytest.approx(1 / 3)
    assert found.num_pairs == {"valid": (1, 2), "test": (2, 3)}


def test_cosine_ignores_the_length_that_misleads_the_product() -> None:
    assert evaluate_link(ROWS, SPLIT, ("auc",), scorer="cosine").value("test", "auc") == 1.0
    assert evaluate_link(ROWS, SPLIT, ("auc",), scorer="dot").value("test", "auc") < 1.0


def test_every_positive_may_have_its_own_negatives() -> None:
    negatives = np.array([[[0, 3], [0, 4]], [[5, 3], [5, 4]]])  # for edge (3, 5) tiny ones; for (0, 2) huge ones
    split = {"test": {"edge": SPLIT["test"]["edge"], "edge_neg": negatives}}
    found = evaluate_link(ROWS, split, ("mrr",), "dot", parts=("test",))
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 3) / 2)


@pytest.mark.parametrize("at_once", [1 << 20, 1])
def test_every_source_may_have_its_own_wrong_targets(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """ogbl-citation2 brings these: it was trained on, and then could not be judged."""
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", at_once)
    # Edge (3, 5) has 9.0, its wrong targets 0.2, 0.3 and 0.01; edge (0, 2) has 0.1, its own 0.9, 0.2 and 0.3.
    targets = np.array([[0, 1, 2], [5, 3, 4]])
    split = {"test": {"edge": SPLIT["test"]["edge"], "target_node_neg": targets}}
    found = evaluate_link(ROWS, split, ("mrr", "hits@1"), "dot", parts=("test",))
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 4) / 2)
    assert found.value("test", "hits@1") == 0.5
    assert found.num_pairs == {"test": (2, 3)}


def test_wrong_targets_that_do_not_fit_are_named() -> None:
    edge = SPLIT["test"]["edge"]
    with pytest.raises(ShapeError, match=r"test target_node_neg has shape \(1, 2\); give \(2, M\)"):
        evaluate_link(ROWS, {"test": {"edge": edge, "target_node_neg": np.array([[0, 1]])}}, parts=("test",))
    with pytest.raises(DataError, match=r"test 'target_node_neg' names node 6, outside \[0, 6\)"):
        evaluate_link(ROWS, {"test": {"edge": edge, "target_node_neg": np.array([[0], [6]])}}, parts=("test",))


def test_16_bit_embeddings_are_scored_in_float32() -> None:
    table = torch.tensor([[1.0, 1 / 256], [1.0, 1.0], [1.0, 0.0]]).bfloat16()
    split = {"test": {"edge": np.array([[0, 1]]), "edge_neg": np.array([[2, 1]])}}
    # 1 + 1/256 against 1: bfloat16 sums would tie.
    assert evaluate_link(table, split, ("hits@1",), "dot", parts=("test",)).value("test", "hits@1") == 1.0


def test_a_table_of_equal_rows_warns_for_each_metric() -> None:
    with pytest.warns(TiesWarning) as caught:
        found = evaluate_link(np.ones((6, 2), dtype=np.float32), SPLIT, ("hits@2", "auc"), parts=("test",))
    assert [str(w.message).split(":")[0] for w in caught] == ["test hits@2", "test auc"]
    assert found.parts["test"]["hits@2"] == (0.0, 1.0, 0.0)  # ranks 1, 2.5 and 4
    assert found.value("test", "hits@2") == 0.0


def test_the_result_prints_and_serialises() -> None:
    found = evaluate_link(ROWS, SPLIT, ("hits@1",), "dot", parts=("test",))
    record = json.loads(json.dumps(found.as_dict()))
    assert record["parts"]["test"]["metrics"]["hits@1"]["value"] == 0.5
    assert record["parts"]["test"]["num_negatives"] == 3
    assert "hits@1" in str(found)
    assert "0.5000" in str(found)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"metrics": ("hit@5",)}, ConfigError, "unknown metric 'hit@5'"),
        ({"metrics": ("hits@0",)}, ConfigError, "unknown metric 'hits@0'"),
        ({"scorer": "dott"}, ConfigError, r"unknown scorer 'dott'.*did you mean 'dot'"),
        ({"parts": ("tset",)}, DataError, "no tset 'edge'; known parts: train, valid, test"),
        ({"embeddings": np.full((6, 2), np.nan, dtype=np.float32)}, DataError, "row 0 is not finite"),
        ({"embeddings": ROWS[:5]}, DataError, r"valid 'edge_neg' names node 5, outside \[0, 5\)"),
        ({"embeddings": ROWS[0]}, ShapeError, r"shape \(2,\)"),
        ({"embeddings": np.ones((6, 2), dtype=np.int64)}, ShapeError, "dtype torch.int64"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    arguments = {"embeddings": ROWS, "link_split": SPLIT, **change}
    with pytest.raises(error, match=text):
        evaluate_link(**arguments)  # type: ignore[arg-type]


EDGES = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa", "ogbl-vessel"])
def test_shared_negatives_are_judged_as_by_ogb(name: str) -> None:
    """Scores of few distinct values, so that ties decide: OGB's Hits@K is pessimistic, its ROC-AUC half."""
    judge, generator = evaluator(name), torch.Generator().manual_seed(1)
    table = torch.randint(60, (700,), generator=generator).float()
    edge, negative = (torch.randint(700, (count, 2), generator=generator) for count in (300, 400))
    part = {"edge": edge, "edge_neg": negative}
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
    centred = SCORERS["centred-dot"]().fit(torch.from_numpy(SHIFTED), split)
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
    monkeypatch.setattr(module, "GATHERED_AT_ONCE", 10)  # five pairs at a time
    assert torch.equal(whole, score_pairs(rows, pairs, Dot().fit(rows, split)))
    assert torch.allclose(whole[2, 3], rows[pairs[2, 3, 0]] @ rows[pairs[2, 3, 1]])


def test_cosine_of_a_zero_row_is_zero() -> None:
    cosine = SCORERS["cosine"]().fit(torch.empty(0), {})
    assert cosine(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 0.0]])).tolist() == [0, 1]


def test_every_scorer_is_known_by_its_own_name() -> None:
    assert {name: scorer.name for name, scorer in SCORERS.items()} == {name: name for name in SCORERS}


def ranked_pairs(group: ProcessGroup | None, per_edge: bool) -> tuple[list[float], list[int], list[int]]:
    """Scores of 37 edges by a network on chunks of 8 pairs, their ranks among pairs of their own or shared ones, and
    how many pairs each call scored here.
    """
    generator = torch.Generator().manual_seed(2)
    rows, predictor = FrozenRows(torch.randn(20, 33, generator=generator)), LinkPredictor(33, seed=1)
    pairs = torch.randint(0, 20, (37 + 61, 2), generator=generator)
    negatives = {"target_node_neg": torch.randint(0, 20, (37, 5), generator=generator)}
    split = {"test": {"edge": pairs[:37], **(negatives if per_edge else {"edge_neg": pairs[37:]})}}
    scored = []

    def score(asked: torch.Tensor) -> torch.Tensor:
        scored.append(len(asked))
        return score_links(predictor, rows, asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graph_emb.models.links.training.CHUNK", 8)
        dealt, part = dealt_scores(group, score, 8), link_part(split, "test", 20)
        found = part.ranks(dealt)
        return dealt(part.edge).tolist(), found.optimistic.tolist(), scored


def ranked_on_a_rank(per_edge: bool) -> tuple[list[float], list[int], list[int]]:
    torch.set_num_threads(1)
    group = ProcessGroup(timeout=60)
    try:
        return ranked_pairs(group if group.world_size > 1 else None, per_edge)
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_ranks_share_the_scores_of_pairs(ranks: Ranks, num_ranks: int, per_edge: bool) -> None:
    ((scores, places, sizes),) = ranks.run(ranked_on_a_rank, 1, per_edge)
    found = ranks.run(ranked_on_a_rank, num_ranks, per_edge)
    assert [own[:2] for own in found] == [(scores, places)] * num_ranks, "bit for bit"
    dealt = [size for own in found for size in own[2]]
    assert sum(dealt) == sum(sizes)
    assert sum(size % 8 > 0 for size in dealt) == sum(size % 8 > 0 for size in sizes), "whole chunks"
    assert max(sum(own[2]) for own in found) <= sum(sizes) / num_ranks + 3 * 8, "but for a chunk of each call"
