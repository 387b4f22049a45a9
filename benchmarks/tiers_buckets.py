"""Knowledge graphs by buckets with the table in a file: swaps, transfer, triples a second, beside a peer.

    python benchmarks/tiers_buckets.py order transfer train --folder /fast/disk --json buckets.json
    python benchmarks/tiers_buckets.py train --folder /fast/disk --disk-rate 200MB

``order``: swaps of an epoch beside BETA's and the lower bound of c - 1 new pairs a swap. ``transfer``: parts with their
state are exchanged as fast as they go, beside one thread that writes and reads as many bytes of one file in sequence.
``train``: ComplEx on random triples, table and state four times the budget: the schedule with the table in memory, with
``ge.Buckets``, and with a swap as PyTorch-BigGraph's source does it: two parts in memory, of which one is written whole
to its file and another one read whole before training goes on; its files do not stay in the kernel's cache, as memory
of the budget would not hold them. ``--disk-rate`` (as root) lets the disk give so many bytes a second to reads and as
many to writes, as a smaller one would; what it gives then is measured as in ``transfer``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.core.settings import memory_bytes
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge import training as kge
from graph_emb.models.kge.config import KGEConfig
from graph_emb.sampling.buckets import num_swaps
from graph_emb.table.tier.pages import aligned
from graph_emb.table.tier.shard import TieredShard

DIM = 128
ROW_BYTES = DIM * 8  # with Adagrad's sum
MIB = 1 << 20
PARTS, RESIDENT = 32, 6
EPOCHS = 3


@contextmanager
def disk_of(rate: int | None, folder: str) -> Iterator[None]:
    """The process in a group whose reads and writes of a folder's disk have so many bytes a second each."""
    if rate is None:
        yield
        return
    number = os.stat(folder).st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = ((place.parent if (place / "partition").exists() else place) / "dev").read_text().strip()
    for root, limits in (
        ("/sys/fs/cgroup/blkio", {f"blkio.throttle.{way}_bps_device": f"{disk} {rate}" for way in ("read", "write")}),
        ("/sys/fs/cgroup", {"io.max": f"{disk} rbps={rate} wbps={rate}"}),
    ):
        group = Path(root, f"graph-emb-{os.getpid()}")
        if Path(root, "cgroup.procs").exists():
            group.mkdir()
            try:
                for name, text in limits.items():
                    Path(group, name).write_text(text)
                Path(group, "cgroup.procs").write_text(str(os.getpid()))
                yield
            finally:
                Path(root, "cgroup.procs").write_text(str(os.getpid()))
                group.rmdir()
            return
    raise SystemExit("no group of this process may have its own share of the disk; run as root")


def order(options: argparse.Namespace) -> dict[str, Any]:
    """Swaps of an epoch, the first parts not counted."""
    found: dict[str, Any] = {}
    for parts, resident in ((8, 2), (8, 4), (16, 4), (16, 8), (32, 4), (32, 8), (32, 16), (64, 8)):
        bound = -(-(parts * (parts - 1) - resident * (resident - 1)) // (2 * (resident - 1)))
        found[f"{parts} parts, {resident} in memory"] = f"{num_swaps(parts, resident)}, bound {bound}"
    return found


def sequential(path: Path, num_bytes: int) -> tuple[float, float]:
    """Bytes a second of one thread that writes, then reads, a file, 1 MiB at a time, past the kernel's cache."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    os.posix_fallocate(descriptor, 0, num_bytes)
    memory, found = aligned(MIB), []
    memory[:] = 1
    for move in (os.pwrite, lambda file, block, at: os.preadv(file, [block], at)):
        began = time.perf_counter()
        for at in range(0, num_bytes, MIB):
            move(descriptor, memory, at)
        found.append(num_bytes / (time.perf_counter() - began))
    os.close(descriptor)
    path.unlink()
    return found[0], found[1]


def transfer(options: argparse.Namespace) -> dict[str, Any]:
    """Parts go out dirty and come in, all rows written before."""
    rows = options.entities
    placement = ge.Buckets(options.folder, rows * ROW_BYTES // 4 + 3 * rows, parts=PARTS)
    emb = ge.DistEmbedding(rows, DIM, init_func=ge.initializers.Uniform(seed=0), placement=placement)
    optimizer = ge.SparseAdagrad([emb], lr=0.1)
    shard = emb.shard
    assert isinstance(shard, TieredShard)
    bounds = np.arange(PARTS + 1) * rows // PARTS
    ranges = [(int(low), int(high)) for low, high in pairwise(bounds)]
    kept = shard.num_held(ranges)
    for low, high in ranges:
        emb.weight[low:high] = torch.ones(high - low, DIM)
    shard.flush()
    pages = shard._pages
    seconds = moved = 0.0
    for turn in range(options.rounds):
        held = [ranges[(turn * kept + k) % PARTS] for k in range(kept)]
        here = pages.frames.page_of[pages.frames.page_of >= 0]
        pages.frames.touch(here << pages.frames.shift, write=True)  # as after an epoch that touched all rows
        before = pages.stats
        began = time.perf_counter()
        emb.hold(held)
        pages._wait_through(1 << 60)
        seconds += time.perf_counter() - began
        after = pages.stats
        moved += after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written
    write, read = sequential(Path(options.folder, "floor"), 256 * MIB)
    floor = 2 / (1 / write + 1 / read)
    optimizer.close()
    return {
        "parts a turn": kept, "GB moved": moved / 1e9, "GB/s, out and in": moved / seconds / 1e9,
        "sequential GB/s, written / read": f"{write / 1e9:.2f} / {read / 1e9:.2f}", "ratio": moved / seconds / floor,
        "aim": ">= 0.85", "direct": pages.reader.file.direct,  # type: ignore[attr-defined]
    }  # fmt: skip


def graph(options: argparse.Namespace) -> KnowledgeGraph:
    rng = np.random.default_rng(0)
    sizes = (options.entities, 20, options.entities)
    triples = np.stack([rng.integers(0, num, options.triples) for num in sizes], axis=1)
    return KnowledgeGraph("random", options.entities, 20, {"train": triples})


def config(parts: int, resident: int, epochs: int = EPOCHS) -> KGEConfig:
    return KGEConfig(
        model="complex", dim=DIM, num_negatives=128, chunk_size=512, batch_size=4096, epochs=epochs, buckets=parts,
        resident=resident, valid_every=0, filter_negatives=False,
    )  # fmt: skip


class SynchronousSwaps:
    """PyTorch-BigGraph's swap: a part with its state in a file of its own, written and read whole while all wait."""

    def __init__(self, folder: str, training: Any, resident: int) -> None:
        self.folder, self.training, self.resident = folder, training, resident
        self.held: set[tuple[int, int]] = set()
        self.swaps = self.seconds = 0.0

    def hold(self, epoch: int, step: int) -> None:
        """Let the parts of a step be in memory."""
        ranges = self.training.batches.ranges(epoch, step)
        wanted = set(ranges[: self.resident])
        if wanted == self.held:
            return
        began = time.perf_counter()
        shard = self.training.model.entity.shard
        for low, high in self.held - wanted:
            self.move(low, high, [shard.weight, shard.state["sum"]], write=True)
        for low, high in wanted - self.held:
            if Path(self.folder, f"part.{low}").exists():
                self.move(low, high, [shard.weight, shard.state["sum"]], write=False)
            self.swaps += 1
        self.held = wanted
        self.seconds += time.perf_counter() - began

    def move(self, low: int, high: int, tables: list[torch.Tensor], *, write: bool) -> None:
        path = Path(self.folder, f"part.{low}")
        with path.open("wb" if write else "rb") as file:
            for table in tables:
                rows = table[low:high].numpy()
                if write:
                    rows.tofile(file)
                else:
                    file.readinto(rows)  # type: ignore[attr-defined]
            if write:
                file.flush()
                os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def trained(options: argparse.Namespace, chosen: KGEConfig, placement: Any, swaps: bool = False) -> tuple[Any, Any]:
    """The history of a training, and the peer's swaps or the table's statistics."""
    found: list[Any] = []
    original = kge._KGETraining._hold

    def hold(training: Any, epoch: int, step: int) -> None:
        if swaps:
            if not found:
                found.append(SynchronousSwaps(options.folder, training, chosen.resident_parts))
            found[0].hold(epoch, step)
        original(training, epoch, step)

    kge._KGETraining._hold = hold  # type: ignore[method-assign]
    try:
        result = kge.train_kge(graph(options), chosen, placement=placement, num_threads=options.threads)
    finally:
        kge._KGETraining._hold = original  # type: ignore[method-assign]
    if not swaps and placement != "host":
        found.append(result.model.entity.cache_stats())  # type: ignore[union-attr]
    return result.history, found[0] if found else None


def rate(history: Any) -> float:
    """Triples a second after the first epoch, in which the rows of a file have first values."""
    return (history[-1].triples - history[0].triples) / (history[-1].seconds - history[0].seconds)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """The same triples three times."""
    budget = options.entities * ROW_BYTES // 4
    host = rate(trained(options, config(PARTS, RESIDENT), "host")[0])
    history, stats = trained(options, config(PARTS, RESIDENT), ge.Buckets(options.folder, budget, parts=PARTS))
    peer, swaps = trained(options, config(8, 2), "host", swaps=True)
    ours = rate(history)
    return {
        "table and state MB": options.entities * ROW_BYTES / 1e6, "triples": options.triples,
        "triples/s, schedule in memory": host, "triples/s, ge.Buckets": ours, "of memory": ours / host,
        "aim of memory": ">= 0.7", "seconds waited, all epochs": stats.seconds_waited,
        "GB read, written": f"{stats.bytes_read / 1e9:.2f}, {stats.bytes_written / 1e9:.2f}", "misses": stats.misses,
        "triples/s, synchronous swaps of two of eight parts": rate(peer),
        "its seconds in swaps, all epochs": swaps.seconds, "ours / it": ours / rate(peer), "aim": ">= 1.5",
    }  # fmt: skip


PARTS_OF_RUN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "order": order, "transfer": transfer, "train": train,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS_OF_RUN))
    parser.add_argument("--folder", help="on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--entities", type=int, default=250_000, help="a quarter of the triples, as of Freebase86m")
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk-rate", type=memory_bytes, help="bytes a second, such as 200MB; default: all it gives")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        disk_of(options.disk_rate, folder),
    ):
        options.folder = folder
        ge.init(mode="local")
        results = {}
        for part in options.parts:
            results[part] = PARTS_OF_RUN[part](options)
            gc.collect()
            if part == "train" and options.disk_rate is not None:
                write, read = sequential(Path(folder, "floor"), 256 * MIB)
                results[part]["sequential GB/s, written / read"] = f"{write / 1e9:.2f} / {read / 1e9:.2f}"
            print(f"\n{part}\n" + tabulate(results[part].items(), floatfmt=".4g"), flush=True)
        ge.shutdown()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, default=float), encoding="utf-8")


if __name__ == "__main__":
    main()
