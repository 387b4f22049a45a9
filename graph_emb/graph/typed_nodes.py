"""Typed graphs whose nodes of one type have classes: RDF entities, OGB's ogbn-mag, and labelled plain graphs."""

# N nodes of the labelled type.

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.graph import datasets
from graph_emb.graph.csr_readers.source import checked_file
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import MASKS
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph

ENTITY_PARTS = {"train": "trainingSet.tsv", "test": "testSet.tsv"}


@dataclass(frozen=True, eq=False)
class TypedNodes:
    """A graph with typed nodes and edges, and the classes of one node type.

    Attributes:
        name: As the data set is called.
        graph: With the reverse of every edge type whose edges do not hold both directions already.
        ntype: The node type that has classes.
        labels: Shape (N,), int64, -1 where unknown; or (N, tasks), floating, NaN where unknown.
        split: Node numbers of "train", "valid" (where there is one) and "test".
        features: By node type, (nodes, width), float32; types without are left out.
        class_names: In the order of the classes; None: numbers.
    """

    name: str
    graph: HeteroGraph
    ntype: str
    labels: NDArray[Any]
    split: dict[str, NDArray[np.int64]]
    features: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None


def load_typed_nodes(name: str, root: str | Path | None = None, *, download: bool = False) -> TypedNodes:
    """A data set by name or folder.

    * a folder with one ``.nt`` or ``.nt.gz`` file, ``trainingSet.tsv`` and ``testSet.tsv``: RDF entities, such as
      AIFB, MUTAG, BGS and AM of R-GCN. Each predicate and its reverse is an edge type.
    * ``ogbn-mag``: with the reverse of each edge type, features of papers.
    * every labelled data set with a split that ``graph_emb.graph.datasets.load`` knows; one node and one edge type,
      arcs in both directions.

    Args:
        root: Folder of the named data sets; None: $GRAPH_EMB_DATA.
        download: Fetch an OGB data set that is not under ``root``.
    Raises:
        DataError: missing or damaged files, or no labels or no split.
    """
    root = os.environ.get("GRAPH_EMB_DATA") if root is None else root
    folder = next((p for p in _places(name, root) if (p / ENTITY_PARTS["train"]).is_file()), None)
    if folder is not None:
        return read_entities(folder)
    if Path(name).name.replace("_", "-") == "ogbn-mag":
        place: dict[str, Any] = {} if root is None else {"root": root}
        return _of_typed_graph(read_graph(name, reverse_types=True, download=download, **place))
    return _of_dataset(datasets.load(name, root, download=download))


def read_entities(folder: str | Path) -> TypedNodes:
    """RDF entities with classes, in the files of Ristoski et al. 2016.

    A split file is tab-separated with a header; the column that starts with ``label`` holds the classes and the one
    whose values are IRIs of the graph the entities.

    Raises:
        DataError: a file is missing, or an entity is not in the graph.
    """
    folder = Path(folder)
    graphs = sorted([*folder.glob("*.nt"), *folder.glob("*.nt.gz")])
    if len(graphs) != 1:
        raise DataError(f"{folder}: has {len(graphs)} N-Triples files; expected one .nt or .nt.gz")
    graph = read_graph(graphs[0], reverse_types=True)
    numbers = {term: number for number, term in enumerate(graph.node_ids[NODE_TYPE].tolist())}
    found = {part: _entities(checked_file(folder / file), numbers) for part, file in ENTITY_PARTS.items()}
    names = sorted({label for _, labels in found.values() for label in labels})
    classes = np.full(graph.num_nodes[NODE_TYPE], -1, dtype=np.int64)
    for nodes, labels in found.values():
        classes[nodes] = [names.index(label) for label in labels]
    split = {part: nodes for part, (nodes, _) in found.items()}
    return TypedNodes(folder.name, graph, NODE_TYPE, classes, split, class_names=tuple(names))


def _entities(file: Path, numbers: dict[str, int]) -> tuple[NDArray[np.int64], list[str]]:
    """Nodes and labels of a split file."""
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line]
    header, rows = lines[0], lines[1:]
    label = next((column for column, name in enumerate(header) if name.startswith("label")), None)
    entity = next((c for c in range(len(header)) if rows and f"<{rows[0][c]}>" in numbers), None)
    if label is None or entity is None:
        raise DataError(f"{file}: no column starts with 'label', or none holds IRIs of the graph; has {header}")
    unknown = [row[entity] for row in rows if f"<{row[entity]}>" not in numbers]
    if unknown:
        raise DataError(f"{file}: entity {unknown[0]!r} is not in the graph; the files do not fit together")
    nodes = np.array([numbers[f"<{row[entity]}>"] for row in rows], dtype=np.int64)
    return nodes, [row[label] for row in rows]


def _of_typed_graph(graph: HeteroGraph) -> TypedNodes:
    """OGB's typed node data set as its reader gives it."""
    ntype = next(ntype for ntype, columns in graph.node_data.items() if "label" in columns)
    columns = graph.node_data[ntype]
    split = {part: np.flatnonzero(columns[mask]) for part, mask in MASKS.items()}
    features = {t: data["feat"].astype(np.float32) for t, data in graph.node_data.items() if "feat" in data}
    return TypedNodes(graph.name.replace("_", "-"), graph, ntype, columns["label"], split, features)


def _of_dataset(dataset: datasets.Dataset) -> TypedNodes:
    if dataset.labels is None or dataset.node_split is None:
        what = "labels" if dataset.labels is None else "split of its nodes"
        raise DataError(f"data set {dataset.name!r} has no {what}; node classification needs both")
    labels = dataset.labels
    single = labels.to_single() if labels.is_single else labels.to_matrix().toarray().astype(np.float32)
    graph = read_graph(dataset.graph.to_undirected())
    features = {} if dataset.features is None else {NODE_TYPE: dataset.features.astype(np.float32)}
    return TypedNodes(dataset.name, graph, NODE_TYPE, single, dict(dataset.node_split), features)


def _places(name: str, root: str | Path | None) -> list[Path]:
    return [Path(name), *([] if root is None else [Path(root) / name, Path(root) / name.replace("-", "_")])]
