"""A process that is killed while it saves leaves the last complete checkpoint, and nothing torn under a name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint_kills import fill, look, table
from tests.conftest import CHECKOUT
from tests.faults.shim import Faults, every_call

pytestmark = pytest.mark.usefixtures("warm_starts")

LIMIT = 300
"""Seconds, of a machine that is busy with other things."""


@pytest.mark.dist
def test_a_few_of_the_200_kills_of_the_benchmark(tmp_path: Path) -> None:
    script = CHECKOUT / "benchmarks" / "checkpoint_kills.py"
    command = [sys.executable, script, "--kills", "6", "--seed", "3", "--json", tmp_path / "kills.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "kills.json").read_text())
    assert sum(number for name, number in found.items() if name.startswith("killed ")) == 6


@pytest.mark.dist
def test_a_kill_of_the_server_of_a_growing_table(tmp_path: Path) -> None:
    script = CHECKOUT / "benchmarks" / "growing_kills.py"
    command = [sys.executable, script, "--kills", "1", "--json", tmp_path / "kills.json", "--seed", "1"]
    mode = ["--mode", "kvstore", "--trainers", "2"]
    done = subprocess.run([*command, *mode], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "kills.json").read_text())
    assert found["trainings with the bits of one that was never stopped"] == 1
    assert found["of the server"] == 1


@pytest.mark.dist
def test_a_few_of_the_100_kills_of_a_growing_table(tmp_path: Path) -> None:
    """One in a step that makes rows, one in an eviction, one in the save of a delta."""
    script = CHECKOUT / "benchmarks" / "growing_kills.py"
    command = [sys.executable, script, "--kills", "3", "--json", tmp_path / "kills.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "kills.json").read_text())
    assert found["trainings with the bits of one that was never stopped"] == 3
    assert all(any(name.startswith(phase) for name in found) for phase in ("growth", "eviction", "saving"))


@pytest.mark.dist
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("same_name", [False, True])
def test_a_save_that_is_killed_at_any_call_of_the_system(tmp_path: Path, same_name: bool, background: bool) -> None:
    """Each moment once; random kills may all miss one.

    Between the opening and the writing of the mark of a folder on its way out, a kill left an empty mark in a complete
    checkpoint: every later save under the name took it for another process's.
    """
    words = [
        sys.executable,
        "-m",
        "tests.checkpoint.test_kills",
        str(tmp_path),
        *map(str, map(int, (same_name, background))),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torn"] > found["calls"] / 2 > 10
    assert found["kept"] > 0


class Kill(Faults):
    """The process ends by SIGKILL just before its call number ``fail_at``."""

    def _meets(self, name: str, target: Any) -> None:
        try:
            super()._meets(name, target)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_each_call(folder: Path, same_name: bool, background: bool) -> dict[str, int]:
    """Save in a fork that ends at one call, look, save again; counts of the calls and of what the kills left."""
    import torch

    import graph_emb as ge

    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    emb, opt = table(0)

    def save(step: int) -> None:
        fill(emb, step)
        place = folder / ("last" if same_name else str(step))
        made = ge.save_checkpoint(place, tables=[emb], optimizers=[opt], step=step, keep_last=2, background=background)
        if background:
            made.wait()

    save(0)
    save(1)  # the next one removes the oldest
    calls = len(every_call(lambda: save(2), folder))
    step, found = 2, {"calls": calls, "torn": 0, "kept": 0}
    for position in range(1, calls + 1):
        child = os.fork()
        if child == 0:
            with Kill(folder, position).counting():
                ge.shutdown()
                ge.init(mode="local")  # a forked process must say that its tables are its own
                emb, opt = table(step + 1)
                save(step + 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL, f"call {position}: the child ended with {code}"
        found["torn"] += any(path.name.startswith(".") for path in folder.iterdir())
        newest = look(folder, emb, opt)
        assert newest in (step, step + 1), f"call {position}: the newest is {newest}, where {step} was finished"
        found["kept"] += newest > step
        step += 1
        save(step)  # the killed one, again
        assert look(folder, emb, opt) == step
        left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        assert not left, f"call {position} left {left}"
    return found


if __name__ == "__main__":
    print(json.dumps(kill_at_each_call(Path(sys.argv[1]), *(word == "1" for word in sys.argv[2:]))))
