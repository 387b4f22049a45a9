"""Fixtures of the reader tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of the given name: bytes, text, or arrays for an .npz file."""

    def write(name: str, content: str | bytes = b"", **arrays: Any) -> Path:
        path = tmp_path / name
        if arrays:
            np.savez(path, **arrays)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
