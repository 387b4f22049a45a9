"""The Makefile names files that are there: a test file that moved made one of its targets fail.

And what it installs by uv is what pip would install.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import install
from tests.conftest import CHECKOUT, LONGEST


@pytest.mark.parametrize("target", ["test-dgl2", "bench", "wheels", "tutorials"])
def test_a_target_runs_files_that_exist(target: str) -> None:
    told = subprocess.run(["make", "-n", target], cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60)
    named = [
        word
        for word in told.stdout.split()
        if word.startswith(("tests/", "benchmarks/", "docs/")) and word.endswith(".py")
    ]
    assert named
    assert [name for name in named if not (CHECKOUT / name).is_file()] == []


@pytest.mark.parametrize("file", sorted((CHECKOUT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_a_benchmark_starts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``update`` could not: its floor asked for what ``compiled.njit`` refuses."""
    if file.stem == "kge_pykeen":
        pytest.importorskip("pykeen")
    monkeypatch.syspath_prepend(str(file.parent))  # where a script finds its neighbours
    known = {*sys.modules}
    importlib.import_module(file.stem)
    for name in {*sys.modules} - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(file.parent)):
            del sys.modules[name]


def test_the_files_that_begin_first_exist() -> None:
    assert [name for name in LONGEST if not (CHECKOUT / "tests" / f"{name}.py").is_file()] == []


@pytest.mark.parametrize(
    ("listed", "words", "variables"),
    [
        ("", [], {}),
        (":env:.disable-pip-version-check='1'\nglobal.timeout='60'", [], {}),
        ("global.index-url='https://one/simple'", [], {"UV_DEFAULT_INDEX": "https://one/simple"}),
        ("global.index-url='https://one'\n:env:.index-url='https://two'", [], {"UV_DEFAULT_INDEX": "https://two"}),
        (":env:.index-url='https://one'\ninstall.index-url='https://two'", [], {"UV_DEFAULT_INDEX": "https://one"}),
        (r"global.extra-index-url='file:///a/simple\nfile:///b'", [], {"UV_INDEX": "file:///a/simple file:///b"}),
        (":env:.no_index='1'\n:env:.find-links='/a /b'", [], {"UV_NO_INDEX": "1", "UV_FIND_LINKS": "/a,/b"}),
        ("global.cert='/etc/own.pem'", [], {"SSL_CERT_FILE": "/etc/own.pem"}),
        ("global.constraint='/a.txt /b.txt'\nwheel.no-binary=':all:'", ["/a.txt", "/b.txt"], {}),
        ("global.trusted-host='one'", None, {}),
        (":env:.no-binary=':all:'", None, {}),
    ],
)
def test_uv_is_told_what_pip_is_told_and_pip_does_what_uv_cannot_be_told(
    listed: str, words: list[str] | None, variables: dict[str, str]
) -> None:
    found = install.told(install.configured(listed))
    if words is None:
        assert found is None
    else:
        constraints = [word for file in words for word in ("--constraint", file)]
        assert found == (constraints, {"UV_INDEX_STRATEGY": "unsafe-best-match", **variables})


@pytest.mark.parametrize("fails", ["", "install --quiet uv==", "uv pip install"])
def test_where_uv_fails_pip_installs(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done.append(" ".join(words[2:]))
        return subprocess.CompletedProcess(words, int(bool(fails) and fails in done[-1]), stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    assert install.main(["--no-deps", "a==1"]) == 0
    assert done[-1].endswith(" --no-deps a==1")
    assert done[-1].startswith("pip --disable" if fails else "uv pip install")


def test_an_installation_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the exit status, of which make stops."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    words = ["--target", str(tmp_path), "no-such-package-of-ours==1"]
    done = subprocess.run([sys.executable, install.__file__, *words], capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "no-such-package-of-ours==1" in done.stderr
    assert not [*tmp_path.glob("[!.]*")]
