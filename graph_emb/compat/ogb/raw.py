"""OGB's raw files as numpy arrays: integers as int64, other numbers as float32, as OGB itself reads them."""

from __future__ import annotations

import codecs
import gzip
import pickle
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
    # Writable: pandas 3 hands out read-only views, and torch.from_numpy warns about those.
    return np.require(values, np.int64 if values.dtype.kind in "biu" else np.float32, ["C", "W"])


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
    listed = read_csv(raw / "triplet-type-list.csv.gz", header=None, dtype=str).to_numpy().tolist()
    triplets = sorted((head, relation, tail) for head, relation, tail in listed)
    places = {triplet: raw / "relations" / "___".join(triplet) for triplet in triplets}
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


def missing(path: Path) -> DataError:
    return DataError(f"no file {path}; the data set is incomplete: copy the file there, or move the folder "
                     "away and read it with download=True")  # fmt: skip


def damaged(path: Path, error: BaseException) -> DataError:
    cause = f"{type(error).__name__}: {error}".splitlines()[0]
    return DataError(f"{path}: cannot be read ({cause}); the copy is damaged, get it again")


PARTS = ("train", "valid", "test")
ARRAY_DTYPES = "?bhilqBHILQefdU"


def allow_numpy_arrays() -> None:
    """Let `torch.load(weights_only=True)` read plain numpy arrays, in this process.

    OGB's split files are dicts of arrays pickled by numpy 1, under module names that numpy 2 moved. The
    names allowed here build arrays of numbers or text only. Calling this again changes nothing.
    """
    import torch

    dtypes = {type(np.dtype(code)) for code in ARRAY_DTYPES}
    arrays: list[Any] = [np.ndarray, np.dtype, codecs.encode, *sorted(dtypes, key=str)]
    torch.serialization.add_safe_globals([*_RECONSTRUCTORS, *arrays])


def _reconstructor(module: str) -> Any:
    """numpy's array constructor under the module name that a file gives it.

    One function for each name, because torch < 2.6 takes names from the object only.
    """
    reconstruct: Any = np.empty(0).__reduce__()[0]

    def _reconstruct(*args: Any) -> np.ndarray:
        return reconstruct(*args)

    _reconstruct.__module__ = module
    _reconstruct.__qualname__ = "_reconstruct"
    return _reconstruct


# Made once: torch keeps a set, and a new function each time would make it grow.
_RECONSTRUCTORS = [_reconstructor(module) for module in ("numpy.core.multiarray", "numpy._core.multiarray")]


def read_link_split(meta: Metadata, folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """The tables of each part, such as `edge` (E, 2) and `edge_neg`, or `head`, `relation`, `tail`."""
    place = folder / "split" / meta.split
    together = place / "split_dict.pt"
    parts = _torch_load(together) if together.exists() else None
    split = {}
    for part in PARTS:
        path = place / f"{part}.pt" if parts is None else together
        tables = _torch_load(path) if parts is None else parts.get(part)
        if not isinstance(tables, dict):
            raise DataError(f"{path}: the {part} split is no dict of arrays; the file is not OGB's")
        split[part] = {str(key): _as_array(value) for key, value in tables.items()}
    return split


def read_node_split(meta: Metadata, folder: Path) -> dict[str, np.ndarray]:
    """Node ids of each part, each shape (n,), int64."""
    place = folder / "split" / meta.split
    together = place / "split_dict.pt"
    if together.exists():
        parts = _torch_load(together)
        return {part: _as_array(parts[part]) for part in PARTS}
    return {part: _read_ids(place / f"{part}.csv.gz") for part in PARTS}


def read_hetero_node_split(meta: Metadata, folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Node ids of each part by node type, for the types that have a split."""
    place = folder / "split" / meta.split
    flags = read_flags(place / "nodetype-has-split.csv.gz")
    kinds = [kind for kind, flag in flags.items() if flag == "True"]
    return {part: {kind: _read_ids(place / kind / f"{part}.csv.gz") for kind in kinds} for part in PARTS}


def _read_ids(path: Path) -> np.ndarray:
    table = read_table(path)
    if table.shape[1] != 1 or table.dtype != np.int64:
        raise DataError(f"{path}: a split must be one column of node ids; the file is not OGB's")
    return table[:, 0]


def _torch_load(path: Path) -> Any:
    import torch

    allow_numpy_arrays()
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise missing(path) from None
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: torch refuses the file with weights_only on: it holds more than arrays, or is damaged"
        ) from error
    except Exception as error:  # on a damaged file torch's unpickler fails with whatever comes first
        raise damaged(path, error) from error


def _as_array(value: Any) -> np.ndarray:
    import torch

    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array
