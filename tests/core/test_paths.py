from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError
from graph_emb.core.paths import user_path
from tests.conftest import CHECKOUT

NOBODY = "~nobody-has-this-name/x"


def test_a_leading_tilde_stands_for_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a") == tmp_path / "a"
    assert user_path(Path("b/~")) == Path("b/~")
    with pytest.raises(ConfigError, match=f"{NOBODY}: this user has no home folder; write the path without ~"):
        user_path(NOBODY)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ge.load_dataset("cora", root=NOBODY),
        lambda: ge.File(NOBODY, "1MB").path,
        lambda: ge.infer(NOBODY, ([1], [0])),
        lambda: partition.load(NOBODY),
    ],
)
def test_a_home_of_nobody_is_one_clear_error(call: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"this user has no home folder"):
        call()


@pytest.mark.parametrize(
    "words",
    ["train deepwalk --dataset cora --root {}", "report {}", "compare {} {}", "checkpoint merge {} {} --out c"],
)
def test_the_command_line_says_it_in_a_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.format(NOBODY, NOBODY).split()) == 2
    assert re.fullmatch(rf"graph-emb: error: {NOBODY}: this user has no home folder; .*\n", capsys.readouterr().err)


def test_no_other_place_expands_a_home() -> None:
    files = [file for package in ("graph_emb", "partition") for file in (CHECKOUT / package).rglob("*.py")]
    found = [str(file.relative_to(CHECKOUT)) for file in files if "expanduser" in file.read_text(encoding="utf-8")]
    assert found == [os.path.join("graph_emb", "core", "paths.py")]
