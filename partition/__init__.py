"""Graph partitioning for ``graph_emb``: any graph in, DGL's distributed format out."""

from __future__ import annotations

# Imported here, not on demand: a submodule of the same name would otherwise hide the function once it is loaded.
from partition.build import build
from partition.hetero import HeteroGraph
from partition.partitioned import PartitionedGraph, load
from partition.verify import verify

__all__ = ["HeteroGraph", "PartitionedGraph", "build", "load", "verify"]
