"""A data set in numbers, for a table or a JSON file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from graph_emb.graph.datasets import Dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.views import PlainDataset, is_plain, plain_dataset


def describe(dataset: Dataset) -> dict[str, Any]:
    """Counts of any data set; plain numbers, strings, lists and dicts only."""
    if is_plain(dataset):
        return describe_plain(plain_dataset(dataset, symmetrize=False))
    graph, triples = dataset.graph, dataset.triples
    found: dict[str, Any] = {"name": dataset.name, "nodes": graph.total_nodes, "edges": graph.total_edges}
    if triples is not None:
        found["relations"] = triples.num_relations
        found["triples"] = {part: len(own) for part, own in triples.parts.items()}
    found["node_types"] = dict(graph.num_nodes)
    found["edge_types"] = {" ".join(etype): len(src) for etype, (src, _) in graph.edges.items()}
    found["labels"] = {ntype: _describe_labels(labels) for ntype, labels in dataset.labels.items()} or None
    split = {t: {part: len(nodes) for part, nodes in own.items()} for t, own in dataset.node_split.items()}
    return {**found, "node_split": split or None}


def digest(dataset: Dataset) -> str:
    """A number by which a data set is known again: of every array in it, 32 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, dataset)
    return found.hexdigest()


def _add(found: hashlib.blake2b, value: Any) -> None:
    """Feed a value with its type and length, so that no two values read alike."""
    if isinstance(value, np.ndarray):
        kept = np.ascontiguousarray(value if value.dtype.kind != "O" else value.astype(str))
        found.update(f"array {kept.dtype.str} {kept.shape};".encode())
        found.update(kept.view(np.uint8).data if kept.size else b"")
    elif is_dataclass(value):
        # counts tell how a graph was read, not what it is
        _add(found, {part.name: getattr(value, part.name) for part in fields(value) if part.name != "counts"})
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)};".encode())
        for key, item in value.items():
            _add(found, key)
            _add(found, item)
    elif isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        found.update(f"items {len(items)};".encode())
        for item in items:
            _add(found, item)
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())


def describe_plain(dataset: PlainDataset) -> dict[str, Any]:
    """Counts of a data set of one node and one edge type.

    ``edges`` counts an undirected edge once, ``arcs`` what is stored. ``degree`` is of stored out-arcs; a node is
    isolated when no arc leaves or reaches it, a self loop aside. ``components`` ignores directions.
    """
    from scipy.sparse.csgraph import connected_components

    graph, split, links = dataset.graph, dataset.node_split, dataset.link_split
    degrees = graph.degrees()
    num_components, component = connected_components(graph.to_scipy(), directed=graph.directed, connection="weak")
    sizes = np.bincount(component, minlength=1)
    return {
        "name": dataset.name,
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
        "labels": None if dataset.labels is None else _describe_labels(dataset.labels),
        "node_split": split and {part: len(nodes) for part, nodes in split.items()},
        "link_split": links
        and {part: {name: list(table.shape) for name, table in tables.items()} for part, tables in links.items()},
        **dataset.counts,
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
