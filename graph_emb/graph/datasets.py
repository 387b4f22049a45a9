"""Data sets by name or path: the training graph with the labels and splits that belong to it."""

# N nodes, E edges

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.graph import Graph, GraphFile, Labels, ReadOptions, read_graph_file
from graph_emb.graph.csr_readers import READERS
from graph_emb.graph.csr_readers.source import COMMON_OPTIONS, graph_of_arcs, split_suffix

if TYPE_CHECKING:
    from graph_emb.compat.ogb import OGBLink, OGBNode

GRAPH_FILE = "graph.npz"
DIGITS_NEIGHBOURS = 10

# Folders with a graph.npz that does not say it itself: whether the graph is directed.
FOLDERS = {"blogcatalog": False, "cnr2000": True, "cora": False, "soc_epinions1": True, "web_notredame": True}

LinkSplit = dict[str, dict[str, NDArray[np.int64]]]


@dataclass(frozen=True)
class Dataset:
    """A graph to train on, and what its results are judged by.

    Attributes:
        name: As the data set or its file is called.
        graph: Training edges only; held-out edges of ``link_split`` are not in it.
        labels: Classes of the N nodes, or None.
        node_split: Node numbers of ``train``, ``valid`` and ``test`` (those that exist), or None.
        link_split: ``train``: ``edge`` (E, 2); ``valid`` and ``test``: ``edge`` and negatives, ``edge_neg`` for
            example; or None.
        features: Shape (N, F), float32 or int64, or None: OGB's node features; for ogbn-proteins, whose edges have
            features and whose nodes have none, the mean over a node's edges, as in OGB's examples.
    """

    name: str
    graph: Graph
    labels: Labels | None = None
    node_split: dict[str, NDArray[np.int64]] | None = None
    link_split: LinkSplit | None = None
    features: NDArray | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.num_nodes != self.graph.num_nodes:
            raise ShapeError(
                f"data set {self.name!r}: labels of {self.labels.num_nodes} nodes for a graph of {self.graph.num_nodes}"
            )


def available() -> tuple[str, ...]:
    """Names that ``load`` knows; all but ``digits`` need a root folder, and OGB's may be downloaded into it."""
    from graph_emb.compat import ogb

    readable = [name for name in ogb.known_names() if not ogb.metadata(name).is_hetero and not _has_relations(name)]
    return tuple(sorted(["digits", *FOLDERS, *readable]))


def load(
    name_or_path: str | Path,
    root: str | Path | None = None,
    *,
    download: bool = False,
    directed: bool | None = None,
    **read_options: Any,
) -> Dataset:
    """A data set by its name or by the path of its file; a path that exists wins.

    * ``digits``: scikit-learn's bundled handwritten digits, 1,797 nodes; each is joined with its 10 nearest.
    * ``ogbl-*``, ``ogbn-*``: OGB's, in OGB's folder layout under ``root``. The graph of a link data set has the
      training edges only. Weights of repeated edges are added up unless ``duplicates`` says otherwise.
    * another name: ``root/name/graph.npz`` with labels and splits, or the file ``root/name``.

    Args:
        root: Folder of the named data sets; None: $GRAPH_EMB_DATA.
        download: Fetch an OGB data set that is not under ``root``. Without it nothing reaches for the network.
        directed: None: as the data set or the file says.
        read_options: Options of ``graph_emb.graph.read_graph``: ``weights``, ``duplicates``, ``self_loops`` for all;
            those of a file format, and ``format`` itself, for files.
    Raises:
        DataError: missing or damaged files.
        ConfigError: an unknown name or option, or one that means nothing to this data set.
    """
    format = read_options.pop("format", None)
    options = _options(directed, read_options)
    path, name = Path(name_or_path), str(name_or_path)
    root = os.environ.get("GRAPH_EMB_DATA") if root is None else root
    where = _folder_or_file(path)
    if where is None and root is not None and not _is_ogb(name):
        where = _folder_or_file(Path(root) / name) or _folder_or_file(Path(root) / name.replace("-", "_"))
    if where is not None and where.is_dir() and _is_ogb(where.name):
        name, root, where = where.name, where.parent, None
    if where is not None:
        if download:
            raise ConfigError(f"download=True means nothing to {where}, which is there already")
        return _from_file(where, options, format)
    _refuse_file_options(name, options, format)
    if _is_ogb(name):
        return _from_ogb(name.replace("_", "-"), _root(name, root), download, options, "duplicates" in read_options)
    if download:
        raise ConfigError(f"download=True: only OGB's data sets are downloaded, {name!r} is none")
    if name == "digits":
        return _digits(options)
    raise _not_found(path, name, root)


def _options(directed: bool | None, given: dict[str, Any]) -> ReadOptions:
    known = [field.name for field in fields(ReadOptions)]
    for name in given:
        if name not in known:
            raise unknown_name("option of a data set", name, known)
    if given.get("columns") is not None:
        given["columns"] = tuple(given["columns"])
    return ReadOptions(directed=directed, **given)


def _refuse_file_options(name: str, options: ReadOptions, format: str | None) -> None:
    changed = [option for option in options.changed() if option not in COMMON_OPTIONS]
    if format is not None:
        changed.append("format")
    if changed and (_is_ogb(name) or name == "digits"):
        raise ConfigError(f"{changed[0]} is an option of files and means nothing to {name!r}")


def _is_ogb(name: str) -> bool:
    return name.startswith(("ogbl-", "ogbl_", "ogbn-", "ogbn_"))


def _has_relations(name: str) -> bool:
    return name.startswith(("ogbl-wikikg", "ogbl-biokg"))


def _folder_or_file(path: Path) -> Path | None:
    """The path where it is a file, a folder with a graph file, or OGB's folder; else None."""
    try:
        if path.is_file() or (path / GRAPH_FILE).is_file() or (path.is_dir() and _is_ogb(path.name)):
            return path
    except (OSError, ValueError):  # no name that the system takes; it is no path, then
        return None
    return None


def _root(name: str, root: str | Path | None) -> Path:
    if root is None:
        raise DataError(f"data set {name!r} needs root=, the folder that holds {name.replace('-', '_')}/")
    return Path(root)


def _not_found(path: Path, name: str, root: str | Path | None) -> Exception:
    folder = name.replace("-", "_")
    if folder in FOLDERS:
        try:
            place = _root(name, root) / folder / GRAPH_FILE
        except DataError as error:
            return error
        return DataError(f"{place}: no such file; root= is the folder that holds {folder}/")
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        return DataError(f"{path}: is a folder without {GRAPH_FILE}; give the graph file itself")
    if split_suffix(path)[0] in READERS or len(path.parts) > 1:
        return DataError(f"{path}: no such file; check the name" + (f", or look under {root}" if root else ""))
    return unknown_name("data set", name[:80], available())


def _from_file(path: Path, options: ReadOptions, format: str | None) -> Dataset:
    name, file = path.name, path
    if path.is_dir():
        file = path / GRAPH_FILE
        if options.directed is None and path.name in FOLDERS:
            options = replace(options, directed=FOLDERS[path.name])
    else:
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    read: GraphFile = read_graph_file(file, options, format=format)
    return Dataset(name, read.graph, read.labels, read.node_split)


def _from_ogb(name: str, root: Path, download: bool, options: ReadOptions, says_duplicates: bool) -> Dataset:
    from graph_emb.compat import ogb

    if _has_relations(name):
        raise DataError(f"data set {name!r} is a knowledge graph with relations; load reads plain graphs")
    read: Callable[..., Any] = ogb.read_link_dataset if name.startswith("ogbl") else ogb.read_node_dataset
    data = read(name, root, download=download)
    weights = data.extra.get("edge_weight")
    if weights is not None and not says_duplicates:
        options = replace(options, duplicates="sum")  # OGB lists a repeated collaboration once for each year
    graph = graph_of_arcs(
        root / data.metadata.folder,
        data.edge_index[0],
        data.edge_index[1],
        None if weights is None else weights.reshape(-1),
        options,
        directed=data.is_directed,
        num_nodes=data.num_nodes,
    )
    features = data.node_feat if data.node_feat is not None else _mean_at_nodes(data)
    if name.startswith("ogbl"):
        split = {part: _edges_of(tables) for part, tables in data.split.items()}
        return Dataset(name, graph, link_split=split, features=features)
    labels = _labels(data.labels, data.metadata.num_classes)
    return Dataset(name, graph, labels, node_split=dict(data.split), features=features)


def _mean_at_nodes(data: OGBNode | OGBLink) -> NDArray[np.float32] | None:
    """Edge features (E, F) of an undirected graph as their mean over the edges of each node, (N, F); 0 of none."""
    if data.edge_feat is None:
        return None
    ends = data.edge_index.reshape(-1)
    counts = np.maximum(np.bincount(ends, minlength=data.num_nodes), 1)
    columns = [np.bincount(ends, np.tile(column, 2), data.num_nodes) for column in data.edge_feat.T]
    return (np.stack(columns, axis=1) / counts[:, None]).astype(np.float32)


def _edges_of(tables: dict[str, NDArray]) -> dict[str, NDArray]:
    """The tables of one part, with ``edge`` (E, 2) also where OGB gives sources and targets apart."""
    if "edge" in tables or "source_node" not in tables:
        return dict(tables)
    return {**tables, "edge": np.stack([tables["source_node"], tables["target_node"]], axis=1)}


def _labels(values: NDArray, num_classes: int | None) -> Labels:
    """Labels of (N,) classes with -1 for none, or of (N, tasks) zeros and ones (a missing one is no label)."""
    if values.ndim == 1:
        return Labels.from_single(values, num_classes)
    nodes, classes = np.nonzero(values == 1)
    return Labels.from_pairs(nodes, classes, len(values), num_classes=values.shape[1])


def _digits(options: ReadOptions) -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    images, digits = load_digits(return_X_y=True)
    nearest = kneighbors_graph(images, DIGITS_NEIGHBOURS).tocoo()
    graph = graph_of_arcs(
        Path("digits"), nearest.row, nearest.col, None, options, directed=False, num_nodes=len(images)
    )
    return Dataset("digits", graph, Labels.from_single(digits, class_names=[str(digit) for digit in range(10)]))
