"""A stand-in for `dgl.graphbolt` where its native library cannot be loaded.

dgl 2.x imports `dgl.graphbolt` on `import dgl`. That needs a library built for exactly the installed
torch (dgl 2.1.0 ships torch 2.0.0 to 2.2.1) and `torchdata.datapipes` (gone from torchdata 0.10), so on
a newer torch nothing of DGL can be imported (dmlc/dgl#7157, #7380). Nothing else in DGL needs graphbolt
before it is asked to sample with it, so an empty module in its place brings the rest back.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from graph_emb.core.errors import CompatError

MODULE = "dgl.graphbolt"
WHAT_WORKS = "use dgl.dataloading and dgl.sampling instead, which work here, or install a dgl build made for this torch"


class Unavailable:
    """One name of graphbolt: importing and isinstance work, every use raises CompatError.

    `isinstance(x, name)` is False, because `dgl.distributed` asks it of graphs that are not graphbolt's.
    """

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason

    def _error(self) -> CompatError:
        return CompatError(f"{self._name}: {self._reason}; {WHAT_WORKS}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # probes by pickle, copy and inspect are not a use
            raise AttributeError(name)
        raise self._error()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise self._error()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<unavailable {self._name}: {self._reason}>"


class StubModule(ModuleType):
    """`dgl.graphbolt` without graphbolt: every public name is an `Unavailable`.

    A name is not refused here already: pickle looks every module over for the home of an object
    (torch.relu, say) and would meet the error.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, f"Stand-in made by graph_emb: {reason}.")
        self.reason = reason
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Unavailable(f"{self.__name__}.{name}", self.reason)


class GraphboltFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-in for `dgl.graphbolt`, and only when the real one cannot load."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StubModule(spec.name, spec.loader_state)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the module answers through __getattr__."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == MODULE:
            reason = why_unavailable([Path(entry) for entry in path or ()])
            if reason is None:
                return None
            return importlib.machinery.ModuleSpec(fullname, self, loader_state=reason, is_package=True)
        if fullname.startswith(MODULE + ".") and isinstance(sys.modules.get(MODULE), StubModule):
            raise Unavailable(fullname, sys.modules[MODULE].reason)._error()
        return None


def why_unavailable(dgl_folders: Sequence[Path]) -> str | None:
    """Why graphbolt of the dgl package in these folders cannot load; None if it can, or if dgl has none."""
    sources = [folder / "graphbolt" for folder in dgl_folders if (folder / "graphbolt").is_dir()]
    if not sources:
        return None  # dgl 1.x: a plain ModuleNotFoundError is the truth
    library, found = _native_library(sources)
    if not found:
        return f"this dgl has no graphbolt library for the installed torch ({library} is missing)"
    needs_torchdata = "torchdata" in (sources[0] / "base.py").read_text(encoding="utf-8")
    if needs_torchdata and not _has_torchdata_datapipes():
        return "this dgl's graphbolt needs torchdata.datapipes, which torchdata 0.10 removed"
    return None


def _native_library(sources: Sequence[Path]) -> tuple[str, bool]:
    """The name of the library that dgl would load, and whether it is where dgl looks for it."""
    from torch import __version__ as torch_version

    version = str(torch_version).split("+", maxsplit=1)[0]
    patterns = {"darwin": "libgraphbolt_pytorch_{}.dylib", "win32": "graphbolt_pytorch_{}.dll"}
    name = patterns.get(sys.platform, "libgraphbolt_pytorch_{}.so").format(version)
    folders = list(sources)
    if "DGL_LIBRARY_PATH" in os.environ:  # dgl's own override, for builds from source
        folders.insert(0, Path(os.environ["DGL_LIBRARY_PATH"]) / "graphbolt")
    return name, any((folder / name).is_file() for folder in folders)


def _has_torchdata_datapipes() -> bool:
    try:
        return importlib.util.find_spec("torchdata.datapipes") is not None
    except ImportError:  # torchdata itself is absent or broken
        return False


def install() -> None:
    """Put the finder before the path finders, once."""
    if not any(isinstance(finder, GraphboltFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, GraphboltFinder())
