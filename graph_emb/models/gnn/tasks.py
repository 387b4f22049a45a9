"""Tasks of a graph network: the classes of the nodes of a type, or edges among pairs of nodes."""

# N nodes, C classes or tasks, E edges.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.evaluate.link_prediction import measure
from graph_emb.evaluate.ranks import CLASS_METRICS

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class NodeTask:
    """Classes of the nodes of one type.

    Attributes:
        ntype: The node type.
        labels: One class each, shape (N,), integers, -1 where unknown; or several, shape (N, C), 1 and 0, floating
            with NaN where unknown.
        split: Node numbers of "train", "test" and, where something is chosen by it, "valid"; disjoint.
        metric: "accuracy" of single classes; "rocauc" (mean over tasks) or "micro_f1" of several. None: the first
            that fits.
    Raises:
        DataError: a part is missing or empty, names a node that is unknown, in two parts or without a label.
        ConfigError: a metric that does not fit the labels.
        ShapeError: labels of another shape or dtype.
    """

    ntype: str
    labels: Any
    split: Mapping[str, Any]
    metric: str | None = None
    truth: Tensor = field(init=False, repr=False)
    nodes: dict[str, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        truth = torch.as_tensor(np.asarray(self.labels))
        if truth.dim() not in (1, 2) or (truth.dim() == 1 and truth.is_floating_point()):
            raise ShapeError(
                f"labels have shape {tuple(truth.shape)} and dtype {truth.dtype}; "
                "expected integers (N,) or numbers (N, C)"
            )
        object.__setattr__(self, "truth", truth.long() if truth.dim() == 1 else truth.float())
        object.__setattr__(self, "nodes", self._checked_split())
        fitting = ("accuracy",) if self.is_single else ("rocauc", "micro_f1")
        if self.metric is None:
            object.__setattr__(self, "metric", fitting[0])
        if self.metric not in CLASS_METRICS:
            raise unknown_name("metric", self.metric, CLASS_METRICS)
        if self.metric not in fitting:
            many = "one class" if self.is_single else "several classes"
            raise ConfigError(f"metric {self.metric!r} does not fit labels of {many} a node; take {fitting[0]!r}")

    def _checked_split(self) -> dict[str, Tensor]:
        nodes = {p: torch.as_tensor(np.asarray(self.split[p])).long() for p in PARTS if p in self.split}
        seen = torch.zeros(len(self.truth), dtype=torch.bool)
        for part in ("train", "test"):
            if part not in nodes or not len(nodes[part]):
                raise DataError(f"the split has no {part} nodes of type {self.ntype!r}")
        for part, ids in nodes.items():
            bad = (ids < 0) | (ids >= len(seen))
            if bool(bad.any()):
                raise DataError(f"{part} node {int(ids[bad][0])} is outside [0, {len(seen)}), the labels' nodes")
            if bool(seen[ids].any()) or len(ids.unique()) < len(ids):
                raise DataError(f"a {part} node is named twice; the parts of a split must be disjoint")
            seen[ids] = True
            unknown = self.truth[ids] < 0 if self.is_single else self.truth[ids].isnan().all(dim=1)
            if bool(unknown.any()):
                raise DataError(f"{part} node {int(ids[unknown][0])} has no label; take it out of the split")
        return nodes

    @property
    def is_single(self) -> bool:
        """Whether a node has one class."""
        return self.truth.dim() == 1

    @property
    def has_valid(self) -> bool:
        """Whether there is a validation part, by which an epoch is chosen."""
        return "valid" in self.nodes

    @property
    def num_outputs(self) -> int:
        """C."""
        return int(self.truth.max()) + 1 if self.is_single else self.truth.shape[1]

    def loss(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """Cross entropy, or the mean over known tasks of the binary one, summed over nodes.

        Args:
            logits: Shape (B, C).
            nodes: Their ids, shape (B,).
        """
        truth = self.truth[nodes].to(logits.device)
        if self.is_single:
            return F.cross_entropy(logits, truth, reduction="sum")
        known = ~truth.isnan()
        each = F.binary_cross_entropy_with_logits(logits, truth.nan_to_num(), reduction="none") * known
        return (each.sum(dim=1) / known.sum(dim=1).clamp(min=1)).sum()

    def measure(self, logits: Tensor, part: str) -> dict[str, float]:
        """The metric of a part, from logits of all nodes (N, C)."""
        assert self.metric is not None
        nodes = self.nodes[part]
        return {self.metric: CLASS_METRICS[self.metric](logits[nodes], self.truth[nodes])}


@dataclass(frozen=True, eq=False)
class LinkTask:
    """Link prediction: edges against pairs of nodes that no edge joins.

    Attributes:
        split: Arrays as ``train_link_predictor`` takes them: "edge" (E, 2) of "train", "test" and, where something is
            chosen by it, "valid"; for the last two "edge_neg" (M, 2), or "target_node_neg" (E, M), wrong targets for
            the source of each edge.
        metrics: "hits@K", "mrr" or "rocauc"; the first one decides about early stopping.
    Raises:
        ConfigError: an unknown metric, or none.
    """

    split: Mapping[str, Mapping[str, Any]]
    metrics: tuple[str, ...] = ("hits@20", "hits@10", "hits@30", "hits@50", "hits@100")

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError("metrics is empty; name at least one, such as 'hits@20'")
        for metric in self.metrics:
            measure(metric)  # raises where it is unknown

    @property
    def has_valid(self) -> bool:
        """Whether there is a validation part, by which an epoch is chosen."""
        return "valid" in self.split
