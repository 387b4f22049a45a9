"""Negatives by node type: metapath2vec++ contrasts a context with nodes of its own type."""

# N nodes, G types on the path, B walks, L nodes of a walk, S blocks of a walk, K negatives of a block.

from __future__ import annotations

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.sampling.negatives import NegativeKinds, NegativeSampler
from graph_emb.sampling.walkers import stream_key


class TypedNegativeSampler(NegativeSampler):
    """Nodes drawn by ``degree ** power`` within each type; a block's K negatives are shared out among the types.

    The loss of metapath2vec++ (Dong et al. 2017, equation 5): the softmax of a pair runs over the nodes of the
    context's type. Types take turns among a block's negatives, so that each has K / G of them, rounded.

    Args:
        degrees: Shape (N,), at least 0.
        node_kinds: Shape (N,), the type of each node; those of types off the path are never drawn.
        path_kinds: The types along a walk, shape (P,), repeated from place P on.
        shared: K, at least G.
        power, seed: As in ``NegativeSampler``.
    Raises:
        ConfigError: K is below G, or no node of a type has a positive probability.
    """

    def __init__(
        self,
        degrees: np.ndarray,
        node_kinds: np.ndarray,
        path_kinds: np.ndarray,
        shared: int,
        power: float = 0.75,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(degrees, power, seed=seed)
        self._types, self._path = np.unique(path_kinds, return_inverse=True)
        if shared < len(self._types):
            raise ConfigError(
                f"shared_negatives is {shared} and the path has {len(self._types)} node types; "
                "give at least one negative to each"
            )
        self._nodes = [np.flatnonzero(node_kinds == kind).astype(np.int32) for kind in self._types]
        self._samplers = [
            NegativeSampler(degrees[nodes], power, seed=int(stream_key(seed, 5, place)))
            for place, nodes in enumerate(self._nodes)
        ]
        self._drawn = (np.arange(shared) % len(self._types)).astype(np.int8)

    def kinds(self, walk_length: int, shared: int) -> NegativeKinds:
        """See ``NegativeSampler.kinds``."""
        assert shared == len(self._drawn)
        return NegativeKinds(np.resize(self._path, walk_length).astype(np.int8), self._drawn)

    def sample_for(
        self, index: np.ndarray, per_walk: int, *, epoch: int = 0, pool: np.ndarray | None = None
    ) -> np.ndarray:
        """Negatives of walks by their index in the epoch, shape (B, S * K); ``pool`` is not for types."""
        assert pool is None  # SkipGramConfig refuses it
        blocks = per_walk // len(self._drawn)
        out = np.empty((len(index), blocks, len(self._drawn)), np.int32)
        for place, (nodes, sampler) in enumerate(zip(self._nodes, self._samplers, strict=True)):
            mine = self._drawn == place
            count = int(mine.sum())
            drawn = nodes[sampler.sample_for(index, blocks * count, epoch=epoch)]
            out[:, :, mine] = drawn.reshape(len(index), blocks, count)
        return out.reshape(len(index), per_walk)
