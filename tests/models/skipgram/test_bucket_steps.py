"""Walk models by buckets: the order alone decides the rows, wherever they lie."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.models.skipgram import bucket_steps
from graph_emb.models.skipgram.bucket_steps import episode_walks
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.training import SkipGramResult, train_skipgram
from graph_emb.optimizer import SparseSGD
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from tests.models.skipgram.local_sgd import NODES, SMALL, graph_of_groups

pytestmark = pytest.mark.usefixtures("fresh_mode")

PARTS = 4
ROWS_OF_A_PAGE = 2
MEMORY = 20 * 5 + 11 * (4096 + 64)
"""Two parts of five pages, one page more, and the map of the pages of a table of rows of 512 numbers."""


ONE = {"tables": 1, "lr": 0.1, "shared_negatives": 8}


def trained(placement: Any = "host", threads: int = 1, seed: int = 0, **fields: Any) -> SkipGramResult:
    walks = WalkSampler(graph_of_groups(), num_walks=4, walk_length=12, seed=1)
    given = {**SMALL, "dim": 512, "buckets": PARTS, "episode_walks": 50, "epochs": 2, **fields}
    model = SkipGram(NODES, SkipGramConfig(**given), seed=seed, placement=placement)
    return train_skipgram(walks, model=model, seed=seed, num_threads=threads, progress=False, log_interval=1e-9)


def test_rows_do_not_depend_on_where_they_lie(tmp_path: Path) -> None:
    expected = trained()
    rows = expected.embeddings("concat")
    for name, placement in {
        "two parts": ge.Buckets(tmp_path, MEMORY, parts=PARTS),
        "file of one part, no room ahead": ge.File(tmp_path, 20 * 5 + 6 * 4160, "lru"),
        "device": ge.DeviceCache(25 * 2048),
    }.items():
        found = trained(placement)
        assert torch.equal(found.embeddings("concat"), rows), name
        assert [line.loss for line in found.history] == [line.loss for line in expected.history], name
        for table in found.model.tables:
            stats = table.cache_stats()  # type: ignore[union-attr]
            assert stats.dirty_writes > 0, name
    assert not torch.equal(trained(seed=1).embeddings(), rows[:, :512])
    assert not torch.equal(trained(buckets=2).embeddings(), rows[:, :512])
    assert not torch.equal(trained(episode_walks=160).embeddings(), rows[:, :512])
    assert not torch.equal(trained(buckets=0, episode_walks=None).embeddings(), rows[:, :512])


def test_rows_that_are_tokens_and_contexts_do_not_depend_on_where_they_lie_either(tmp_path: Path) -> None:
    expected = trained(**ONE)
    rows = expected.embeddings()
    for name, placement in {
        "two parts": ge.Buckets(tmp_path, MEMORY, parts=PARTS),
        "two parts, no room ahead": ge.File(tmp_path, 20 * 5 + 11 * 4160, "lru"),
        "three parts": ge.Buckets(tmp_path, 20 * 5 + 16 * 4160, parts=PARTS),
    }.items():
        found = trained(placement, **ONE)
        assert torch.equal(found.embeddings(), rows), name
        (table,) = found.model.tables
        assert table.cache_stats().dirty_writes > 0, name  # type: ignore[union-attr]
    assert not torch.equal(trained(**{**ONE, "buckets": 3}).embeddings(), rows)
    with pytest.raises(ConfigError, match=r"its memory holds not 2 of 4 parts; raise train.memory or"):
        trained(ge.File(tmp_path, 20 * 5 + 9 * 4160), **ONE)


def test_one_table_by_buckets_learns_what_it_learns_without() -> None:
    """Both sides of a pair change the one row, and each pair trains from either side."""
    found = {}
    for buckets in (0, 4):
        given = {**ONE, "dim": 16, "epochs": 40, "lr": 0.05, "buckets": buckets}
        rows = trained(episode_walks=40 if buckets else None, **given).embeddings()
        rows = torch.nn.functional.normalize(torch.cat([rows[:19], rows[20:39]]), dim=1)  # two nodes are alone
        cosine = rows @ rows.T
        found[buckets] = float(cosine[:19, :19].mean() - cosine[:19, 19:].mean())
    assert found[0] > 0.3
    assert found[4] == pytest.approx(found[0], rel=0.3)


def test_parts_come_before_they_are_needed_one_a_swap(tmp_path: Path) -> None:
    found = trained(ge.Buckets(tmp_path, MEMORY, parts=PARTS))
    episodes = 2 * 4  # of 160 walks an epoch
    for table, swaps in zip(found.model.tables, (PARTS - 1, PARTS * (PARTS - 1)), strict=True):
        stats = table.cache_stats()  # type: ignore[union-attr]
        assert stats.misses == 0
        most = 5 * swaps * episodes
        assert 0.6 * most < stats.evictions <= most  # a page more than two parts may stay
        assert 0.6 * most < stats.prefetched <= most


@pytest.mark.parametrize("fields", [{}, ONE], ids=["two tables", "one"])
def test_the_next_episodes_parts_come_while_the_last_bucket_trains(fields: dict[str, Any], tmp_path: Path) -> None:
    told: dict[str, list[int]] = {}
    original = ge.DistEmbedding.hold

    def hold(table: ge.DistEmbedding, ranges: Any) -> None:
        told.setdefault(table.name, []).append(len({*ranges}))
        original(table, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ge.DistEmbedding, "hold", hold)
        trained(ge.Buckets(tmp_path, 20 * 5 + 16 * 4160, parts=PARTS), **fields)
    for counts in told.values():
        assert len(counts) == 2 * 4 * PARTS**2
        ends = counts[PARTS**2 - 1 :: PARTS**2]  # the last bucket of each of the eight episodes
        assert min(ends[:-1]) > ends[-1]


def test_each_walk_trains_at_its_own_rate_and_pairs_and_tokens_are_those_of_a_plain_run() -> None:
    plain, found = trained(buckets=0, episode_walks=None), trained()
    last, other = plain.history[-1], found.history[-1]
    assert (other.walks, other.tokens, other.lr) == (last.walks, last.tokens, last.lr)
    assert trained(lr=1e-6).history[0].loss == pytest.approx(6 * math.log(2), rel=1e-4)  # a pair and five negatives
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        original = bucket_steps.train_pairs

        def noted(walks: Any, index: Any, *rest: Any) -> Any:
            seen.append((index, rest[2:4], rest[-2]))
            return original(walks, index, *rest)

        patch.setattr(bucket_steps, "train_pairs", noted)
        trained(lr=0.32, threads=2)
    assert len(seen) == 2 * 4 * PARTS**2 * 2  # epochs, episodes, buckets, threads
    assert {int(index[0]) for index, *_ in seen} == {0, 25, 50, 75, 100, 125, 150, 155}
    for number, (index, _, rates) in enumerate(seen):
        done = (0 if number < len(seen) // 2 else 160) + index
        np.testing.assert_allclose(rates, 0.32 - done * 0.001, rtol=1e-6)
    buckets = [bucket for _, bucket, *_ in seen[::2]]  # of one thread
    episodes = [buckets[at : at + PARTS**2] for at in range(0, len(buckets), PARTS**2)]
    assert all(one[-1] == other[0] for one, other in pairwise(episodes))
    assert len(set(map(tuple, episodes))) == 8


def test_a_batch_is_an_episode_whatever_draws_the_walks() -> None:
    edges, calls = EdgeSampler.of_graph(graph_of_groups(), draws_per_edge=3), []
    with pytest.MonkeyPatch.context() as patch:
        original = bucket_steps.train_pairs
        patch.setattr(bucket_steps, "train_pairs", lambda *args: calls.append(len(args[0])) or original(*args))
        config = SkipGramConfig(**{**SMALL, "window": 1, "buckets": 3, "episode_walks": 100})
        train_skipgram(edges, config, num_threads=1, progress=False)
    total = edges.num_walks_per_epoch
    assert total > 200
    assert calls == [100] * 9 * (total // 100) + [total % 100] * 9


def test_groups_come_apart_and_threads_share_rows() -> None:
    rows = trained(threads=2, dim=16, epochs=30, shared_negatives=30, episode_walks=None).embeddings()
    rows = torch.nn.functional.normalize(torch.cat([rows[:19], rows[20:39]]), dim=1)  # two nodes are alone
    cosine = rows @ rows.T
    assert cosine[:19, :19].mean() > cosine[:19, 19:].mean() + 0.2


def test_a_training_that_goes_on_ends_with_the_rows_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    walks = WalkSampler(graph_of_groups(), num_walks=4, walk_length=12, seed=1)
    config = SkipGramConfig(**{**SMALL, "dim": 512, "buckets": PARTS, "episode_walks": 50, "epochs": 2})

    def run(resume: bool, stop_at: int = 0) -> torch.Tensor:
        placement = ge.Buckets(tmp_path / "rows", MEMORY, parts=PARTS, leftover="remove")
        model = SkipGram(NODES, config, seed=0, placement=placement, name="node")

        def stop(line: Any) -> None:
            if line.walks == stop_at:
                raise Stop

        options: dict[str, Any] = {"num_threads": 1, "progress": False, "log_interval": 1e-9, "on_batch": stop}
        checkpoints = PeriodicCheckpoints(tmp_path / "kept", 1, resume=resume)
        return train_skipgram(walks, model=model, checkpoints=checkpoints, **options).embeddings("concat")

    with pytest.raises(Stop):
        run(False, stop_at=160 + 100)  # in the middle of the second epoch
    ge.shutdown()
    ge.init(mode="local")
    assert torch.equal(run(True), trained().embeddings("concat"))


def test_walks_of_an_episode_take_a_quarter_of_two_parts_and_a_twentieth_of_the_training_at_most() -> None:
    config = SkipGramConfig(dim=128, buckets=8)
    parts_bytes = 2 * 1_000_000 // 8 * 512  # one of each table, or two of one
    assert episode_walks(config, 1_000_000, 40, 10**9) == parts_bytes // 4 // 372
    assert episode_walks(SkipGramConfig(dim=128, buckets=8, tables=1), 1_000_000, 40, 10**9) == parts_bytes // 4 // 372
    assert episode_walks(config, 1_000_000, 40, 10**6) == 50_000
    assert episode_walks(SkipGramConfig(buckets=8, episode_walks=7), 1_000_000, 40, 10**6) == 7
    assert episode_walks(config, 10, 40, 3) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"buckets": 1}, "buckets = 1: at least 2 parts"),
        ({"episode_walks": 5}, "episode_walks = 5 belongs to buckets"),
        ({"buckets": 4, "rule": "adagrad"}, "take rule=sgd, path=auto and dtype=float32"),
        ({"buckets": 4, "path": "optimizer"}, "take rule=sgd, path=auto and dtype=float32"),
        ({"buckets": 4, "typed_negatives": True}, "buckets = 4 and typed_negatives = True"),
        ({"buckets": 4, "negative_scope": "local"}, "buckets = 4 and negative_scope = 'local'"),
    ],
)
def test_settings_that_do_not_go_with_buckets_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SkipGramConfig(**fields)


def test_rows_that_cannot_be_changed_in_place_and_a_memory_without_a_part_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"placement of 5 parts, train.buckets = 4: they must be the same"):
        trained(ge.Buckets(tmp_path, MEMORY, parts=5))
    with pytest.raises(ConfigError, match=r"its memory holds none of 4 parts; raise train.memory or train.buckets"):
        trained(ge.File(tmp_path, 20 * 5 + 4 * 4160))
    walks = WalkSampler(graph_of_groups(), num_walks=1, walk_length=12)
    model = SkipGram(NODES, SkipGramConfig(buckets=4))
    with pytest.raises(ConfigError, match="pass no optimizer"):
        train_skipgram(walks, model=model, optimizer=SparseSGD(model.tables, lr=0.1), progress=False)
    frozen = SkipGram(NODES, SkipGramConfig(buckets=4))
    frozen.embedding.freeze([3])  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="frozen, or not on the CPU"):
        train_skipgram(walks, model=frozen, progress=False)
    ge.shutdown()
    ge.init(mode="collective")
    with pytest.raises(ConfigError, match="one process trains by buckets; take mode='local'"):
        train_skipgram(walks, SkipGramConfig(buckets=4), progress=False)


def test_more_parts_than_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"buckets of {NODES + 1} parts of {NODES} rows"):
        trained(buckets=NODES + 1)
