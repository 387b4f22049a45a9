"""Graphs and labels in memory, and the readers of every file format that carries one."""

from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels

__all__ = ["Graph", "Labels"]
