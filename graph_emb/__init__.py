"""Learnable node and edge embeddings for graphs, trained by exact sparse optimizers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graph_emb import compat, initializers
from graph_emb.embedding import DistEmbedding
from graph_emb.errors import (
    CompatError,
    ConfigError,
    DataError,
    GraphEmbError,
    ModeError,
    PartitionError,
    ShapeError,
)
from graph_emb.optimizer import (
    SparseAdagrad,
    SparseAdam,
    SparseAdamW,
    SparseOptimizer,
    SparseRowAdagrad,
    SparseRowAdam,
    SparseSGD,
)
from graph_emb.partition_book import PartitionBook, RangeBook
from graph_emb.transport.active import init, shutdown

if TYPE_CHECKING:
    from graph_emb.train.pipeline import pipeline

__version__ = "0.1.0"

compat.prepare()

# Found on first use, because they bring heavy packages with them.
_LAZY = {"pipeline": "graph_emb.train.pipeline"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'graph_emb' has no attribute {name!r}")


__all__ = [
    "CompatError",
    "ConfigError",
    "DataError",
    "DistEmbedding",
    "GraphEmbError",
    "ModeError",
    "PartitionBook",
    "PartitionError",
    "RangeBook",
    "ShapeError",
    "SparseAdagrad",
    "SparseAdam",
    "SparseAdamW",
    "SparseOptimizer",
    "SparseRowAdagrad",
    "SparseRowAdam",
    "SparseSGD",
    "__version__",
    "compat",
    "init",
    "initializers",
    "pipeline",
    "shutdown",
]
