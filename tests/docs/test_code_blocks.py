"""The Python blocks of the README and the docs run; the commands in them are commands of `graph-emb`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import graph_emb as ge

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda p: str(p.relative_to(CHECKOUT))
)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ge.shutdown()
    names: dict[str, object] = {}
    for body in blocks(page, "python"):
        exec(compile(body, str(page), "exec"), names)
    assert names
    ge.shutdown()


def commands() -> list[tuple[Path, str]]:
    found = []
    for page in PAGES:
        for body in [*blocks(page, "bash"), *blocks(page, "console")]:
            lines = body.replace("\\\n", " ").splitlines()
            found += [(page, line.strip()) for line in lines if line.strip().startswith("graph-emb ")]
    return found


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: str(value)[-60:])
def test_commands_in_the_docs_parse(page: Path, line: str) -> None:
    from graph_emb.cli.parser import parse

    words = shlex.split(line, comments=True)[1:]
    assert parse(words).command.split()[0] == words[0], f"{page}: {line}"


@pytest.mark.dist
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_shell_blocks_run_in_order_in_an_empty_folder(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_starts: None
) -> None:
    """The quickstart asked for OGB's files below ../shared/data, which only a checkout of ours had."""
    from graph_emb.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRAPH_EMB_DATA", raising=False)
    lines = [line for body in blocks(CHECKOUT / page, "bash") for line in body.replace("\\\n", " ").splitlines()]
    own = [shlex.split(line, comments=True) for line in lines if line.startswith("graph-emb ")]
    assert {line.split()[0] for line in lines} == {"graph-emb", "make"}  # what make does is tested elsewhere
    ended = {shlex.join(words): main(words[1:]) for words in own}
    assert len(ended) >= 4
    assert set(ended.values()) == {0}, ended


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 4
