"""LINE: the paper's gradient, one-sided arcs, two orders side by side, and quality that can be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram.config import LINE_LR, LineConfig
from graph_emb.models.skipgram.line import side_by_side, train_line
from graph_emb.models.skipgram.steps import Kernel, gradient_rates
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walks import EdgeSampler
from tests.ranks import Ranks

EDGES = np.array([[0, 1], [1, 2], [3, 2], [2, 2], [4, 0]], np.int32)
RECIPE: dict[str, Any] = {"dim": 8, "num_negatives": 3.0, "shared_negatives": 4}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def reference(
    source: np.ndarray, target: np.ndarray, drawn: np.ndarray, *, directed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the loss of ``LineConfig`` on EDGES, from the formula; both tables may be one."""
    grads = (np.zeros_like(source), np.zeros_like(target))
    for (i, j), negatives in zip(EDGES, drawn, strict=True):
        for a, b in [(i, j)] if directed else [(i, j), (j, i)]:
            pull = sigmoid(source[a] @ target[b]) - 1
            grads[0][a] += pull * target[b]
            grads[1][b] += pull * source[a]
            for n in negatives:
                push = 3.0 / 4 * sigmoid(source[a] @ target[n])
                grads[0][a] += push * target[n]
                grads[1][n] += push * source[a]
    return grads


@pytest.mark.parametrize(("order", "directed"), [("first", False), ("second", False), ("second", True)])
def test_the_gradient_is_that_of_the_formula(order: str, directed: bool) -> None:
    config = LineConfig(order=order, **RECIPE).skipgram(order, directed=directed)
    rng = np.random.default_rng(0)
    tables = [rng.normal(0, 0.5, (5, 8)).astype(np.float32) for _ in range(config.tables)]
    sums = [np.zeros_like(table) for table in tables]
    kernel, index = Kernel(config, NegativeSampler(np.ones(5), seed=1)), np.arange(5)
    drawn = kernel.draw(EDGES, 0, index)
    kernel.run(EDGES, drawn, (tables[0], tables[-1]), (sums[0], sums[-1]), gradient_rates(len(index)), np.inf, index)
    expected = reference(tables[0], tables[-1], drawn, directed=directed)
    if order == "first":  # one table: both sides of the gradient land in it
        np.testing.assert_allclose(sums[0], expected[0] + expected[1], rtol=1e-4, atol=1e-5)
    else:
        for ours, wanted in zip(sums, expected, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", ["optimizer", "autograd"])
def test_all_paths_take_the_same_steps(path: str) -> None:
    graph = Graph.from_edges(EDGES[:, 0], EDGES[:, 1], num_nodes=5, directed=True)
    sampler = EdgeSampler.of_graph(graph, draws_per_edge=20, seed=1)
    recipe = {**RECIPE, "order": "second", "batch_size": 1, "lr": 0.01, "lr_decay": "none"}
    rows = [
        train_line(sampler, LineConfig(**recipe, path=p), num_threads=1, progress=False).models["second"]
        for p in ("auto", path)
    ]
    for ours, other in zip(rows[0].tables, rows[1].tables, strict=True):
        np.testing.assert_allclose(ours.weight[:], other.weight[:], rtol=1e-3, atol=1e-4)


def groups(directed: bool = False, seed: int = 0) -> Graph:
    """Two groups of 40, dense inside, with few edges across."""
    rng = np.random.default_rng(seed)
    inside = np.concatenate([rng.integers(0, 40, (240, 2)) + start for start in (0, 40)])
    across = np.stack([rng.integers(0, 40, 20), rng.integers(40, 80, 20)], axis=1)
    edges = np.concatenate([inside, across])
    return Graph.from_edges(edges[:, 0], edges[:, 1], num_nodes=80, directed=directed, self_loops="drop")


def contrast(rows: np.ndarray) -> float:
    """Mean cosine within the groups less that across them; near 0 for rows that know nothing."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = unit @ unit.T
    same = np.equal.outer(np.arange(80) < 40, np.arange(80) < 40)
    return float(cosine[same & ~np.eye(80, dtype=bool)].mean() - cosine[~same].mean())


QUALITY: dict[str, Any] = {"dim": 16, "lr": 0.1}


@pytest.mark.parametrize(
    ("order", "directed", "rule"),
    [("first", False, "sgd"), ("second", False, "sgd"), ("second", True, "sgd"), ("both", False, "row_adagrad")],
)
def test_groups_are_found(order: str, directed: bool, rule: str) -> None:
    sampler = EdgeSampler.of_graph(groups(directed), draws_per_edge=200, seed=1)
    config = LineConfig(order=order, rule=rule, batch_size=2048, **QUALITY)
    rows = train_line(sampler, config, num_threads=1, progress=False).embeddings().numpy()
    assert rows.shape == (80, 16)
    assert contrast(rows) > 0.1
    assert abs(contrast(np.random.default_rng(0).normal(size=rows.shape))) < 0.05


@pytest.mark.parametrize(("order", "directed"), [("first", False), ("second", False), ("second", True)])
def test_groups_are_found_by_buckets(order: str, directed: bool) -> None:
    sampler = EdgeSampler.of_graph(groups(directed), draws_per_edge=200, seed=1)
    options: dict[str, Any] = {"num_threads": 1, "progress": False}
    found = {}
    for buckets in (0, 4):
        config = LineConfig(order=order, buckets=buckets, episode_walks=1000 if buckets else None, **QUALITY)
        found[buckets] = contrast(train_line(sampler, config, **options).embeddings().numpy())
    assert found[4] > 0.1
    assert found[4] > found[0] - 0.1


@pytest.mark.parametrize(("order", "directed"), [("both", False), ("second", True)])
def test_rows_by_buckets_do_not_depend_on_where_they_lie(tmp_path: Path, order: str, directed: bool) -> None:
    sampler = EdgeSampler.of_graph(groups(directed), draws_per_edge=2, seed=1)
    dim = 512 * len(LineConfig(order=order).orders)

    def trained(placement: Any = "host", **fields: Any) -> torch.Tensor:
        config = LineConfig(order=order, dim=dim, **{"buckets": 4, "episode_walks": 100, **fields})
        result = train_line(sampler, config, num_threads=1, progress=False, placement=placement)
        kept = [table.weight[:].detach() for model in result.models.values() for table in model.tables]
        return torch.cat([result.embeddings(), *kept], dim=1)

    rows = trained()
    pages, page = 40, 4096 + 64
    for memory in (21 * page, 33 * page):  # two parts of ten pages; one more
        assert torch.equal(trained(ge.Buckets(tmp_path, pages * 5 + memory, parts=4)), rows)
    assert not torch.equal(trained(buckets=3), rows)
    assert not torch.equal(trained(buckets=0, episode_walks=None), rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ["first", "second"])
def test_a_training_by_buckets_that_was_stopped_ends_with_the_same_rows(tmp_path: Path, order: str) -> None:
    class Stop(Exception):
        pass

    sampler = EdgeSampler.of_graph(groups(), draws_per_edge=2, seed=1)
    config = LineConfig(order=order, dim=512, buckets=4, episode_walks=100)

    def stop(order: str, line: Any) -> None:
        if line.walks == 400:
            raise Stop

    def run(*, resume: bool, **more: Any) -> torch.Tensor:
        checkpoints = PeriodicCheckpoints(tmp_path / "kept", 1, resume=resume)
        placement = ge.Buckets(tmp_path / "rows", 40 * 5 + 21 * 4160, parts=4, leftover="remove")
        options: dict[str, Any] = {"num_threads": 1, "progress": False, "log_interval": 1e-9, "name": "node", **more}
        return train_line(sampler, config, placement=placement, checkpoints=checkpoints, **options).embeddings()

    with pytest.raises(Stop):
        run(resume=False, on_batch=stop)
    found = run(resume=True)
    assert torch.equal(found, train_line(sampler, config, num_threads=1, progress=False).embeddings())


def test_both_orders_stand_side_by_side_each_of_length_1() -> None:
    sampler = EdgeSampler.of_graph(groups(), draws_per_edge=2, seed=1)
    lines: list[str] = []
    result = train_line(
        sampler, LineConfig(**RECIPE), num_threads=1, progress=False, on_batch=lambda order, line: lines.append(order)
    )
    rows = result.embeddings()
    first, second = (result.models[order].embeddings() for order in ("first", "second"))
    torch.testing.assert_close(rows[:, :4], first / first.norm(dim=1, keepdim=True))
    torch.testing.assert_close(rows[:, 4:], second / second.norm(dim=1, keepdim=True))
    torch.testing.assert_close(side_by_side(first, second, normalize=False), torch.cat([first, second], 1))
    assert list(dict.fromkeys(lines)) == ["first", "second"]
    assert result.num_draws == 2 * 2 * sampler.num_edges
    assert result.num_parameters == 80 * 4 * 3


def test_a_seed_gives_the_same_rows_in_one_thread() -> None:
    sampler = EdgeSampler.of_graph(groups(), draws_per_edge=5, seed=1)
    one, two, other = (
        train_line(sampler, LineConfig(**RECIPE), seed=seed, num_threads=1, progress=False).embeddings()
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "third"}, "order = 'third': should be"),
        ({"dim": 9}, "order=both needs an even width"),
        ({"num_negatives": 0.0}, "num_negatives = 0.0"),
        ({"buckets": 4, "rule": "adam"}, "take rule=sgd, path=auto and dtype=float32"),
        ({"episode_walks": 4}, "belongs to buckets"),
    ],
)
def test_a_bad_recipe_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LineConfig(**options)


def test_the_first_order_of_a_directed_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match="first-order proximity has no direction; take order 'second'"):
        train_line(EdgeSampler.of_graph(groups(directed=True)), progress=False)


def test_the_rate_is_lines_own_for_sgd_only() -> None:
    assert LineConfig().skipgram("first", directed=False).first_lr == LINE_LR["sgd"]
    assert LineConfig(rule="adam").skipgram("first", directed=False).first_lr == 0.01


def trained_on_a_rank(rule: str, options: dict[str, Any]) -> np.ndarray:
    transport: Any = ge.init(mode="collective")
    try:
        book = RangeBook([0, 50, 80])
        part = PartGraph.of_graph(groups(), transport.layout(book, "edges"), transport.rank)
        sampler = EdgeSampler(part, transport.group, draws_per_edge=200, seed=1)
        config = LineConfig(order="both", rule=rule, **QUALITY, **options)
        return train_line(sampler, config, part_policy=book, num_threads=1, progress=False).embeddings().numpy()
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize(
    ("rule", "of_each", "of_one", "less"),
    [("sgd", {"exchange_walks": 2000}, {}, 0.1), ("row_adagrad", {"batch_size": 1024}, {"batch_size": 2048}, 0.01)],
)
def test_two_ranks_find_the_groups_as_well_as_one(
    ranks: Ranks, rule: str, of_each: dict[str, Any], of_one: dict[str, Any], less: float
) -> None:
    found = ranks.run(trained_on_a_rank, 2, rule, of_each)
    np.testing.assert_array_equal(found[0], found[1])
    sampler = EdgeSampler.of_graph(groups(), draws_per_edge=200, seed=1)
    config = LineConfig(order="both", rule=rule, **QUALITY, **of_one)
    one = train_line(sampler, config, num_threads=1, progress=False).embeddings().numpy()
    assert contrast(one) > 0.15
    assert contrast(found[0]) > contrast(one) - less
