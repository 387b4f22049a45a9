"""A process that is killed while it saves leaves the last complete checkpoint, and nothing torn under a name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.dist
def test_a_few_of_the_200_kills_of_the_benchmark(tmp_path: Path) -> None:
    script = CHECKOUT / "benchmarks" / "checkpoint_kills.py"
    command = [sys.executable, script, "--kills", "6", "--seed", "3", "--json", tmp_path / "kills.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "kills.json").read_text())
    assert found["killed while files were written"] > 0
