"""SkipGram and train_skipgram: the loss as defined, every rule learns, and training ends well."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core import progress
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.models.schedule import share_of_step
from graph_emb.models.skipgram import training as skipgram
from graph_emb.models.skipgram.config import DEFAULT_LR
from graph_emb.models.skipgram.model import cut_blocks
from graph_emb.models.skipgram.steps import (
    AutogradSteps,
    GradientSteps,
    InPlaceSteps,
    Kernel,
    WalkBatch,
    WalkRates,
    localize,
    part_walks,
)
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, SkipGramProgress, train_skipgram
from graph_emb.optimizer import OPTIMIZERS, SparseAdagrad, SparseSGD
from graph_emb.sampling.walks import WalkSampler

SMALL = SkipGramConfig(dim=16, window=3, shared_negatives=8, block=8, batch_size=32)


def two_groups(size: int = 12) -> Graph:
    """Two cliques joined by one edge."""
    inside = [(i, j) for i in range(size) for j in range(i)]
    edges = np.array([*inside, *((i + size, j + size) for i, j in inside), (0, size)])
    return Graph.from_edges(edges[:, 0], edges[:, 1])


def sampler(**options: int) -> WalkSampler:
    return WalkSampler(two_groups(), **{"num_walks": 30, "walk_length": 12, **options})


def separation(rows: torch.Tensor) -> float:
    """Mean cosine inside the groups less the mean cosine across."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosine = (unit @ unit.T).numpy()
    group = np.arange(len(rows)) >= len(rows) // 2
    same = group[:, None] == group[None, :]
    return float(cosine[same & ~np.eye(len(rows), dtype=bool)].mean() - cosine[~same].mean())


def test_the_loss_is_the_sum_over_pairs_and_shared_negatives() -> None:
    config = SkipGramConfig(dim=5, window=2, num_negatives=3, shared_negatives=2, block=3)
    model = SkipGram(6, config)
    rng = np.random.default_rng(1)
    x, c = rng.normal(size=(2, 6, 5)).astype(np.float32)
    model.embedding.weight[:] = torch.from_numpy(x)
    model.context.weight[:] = torch.from_numpy(c)
    walks = np.array([[0, 1, 2, 3, 1], [4, 0, -1, -1, -1], [5, -1, -1, -1, -1]], np.int32)
    negatives = np.array([[0, 5, 2, 2], [3, 1, 4, 0], [1, 1, 1, 1]], np.int32)

    def log_sigmoid(z: float) -> float:
        return -math.log1p(math.exp(-z))

    expected, pairs = 0.0, 0.0
    for walk, drawn in zip(walks, negatives, strict=True):
        nodes = [node for node in walk if node >= 0]
        for i, node in enumerate(nodes):
            for j, other in enumerate(nodes):
                if 0 < abs(i - j) <= 2:
                    weight = {1: 1.0, 2: 0.5}[abs(i - j)]
                    pairs += weight
                    expected -= weight * log_sigmoid(x[node] @ c[other])
                    for k in (0, 1):
                        expected -= weight * 3 / 2 * log_sigmoid(-(x[node] @ c[drawn[i // 3 * 2 + k]]))
    blocks = cut_blocks(walks, negatives, config)
    assert blocks.num_pairs == pytest.approx(pairs)
    assert float(model.loss(blocks).detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("rule", sorted(DEFAULT_LR))
def test_every_rule_learns_the_groups(rule: str, tables: int) -> None:
    lr = {"adam": 0.03, "row_adam": 0.03, "lars": 3.0}.get(rule, 0.1)
    config = SkipGramConfig(**{**vars(SMALL), "rule": rule, "tables": tables, "epochs": 3, "lr": lr})
    result = train_skipgram(sampler(), config, progress=False, log_interval=0, num_threads=1)
    assert separation(result.embeddings()) > 0.4
    if tables == 2:  # with one table the least loss is close to that of the first rows
        assert result.history[-1].loss < 0.95 * result.history[0].loss
    assert result.model.num_parameters == tables * 24 * 16


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_the_kernels_gradients_are_autograds(rule: str, tables: int) -> None:
    graph = Graph.from_edges([0, 1, 2, 2, 5, 6], [1, 2, 0, 3, 6, 7], num_nodes=200)
    rows = []
    for path in ("optimizer", "autograd"):
        config = SkipGramConfig(dim=8, window=2, shared_negatives=3, block=3, rule=rule, tables=tables, lr=0.05,
                                path=path, batch_size=70, negative_power=0.0)  # fmt: skip
        walks = WalkSampler(graph, num_walks=2, walk_length=7, seed=2)
        model = SkipGram(200, config, seed=1)
        for table in model.tables:
            table.weight[:] = torch.randn(200, 8, generator=torch.Generator().manual_seed(3))
        train_skipgram(walks, model=model, progress=False, num_threads=2)
        rows.append([table.weight[:] for table in model.tables])
    for ours, reference in zip(*rows, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
    assert (rows[0][0] != torch.randn(200, 8, generator=torch.Generator().manual_seed(3))).any()


def test_only_rows_that_get_a_gradient_are_pulled() -> None:
    walks = np.array([[7, 9, 7, -1, -1, -1], [8, -1, -1, -1, -1, -1], [9, 3, 9, 3, 9, -1]], np.int32)
    negatives = np.array([[5, 9, 1, 1], [2, 2, 2, 2], [4, 7, 4, 5]], np.int32)
    places = np.full(10, -1, np.int32)
    config = SkipGramConfig(dim=4, block=4, shared_negatives=2)
    ids, num_tokens, tokens, others = localize(walks, negatives, config, places)
    assert ids.tolist() == [7, 9, 3, 5, 4]
    assert num_tokens == 3
    np.testing.assert_array_equal(tokens, [[0, 1, 0, -1, -1, -1], [-1, -1, -1, -1, -1, -1], [1, 2, 1, 2, 1, -1]])
    np.testing.assert_array_equal(others, [[3, 1, -1, -1], [-1, -1, -1, -1], [4, 0, 4, 3]])
    assert (places == -1).all()


def test_every_rule_has_an_optimizer_and_a_learning_rate() -> None:
    assert OPTIMIZERS.keys() == DEFAULT_LR.keys()


def test_one_thread_gives_the_same_rows_and_another_seed_others() -> None:
    runs = [
        train_skipgram(sampler(), SMALL, seed=seed, num_threads=1, progress=False).embeddings() for seed in (3, 3, 4)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_batches_and_threads_sample_the_same_walks_for_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    still = SkipGramConfig(**{**vars(SMALL), "lr": 1e-12})  # rows as good as fixed, so that losses can be compared
    lines = []
    for tokens, threads in ((10**6, 1), (10**6, 3), (12 * 130, 2)):
        monkeypatch.setattr(skipgram, "TOKENS_PER_BATCH", tokens)
        model = SkipGram(24, still)
        for table in model.tables:
            table.weight[:] = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
        lines.append(train_skipgram(sampler(), model=model, num_threads=threads, progress=False).history[-1])
    assert lines[0].loss == pytest.approx(lines[1].loss, rel=1e-6)
    assert lines[0].loss == pytest.approx(lines[2].loss, rel=1e-6)


def test_the_loss_of_fresh_rows_is_that_of_coin_flips() -> None:
    still = SkipGramConfig(**{**vars(SMALL), "lr": 1e-12})
    line = train_skipgram(sampler(), still, progress=False).history[-1]
    assert line.loss == pytest.approx((1 + 5) * math.log(2), rel=1e-5)  # one pair and five negatives at sigmoid 1/2


def test_more_threads_train_the_same_tokens_to_about_the_same_loss() -> None:
    one, two = (
        train_skipgram(sampler(num_walks=200), SMALL, num_threads=threads, progress=False).history[-1]
        for threads in (1, 2)
    )
    assert one.tokens == two.tokens == 200 * 24 * 12
    assert two.loss == pytest.approx(one.loss, rel=0.05)


def test_the_learning_rate_falls_linearly_to_zero_over_all_epochs() -> None:
    lines: list[SkipGramProgress] = []
    config = SkipGramConfig(**{**vars(SMALL), "epochs": 4, "lr": 0.04})
    train_skipgram(sampler(), config, progress=False, on_epoch=lines.append)
    assert [line.epoch for line in lines] == [0, 1, 2, 3]
    np.testing.assert_allclose([line.lr for line in lines], [0.03, 0.02, 0.01, 0.0], atol=1e-12)
    assert [line.walks for line in lines] == [720, 1440, 2160, 2880]
    constant = SkipGramConfig(**{**vars(config), "lr_decay": "none"})
    assert train_skipgram(sampler(), constant, progress=False).history[-1].lr == 0.04


@pytest.mark.parametrize("how", [{}, {"rule": "adagrad", "lr_decay": "cosine"}, {"buckets": 2}], ids=str)
def test_the_learning_rate_rises_and_falls_along_a_cosine(how: dict[str, Any]) -> None:
    lines: list[SkipGramProgress] = []
    config = SkipGramConfig(**{**vars(SMALL), "epochs": 4, "lr": 0.04, "lr_decay": "cosine", "warmup": 0.5, **how})
    trained = train_skipgram(sampler(), config, progress=False, on_epoch=lines.append)
    expected = [0.04 * (720 + 1) / 1440, 0.04, 0.02, 0.0]
    np.testing.assert_allclose([line.lr for line in lines], expected, rtol=1e-5, atol=1e-9)
    straight = train_skipgram(sampler(), config.replace(lr_decay="linear", warmup=0.0), progress=False)
    assert not np.allclose(trained.embeddings(), straight.embeddings(), atol=1e-3)


def test_rates_of_walks_are_those_of_the_schedule() -> None:
    for decay, warmup in (("linear", 0.0), ("cosine", 0.25), ("none", 0.3), ("linear", 1e-6)):
        rates = WalkRates(0.2, 300_000, decay, warmup)
        done = np.array([0, 1, 7, 29_999, 74_999, 75_000, 200_000, 299_999])
        wanted = [0.2 * share_of_step(decay, warmup, int(walk), 300_000) for walk in done]
        np.testing.assert_allclose(rates.of(done), wanted, rtol=2e-6, atol=1e-7)
        assert [rates.at(int(walk)) for walk in done] == pytest.approx(wanted, rel=2e-6, abs=1e-7)
    assert WalkRates(0.2, 10).at(25) == 0.0


def test_an_optimizers_rate_falls_only_where_told() -> None:
    for decay, last in (("linear", 0.1 * 1 / 24), (None, 0.1)):
        model = SkipGram(24, SkipGramConfig(**{**vars(SMALL), "lr_decay": decay, "batch_size": 1}))
        optimizer = SparseSGD(model.tables, lr=0.1)
        train_skipgram(sampler(num_walks=1), model=model, optimizer=optimizer, progress=False)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(last)


def test_an_optimizer_of_ones_own_is_used() -> None:
    model = SkipGram(24, SkipGramConfig(**{**vars(SMALL), "batch_size": 16}))
    optimizer = SparseAdagrad(model.tables, lr=0.1)
    result = train_skipgram(sampler(), model=model, optimizer=optimizer, progress=False)
    assert result.model is model
    assert result.embedding.shard.state["sum"].max() > 0
    assert separation(result.embeddings()) > 0.4


def test_subsampling_trains_fewer_tokens() -> None:
    config = SkipGramConfig(**{**vars(SMALL), "subsample": 0.01})
    full, less = (train_skipgram(sampler(), c, progress=False).history[-1] for c in (SMALL, config))
    assert full.tokens == 30 * 24 * 12
    # every node has about 1/24 of the visits: kept with sqrt(.24) + .24 = .73
    assert less.tokens / full.tokens == pytest.approx(0.73, abs=0.03)
    assert less.walks == full.walks


def test_ctrl_c_keeps_what_was_trained() -> None:
    def interrupt(line: SkipGramProgress) -> None:
        raise KeyboardInterrupt

    result = train_skipgram(sampler(), SMALL, progress=False, log_interval=0, on_batch=interrupt)
    assert result.interrupted
    assert result.history[-1].walks == 720
    assert result.embeddings().abs().max() > 0.05
    assert not train_skipgram(sampler(), SMALL, progress=False).interrupted


def test_training_goes_on_with_a_model() -> None:
    first = train_skipgram(sampler(), SMALL, progress=False)
    before = first.embeddings()
    again = train_skipgram(sampler(seed=1), model=first.model, seed=1, progress=False)
    assert again.model is first.model
    assert not torch.equal(again.embeddings(), before)


def test_exports_use_the_context_rows_as_told() -> None:
    model = train_skipgram(sampler(), SMALL, progress=False).model
    x, c = model.embedding.weight[:], model.context.weight[:]
    assert torch.equal(model.embeddings(), x)
    assert torch.equal(model.embeddings("add"), x + c)
    assert torch.equal(model.embeddings("concat"), torch.cat([x, c], dim=1))
    with pytest.raises(ConfigError, match="did you mean 'concat'"):
        model.embeddings("concta")


@pytest.mark.parametrize("tables", [1, 2])
def test_rows_themselves_are_given_where_no_copy_is_wanted(tables: int) -> None:
    model = SkipGram(24, SkipGramConfig(dim=16, tables=tables), seed=1)
    own, others = (table.transport.in_reach(table.name).weight for table in (model.embedding, model.context))
    others[:] += 0.5
    before = own.clone(), others.clone()
    for context, rows in (("none", own), ("only", others)):
        assert model.embeddings(context, copy=False).data_ptr() == rows.data_ptr()
        assert model.embeddings(context).data_ptr() != rows.data_ptr()
    assert torch.equal(model.embeddings("add", copy=False), before[0] + before[1])
    assert torch.equal(model.embeddings("concat", copy=False), torch.cat(before, dim=1))
    assert torch.equal(own, before[0])
    assert torch.equal(others, before[1])


@pytest.mark.usefixtures("fresh_mode")
@pytest.mark.parametrize("fields", [{"dtype": "float16"}, {"table": "hash", "rule": "adagrad"}])
def test_rows_that_memory_does_not_have_as_they_are_given_are_copied(fields: dict[str, Any]) -> None:
    model = SkipGram(24, SkipGramConfig(dim=16, **fields), seed=1)
    assert model.embeddings(copy=False).dtype == torch.float32
    assert torch.equal(model.embeddings(copy=False), model.embeddings())
    assert not torch.equal(model.embeddings(copy=False)[0], model.embeddings(copy=False)[1])


def test_first_rows_are_word2vecs() -> None:
    model = SkipGram(50, SMALL, seed=1)
    rows = model.embedding.weight[:]
    assert rows.abs().max() <= 0.5 / 16
    assert rows.std() == pytest.approx(1 / 16 / math.sqrt(12), rel=0.05)
    assert not model.context.weight[:].any()
    single = SkipGram(50, SkipGramConfig(dim=16, tables=1), seed=1)
    assert single.context is single.embedding
    assert single.embedding.weight[:].abs().max() == pytest.approx(0.25, rel=0.05)


def test_a_walk_of_isolated_nodes_trains_nothing() -> None:
    graph = Graph.from_edges([0], [1], num_nodes=4)
    result = train_skipgram(WalkSampler(graph, num_walks=20, walk_length=4), SMALL, progress=False, num_threads=1)
    fresh = SkipGram(4, SMALL).embeddings()
    assert torch.equal(result.embeddings()[2:], fresh[2:])
    assert not torch.equal(result.embeddings()[:2], fresh[:2])
    assert result.history[-1].tokens == 20 * (4 + 4 + 1 + 1)


def test_rows_that_diverge_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"skip-gram diverged: .* lower lr"):
        train_skipgram(sampler(), SkipGramConfig(**{**vars(SMALL), "path": "optimizer", "lr": 1e3}), progress=False)


@pytest.mark.parametrize("lr", [0.025, 0.5])
def test_sgd_stays_finite_where_one_node_is_half_of_every_walk(lr: float) -> None:
    # The steps of a hub add up within a block; unshortened they overshoot and the rows grow without bound.
    star = Graph.from_edges(np.zeros(200, int), np.arange(1, 201))
    walks = WalkSampler(star, num_walks=30, walk_length=40)
    result = train_skipgram(walks, SkipGramConfig(dim=16, lr=lr), progress=False, num_threads=1)
    assert result.embeddings().norm(dim=1).max() < 10


def test_the_bar_shows_rate_loss_and_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train_skipgram(sampler(), SMALL, progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_S", 0.0)  # standard error is a file here
    train_skipgram(sampler(), SMALL, log_interval=0)
    shown = capsys.readouterr().err
    assert all(part in shown for part in ("skip-gram", "tok/s", "loss ", "MiB"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"window": 2.5}, "window = 2.5"),
        ({"epochs": True}, "epochs = True"),
        ({"num_negatives": 0}, "num_negatives = 0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"negative_power": -0.5}, "negative_power = -0.5"),
        ({"subsample": -1e-3}, "subsample = -0.001"),
        ({"tables": 3}, "tables = 3"),
        ({"rule": "adagard"}, "did you mean 'adagrad'"),
        ({"window_weighting": "linaer"}, "did you mean 'linear'"),
        ({"lr_decay": "plateau"}, "lr_decay = 'plateau'"),
        ({"warmup": 1.0}, "warmup = 1.0"),
        ({"path": "fused"}, "path = 'fused'"),
    ],
)
def test_options_outside_their_limits_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SkipGramConfig(**options)


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = SkipGram(24, SMALL)
    optimizer = SparseAdagrad(model.tables[:1], lr=0.1)
    with pytest.raises(ConfigError, match="walk_length is 1"):
        train_skipgram(sampler(walk_length=1), SMALL)
    with pytest.raises(ConfigError, match="config differs"):
        train_skipgram(sampler(), SkipGramConfig(), model=model)
    with pytest.raises(ConfigError, match="24 rows and the graph 10 nodes"):
        train_skipgram(WalkSampler(two_groups(5)), model=model)
    with pytest.raises(ConfigError, match="pass model= as well"):
        train_skipgram(sampler(), optimizer=optimizer)
    with pytest.raises(ConfigError, match="does not train all tables"):
        train_skipgram(sampler(), model=model, optimizer=optimizer)
    with pytest.raises(ConfigError, match="set lr in the optimizer"):
        train_skipgram(sampler(), model=SkipGram(24, SkipGramConfig(lr=0.1)), optimizer=optimizer, progress=False)


def test_sgd_is_trained_in_place_and_all_else_by_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[type] = []
    for steps in (InPlaceSteps, GradientSteps):  # of which AutogradSteps is one
        run = steps.run
        monkeypatch.setattr(steps, "run", lambda self, *args, run=run: (taken.append(type(self)), run(self, *args))[1])
    for options in ({}, {"rule": "adam"}, {"path": "autograd"}, {"path": "optimizer"}):
        train_skipgram(sampler(num_walks=1), SkipGramConfig(**{**vars(SMALL), **options}), progress=False)
    assert taken == [InPlaceSteps, GradientSteps, AutogradSteps, GradientSteps]


def test_a_large_step_has_few_parts_and_a_small_one_parts_that_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert part_walks(128, 40) == 32  # enough walks for a thread
    assert part_walks(128, 10) == 128  # walks are short
    assert part_walks(4096, 40) == 256  # 16 parts
    assert part_walks(4097, 40) == 257
    parts: list[int] = []
    start = GradientSteps._start
    monkeypatch.setattr(
        GradientSteps, "_start", lambda self, part: (parts.append(len(part.walks)), start(self, part))[1]
    )
    config = SkipGramConfig(**{**vars(SMALL), "rule": "adam", "batch_size": 2000})
    train_skipgram(sampler(num_walks=100, walk_length=40), config, progress=False)
    assert parts == [125] * 16 + [125] * 3 + [25]  # 2,400 walks in two steps


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_pulls_no_rows_while_another_computes(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, started = threading.Event(), []
    run, start, result = Kernel.run, GradientSteps._start, Future.result
    busy: list[bool] = []

    def running(*args: Any) -> tuple[float, float]:
        assert waited.wait(60)  # until the training has nothing else to do
        return run(*args)

    def starting(self: GradientSteps, part: WalkBatch) -> Any:
        busy.append(not all(future.done() for future in started))
        made = start(self, part)
        started.append(made[1])
        return made

    def waiting(self: Future, timeout: float | None = None) -> Any:
        if self in started:  # the walks ahead of a step are futures too
            waited.set()
        return result(self, timeout)

    monkeypatch.setattr(Kernel, "run", running)
    monkeypatch.setattr(GradientSteps, "_start", starting)
    monkeypatch.setattr(Future, "result", waiting)
    config = SkipGramConfig(**{**vars(SMALL), "rule": "adam", "batch_size": 720})
    train_skipgram(sampler(num_walks=30), config, num_threads=threads, progress=False)
    assert len(busy) > 2
    assert any(busy) == (threads > 1)
