"""Both packages point downward, in no circle, and give no class name twice (docs/concepts/architecture.md)."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]

LAYERS = [
    {"core"},
    {"compat"},
    {"graph"},
    {"table", "optim"},
    {"transport"},
    {
        "weight",
        "named_store",
        "optimizer_state",
        "stored_rows",
        "open_tables",
        "gradient_trace",
        "dgl_names",
        "composed",
        "composed_rows",
        "composed_surface",
        "embedding",
        "growing_embedding",
        "node_embedding",
        "optimizer",
        "parameter_groups",
        "push_handlers",
        "quantized",
        "sparse_optimizer",
        "optimizer_files",
    },
    {"checkpoint", "formats", "sampling", "initializers", "compat.fbgemm"},
    {"models", "evaluate"},
    {"config"},
    {"run"},
    {"ogb", "estimators", "tuning"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# partition/ stands beside the upper layers: it may use these rooms of graph_emb, and only these may use it.
BELOW_PARTITION = {"core", "compat", "graph"}
ABOVE_PARTITION = ("graph_emb/run/", "graph_emb/cli/")

DGL_PLACES = ("graph_emb/compat", "graph_emb/graph", "graph_emb/transport", "partition")
DISTRIBUTED_PLACES = ("graph_emb/transport", "graph_emb/run/launch")


def sources() -> list[Path]:
    return sorted(p for root in ("graph_emb", "partition") for p in (CHECKOUT / root).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The imports and classes of a file, which many tests read, parsed once."""
    wanted = (ast.Import, ast.ImportFrom, ast.ClassDef)
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, wanted)]


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports: in functions and under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            if node.module != "graph_emb":
                found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def dependencies(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file needs: of ``from package import module`` the module, not its package."""
    found = imported_modules(path) & known
    packages = {module.rpartition(".")[0] for module in found}
    named = {
        node.module
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and any(f"{node.module}.{alias.name}" not in known for alias in node.names)
    }
    return found - (packages - named)


def level_of(module: str) -> int | None:
    parts = module.split(".")
    if parts[0] != "graph_emb" or len(parts) < 2:
        return None
    return LEVEL.get(".".join(parts[1:3]), LEVEL.get(parts[1]))


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, each sorted."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        front = [start]
        while front:
            for module in imports.get(front.pop(), set()) - seen:
                seen.add(module)
                front.append(module)
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in seen if start in reached.get(other, set())))
        for start, seen in reached.items()
        if start in seen
    }
    return sorted(map(list, groups))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_imports_point_downward(path: Path) -> None:
    relative = path.relative_to(CHECKOUT)
    if relative == Path("graph_emb/__init__.py"):
        return  # the public face re-exports from every layer
    in_partition = relative.parts[0] == "partition"
    name = relative.parts[1].removesuffix(".py")
    assert in_partition or name in LEVEL, f"{relative}: give {name!r} a layer in tests/test_layers.py"
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "partition" and not in_partition:
            assert str(relative).startswith(ABOVE_PARTITION), f"{relative} imports {module}"
        if parts[0] != "graph_emb":
            continue
        face = module == "graph_emb" or parts[1] not in LEVEL
        assert not face, f"{relative} imports {module} from the public face; import the module that defines it"
        if in_partition:
            assert parts[1] in BELOW_PARTITION, f"{relative} imports {module}"
        else:
            own, level = (
                LEVEL.get(".".join(one[:2]), LEVEL[one[0]]) for one in (module_of(path).split(".")[1:], parts[1:])
            )
            assert level <= own, f"{relative} (L{own}) imports {module}"


def test_no_modules_import_each_other() -> None:
    known = {module_of(path): path for path in sources()}
    faces = {"graph_emb", "partition"}  # they load every name when it is used
    imports = {m: dependencies(path, set(known)) - faces - {m} for m, path in known.items() if m not in faces}
    assert circles(imports) == []


def test_a_class_name_stands_once() -> None:
    homes = defaultdict(list)
    for path in sources():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module_of(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(("package", "places"), [("dgl", DGL_PLACES), ("torch.distributed", DISTRIBUTED_PLACES)])
def test_special_packages_are_imported_in_few_places(package: str, places: tuple[str, ...]) -> None:
    for path in sources():
        relative = str(path.relative_to(CHECKOUT))
        uses = [m for m in imported_modules(path) if m == package or m.startswith(package + ".")]
        assert not uses or relative.startswith(places), f"{relative} imports {uses}"


def test_the_check_sees_imports_anywhere(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from graph_emb.cli import main\n"
        "def late() -> None:\n    import dgl.nn\n",
        encoding="utf-8",
    )
    found = imported_modules(source)
    assert {"graph_emb.cli", "dgl.nn"} <= found
    assert level_of("graph_emb.cli") == len(LAYERS) - 1


def test_the_check_sees_a_circle_of_three() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
