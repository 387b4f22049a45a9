"""The page in a real browser: no error in its console, and what it shows when it is used."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from graph_emb.run.pipeline import PipelineResult

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium")

USE = """<script>
const mark = document.querySelector("#map circle");
mark.dispatchEvent(new MouseEvent("mousemove", {bubbles: true}));
document.getElementById("find").value = "B7";
document.getElementById("find").dispatchEvent(new Event("input"));
document.querySelector("button.key").click();
</script></body>"""


def opened(page: Path) -> tuple[str, list[str]]:
    """The page's document after its script ran, and the console's lines."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [str(BROWSER), *flags, profile, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_the_page_has_no_console_error_and_its_map_can_be_used(run: PipelineResult, tmp_path: Path) -> None:
    assert run.folder is not None
    text = (run.folder / "report.html").read_text(encoding="utf-8")
    page = tmp_path / "used.html"
    page.write_text(text.replace("</body>", USE), encoding="utf-8")
    document, console = opened(page)
    assert console == []
    first = re.search(r'<circle[^>]*data-tip="([^"]*)"[^>]*data-name=', document)
    tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', document)
    assert first is not None
    assert tip is not None
    assert unescape(tip[1]) == unescape(first[1])
    assert re.findall(r'class="c[01] found"[^>]*data-name="([^"]*)"', document) == ["b7"]
    assert len(re.findall(r'class="c0[^"]* off"', document)) == 8  # the class that its key hid


def test_an_error_of_a_script_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<script>no_such_name()</script>")
    assert len(opened(page)[1]) == 1
