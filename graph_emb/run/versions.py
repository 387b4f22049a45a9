"""Versions of the packages that results depend on, and peak memory of the process."""

from __future__ import annotations

import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("graph_emb", "torch", "dgl", "numpy", "numba", "scikit-learn", "ogb")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def peak_memory_mib() -> int:
    """Most memory that the process has held, MiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
