"""Recipes of graph networks whose inputs are learned: GraphSAGE for links, R-GCN for the classes of a node type."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from graph_emb.compat.ogb import OGBHetero, metadata
from graph_emb.core.errors import DataError
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph
from graph_emb.graph.views import PlainDataset
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.train import GNNResult, train_rgcn, train_sage
from graph_emb.ogb.methods import Reads, Recipe, Run
from graph_emb.ogb.record import BestScore, SeedResult
from graph_emb.run.versions import peak_memory_mib


class SageRecipe(Recipe):
    """GraphSAGE on rows that learn with it, and OGB's link predictor on its output.

    Attributes:
        sage: Its recipe.
        metrics: "hits@K", "mrr" or "rocauc"; the first one decides about early stopping.
    """

    sage: SAGEConfig
    metrics: tuple[str, ...]

    short: ClassVar[Mapping[str, str]] = {
        "epochs": "sage.epochs",
        "patience": "sage.patience",
        "batch_size": "sage.batch_size",
    }
    uses_device: ClassVar[bool] = True

    def run(self, data: PlainDataset, run: Run) -> SeedResult:
        """Train on the training edges; the epoch of each metric is the best on the validation pairs."""
        if data.link_split is None:
            raise DataError(f"data set {data.name!r} has no link split; a link recipe needs one")
        begin = time.perf_counter()
        arcs = data.graph.sources().astype(np.int64), data.graph.indices.astype(np.int64)  # both ways of each edge
        graph = HeteroGraph({NODE_TYPE: data.graph.num_nodes}, {EDGE_TYPE: arcs})
        task = LinkTask(data.link_split, self.metrics)
        found = train_sage(graph, task, self.sage, seed=run.seed, device=run.device, progress=run.progress)
        return _result(metadata(data.name).eval_metric, found, begin)


class RGCNRecipe(Recipe):
    """R-GCN: rows of a node type without features learn with it.

    Attributes:
        rgcn: Its recipe.
    """

    rgcn: RGCNConfig

    reads: ClassVar[Reads] = "typed"
    short: ClassVar[Mapping[str, str]] = {
        "epochs": "rgcn.epochs",
        "patience": "rgcn.patience",
        "batch_size": "rgcn.batch_size",
    }
    uses_device: ClassVar[bool] = True

    def run(self, data: OGBHetero, run: Run) -> SeedResult:
        """Train on the labelled type's training nodes; the epoch is the best on its validation nodes."""
        begin = time.perf_counter()
        (ntype,) = data.labels
        split = {part: by_type[ntype] for part, by_type in data.split.items()}
        found = train_rgcn(
            with_reverse(data),
            NodeTask(ntype, data.labels[ntype], split),
            self.rgcn,
            features=data.node_feat,
            seed=run.seed,
            device=run.device,
            progress=run.progress,
        )
        return _result(data.metadata.eval_metric, found, begin)


def with_reverse(data: OGBHetero) -> HeteroGraph:
    """The graph with every edge in both directions, as DGL's ``AddReverse`` makes it.

    A relation between two types gets one from the second to the first, "rev_" before its name; a relation inside one
    type holds both directions itself.
    """
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    for (head, relation, tail), (src, dst) in data.edge_index.items():
        if head == tail:
            edges[head, relation, tail] = np.concatenate([src, dst]), np.concatenate([dst, src])
        else:
            edges[head, relation, tail] = src, dst
            edges[tail, f"rev_{relation}", head] = dst, src
    return HeteroGraph(dict(data.num_nodes), edges, name=data.metadata.name)


def _result(metric: str, found: GNNResult, begin: float) -> SeedResult:
    if found.interrupted:
        raise KeyboardInterrupt
    told: dict[str, Any] = found.as_dict()
    names = {"accuracy": "acc"}  # OGB's word
    tables = sum(table.num_embeddings * table.embedding_dim for table in found.tables.values())
    return SeedResult(
        metric=metric,
        selected_on="valid",
        scores={names.get(name, name): BestScore(**values) for name, values in told["metrics"].items()},
        parameters={"embedding": tables, "network": found.num_parameters - tables},
        seconds={"epoch": found.seconds_per_epoch, "all": time.perf_counter() - begin},
        peak_memory_mib=peak_memory_mib(),
        history=told["history"],
    )
