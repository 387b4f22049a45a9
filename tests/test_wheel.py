"""The wheel, installed outside the checkout: it has every file, works from another folder, and its types are seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import networkx
import pytest

from benchmarks.wheels import Timed, build_wheel, install_beside
from tests.conftest import CHECKOUT

USER = """
import torch

import graph_emb as ge

table = ge.DistEmbedding(10, 4, name="user")
optimizer = ge.SparseAdagrad([table], lr=0.1)
optimizer.step()
model = ge.DeepWalk(dim=16)
places: "list[tuple[int, float]]" = model.nearest(3, k=2)
result = ge.pipeline("deepwalk", dataset="digits", seed=0)
width: int = result.embeddings.weights.shape[1] if result.embeddings is not None else 0
"""
WRONG = {
    'ge.DistEmbedding("ten", 4)': 'Argument 1 to "DistEmbedding" has incompatible type "str"',
    "ge.SparseAdagrad([table], rate=0.1)": 'Unexpected keyword argument "rate" for "SparseAdagrad"',
    "table.wieght": '"DistEmbedding" has no attribute "wieght"',
    "ge.SparseAdgrad": "has no attribute",
    'ge.pipeline("deepwalk").embeddings.weights': "has no attribute",
    "number: int = model.nearest(3)": "Incompatible types in assignment",
    "ge.load_checkpoint(3)": 'Argument 1 to "load_checkpoint" has incompatible type "int"',
}
"""Mistakes of users, and what mypy says of each."""
OTHERS = "dgl IPython llvmlite matplotlib networkx numba numpy pandas psutil pyarrow pydantic scipy sklearn torch yaml"
"""Packages that mypy does not read: torch alone takes half a minute."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Timed:
    """An environment whose packages are those of the tests, but for graph_emb, which is the wheel's."""
    python = install_beside(wheel.parent / "environment", wheel, Path(networkx.__file__).parents[1])
    return Timed(python.parents[1], wheel.parent / "elsewhere")


def test_the_wheel_has_every_file_of_both_packages_and_nothing_else(wheel: Path) -> None:
    kept = [path for package in ("graph_emb", "partition") for path in (CHECKOUT / package).rglob("*")]
    names = {str(path.relative_to(CHECKOUT)) for path in kept if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
    assert packed == names
    assert {"graph_emb/py.typed", "partition/py.typed"} <= packed


def test_the_karate_club_is_embedded_by_the_wheel(installed: Timed) -> None:
    seconds = installed.karate()
    assert 0 < seconds["rows"] < seconds["process"]


@pytest.mark.slow
def test_the_demo_runs_from_another_folder(installed: Timed) -> None:
    _, told = installed.run("demo", "-q", program="graph-emb")
    assert "micro-F1" in told
    drawn = installed.folder / "runs" / "demo" / "map.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_a_checker_of_users_code_sees_the_types(installed: Timed, tmp_path: Path) -> None:
    """It took every unknown name for one of the package, because of the module's ``__getattr__``."""
    script = tmp_path / "script.py"
    script.write_text(USER + "\n".join(WRONG) + "\n")
    settings = tmp_path / "mypy.ini"
    others = ",".join(f"{name}.*" for name in OTHERS.split())
    skipped = f"[mypy-{others}]\nfollow_imports = skip\nignore_missing_imports = true\n"
    settings.write_text(f"[mypy]\nstrict = true\n{skipped}")
    line = [sys.executable, "-m", "mypy", "--python-executable", str(installed.environment / "bin" / "python")]
    line += ["--config-file", str(settings), "--cache-dir", os.devnull, "--no-error-summary", str(script)]
    told = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^script\.py:(\d+): error: (.*)$", told.stdout, re.MULTILINE))
    first = USER.count("\n") + 1
    assert {number: found.get(str(number), "") for number in range(1, first) if str(number) in found} == {}, told.stdout
    for number, (mistake, said) in enumerate(WRONG.items(), first):
        assert said in found.get(str(number), ""), f"{mistake}: {told.stdout}{told.stderr}"
