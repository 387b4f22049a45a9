"""Small safetensors files with a header as JSON: no pickle, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from graph_emb.core.errors import DataError
from graph_emb.core.storage import replacing

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
