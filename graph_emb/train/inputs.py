"""The data of a run: the configured graph with its labels and held-out edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from graph_emb.config import DatasetSection
from graph_emb.data.datasets import Dataset, load
from graph_emb.data.holdout import hold_out_edges
from graph_emb.errors import ConfigError, DataError
from graph_emb.graph import read_labels


def load_dataset(section: DatasetSection, seed: int = 0) -> Dataset:
    """Read the graph, add the labels of a file, and keep edges out of training where the section asks for it.

    Args:
        section: What to read.
        seed: Chooses the held-out edges.
    Raises:
        DataError: missing, damaged or empty data, or labels of another graph.
        ConfigError: an option that means nothing to this data set.
    """
    dataset = load(
        section.name, section.root, download=section.download, directed=section.directed, **section.read_options()
    )
    if dataset.graph.num_arcs == 0:
        raise DataError(f"{section.name}: the graph has {dataset.graph.num_nodes} nodes and no edges to walk on")
    if section.labels is not None:
        dataset = replace(dataset, labels=read_labels(section.labels, dataset.graph), node_split=None)
    if section.hold_out > 0:
        dataset = _hold_out(dataset, section.hold_out, seed)
    return dataset


def absolute_paths(section: DatasetSection) -> DatasetSection:
    """The section with its local paths made absolute, so that a written configuration works from any folder."""
    paths = {name: getattr(section, name) for name in ("name", "root", "labels")}
    found = {name: str(Path(path).absolute()) for name, path in paths.items() if path and _exists(path)}
    return section.model_copy(update=found)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    if dataset.link_split is not None:
        raise ConfigError(f"dataset.hold_out = {share}: {dataset.name} has held-out edges of its own; leave it at 0")
    graph, split = hold_out_edges(dataset.graph, valid=0.0, test=share, seed=seed)
    if not len(split["test"]["edge"]):
        raise ConfigError(f"dataset.hold_out = {share}: less than one of {dataset.graph.num_edges} edges; raise it")
    parts = {part: tables for part, tables in split.items() if len(tables["edge"])}
    return replace(dataset, graph=graph, link_split=parts)


def same_nodes(dataset: Dataset, num_rows: int, node_ids: np.ndarray | None, source: str) -> np.ndarray:
    """The embedding row of each node of a data set.

    Args:
        dataset: N nodes.
        num_rows: Rows of the embeddings.
        node_ids: Original ids of the rows; None: 0 .. num_rows - 1.
        source: What errors call the embeddings.
    Returns:
        Shape (N,), int64.
    Raises:
        DataError: a node has no row, or a row has no node.
    """
    graph = dataset.graph
    ids = np.arange(num_rows, dtype=np.int64) if node_ids is None else node_ids
    own = graph.ids_of(np.arange(graph.num_nodes))
    if len(ids) != len(own) or ids.dtype.kind != own.dtype.kind:
        raise DataError(
            f"{source}: {len(ids)} rows with {_kind(ids)} ids, {dataset.name} has {len(own)} nodes with {_kind(own)} "
            "ids; are they of one graph?"
        )
    nodes = graph.find_nodes(ids)
    if (nodes < 0).any():
        stranger = ids[np.argmax(nodes < 0)].item()
        raise DataError(f"{source}: id {stranger!r} is no node of {dataset.name}; are they of one graph?")
    rows = np.full(len(own), -1, dtype=np.int64)
    rows[nodes] = np.arange(len(ids))
    if (rows < 0).any():
        missing = own[np.argmax(rows < 0)].item()
        raise DataError(f"{source}: no row for node {missing!r} of {dataset.name}; an id is given twice")
    return rows


def _kind(ids: np.ndarray) -> str:
    return "string" if ids.dtype.kind == "U" else "integer"
