"""A module imports only from its own layer or lower ones (docs/concepts/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]

LAYERS = [
    {"core"},
    {"compat"},
    {"graph"},
    {"table", "optim"},
    {"transport"},
    {"embedding", "optimizer", "optimizer_state", "optimizer_tables"},
    {"checkpoint", "formats", "sampling", "initializers"},
    {"models", "evaluate"},
    {"config"},
    {"run"},
    {"ogb"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PARTITION_LEVEL = 2  # partition/ may use core, compat and graph only

DGL_PLACES = (
    "graph_emb/compat",
    "graph_emb/transport",
    "graph_emb/graph",
    "partition",
)
DISTRIBUTED_PLACES = ("graph_emb/transport", "graph_emb/run/launch")


def sources() -> list[Path]:
    return sorted(p for root in ("graph_emb", "partition") for p in (CHECKOUT / root).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            if node.module != "graph_emb":
                found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def level_of(module: str) -> int | None:
    parts = module.split(".")
    if parts[0] != "graph_emb" or len(parts) < 2:
        return None
    return LEVEL.get(parts[1])


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_imports_point_downward(path: Path) -> None:
    relative = path.relative_to(CHECKOUT)
    if relative.parts[0] == "partition":
        own = PARTITION_LEVEL
    elif relative == Path("graph_emb/__init__.py"):
        return  # the public face re-exports from every layer
    else:
        name = relative.parts[1].removesuffix(".py")
        assert name in LEVEL, f"{relative}: give {name!r} a layer in tests/test_layers.py"
        own = LEVEL[name]
    for module in imported_modules(path):
        face = module == "graph_emb" or (module.startswith("graph_emb.") and module.split(".")[1] not in LEVEL)
        assert not face, f"{relative} imports {module} from the public face; import the module that defines it"
        level = level_of(module)
        assert level is None or level <= own, f"{relative} (L{own}) imports {module} (L{level})"


@pytest.mark.parametrize(("package", "places"), [("dgl", DGL_PLACES), ("torch.distributed", DISTRIBUTED_PLACES)])
def test_special_packages_are_imported_in_few_places(package: str, places: tuple[str, ...]) -> None:
    for path in sources():
        relative = str(path.relative_to(CHECKOUT))
        uses = [m for m in imported_modules(path) if m == package or m.startswith(package + ".")]
        assert not uses or relative.startswith(places), f"{relative} imports {uses}"


def test_the_check_sees_an_upward_import(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text("from graph_emb.cli import main\nimport dgl.nn\n", encoding="utf-8")
    found = imported_modules(source)
    assert {"graph_emb.cli", "dgl.nn"} <= found
    assert level_of("graph_emb.cli") == len(LAYERS) - 1
