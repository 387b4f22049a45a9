"""Learnable node and edge embeddings for graphs, trained by exact sparse optimizers."""

from graph_emb.errors import (
    CompatError,
    ConfigError,
    DataError,
    GraphEmbError,
    ModeError,
    PartitionError,
    ShapeError,
)

__version__ = "0.1.0"

__all__ = [
    "CompatError",
    "ConfigError",
    "DataError",
    "GraphEmbError",
    "ModeError",
    "PartitionError",
    "ShapeError",
    "__version__",
]
