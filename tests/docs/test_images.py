"""The pictures of the docs: none is missing, none is left over, and the drawings can be read in dark and in light."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from graph_emb.run.report.charts import COLOURS
from tests.docs.test_code_blocks import CHECKOUT, PAGES

IMAGES = CHECKOUT / "docs" / "images"
DRAWINGS = sorted(IMAGES.glob("*.svg"))
SHADE = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})")


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2, 0 of black to 1 of white."""
    found = SHADE.fullmatch(colour)
    assert found is not None, colour
    parts = [int(part, 16) / 255 for part in found.groups()]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours(style: str) -> dict[str, str]:
    """The fill of each selector."""
    return dict(re.findall(r"([.\w]+)\{[^}]*?fill:(#\w+)", style))


def test_the_picture_of_a_run_shows_ten_classes_in_ten_colours() -> None:
    """A palette of 95 colours had turned orange, green, violet and pink into red, blue and grey."""
    shown = np.round(imread(IMAGES / "report.png")[..., :3] * 255)
    for colour in COLOURS[:10]:
        wanted = [int(part, 16) for part in SHADE.fullmatch(colour).groups()]  # type: ignore[union-attr]
        near = np.abs(shown - wanted).max(axis=-1) <= 24  # marks are not quite opaque
        assert near.sum() > 100, colour


def test_pages_show_every_picture_and_no_other() -> None:
    shown = {
        (page.parent / name).resolve()
        for page in PAGES
        for name in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {path for path in IMAGES.iterdir() if path.is_file()}


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_small_and_stands_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == root[0].text
    assert len(text) < 10_000
    assert set(re.findall(r"https?://[^\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|<image|@import|href=", text)


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_words_of_a_drawing_stand_out_in_dark_and_light(path: Path) -> None:
    """Every box may hold a note, of which WCAG asks a contrast of 4.5."""
    light, _, dark = path.read_text(encoding="utf-8").partition("prefers-color-scheme:dark")
    for style in (light, dark.partition("</style>")[0]):
        fill = colours(style)
        for box in (".card", ".box", ".rows", ".rule"):
            for words in ("text", ".note"):
                low, high = sorted((luminance(fill[box]), luminance(fill[words])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (box, words)
