"""Modules are imported with the garbage collector paused, which runs again afterwards."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graph_emb.cli.main import main
from graph_emb.core import imports
from graph_emb.core.imports import importing, paused_collection, resolve
from graph_emb.run.launch import meeting
from graph_emb.run.launch.plan import Host, Machines
from graph_emb.transport import kvstore


def test_the_collector_rests_while_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rested.py").write_text("import gc\nRUNS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("rested:RUNS") is False
    assert gc.isenabled()
    assert resolve("rested") is sys.modules.pop("rested")


def test_a_collector_that_was_off_stays_off_and_an_error_turns_it_on_again() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ModuleNotFoundError):
        resolve("graph_emb.no_such_module")
    assert gc.isenabled()


@pytest.fixture(scope="module", autouse=True)
def thawed() -> Iterator[None]:
    """As in a program that froze nothing; the suite has frozen its own tests."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No import has seen that the suite froze something."""
    monkeypatch.setattr(imports, "_frozen_by_caller", False)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported."""
    (tmp_path / "fresh_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fresh_module", raising=False)
    return "fresh_module"


def test_what_was_made_inside_is_old_and_the_next_collection_of_the_young_passes_it_over(fresh: str) -> None:
    before = gc.get_freeze_count()
    with importing():
        importlib.import_module(fresh)
        made = [{"one": []}]
    assert any(one is made for one in gc.get_objects(generation=2))
    assert gc.get_freeze_count() <= before


@pytest.mark.parametrize("own", [0, 375])
def test_what_python_itself_has_frozen_keeps_nothing_young(
    own: int, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts with 375 frozen objects: torch's objects stayed young there, two tenths of a second in fit."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: own)
    with importing():
        importlib.import_module(fresh)
        made = [{"one": []}]
    assert any(one is made for one in gc.get_objects(generation=2))


def test_no_frame_of_an_import_keeps_what_its_callers_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first machine's launcher imported torch, and held its port for ever: no job of several machines healed."""
    text = """
import inspect

def looks():
    frame = inspect.currentframe()
    caller = frame.f_back

def waits():
    frame = inspect.currentframe()
    yield 1
    yield 2

looks()
WAITS = waits()
next(WAITS)
"""
    (tmp_path / "looks_back.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    class Port:
        pass

    def listen() -> weakref.ref[Port]:
        port = Port()
        with importing():
            importlib.import_module("looks_back")
        return weakref.ref(port)

    def fail() -> None:
        told = "what a debugger shows"
        raise ValueError(told)

    with pytest.raises(ValueError, match="debugger") as caught:
        fail()
    assert listen()() is None
    assert caught.tb.tb_next.tb_frame.f_locals == {"told": "what a debugger shows"}
    assert list(sys.modules.pop("looks_back").WAITS) == [2]


def test_garbage_of_a_compiler_stays_young() -> None:
    """Aged garbage waits for a full collection: processes that compiled many kernels grew by gigabytes."""
    with paused_collection():
        made = [{"one": []}]
    assert not any(one is made for one in gc.get_objects(generation=2))


def test_where_nothing_is_imported_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each first name of ``graph_emb`` counted the frozen objects: 50 ms in a process that froze a million."""
    counts: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(0) or 0)
    assert resolve("graph_emb.core.imports:resolve") is resolve
    assert counts == []
    with importing():
        made = [{"one": []}]
    assert not any(one is made for one in gc.get_objects(generation=2))


def test_objects_that_a_caller_froze_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each import of each process that was forked from one with a million frozen objects took 50 ms more."""
    counts: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(1) or (0 if len(counts) == 1 else 10**6))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("before_freezing", "after_it", "once_more"):
        (tmp_path / f"{name}.py").write_text("")
        with importing():
            importlib.import_module(name)
        del sys.modules[name]
    assert len(counts) == 2


def test_what_a_caller_froze_stays_frozen(fresh: str) -> None:
    by_the_suite = gc.get_freeze_count()
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with importing():
            importlib.import_module(fresh)
        assert gc.get_freeze_count() > 0.9 * before > 0  # some of them may have died
    finally:
        gc.unfreeze()
        if by_the_suite:
            gc.freeze()


HEAVY: dict[str, Callable[[], Any]] = {
    "graph_emb.ogb.script": lambda: main(["train", "--recipe", "ogbl-ddi/deepwalk"]),
    "graph_emb.run.estimate": lambda: main(["estimate", "deepwalk", "--dataset", "karate"]),
    "graph_emb.run.evaluation": lambda: main(["train", "deepwalk", "--dataset", "karate", "--seeds", "0-1"]),
    "graph_emb.run.pipeline": lambda: main(["demo", "--out", "unused"]),
    "graph_emb.tuning.search": lambda: main(["tune", "deepwalk", "--dataset", "karate"]),
    "graph_emb.transport.kvstore.client": lambda: kvstore.connect(hosts=["127.0.0.1:1"]),
    "graph_emb.transport.kvstore.server": lambda: kvstore.serve(0, ["127.0.0.1:1"]),
    "torch.distributed": lambda: meeting.Meeting(Machines([Host("127.0.0.1", 1, 0)], 0, 0), "token"),
}
"""What imports torch as one of the first things, and what begins it."""


class Asked(Exception):
    """A module was about to be imported."""


@pytest.mark.parametrize("heavy", HEAVY)
def test_whatever_imports_torch_first_lets_the_collector_rest(heavy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes looked through torch's objects four times at their start, .5 s, and servers as often, .3 s."""

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == heavy:
                raise Asked(gc.isenabled())

    parent, _, name = heavy.rpartition(".")
    monkeypatch.delattr(sys.modules.get(parent, object()), name, raising=False)
    monkeypatch.delitem(sys.modules, heavy, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(Asked) as error:
        HEAVY[heavy]()
    assert error.value.args == (False,)
