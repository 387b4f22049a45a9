"""Kill a training of a growing table in a step, an eviction or a delta's save: the resumed run ends with the same bits.

    python benchmarks/growing_kills.py --kills 100
    python benchmarks/growing_kills.py --kills 100 --mode kvstore --trainers 2

A job trains a table with admission and eviction on ids of which some are new in every step, evicts, and saves: a full
checkpoint now and then, deltas between. One of its processes, drawn at random from the trainers and, in kvstore mode,
the server, is killed by SIGKILL a random moment after a step (which makes rows), an eviction or a save began, in turn;
the others must end by themselves. The next job goes on from the newest complete checkpoint, to the end or to its own
kill (``--again``). Then ids, rows, state, counts, candidates and the table's step must be, bit for bit, those of a job
that was never stopped. No row is pushed by two trainers, and a barrier ends each step.
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

STEPS, SAVE_EVERY, FULL_EVERY, EVICT_EVERY = 24, 2, 8, 3
PER_STEP, DIM, MAX_ROWS = 3000, 16, 4000
PHASES = ("growth", "eviction", "saving")
MOMENT = {"growth": 0.004, "eviction": 0.002, "saving": 0.02}
"""Seconds until the kill at most, about as long as each lasts in local mode; thrice that in kvstore mode."""
PATIENCE = 60
"""Seconds after a kill in which the others end."""


def table() -> tuple[Any, Any]:
    """A growing table with all its policies, and its optimizer."""
    import graph_emb as ge

    eviction = ge.LeastUsed(max_rows=MAX_ROWS, half_life=5, every=1000)
    first = ge.initializers.Uniform(seed=0)
    emb = ge.DistEmbedding(
        ge.growing(max_rows=2 * MAX_ROWS), DIM, "node", first, admission=ge.SeenAtLeast(2), eviction=eviction
    )
    return emb, ge.SparseAdam([emb], lr=0.1)


def digest(transport: Any, emb: Any) -> str:
    """Of all that the table is, in the reach of this process: with one server, all of it for trainer 0."""
    shard, found = emb.shard, hashlib.sha256()
    for rows in transport.rows(emb.name):
        found.update(rows.ids.tobytes())
        for column in ("weight", *sorted(shard.state_specs), "growth.uses", "growth.last"):
            if column not in shard.state_specs or shard.state_specs[column].kind != "table":
                found.update(rows.read(column, 0, rows.num_rows).contiguous().numpy().tobytes())
    for column in (*shard.candidates().values(), np.array([shard.step])):
        found.update(np.ascontiguousarray(column).tobytes())
    return found.hexdigest()


def train(folder: Path, pipe: Connection, rank: int, trainers: int, options: dict[str, Any]) -> None:
    """Go on to the end; trainer 0 tells when each phase begins, and what the table is at the end."""
    import torch

    import graph_emb as ge
    from graph_emb.checkpoint.periodic import newest

    ge.shutdown()
    transport = ge.init(**options)  # a forked process must say that its tables are its own
    tell = pipe.send if rank == 0 else lambda message: None
    emb, opt = table()
    last, step = newest(folder), 0
    if last is not None:
        step = ge.load_checkpoint(last, tables=[emb], optimizers=[opt]).step
    while step < STEPS:
        rng = np.random.default_rng(step)
        ids = torch.from_numpy(rng.integers(0, 400 * (step + 2), PER_STEP))
        ids = ids[ids % trainers == rank]
        tell(("growth", step))
        (emb(ids) - torch.arange(float(DIM))).square().sum().backward()
        opt.step()
        transport.flush()
        transport.barrier()
        step += 1
        if step % EVICT_EVERY == 0:
            tell(("eviction", step))
            emb.evict()
        if step % SAVE_EVERY == 0:
            tell(("saving", step))
            base = None if step % FULL_EVERY == 0 or last is None else last
            last = Path(
                ge.save_checkpoint(
                    folder / str(step), tables=[emb], optimizers=[opt], step=step, keep_last=2, base=base
                )
            )
    transport.barrier()
    tell(("end", digest(transport, emb)))
    ge.shutdown()


def quietly(function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Without the errors that peers of a killed process end with."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    function(*args, **kwargs)


def job(context: Any, folder: Path, trainers: int, mode: str) -> tuple[list[Any], Connection]:
    """Start the processes of a job, trainer 0 first; where that one tells."""
    from graph_emb.transport import guard
    from graph_emb.transport.kvstore import serve
    from graph_emb.transport.kvstore.layout import free_ports

    mine, theirs = context.Pipe()
    if mode == "local":
        processes = [context.Process(target=train, args=(folder, theirs, 0, 1, {"mode": "local"}))]
    else:
        hosts, token = [f"127.0.0.1:{free_ports(1)}"], guard.new_token()
        options = [{"mode": "kvstore", "hosts": hosts, "rank": rank, "token": token} for rank in range(trainers)]
        processes = [
            context.Process(target=quietly, args=(train, folder, theirs, rank, trainers, options[rank]))
            for rank in range(trainers)
        ]
        processes.append(context.Process(target=quietly, args=(serve, 0, hosts, 1, trainers), kwargs={"token": token}))
    for process in processes:
        process.start()
    theirs.close()
    return processes, mine


def killed_at(
    context: Any,
    folder: Path,
    phase: str,
    turn: int,
    wait: float,
    victim: int,
    trainers: int,
    mode: str,
) -> str | None:
    """Start a job; kill a process so long after a phase began for the ``turn``-th time. The digest of one that ended.

    Args:
        victim: The trainer, or the server, which is the last of a job.
    """
    processes, mine = job(context, folder, trainers, mode)
    try:
        while True:
            word, what = mine.recv()
            if word == "end":
                break
            turn -= word == phase
            if word == phase and turn == 0:
                time.sleep(wait)
                os.kill(processes[victim].pid, signal.SIGKILL)
                break
        for process in processes:
            process.join(PATIENCE)
        codes = [process.exitcode for process in processes]
        if word == "end":
            assert not any(codes), f"a job that was not killed ended with {codes}"
            return str(what)
        assert codes[victim] in (-signal.SIGKILL, 0), f"the killed process ended with {codes[victim]}"
        assert None not in codes, f"processes go on {PATIENCE} s after one was killed: {codes}"
        return None
    finally:
        mine.close()
        for process in processes:
            if process.is_alive():
                process.kill()


def trials(kills: int, again: int, seed: int, folder: Path, trainers: int, mode: str) -> Counter[str]:
    """Kill so many trainings; where each was killed last, and what lay there."""
    import torch

    import graph_emb.checkpoint.loading
    import graph_emb.growing_embedding
    import graph_emb.optimizer
    import graph_emb.transport.kvstore  # noqa: F401

    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    context = multiprocessing.get_context("fork")  # a child imports nothing; this process runs no OpenMP of its own
    chance, found = random.Random(seed), Counter[str]()
    (folder / "whole").mkdir()
    wanted = killed_at(context, folder / "whole", "never", 0, 0.0, 0, trainers, mode)
    for number in range(kills):
        place, ended = folder / str(number), None
        place.mkdir()
        for life in range(again):
            phase = PHASES[(number + life) % len(PHASES)]
            turn = chance.randint(
                1, STEPS // {"growth": 1, "eviction": EVICT_EVERY, "saving": SAVE_EVERY}[phase] // again
            )
            victim = chance.randrange(trainers + 1) if mode == "kvstore" else 0
            wait = chance.random() * MOMENT[phase] * (3 if mode == "kvstore" else 1)
            ended = killed_at(context, place, phase, turn, wait, victim, trainers, mode)
            if ended is not None:
                break
            torn = any(path.name.startswith(".") for path in place.iterdir())
            found[f"{phase}{', files half written' if torn else ''}"] += 1
            if mode == "kvstore":
                found["of the server" if victim == trainers else f"of trainer {victim}"] += 1
        if ended is None:
            ended = killed_at(context, place, "never", 0, 0.0, 0, trainers, mode)
        if ended != wanted:
            raise SystemExit(f"training {number}: resumed to other bits; see {place}")
        found["trainings with the bits of one that was never stopped"] += 1
    return found


def main() -> None:
    """Run the trials and count where the kills fell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="trainings; default: %(default)s")
    parser.add_argument("--again", type=int, default=1, help="kills of one training; it is resumed after each")
    parser.add_argument("--mode", default="local", choices=["local", "kvstore"])
    parser.add_argument("--trainers", type=int, default=1, help="of kvstore mode; with one server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.trainers < 1 or (args.trainers > 1 and args.mode == "local"):
        parser.error(f"--trainers {args.trainers} with --mode {args.mode}: local mode has one trainer")
    with tempfile.TemporaryDirectory() as place:
        found = trials(args.kills, args.again, args.seed, Path(place), args.trainers, args.mode)
    print(tabulate(sorted(found.items()), headers=["", "number"]))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
