"""Partitions in DGL's distributed format as graphs: the whole graph of all parts, in the order of its input."""

from __future__ import annotations

import importlib
from pathlib import Path

from graph_emb.graph.readers.source import Contents, ReadOptions, parsing, register

A_PART = "part[0-9]*/graph.dgl"


def holds_partition(path: Path) -> bool:
    """Whether a path is the folder of a partition, of this library or of DGL, or a JSON in it; opens no file."""
    folder = path.parent if path.suffix == ".json" and not path.is_dir() else path
    return folder.is_dir() and any(folder.glob(A_PART))


@register("partition", paths=holds_partition)
def read_partition(place: Path, options: ReadOptions) -> Contents:
    """Edges, columns and original ids as they were partitioned; in partition order where the folder has no id maps."""
    with parsing(place, "a partition"):
        package = importlib.import_module("partition")  # by name: it stands above this room, as DGL does beside it
        return Contents(package.load(place).to_graph())
