"""Partitions in DGL's distributed format as graphs: the whole graph of all parts, in the order of its input."""

from __future__ import annotations

import importlib
from pathlib import Path

from graph_emb.graph.readers.source import Contents, ReadOptions, parsing, register

FIRST_PART = Path("part0", "graph.dgl")


def holds_partition(path: Path) -> bool:
    """Whether a path is the folder of a partition, of this library or of DGL, or a JSON in it; opens no file."""
    return (path / FIRST_PART).is_file() or (path.suffix == ".json" and (path.parent / FIRST_PART).is_file())


@register("partition", paths=holds_partition)
def read_partition(place: Path, options: ReadOptions) -> Contents:
    """Edges, columns and original ids as they were partitioned; in partition order where the folder has no id maps."""
    with parsing(place, "a partition"):
        package = importlib.import_module("partition")  # by name: it stands above this room, as DGL does beside it
        return Contents(package.load(place).to_graph())
