"""The edges of a part of a link split with the pairs that they are ranked among."""

# B edges, M negatives, of all edges or of each.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.evaluate.ranks import Ranks, rank

# Pairs of one call for scores where every edge has negatives of its own: 16 MiB of node numbers.
PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class JudgedPairs:
    """A part of a split.

    Attributes:
        edge: Shape (B, 2).
        shared: Negatives of all edges, shape (M, 2); or None.
        targets: Wrong targets for the source of each edge, shape (B, M); or None.
    """

    edge: Tensor
    shared: Tensor | None
    targets: Tensor | None

    def ranks(self, score: Callable[[Tensor], Tensor]) -> Ranks:
        """Ranks of the edges among their negatives.

        Args:
            score: From pairs (B, 2) to logits (B,).
        """
        if self.shared is not None:
            return rank(score(self.edge), score(self.shared))
        return rank(score(self.edge), torch.cat([score(pairs).view(rows, -1) for rows, pairs in self._own_pairs()]))

    def _own_pairs(self) -> Iterator[tuple[int, Tensor]]:
        """Negatives written out as pairs, some edges at a time, with the number of these edges."""
        assert self.targets is not None
        width = self.targets.shape[1]
        step = max(1, PAIRS_AT_ONCE // width)
        for edges, targets in zip(self.edge.split(step), self.targets.split(step), strict=True):
            yield len(edges), torch.stack([edges[:, :1].expand(-1, width), targets], dim=2).view(-1, 2)


def own_targets(tables: Mapping[str, Any], part: str, num_edges: int) -> Tensor:
    """The ``target_node_neg`` of a part: wrong targets for the source of each edge, shape (B, M), int64.

    Raises:
        ShapeError: a table of another shape.
    """
    targets = torch.as_tensor(tables["target_node_neg"]).long()
    if targets.dim() != 2 or len(targets) != num_edges or targets.shape[1] == 0:
        raise ShapeError(f"{part} target_node_neg has shape {tuple(targets.shape)}; give ({num_edges}, M)")
    return targets
