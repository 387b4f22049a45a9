"""The bar is silent at first, then tells share, rate, time left and memory, and never runs over its total."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path

import pytest
import torch

from graph_emb.core import progress, terminal
from graph_emb.core.errors import DataError, PeerError
from graph_emb.core.terminal import exit_code, one_line
from graph_emb.graph.readers import read_graph


@pytest.fixture(autouse=True)
def in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher watches."""
    monkeypatch.delenv(progress.WATCHED, raising=False)


def test_a_short_read_shows_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.csv").write_text("0,1\n")
    read_graph(tmp_path / "g.csv", progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_long_read_shows_rate_time_left_and_memory(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    with terminal.progress_shown(True), terminal.reading("edges.csv", 4000) as advance:
        advance(1000)
    shown = capfd.readouterr().err
    assert "edges.csv:  25%" in shown
    assert "1.00k/4.00k" in shown
    assert "B/s" in shown
    assert " GB" in shown
    assert "<" in shown  # elapsed < left


@pytest.mark.parametrize(("asked", "seen"), [(True, True), (False, False), (None, False)])
def test_a_reader_shows_it_when_asked_or_on_a_terminal(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: bool | None,
    seen: bool,
) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    (tmp_path / "g.csv").write_text("0,1\n")
    read_graph(tmp_path / "g.csv", progress=asked)
    assert ("g.csv:" in capfd.readouterr().err) == seen


def test_an_estimate_that_is_too_low_ends_at_the_total(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    with terminal.progress_shown(True), terminal.reading("edges.csv.gz", 100) as advance:
        advance(80)
        advance(80)
    assert "100/100" in capfd.readouterr().err


def test_the_text_of_a_gzipped_file_is_known_from_its_end(tmp_path: Path) -> None:
    text = b"0,1\n" * 5000
    (tmp_path / "g.csv").write_bytes(text)
    with gzip.open(tmp_path / "g.csv.gz", "wb") as stream:
        stream.write(text)
    assert terminal.text_bytes(tmp_path / "g.csv") == len(text)
    assert terminal.text_bytes(tmp_path / "g.csv.gz") == len(text)
    (tmp_path / "tiny.gz").write_bytes(b"ab")
    assert terminal.text_bytes(tmp_path / "tiny.gz") == 2


def test_memory_that_ends_in_torch_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Torch raises a RuntimeError, which was a traceback."""

    def run(words: list[str]) -> int:
        return len(torch.empty(1 << 60, dtype=torch.uint8))

    assert exit_code(run, [], "graph-emb", "use less") == 2
    said = capsys.readouterr().err
    assert said == (
        f"graph-emb: error: out of memory (can't allocate memory: you tried to allocate {1 << 60} bytes); use less\n"
    )
    with pytest.raises(RuntimeError, match="allocate memory"):
        exit_code(run, ["--debug"], "graph-emb", "")


def test_a_lost_peer_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It was that of bad input, which starts no job again."""
    refused = PeerError("host 10.0.0.2 refused its input")
    refused.final = True
    for error, code in ((PeerError("rank 1 is gone"), 3), (refused, 2), (DataError("no such file"), 2)):

        def run(words: list[str], error: Exception = error) -> int:
            raise error

        assert exit_code(run, [], "graph-emb", "") == code
        assert capsys.readouterr().err == f"graph-emb: error: {error}\n"


def test_memory_that_ends_is_one_line() -> None:
    told = one_line(MemoryError("Unable to\nallocate 9 TiB"), "use less")
    assert told == "out of memory (Unable to allocate 9 TiB); use less"
    assert one_line(OSError(errno.EACCES, "Permission denied", "/x"), "") == "Permission denied: /x"
