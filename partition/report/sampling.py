"""The distinct rows that batches of sampled neighbourhoods need, by batches that are sampled as DGL samples them."""

# N nodes and E edges of all types, G groups (edge type and destination), P parts, B seeds of a batch, H hops

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graph_emb.core.progress import reading
from graph_emb.core.threads import ThreadPool, thread_count
from partition.report import loops
from partition.report.flat import FlatGraph
from partition.report.rows import groups_by_destination

BATCHES = 64
"""Batches of an assignment, shared by its parts; each part has at least one."""


@dataclass(frozen=True)
class SampleForecast:
    """Distinct rows that a batch of sampled neighbourhoods needs, the seeds included.

    Attributes:
        rows: Mean distinct input rows of one batch of each part, (P,); 0 of a part without seeds.
        remote: Those of them in other parts, (P,).
        batches: Batches of each part in an epoch, (P,); the last one counts by its share.
    """

    rows: np.ndarray
    remote: np.ndarray
    batches: np.ndarray

    @property
    def share(self) -> float:
        """Remote share of the rows of an epoch."""
        return float((self.remote * self.batches).sum() / (self.rows * self.batches).sum())


def forecast_samples(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, fanouts: tuple[int, ...], batch_size: int
) -> list[tuple[SampleForecast, ...]]:
    """The mean over ``BATCHES`` sampled batches: B seeds of one part, in-edges, without replacement, hop by hop.

    As in DGL, each hop samples anew for every node that the batch has so far. The same batches are drawn in every run
    and on any number of threads. Exact where fanouts are above every degree and a batch has all seeds of its part.

    Args:
        parts: The part of each node, (N,), int32, by each assignment.
        fanouts: Sampled in-edges of a node and edge type, the seeds' own first.
        batch_size: B, at most the seeds of the part.
    Returns:
        For each assignment one forecast for each hop.
    """
    groups = groups_by_destination(flat)
    hops = np.array(fanouts, np.int64)
    num_batches = max(1, BATCHES // num_parts)
    seeds = [[np.flatnonzero(flat.seeds & (own == part)) for part in range(num_parts)] for own in parts]
    tasks = [
        (k, part, batch)
        for k in range(len(parts))
        for part in range(num_parts)
        for batch in range(num_batches)
        if len(seeds[k][part])
    ]
    found = np.zeros((2, len(parts), num_parts, len(hops)))

    def run(own: list[tuple[int, int, int]]) -> list[np.ndarray]:
        mark, reached = np.full(flat.num_nodes, -1, np.int64), np.empty(flat.num_nodes, np.int64)
        results = []
        for number, (k, part, batch) in enumerate(own):
            stream = np.random.default_rng([part, batch])
            chosen = stream.choice(seeds[k][part], min(batch_size, len(seeds[k][part])), replace=False)
            counts = np.zeros((2, len(hops)), np.int64)
            key = np.uint64(stream.integers(2**63))
            graph = (groups.starts, groups.sources, groups.node_starts, groups.node_groups)
            loops.sample_batch(chosen, *graph, hops, key, mark, number, reached, parts[k], part, counts)
            results.append(counts)
        return results

    with ThreadPool(thread_count(None)) as threads, reading("samples", len(tasks), "batches") as advance:
        width = 4 * threads.num_threads
        for low in range(0, len(tasks), width):
            shares = [tasks[low : low + width][first :: threads.num_threads] for first in range(threads.num_threads)]
            answers = threads.run([lambda share=share: run(share) for share in shares])  # type: ignore[misc]
            for share, results in zip(shares, answers, strict=True):
                for (k, part, _), counts in zip(share, results, strict=True):
                    found[:, k, part] += counts
            advance(len(tasks[low : low + width]))
    return [_forecasts(found[:, k] / num_batches, seeds[k], batch_size) for k in range(len(parts))]


def _forecasts(means: np.ndarray, seeds: list[np.ndarray], batch_size: int) -> tuple[SampleForecast, ...]:
    """One forecast for each hop from the means of rows and remote rows, (2, P, H)."""
    sizes = np.array([len(own) for own in seeds])
    batches = np.where(sizes > 0, sizes / np.maximum(np.minimum(sizes, batch_size), 1), 0.0)
    return tuple(SampleForecast(means[0, :, hop], means[1, :, hop], batches) for hop in range(means.shape[2]))
