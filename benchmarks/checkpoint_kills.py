"""Kill a training during its saves: the last complete checkpoint always loads, a torn one is never taken.

    python benchmarks/checkpoint_kills.py --kills 200

A child trains and saves checkpoint after checkpoint under new names and, every second time, under one name again and
again; every third round it writes in the background. It is killed by SIGKILL a random moment after a save began. Then
everything that has a name must verify and load with the numbers of its step, no step that the child had finished may be
missing, and the next child must clean up what the killed one left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROWS, DIM = 20_000, 16
LAST = "last"


def table(step: int) -> tuple[Any, Any]:
    """A table and an optimizer whose every number is the step."""
    import graph_emb as ge

    emb = ge.DistEmbedding(ROWS, DIM, name="node")
    opt = ge.SparseAdam([emb], lr=0.1)
    fill(emb, step)
    return emb, opt


def fill(emb: Any, step: int) -> None:
    """Let every number be the step."""
    emb.shard.weight.fill_(step)
    for state in emb.shard.state.values():
        state.fill_(step)


def train(folder: Path, first: int, same_name: bool, background: bool, pipe: Connection) -> None:
    """Save until somebody kills this process; tells when a save begins and which is done."""
    import graph_emb as ge

    ge.shutdown()  # the parent has a table of this name
    ge.init(mode="local")  # a forked process must say that its tables are its own
    emb, opt = table(first)
    for step in range(first, first + 1000):
        fill(emb, step)
        pipe.send(("begun", step))
        place = folder / (LAST if same_name else str(step))
        made = ge.save_checkpoint(place, tables=[emb], optimizers=[opt], step=step, keep_last=2, background=background)
        if background:
            made.wait()
        pipe.send(("done", step))


def look(folder: Path, emb: Any, opt: Any) -> int:
    """Load everything that has a name; the newest step, -1 where there is none."""
    import graph_emb as ge

    newest = -1
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        loaded = ge.load_checkpoint(path, tables=[emb], optimizers=[opt])
        tensors = [emb.shard.weight, *emb.shard.state.values()]
        if any(bool((tensor != loaded.step).any()) for tensor in tensors):
            raise AssertionError(f"{path} of step {loaded.step} holds other numbers")
        if path.name not in (LAST, str(loaded.step)):
            raise AssertionError(f"{path} is of step {loaded.step}")
        newest = max(newest, loaded.step)
    return newest


def rounds(kills: int, seed: int, folder: Path) -> Counter[str]:
    """Kill so many children; counts of what was found."""
    import torch

    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork, and a child would wait for them for ever
    context = multiprocessing.get_context("fork")  # a child imports and compiles nothing
    rng, found, step = random.Random(seed), Counter[str](), 0
    emb, opt = table(0)
    look(folder, emb, opt)
    took = 0.05
    for number in range(kills):
        mine, theirs = context.Pipe()
        same_name, background = number % 2 == 1, number % 3 == 2
        child = context.Process(target=train, args=(folder, step, same_name, background, theirs))
        child.start()
        theirs.close()
        done, begun = -1, -1
        saves = rng.randint(1, 3)
        while begun < step + saves - 1:  # the last of so many saves is the one that is killed
            word, which = mine.recv()
            began = time.perf_counter()
            begun, done = (which, done) if word == "begun" else (begun, which)
        time.sleep(rng.random() * took * 1.2)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"the child ended with {child.exitcode}"
        try:
            while mine.poll():
                word, which = mine.recv()
                if word == "done":
                    took = 0.9 * took + 0.1 * min(1.0, time.perf_counter() - began)
                    done = max(done, which)
        except EOFError:
            pass
        torn = any(path.name.startswith(".") for path in folder.iterdir())
        found["killed while files were written" if torn else "killed between two saves"] += 1
        newest = look(folder, emb, opt)
        if newest < done:
            raise AssertionError(f"step {done} was finished, the newest that is there is {newest}")
        found["the killed save had its name already" if newest > done else "the one before is the newest"] += 1
        step = max(newest, begun) + 1
    return found


def main(argv: list[str] | None = None) -> int:
    """Kill, look, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(args.kills, args.seed, Path(folder))
    result = {"kills": args.kills, "seed": args.seed, "torn_taken": 0, "lost": 0, **found}
    print(json.dumps(result))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
