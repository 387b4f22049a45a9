"""Save and load a table with Adam state beside the plain write and read of the same bytes, in one run.

    python benchmarks/checkpoint.py --rows 2000000 --dim 128 --json runs/checkpoint.json

The plain write puts the weight and both moments into one file, 16 MB at a time by one thread, then fsync; the save
ends with everything synced too. Before each cold read the files' pages are dropped from the page cache
(posix_fadvise); warm reads follow another read of the same file. The plain read goes into the tables' own memory, as
the load does, which besides checks every checksum before it changes a row. Rounds alternate; medians are printed.
Extra memory is the highest resident size during the call above the one before it (VmHWM, reset by clear_refs).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 16 << 20
SAVE_AIM, LOAD_AIM, MEMORY_AIM = 0.7, 0.6, 128.0


def plain_write(path: Path, blocks: list[Any]) -> None:
    """One file, synced."""
    with path.open("wb", buffering=0) as stream:
        for block in blocks:
            view = memoryview(block)
            for start in range(0, len(view), PIECE):
                piece = view[start : start + PIECE]
                while len(piece):
                    piece = piece[stream.write(piece) :]
        os.fsync(stream.fileno())


def plain_read(path: Path, blocks: list[Any]) -> None:
    """The file into memory that is there."""
    with path.open("rb", buffering=0) as stream:
        for block in blocks:
            view = memoryview(block)
            while len(view):
                view = view[stream.readinto(view[:PIECE]) :]


def forget(folder: Path) -> None:
    """Drop the pages of all files of a folder from the page cache; they are synced already."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def memory(word: str) -> int:
    """A line of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(word))


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and MB of resident memory above what was there."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins again at VmRSS
    before, began = memory("VmRSS"), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return seconds, (memory("VmHWM") - before) / 1e6


def run(rows: int, dim: int, repeats: int, shuffled: bool, folder: Path) -> dict[str, Any]:
    """Medians of all kinds of reads and writes."""
    import graph_emb as ge

    ids = np.random.default_rng(0).permutation(rows) if shuffled else None
    emb = ge.DistEmbedding(rows, dim, "node", ge.initializers.Uniform(seed=0), original_ids=ids)
    emb.original_ids.find(np.zeros(1, np.int64))  # a map in memory sorts itself once
    opt = ge.SparseAdam([emb], lr=0.1)
    held = [emb.shard.weight, emb.shard.state["exp_avg"], emb.shard.state["exp_avg_sq"]]
    blocks = [tensor.reshape(-1).numpy().view("u1") for tensor in held]
    num_bytes = sum(len(block) for block in blocks)
    plain, saved = folder / "plain.bin", folder / "saved"
    small = ge.DistEmbedding(64, dim, "small")
    ge.save_checkpoint(folder / "first", tables=[small])  # compiles the checksum
    ge.load_checkpoint(folder / "first", tables=[small])

    def save() -> None:
        ge.save_checkpoint(saved, tables=[emb], optimizers=[opt])

    def load() -> None:
        ge.load_checkpoint(saved, tables=[emb], optimizers=[opt])

    works: dict[str, Callable[[], object]] = {
        "plain write": lambda: plain_write(plain, blocks),
        "save": save,
        "plain read cold": lambda: plain_read(plain, blocks),
        "load cold": load,
        "plain read warm": lambda: plain_read(plain, blocks),
        "load warm": load,
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    extra: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            if name == "plain write":
                plain.unlink(missing_ok=True)
            if name == "save":  # new files, as the plain write makes one
                shutil.rmtree(saved, ignore_errors=True)
            if name.endswith("cold"):
                forget(folder)
            if name == "load warm":
                load()
            took, more = measured(work)
            seconds[name].append(took)
            extra[name].append(more)
            if name.endswith("write") or name == "save":
                os.sync()
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rows": rows,
        "dim": dim,
        "shuffled": shuffled,
        "bytes": num_bytes,
        "repeats": repeats,
        "threads": os.cpu_count(),
        "seconds": {name: round(value, 3) for name, value in median.items()},
        "gb_per_s": {name: round(num_bytes / value / 1e9, 3) for name, value in median.items()},
        "save_to_plain": round(median["plain write"] / median["save"], 3),
        "load_to_plain_cold": round(median["plain read cold"] / median["load cold"], 3),
        "load_to_plain_warm": round(median["plain read warm"] / median["load warm"], 3),
        "extra_mb": {name: round(max(values), 1) for name, values in extra.items()},
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shuffled", action="store_true", help="original ids in random order, as after a partition")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        result = run(args.rows, args.dim, args.repeats, args.shuffled, Path(made))
    print(f"{args.rows} x {args.dim} float32 with Adam state, {result['bytes'] / 1e9:.2f} GB, {args.repeats} rounds")
    for name, value in result["seconds"].items():
        speed, more = result["gb_per_s"][name], result["extra_mb"][name]
        print(f"{name:16} {value:8.3f} s  {speed:7.3f} GB/s  {more:7.1f} MB extra")
    print(f"save at {result['save_to_plain']:.2f} of the plain write (aim {SAVE_AIM})")
    print(f"load at {result['load_to_plain_cold']:.2f} of the plain read, cold (aim {LOAD_AIM})")
    print(f"load at {result['load_to_plain_warm']:.2f} of the plain read, warm")
    extra = max(result["extra_mb"][name] for name in ("save", "load cold", "load warm"))
    print(f"extra memory {extra:.0f} MB (aim {MEMORY_AIM:.0f})")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
