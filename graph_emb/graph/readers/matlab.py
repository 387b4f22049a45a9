"""MATLAB ``.mat`` files with a square ``network``, and ``group`` for the labels."""

from __future__ import annotations

from typing import Any

from graph_emb.graph.csr_readers import ReadOptions, read_graph_file
from graph_emb.graph.csr_readers.source import checked_file
from graph_emb.graph.readers.memory import from_graph
from graph_emb.graph.readers.source import Contents, has_suffix, register


@register("mat", has_suffix(".mat"))
def read_mat(source: Any) -> Contents:
    """The entries of the matrix as they are stored; a matrix holds no pair twice, so nothing is merged."""
    file = checked_file(source)
    read = read_graph_file(file, ReadOptions(directed=True), format="mat")
    return Contents(from_graph(read.graph, file.stem, read.labels, read.node_split))
