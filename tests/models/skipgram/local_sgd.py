"""What several trainers in place must come to: a small graph, its model, and local SGD in so many words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram.steps import MOST_CHANGE, Kernel, WalkRates
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig
from graph_emb.sampling.negatives import NearNegativeSampler, NegativeSampler
from graph_emb.sampling.walks import WalkSampler

NODES = 40
WALKS: dict[str, Any] = {"num_walks": 4, "walk_length": 9, "seed": 2}
SMALL: dict[str, Any] = {"dim": 6, "window": 2, "shared_negatives": 3, "block": 4, "lr": 0.1}


def graph_of_groups(size: int = 20, links: int = 12, seed: int = 0) -> Graph:
    """Two groups, dense inside and with few edges across, their nodes one after the other; two nodes are alone."""
    rng = np.random.default_rng(seed)
    half = size - 1
    inside = [rng.integers(0, half, (4 * size, 2)) + start for start in (0, size)]
    across = np.stack([rng.integers(0, half, links), rng.integers(0, half, links) + size], axis=1)
    edges = np.concatenate([*inside, across])
    return Graph.from_edges(edges[:, 0], edges[:, 1], num_nodes=2 * size, self_loops="drop")


def fill(model: SkipGram) -> None:
    """Rows that are not small, so that every term of a step counts."""
    for number, table in enumerate(model.tables):
        table.weight[:] = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(number)) * 0.3


class LocalSGD:
    """Ranks in so many words: each trains a copy of everything, of which its own rows are the tables'."""

    def __init__(self, config: SkipGramConfig, bounds: list[int], world_size: int) -> None:
        graph, self.config = graph_of_groups(), config
        self.negatives = NegativeSampler(WalkSampler(graph).degrees(), seed=0)
        self.kernels = [Kernel(config, self.negatives)] * world_size
        self.tables = [
            torch.randn(NODES, 6, generator=torch.Generator().manual_seed(k)).numpy() * 0.3
            for k in range(config.tables)
        ]
        places = [low * world_size // (len(bounds) - 1) for low in range(len(bounds) - 1)]
        (self.walks,) = WalkSampler(graph, **WALKS).batches(10_000)
        part_of = np.searchsorted(bounds[1:-1], np.arange(NODES), side="right")
        owner_of, self.owner = np.array(places)[part_of], np.array(places)[part_of[self.walks[:, 0]]]
        self.own = [(owner_of == rank)[:, None] for rank in range(world_size)]
        if config.remote_negatives:
            owned = [np.flatnonzero(own) for own in self.own]
            options = (config.shared_negatives, config.remote_negatives)
            near = [NearNegativeSampler(self.negatives, (int(o[0]), int(o[-1]) + 1), *options) for o in owned]
            self.kernels = [Kernel(config, sampler) for sampler in near]
        self.decay = WalkRates(config.first_lr, len(self.walks))

    def index(self, rank: int, low: int, high: int) -> np.ndarray:
        """The walks [low, high) of a rank."""
        found: np.ndarray = low + np.flatnonzero(self.owner[low:high] == rank)
        return found

    def train(self, rank: int, first: int, index: np.ndarray, others: list[np.ndarray]) -> None:
        """Train walks of an interval that begins with walk ``first`` on own rows and on copies, both in place."""
        if not len(index):
            return
        own, config = self.own[rank], self.config
        rows = [np.where(own, table, other) for table, other in zip(self.tables, others, strict=True)]
        pair = (rows[0], rows[-1])
        pool = self.negatives.pool(config.negative_pool, first + rank) if config.negative_pool else None
        drawn = self.kernels[rank].draw(self.walks[index], 0, index, pool)
        self.kernels[rank].run(self.walks[index], drawn, pair, pair, self.decay.of(index), MOST_CHANGE, index)
        for table, other, row in zip(self.tables, others, rows, strict=True):
            table[own[:, 0]], other[~own[:, 0]] = row[own[:, 0]], row[~own[:, 0]]

    def copies(self) -> list[np.ndarray]:
        """All rows as they are now."""
        return [table.copy() for table in self.tables]


def exchanged(config: SkipGramConfig, bounds: list[int], world_size: int, borders: list[int]) -> list[np.ndarray]:
    """Local SGD in so many words: all changes of an interval are joined.

    ``borders`` are the first walks of the intervals, and the number of all.
    """
    ranks = LocalSGD(config, bounds, world_size)
    for low, high in pairwise(borders):
        begun, changes = ranks.copies(), []
        for rank, own in enumerate(ranks.own):
            others = [table.copy() for table in begun]
            ranks.train(rank, low, ranks.index(rank, low, high), others)
            changes.append([np.where(own, 0, new - old) for new, old in zip(others, begun, strict=True)])
        if config.adaptive(lockstep=True):
            join(ranks.tables, begun, changes)
        else:
            add(ranks.tables, [changes])
    return ranks.tables


def overlapped(config: SkipGramConfig, bounds: list[int], world_size: int, *rounds: list[int]) -> list[np.ndarray]:
    """``exchanged`` where rows and changes travel while the ranks train; after each round all rows are whole.

    Copies of an interval are rows as they were in the middle of the one before, less what their rank has changed since.
    Changes are joined in the middle of the next interval, with as much of what the owner and others did meanwhile as
    belongs to one interval.
    """
    ranks = LocalSGD(config, bounds, world_size)
    for borders in rounds:
        overlap(ranks, borders)
    return ranks.tables


def overlap(ranks: LocalSGD, borders: list[int]) -> None:
    """A round of ``overlapped``."""
    config, size = ranks.config, range(len(ranks.own))
    laid = [[ranks.copies() for _ in size]]  # by interval and rank
    own_changes = [[np.zeros_like(table) for table in ranks.tables] for _ in size]
    done, when = 0.0, [0.0]

    def take(number: int) -> None:
        share = (borders[number + 1] - borders[number]) / (done - when[number])
        for rank in size:
            later = laid[number + 1][rank] if number + 1 < len(laid) else None
            for t, table in enumerate(ranks.tables):
                before, change = laid[number][rank][t], own_changes[rank][t]
                owner, both = table - before, change
                if config.adaptive(lockstep=True):
                    both = adasum(share * owner, change) - share * owner
                table += both
                if later is not None:
                    later[t] += both

    for number, (low, high) in enumerate(pairwise(borders)):
        views = [[row + late for row, late in zip(laid[number][r], own_changes[r], strict=True)] for r in size]
        others, halves = [[view.copy() for view in of_rank] for of_rank in views], []
        for rank in size:
            index = ranks.index(rank, low, high)
            halves.append(np.split(index, [len(index) // 2]))
            ranks.train(rank, low, halves[rank][0], others[rank])
        done += (high - low) / 2
        if number:
            take(number - 1)
        if high < borders[-1]:
            laid.append([ranks.copies() for _ in size])
            when.append(done)
        for rank in size:
            ranks.train(rank, low, halves[rank][1], others[rank])
        done += (high - low) / 2
        own_changes = [
            [np.where(ranks.own[rank], 0, new - old) for new, old in zip(others[rank], views[rank], strict=True)]
            for rank in size
        ]
    take(len(borders) - 2)


def join(tables: list[np.ndarray], begun: list[np.ndarray], changes: list[list[np.ndarray]]) -> None:
    """Join the changes of an interval, by rank and table, with the owners' by AdaSum, rank after rank."""
    for of_rank in changes:
        for table, before, change in zip(tables, begun, of_rank, strict=True):
            table[:] = before + adasum(table - before, change)


def adasum(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Row by row, each less half of what the other has in its direction; in float64."""
    a, b = one.astype(float), other.astype(float)
    common = (a * b).sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = [np.nan_to_num(common / (2 * (c * c).sum(1, keepdims=True))) for c in (a, b)]
    return ((1 - shares[0]) * a + (1 - shares[1]) * b).astype(np.float32)


def add(tables: list[np.ndarray], turns: list[list[list[np.ndarray]]]) -> None:
    """Add the changes of intervals, by rank and table."""
    for changes in (of_rank for turn in turns for of_rank in turn):
        for table, change in zip(tables, changes, strict=True):
            table += change
