"""Tasks of a graph network: the classes of the nodes of a type, edges among pairs of nodes, or triples."""

# N nodes, R nodes of a rank, C classes or tasks, E edges.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.evaluate.link_prediction import measure
from graph_emb.evaluate.ranks import (
    CLASS_METRICS,
    TiedValue,
    accuracy,
    decisions,
    f1_of,
    mean_auc,
    task_aucs,
    warn_of_ties,
)
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from graph_emb.transport.process_group import ProcessGroup

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
        object.__setattr__(self, "metric", self._checked_metric())
        self._check_parts({part: len(ids) for part, ids in self.nodes.items()})

    def _checked_metric(self) -> str:
        fitting = ("accuracy",) if self.is_single else ("rocauc", "micro_f1")
        metric = fitting[0] if self.metric is None else self.metric
        if metric not in CLASS_METRICS:
            raise unknown_name("metric", metric, CLASS_METRICS)
        if metric not in fitting:
            many = "one class" if self.is_single else "several classes"
            raise ConfigError(f"metric {metric!r} does not fit labels of {many} a node; take {fitting[0]!r}")
        return metric

    def _check_parts(self, sizes: Mapping[str, int]) -> None:
        for part in ("train", "test"):
            if not sizes.get(part):
                raise DataError(f"the split has no {part} nodes of type {self.ntype!r}")

    def _checked_split(self) -> dict[str, Tensor]:
        nodes = {p: torch.as_tensor(np.asarray(self.split[p])).long() for p in PARTS if p in self.split}
        seen = torch.zeros(len(self.truth), dtype=torch.bool)
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

    def loss(self, logits: Tensor, truth: Tensor) -> Tensor:
        """Cross entropy, or the mean over known tasks of the binary one, summed over nodes.

        Args:
            logits: Shape (B, C).
            truth: Their rows of ``truth``, (B,) or (B, C).
        """
        truth = truth.to(logits.device)
        if self.is_single:
            return F.cross_entropy(logits, truth, reduction="sum")
        known = ~truth.isnan()
        each = F.binary_cross_entropy_with_logits(logits, truth.nan_to_num().to(logits.dtype), reduction="none") * known
        return (each.sum(dim=1) / known.sum(dim=1).clamp(min=1)).sum()

    def measure(self, logits: Tensor, part: str) -> dict[str, float]:
        """The metric of a part, from logits of all nodes (N, C)."""
        assert self.metric is not None
        nodes = self.nodes[part]
        return {self.metric: CLASS_METRICS[self.metric](logits[nodes], self.truth[nodes])}


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnNodeTask(NodeTask):
    """A rank's nodes in a ``NodeTask`` over a graph that lies with several: R of them, counted from the first one.

    ``labels`` and ``split`` are of these nodes alone. Every rank measures with the others.

    Attributes:
        sizes: Nodes of each part of the split, of all ranks.
        places: Where the training nodes stand among those of all ranks, in the order of ``split``, int64.
        outputs: C.
        group: The ranks.
    Raises:
        DataError: as ``NodeTask``; a part is empty where no rank has a node of it.
    """

    sizes: Mapping[str, int]
    places: Tensor
    outputs: int
    group: ProcessGroup = field(repr=False)

    @classmethod
    def of(cls, task: NodeTask, graph: OwnEdges) -> OwnNodeTask:
        """A rank's nodes in a task that it has whole."""
        names = graph.names[task.ntype].numpy()
        places = np.full(len(task.truth), -1)
        places[names] = np.arange(len(names))
        own = {part: torch.from_numpy(places)[nodes] for part, nodes in task.nodes.items()}
        return cls(
            ntype=task.ntype,
            labels=task.truth[names].numpy(),
            split={part: nodes[nodes >= 0] for part, nodes in own.items()},
            metric=task.metric,
            sizes={part: len(nodes) for part, nodes in own.items()},
            places=(own["train"] >= 0).nonzero().flatten(),
            outputs=task.num_outputs,
            group=graph.group,
        )

    @classmethod
    def gathered(
        cls, ntype: str, labels: NDArray[Any], split: Mapping[str, NDArray[np.int64]], graph: OwnEdges
    ) -> OwnNodeTask:
        """A task of which each rank has its own nodes; training nodes come in the order of their original numbers.

        Every rank calls it.

        Args:
            ntype: The node type.
            labels, split: Of the rank's nodes, the same kinds of labels and parts of a split on every rank.
            graph: The rank's part.
        """
        names = graph.names[ntype].numpy()
        train = names[split.get("train", np.empty(0, np.int64))]
        outputs = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        sizes = {part: len(split[part]) for part in PARTS if part in split}
        told = graph.group.gather_objects((train, outputs, sizes), "labels and splits")
        everyone = np.sort(np.concatenate([theirs for theirs, _, _ in told]))
        return cls(
            ntype=ntype,
            labels=labels,
            split=split,
            sizes={part: sum(theirs[part] for _, _, theirs in told) for part in sizes},
            places=torch.from_numpy(np.searchsorted(everyone, train)),
            outputs=max(theirs for _, theirs, _ in told),
            group=graph.group,
        )

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.outputs

    def _check_parts(self, sizes: Mapping[str, int]) -> None:
        super()._check_parts(self.sizes)

    def measure(self, logits: Tensor, part: str) -> dict[str, float]:
        """The metric of a part from logits of own nodes (R, C). Every rank calls it, and has the same.

        Ranks count their own nodes; of ROC-AUC each has an even share of the tasks, of all nodes.
        """
        assert self.metric is not None
        nodes = self.nodes[part]
        own, truth = logits[nodes], self.truth[nodes]
        if self.is_single:
            hits = accuracy(own, truth) * len(nodes) if len(nodes) else 0.0
            right, judged = self._summed(round(hits), len(nodes))
            return {self.metric: right / judged}
        if self.metric == "micro_f1":
            return {self.metric: f1_of(*self._summed(*(decisions(own, truth) if len(nodes) else (0, 0))))}
        values = self._task_aucs(own, truth)
        for value in values:
            warn_of_ties("auc", value)
        return {self.metric: mean_auc(values, self.outputs)}

    def _summed(self, *counts: int) -> list[int]:
        return self.group.sum(torch.tensor(counts, dtype=torch.int64), "nodes that were judged").tolist()

    def _task_aucs(self, logits: Tensor, truth: Tensor) -> list[TiedValue]:
        """``task_aucs`` of the nodes of all ranks, from those of own nodes, (n, C) each."""
        group, what = self.group, "rows that are judged"
        bounds = [self.outputs * rank // group.world_size for rank in range(group.world_size + 1)]
        pieces = [torch.cat([logits[:, a:b], truth[:, a:b]], dim=1).flatten() for a, b in pairwise(bounds)]
        own = bounds[group.rank + 1] - bounds[group.rank]
        coming = [2 * own * num for num in group.gather_objects(len(logits), what)]
        came = group.exchange(torch.cat(pieces), [len(piece) for piece in pieces], coming, what)
        sides = came.view(-1, 2, own).unbind(dim=1) if own else ()
        found = task_aucs(*(side.contiguous() for side in sides)) if own else []
        told = group.gather_objects([list(value) for value in found], what)
        return [TiedValue(*value) for of_rank in told for value in of_rank]


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


@dataclass(frozen=True, eq=False)
class TripleTask:
    """Triples of a knowledge graph, true ones against those with another head or tail.

    Attributes:
        triples: With its parts; entity n is node n of the graph along which messages go, which holds the training
            triples, ``graph_emb.graph.views.message_graph`` for example.
    """

    triples: KnowledgeGraph

    @property
    def has_valid(self) -> bool:
        """Whether there is a validation part, by which an epoch is chosen."""
        return "valid" in self.triples.parts

    def target_of(self, num_nodes: Mapping[str, int]) -> str:
        """The node type of the entities, given the number of nodes of each type.

        Raises:
            ConfigError: there are several types.
            ShapeError: another number of nodes than of entities.
        """
        if len(num_nodes) != 1:
            raise ConfigError(f"the graph has {len(num_nodes)} node types; triples take one, of all entities")
        ((ntype, num),) = num_nodes.items()
        if num != self.triples.num_entities:
            raise ShapeError(f"the graph has {num} nodes, its triples {self.triples.num_entities} entities")
        return ntype


Task = NodeTask | LinkTask | TripleTask
