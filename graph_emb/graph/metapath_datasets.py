"""Graphs with node types for metapath walks: the DBIS network by name, all else by ``partition``'s readers."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers.arrays import load_arrays
from graph_emb.graph.labels import Labels
from graph_emb.graph.typed import HeteroGraph

DBIS_METAPATH = "author-paper-venue-paper-author"
AREAS = ("databases", "data mining", "information retrieval")
AREA_VENUES = {
    "databases": ("SIGMODConference", "VLDB", "ICDE", "PODS", "EDBT"),
    "data mining": ("KDD", "ICDM", "SDM", "PKDD", "PAKDD"),
    "information retrieval": ("SIGIR", "WWW", "CIKM", "ECIR", "WSDM"),
}
"""The venues of the DBLP four-area data set (Sun et al., 2009) that DBIS has; those of its fourth area it lacks."""

ASKED_VENUES = ("KDD", "SIGMODConference", "SIGIR", "WWW")


@dataclass(frozen=True)
class TypedDataset:
    """A graph with node types, and what its embeddings are judged by.

    Attributes:
        name: As the data set or its file is called.
        graph: Nodes and edges by type.
        metapath: The path that is walked where none is given, or None.
        labels: Classes of the nodes of some types.
        groups: Types whose labelled nodes are few and are clustered rather than classified.
        names: Readable names of the nodes of some types, (N,) strings, for tables.
        asked: Nodes of those types whose neighbours are shown.
    """

    name: str
    graph: HeteroGraph
    metapath: str | None = None
    labels: dict[str, Labels] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    names: dict[str, np.ndarray] = field(default_factory=dict)
    asked: dict[str, np.ndarray] = field(default_factory=dict)


def load_typed(name_or_path: str | Path, root: str | Path | None = None, *, format: str | None = None) -> TypedDataset:
    """A graph with node types by name or path.

    * ``dbis``: ``root/dbis`` with ``graph.npz`` and ``conf_names.txt.gz``; authors, papers and venues.
    * a path, or one below ``root``: whatever ``readers.read_graph`` takes, such as a ``.yaml`` that names the files
      of each type, or OGB's folder. A column ``label`` of the node data gives the classes of a type.

    Args:
        root: Folder of the named data sets; None: $GRAPH_EMB_DATA.
        format: Of the file, where its name does not say it.
    Raises:
        DataError: missing or damaged files.
    """
    from graph_emb.graph.readers import read_graph

    root = os.environ.get("GRAPH_EMB_DATA") if root is None else root
    place = Path(name_or_path)
    if not place.exists() and root is not None:
        place = Path(root) / place
    if not place.exists():
        raise DataError(
            f"data set {str(name_or_path)!r}: no such file or folder" + (f", nor under {root}" if root else "")
        )
    if (place / "conf_names.txt.gz").is_file():
        return _dbis(place)
    graph = read_graph(place, format=format)
    labels = {}
    for ntype, columns in graph.node_data.items():
        values = columns.get("label")
        if values is not None and values.ndim == 1 and values.dtype.kind in "iu":
            labels[ntype] = Labels.from_single(values)
    return TypedDataset(graph.name, graph, labels=labels)


def _dbis(folder: Path) -> TypedDataset:
    """The DBIS network as the folder's PROVENANCE.md describes it."""
    file = folder / "graph.npz"
    arrays = load_arrays(file)
    missing = {"paper_author", "paper_conf", "paper_id", "author_id", "conf_id"} - arrays.keys()
    if missing:
        raise DataError(f"{file}: has no {', '.join(sorted(missing))}; is it the DBIS network?")
    with gzip.open(folder / "conf_names.txt.gz", "rt", encoding="utf-8") as lines:
        names = np.array([line.rstrip("\n") for line in lines])
    if len(names) != len(arrays["conf_id"]):
        raise DataError(f"{folder / 'conf_names.txt.gz'}: {len(names)} names for {len(arrays['conf_id'])} venues")
    ids = {"author": "author_id", "paper": "paper_id", "venue": "conf_id"}
    ends = {name: tuple(arrays[name].astype(np.int64)) for name in ("paper_author", "paper_conf")}
    graph = HeteroGraph(
        {ntype: len(arrays[column]) for ntype, column in ids.items()},
        {("paper", "written_by", "author"): ends["paper_author"], ("paper", "in", "venue"): ends["paper_conf"]},
        node_ids={ntype: arrays[column].astype(np.int64) for ntype, column in ids.items()},
        name="dbis",
    )
    papers = np.bincount(ends["paper_conf"][1], minlength=len(names))

    def venue(name: str) -> int:  # of those of one name, the one with the most papers
        here = np.flatnonzero(names == name)
        if not len(here):
            raise DataError(f"{folder / 'conf_names.txt.gz'}: no venue {name!r}; is it the DBIS network?")
        return int(here[papers[here].argmax()])

    areas = np.full(len(names), -1, np.int64)
    for area, title in enumerate(AREAS):
        areas[[venue(name) for name in AREA_VENUES[title]]] = area
    return TypedDataset(
        "dbis",
        graph,
        DBIS_METAPATH,
        {"venue": Labels.from_single(areas, class_names=AREAS)},
        frozenset({"venue"}),
        {"venue": names},
        {"venue": np.array([venue(name) for name in ASKED_VENUES])},
    )
