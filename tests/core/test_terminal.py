"""The bar is silent at first, then tells share, rate, time left and memory, and never runs over its total."""

from __future__ import annotations

import errno
import gzip
import os
import shlex
import subprocess
import sys
import time
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


def run_child(code: str, folder: Path, *, shell: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program of its own, under redirections of a shell."""
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} {shell}"
    told = {"capture_output": True, "text": True, "timeout": 60}
    environment = {**os.environ, "PYTHONPATH": str(Path(terminal.__file__).parents[2])}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, check=False, **told)  # type: ignore[call-overload,no-any-return]


CALL = "import sys; from graph_emb.core.terminal import exit_code; sys.exit(exit_code({run}, [], 'graph-emb', ''))"


def test_closed_standard_streams_are_the_null_device(tmp_path: Path) -> None:
    """Standard output was None, so that the last flush ended in a traceback; and the next file got its number."""
    run = "lambda _: [print('told'), open('made', 'wb').write(b'bytes'), print('again')] and 0"
    for shell in (">&-", "<&- >&- 2>&-"):
        done = run_child(CALL.format(run=run), tmp_path, shell=shell)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "made").read_bytes() == b"bytes"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_standard_output_is_named(tmp_path: Path) -> None:
    """The message had no name, as if a disk were full."""
    done = run_child(CALL.format(run="lambda _: print('told') or 0"), tmp_path, shell="> /dev/full")
    assert done.returncode == 2
    assert done.stderr == "graph-emb: error: No space left on device: standard output\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_standard_error_ends_nothing(tmp_path: Path) -> None:
    """The line for the person at the terminal raised, after the work was done."""
    run = "lambda _: say(__import__('argparse').Namespace(quiet=False), 'there') or 0"
    call = f"from graph_emb.core.terminal import say; {CALL.format(run=run)}"
    assert run_child(call, tmp_path, shell="2> /dev/full").returncode == 0
    refused = "lambda _: open('nosuch')"
    assert run_child(CALL.format(run=refused), tmp_path, shell="2> /dev/full").returncode == 2


def test_a_current_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    """MKL ended the process there with a message of its own about libtorch."""
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir('gone'); os.rmdir('../gone'); {CALL.format(run='lambda _: 0')}"
    done = run_child(code, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "graph-emb: error: the current folder was removed; cd to one that is there\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_interrupts_unless_nohup_keeps_it_away(tmp_path: Path, ignored: bool) -> None:
    """SIGHUP ended the process at once: no checkpoint was written, and hidden folders stayed."""
    run = "lambda _: __import__('signal').raise_signal(1) or 0"
    before = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_{'IGN' if ignored else 'DFL'}); "  # as of nohup
    done = run_child(before + CALL.format(run=run), tmp_path)
    assert (done.returncode, done.stderr) == ((0, "") if ignored else (130, "graph-emb: interrupted\n"))


DROPPED = """
import signal, time

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

def run(_):
    Last()
    time.sleep(20)
    return 0
"""


def test_an_interrupt_that_python_drops_comes_again(tmp_path: Path) -> None:
    """In a finalizer, or a callback of LLVM while kernels compile, the KeyboardInterrupt was lost: training went on."""
    begun = time.monotonic()
    done = run_child(DROPPED + CALL.format(run="run"), tmp_path)
    assert (done.returncode, done.stderr) == (130, "graph-emb: interrupted\n")
    assert time.monotonic() - begun < 15
