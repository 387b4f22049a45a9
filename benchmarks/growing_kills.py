"""Kill a training of a growing table in a step, an eviction or a delta's save: the resumed run ends with the same bits.

    python benchmarks/growing_kills.py --kills 100

A child trains a table with admission and eviction on ids of which some are new in every step, evicts, and saves: a full
checkpoint now and then, deltas between. It is killed by SIGKILL a random moment after a step (which makes rows), an
eviction or a save began, in turn; the next child goes on from the newest complete checkpoint, to the end or to its
own kill (``--again``). Then ids, rows, state, counts, candidates and the table's step must be, bit for bit, those of a
training that was never stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

STEPS, SAVE_EVERY, FULL_EVERY, EVICT_EVERY = 24, 2, 8, 3
PER_STEP, DIM, MAX_ROWS = 3000, 16, 4000
PHASES = ("growth", "eviction", "saving")
MOMENT = {"growth": 0.004, "eviction": 0.002, "saving": 0.02}
"""Seconds until the kill at most, about as long as each lasts."""


def table() -> tuple[Any, Any]:
    """A growing table with all its policies, and its optimizer."""
    import graph_emb as ge

    eviction = ge.LeastUsed(max_rows=MAX_ROWS, half_life=5, every=1000)
    first = ge.initializers.Uniform(seed=0)
    emb = ge.DistEmbedding(
        ge.growing(max_rows=2 * MAX_ROWS), DIM, "node", first, admission=ge.SeenAtLeast(2), eviction=eviction
    )
    return emb, ge.SparseAdam([emb], lr=0.1)


def digest(emb: Any) -> str:
    """Of all that the table is."""
    shard, found = emb.shard, hashlib.sha256()
    order = shard.in_order()
    columns = [shard.ids(), shard.weight[order].numpy(), *(own.numpy() for own in shard.saved_state().values())]
    columns += [shard.column_at(f"growth.{name}", order).numpy() for name in ("uses", "last")]
    for column in (*columns, *shard.candidates().values(), np.array([shard.step])):
        found.update(np.ascontiguousarray(column).tobytes())
    return found.hexdigest()


def train(folder: Path, pipe: Connection) -> None:
    """Go on to the end; tells when each phase begins, and what the table is then."""
    import torch

    import graph_emb as ge
    from graph_emb.checkpoint.periodic import newest

    ge.shutdown()
    ge.init(mode="local")  # a forked process must say that its tables are its own
    emb, opt = table()
    last, step = newest(folder), 0
    if last is not None:
        step = ge.load_checkpoint(last, tables=[emb], optimizers=[opt]).step
    while step < STEPS:
        rng = np.random.default_rng(step)
        ids = torch.from_numpy(rng.integers(0, 400 * (step + 2), PER_STEP))
        pipe.send(("growth", step))
        (emb(ids) - torch.arange(float(DIM))).square().sum().backward()
        opt.step()
        step += 1
        if step % EVICT_EVERY == 0:
            pipe.send(("eviction", step))
            emb.evict()
        if step % SAVE_EVERY == 0:
            pipe.send(("saving", step))
            base = None if step % FULL_EVERY == 0 or last is None else last
            last = Path(
                ge.save_checkpoint(
                    folder / str(step), tables=[emb], optimizers=[opt], step=step, keep_last=2, base=base
                )
            )
    pipe.send(("end", digest(emb)))


def killed_at(context: Any, folder: Path, phase: str, turn: int, wait: float) -> str | None:
    """Start a child; kill it so long after a phase began for the ``turn``-th time. The digest of one that ended."""
    mine, theirs = context.Pipe()
    child = context.Process(target=train, args=(folder, theirs))
    child.start()
    theirs.close()
    try:
        while True:
            word, what = mine.recv()
            if word == "end":
                child.join()
                return str(what)
            turn -= word == phase
            if word == phase and turn == 0:
                break
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode in (-signal.SIGKILL, 0), f"the child ended with {child.exitcode}"
        return None
    finally:
        mine.close()


def trials(kills: int, again: int, seed: int, folder: Path) -> Counter[str]:
    """Kill so many trainings; where each was killed last, and what lay there."""
    import torch

    import graph_emb.checkpoint.loading
    import graph_emb.growing_embedding
    import graph_emb.optimizer  # noqa: F401

    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    context = multiprocessing.get_context("fork")  # a child imports nothing; this process runs no OpenMP of its own
    chance, found = random.Random(seed), Counter[str]()
    (folder / "whole").mkdir()
    wanted = killed_at(context, folder / "whole", "never", 0, 0.0)
    for number in range(kills):
        place, ended = folder / str(number), None
        place.mkdir()
        for life in range(again):
            phase = PHASES[(number + life) % len(PHASES)]
            turn = chance.randint(
                1, STEPS // {"growth": 1, "eviction": EVICT_EVERY, "saving": SAVE_EVERY}[phase] // again
            )
            ended = killed_at(context, place, phase, turn, chance.random() * MOMENT[phase])
            if ended is not None:
                break
            torn = any(path.name.startswith(".") for path in place.iterdir())
            found[f"{phase}{', files half written' if torn else ''}"] += 1
        if ended is None:
            ended = killed_at(context, place, "never", 0, 0.0)
        if ended != wanted:
            raise SystemExit(f"training {number}: resumed to other bits; see {place}")
        found["trainings with the bits of one that was never stopped"] += 1
    return found


def main() -> None:
    """Run the trials and count where the kills fell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="trainings; default: %(default)s")
    parser.add_argument("--again", type=int, default=1, help="kills of one training; it is resumed after each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = trials(args.kills, args.again, args.seed, Path(place))
    print(tabulate(sorted(found.items()), headers=["", "number"]))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
