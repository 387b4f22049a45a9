"""A build that is killed at any of its steps leaves nothing that verify takes for a complete partition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

# One process forks a child for each step, so that nothing is imported twice. A step is a call that reaches the disk.
KILLED_AT_EVERY_STEP = """
import functools, gc, json, os, shutil, signal, sys, pathlib
import partition
from graph_emb.core.errors import GraphEmbError
from graph_emb.core import storage as module
from tests.partition.made_graphs import heterogeneous, random_parts

place, overwrite = pathlib.Path(sys.argv[1]), sys.argv[2] == "overwrite"
graph = heterogeneous()
old, new = (random_parts(graph, parts) for parts in (2, 3))
steps = 0


def build(assignment, **options):
    return partition.build(graph, out=place / "out", assignment=assignment, report=False, **options)


def counted(function, last):
    def call(*args, **options):
        global steps
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return call


def arm(last):
    for owner, name in ((module.OutputFile, "write"), (module.OutputFile, "close"), (module.Path, "rename"),
                        (module.Path, "mkdir"), (module.Path, "write_text"), (module, "swap_names"),
                        (module, "_sync"), (shutil, "rmtree")):
        setattr(owner, name, counted(getattr(owner, name), last))


@functools.cache
def judged(folder, files):
    try:
        if not partition.verify(folder).sound:
            return None
    except (GraphEmbError, OSError):
        return None
    return partition.verify(folder, graph).sound, partition.load(folder).num_parts


def accepted(folder):
    # Verify says the same of the same bytes in the same place.
    return judged(folder, tuple((path, path.is_file() and path.read_bytes()) for path in sorted(folder.rglob("*"))))


build(new)  # children then import and compile nothing
whole_old = place.with_name("old")
if overwrite:
    build(old, overwrite=True)
    (place / "out").rename(whole_old)
gc.collect()
gc.freeze()  # no child looks through, and so copies, all that it shares
found = {"killed": 0, "accepted": [], "out": []}
last = 1
while True:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if overwrite:
        shutil.copytree(whole_old, place / "out")
    child = os.fork()
    if child == 0:
        arm(last)
        try:
            build(new, overwrite=overwrite)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        break
    found["killed"] += 1
    judgements = {folder.name: accepted(folder) for folder in place.iterdir()}
    taken = {name: judgement for name, judgement in judgements.items() if judgement}
    found["accepted"] += [[name, *what] for name, what in taken.items()]
    found["out"].append("out" in taken)
    last += 1
build(new, overwrite=(place / "out").exists())
found["left"] = [folder.name for folder in place.iterdir()]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fresh", "overwrite"])
def test_no_step_leaves_an_incomplete_partition_that_verify_accepts(tmp_path: Path, mode: str) -> None:
    words = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(tmp_path / "place"), mode]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] >= 250
    assert all(whole for _, whole, _ in found["accepted"])  # whole and true to the graph, wherever it lies
    assert found["left"] == ["out"]
    if mode == "overwrite":
        assert all(found["out"])  # at every moment the old partition or the new one
    else:
        assert not any(found["out"][:-2])
