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


def exchanged(config: SkipGramConfig, bounds: list[int], world_size: int, borders: list[int]) -> list[np.ndarray]:
    """Local SGD in so many words: each rank trains a copy of everything, and all changes of an interval are joined.

    ``borders`` are the first walks of the intervals, and the number of all. Where exchanges overlap, a rank sees rows
    of others as they were an interval before, with its own changes of the two intervals before on top; the others'
    changes reach the owner an interval late.
    """
    graph = graph_of_groups()
    negatives = NegativeSampler(WalkSampler(graph).degrees(), seed=0)
    kernels = [Kernel(config, negatives)] * world_size
    tables = [
        torch.randn(NODES, 6, generator=torch.Generator().manual_seed(k)).numpy() * 0.3 for k in range(config.tables)
    ]
    places = [low * world_size // (len(bounds) - 1) for low in range(len(bounds) - 1)]
    (walks,) = WalkSampler(graph, **WALKS).batches(10_000)
    part_of = np.searchsorted(bounds[1:-1], np.arange(NODES), side="right")
    owner_of, owner = np.array(places)[part_of], np.array(places)[part_of[walks[:, 0]]]
    if config.remote_negatives:
        owned = [np.flatnonzero(owner_of == rank) for rank in range(world_size)]
        options = (config.shared_negatives, config.remote_negatives)
        near = [NearNegativeSampler(negatives, (int(own[0]), int(own[-1]) + 1), *options) for own in owned]
        kernels = [Kernel(config, sampler) for sampler in near]
    decay = WalkRates(config.first_lr, len(walks))
    late = bool(config.overlap)
    seen = [table.copy() for table in tables]  # rows as others get them in the next interval
    turns: list[list[list[np.ndarray]]] = []  # changes of copies, by interval, rank and table
    for low, high in pairwise(borders):
        begun = [table.copy() for table in tables]
        held, under_way = (seen, turns[-2:]) if late else (begun, [])
        turns.append([])
        for rank in range(world_size):
            own = (owner_of == rank)[:, None]
            views = [
                np.where(own, table, old + sum(turn[rank][t] for turn in under_way))
                for t, (table, old) in enumerate(zip(begun, held, strict=True))
            ]
            index = low + np.flatnonzero(owner[low:high] == rank)
            copies = [view.copy() for view in views]
            if len(index):
                pair = (copies[0], copies[-1])
                pool = negatives.pool(config.negative_pool, low + rank) if config.negative_pool else None
                drawn = kernels[rank].draw(walks[index], 0, index, pool)
                kernels[rank].run(walks[index], drawn, pair, pair, decay.of(index), MOST_CHANGE, index)
            changes = [copy - view for copy, view in zip(copies, views, strict=True)]
            for table, change in zip(tables, changes, strict=True):
                table += np.where(own, change, 0)
            turns[-1].append([np.where(own, 0, change) for change in changes])
        seen = begun
        if config.adaptive(lockstep=True):
            join(tables, begun, turns[-1])
        else:
            add(tables, turns[-2:-1] if late else turns[-1:])
    add(tables, turns[-1:] if late else [])
    return tables


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
