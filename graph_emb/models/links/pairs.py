"""The pairs of a link split: training edges with negatives to draw, and parts to judge."""

# B pairs, E training edges, M negatives of a part, N nodes.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.evaluate.judged_pairs import JudgedPairs, own_targets
from graph_emb.sampling.non_edges import NonEdges

LinkSplit = Mapping[str, Mapping[str, Any]]
NegativeDraw = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Numbers (B,) and pairs (B, 2) of a batch's edges and the source of randomness, to as many negatives (B, 2)."""


def training_edges(link_split: LinkSplit) -> Tensor:
    """The training edges, shape (E, 2), int64.

    Raises:
        DataError: there are none.
    """
    return _pairs(link_split, "train", "edge")


def judged_pairs(link_split: LinkSplit, part: str) -> JudgedPairs:
    """A part with its negatives: ``edge_neg`` (M, 2), shared, or ``target_node_neg`` (B, M), of each edge.

    Raises:
        DataError: the part has no edges or no negatives.
        ShapeError: a table of another shape.
    """
    edge = _pairs(link_split, part, "edge")
    if "target_node_neg" not in link_split[part]:
        return JudgedPairs(edge, _pairs(link_split, part, "edge_neg"), None)
    return JudgedPairs(edge, None, own_targets(link_split[part], part, len(edge)))


def negative_draw(kind: str, link_split: LinkSplit, num_nodes: int) -> NegativeDraw:
    """How a batch's negatives are drawn; ``LinkPredictorConfig`` says what each kind is.

    Raises:
        DataError: "given" without as many training ``edge_neg`` as training edges.
    """
    edges = training_edges(link_split)
    if kind == "non_edges":
        non_edges = NonEdges(edges, num_nodes)
        return lambda numbers, batch, generator: non_edges.sample(len(batch), generator)
    if kind == "targets":
        return lambda numbers, batch, generator: torch.stack(
            [batch[:, 0], torch.randint(num_nodes, (len(batch),), generator=generator)], dim=1
        )
    given = _pairs(link_split, "train", "edge_neg")
    if len(given) != len(edges):
        raise DataError(f"{len(given)} training edge_neg for {len(edges)} edges; negatives 'given' needs as many")
    return lambda numbers, batch, generator: given[numbers]


def _pairs(link_split: LinkSplit, part: str, kind: str) -> Tensor:
    if part not in link_split or kind not in link_split[part] or len(link_split[part][kind]) == 0:
        raise DataError(f"the link split has no {part} {kind!r}; a predictor needs train, valid and test pairs")
    pairs = torch.as_tensor(link_split[part][kind])
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ShapeError(
            f"{part} {kind!r} has shape {tuple(pairs.shape)} and dtype {pairs.dtype}; give integers (E, 2)"
        )
    return pairs.long()
