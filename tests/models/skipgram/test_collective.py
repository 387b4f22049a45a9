"""Skip-gram by several ranks: the arithmetic of one process, in step, and as good.

Every test of several ranks runs a module-level function on each; the single-process result is made in the test.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core import progress
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram import local_sgd
from graph_emb.models.skipgram import training as skipgram
from graph_emb.models.skipgram.kernels import move_numbers, number_rows
from graph_emb.models.skipgram.local_sgd import MOST_WALKS, growth_of, walks_together
from graph_emb.models.skipgram.steps import cut_sizes
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, SkipGramProgress, train_skipgram
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.lockstep import layout
from tests.models.skipgram.local_sgd import NODES, SMALL, WALKS, exchanged, fill, graph_of_groups, overlapped
from tests.ranks import Ranks


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No test takes over a mode, or leaves its own to the next."""
    ge.shutdown()
    yield
    ge.shutdown()


GROUPS = np.r_[0:50, 100:150, 50:100, 150:200]  # members of the first and of the second planted group
BOUNDS = [0, 25, 25, 40]  # the second part is empty
PLANTED: dict[str, Any] = {"dim": 16, "window": 5, "shared_negatives": 8, "block": 10, "lr": 0.05}


def start(graph: Graph, bounds: list[int], **options: Any) -> tuple[Any, PartitionedWalkSampler, RangeBook]:
    transport: Any = ge.init(mode="collective")
    book = RangeBook(bounds)
    part = PartGraph.of_graph(graph, transport.layout(book, "walks"), transport.rank)
    return transport, PartitionedWalkSampler(part, transport.group, **{**WALKS, **options}), book


def trained_on_a_rank(config: dict[str, Any], bounds: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """Train on a rank; all rows, the history, and how often tables were pulled and pushed."""
    try:
        transport, sampler, book = start(graph_of_groups(), bounds)
        model = SkipGram(NODES, SkipGramConfig(**config), seed=3, part_policy=book)
        fill(model)
        pulls: list[str] = []
        pull = transport.pull
        transport.pull = lambda table, ids: (pulls.append(table), pull(table, ids))[1]
        result = train_skipgram(sampler, model=model, num_threads=1, progress=False, **options)
        during = len(pulls)
        rows = [table.weight[:] for table in model.tables]
        return {"rows": rows, "history": result.history, "pulls": during, "pushes": transport.traffic.steps}
    finally:
        ge.shutdown()


def in_one_process(config: dict[str, Any]) -> list[torch.Tensor]:
    model = SkipGram(NODES, SkipGramConfig(**config), seed=3)
    fill(model)
    train_skipgram(WalkSampler(graph_of_groups(), **WALKS), model=model, num_threads=1, progress=False)
    return [table.weight[:] for table in model.tables]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("world_size", "bounds", "tables", "options"),
    [
        (2, [0, 25, 40], 2, {}),
        (3, BOUNDS, 1, {}),
        (3, BOUNDS, 2, {"reduction": "sum"}),
        (3, [0, 10, 25, 40], 2, {"remote_negatives": 2, "shared_negatives": 5}),
        (2, [0, 25, 40], 1, {"remote_negatives": 1}),
        (2, BOUNDS, 2, {"negative_pool": 7}),
        (2, [0, 25, 40], 2, {"overlap": True}),
        (3, BOUNDS, 1, {"overlap": True}),
        (3, BOUNDS, 2, {"overlap": True, "reduction": "sum"}),
    ],
)
def test_sgd_joins_what_each_rank_has_learnt(
    ranks: Ranks, world_size: int, bounds: list[int], tables: int, options: dict[str, int]
) -> None:
    walks = 12 if options.get("overlap") else 30
    config = {**SMALL, "exchange_walks": walks, "tables": tables, **options}
    found = ranks.run(trained_on_a_rank, world_size, config, bounds, {})
    borders = [*range(0, 160, walks * world_size), 160]
    in_words = overlapped if options.get("overlap") else exchanged
    expected = in_words(SkipGramConfig(**config), bounds, world_size, borders)
    exchanges = len(borders) - 1
    for rank in found:
        for mine, other in zip(rank["rows"], expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)
        assert rank["pushes"] == exchanges
        assert rank["pulls"] == len(rank["history"])  # each line looks at some rows
        assert (rank["history"][-1].hidden_share > 0) == bool(options.get("overlap"))


def trained_by_batches(walks: int, batches: int, config: dict[str, Any], bounds: list[int], options: Any) -> Any:
    """``trained_on_a_rank`` where a batch has so many walks of a rank, and a round so many batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipgram, "TOKENS_PER_ROUND", walks * WALKS["walk_length"])
        patch.setattr(local_sgd, "BATCHES_OF_A_ROUND", batches)
        return trained_on_a_rank(config, bounds, options)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("world_size", "exchange_walks", "batch", "batches"),
    [
        (2, 6, 24, 8),
        (2, 6, 24, 2),
        (2, 6, 24, 1),
        (2, None, 24, 8),  # intervals grow, and end where no batch does
        (2, None, 20, 3),
        (3, None, 3, 100),  # the last ones are longer than a batch
        (3, 9, 54, 2),
    ],
)
def test_intervals_go_on_from_batch_to_batch_until_rows_are_whole(
    ranks: Ranks, world_size: int, exchange_walks: int | None, batch: int, batches: int
) -> None:
    bounds, config = [0, 25, 40] if world_size == 2 else BOUNDS, {**SMALL, "overlap": True}
    size, growth = world_size, growth_of(SkipGramConfig(**config), NODES, WALKS["walk_length"])
    if exchange_walks is not None:
        config["exchange_walks"], size, growth = exchange_walks, exchange_walks * world_size, (0.0, 0)
    batch = max(batch, 2 * size)
    whole = [*range(0, 160, batch * batches), 160]
    rounds = [[*accumulate(cut_sizes(low, end - low, size, *growth), initial=low)] for low, end in pairwise(whole)]
    found = ranks.run(trained_by_batches, world_size, batch // world_size, batches, config, bounds, {"log_interval": 0})
    expected = overlapped(SkipGramConfig(**config), bounds, world_size, *rounds)
    for rank in found:
        for mine, other in zip(rank["rows"], expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)
        assert rank["pushes"] == sum(len(borders) - 1 for borders in rounds)
        assert [line.walks for line in rank["history"]] == [*range(batch, 160, batch), 160]


def stopped_and_resumed_on_a_rank(folder: Path) -> list[Any]:
    """Ctrl-C at 120 of 160 walks, then on from the newest checkpoint: interrupted, checkpoints and rows of each."""

    def press(line: SkipGramProgress) -> None:
        if line.walks == 120:
            os.kill(os.getpid(), signal.SIGINT)

    found, config = [], SkipGramConfig(**SMALL, exchange_walks=6, overlap=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipgram, "TOKENS_PER_ROUND", 12 * WALKS["walk_length"])
        patch.setattr(local_sgd, "BATCHES_OF_A_ROUND", 3)
        for resume in (False, True):
            _, sampler, book = start(graph_of_groups(), [0, 25, 40])
            try:
                model = SkipGram(NODES, config, seed=3, part_policy=book)
                fill(model)
                told: dict[str, Any] = {"log_interval": 0, "on_batch": None if resume else press}
                told["checkpoints"] = PeriodicCheckpoints(folder, 1, keep_last=9, resume=resume)
                result = train_skipgram(sampler, model=model, num_threads=1, progress=False, **told)
                saved = sorted(int(place.name) for place in folder.iterdir() if place.is_dir())
                found.append((result.interrupted, saved, [table.weight[:] for table in model.tables]))
            finally:
                ge.shutdown()
    return found


@pytest.mark.dist
def test_checkpoints_are_taken_where_rows_are_whole_and_go_on_to_the_same_rows(ranks: Ranks, tmp_path: Path) -> None:
    (stopped, resumed), _ = ranks.run(stopped_and_resumed_on_a_rank, 2, tmp_path)
    assert stopped[:2] == (True, [3])
    assert resumed[:2] == (False, [3, 6, 7])
    config = SkipGramConfig(**SMALL, exchange_walks=6, overlap=True)
    rounds = [*range(0, 73, 12)], [*range(72, 145, 12)], [144, 156, 160]
    for mine, other in zip(resumed[2], overlapped(config, [0, 25, 40], 2, *rounds), strict=True):
        np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)


def test_intervals_have_32_tokens_of_a_node_at_most() -> None:
    """BlogCatalog's of .2 of the walks had 160 at the end of 20 walks a node, and cost .2 points of micro-F1."""
    for overlap, growth in ((False, 0.2), (True, 0.13), (None, 0.2)):
        assert growth_of(SkipGramConfig(overlap=overlap), 1000, 40) == (growth, 800)
    assert growth_of(SkipGramConfig(reduction="sum"), 1000, 40) == (0.0, 0)
    assert growth_of(SkipGramConfig(exchange_walks=7), 1000, 40) == (0.0, 0)
    assert list(cut_sizes(1000, 1000, 100, 0.2, 300)) == [200, 240, 288, 272]
    assert list(cut_sizes(1000, 1000, 100, 0.2, 220)) == [200, 220, 220, 220, 140]
    assert list(cut_sizes(1000, 300, 100, 0.2, 50)) == [100, 100, 100]


@pytest.mark.dist
def test_intervals_grow_with_the_walks_behind_them(ranks: Ranks) -> None:
    """Two walks of each rank at first, then .2 of the walks so far."""
    found = ranks.run(trained_on_a_rank, 2, SMALL, [0, 25, 40], {})
    borders = [0]
    while borders[-1] < 160:
        borders.append(min(160, borders[-1] + max(2, int(0.2 * borders[-1]))))
    expected = exchanged(SkipGramConfig(**SMALL), [0, 25, 40], 2, borders)
    for rank in found:
        assert rank["pushes"] == len(borders) - 1
        for mine, other in zip(rank["rows"], expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.dist
@pytest.mark.parametrize(
    "options",
    [
        {"rule": "adam"},
        {"rule": "row_adagrad", "tables": 1},
        {"path": "optimizer"},
        {"rule": "adagrad", "path": "autograd"},
    ],
    ids=str,
)
def test_other_rules_step_as_one_process_with_the_whole_batch(ranks: Ranks, options: dict[str, Any]) -> None:
    config = {**SMALL, "lr": 0.05, "lr_decay": "linear", **options}
    found = ranks.run(trained_on_a_rank, 3, {**config, "batch_size": 10}, BOUNDS, {})
    expected = in_one_process({**config, "batch_size": 30})
    for rank in found:
        for mine, other in zip(rank["rows"], expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
        if options.get("path") != "autograd":
            assert rank["pulls"] == -(-160 // 30) * len(expected) + len(rank["history"])


@pytest.mark.dist
def test_one_rank_trains_as_a_program_without_ranks(ranks: Ranks) -> None:
    (found,) = ranks.run(trained_on_a_rank, 1, SMALL, BOUNDS, {})
    assert all(torch.equal(a, b) for a, b in zip(found["rows"], in_one_process(SMALL), strict=True))


@pytest.mark.dist
def test_lines_count_all_ranks_and_are_the_same_everywhere(ranks: Ranks) -> None:
    config = {**SMALL, "exchange_walks": 20, "subsample": 0.02, "epochs": 2}
    found = ranks.run(trained_on_a_rank, 2, config, [0, 25, 40], {"log_interval": 0})
    lines = train_skipgram(
        WalkSampler(graph_of_groups(), **WALKS), SkipGramConfig(**config), progress=False, num_threads=1, log_interval=0
    ).history
    first, second = ([{**line.as_dict(), "seconds": 0.0} for line in rank["history"]] for rank in found)
    assert first == second
    assert [(line["walks"], line["tokens"], line["lr"]) for line in first] == [
        (line.walks, line.tokens, line.lr) for line in lines
    ]
    assert 0.5 < first[-1]["local_share"] < 1
    assert 0 < first[0]["bytes_sent"] < first[1]["bytes_sent"]
    assert first[-1]["loss"] == pytest.approx(lines[-1].loss, rel=0.3)


def shown_by_a_rank(negative_scope: str) -> tuple[str, list[int]]:
    """What the bar writes, and the negatives that were drawn."""
    drawn: list[int] = []
    draw = NegativeSampler.sample_for

    def spy(self: NegativeSampler, *args: Any, **options: Any) -> np.ndarray:
        found = draw(self, *args, **options)
        drawn.extend(np.unique(found).tolist())
        return found

    NegativeSampler.sample_for = spy  # type: ignore[method-assign]
    shown = io.StringIO()
    between, progress.LINE_S = progress.LINE_S, 0.0  # standard error is no terminal here
    try:
        _, sampler, _ = start(graph_of_groups(), [0, 25, 40])
        config = SkipGramConfig(**SMALL, exchange_walks=20, negative_scope=negative_scope)
        with contextlib.redirect_stderr(shown):
            train_skipgram(sampler, config, num_threads=1, log_interval=0)
        return shown.getvalue(), sorted(set(drawn))
    finally:
        NegativeSampler.sample_for = draw  # type: ignore[method-assign]
        progress.LINE_S = between
        ge.shutdown()


@pytest.mark.dist
def test_the_first_rank_shows_the_bar_and_negatives_keep_to_their_scope(ranks: Ranks) -> None:
    alone = {19, 39}  # without an arc, so never drawn
    everywhere, own = ranks.run(shown_by_a_rank, 2, "global"), ranks.run(shown_by_a_rank, 2, "local")
    assert [bool(shown) for shown, _ in everywhere] == [True, False]
    parts = ("tok/s", "loss ", "slowest ", "x), 0 MiB in, 0 MiB out, ", "% local")
    assert all(part in everywhere[0][0] for part in parts)
    assert [drawn for _, drawn in everywhere] == [sorted(set(range(40)) - alone)] * 2
    assert [drawn for _, drawn in own] == [sorted(set(range(25)) - alone), sorted(set(range(25, 40)) - alone)]


def pooled_on_a_rank(pool: int) -> int:
    try:
        _, sampler, _ = start(graph_of_groups(), [0, 25, 40])
        config = SkipGramConfig(**SMALL, exchange_walks=2, negative_pool=pool)
        result = train_skipgram(sampler, config, num_threads=1, progress=False)
        return result.history[-1].bytes_sent
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_pool_of_negatives_lets_fewer_rows_travel(ranks: Ranks) -> None:
    every, pooled = ranks.run(pooled_on_a_rank, 2, 0)[0], ranks.run(pooled_on_a_rank, 2, 2)[0]
    assert pooled < 0.9 * every


def interrupted_on_a_rank(presses: int, overlap: bool) -> tuple[bool, int, bool, list[torch.Tensor]]:
    """The second rank gets Ctrl-C after its first line."""

    def press(line: SkipGramProgress) -> None:
        if os.environ["RANK"] == "1" and line.walks <= presses * 40:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    skipgram.TOKENS_PER_ROUND = 1
    try:
        _, sampler, book = start(graph_of_groups(), [0, 25, 40])
        config = SkipGramConfig(**SMALL, exchange_walks=10 if overlap else 20, overlap=overlap)
        model = SkipGram(NODES, config, seed=3, part_policy=book)
        fill(model)
        result = train_skipgram(sampler, model=model, num_threads=1, progress=False, log_interval=0, on_batch=press)
        rows = [table.weight[:] for table in model.tables]
        return result.interrupted, result.history[-1].walks, signal.getsignal(signal.SIGINT) is before, rows
    finally:
        skipgram.TOKENS_PER_ROUND = 1 << 21
        ge.shutdown()


@pytest.mark.parametrize(
    ("options", "num_nodes", "total_walks", "rate", "expected"),
    [
        ({}, 10, 80_000, 0.025, 200),  # a 400th of the training
        ({}, 4_000, 8_000, 0.01, 200),  # a token for each node
        ({}, 4_000, 8_000, 0.1, 50),
        ({}, 10**9, 10**9, 0.025, 2 * MOST_WALKS),
        ({"exchange_walks": 7}, 4_000, 80_000, 0.1, 14),
    ],
)
def test_the_interval_follows_the_graph_and_the_training(
    options: dict[str, int], num_nodes: int, total_walks: int, rate: float, expected: int
) -> None:
    model: Any = SimpleNamespace(
        num_nodes=num_nodes,
        config=SkipGramConfig(**options),
        embedding=SimpleNamespace(transport=SimpleNamespace(lockstep=True)),
        own_file=None,
    )
    assert walks_together(model, 2, 20, total_walks, rate) == expected


@pytest.mark.parametrize(
    ("options", "total_walks", "expected"),
    [
        ({}, 5_000, 100),  # a 50th of the training
        ({}, 10**9, 2 * (1 << 18) // 20),
        ({}, 10, 2),
        ({"exchange_walks": 7}, 80_000, 14),
    ],
)
def test_ranks_that_share_rows_wait_for_each_other_more_seldom(
    options: dict[str, int], total_walks: int, expected: int
) -> None:
    config = SkipGramConfig(**options)
    assert walks_together(SimpleNamespace(config=config), 2, 20, total_walks, 0.1, shared=True) == expected  # type: ignore[arg-type]


@pytest.mark.dist
@pytest.mark.parametrize("overlap", [False, True])
def test_ctrl_c_at_one_rank_ends_all_after_the_batch(ranks: Ranks, overlap: bool) -> None:
    config = SkipGramConfig(**SMALL, exchange_walks=10 if overlap else 20, overlap=overlap)
    in_words, size = (overlapped, 20) if overlap else (exchanged, 40)
    for presses, end in ((1, 80), (0, 160)):
        expected = in_words(config, [0, 25, 40], 2, [*range(0, end + 1, size)])
        for *told, rows in ranks.run(interrupted_on_a_rank, 2, presses, overlap):
            assert told == [end < 160, end, True]
            for mine, other in zip(rows, expected, strict=True):
                np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)


def refused_on_a_rank(what: str) -> str:
    try:
        transport, sampler, book = start(graph_of_groups(), [0, 25, 40])
        if what == "sampler":
            train_skipgram(WalkSampler(graph_of_groups(), **WALKS), SkipGramConfig(**SMALL))
        if what == "empty":
            part = PartGraph.of_graph(graph_of_groups(), transport.layout(RangeBook([0, 39, 40]), "w"), transport.rank)
            sampler = PartitionedWalkSampler(part, transport.group, **WALKS)
            train_skipgram(sampler, SkipGramConfig(**SMALL, negative_scope="local"))
        if what == "diverged":
            model = SkipGram(NODES, SkipGramConfig(**SMALL), part_policy=book)
            model.embedding.weight[30] = torch.full((1, 6), torch.nan)  # a row of the second rank
            train_skipgram(sampler, model=model, progress=False)
    except ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


@pytest.mark.dist
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sampler", "the walks are those of 1 ranks and the tables of 2"),
        ("empty", "the nodes of a rank have no arcs"),
        ("diverged", "rows are not finite"),
    ],
)
def test_what_one_rank_finds_wrong_is_an_error_of_all(ranks: Ranks, what: str, message: str) -> None:
    for said in ranks.run(refused_on_a_rank, 2, what):
        assert message in said


def test_a_part_that_is_the_whole_graph_trains_in_local_mode() -> None:
    places = layout(RangeBook([0, 40]), 1, None, "w")
    sampler = PartitionedWalkSampler(PartGraph.of_graph(graph_of_groups(), places, 0), **WALKS)
    whole = WalkSampler(graph_of_groups(), **WALKS)
    found, again = (
        train_skipgram(walks, SkipGramConfig(**SMALL), progress=False, num_threads=1).embeddings()
        for walks in (sampler, whole)
    )
    assert torch.equal(found, again)


def test_rows_are_numbered_own_first_then_tokens_then_negatives() -> None:
    walks = np.array([[7, 9, 7, -1], [8, -1, -1, -1], [9, 3, 9, 3]], np.int32)
    negatives = np.array([[5, 9, 1, 1], [2, 2, 2, 2], [4, 8, 4, 5]], np.int32)
    places = np.full(10, -1, np.int32)
    walks_out, negatives_out = np.empty_like(walks), np.empty_like(negatives)
    found = number_rows(walks, negatives, 3, 2, 7, 2, places, walks_out, negatives_out)  # own: 7 and 8
    assert found[0].tolist() == [9, 3, 5, 4]
    assert found[1:] == (2, 13, 3)
    np.testing.assert_array_equal(walks_out, [[0, 2, 0, -1], [-1, -1, -1, -1], [2, 3, 2, 3]])
    np.testing.assert_array_equal(negatives_out, [[4, 2, -1, -1], [-1, -1, -1, -1], [5, 1, 5, 4]])
    assert (places == -1).all()
    move_numbers(walks_out, 2, np.array([3, 0, 7, 1]))
    np.testing.assert_array_equal(walks_out, [[0, 5, 0, -1], [-1, -1, -1, -1], [5, 2, 5, 2]])


def accuracy(rows: np.ndarray) -> float:
    """Of telling the planted groups from a tenth of the labels, by the nearest mean."""
    size = len(rows) // 2
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    means = np.stack([unit[:10].mean(axis=0), unit[size : size + 10].mean(axis=0)])
    return float(((unit @ means.T).argmax(axis=1) == np.arange(2 * size) // size).mean())


def planted_on_a_rank(negative_scope: str) -> np.ndarray:
    try:
        # Parts that cut both groups in two, so that neither rank sees a group whole.
        graph = planted()
        _, sampler, _ = start(graph, [0, 100, 200], num_walks=20, walk_length=20)
        config = SkipGramConfig(**PLANTED, negative_scope=negative_scope, exchange_walks=100)
        return train_skipgram(sampler, config, num_threads=1, progress=False).embeddings().numpy()
    finally:
        ge.shutdown()


def planted() -> Graph:
    """Two groups of 100 at nodes 0-49 and 100-149, and 50-99 and 150-199."""
    return Graph.from_edges(*GROUPS[graph_of_groups(100, links=60).edges().T], num_nodes=200)


@pytest.mark.dist
@pytest.mark.parametrize("negative_scope", ["global", "local"])
def test_two_ranks_find_planted_groups_as_well_as_one(ranks: Ranks, negative_scope: str) -> None:
    found = ranks.run(planted_on_a_rank, 2, negative_scope)
    np.testing.assert_array_equal(found[0], found[1])
    config = SkipGramConfig(**PLANTED)
    sampler = WalkSampler(planted(), **{**WALKS, "num_walks": 20, "walk_length": 20})
    local = train_skipgram(sampler, config, num_threads=1, progress=False).embeddings().numpy()
    assert accuracy(local[GROUPS]) > 0.9
    assert accuracy(found[0][GROUPS]) > accuracy(local[GROUPS]) - 0.03
