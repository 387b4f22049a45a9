"""The installed DGL, checked: import it through `load` and get the package or one clear error."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from types import ModuleType

from packaging.version import Version

from graph_emb.compat import prepare
from graph_emb.core.errors import CompatError

OLDEST_TORCH = Version("2.4")
OLDEST_DGL = Version("1.0")
# dgl 1.1.3 has no build for Python 3.12, dgl 2.1.0 (the last on the public index) none for 3.13.
WHAT_WORKS = (
    "works: Python 3.10 or 3.11 with dgl 1.1.3 or 2.1.0, Python 3.12 with dgl 2.1.0; torch 2.4 or newer (tested: 2.13)"
)


def check_versions(*, python: str, dgl: str, torch: str) -> None:
    """Refuse a combination that is known not to work.

    Args:
        python, dgl, torch: Version strings, for example "3.11.7", "1.1.3", "2.13.0+cpu".
    Raises:
        CompatError: no such combination runs; the message names those that do.
    """
    python_version, dgl_version = Version(python), Version(dgl)
    problem = None
    if not Version("3.10") <= python_version < Version("3.13"):
        problem = "DGL and graph_emb have no common build for this Python"
    elif dgl_version < OLDEST_DGL:
        problem = "this dgl is older than 1.0"
    elif python_version >= Version("3.12") and dgl_version < Version("2.0"):
        problem = "dgl 1.x has no build for Python 3.12"
    elif Version(torch) < OLDEST_TORCH:
        problem = f"torch is older than {OLDEST_TORCH}"
    if problem:
        raise CompatError(f"{_combination(python, dgl, torch)}: {problem}; {WHAT_WORKS}")


def load() -> ModuleType:
    """The `dgl` package, with its PyTorch backend, on the installed torch.

    Raises:
        CompatError: dgl is absent, set to another backend, or cannot work with this Python and torch.
    """
    prepare()
    if importlib.util.find_spec("dgl") is None:
        package = "dgl==1.1.3" if sys.version_info < (3, 12) else "dgl==2.1.0"
        raise CompatError(f"dgl is not installed; run: pip install {package}")
    backend = os.environ["DGLBACKEND"]
    if backend != "pytorch":
        raise CompatError(f"DGLBACKEND is {backend!r}, but graph_emb works on 'pytorch'; unset it")
    import torch

    try:
        dgl_version = importlib.metadata.version("dgl")  # read without importing it
    except importlib.metadata.PackageNotFoundError as error:
        raise CompatError(f"a folder named dgl is importable but is no installed package; {WHAT_WORKS}") from error
    python, torch_version = ".".join(map(str, sys.version_info[:3])), str(torch.__version__)
    check_versions(python=python, dgl=dgl_version, torch=torch_version)
    try:
        import dgl
    except Exception as error:  # dgl fails with whatever its first unmet need raises
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        combination = _combination(python, dgl_version, torch_version)
        raise CompatError(f"{combination}: `import dgl` fails ({cause}); {WHAT_WORKS}") from error
    return dgl


def _combination(python: str, dgl: str, torch: str) -> str:
    return f"Python {python}, dgl {dgl}, torch {torch}"
