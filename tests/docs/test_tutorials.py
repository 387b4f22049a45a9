"""The tutorials run from their first cell to their last, and what they show is what a run gives."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tests import warm

CHECKOUT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((CHECKOUT / "docs" / "tutorials").glob("*.ipynb"))
WARM = f"""#!{sys.executable} -SE
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.warm import Popen
code = Popen([{sys.executable!r}, *%s, *sys.argv[1:]]).wait()
sys.exit(code if code >= 0 else 128 - code)
"""
"""A program that starts warm, as a shell finds it."""


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorials_execute", CHECKOUT / "docs" / "tutorials" / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(tmp_path: Path, warm_starts: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """$PATH with a `graph-emb` and a `python` that start warm, as the notebooks' kernels do."""
    monkeypatch.setattr("jupyter_client.launcher.Popen", warm.Popen)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("graph-emb", ["-m", "graph_emb"]), ("python", [])):
        program = folder / name
        program.write_text(WARM % words)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def code_of(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def kinds(book: Any) -> list[list[str]]:
    """By cell, how its outputs are called."""
    return [[output.get("name", output.output_type) for output in cell.outputs] for cell in code_of(book)]


def shown(book: Any) -> str:
    """All text of all outputs."""
    outputs = [output for cell in code_of(book) for output in cell.outputs]
    return "\n".join([*(o.get("text", "") for o in outputs), *(str(o.get("data", {})) for o in outputs)])


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.usefixtures("one_dgl_graph")
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_shows_outputs_of_the_same_kinds(
    tutorial: Path, execute: ModuleType, commands: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    book = execute.clean(execute.run(tutorial, folder, PATH=commands), folder)
    assert kinds(book) == kinds(nbformat.read(tutorial, as_version=4)), "outputs are old: make tutorials"
    assert "Warning" not in shown(book)


@pytest.mark.dist
@pytest.mark.parametrize("source", ["1 / 0", "%%bash -e\nfalse\ntrue", "%%bash -e\ngraph-emb no-such-command"])
def test_a_cell_that_fails_ends_the_run(source: str, execute: ModuleType, commands: str, tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbformat.write(book, tmp_path / "fails.ipynb")
    with pytest.raises(CellExecutionError):
        execute.run(tmp_path / "fails.ipynb", tmp_path, PATH=commands)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_stored_tutorial_is_executed_and_names_no_place(tutorial: Path) -> None:
    book = nbformat.read(tutorial, as_version=4)
    assert sum(bool(outputs) for outputs in kinds(book)) >= 5
    assert "error" not in {kind for outputs in kinds(book) for kind in outputs}
    assert not re.search(r"Warning|(?<![\w.])/(tmp|home|root|work|usr|opt)/", shown(book))
    assert tutorial.stat().st_size < 200_000


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_every_cell_of_code_follows_its_explanation(tutorial: Path) -> None:
    book = nbformat.read(tutorial, as_version=4)
    before = [None, *(cell.cell_type for cell in book.cells)]
    bare = [cell.source for left, cell in zip(before, book.cells, strict=False) if left == cell.cell_type == "code"]
    assert bare == []


def test_nothing_that_differs_between_two_runs_is_kept(execute: ModuleType, tmp_path: Path) -> None:
    text = f"[12:00:01] rpc.cc: made\n{tmp_path}/runs/a: 12 rows in 0.5 s (1,200 tokens/s), 1.5 GiB\nin {tmp_path}\n"
    outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=text),
        nbformat.v4.new_output("stream", name="stderr", text="graph-emb: compiling kernels, once\n"),
        nbformat.v4.new_output("execute_result", data={"text/plain": f"{tmp_path}/b"}, execution_count=7),
    ]
    cell = nbformat.v4.new_code_cell("x", execution_count=7, metadata={"execution": {}}, outputs=outputs)
    book = execute.clean(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    (cell,) = book.cells
    assert (cell.execution_count, cell.metadata) == (None, {})
    assert [output.get("text") for output in cell.outputs] == [
        "runs/a: 12 rows in … s (… tokens/s), 1.5 GiB\nin .\n",
        None,
    ]
    assert cell.outputs[1].data == {"text/plain": "b"}
    assert cell.outputs[1].execution_count is None


def test_there_are_five_and_the_index_has_them() -> None:
    index = (CHECKOUT / "docs" / "index.md").read_text(encoding="utf-8")
    assert len(TUTORIALS) == 5
    assert [path.stem for path in TUTORIALS if f"tutorials/{path.stem}\n" not in index] == []
