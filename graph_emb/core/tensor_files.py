"""Files of tensors: small safetensors files with a header as JSON, replaced atomically; and those of ``torch.save``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import DataError
from graph_emb.core.storage import replacing

if TYPE_CHECKING:  # it takes a second to import
    from torch import Tensor

KEY = "graph_emb"


def write_tensors(target: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors by name with a header that JSON can hold."""
    from safetensors.torch import save_file

    with replacing(target) as draft:
        save_file(dict(tensors), draft, metadata={KEY: json.dumps(header)})


def open_tensors(path: Path, what: str) -> tuple[Any, dict[str, Any]]:
    """The opened file, whose tensors are read when they are asked for, and its header.

    Raises:
        DataError: it is damaged, or no file of ``write_tensors``; ``what`` says what it should be.
    """
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt")
        header: dict[str, Any] = json.loads((file.metadata() or {})[KEY])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path} is no {what} of graph_emb or is damaged: {error}") from error
    return file, header


def load_torch(path: Path) -> Any:
    """What a file of ``torch.save`` holds, memory-mapped: tensors and plain values, no code.

    Raises:
        DataError: it is damaged, of another kind, or holds more.
        OSError: the system's word, such as a missing permission.
    """
    import torch

    try:
        with warnings.catch_warnings():  # torch warns of pickles of protocols that only damaged files name
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # on a damaged file torch's unpickler fails with whatever comes first
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path} is damaged or no torch file ({reason}); export it again") from error
