"""Tables in files: updates, cold reads, policies and creation, each beside its floor of the same run.

    python benchmarks/tiers.py hits misses cold zipf create memory background --folder /fast/disk --json tiers.json

``hits``: a step (pull, backward, Adagrad) whose rows are all in memory, beside the same step of a table in memory.
``misses``: random rows are read and changed that are not in memory, beside plain threads of ``pread`` and ``pwrite`` of
as many pages. ``cold``: random rows of a flushed table, beside ``numpy.memmap`` of a file with the same rows whose
cached pages were dropped. ``zipf``: ids by a power law, rows in the order of their frequency, a fifth of the table in
memory: hits of each policy beside those of the best fixed set. ``create``: a table of 50 GB. ``memory``: the peak of a
process that trains a table of eight times its budget. ``background``: steps of such a table while a checkpoint of it is
written in the background, beside those before, and the memory that it takes; rows by a power law from a ``ge.File``,
and rows of a few parts at a time from a ``ge.Buckets``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from tiers_memory import resident

import graph_emb as ge
from graph_emb.run.machine import peak_memory_mib
from graph_emb.table.tier.frames import Frames
from graph_emb.table.tier.pages import BLOCK, aligned
from graph_emb.table.tier.shard import TieredShard

DIM = 128
MIB = 1 << 20
THREADS = 8


def made(num_rows: int, placement: Any, lr: float = 0.1) -> tuple[ge.DistEmbedding, Any]:
    """A table with its optimizer."""
    emb = ge.DistEmbedding(num_rows, DIM, init_func=ge.initializers.Uniform(seed=0), placement=placement)
    return emb, ge.SparseAdagrad([emb], lr=lr)


def step(emb: ge.DistEmbedding, opt: Any, ids: torch.Tensor, grads: torch.Tensor) -> float:
    """Seconds of pull, backward and update."""
    began = time.perf_counter()
    emb(ids).backward(grads)
    opt.step()
    return time.perf_counter() - began


def pages_of(emb: ge.DistEmbedding) -> tuple[TieredShard, Any]:
    shard = emb.shard
    assert isinstance(shard, TieredShard)
    return shard, shard._pages


def dirtied(emb: ge.DistEmbedding) -> None:
    """Write every row once, and every page."""
    for start in range(0, emb.num_embeddings, 1 << 16):
        ids = torch.arange(start, min(emb.num_embeddings, start + (1 << 16)))
        emb.weight[ids] = emb.weight[ids]
    pages_of(emb)[0].flush()


def hits(options: argparse.Namespace) -> dict[str, Any]:
    """All rows in memory; the two tables take turns."""
    num, batch = options.rows, 40_960
    pair = [made(num, "host"), made(num, ge.File(options.folder, 2 * num * DIM * 4 * 2))]
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, num, (batch,), generator=generator) for _ in range(options.rounds)]
    grads = torch.randn(batch, DIM, generator=generator)
    for emb, opt in pair:
        for start in range(0, num, batch):  # each row once: fresh memory is slow on a virtual machine
            ids = torch.arange(start, min(num, start + batch))
            step(emb, opt, ids, grads[: len(ids)])
    times = np.array([[step(*one, ids, grads) for one in pair] for ids in batches])
    stats = pair[1][0].cache_stats()
    ratios = times[:, 1] / times[:, 0]
    rows = float(np.mean([len(ids.unique()) for ids in batches]))
    return {
        "host ms": np.median(times[:, 0]) * 1e3, "file ms": np.median(times[:, 1]) * 1e3,
        "ratio": float(np.median(ratios)), "aim": "<= 1.15", "rows/s in memory": rows / np.median(times[:, 0]),
        "misses after the first touch": stats.misses - pages_of(pair[1][0])[1].frames.resident,
    }  # fmt: skip


def plain_floor(path: Path, pages: list[np.ndarray], page_bytes: int) -> float:
    """Seconds of plain threads that read pages and write them back in place, as many threads as the cache's."""
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)

    def move(some: np.ndarray, write: bool, memory: np.ndarray) -> None:
        for page in some.tolist():
            if write:
                os.pwrite(descriptor, memory, BLOCK + page * page_bytes)
            else:
                os.preadv(descriptor, [memory], BLOCK + page * page_bytes)

    memory = [aligned(page_bytes) for _ in range(THREADS)]
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for batch in pages:
            shares = np.array_split(np.sort(batch), THREADS)
            for write in (True, False):
                list(pool.map(move, shares, [write] * THREADS, memory))
    os.close(descriptor)
    return time.perf_counter() - began


def misses(options: argparse.Namespace) -> dict[str, Any]:
    """Random rows of a table of 32 times the budget: a miss evicts a dirty page, and costs two transfers."""
    num = options.rows
    emb, opt = made(num, ge.File(options.folder, num * DIM * 8 // 32))
    dirtied(emb)
    _, cache = pages_of(emb)
    batch = min(1024, cache.frames.capacity // 4)
    generator = torch.Generator().manual_seed(1)
    grads = torch.randn(batch, DIM, generator=generator)
    for _ in range(cache.frames.capacity // batch + 2):  # until what is in memory is dirty
        step(emb, opt, torch.randint(0, num, (batch,), generator=generator), grads)
    before = emb.cache_stats()
    batches = [torch.randint(0, num, (batch,), generator=generator) for _ in range(options.rounds)]
    ours = sum(step(emb, opt, ids, grads) for ids in batches)
    after = emb.cache_stats()
    moved = after.misses - before.misses
    layout = cache.reader.file.layout
    pages = [
        np.unique(np.random.default_rng(k).integers(0, cache.in_file.size, moved // len(batches)))
        for k in range(len(batches))
    ]
    floor = plain_floor(cache.reader.file.path, pages, layout.page_bytes) * moved / sum(map(len, pages))
    return {
        "pages": moved, "dirty writes": after.dirty_writes - before.dirty_writes, "page bytes": layout.page_bytes,
        "direct": cache.reader.file.direct, "ours pages/s": moved / ours, "floor pages/s": moved / floor,
        "ratio": floor / ours, "aim": ">= 0.8", "transfers/s of the floor": 2 * moved / floor,
    }  # fmt: skip


def cold(options: argparse.Namespace) -> dict[str, Any]:
    """Random rows of a table that lies in the file alone."""
    num, batch = options.rows, 4096
    emb = ge.DistEmbedding(
        num, DIM, init_func=ge.initializers.Uniform(seed=0), placement=ge.File(options.folder, 64 * MIB)
    )
    dirtied(emb)
    path = Path(options.folder, "rows.mmap")
    rows = np.memmap(path, np.float32, "w+", shape=(num, DIM))
    for start in range(0, num, 1 << 16):
        stop = min(num, start + (1 << 16))
        rows[start:stop] = emb.weight[start:stop].numpy()
    rows.flush()
    generator, times = torch.Generator().manual_seed(2), []
    for _ in range(options.rounds // 2):
        ids = torch.randint(0, num, (batch,), generator=generator)
        del rows
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        rows = np.memmap(path, np.float32, "r", shape=(num, DIM))
        began = time.perf_counter()
        theirs = rows[ids.numpy()]
        middle = time.perf_counter()
        with torch.no_grad():
            ours = emb(ids)
        times.append((middle - began, time.perf_counter() - middle))
        assert np.array_equal(theirs, ours.numpy())
    del rows
    path.unlink()
    found = np.median(np.array(times), axis=0)
    return {
        "memmap us/row": found[0] / batch * 1e6, "ours us/row": found[1] / batch * 1e6, "ratio": found[0] / found[1],
        "aim": ">= 5",
    }  # fmt: skip


def zipf(options: argparse.Namespace) -> dict[str, Any]:
    """Hits of each policy by touch on the residency map alone, beside the best fixed set of pages."""
    num, batch, found = options.zipf_rows, 40_960, {}
    layout_rows = 4
    num_pages = num // layout_rows
    for exponent in (1.05, 1.2, 1.4):
        weights = 1.0 / np.arange(1, num + 1) ** exponent
        sums = np.cumsum(weights) / weights.sum()
        best = float(sums[num_pages // 5 * layout_rows - 1])
        for policy in ("lru", "lfu"):
            frames = Frames(num_pages, num_pages // 5, num_pages // 5, 2, policy)
            rng, rows_hit, asked = np.random.default_rng(0), 0, 0
            for k in range(options.zipf_batches):
                rows = np.minimum(np.searchsorted(sums, rng.random(batch)), num - 1)
                touched = frames.touch(rows, True)
                chosen = frames.victims(frames.excess(len(touched.missing)))
                frames.remove(chosen, 0)
                frames.insert(touched.missing, frames.take(len(touched.missing)), write=True, pin=False)
                if k >= options.zipf_batches // 2:
                    rows_hit, asked = rows_hit + touched.hit_rows, asked + batch
            found[f"{exponent} {policy}"] = f"{rows_hit / asked:.4f} / best {best:.4f} = {rows_hit / asked / best:.3f}"
    return {**found, "aim": ">= 0.98"}


def create(options: argparse.Namespace) -> dict[str, Any]:
    """A table of 50 GB, or as much as the disk has."""
    num = min(50_000_000_000, shutil.disk_usage(options.folder).free * 9 // 10) // (DIM * 4)
    began = time.perf_counter()
    emb = ge.DistEmbedding(
        num, DIM, init_func=ge.initializers.Uniform(seed=0), placement=ge.File(options.folder, "512MiB")
    )
    seconds = time.perf_counter() - began
    return {
        "GB": num * DIM * 4 / 1e9,
        "seconds": seconds,
        "aim": "<= 1",
        "pages written": emb.cache_stats().bytes_written,
    }


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """The peak of a process of its own, above that of one that trains a table of 1,000 rows."""
    budget = 256 * MIB
    peaks = []
    for num in (1_000, budget * 8 // (DIM * 8)):
        call = [sys.executable, __file__, "_train", "--folder", options.folder, "--rows", str(num)]
        peaks.append(float(subprocess.run(call, check=True, capture_output=True, text=True).stdout.split()[-1]))
    extra = peaks[1] - peaks[0]
    limit = budget / MIB * 1.1 + 64
    return {
        "budget MiB": budget / MIB,
        "peak above a small table MiB": extra,
        "aim": f"<= {limit:.0f}",
        "whole peak MiB": peaks[1],
    }


def _train(options: argparse.Namespace) -> None:
    """Steps over random rows, a scan, and the peak."""
    emb, opt = made(options.rows, ge.File(options.folder, 256 * MIB))
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(8192, DIM, generator=generator)
    for _ in range(60):
        step(emb, opt, torch.randint(0, options.rows, (8192,), generator=generator), grads)
    for start in range(0, options.rows, 1 << 16):
        emb.weight[start : start + (1 << 16)].sum()
    print(peak_memory_mib())


def turns_of_file(emb: ge.DistEmbedding, batch: int) -> Iterator[torch.Tensor]:
    """Batches by a power law, rows in the order of their frequency."""
    num, rng = emb.num_embeddings, np.random.default_rng(0)
    sums = np.cumsum(1.0 / np.arange(1, num + 1) ** 1.2)
    while True:
        yield torch.from_numpy(np.minimum(np.searchsorted(sums, rng.random(batch) * sums[-1]), num - 1))


def turns_of_buckets(emb: ge.DistEmbedding, batch: int) -> Iterator[torch.Tensor]:
    """Batches of two of 32 parts, a fortieth of whose rows is in each; the parts of the next ones come meanwhile."""
    num, parts, rng = emb.num_embeddings, 32, np.random.default_rng(0)
    order = [int(k) for _ in range(1000) for k in rng.permutation(parts)]
    for k in range(len(order) - 3):
        ranges = [(part * num // parts, (part + 1) * num // parts) for part in order[k : k + 3]]
        emb.shard.hold(ranges)  # type: ignore[attr-defined]
        for _ in range(40 * num // parts // batch):
            yield torch.from_numpy(np.concatenate([rng.integers(*one, batch // 2) for one in ranges[:2]]))


def background(options: argparse.Namespace) -> dict[str, Any]:
    """A checkpoint in the background of a table of eight times the budget."""
    num, batch, found = options.rows, 8192, {}
    memory = num * DIM * 8 // 8
    for name, placement, turns in (
        ("file", ge.File(options.folder, memory), turns_of_file),
        ("buckets", ge.Buckets(options.folder, memory, parts=32), turns_of_buckets),
    ):
        emb, opt = made(num, placement)
        dirtied(emb)
        grads, batches = torch.randn(batch, DIM), turns(emb, batch)
        began = time.perf_counter()
        before = rate(emb, opt, batches, grads, lambda began=began: time.perf_counter() - began > options.seconds)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
        held, began = resident(), time.perf_counter()
        pending: Any = ge.save_checkpoint(Path(options.folder, name), tables=[emb], optimizers=[opt], background=True)
        pause = time.perf_counter() - began
        meanwhile = rate(emb, opt, batches, grads, lambda pending=pending: pending.done)
        pending.wait()
        seconds = time.perf_counter() - began
        found |= {
            f"{name}: steps/s before": before, f"{name}: meanwhile": meanwhile, f"{name}: ratio": meanwhile / before,
            f"{name}: seconds of the checkpoint": seconds, f"{name}: of them nothing trains": pause,
            f"{name}: MiB more": (resident("VmHWM") - held) / MIB, f"{name}: budget MiB": memory / MIB,
        }  # fmt: skip
        del emb, opt, batches
        gc.collect()
    return {**found, "aims": "ratio >= 0.7, MiB more <= 5 % of the budget + 64"}


def rate(
    emb: ge.DistEmbedding, opt: Any, batches: Iterator[torch.Tensor], grads: torch.Tensor, done: Callable[[], bool]
) -> float:
    """Steps a second until it is done."""
    began, steps = time.perf_counter(), 0
    while not done():
        step(emb, opt, next(batches), grads)
        steps += 1
    return steps / (time.perf_counter() - began)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "hits": hits, "misses": misses, "cold": cold, "zipf": zipf, "create": create, "memory": memory,
    "background": background,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "_train"])
    parser.add_argument("--folder", help="on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps before a checkpoint in the background")
    parser.add_argument("--zipf-rows", type=int, default=10_000_000)
    parser.add_argument("--zipf-batches", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = folder
        ge.init(mode="local")
        if options.parts == ["_train"]:
            _train(options)
            return
        results = {}
        for part in options.parts:
            results[part] = PARTS[part](options)
            gc.collect()
            print(f"\n{part}\n" + tabulate(results[part].items(), floatfmt=".4g"))
        ge.shutdown()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, default=float), encoding="utf-8")


if __name__ == "__main__":
    main()
