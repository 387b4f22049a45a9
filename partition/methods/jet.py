"""A last search on many parts, whose rounds may lose edges: see ``partition.kernels.jet``.

Legend: N nodes, P parts, C constraints.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import clustering, jet
from partition.methods.coarsening import Level, alone_or

SHARE = 0.25
"""A move may lose less than this share of the weight that a node has in its part (the paper's, on the graph itself)."""
PATIENCE, LEAST_GAIN = 8, 0.001
"""Rounds that may follow one another without so much of the cut gained."""


def search(
    level: Level, parts: np.ndarray, group_of: np.ndarray, limits: np.ndarray, rng: np.random.Generator,
    threads: ThreadPool,
) -> np.ndarray:  # fmt: skip
    """The best parts that were met, (N,), int32; the same for any number of threads.

    Args:
        parts: (N,), int32, to begin with; may be changed.
        group_of: (P,): a node moves between parts of one group.
        limits: (C,): what a part may hold.
    """
    count, num_nodes = len(group_of), level.num_nodes
    loads = np.zeros((count, level.node_weights.shape[1]), np.int64)
    clustering.add_weights(parts, level.node_weights, loads)
    threads = alone_or(threads, len(level.indices))
    most = min(count, int(np.diff(level.indptr).max(initial=0))) + 1
    spans = [
        (*span, np.zeros(count, level.sums), np.empty(most, np.int32))
        for span in threads.ranges(num_nodes, level.indptr)
    ]
    rows = (level.indptr, level.indices, level.weights)
    targets, gains = np.empty(num_nodes, np.int32), np.zeros(num_nodes, level.sums)
    moving, resting = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.bool_)
    best, least, waited = parts, level.weight + 1, 0
    while True:
        state = (*rows, parts, group_of, resting, SHARE, np.uint64(rng.integers(2**63)))
        calls = [
            partial(jet.propose, low, high, *state, ratings, seen, targets, gains) for low, high, ratings, seen in spans
        ]
        cut = level.weight - sum(threads.run(calls))
        if cut < least:
            waited = 0 if cut < (1 - LEAST_GAIN) * least else waited + 1
            best, least = parts.copy(), cut
        else:
            waited += 1
        if waited > PATIENCE:
            return best
        threads.run([partial(jet.confirm, *span[:2], *rows, parts, targets, gains, moving) for span in spans])
        if not jet.apply(parts, targets, moving, level.node_weights, loads, limits):
            return best
        moving, resting = resting, moving  # who has moved rests for a round
