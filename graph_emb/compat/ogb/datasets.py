"""OGB's link and node data sets as numpy arrays: what is on the disk, nothing added."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graph_emb.compat.ogb import raw
from graph_emb.compat.ogb.catalog import Metadata, metadata
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.hidden import scratch_folder
from graph_emb.core.paths import user_path

Root = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class _OneType(raw.RawGraph):
    metadata: Metadata

    @property
    def is_directed(self) -> bool:
        """False when an edge of `edge_index` means both directions."""
        return self.metadata.is_directed


@dataclass(frozen=True, kw_only=True)
class OGBLink(_OneType):
    """A link data set. `split[part]` holds `edge` (E, 2) and, for ranking, `edge_neg`; knowledge graphs
    hold `head`, `relation`, `tail` and, outside of training, `head_neg`, `tail_neg`.
    """

    split: dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class OGBNode(_OneType):
    """A node data set. `labels` is (N,) int64 with -1 for a node without one, or (N, tasks) for several tasks;
    `split` holds the node ids of train, valid and test.
    """

    labels: np.ndarray
    split: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class OGBHetero(raw.RawHeteroGraph):
    """A data set with several node types. `labels` and a node split are by node type; a link split is as in
    `OGBLink`, with `head_type` and `tail_type`.
    """

    labels: dict[str, np.ndarray]  # empty for a link data set
    split: dict[str, dict[str, np.ndarray]]
    metadata: Metadata


def read_dataset(name: str, root: Root, download: bool = False) -> OGBLink | OGBNode | OGBHetero:
    """Read a link or node data set of any kind; arguments and errors as in `read_link_dataset`."""
    meta = metadata(name)
    if meta.is_hetero:
        return read_hetero_dataset(name, root, download)
    return read_link_dataset(name, root, download) if meta.kind == "link" else read_node_dataset(name, root, download)


def read_link_dataset(name: str, root: Root, download: bool = False) -> OGBLink:
    """Read an ogbl data set with one node type.

    Args:
        name: "ogbl-ddi" or "ogbl_ddi".
        root: The folder that holds ogbl_ddi/; read only, unless `download` has to fetch it.
        download: Fetch the data set when it is not there. Without it nothing reaches for the network.
    Raises:
        ConfigError: no such data set, or one of another kind.
        DataError: a file is missing, damaged or does not fit the others.
    """
    meta = _expect(name, kind="link", is_hetero=False)
    folder = find_folder(meta, root, download)
    graph = raw.read_graph(meta, folder)
    split = raw.read_link_split(meta, folder)
    for part, tables in split.items():
        for key in ("edge", "edge_neg"):
            if key in tables:
                path = folder / "split" / meta.split / part
                raw.check_edges(tables[key].T, graph.num_nodes, graph.num_nodes, path)
    return OGBLink(**vars(graph), split=split, metadata=meta)


def read_node_dataset(name: str, root: Root, download: bool = False) -> OGBNode:
    """Read an ogbn data set with one node type; arguments and errors as in `read_link_dataset`."""
    meta = _expect(name, kind="node", is_hetero=False)
    folder = find_folder(meta, root, download)
    graph = raw.read_graph(meta, folder)
    labels = class_labels(meta, read_labels(meta, folder), graph.num_nodes, folder)
    split = raw.read_node_split(meta, folder)
    for part, ids in split.items():
        raw.check_ids(ids, graph.num_nodes, folder / "split" / meta.split / part)
    return OGBNode(**vars(graph), labels=labels, split=split, metadata=meta)


def read_hetero_dataset(name: str, root: Root, download: bool = False) -> OGBHetero:
    """Read a data set with several node types (ogbn-mag, ogbl-biokg); as `read_link_dataset` otherwise."""
    meta = _expect(name, kind=None, is_hetero=True)
    folder = find_folder(meta, root, download)
    graph = raw.read_hetero_graph(meta, folder)
    if meta.kind == "link":
        return OGBHetero(**vars(graph), labels={}, split=raw.read_link_split(meta, folder), metadata=meta)
    labels = {
        kind: class_labels(meta, table, graph.num_nodes[kind], folder)
        for kind, table in read_hetero_labels(folder).items()
    }
    split = raw.read_hetero_node_split(meta, folder)
    for part, by_kind in split.items():
        for kind, ids in by_kind.items():
            raw.check_ids(ids, graph.num_nodes[kind], folder / "split" / meta.split / kind / part)
    return OGBHetero(**vars(graph), labels=labels, split=split, metadata=meta)


def read_labels(meta: Metadata, folder: Path) -> np.ndarray:
    """The labels as OGB stores them, shape (N, tasks); NaN marks a missing one."""
    if not meta.binary:
        return raw.read_table(folder / "raw" / "node-label.csv.gz")
    path = folder / "raw" / "node-label.npz"
    arrays = raw.read_arrays(path)
    if "node_label" not in arrays:
        raise DataError(f"{path}: has no array 'node_label'; the file is not OGB's")
    return arrays["node_label"]


def read_hetero_labels(folder: Path) -> dict[str, np.ndarray]:
    """The labels of each node type that has some, as OGB stores them."""
    flags = raw.read_flags(folder / "raw" / "nodetype-has-label.csv.gz")
    kinds = [kind for kind, flag in flags.items() if flag == "True"]
    return {kind: raw.read_table(folder / "raw" / "node-label" / kind / "node-label.csv.gz") for kind in kinds}


def class_labels(meta: Metadata, table: np.ndarray, num_nodes: int, folder: Path) -> np.ndarray:
    """OGB's label table as classes: (N,) with -1 for none, or unchanged when it holds several tasks."""
    if len(table) != num_nodes:
        raise DataError(f"{folder}: {len(table)} labels for {num_nodes} nodes; the files do not fit together")
    if meta.num_tasks != 1:
        return table
    column = table.reshape(num_nodes)
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), -1, column)
    return column.astype(np.int64, copy=False)


def find_folder(meta: Metadata, root: Root, download: bool) -> Path:
    """The folder of a data set, complete enough to try and of the release that the installed ogb names."""
    root = user_path(root)
    folder = root / meta.folder
    if not (folder / meta.raw_file).exists():
        if not download:
            at_itself = root.name == meta.folder
            hint = (
                f"give its parent, {root.parent}, as root"
                if at_itself
                else f"root must be the folder that holds {meta.folder}/"
            )
            raise DataError(
                f"{meta.name}: no file {folder / meta.raw_file}; {hint}; "
                f"to fetch the data set from {meta.url}, read it with download=True (--download)"
            )
        if folder.exists():
            raise DataError(f"{folder} exists without {meta.raw_file}; move it away, then download again")
        fetch(meta, root)
    if not (folder / meta.release_file).exists():
        raise DataError(
            f"{folder} has no {meta.release_file}, so it is another release of {meta.name} than OGB judges now; "
            "move it away and read it with download=True (--download)"
        )
    return folder


def _expect(name: str, kind: str | None, is_hetero: bool) -> Metadata:
    meta = metadata(name)
    if kind is not None and meta.kind != kind:
        raise ConfigError(f"{meta.name} is a {meta.kind} data set; read it with read_{meta.kind}_dataset")
    if meta.is_hetero != is_hetero:
        reader = "read_hetero_dataset" if meta.is_hetero else f"read_{meta.kind}_dataset"
        types = "several node types" if meta.is_hetero else "one node type"
        raise ConfigError(f"{meta.name} has {types}; read it with {reader}")
    return meta


CHUNK = 1 << 20
TIMEOUT_S = 60


def fetch(meta: Metadata, root: Path) -> Path:
    """Download and unpack a data set into `root`; its folder appears only when it is complete.

    Raises:
        DataError: the server cannot be reached, breaks off, or sends something else.
        OSError: the disk is full or the root cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    with scratch_folder(root / meta.folder) as scratch:
        archive, unpacked = scratch / "data.zip", scratch / "unpacked"
        _copy(meta, archive)
        try:
            with zipfile.ZipFile(archive) as file:
                file.extractall(unpacked)
        except zipfile.BadZipFile as error:
            raise DataError(f"{meta.name}: {meta.url} sent no zip file; try again later") from error
        content = unpacked / meta.download_name
        if not (content / meta.raw_file).exists():
            raise DataError(f"{meta.name}: the file from {meta.url} has no {meta.download_name}/{meta.raw_file}")
        os.replace(content, root / meta.folder)
    return root / meta.folder


def _copy(meta: Metadata, archive: Path) -> None:
    from tqdm import tqdm

    try:
        # The address is OGB's own, from its master.csv.
        with urllib.request.urlopen(meta.url, timeout=TIMEOUT_S) as answer:
            expected = int(answer.headers.get("Content-Length") or 0)
            with (
                archive.open("wb") as file,
                tqdm.wrapattr(answer, "read", total=expected or None, desc=meta.name) as source,
            ):
                shutil.copyfileobj(source, file, CHUNK)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DataError(f"{meta.name}: cannot download {meta.url} ({error}); check the network") from error
    received = archive.stat().st_size
    if expected and received != expected:
        raise DataError(f"{meta.name}: {meta.url} broke off after {received} of {expected} bytes; try again")
