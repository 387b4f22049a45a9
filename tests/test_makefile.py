"""The Makefile names files that are there: a test file that moved made one of its targets fail."""

from __future__ import annotations

import subprocess

import pytest

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


def test_the_files_that_begin_first_exist() -> None:
    assert [name for name in LONGEST if not (CHECKOUT / "tests" / f"{name}.py").is_file()] == []
