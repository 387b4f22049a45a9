"""Graph files as compressed rows, as a walk model takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graph_emb.graph.csr import Duplicates, Graph
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import split_suffix
from graph_emb.graph.views import PlainDataset, plain_dataset

EDGE_LISTS = ("csv", "tsv", "txt", "edges", "edgelist", "parquet", "pq")


def read_csr(path: Path, **options: Any) -> Graph:
    """The rows of a file, of an edge list in both directions unless ``directed=True``."""
    return read_plain(path, **options).graph


def read_plain(
    path: Path, *, directed: bool | None = None, duplicates: Duplicates = "first", **options: Any
) -> PlainDataset:
    """The rows of a file with its labels and split."""
    is_edge_list = split_suffix(Path(path))[0] in EDGE_LISTS or options.get("format") == "edges"
    symmetrize = is_edge_list if directed is None else not directed
    if is_edge_list and not directed:
        directed = None  # the view adds the reverses
    dataset = Dataset.of_graph(read_graph(path, directed=directed, **options), str(path))
    return plain_dataset(dataset, symmetrize=symmetrize, duplicates=duplicates)
