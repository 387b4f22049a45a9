"""Graphs, labels and data sets, and the readers of every format that holds one."""

from graph_emb.graph.csr import Graph
from graph_emb.graph.label_files import read_labels
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers import read_graph

__all__ = ["Graph", "Labels", "read_graph", "read_labels"]
