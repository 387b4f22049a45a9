"""Graph partitioning for ``graph_emb``: any graph in, DGL's distributed format out. Names load when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_emb.graph.typed import HeteroGraph as HeteroGraph
    from partition.assignment import Assignment as Assignment
    from partition.building import build as build
    from partition.building import refine as refine
    from partition.building import repartition as repartition
    from partition.conversion import convert as convert
    from partition.extending import extend as extend
    from partition.partitioned import PartitionedGraph as PartitionedGraph
    from partition.partitioned import load as load
    from partition.verification import Verification as Verification
    from partition.verification import verify as verify

# No module is named like a function: importing it would put the module in the function's place.
_HOMES = {
    "Assignment": "partition.assignment",
    "HeteroGraph": "graph_emb.graph.typed",
    "PartitionedGraph": "partition.partitioned",
    "Verification": "partition.verification",
    "build": "partition.building",
    "convert": "partition.conversion",
    "extend": "partition.extending",
    "load": "partition.partitioned",
    "refine": "partition.building",
    "repartition": "partition.building",
    "verify": "partition.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'partition' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = list(_HOMES)
