"""A build that is killed at any of its steps leaves nothing that verify takes for a complete partition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

# A step is a call that reaches the disk: before each of them the build stops itself with all its threads, so that what
# lies on the disk is what a kill leaves there. A kill at every step would build 500 times; some builds are killed, and
# leave what was judged. One process forks them all, so that nothing is imported twice.
STOPPED_AT_EVERY_STEP = """
import functools, gc, json, os, shutil, signal, sys, threading, pathlib
import partition
from graph_emb.core.errors import GraphEmbError
from graph_emb.core import storage as module
from tests.partition.made_graphs import heterogeneous, random_parts

place, overwrite = pathlib.Path(sys.argv[1]), sys.argv[2] == "overwrite"
graph = heterogeneous()
old, new = (random_parts(graph, parts) for parts in (2, 3))


def build(assignment, **options):
    return partition.build(graph, out=place / "out", assignment=assignment, report=False, **options)


one_at_a_time = threading.Lock()  # two threads that stop at one moment would count as one step


def stopping(function):
    def call(*args, **options):
        with one_at_a_time:
            signal.raise_signal(signal.SIGSTOP)
        return function(*args, **options)
    return call


def arm():
    for owner, name in ((module.OutputFile, "write"), (module.OutputFile, "close"), (module.Path, "rename"),
                        (module.Path, "mkdir"), (module.Path, "write_text"), (module, "swap_names"),
                        (module, "_sync"), (shutil, "rmtree")):
        setattr(owner, name, stopping(getattr(owner, name)))


@functools.cache
def judged(folder, files):
    try:
        if not partition.verify(folder).sound:
            return None
    except (GraphEmbError, OSError):
        return None
    return partition.verify(folder, graph).sound, partition.load(folder).num_parts


def on_the_disk():
    # Of each folder all names and bytes: verify says the same of the same bytes in the same place.
    return {folder: tuple((path, path.is_file() and path.read_bytes()) for path in sorted(folder.rglob("*")))
            for folder in place.iterdir()}


def accepted():
    judgements = {folder.name: judged(folder, files) for folder, files in on_the_disk().items()}
    return {name: judgement for name, judgement in judgements.items() if judgement}


def watched(until):
    # Judgements at each step of a build, which is killed at one of them.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if overwrite:
        shutil.copytree(whole_old, place / "out")
    child = os.fork()
    if child == 0:
        arm()
        try:
            build(new, overwrite=overwrite)
        finally:
            os._exit(0)
    steps = []
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        if until is None:
            steps.append(accepted())
        elif until > 0:
            until -= 1
        else:
            before = on_the_disk()
            os.kill(child, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
            assert on_the_disk() == before
            return [accepted()]
        os.kill(child, signal.SIGCONT)
    return steps


build(new)  # children then import and compile nothing
whole_old = place.with_name("old")
if overwrite:
    build(old, overwrite=True)
    (place / "out").rename(whole_old)
gc.collect()
gc.freeze()  # no child looks through, and so copies, all that it shares
steps = watched(None)
killed = [watched(step)[0] for step in range(len(steps) - 1, 0, -len(steps) // 12)]
build(new, overwrite=(place / "out").exists())
print(json.dumps({"steps": steps, "killed": killed, "left": [folder.name for folder in place.iterdir()]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fresh", "overwrite"])
def test_no_step_leaves_an_incomplete_partition_that_verify_accepts(tmp_path: Path, mode: str) -> None:
    words = [sys.executable, "-c", STOPPED_AT_EVERY_STEP, str(tmp_path / "place"), mode]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    steps, killed = found["steps"], found["killed"]
    assert len(steps) >= 250
    assert len(killed) >= 12
    # whole and true to the graph, wherever it lies
    assert all(whole for taken in (*steps, *killed) for whole, _ in taken.values())
    assert found["left"] == ["out"]
    if mode == "overwrite":
        assert all("out" in taken for taken in (*steps, *killed))  # at every moment the old partition or the new one
    else:
        assert not any("out" in taken for taken in steps[:-2])
