"""Learnable node and edge embeddings for graphs, trained by exact sparse optimizers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from graph_emb import compat
from graph_emb.core.errors import (
    CompatError,
    ConfigError,
    DataError,
    GraphEmbError,
    ModeError,
    PartitionError,
    PeerError,
    ShapeError,
    StorageError,
)
from graph_emb.core.imports import resolve

if TYPE_CHECKING:
    from graph_emb import initializers, push_handlers
    from graph_emb.checkpoint.deltas import merge_checkpoints
    from graph_emb.checkpoint.dgl_import import import_dgl_state
    from graph_emb.checkpoint.export import export_checkpoint
    from graph_emb.checkpoint.loading import load_checkpoint
    from graph_emb.checkpoint.saving import save_checkpoint
    from graph_emb.composed import ComposedEmbedding, lookup
    from graph_emb.embedding import DistEmbedding
    from graph_emb.estimators import (
        LINE,
        RGCN,
        ComplEx,
        DeepWalk,
        DistMult,
        GraphSAGE,
        MatrixFactorization,
        Metapath2Vec,
        NetMF,
        Node2Vec,
        ProNE,
        RotatE,
        SimplE,
        TransE,
        load_run,
    )
    from graph_emb.evaluate.nearest import NearestNeighbors
    from graph_emb.graph.datasets import load_dataset
    from graph_emb.graph.hash_book import HashPolicy
    from graph_emb.graph.partition_book import PartitionBook, RangeBook
    from graph_emb.graph.readers import read_graph
    from graph_emb.growing_embedding import growing
    from graph_emb.node_embedding import NodeEmbedding
    from graph_emb.optimizer import (
        SparseAdagrad,
        SparseAdam,
        SparseAdamW,
        SparseLAMB,
        SparseLARS,
        SparseOptimizer,
        SparseRowAdagrad,
        SparseRowAdam,
        SparseRowLAMB,
        SparseSGD,
        clip_grad_norm_,
        create_hash_optimizer_by_address,
    )
    from graph_emb.run.estimate import estimate
    from graph_emb.run.new_nodes import continue_run, infer
    from graph_emb.run.pipeline import pipeline
    from graph_emb.table.growth import LeastRecent, LeastUsed, SeenAtLeast, SmallNorm, Unused
    from graph_emb.table.neighbour_mean import NeighbourMean
    from graph_emb.table.placement import Buckets, DeviceCache, File
    from graph_emb.transport.runtime import in_step, init, shutdown
    from graph_emb.tuning.search import tune

__version__ = "0.1.0"

compat.prepare()
logging.getLogger("graph_emb").addHandler(logging.NullHandler())  # silent until an application configures logging

# Found on first use: torch and numba take a second to import, and `graph-emb --help` needs neither.
_HOMES = {
    "graph_emb.checkpoint.deltas": ("merge_checkpoints",),
    "graph_emb.checkpoint.dgl_import": ("import_dgl_state",),
    "graph_emb.checkpoint.export": ("export_checkpoint",),
    "graph_emb.checkpoint.loading": ("load_checkpoint",),
    "graph_emb.checkpoint.saving": ("save_checkpoint",),
    "graph_emb.composed": ("ComposedEmbedding", "lookup"),
    "graph_emb.estimators": (
        "ComplEx",
        "DeepWalk",
        "DistMult",
        "GraphSAGE",
        "LINE",
        "MatrixFactorization",
        "Metapath2Vec",
        "NetMF",
        "Node2Vec",
        "ProNE",
        "RGCN",
        "RotatE",
        "SimplE",
        "TransE",
        "load_run",
    ),
    "graph_emb.evaluate.nearest": ("NearestNeighbors",),
    "graph_emb.graph.datasets": ("load_dataset",),
    "graph_emb.graph.hash_book": ("HashPolicy",),
    "graph_emb.graph.partition_book": ("PartitionBook", "RangeBook"),
    "graph_emb.graph.readers": ("read_graph",),
    "graph_emb.growing_embedding": (
        "DistEmbedding",
        "growing",
    ),
    "graph_emb.node_embedding": ("NodeEmbedding",),
    "graph_emb.optimizer": (
        "SparseAdagrad",
        "SparseAdam",
        "SparseAdamW",
        "SparseLAMB",
        "SparseLARS",
        "SparseOptimizer",
        "SparseRowAdagrad",
        "SparseRowAdam",
        "SparseRowLAMB",
        "SparseSGD",
        "clip_grad_norm_",
        "create_hash_optimizer_by_address",
    ),
    "graph_emb.run.estimate": ("estimate",),
    "graph_emb.run.new_nodes": ("continue_run", "infer"),
    "graph_emb.run.pipeline": ("pipeline",),
    "graph_emb.table.neighbour_mean": ("NeighbourMean",),
    "graph_emb.table.growth": ("LeastRecent", "LeastUsed", "SeenAtLeast", "SmallNorm", "Unused"),
    "graph_emb.table.placement": ("Buckets", "DeviceCache", "File"),
    "graph_emb.tuning.search": ("tune",),
    "graph_emb.transport.runtime": ("in_step", "init", "shutdown"),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker that sees this takes every name for one of the module

    def __getattr__(name: str) -> Any:
        if name in ("initializers", "push_handlers"):
            return resolve(f"graph_emb.{name}")
        if name in _LAZY:
            value = resolve(f"{_LAZY[name]}:{name}")
            globals()[name] = value
            return value
        raise AttributeError(f"module 'graph_emb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Buckets",
    "CompatError",
    "ComplEx",
    "ComposedEmbedding",
    "ConfigError",
    "DataError",
    "DeepWalk",
    "DeviceCache",
    "DistEmbedding",
    "DistMult",
    "File",
    "GraphEmbError",
    "GraphSAGE",
    "HashPolicy",
    "LINE",
    "LeastRecent",
    "LeastUsed",
    "MatrixFactorization",
    "Metapath2Vec",
    "ModeError",
    "NearestNeighbors",
    "NeighbourMean",
    "NetMF",
    "Node2Vec",
    "NodeEmbedding",
    "PartitionBook",
    "PartitionError",
    "PeerError",
    "ProNE",
    "RGCN",
    "RangeBook",
    "RotatE",
    "SeenAtLeast",
    "ShapeError",
    "SimplE",
    "SmallNorm",
    "SparseAdagrad",
    "SparseAdam",
    "SparseAdamW",
    "SparseLAMB",
    "SparseLARS",
    "SparseOptimizer",
    "SparseRowAdagrad",
    "SparseRowAdam",
    "SparseRowLAMB",
    "SparseSGD",
    "StorageError",
    "TransE",
    "Unused",
    "__version__",
    "clip_grad_norm_",
    "compat",
    "continue_run",
    "create_hash_optimizer_by_address",
    "estimate",
    "export_checkpoint",
    "growing",
    "import_dgl_state",
    "in_step",
    "infer",
    "init",
    "initializers",
    "load_checkpoint",
    "load_dataset",
    "load_run",
    "lookup",
    "merge_checkpoints",
    "pipeline",
    "push_handlers",
    "read_graph",
    "save_checkpoint",
    "shutdown",
    "tune",
]
