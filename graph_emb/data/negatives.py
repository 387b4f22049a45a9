"""Negative nodes for contrastive losses: drawn by degree in constant time, the same at any number of threads."""

# N nodes, B walks, S blocks of a walk, K negatives of a block.

from __future__ import annotations

import math

import numpy as np

from graph_emb.data.walk_kernels import fill_negatives
from graph_emb.data.walks import alias_rows, at_least_one, stream_key
from graph_emb.errors import ConfigError
from graph_emb.graph.csr import Graph, frozen


class NegativeSampler:
    """Nodes drawn with a probability proportional to ``degree ** power``, with replacement.

    power 0.75 is word2vec's choice (Mikolov et al. 2013), 0 is uniform over all nodes. A draw is a function of
    (seed, epoch, walk, its number), so it does not depend on threads or batches.

    Args:
        degrees: Shape (N,), at least 0; ``node_degrees`` gives those of a graph.
        power: Exponent, finite.
        seed: Any integer.
    Raises:
        ConfigError: power is not finite or below 0, or no node has a positive probability.
    """

    def __init__(self, degrees: np.ndarray, power: float = 0.75, *, seed: int = 0) -> None:
        if not (math.isfinite(power) and power >= 0):
            raise ConfigError(f"negative power {power}: must be finite and at least 0; 0 draws uniformly")
        self.seed = int(seed)
        self.power = float(power)
        share = np.asarray(degrees, np.float64) ** power
        if not (len(share) and np.isfinite(share).all() and share.min() >= 0 and share.sum() > 0):
            raise ConfigError(
                f"negatives of {len(share)} nodes: degrees must be finite, at least 0 and not all 0; "
                "use power=0 for a graph without edges"
            )
        self.probabilities = share / share.sum()
        row = frozen(np.array([0, len(share)], np.int64))
        self.accept, self.other, _ = alias_rows(row, frozen(share.astype(np.float32)))

    def key(self, epoch: int) -> np.uint64:
        """The key of an epoch's streams, for compiled loops that draw by themselves."""
        return stream_key(self.seed, epoch, 1)

    def sample(self, num_walks: int, per_walk: int, *, epoch: int = 0, first: int = 0) -> np.ndarray:
        """Negatives of consecutive walks.

        Args:
            num_walks: B.
            per_walk: Draws for each walk.
            epoch: Each epoch has draws of its own.
            first: Index of the first walk in the epoch.
        Returns:
            Shape (B, per_walk), int32.
        """
        out = np.empty((at_least_one("num_walks", num_walks), at_least_one("per_walk", per_walk)), np.int32)
        fill_negatives(self.accept, self.other, self.key(epoch), np.arange(first, first + num_walks), 0, out)
        return out


def node_degrees(graph: Graph) -> np.ndarray:
    """Sum of the weights of the arcs at each node, shape (N,), float64.

    Of a directed graph both ends of an arc count, so that a node that is only pointed at can be drawn as well.
    On an undirected graph this is, up to a factor, how often long DeepWalk walks visit a node.
    """
    weights = np.ones(graph.num_arcs) if graph.weights is None else graph.weights.astype(np.float64)
    degrees = np.bincount(graph.indices, weights, minlength=graph.num_nodes)
    if graph.directed:
        degrees += np.bincount(graph.sources(), weights, minlength=graph.num_nodes)
    return degrees
