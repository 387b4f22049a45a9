"""Every expected failure is exit code 2 and one line; nothing is left half-written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graph_emb.cli import main as entry
from graph_emb.cli.main import COMMANDS
from graph_emb.cli.parser import build_parser
from graph_emb.core.imports import resolve
from tests.cli.conftest import CliqueFiles, Outcome

TINY = ("model.dim=4", "model.num_walks=2", "model.walk_length=5", "train.threads=1")
Cli = Callable[..., Outcome]


def refused(outcome: Outcome, message: str) -> None:
    """Exit code 2, one line on stderr with the message, nothing on stdout."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("graph-emb: error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert message in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("three_words.txt", b"a b\nc d e\n", "line 2"),
        ("empty.csv", b"", "empty.csv"),
        ("loops.csv", b"", "loops.csv"),
        ("negative.csv", b"0,1\n1,-2\n", "-2"),
        ("huge.csv", b"0,1\n1,99999999999999999999999\n", "99999999999999999999999"),
        ("junk.csv", bytes(range(256)) * 4, "junk.csv"),
        ("junk.npz", b"PK\x03\x04 not a zip", "junk.npz"),
        ("junk.mat", b"\x00\x01\x02", "junk.mat"),
        ("junk.parquet", b"PAR1 no", "junk.parquet"),
        ("junk.csv.gz", b"\x1f\x8b broken", "junk.csv.gz"),
        ("graph.xyz", b"0 1\n", "cannot tell its format; give format="),
    ],
)
def test_a_bad_graph_file_is_one_clear_line(cli: Cli, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(cli("train", "deepwalk", "--dataset", name, "--out", "runs/x", *TINY), message)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_a_graph_without_edges_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loop.csv").write_text("0,0\n", encoding="utf-8")
    line = ("train", "deepwalk", "--dataset", "loop.csv", "--out", "x", "dataset.self_loops=drop", *TINY)
    refused(cli(*line), "no edges")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "absent.csv"), "absent.csv: no such file"),
        (("--dataset", "digitz"), "did you mean 'digits'?"),
        (("--dataset", "ogbl-ddi"), "needs root="),
        (("--dataset", "digits", "--dim", "0"), "model.dim = 0: should be greater than or equal to 1"),
        (("--dataset", "digits", "--seed", "-1"), "seed = -1: should be greater than or equal to 0"),
        (("--dataset", "digits", "--lr", "nan"), "train.lr = 'nan': should be a finite number"),
        (("--dataset", "digits", "--rule", "adma"), "did you mean 'adam'?"),
        (("--dataset", "digits", "train.lrr=1"), "did you mean 'train.lr'?"),
        (("--dataset", "digits", "model.p=1"), "deepwalk has no such field"),
        (("--dataset", "digits", "--formats", "npy,npz"), "output.formats.1 = 'npz'"),
        (("--dataset", "digits", "--hold-out", "1.5"), "dataset.hold_out = 1.5: should be less than 1"),
        (("--dataset", "digits", "--hold-out", "0.00001"), "less than one of 12340 edges"),
        (("--dataset", "digits", "--download"), "download"),
        (("--dataset", "digits", "--dim", "65536", "model.tables=2", "train.rule=adam"), "of memory is free"),
        (("--config", "absent.yaml"), "absent.yaml: No such file"),
        ((), "no data set: give --dataset"),
    ],
)
def test_a_bad_argument_is_one_clear_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    import psutil

    class Little:
        available = 1 << 28

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    refused(cli("train", "deepwalk", *words, "--out", "runs/x"), message)
    assert list(tmp_path.iterdir()) == []


def test_labels_of_another_graph_are_refused(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    labels.write_text("a0,x\nz9,y\n", encoding="utf-8")
    refused(cli("train", "deepwalk", "--dataset", graph, "--labels", labels, "--out", "x", *TINY), "'z9'")
    assert cli("train", "deepwalk", "--dataset", graph, "--out", "run", *TINY).code == 0
    refused(cli("eval", "node-class", "--embeddings", "run", "--labels", labels, "--json", "x.json"), "'z9'")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cliques.csv", "labels.csv", "run"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    cli: Cli, cliques: CliqueFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(cli("train", "deepwalk", "--dataset", cliques[0], "--out", "runs/x", *TINY), "No space left on device")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cliques.csv", "labels.csv"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_trained(
    cli: Cli,
    cliques: CliqueFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    number: signal.Signals,
) -> None:
    from graph_emb.run.run_folder import RunFolder, read_metrics

    # A shell's background job starts with SIGINT ignored; Python then installs no handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    append = RunFolder.append

    def interrupted(self: RunFolder, record: dict[str, object]) -> None:
        append(self, record)
        if record["walks"] == 32:  # the first epoch's 2 walks from 16 nodes
            signal.raise_signal(number)

    monkeypatch.setattr(RunFolder, "append", interrupted)
    line = ("train", "deepwalk", "--dataset", cliques[0], "--out", "run", "train.log_interval=1e-9", *TINY)
    outcome = cli(*line, "train.epochs=100000")
    assert outcome.code == 130
    assert "interrupted; what was trained is in" in outcome.err
    metrics = read_metrics(tmp_path / "run")
    assert metrics["status"] == "interrupted"
    assert metrics["train"]["walks"] == 32
    assert "embeddings.npy" in metrics["files"]
    assert not list(tmp_path.glob(".run*"))


def test_an_interrupt_before_training_writes_nothing(
    cli: Cli, cliques: CliqueFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graph_emb.run.families import plain

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plain, "read_plain_dataset", interrupted)
    outcome = cli("train", "deepwalk", "--dataset", cliques[0], "--out", "runs/x", *TINY)
    assert (outcome.code, outcome.err) == (130, "graph-emb: interrupted\n")
    assert not (tmp_path / "runs").exists()


def test_an_import_that_ctrl_c_breaks_is_an_interrupt(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A C extension answers a KeyboardInterrupt in its imports with an ImportError: a traceback and exit code 1."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def broken(args: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy._core.multiarray failed to import") from None
        return 0

    monkeypatch.setattr(entry, "_run", broken)
    outcome = cli("info", "graph.csv")
    assert (outcome.code, outcome.err) == (130, "graph-emb: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("name", "environment", "shown"),
    [
        ("gr\xe9", {"PYTHONIOENCODING": "ascii"}, rb"gr\xe9"),
        ("gr\xe9", {"PYTHONIOENCODING": "latin-1"}, b"gr\xe9"),
        ("gr\u2192", {"PYTHONIOENCODING": "latin-1"}, rb"gr\u2192"),
        ("gr\xe9", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, rb"gr\udcc3\udca9"),
        ("gr\udce9", {"LC_ALL": "C.UTF-8"}, rb"gr\udce9"),
    ],
)
def test_a_name_that_the_terminal_lacks_is_shown_escaped(
    name: str, environment: dict[str, str], shown: bytes, tmp_path: Path
) -> None:
    """``print`` of a data set's name raised UnicodeEncodeError: the encoding lacked a letter of it, or the file's name
    was no UTF-8."""
    file = os.fsencode(tmp_path) + b"/" + name.encode("utf-8", "surrogateescape") + b".edges"
    with open(file, "w") as stream:
        stream.write("0 1\n1 2\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIO"))}
    command = [sys.executable, "-m", "graph_emb", "info", file]
    ended = subprocess.run(command, env=kept | environment, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.splitlines()[0].split()[1] == shown


def test_debug_shows_the_traceback_above_the_line(cli: Cli) -> None:
    outcome = cli("train", "deepwalk", "--dataset", "absent.csv", "--debug")
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.splitlines()[-1].startswith("graph-emb: error: absent.csv")


def test_a_programming_error_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(entry, "_run", broken)
    with pytest.raises(ZeroDivisionError):
        cli("info")


def test_every_command_of_the_grammar_has_a_module() -> None:
    assert set(COMMANDS) == {name for name in build_parser()[1] if name}
    assert all(callable(resolve(function)) for function in COMMANDS.values())


def test_help_imports_no_heavy_library() -> None:
    # pyplot, scikit-learn, OGB and the like would make every typing error wait for seconds
    code = (
        "import sys; from graph_emb.cli.main import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'dgl', 'ogb', 'sklearn', 'matplotlib', 'pandas', 'pyarrow', 'networkx'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--dataset" in done.stdout
    assert done.stderr.strip() == "[]"


def test_a_small_training_imports_no_library_that_it_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "path.csv").write_text("0,1\n1,2\n2,3\n", encoding="utf-8")
    # pyarrow's to_numpy imported pandas, a module of the evaluation scipy.optimize: half a second of each start
    code = (
        "import gc, sys; from graph_emb.cli.main import main\n"
        "assert main(['-q', *sys.argv[1:]]) == 0 and gc.isenabled()\n"
        "heavy = {'dgl', 'ogb', 'sklearn', 'matplotlib', 'pandas', 'networkx', 'scipy.optimize'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    line = ["train", "deepwalk", "--dataset", str(tmp_path / "path.csv"), "--out", str(tmp_path / "run"), "num_walks=1"]
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "graph_emb", "trian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("graph-emb: error: unknown command 'trian'")


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_reader_that_leaves_early_is_no_error(buffering: dict[str, str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        line = [sys.executable, "-m", "graph_emb", "--version"]
        done = subprocess.run(
            line, stdout=closed, stderr=subprocess.PIPE, text=True, check=False, env={**environment, **buffering}
        )
    assert (done.returncode, done.stderr) == (0, "")
