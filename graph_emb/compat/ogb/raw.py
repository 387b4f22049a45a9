"""OGB's raw files as numpy arrays: integers as int64, other numbers as float32, as OGB itself reads them."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_emb.compat.ogb.catalog import Metadata
from graph_emb.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Triplet = tuple[str, str, str]  # (head type, relation, tail type)
# pandas' and numpy's own errors are ValueErrors
DAMAGED = (EOFError, ValueError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile)


@dataclass(frozen=True, kw_only=True)
class RawGraph:
    """A graph with one node type, in OGB's order. N nodes, E stored edges."""

    num_nodes: int
    edge_index: np.ndarray  # (2, E) int64: sources, targets
    node_feat: np.ndarray | None = None  # (N, F); None also when the file is absent
    edge_feat: np.ndarray | None = None  # (E, F)
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # node_year (N, 1), edge_weight (E, 1), ...


@dataclass(frozen=True, kw_only=True)
class RawHeteroGraph:
    """A graph with several node and edge types; each field as in `RawGraph`, by type."""

    num_nodes: dict[str, int]
    edge_index: dict[Triplet, np.ndarray]
    node_feat: dict[str, np.ndarray]
    edge_feat: dict[Triplet, np.ndarray]
    extra: dict[str, dict[Any, np.ndarray]]  # node_year by node type, edge_reltype by triplet


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """A csv.gz file; a missing or damaged one is named."""
    import pandas as pd

    try:
        return pd.read_csv(path, compression="gzip", **options)
    except FileNotFoundError:
        raise missing(path) from None
    except DAMAGED as error:
        raise damaged(path, error) from error


def read_table(path: Path) -> np.ndarray:
    """The numbers of a csv.gz file without header, shape (rows, columns), int64 or float32."""
    values = read_csv(path, header=None).to_numpy()
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: holds words where numbers are expected; the file is not OGB's")
    return _standard(values)


def read_optional_table(path: Path) -> np.ndarray | None:
    return read_table(path) if path.exists() else None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise missing(path) from None
    except DAMAGED as error:
        raise damaged(path, error) from error


def read_flags(path: Path) -> dict[str, str]:
    """A csv.gz file with a header and one line: {column: text}."""
    frame = read_csv(path, dtype=str)
    return {str(column): str(frame[column].iloc[0]) for column in frame.columns}


def read_graph(meta: Metadata, folder: Path) -> RawGraph:
    """The one graph of a data set with one node type."""
    graph = _read_npz_graph(folder / "raw") if meta.binary else _read_csv_graph(meta, folder / "raw")
    check_edges(graph.edge_index, graph.num_nodes, graph.num_nodes, folder / meta.raw_file)
    _check_lengths(meta, graph, folder)
    return graph


def _read_csv_graph(meta: Metadata, raw: Path) -> RawGraph:
    edges = read_table(raw / "edge.csv.gz")
    num_nodes = _single(raw / "num-node-list.csv.gz")
    _check_count(raw / "edge.csv.gz", edges, _single(raw / "num-edge-list.csv.gz"))
    return RawGraph(
        num_nodes=num_nodes,
        edge_index=np.ascontiguousarray(edges.T),
        node_feat=read_optional_table(raw / "node-feat.csv.gz"),
        edge_feat=read_optional_table(raw / "edge-feat.csv.gz"),
        extra={name: _read_extra(raw, name) for name in (*meta.node_files, *meta.edge_files)},
    )


def _read_extra(raw: Path, name: str) -> np.ndarray:
    # ogbn-proteins was published with species.csv.gz; ogb 1.3.6 renames it in place on the first load.
    if name == "node_species" and not (raw / "node_species.csv.gz").exists():
        return read_table(raw / "species.csv.gz")
    return read_table(raw / f"{name}.csv.gz")


def _read_npz_graph(raw: Path) -> RawGraph:
    arrays = read_arrays(raw / "data.npz")
    try:
        edge_index, num_nodes = arrays.pop("edge_index"), int(arrays.pop("num_nodes_list")[0])
        num_edges = int(arrays.pop("num_edges_list")[0])
    except KeyError as error:
        raise DataError(f"{raw / 'data.npz'}: has no array {error}; the file is not OGB's") from error
    _check_count(raw / "data.npz", edge_index.T, num_edges)
    return RawGraph(
        num_nodes=num_nodes,
        edge_index=edge_index.astype(np.int64, copy=False),
        node_feat=arrays.pop("node_feat", None),
        edge_feat=arrays.pop("edge_feat", None),
        extra=arrays,
    )


def read_hetero_graph(meta: Metadata, folder: Path) -> RawHeteroGraph:
    """The one graph of a data set with several node or edge types."""
    raw = folder / "raw"
    num_nodes = {kind: int(count) for kind, count in sorted(read_flags(raw / "num-node-dict.csv.gz").items())}
    places = {triplet: raw / "relations" / "___".join(triplet) for triplet in _read_triplets(raw)}
    edge_index = {}
    for triplet, place in places.items():
        edges = read_table(place / "edge.csv.gz")
        _check_count(place / "edge.csv.gz", edges, _single(place / "num-edge-list.csv.gz"))
        head, _, tail = triplet
        check_edges(edges.T, num_nodes[head], num_nodes[tail], place / "edge.csv.gz")
        edge_index[triplet] = np.ascontiguousarray(edges.T)
    node_places = {kind: raw / "node-feat" / kind for kind in num_nodes}
    extra: dict[str, dict[Any, np.ndarray]] = {
        name: _present({kind: place / f"{name}.csv.gz" for kind, place in node_places.items()})
        for name in meta.node_files
    }
    for name in meta.edge_files:
        extra[name] = _present({triplet: place / f"{name}.csv.gz" for triplet, place in places.items()})
    return RawHeteroGraph(
        num_nodes=num_nodes,
        edge_index=edge_index,
        node_feat=_present({kind: place / "node-feat.csv.gz" for kind, place in node_places.items()}),
        edge_feat=_present({triplet: place / "edge-feat.csv.gz" for triplet, place in places.items()}),
        extra=extra,
    )


def _read_triplets(raw: Path) -> list[Triplet]:
    rows = read_csv(raw / "triplet-type-list.csv.gz", header=None, dtype=str).to_numpy().tolist()
    return sorted((head, relation, tail) for head, relation, tail in rows)


def _present(paths: dict[Any, Path]) -> dict[Any, np.ndarray]:
    return {key: read_table(path) for key, path in paths.items() if path.exists()}


def _single(path: Path) -> int:
    """The count of a num-*-list file, which has one line a graph; the sets read here are one graph."""
    counts = read_table(path)
    if counts.shape != (1, 1):
        raise DataError(f"{path}: lists {len(counts)} graphs; a link or node data set has 1")
    return int(counts[0, 0])


def check_edges(edge_index: np.ndarray, num_sources: int, num_targets: int, path: Path) -> None:
    """Refuse edges that are not two columns of ids inside the graph."""
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind != "i":
        raise DataError(f"{path}: edges must be two columns of integers, got {edge_index.shape[0]} columns")
    for ids, limit in zip(edge_index, (num_sources, num_targets), strict=True):
        check_ids(ids, limit, path)


def check_ids(ids: np.ndarray, num_nodes: int, path: Path) -> None:
    """Refuse ids that are no nodes of the graph."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise DataError(f"{path}: node id {worst} is outside [0, {num_nodes}); the files do not fit together")


def _check_count(path: Path, edges: np.ndarray, expected: int) -> None:
    if len(edges) != expected:
        raise DataError(f"{path}: holds {len(edges)} edges, num-edge-list says {expected}; copy it again")


def _check_lengths(meta: Metadata, graph: RawGraph, folder: Path) -> None:
    tables = {"node_feat": graph.node_feat, "edge_feat": graph.edge_feat, **graph.extra}
    for name, table in tables.items():
        rows = graph.num_nodes if name.startswith("node_") else graph.edge_index.shape[1]
        if table is not None and len(table) != rows:
            raise DataError(f"{folder}: {name} of {meta.name} has {len(table)} rows, expected {rows}")


def _standard(values: np.ndarray) -> np.ndarray:
    # Writable: pandas 3 hands out read-only views, and torch.from_numpy warns about those.
    return np.require(values, np.int64 if values.dtype.kind in "biu" else np.float32, ["C", "W"])


def missing(path: Path) -> DataError:
    return DataError(f"no file {path}; the data set is incomplete: copy the file there, or move the folder "
                     "away and read it with download=True")  # fmt: skip


def damaged(path: Path, error: BaseException) -> DataError:
    return DataError(f"{path}: cannot be read ({_first_line(error)}); the copy is damaged, get it again")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
