"""Skip-gram by buckets: the pairs of an episode of walks, bucket by bucket of a p x p grid of parts of the nodes.

Both tables have the same parts, or both sides are one table. A bucket trains the tokens of one part with those of their
contexts that lie in another one, and with negatives from that, so that it touches two parts only (GraphVite, Zhu et
al. 2019, "GraphVite: A High-Performance CPU-GPU Hybrid System for Node Embedding"). A token of a walk passes all
context parts in an episode: its negatives are those of ``PartNegatives``, which together stand for draws among all
nodes, and each of its pairs trains at its walk's rate. A walk may be an edge, whose ends are each other's context. An
episode's walks stay in memory, 8 bytes a token and 4 a walk and part; no pair is written down.
"""

# P parts, N nodes, D width, L nodes of a walk.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.models.skipgram.config import SkipGramConfig, SkipGramTraining
from graph_emb.models.skipgram.model import SkipGram, distance_ramp
from graph_emb.models.skipgram.pair_kernels import sort_by_part, train_pairs
from graph_emb.models.skipgram.steps import (
    MOST_CHANGE,
    WalkBatch,
    WalkRates,
    in_parts,
    summed,
    trainable_in_place,
)
from graph_emb.optimizer import SparseSGD
from graph_emb.sampling.buckets import GridSchedule
from graph_emb.sampling.negatives import PartNegatives
from graph_emb.table.placement import Buckets
from graph_emb.table.tier.shard import TieredShard

EPISODE_SHARE = 0.25
"""Bytes of an episode's walks by default, in units of the two parts of rows that are in memory at a time."""
EPISODES = 20
"""Episodes of a whole training by default, at least."""


def episode_walks(config: SkipGramConfig, num_nodes: int, walk_length: int, total_walks: int) -> int:
    """Walks of an episode: ``config.episode_walks``, or as ``EPISODE_SHARE`` and ``EPISODES`` have it."""
    assert config.buckets
    in_memory = 2 * num_nodes * config.dim * 4 // config.buckets
    of_walk = 8 * walk_length + 4 * (config.buckets + 1) + 16  # nodes and their order, starts of the parts, numbers
    fitting = int(EPISODE_SHARE * in_memory) // of_walk
    return config.episode_walks or max(1, min(fitting, total_walks // EPISODES))


def parts_held(config: SkipGramConfig) -> int:
    """Parts of each table that memory must hold: a token and a context part, of two tables or of one."""
    return 3 - config.tables


def tables_share(config: SkipGramTraining) -> float:
    """The share of a training's memory that tables have; the rest is for the walks of an episode."""
    return 1 / (1 + EPISODE_SHARE) if config.buckets else 1.0


class BucketSteps:
    """SGD in place, as ``InPlaceSteps`` takes it, bucket by bucket; rows may lie in files of which memory holds parts.

    Args:
        model: Tables that one process holds, in memory or in files.
        negatives: Of the parts of ``parts_of``.
        decay: As for every stepper.
        pool, threads: Threads that train a bucket; they share rows without locks. One is deterministic.
        per_epoch: Walks of an epoch.
        size: Walks of an episode.
        seed: Of the order of the buckets.
    Raises:
        ConfigError: rows that cannot be changed in place, or a memory that does not hold a part of each table.
    """

    def __init__(
        self,
        model: SkipGram,
        negatives: PartNegatives,
        decay: WalkRates,
        pool: ThreadPoolExecutor,
        threads: int,
        per_epoch: int,
        size: int,
        seed: int = 0,
    ) -> None:
        config = model.config
        assert config.buckets
        self.size, self.optimizer = size, None
        self._decay, self._pool, self._threads = decay, pool, threads
        self._tables = _fitting_tables(model)
        self._schedule = GridSchedule(config.buckets, model.num_nodes, seed)
        for table in self._tables:
            _check_room(table, self._schedule, parts_held(config))
        if model.file is not None:
            self._claim = SparseSGD(model.tables, lr=1.0)  # no other optimizer may train these tables meanwhile
        self._negatives = negatives
        self._num_negatives = np.float32(config.num_negatives)
        self._episodes = -(-per_epoch // size)
        self._last = config.epochs * self._episodes - 1
        ramp = distance_ramp(config)
        reach = len(ramp) // 2
        self._ramp = ramp[reach - config.window : reach + config.window + 1].copy()
        sums = np.concatenate([[0.0], np.cumsum(self._ramp, dtype=np.float64)]).astype(np.float32)
        self._window = self._ramp, sums, config.block * config.buckets

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """See ``Steps.run``; a batch is an episode."""
        episode = batch.epoch * self._episodes + batch.first // self.size
        buckets = self._schedule.buckets(episode).tolist()
        coming = [] if episode == self._last else self._schedule.buckets(episode + 1).tolist()
        order = np.empty(batch.walks.shape, np.int32)
        starts = np.empty((len(batch.walks), self._schedule.parts + 1), np.int32)
        sort_by_part(batch.walks, self._schedule.bounds, order, starts)
        found = []
        for number, bucket in enumerate(buckets):
            self._hold([*buckets[number:], *coming])
            found.append(self._train(batch, (order, starts), *bucket))
        return summed(found)

    def _hold(self, buckets: list[list[int]]) -> None:
        """Bring the parts of the first of buckets into memory, and begin with those of the next one that has others."""
        if len(self._tables) == 1:
            following = next((bucket for bucket in buckets if not {*bucket} <= {*buckets[0]}), [])
            parts = dict.fromkeys([*buckets[0], *following])
            self._tables[0].hold([self._range(part) for part in parts])
            return
        for side, table in enumerate(self._tables):
            now = buckets[0][side]
            other = next((bucket[side] for bucket in buckets if bucket[side] != now), now)
            table.hold([self._range(part) for part in (now, other)])

    def _range(self, part: int) -> tuple[int, int]:
        bounds = self._schedule.bounds
        return int(bounds[part]), int(bounds[part + 1])

    def _train(
        self, batch: WalkBatch, by_part: tuple[np.ndarray, np.ndarray], token_part: int, context_part: int
    ) -> tuple[float, float]:
        """Train a bucket of the pairs of a batch."""
        ranges = [self._range(part) for part in (token_part, context_part)]
        if len(self._tables) == 1:
            weight, places = self._tables[0].shard.held_rows(*ranges)
            held = [(weight, own) for own in places]
        else:
            both = (table.shard.held_rows(own) for table, own in zip(self._tables, ranges, strict=True))
            held = [(weight, places[0]) for weight, places in both]
        sides = [(weight.detach().numpy(), own, low) for (weight, own), (low, _) in zip(held, ranges, strict=True)]
        drawn, weight = self._negatives.num_drawn[context_part], self._negatives.weights[context_part]
        key = self._negatives.key(batch.epoch, token_part, context_part)
        drawing = (*self._negatives.tables(context_part), drawn, self._num_negatives * weight, key)

        def share(low: int, high: int) -> tuple[float, float]:
            walks, index = batch.walks[low:high], batch.index[low:high]
            found = (*(rows[low:high] for rows in by_part), token_part, context_part)
            rate = (self._decay.of(batch.begun + index), np.float32(MOST_CHANGE))
            return train_pairs(walks, index, *found, *sides[0], *sides[1], *drawing, *self._window, *rate)

        return in_parts(share, len(batch.walks), self._pool, self._threads)


def _fitting_tables(model: SkipGram) -> list[DistEmbedding]:
    """Token and context table, or one that is both, whose rows this process alone changes, in place."""
    transport, said = model.embedding.transport, f"buckets = {model.config.buckets}"
    if transport.mode != "local":
        raise ConfigError(f"{said}: one process trains by buckets; take mode='local', or leave train.buckets out")
    tables = [table for table in model.tables if isinstance(table, DistEmbedding)]
    if not all(trainable_in_place(transport.in_reach(table.name)) for table in tables):
        raise ConfigError(f"{said}: rows that are frozen, or not on the CPU, cannot be changed in place; unfreeze them")
    for table in tables:
        placement = table.spec.placement
        if isinstance(placement, Buckets) and placement.parts != model.config.buckets:
            raise ConfigError(
                f"placement of {placement.parts} parts, train.buckets = {model.config.buckets}: they must be the same"
            )
    return tables


def _check_room(table: DistEmbedding, schedule: GridSchedule, parts: int) -> None:
    """Raise a ConfigError where memory does not hold as many parts, whichever."""
    shard, ranges = table.shard, [*pairwise(schedule.bounds.tolist())]
    if isinstance(shard, TieredShard) and shard.num_held(ranges) < parts:
        said = "none" if parts == 1 else f"not {parts}"
        raise ConfigError(
            f"table {table.name!r}: its memory holds {said} of {schedule.parts} parts; raise train.memory or "
            "train.buckets"
        )
