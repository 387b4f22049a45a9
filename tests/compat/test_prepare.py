"""Importing graph_emb: silent, quick to return, and leaves the home folder alone. Each in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import CHECKOUT


def run_python(code: str, home: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with an empty home folder and no standard input."""
    search_path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(CHECKOUT)]).strip(os.pathsep)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DGL", "XDG"))}
    environ = inherited | {"HOME": str(home), "PYTHONPATH": search_path} | extra
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_importing_graph_emb_and_dgl_prints_and_writes_nothing(tmp_path: Path) -> None:
    done = run_python("import graph_emb, dgl; dgl.graph(([0], [1]))", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_graph_emb_imports_no_heavy_package_and_keeps_a_chosen_backend(tmp_path: Path) -> None:
    code = (
        "import os, sys, graph_emb, graph_emb.compat.dgl, graph_emb.compat.ogb\n"
        "heavy = {'dgl', 'ogb', 'outdated', 'pandas', 'sklearn', 'matplotlib', 'networkx', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)), os.environ['DGLBACKEND'])"
    )
    done = run_python(code, tmp_path, DGLBACKEND="tensorflow")
    assert (done.stdout.strip(), done.stderr) == ("[] tensorflow", "")


def test_dgl_imports_after_a_failed_import_before_graph_emb(tmp_path: Path) -> None:
    """dgl 2.1.0 alone fails half-way and leaves modules behind; dgl 1.1.3 simply imports."""
    code = (
        "try:\n    import dgl\nexcept ImportError:\n    pass\n"
        "import graph_emb, dgl, torch\n"
        "walks, _ = dgl.sampling.random_walk(dgl.graph(([0, 1], [1, 0])), torch.tensor([0]), length=2)\n"
        "print(walks.tolist())"
    )
    done = run_python(code, tmp_path, DGLBACKEND="pytorch")
    assert (done.stdout.strip(), done.stderr) == ("[[0, 1, 0]]", "")
