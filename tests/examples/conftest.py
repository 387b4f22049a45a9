"""The scripts of examples/ogb as modules, and tiny data sets for all of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.ogb_layout import WRITERS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ogb"


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """Imports a script as running it would."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"examples_ogb_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def ogb_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every data set in OGB's layout, read-only by agreement."""
    root = tmp_path_factory.mktemp("data")
    for write in WRITERS.values():
        write(root)
    return root


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No script may reach for the network."""

    def no_network(*_: object, **__: object) -> None:
        pytest.fail("reached for the network")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    monkeypatch.setattr("urllib.request.urlopen", no_network)
