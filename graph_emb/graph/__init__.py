"""Graphs and labels in memory, and the readers of every file format that carries one."""

from graph_emb.graph.csr import Graph
from graph_emb.graph.csr_readers import GraphFile, ReadOptions, read_graph, read_graph_file
from graph_emb.graph.label_files import read_labels
from graph_emb.graph.labels import Labels

__all__ = ["Graph", "GraphFile", "Labels", "ReadOptions", "read_graph", "read_graph_file", "read_labels"]
