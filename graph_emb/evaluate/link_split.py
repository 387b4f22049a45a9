"""Pairs of a link split, checked, and its parts: edges with the negatives that they are ranked among."""

# B edges, M negatives, of all edges or of each.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.evaluate.ranks import Ranks, rank

LinkSplit = Mapping[str, Mapping[str, Any]]
"""Arrays by part ("train", "valid", "test") and kind ("edge", "edge_neg", "target_node_neg")."""
PAIRS_AT_ONCE = 1 << 20
"""Pairs of one call for scores where every edge has negatives of its own: 16 MiB of node numbers."""


@dataclass(frozen=True)
class LinkPart:
    """A part of a split.

    Attributes:
        edge: Shape (B, 2).
        shared: Negatives of all edges, shape (M, 2), or (B, M, 2), those of each; or None.
        targets: Wrong targets for the source of each edge, shape (B, M); or None.
    """

    edge: Tensor
    shared: Tensor | None
    targets: Tensor | None

    def ranks(self, score: Callable[[Tensor], Tensor]) -> Ranks:
        """Ranks of the edges among their negatives.

        Args:
            score: From pairs (..., 2) to logits (...).
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


def link_part(link_split: LinkSplit, part: str, num_nodes: int) -> LinkPart:
    """A part with its negatives: ``edge_neg`` (M, 2) or (B, M, 2), or ``target_node_neg`` (B, M).

    Raises:
        DataError: the part has no edges or no negatives, or names a node outside [0, ``num_nodes``).
        ShapeError: an array of another shape.
    """
    edge = pairs_of(link_split, part, "edge", num_nodes)
    if "target_node_neg" not in link_split[part]:
        return LinkPart(edge, pairs_of(link_split, part, "edge_neg", num_nodes), None)
    targets = torch.as_tensor(link_split[part]["target_node_neg"]).long()
    if targets.dim() != 2 or len(targets) != len(edge) or targets.shape[1] == 0:
        raise ShapeError(f"{part} target_node_neg has shape {tuple(targets.shape)}; give ({len(edge)}, M)")
    _check_nodes(f"{part} 'target_node_neg'", targets, num_nodes)
    return LinkPart(edge, None, targets)


def pairs_of(link_split: LinkSplit, part: str, kind: str, num_nodes: int) -> Tensor:
    """Pairs of a split, int64, all in [0, ``num_nodes``): shape (B, 2) of "edge", (..., 2) of "edge_neg".

    Raises:
        DataError: absent, empty, or a node out of range.
        ShapeError: not integers of that shape.
    """
    if part not in link_split or kind not in link_split[part] or len(link_split[part][kind]) == 0:
        raise DataError(f"the link split has no {part} {kind!r}; known parts: {', '.join(link_split) or 'none'}")
    pairs = torch.as_tensor(link_split[part][kind])
    shaped = pairs.dim() == 2 if kind == "edge" else pairs.dim() > 1
    if not shaped or pairs.shape[-1] != 2 or pairs.is_floating_point():
        raise ShapeError(
            f"{part} {kind!r} has shape {tuple(pairs.shape)} and dtype {pairs.dtype}; give integers (E, 2)"
        )
    _check_nodes(f"{part} {kind!r}", pairs, num_nodes)
    return pairs.long()


def _check_nodes(what: str, nodes: Tensor, num_nodes: int) -> None:
    if int(nodes.min()) < 0 or int(nodes.max()) >= num_nodes:
        wrong = int(nodes[(nodes < 0) | (nodes >= num_nodes)][0])
        raise DataError(f"{what} names node {wrong}, outside [0, {num_nodes}), the graph's nodes")
