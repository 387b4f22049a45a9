"""Random pairs of nodes that no edge joins: the dense negatives of link prediction."""

# N nodes, E edges, B drawn pairs.

from __future__ import annotations

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, PartitionError, ShapeError

MOST_AT_ONCE = 1 << 22  # drawn pairs, whatever share of them a dense graph rejects


class NonEdges:
    """Uniform draws, with replacement, from the ordered pairs (u, v), u != v, that are not among the edges.

    What PyG's ``negative_sampling(method="dense")`` draws from in OGB's link prediction scripts; that function draws
    without replacement, which at 65,536 of 16 million pairs differs in one pair of 250.

    Args:
        edges: Undirected edges, shape (E, 2), integers, in either direction, repeats and self loops allowed.
        num_nodes: N, at least 2.
    Raises:
        ShapeError: edges is not an (E, 2) integer tensor.
        PartitionError: an edge names a node outside [0, N).
        DataError: every pair is an edge, so nothing is left to draw.

    Example:
        >>> from graph_emb.sampling.non_edges import NonEdges
        >>> non_edges = NonEdges(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
        >>> sorted(set(map(tuple, non_edges.sample(50, torch.Generator().manual_seed(0)).tolist())))
        [(0, 2), (2, 0)]
    """

    def __init__(self, edges: Tensor, num_nodes: int) -> None:
        if edges.dim() != 2 or edges.shape[1] != 2 or edges.is_floating_point():
            raise ShapeError(f"edges have shape {tuple(edges.shape)} and dtype {edges.dtype}; give integers (E, 2)")
        if num_nodes < 2:
            raise ConfigError(f"num_nodes is {num_nodes}; pairs of distinct nodes need at least 2")
        edges = edges.long()
        if len(edges) and not 0 <= int(edges.min()) <= int(edges.max()) < num_nodes:
            wrong = edges[(edges < 0) | (edges >= num_nodes)][0].item()
            raise PartitionError(f"edges name node {wrong}, outside [0, {num_nodes}); pass row numbers")
        self.num_nodes = num_nodes
        left, right = edges[edges[:, 0] != edges[:, 1]].unbind(1)
        self._keys = torch.unique(torch.cat([left * num_nodes + right, right * num_nodes + left]))
        self._num_pairs = num_nodes * (num_nodes - 1)
        if len(self._keys) == self._num_pairs:
            raise DataError(f"all {self._num_pairs} ordered pairs of {num_nodes} nodes are edges; no negative exists")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` pairs, shape (B, 2), int64."""
        share = 1.0 - len(self._keys) / self._num_pairs
        parts: list[Tensor] = []
        missing = count
        while missing > 0:
            pairs = self._distinct_nodes(min(int(missing / share * 1.02) + 16, MOST_AT_ONCE), generator)
            pairs = pairs[~self._is_edge(pairs[:, 0] * self.num_nodes + pairs[:, 1])][:missing]
            parts.append(pairs)
            missing -= len(pairs)
        return torch.cat(parts) if parts else torch.empty((0, 2), dtype=torch.int64)

    def _distinct_nodes(self, count: int, generator: torch.Generator) -> Tensor:
        left = torch.randint(self.num_nodes, (count,), generator=generator)
        right = torch.randint(self.num_nodes - 1, (count,), generator=generator)
        return torch.stack([left, right + (right >= left)], dim=1)

    def _is_edge(self, keys: Tensor) -> Tensor:
        if len(self._keys) == 0:
            return torch.zeros(len(keys), dtype=torch.bool)
        place = torch.searchsorted(self._keys, keys).clamp_(max=len(self._keys) - 1)
        return self._keys[place] == keys
