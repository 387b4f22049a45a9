"""Files of an optimizer's state: safetensors with a header as JSON, no pickle, replaced atomically.

Legend: N rows of a table in a file, of a share of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.tensor_files import open_tensors, write_tensors

FORMAT = 2
IDS = "original_ids"
"""The tensor of a table's ids in a file, (N,), int64, beside its state."""


def write_state(target: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors, named ``<table>/<name>``, with a header that JSON can hold.

    Raises:
        DataError: the folder is missing.
    """
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is no folder; make it before save()")
    write_tensors(target, tensors, {"format": FORMAT, **header})


class StateFile:
    """A file that ``write_state`` wrote; tensors are read when they are asked for.

    Attributes:
        header: As it was given.
    Raises:
        DataError: the file is missing or damaged, or of another format.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"no optimizer state at {path}; save() writes it")
        self.path = path
        self.header: dict[str, Any]
        self._file, self.header = open_tensors(path, "optimizer state")
        self._names = set(self._file.keys())
        if self.header.get("format") != FORMAT:
            raise DataError(f"{path} has format {self.header.get('format')}, this version reads {FORMAT}")

    def names(self, table: str) -> set[str]:
        """The tensors of a table."""
        return {name.removeprefix(f"{table}/") for name in self._names if name.rpartition("/")[0] == table}

    def read(self, table: str, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor."""
        return self._file.get_slice(f"{table}/{name}")[start:stop]

    def check(self, table: str, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Raise a ConfigError unless a tensor has this shape and dtype."""
        found, kept = tuple(self._file.get_slice(f"{table}/{name}").get_shape()), self.read(table, name, 0, 0).dtype
        if found != shape or kept != dtype:
            raise ConfigError(
                f"{self.path}: table {table!r}: saved {name} has shape {found} of {kept}, "
                f"the table needs {shape} of {dtype}"
            )

    def ids(self, table: str) -> np.ndarray:
        """The original ids of its rows of a table, (N,), int64."""
        found: np.ndarray = self.read(table, IDS).numpy()
        return found
