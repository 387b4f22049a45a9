"""OGB's train, valid and test splits, with torch's `weights_only` left on."""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.compat.ogb.catalog import Metadata
from graph_emb.compat.ogb.raw import damaged, missing, read_flags, read_table
from graph_emb.core.errors import DataError

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
