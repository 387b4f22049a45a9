"""Data sets by name or path: a typed graph with the labels, splits and features that belong to it."""

# N nodes of a type, E edges

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.compat import ogb
from graph_emb.core.errors import ConfigError, DataError, ShapeError, check_flags, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.graph.csr import Duplicates
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers import READERS, read_graph
from graph_emb.graph.readers.matrices import load_arrays
from graph_emb.graph.readers.ogb import link_split, needs_root, ogb_root
from graph_emb.graph.readers.source import MASKS, PART_WORDS, WEIGHT, ReadOptions, checked_file, mask_of, split_suffix
from graph_emb.graph.readers.triples import ARRAYS, read_knowledge_graph, read_names
from graph_emb.graph.triples import KnowledgeGraph, triples_of_ogb
from graph_emb.graph.typed import NODE_TYPE, HeldOut, HeteroGraph, summary, summary_card

GRAPH_FILE = "graph.npz"
FOLDERS = ("blogcatalog", "cnr2000", "cora", "soc_epinions1", "web_notredame")
"""Usual names of folders with a ``graph.npz``."""
DIGITS_NEIGHBOURS = 10
ENTITY_PARTS = {"train": "trainingSet.tsv", "test": "testSet.tsv"}
TRIPLE_FILES = tuple(f"train.{suffix}" for suffix in ("tsv", "txt", "tsv.gz", "txt.gz"))
VENUE_NAMES = "conf_names.txt.gz"
OWN_FILES = (GRAPH_FILE, ARRAYS, VENUE_NAMES, *ENTITY_PARTS.values(), *TRIPLE_FILES)
DBIS_METAPATH = "author-paper-venue-paper-author"
AREAS = ("databases", "data mining", "information retrieval")
AREA_VENUES = {
    "databases": ("SIGMODConference", "VLDB", "ICDE", "PODS", "EDBT"),
    "data mining": ("KDD", "ICDM", "SDM", "PKDD", "PAKDD"),
    "information retrieval": ("SIGIR", "WWW", "CIKM", "ECIR", "WSDM"),
}
"""The venues of the DBLP four-area data set (Sun et al., 2009) in DBIS, which lacks its fourth area."""
ASKED_VENUES = ("KDD", "SIGMODConference", "SIGIR", "WWW")

LinkSplit = dict[str, dict[str, NDArray[np.int64]]]
NodeSplit = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A typed graph and the labels, splits and features of its nodes; ``graph_emb.graph.views`` has views of it.

    Attributes:
        name: As the data set or its file is called.
        graph: Training edges only, as the source holds them; held-out edges and triples are not in it.
        labels: Classes by node type.
        node_split: By node type, the nodes of ``train``, ``valid`` and ``test``, as far as there are.
        features: By node type, shape (N, F), float32 or int64. OGB's node features; for ogbn-proteins, whose edges
            have features and whose nodes have none, the mean over a node's edges, as in OGB's examples.
        link_split: ``train``: ``edge`` (E, 2); ``valid`` and ``test``: ``edge`` and negatives, ``edge_neg`` for
            example; or None.
        triples: Of a knowledge graph, with the held-out ones; else None.
        duplicates: Weight of a repeated edge, as the data set is defined.
        metapath: The path that is walked where none is given, or None.
        groups: Node types whose labelled nodes are few and are clustered rather than classified.
        names: By node type, readable names of the nodes, (N,) strings, for tables.
        asked: Nodes of those types whose neighbours are shown.
    Raises:
        ShapeError: labels of another number of nodes.
    """

    name: str
    graph: HeteroGraph
    labels: Mapping[str, Labels] = field(default_factory=dict)
    node_split: Mapping[str, NodeSplit] = field(default_factory=dict)
    features: Mapping[str, NDArray] = field(default_factory=dict)
    link_split: LinkSplit | None = None
    triples: KnowledgeGraph | None = None
    duplicates: Duplicates = "first"
    metapath: str | None = None
    groups: frozenset[str] = frozenset()
    names: Mapping[str, NDArray] = field(default_factory=dict)
    asked: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    __repr__ = summary
    _repr_html_ = summary_card

    def __post_init__(self) -> None:
        for ntype, labels in self.labels.items():
            check_labels(self.name, labels, self.graph.num_nodes[ntype])

    @classmethod
    def of_graph(cls, graph: HeteroGraph, name: str | None = None, **more: Any) -> Dataset:
        """A graph with the labels, splits and features among its node data, as readers and DGL name them, and with
        what it holds out.
        """
        held = graph.held_out or HeldOut()
        columns = graph.node_data.items()
        classes = {ntype: data["label"] for ntype, data in columns if "label" in data}
        labels = {
            ntype: _labels(own, held.classes.get(ntype))
            for ntype, own in classes.items()
            if own.ndim == 2 or (own.ndim == 1 and own.dtype.kind in "iu")
        }
        for ntype, texts in graph.class_names.items():
            labels[ntype] = replace(labels[ntype], class_names=tuple(texts.tolist()))
        masks = {ntype: _masks(data) for ntype, data in columns}
        split = {t: {part: np.flatnonzero(mask) for part, mask in own.items()} for t, own in masks.items() if own}
        for ntype, ordered in held.nodes.items():
            split[ntype] = {**split.get(ntype, {}), **ordered}
        features = {ntype: data["feat"] for ntype, data in columns if "feat" in data}
        known: dict[str, Any] = {"labels": labels, "node_split": split, "features": features}
        if held.links:
            known["link_split"] = {part: {**tables} for part, tables in held.links.items()}
        if graph.repeats is not None and any(WEIGHT in data for data in graph.edge_data.values()):
            known["duplicates"] = graph.repeats
        return cls(graph.name if name is None else name, graph, **{**known, **more})


def _masks(data: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The mask of each part of a split among node data: as DGL names them, else booleans of any word for the part."""
    found = {part: data[name] for part, name in MASKS.items() if name in data}
    for word, part in PART_WORDS.items():
        for name in (f"{word}_mask", word):
            if name in data and data[name].dtype == bool and data[name].ndim == 1:
                found.setdefault(part, data[name])
    return {part: found[part] for part in MASKS if part in found}


def check_labels(name: str, labels: Labels | None, num_nodes: int) -> None:
    """Raise a ShapeError where the labels of a data set are of another number of nodes."""
    if labels is not None and labels.num_nodes != num_nodes:
        raise ShapeError(f"data set {name!r}: labels of {labels.num_nodes} nodes for a graph of {num_nodes}")


def available() -> tuple[str, ...]:
    """Names that ``load_dataset`` knows; all but ``digits`` need a root folder, OGB's may be downloaded into it."""
    return tuple(sorted(["digits", "dbis", *FOLDERS, *ogb.known_names()]))


def load_dataset(source: Any, root: str | Path | None = None, *, download: bool = False, **options: Any) -> Dataset:
    """A data set by its name, by the path of its file or folder, or of a graph in memory; a path that exists wins.

    * ``digits``: scikit-learn's bundled handwritten digits, 1,797 nodes; each is joined with its 10 nearest.
    * ``ogbl-*``, ``ogbn-*``: OGB's, in OGB's folder layout under ``root``. The graph of a link data set has the
      training edges only.
    * a folder with ``triples.npz``, or with ``train``, ``valid`` and ``test`` as ``.tsv`` or ``.txt``: a knowledge
      graph, as ``format="triples"`` reads it. One such file needs ``format="triples"`` said.
    * a folder with one ``.nt`` file, ``trainingSet.tsv`` and ``testSet.tsv``: RDF entities with classes, such as
      AIFB, MUTAG, BGS and AM of R-GCN (Ristoski et al. 2016).
    * ``dbis``: a folder with ``graph.npz`` and ``conf_names.txt.gz``; authors, papers and venues.
    * a folder with ``graph.npz``; a partition, its folder or the JSON in it that DGL opens; and any file, folder or
      object that ``read_graph`` takes.
      The columns ``label``, ``train_mask``, ``val_mask``, ``test_mask`` (or booleans ``train``, ``val``, ``valid``,
      ``test``) and ``feat`` of the node data become labels, split and features.

    Args:
        source: A path; or a name, looked up under ``root``; or a graph of DGL, networkx, scipy or this library, a
            ``PartitionedGraph`` among them.
        root: Folder of the named data sets; None: $GRAPH_EMB_DATA.
        download: Fetch an OGB data set that is not under ``root``. Without it nothing reaches for the network.
        options: Of ``graph_emb.read_graph``.
    Raises:
        DataError: missing or damaged files.
        ConfigError: an unknown name or option, or one that means nothing to this data set.
    Example:
        >>> graph_emb.load_dataset("digits").graph.total_nodes
        1797
    """
    check_flags(download=download)
    if not isinstance(source, str | os.PathLike):
        if root is not None or download:
            kind = type(source).__name__
            raise ConfigError(f"root= and download= mean nothing to a {kind} in memory; leave them out")
        if not isinstance(source, Dataset):
            return Dataset.of_graph(read_graph(source, **options))
        if options:
            name = next(iter(options))
            raise ConfigError(f"{name}= means nothing to a Dataset, which was read already; leave it out")
        return source
    name = os.fspath(source)
    place = find_dataset(name, root)
    if READERS["ogb"].accepts(source if place is None else place):
        if place is not None and place.is_dir():
            name, root = place.name, place.absolute().parent
        return _of_ogb(Path(name).name, ogb_root(Path(name), data_root(root)), download, options)
    if download:
        raise ConfigError(f"download=True: only OGB's data sets are downloaded, {name!r} is none")
    if place is not None:
        return _of_place(place, options)
    if name == "digits":
        return _digits(options)
    raise _not_found(Path(source), name, data_root(root))


def read_source(source: Any, root: str | Path | None = None, **options: Any) -> HeteroGraph:
    """The typed graph alone of whatever ``load_dataset`` takes, with all columns and relations that it has.

    Arguments and errors as ``load_dataset``; ``download`` is an option of OGB's data sets.
    """
    if not isinstance(source, str | os.PathLike):
        return read_graph(source, **options)
    source = os.fspath(source)
    name, place = source, find_dataset(source, root)
    if place is None and READERS["ogb"].accepts(source):
        return read_graph(Path(name).name, root=ogb_root(Path(name), data_root(root)), **options)
    if name == "digits" and place is None:
        return _with_classes(_digits(options))
    if place is None and not os.path.lexists(source):
        raise _not_found(Path(source), name, data_root(root))
    if place is None:
        return read_graph(source, **options)
    if any((place / file).is_file() for file in (VENUE_NAMES, ENTITY_PARTS["train"])):
        return _with_classes(_of_place(place, options))
    if "format" not in options and _holds_triples(place):
        options["format"] = "triples"
    elif (place / GRAPH_FILE).is_file():
        place = place / GRAPH_FILE
    return read_graph(place, **options)


def _with_classes(dataset: Dataset) -> HeteroGraph:
    """The graph with labels and split among its node data, where ``of_graph`` finds them; groups are no classes."""
    columns = {ntype: dict(own) for ntype, own in dataset.graph.node_data.items()}
    for ntype in dataset.labels.keys() - dataset.groups:
        labels = dataset.labels[ntype]
        split = dataset.node_split.get(ntype, {})
        masks = {MASKS[part]: mask_of(nodes, labels.num_nodes) for part, nodes in split.items()}
        columns.setdefault(ntype, {}).update({"label": labels.to_column(), **masks})
    return replace(dataset.graph, node_data=columns)


def data_root(root: str | Path | None = None) -> Path | None:
    """The folder of the named data sets: ``root``, else $GRAPH_EMB_DATA, else None."""
    found = os.environ.get("GRAPH_EMB_DATA") if root is None else root
    return None if found is None else user_path(found)


def find_dataset(source: str | Path, root: str | Path | None = None) -> Path | None:
    """The path that a path or name stands for: where it is one, else below the root; None where there is none."""
    folder, name = data_root(root), str(source)
    below = [] if folder is None else [folder / name, folder / name.replace("-", "_")]
    return next((place for place in (Path(source), *below) if _is_data(place)), None)


def _is_data(path: Path) -> bool:
    try:
        known = path.is_file() or any((path / file).is_file() for file in OWN_FILES)
        return known or (path.is_dir() and any(reader.accepts(path) for reader in READERS.values()))
    except (OSError, ValueError):  # a name that the system does not take is no path
        return False


def _not_found(path: Path, name: str, root: Path | None) -> Exception:
    if name.replace("-", "_") in (*FOLDERS, "dbis"):
        if root is None:
            return needs_root(name)
        return DataError(f"{root / name}: no such file; root= is the folder that holds {name.replace('-', '_')}/")
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        kinds = f"{GRAPH_FILE}, triples or the parts of a partition"
        return DataError(f"{path}: is a folder without {kinds}; give the graph file itself")
    if any(split_suffix(path)) or len(path.parts) > 1:
        hint = "" if root is None else f", or look under {root}"
        return DataError(f"{path}: no such file or folder; check the name{hint}")
    if root is not None and not difflib.get_close_matches(name, available()):
        return DataError(f"data set {name[:80]!r}: no {name[:80]} in {root}; root= is the folder that holds it")
    return unknown_name("data set", name[:80], available())


def _of_place(place: Path, options: dict[str, Any]) -> Dataset:
    """The data set of a file or folder that is there."""
    if (place / VENUE_NAMES).is_file():
        return _dbis(place, options)
    if (place / ENTITY_PARTS["train"]).is_file():
        return _entities(place, options)
    if options.get("format") == "triples" or ("format" not in options and _holds_triples(place)):
        own = {name: options[name] for name in ("order", "ids", "separator") if name in options}
        triples = read_knowledge_graph(place, ReadOptions(**own))
        rest = {name: value for name, value in options.items() if name not in (*own, "format")}
        return Dataset(triples.name, read_graph(triples, **{"relations": "column", **rest}), triples=triples)
    name = place.name
    if (place / GRAPH_FILE).is_file():
        place = place / GRAPH_FILE
    elif not place.is_dir():
        name = place.name.removesuffix(".gz").rpartition(".")[0] or place.name
    return Dataset.of_graph(read_graph(place, **options), name)


def _holds_triples(folder: Path) -> bool:
    return any((folder / file).is_file() for file in (ARRAYS, *TRIPLE_FILES))


def _of_ogb(name: str, root: Path, download: bool, options: dict[str, Any]) -> Dataset:
    data = ogb.read_dataset(name, root, download=download)
    name = data.metadata.name
    if data.metadata.kind == "link" and "relation" in data.split["train"]:
        assert not isinstance(data, ogb.OGBNode)
        if not data.metadata.is_hetero:
            options.setdefault("relations", "column")
        triples = triples_of_ogb(data)
        return Dataset(name, read_graph(data, **options), triples=triples)
    if isinstance(data, ogb.OGBHetero):
        labels = {ntype: _labels(table, data.metadata.num_classes) for ntype, table in data.labels.items()}
        return Dataset.of_graph(read_graph(data, **options), name, labels=labels)
    features = data.node_feat if data.node_feat is not None else _mean_at_nodes(data)
    graph = read_graph(replace(data, edge_feat=None), **options)
    more: dict[str, Any] = {"features": {} if features is None else {NODE_TYPE: features}}
    if isinstance(data, ogb.OGBNode):
        more["labels"] = {NODE_TYPE: _labels(data.labels, data.metadata.num_classes)}
        more["node_split"] = {NODE_TYPE: dict(data.split)}
    else:
        more["link_split"] = link_split(data)
    return Dataset.of_graph(graph, name, **more)


def _mean_at_nodes(data: ogb.OGBNode | ogb.OGBLink) -> NDArray[np.float32] | None:
    """Edge features (E, F) of an undirected graph as their mean over the edges of each node, (N, F); 0 of none."""
    if data.edge_feat is None:
        return None
    ends = data.edge_index.reshape(-1)
    counts = np.maximum(np.bincount(ends, minlength=data.num_nodes), 1)
    columns = [np.bincount(ends, np.tile(column, 2), data.num_nodes) / counts for column in data.edge_feat.T]
    return np.stack(columns, axis=1).astype(np.float32)


def _labels(values: NDArray, num_classes: int | None = None) -> Labels:
    """Labels of (N,) classes with -1 for none, or of (N, tasks) zeros and ones (a missing one is no label)."""
    if values.ndim == 1:
        return Labels.from_single(values, num_classes)
    nodes, classes = np.nonzero(values == 1)
    return Labels.from_pairs(nodes, classes, len(values), num_classes=values.shape[1])


def _digits(options: dict[str, Any]) -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    if "format" in options:
        raise ConfigError("format is an option of files and means nothing to 'digits'")
    images, digits = load_digits(return_X_y=True)
    graph = read_graph(kneighbors_graph(images, DIGITS_NEIGHBOURS), **{"directed": False, **options})
    labels = Labels.from_single(digits, class_names=[str(digit) for digit in range(10)])
    return Dataset("digits", replace(graph, name="digits"), {NODE_TYPE: labels})


def _entities(folder: Path, options: dict[str, Any]) -> Dataset:
    """RDF entities with classes.

    A split file is tab-separated with a header; the column that starts with ``label`` holds the classes and the one
    whose values are IRIs of the graph the entities.
    """
    graphs = sorted([*folder.glob("*.nt"), *folder.glob("*.nt.gz")])
    if len(graphs) != 1:
        raise DataError(f"{folder}: has {len(graphs)} N-Triples files; expected one .nt or .nt.gz")
    graph = read_graph(graphs[0], **options)
    numbers = {term: number for number, term in enumerate(graph.node_ids[NODE_TYPE].tolist())}
    found = {part: _labelled(checked_file(folder / file), numbers) for part, file in ENTITY_PARTS.items()}
    names = sorted({label for _, labels in found.values() for label in labels})
    classes = np.full(graph.num_nodes[NODE_TYPE], -1, dtype=np.int64)
    for nodes, labels in found.values():
        classes[nodes] = [names.index(label) for label in labels]
    split = {part: nodes for part, (nodes, _) in found.items()}
    by_name = Labels.from_single(classes, class_names=names)
    return Dataset(folder.name, graph, {NODE_TYPE: by_name}, {NODE_TYPE: split})


def _labelled(file: Path, numbers: dict[str, int]) -> tuple[NDArray[np.int64], list[str]]:
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


def _dbis(folder: Path, options: dict[str, Any]) -> Dataset:
    """The DBIS network as the folder's PROVENANCE.md describes it."""
    file, name_file = folder / GRAPH_FILE, folder / VENUE_NAMES
    arrays = load_arrays(checked_file(file))
    missing = {"paper_author", "paper_conf", "paper_id", "author_id", "conf_id"} - arrays.keys()
    if missing:
        raise DataError(f"{file}: has no {', '.join(sorted(missing))}; is it the DBIS network?")
    names = np.array(read_names(name_file))
    if len(names) != len(arrays["conf_id"]):
        raise DataError(f"{name_file}: {len(names)} names for {len(arrays['conf_id'])} venues")
    ids = {"author": "author_id", "paper": "paper_id", "venue": "conf_id"}
    by, at = (tuple(arrays[name].astype(np.int64)) for name in ("paper_author", "paper_conf"))
    graph = HeteroGraph(
        {ntype: len(arrays[column]) for ntype, column in ids.items()},
        {("paper", "written_by", "author"): by, ("paper", "in", "venue"): at},
        node_ids={ntype: arrays[column].astype(np.int64) for ntype, column in ids.items()},
        name="dbis",
    )
    papers = np.bincount(at[1], minlength=len(names))

    def venue(name: str) -> int:
        """Of the venues of one name, the one with the most papers."""
        here = np.flatnonzero(names == name)
        if not len(here):
            raise DataError(f"{name_file}: no venue {name!r}; is it the DBIS network?")
        return int(here[papers[here].argmax()])

    areas = np.full(len(names), -1, np.int64)
    for area, title in enumerate(AREAS):
        areas[[venue(name) for name in AREA_VENUES[title]]] = area
    return Dataset(
        "dbis",
        read_graph(graph, **options),
        {"venue": Labels.from_single(areas, class_names=AREAS)},
        metapath=DBIS_METAPATH,
        groups=frozenset({"venue"}),
        names={"venue": names},
        asked={"venue": np.array([venue(name) for name in ASKED_VENUES])},
    )
