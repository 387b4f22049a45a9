"""The architecture page names places that are there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "concepts" / "architecture.md"


def test_every_place_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:partition/|tests/)?[a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    roots = (CHECKOUT, CHECKOUT / "graph_emb")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_room_stands_in_the_picture() -> None:
    picture = PAGE.read_text(encoding="utf-8").split("## The rooms")[1].split("```")[1]
    rooms = {path.parent.name for path in (CHECKOUT / "graph_emb").glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", picture)} == set()
