"""The link predictor: OGB's network, loss, negatives and choice of epoch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from graph_emb import ConfigError, DataError, ShapeError
from graph_emb.evaluate.link_prediction import LinkPart
from graph_emb.models.epochs import Evaluation
from graph_emb.models.links import training as link_predictor
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.training import (
    FrozenRows,
    LinkPredictor,
    LinkPredictorResult,
    negative_draw,
    score_links,
    train_link_predictor,
    with_negatives,
)
from graph_emb.models.schedule import RateSchedule
from graph_emb.sampling.negatives import NonEdges

SMALL = LinkPredictorConfig(
    hidden_dim=16, batch_size=128, epochs=10, eval_every=2, metrics=("hits@5", "hits@20"), select="hits@20"
)


def two_groups(num_nodes: int = 60, seed: int = 0) -> tuple[torch.Tensor, dict]:
    """Embeddings that tell two groups, edges within them, negatives across: a task that can be learnt."""
    rng = np.random.default_rng(seed)
    group = np.arange(num_nodes) % 2
    left, right = np.triu_indices(num_nodes, 1)
    pairs = np.stack([left, right], 1)[rng.permutation(len(left))]
    same = group[pairs[:, 0]] == group[pairs[:, 1]]
    inside, across = pairs[same], pairs[~same]
    split = {
        "train": {"edge": inside[:400]},
        "valid": {"edge": inside[400:500], "edge_neg": across[:100]},
        "test": {"edge": inside[500:600], "edge_neg": across[100:200]},
    }
    # One column is the group's sign, so the product of two embeddings tells whether the groups are equal.
    embeddings = rng.normal(size=(num_nodes, 8)).astype(np.float32)
    embeddings[:, 0] = 2.0 * group - 1.0
    return torch.from_numpy(embeddings), split


def test_the_parameters_are_as_many_as_ogb_publishes() -> None:
    assert 4267 * 128 + LinkPredictor(128).num_parameters == 645_249  # the node2vec row of ogbl-ddi
    assert 4267 * 256 + LinkPredictor(256).num_parameters == 1_224_193  # the matrix factorisation row


def test_a_logit_is_ogbs_network_before_its_sigmoid() -> None:
    predictor = LinkPredictor(8, SMALL, seed=1).eval()
    rows, pairs = torch.randn(7, 8), torch.tensor([[0, 1], [6, 2], [3, 3], [1, 0], [4, 5]])
    x = rows[pairs[:, 0]] * rows[pairs[:, 1]]
    for layer in predictor.layers[:-1]:
        x = F.relu(F.linear(x, layer.weight, layer.bias))
    x = F.linear(x, predictor.layers[-1].weight, predictor.layers[-1].bias).squeeze()
    assert torch.allclose(predictor(rows, pairs), x)


def test_dropout_keeps_the_mean_of_an_activation() -> None:
    predictor = LinkPredictor(4, LinkPredictorConfig(hidden_dim=256, num_layers=2, dropout=0.75), seed=0)
    first, last = predictor.layers
    with torch.no_grad():
        first.weight.zero_()
        first.bias.fill_(1.0)
        last.weight.fill_(1 / 256)
        last.bias.zero_()
    ones, pairs = torch.ones(2, 4), torch.tensor([[0, 1]]).expand(400, 2)
    logits = predictor(ones, pairs)
    assert logits.std() > 0.05
    assert logits.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.allclose(predictor.eval()(ones, pairs[:3]), torch.ones(3))


STEADY = link_predictor._Rates(RateSchedule(), [], 1)


def test_the_first_loss_is_ogbs_formula() -> None:
    embeddings, split = two_groups()
    config = SMALL.replace(dropout=0.0, batch_size=400, epochs=1, eval_every=1, lr=1e-12)
    edges = torch.as_tensor(split["train"]["edge"])
    draw = negative_draw("non_edges", split, 60)
    predictor = LinkPredictor(8, config, seed=0)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=config.lr)
    rows = FrozenRows(embeddings)
    generator = torch.Generator().manual_seed(0)
    loss = link_predictor._train_epoch(predictor, optimizer, rows, edges, draw, config, generator, STEADY)
    generator.manual_seed(0)
    torch.randperm(len(edges), generator=generator)
    positive = torch.sigmoid(score_links(predictor, rows, edges))
    negative = torch.sigmoid(score_links(predictor, rows, NonEdges(edges, 60).sample(len(edges), generator)))
    expected = -torch.log(positive + 1e-15).mean() - torch.log(1 - negative + 1e-15).mean()
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_chunk_size_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, split = two_groups()
    config = SMALL.replace(dropout=0.0, epochs=2)
    whole = train_link_predictor(FrozenRows(embeddings), split, 60, config)
    monkeypatch.setattr(link_predictor, "CHUNK", 37)
    parts = train_link_predictor(FrozenRows(embeddings), split, 60, config)
    assert parts.history[0].loss == pytest.approx(whole.history[0].loss, rel=1e-4)
    for a, b in zip(whole.predictor.parameters(), parts.predictor.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3)


def test_it_learns_what_the_embeddings_know() -> None:
    embeddings, split = two_groups()
    result = train_link_predictor(FrozenRows(embeddings), split, 60, SMALL)
    best = result.best("hits@20")
    assert best.test is not None
    assert best.valid["hits@20"] > 0.9
    assert best.test["hits@20"] > 0.9
    others = embeddings[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
    shuffled = train_link_predictor(FrozenRows(others), split, 60, SMALL)
    assert shuffled.best("hits@20").valid["hits@20"] < 0.8


@pytest.mark.parametrize(
    "change", [{"loss": "auc"}, {"loss": "hinge"}, {"loss": "squared_hinge"}, {"loss": "softmax"}, {}], ids=str
)
def test_every_loss_with_several_negatives_learns_what_the_embeddings_know(change: dict) -> None:
    embeddings, split = two_groups()
    history = [
        train_link_predictor(FrozenRows(embeddings), split, 60, SMALL.replace(num_negatives=count, **change)).history
        for count in (1, 3)
    ]
    assert history[0][0].loss != history[1][0].loss
    for found in history:
        assert max(e.valid["hits@20"] for e in found) > 0.9


def test_a_step_draws_as_many_negatives_of_each_edge_as_it_is_told() -> None:
    generator, edges = torch.Generator().manual_seed(0), torch.from_numpy(EDGES)
    items = with_negatives(negative_draw("targets", SPLIT, 8), torch.arange(4), edges, 5, generator)
    assert items.shape == (4, 6, 2)
    assert torch.equal(items[:, 0], edges)
    assert (items[:, 1:, 0] == edges[:, :1]).all(), "negatives stand beside the edge whose source they keep"


def test_the_loss_of_several_negatives_is_that_of_the_edges_they_belong_to() -> None:
    """A loss of differences tells an edge's own negatives from another's."""
    embeddings, split = two_groups()
    config = SMALL.replace(dropout=0.0, batch_size=400, epochs=1, eval_every=1, lr=1e-12, loss="auc", num_negatives=2)
    edges, draw = torch.as_tensor(split["train"]["edge"]), negative_draw("non_edges", split, 60)
    predictor, rows = LinkPredictor(8, config, seed=0), FrozenRows(embeddings)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(0)
    loss = link_predictor._train_epoch(predictor, optimizer, rows, edges, draw, config, generator, STEADY)
    generator.manual_seed(0)
    order = torch.randperm(len(edges), generator=generator)
    positive = score_links(predictor, rows, edges[order])
    negative = score_links(predictor, rows, NonEdges(edges, 60).sample(800, generator)).view(400, 2)
    expected = (1 - positive[:, None] + negative).square().mean()
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_seed_fixes_the_run_and_another_changes_it() -> None:
    embeddings, split = two_groups()
    config = SMALL.replace(epochs=2)
    runs = [train_link_predictor(FrozenRows(embeddings), split, 60, config, seed=s).history for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_bfloat16_training_scores_in_float32_and_stays_near() -> None:
    embeddings, split = two_groups()
    config = SMALL.replace(epochs=2)
    single = train_link_predictor(FrozenRows(embeddings), split, 60, config)
    half = train_link_predictor(FrozenRows(embeddings), split, 60, config.replace(precision="bfloat16"))
    assert half.history != single.history
    assert half.history[0].loss == pytest.approx(single.history[0].loss, rel=0.02)
    scores = score_links(half.predictor, FrozenRows(embeddings), torch.as_tensor(split["valid"]["edge"]))
    assert scores.dtype == torch.float32


def test_scoring_leaves_the_training_mode_as_found() -> None:
    predictor = LinkPredictor(8, SMALL)
    score_links(predictor, FrozenRows(torch.ones(3, 8)), torch.tensor([[0, 1]]))
    assert predictor.training


def result_of(*valid: float) -> LinkPredictorResult:
    history, best = [], -1.0
    for epoch, value in enumerate(valid, 1):
        test = {"hits@20": 10 + value} if value > best else None
        best = max(best, value)
        history.append(Evaluation(epoch, 0.5, {"hits@20": value}, test))
    return LinkPredictorResult(tuple(history), 7, 0.25, LinkPredictor(2, SMALL), 0)


def test_the_reported_test_value_is_that_of_the_first_best_validation() -> None:
    best = result_of(0.1, 0.3, 0.2, 0.3).best("hits@20")
    assert (best.epoch, best.test) == (2, {"hits@20": 10.3})


def test_as_dict_survives_json() -> None:
    record = json.loads(json.dumps(result_of(0.1, 0.3, 0.2).as_dict()))
    assert record["scores"] == {"hits@20": {"epoch": 2, "valid": 0.3, "test": 10.3}}
    assert [entry["epoch"] for entry in record["history"]] == [1, 2, 3]
    assert (record["num_parameters"], record["seconds_per_epoch"]) == (7, 0.25)


def part_of(pairs: LinkPart) -> str:
    """Of ``two_groups``: the parts' first edges differ."""
    return "valid" if pairs.edge[0].tolist() == two_groups()[1]["valid"]["edge"][0].tolist() else "test"


def test_test_pairs_are_scored_only_where_validation_is_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, split = two_groups()
    values = {"valid": iter([0.2, 0.1, 0.4, 0.4]), "test": iter([0.5, 0.6])}
    monkeypatch.setattr(
        link_predictor,
        "_evaluate",
        lambda predictor, rows, pairs, config: dict.fromkeys(config.metrics, next(values[part_of(pairs)])),
    )
    config = SMALL.replace(epochs=8)
    history = train_link_predictor(FrozenRows(embeddings), split, 60, config).history
    assert [e.test and e.test["hits@20"] for e in history] == [0.5, None, 0.6, None]


def test_patience_counts_evaluations_since_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, split = two_groups()
    values = iter([0.2, 0.1, 0.4, 0.4, 0.3, 0.9])
    monkeypatch.setattr(
        link_predictor,
        "_evaluate",
        lambda predictor, rows, pairs, config: dict.fromkeys(
            config.metrics, next(values) if part_of(pairs) == "valid" else 0.0
        ),
    )
    config = SMALL.replace(epochs=100, patience=2)
    history = train_link_predictor(FrozenRows(embeddings), split, 60, config).history
    assert [e.epoch for e in history] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"num_layers": 1}, "num_layers = 1"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"patience": 0}, "patience = 0"),
        ({"epochs": 4}, "ends before the first evaluation"),
        ({"select": "hits@7"}, "select = 'hits@7' is not among"),
        ({"metrics": ("mmr",)}, "unknown metric 'mmr'"),
        ({"negatives": "edges"}, "negatives = 'edges': should be"),
        ({"negatives": "given", "num_negatives": 2}, "num_negatives = 2: negatives=given has one of each edge"),
        ({"loss": "mse"}, "loss = 'mse': should be"),
        ({"precision": "float16"}, "precision = 'float16': should be"),
    ],
)
def test_bad_options_are_named(change: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LinkPredictorConfig(**change)


def test_a_split_without_negatives_is_refused() -> None:
    embeddings, split = two_groups()
    del split["valid"]["edge_neg"]
    with pytest.raises(DataError, match="no valid 'edge_neg'"):
        train_link_predictor(FrozenRows(embeddings), split, 60, SMALL)


def test_embeddings_of_another_dtype_are_refused() -> None:
    with pytest.raises(ShapeError, match="float64"):
        FrozenRows(torch.ones(3, 4, dtype=torch.float64))


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


@pytest.mark.parametrize("count", [1, 3])
def test_targets_in_batch_are_those_of_other_edges_of_the_step(count: int) -> None:
    edges = torch.stack([torch.arange(50), torch.arange(50) + 100], dim=1)
    split = {"train": {"edge": edges.numpy()}}
    draw, generator = negative_draw("in_batch", split, 150), torch.Generator().manual_seed(0)
    numbers = torch.arange(10, 20)
    drawn = torch.cat([with_negatives(draw, numbers, edges[numbers], count, generator)[:, 1:] for _ in range(200)])
    assert torch.equal(drawn[..., 0], numbers.repeat(200)[:, None].expand(-1, count))
    assert not (drawn[..., 1] - 100 == drawn[..., 0]).any()
    shares = torch.bincount(drawn[drawn[..., 0] == 12][:, 1] - 110, minlength=10) / (200 * count)
    assert shares[2] == 0
    assert shares[torch.arange(10) != 2].tolist() == pytest.approx([1 / 9] * 9, abs=0.1)


def test_an_edge_alone_in_its_step_is_told_from_targets_of_all_edges() -> None:
    draw = negative_draw("in_batch", SPLIT, 8)
    one = torch.from_numpy(EDGES[:1])
    drawn = torch.cat([draw(torch.tensor([0]), one, torch.Generator().manual_seed(seed)) for seed in range(40)])
    assert set(drawn[:, 0].tolist()) == {int(one[0, 0])}
    assert set(drawn[:, 1].tolist()) == set(EDGES[:, 1].tolist())


def test_rates_follow_a_schedule_each_from_its_own_first_value() -> None:
    optimizers = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr) for lr in (0.4, 0.04)]
    rates, seen = link_predictor._Rates(RateSchedule(lr_decay="linear"), [*optimizers, None], 4), []
    for _ in range(4):
        rates.set_next()
        seen.append([optimizer.param_groups[0]["lr"] for optimizer in optimizers])
    assert np.allclose(seen, [[0.4, 0.04], [0.3, 0.03], [0.2, 0.02], [0.1, 0.01]])
    rates.plateau.reduce()
    rates.set_next()
    assert optimizers[0].param_groups[0]["lr"] == 0.0


def test_targets_by_degree_follow_its_power() -> None:
    star = {"train": {"edge": np.array([[0, n] for n in range(1, 17)])}}  # 16 edges of node 0, one of the others
    edges = torch.zeros(40_000, 2, dtype=torch.int64)
    pairs = negative_draw("by_degree", star, 18)(edges[:, 0], edges, torch.Generator().manual_seed(0))
    shares = torch.bincount(pairs[:, 1], minlength=18) / len(pairs)
    assert pairs[:, 0].unique().tolist() == [0]
    assert shares[0].item() == pytest.approx(8 / 24, abs=0.01), "16 ** .75 is 8"
    assert shares[1:17].tolist() == pytest.approx([1 / 24] * 16, abs=0.005)
    assert shares[17] == 0, "no edge, no draw"


def test_non_edges_are_no_edge_in_either_direction() -> None:
    pairs = {tuple(sorted(pair)) for pair in drawn("non_edges", [0, 1, 2, 3] * 50).tolist()}
    assert pairs.isdisjoint({(0, 1), (1, 2), (2, 3), (0, 3)})
    assert all(left != right for left, right in pairs)


def test_fewer_given_negatives_than_edges_are_refused() -> None:
    with pytest.raises(DataError, match="3 training edge_neg for 4 edges"):
        negative_draw("given", {"train": {"edge": EDGES, "edge_neg": EDGES[:3]}}, 8)
