"""A bar is drawn on a terminal, and is lines that stay, far apart, in a file."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from graph_emb.core import progress


@pytest.fixture(autouse=True)
def no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a notebook's process, whatever a test before imported."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that lines are due by, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_and_a_last_one(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    moved = progress.bar(total=4, desc="skip-gram", unit="tok", leave=False)
    moved.mininterval = 0  # of tqdm's own clock
    for second in (0, 59.9, 60, 100):
        clock[0] = second
        moved.set_postfix_str(f"loss {second}")
        moved.update()
    moved.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" [")[0] for line in lines] == ["skip-gram:  50% 2/4", "skip-gram: 100% 4/4"]
    assert "loss 60" in lines[0]
    assert not any("\r" in line for line in lines)


def test_what_takes_less_than_a_minute_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in progress.bar(range(3), desc="short"):
        pass
    assert capsys.readouterr().err == ""


def test_a_notebooks_modules_make_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that converts notebooks imports them; bars were then drawn into its file."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))  # type: ignore[arg-type]
    assert not progress.in_notebook()
    assert list(progress.bar(range(3), desc="short")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_moves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(progress.WATCHED, "1")
    with progress.bar(total=2, desc="drawn") as moved:
        moved.update()
    assert "\rdrawn:" in capsys.readouterr().err


def test_nothing_is_shown_unless_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for watched in ("0", "1"):
        monkeypatch.setenv(progress.WATCHED, watched)
        monkeypatch.setattr(progress, "LINE_S", 0.0)
        assert list(progress.bar(range(3), shown=False)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_bar_counts_only_while_it_is_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    with progress.bar(total=1, desc="once") as moved:
        moved.update()
    shown = capsys.readouterr().err
    moved.close()
    assert "once" in shown
    assert capsys.readouterr().err == ""
    assert not sys.stderr.isatty()


def test_a_notebook_without_widgets_is_not_told_to_install_them() -> None:
    """tqdm.auto warned at its import, under the first `fit` of a notebook, unless ipywidgets was installed."""
    code = """
import sys, types
sys.modules["ipywidgets"] = None
sys.modules["ipykernel"] = sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel")
shell = types.SimpleNamespace(kernel=None, config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
from graph_emb.core import progress
print(len(list(progress.bar(range(3), shown=False))), progress.in_notebook())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("3 True\n", "")
