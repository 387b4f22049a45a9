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


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 4
