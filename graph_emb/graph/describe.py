"""A data set in numbers, for a table or a JSON file."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.graph import Graph, Labels
from graph_emb.graph.datasets import Dataset


def describe(dataset: Dataset) -> dict[str, Any]:
    """Counts of a data set; plain numbers, strings, lists and dicts only.

    ``edges`` counts an undirected edge once, ``arcs`` what is stored. ``degree`` is of stored out-arcs; a node is
    isolated when no arc leaves or reaches it, a self loop aside. ``components`` ignores directions.
    """
    found = {"name": dataset.name, **_describe_graph(dataset.graph)}
    found["labels"] = None if dataset.labels is None else _describe_labels(dataset.labels)
    split = dataset.node_split
    found["node_split"] = None if split is None else {part: len(nodes) for part, nodes in split.items()}
    found["link_split"] = None
    if dataset.link_split is not None:
        found["link_split"] = {
            part: {name: list(table.shape) for name, table in tables.items()}
            for part, tables in dataset.link_split.items()
        }
    return found


def _describe_graph(graph: Graph) -> dict[str, Any]:
    from scipy.sparse.csgraph import connected_components

    degrees = graph.degrees()
    num_components, component = connected_components(graph.to_scipy(), directed=graph.directed, connection="weak")
    sizes = np.bincount(component, minlength=1)
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "arcs": graph.num_arcs,
        "directed": graph.directed,
        "weighted": graph.weights is not None,
        "ids": "0 .. N-1" if graph.node_ids is None else ("str" if graph.node_ids.dtype.kind == "U" else "int"),
        "degree": {
            "min": int(degrees.min()) if degrees.size else 0,
            "median": float(np.median(degrees)) if degrees.size else 0.0,
            "mean": float(degrees.mean()) if degrees.size else 0.0,
            "max": int(degrees.max(initial=0)),
        },
        "isolated": int((sizes == 1).sum()) if graph.num_nodes else 0,
        "self_loops": graph.num_self_loops,
        "components": int(num_components),
        "largest_component": int(sizes.max()),
    }


def _describe_labels(labels: Labels) -> dict[str, Any]:
    counts = labels.counts()
    return {
        "classes": labels.num_classes,
        "labelled": len(labels.labelled()),
        "assignments": len(labels.indices),
        "most_on_a_node": int(counts.max(initial=0)),
        "largest_class": int(labels.class_counts().max(initial=0)),
    }
