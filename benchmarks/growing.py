"""Growing tables beside tables of a fixed size: the map of ids, steps, pauses while a table grows, memory.

    python benchmarks/growing.py --json growing.json

The map is measured beside a floor of as many random loads of 16 bytes, asked for ahead; steps of both tables take turns
on the same ids. Ratios are medians over rounds. A virtual machine may take milliseconds to lend a page that it has not
lent before, which a fixed table pays when it is made: all memory is touched once before anything is measured; --cold
leaves that out.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.core.compiled import mix64, njit
from graph_emb.graph.hash_book import keys_of
from graph_emb.table.id_map import AHEAD, IdMap
from graph_emb.table.row_memory import prefetch_to_read

LONGEST = 10
"""Steps of which the reason is told."""


@njit(nogil=True)
def loads(ids: np.ndarray, memory: np.ndarray) -> int:
    """The floor of a look-up: a load at a hashed place of each id."""
    total, mask = 0, len(memory) - 1
    for i in range(len(ids) + AHEAD):
        if i < len(ids):
            prefetch_to_read(memory, np.int64(mix64(np.uint64(ids[i])) & np.uint64(mask)))
        if i >= AHEAD:
            total += memory[np.int64(mix64(np.uint64(ids[i - AHEAD])) & np.uint64(mask)), 1]
    return total


def nanoseconds(call: Callable[..., Any], ids: np.ndarray, *others: np.ndarray) -> float:
    """Of each id."""
    start = time.perf_counter()
    call(ids, *others)
    return (time.perf_counter() - start) / len(ids) * 1e9


def measure_map(sizes: list[int], batch: int, repeats: int) -> list[dict[str, Any]]:
    """Look-ups and insertions of keys of ids anywhere in int64, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    found = []
    for size in sizes:
        ids = keys_of(rng.integers(-(2**63), 2**63 - 1, size))
        made, inserted = IdMap(size, "map"), []
        for start in range(0, size, batch):
            piece = ids[start : start + batch]
            inserted.append(nanoseconds(made.add, piece, np.arange(start, start + len(piece))))
        memory = np.zeros((1 << int(2 * size - 1).bit_length(), 2), np.int64)  # about as much as the map has
        memory[:, 1] = 1
        rounds = []
        for _ in range(repeats):
            asked = ids[rng.integers(0, size, batch)]
            rounds.append((nanoseconds(made.find, asked), nanoseconds(loads, asked, memory)))
        steps = np.array(inserted[len(inserted) // 16 :]) * batch / 1e6
        found.append(
            {
                "ids": size,
                "look-up, ns": statistics.median(ours for ours, _ in rounds),
                "/ floor": statistics.median(ours / floor for ours, floor in rounds),
                "insertion, ns": statistics.mean(inserted),
                "longest call, ms": float(steps.max()),
                "median call, ms": float(np.median(steps)),
                "bytes an id": made.num_bytes() / size,
            }
        )
    torch.set_num_threads(threads)
    return found


def lend(num_bytes: int) -> None:
    """Have the machine lend memory to this process, and give it back to the system."""
    np.ones(num_bytes, np.uint8)


def step_of(emb: ge.DistEmbedding, opt: ge.SparseOptimizer, ids: torch.Tensor) -> float:
    start = time.perf_counter()
    rows = emb(ids)
    rows.backward(torch.ones_like(rows))
    opt.step()
    return (time.perf_counter() - start) * 1e3


def measure_steps(rows: int, dim: int, batch: int, repeats: int) -> dict[str, Any]:
    """Adagrad steps of both tables, without new ids and with a tenth of them new."""
    rng, init = np.random.default_rng(0), ge.initializers.Uniform(seed=0)
    fixed = ge.DistEmbedding(rows, dim, "fixed", init)
    growing = ge.DistEmbedding(ge.growing(2 * rows), dim, "growing", init)
    both = [(table, ge.SparseAdagrad([table], lr=0.01)) for table in (fixed, growing)]
    for table, opt in both:
        for start in range(0, rows, 1 << 17):  # every row is there, and visited
            ids = torch.arange(start, min(rows, start + (1 << 17)))
            opt.update(ids, torch.ones(len(ids), dim), table)
    rounds: list[list[float]] = []
    fresh = rows
    for _ in range(repeats + 3):
        ids = torch.from_numpy(rng.integers(0, rows, batch))
        some = ids.clone()
        some[: batch // 10] = torch.arange(fresh, fresh + batch // 10)
        fresh += batch // 10
        rounds.append([step_of(*both[0], ids), step_of(*both[1], ids), step_of(*both[1], some)])
    rounds = rounds[3:]
    return {
        "rows": rows,
        "fixed, ms": statistics.median(r[0] for r in rounds),
        "growing, ms": statistics.median(r[1] for r in rounds),
        "/ fixed (aim 1.20)": statistics.median(r[1] / r[0] for r in rounds),
        "a tenth new, ms": statistics.median(r[2] for r in rounds),
        "/ fixed (aim 1.5)": statistics.median(r[2] / r[0] for r in rounds),
    }


def work_of(milliseconds: float, clock: Callable[[], float]) -> Callable[[], object]:
    """Work of numpy alone that takes about as long on one thread: sorts of one array."""
    values = np.random.default_rng(2).random(1 << 15)
    sorted_ = values.copy()

    def sort(times: int) -> None:
        for _ in range(times):
            sorted_[:] = values
            sorted_.sort()

    start = clock()
    sort(20)
    return partial(sort, max(1, round(milliseconds / ((clock() - start) / 20 * 1e3))))


def measure_growth(
    first: int, last: int, dim: int, batch: int, clock: Callable[[], float]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Steps of new ids alone while a table grows: memory, and its pauses.

    In the same turns a fixed table makes the same steps, and numpy works as long as a growing step: what these two
    show is the machine's.
    """
    ids = torch.from_numpy(np.random.default_rng(1).permutation(last))
    grads = torch.ones(batch, dim)
    fixed = ge.DistEmbedding(last, dim, "as many")
    others = ge.SparseRowAdagrad([fixed], lr=0.01)
    others.update(ids, torch.ones(1, dim).expand(last, dim), fixed)
    before = psutil.Process().memory_info().rss
    emb = ge.DistEmbedding(ge.growing(last), dim, "grown")
    opt = ge.SparseRowAdagrad([emb], lr=0.01)
    found: dict[str, list[list[float]]] = {"growing table": [], "fixed table": [], "numpy, as long": []}
    made, alone = 0, None
    while made + batch <= last:
        asked = ids[made : made + batch]
        calls = [partial(opt.update, asked * 7919, grads, emb), partial(others.update, asked, grads, fixed)]
        if made >= first:
            alone = alone or work_of(statistics.median(step[0] for step in found["growing table"][2:]), clock)
            calls.append(alone)
        for own, call in zip(found.values(), calls, strict=False):
            own.append(paused(call, clock))
        made += batch
    size = emb.shard.num_bytes()
    sizes = {
        "rows": f"{first:,} to {made:,} x {dim}",
        "map and numbers, bytes a row (aim 48)": (size - made * (4 * dim + 4)) / made,
        "memory / (rows + map) (aim 1.05)": (psutil.Process().memory_info().rss - before) / size,
    }
    return sizes, [pauses(name, np.array(own[-len(found["numpy, as long"]) :])) for name, own in found.items()]


def paused(call: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Milliseconds of a step, pages that it was the first to touch, and whether the host took a processor away."""
    pages, stolen = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, psutil.cpu_times().steal
    start = clock()
    call()
    took = (clock() - start) * 1e3
    fresh = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    return [took, fresh, float(psutil.cpu_times().steal > stolen)]


def pauses(name: str, steps: np.ndarray) -> dict[str, Any]:
    """Of steps (N, 3) as ``paused`` tells them; of the longest, why."""
    times, fresh, stolen = steps.T
    median, longest = np.median(times), np.argsort(times)[-LONGEST:]
    taken, touched = stolen[longest] > 0, fresh[longest] > np.median(fresh)
    return {
        "steps": name,
        "median, ms": median,
        "p99 / median": np.percentile(times, 99) / median,
        "p99.9 / median (aim 2)": np.percentile(times, 99.9) / median,
        f"of the longest {LONGEST}: a processor taken by the host": int(taken.sum()),
        "else more fresh pages than most steps": int((touched & ~taken).sum()),
    }


def measure_delta(rows: int, dim: int, touched: int) -> dict[str, Any]:
    """A full checkpoint, and a delta after a step on some rows: bytes beside those of the rows and their state."""
    emb = ge.DistEmbedding(ge.growing(rows), dim, "saved", ge.initializers.Uniform(seed=0))
    opt = ge.SparseAdagrad([emb], lr=0.01)
    opt.update(torch.arange(rows), torch.ones(1, dim).expand(rows, dim), emb)
    found: dict[str, Any] = {"rows": f"{rows:,} x {dim}", "touched": touched}
    with tempfile.TemporaryDirectory() as folder:
        base = None
        for name in ("full", "delta"):
            start = time.perf_counter()
            base = ge.save_checkpoint(Path(folder, name), tables=[emb], optimizers=[opt], base=base)
            found[f"{name}, s"] = time.perf_counter() - start
            opt.update(torch.randperm(rows)[:touched], torch.ones(touched, dim), emb)
        files = [path.stat().st_size for path in Path(folder, "delta").rglob("*") if path.is_file()]
        found["bytes / touched rows (aim 1.1)"] = sum(files) / (touched * 2 * 4 * dim)
    return found


def measure_demoted(rows: int, dim: int, batch: int, repeats: int) -> list[dict[str, Any]]:
    """Steps of a table that keeps an eighth of its rows in memory, beside one that keeps all, on the same ids in turns.

    A share of the ids of a step lies in the file; the others are of the last used rows. The rows that are trained and
    those of the end are the same.
    """
    kept, process, found = rows // 8, psutil.Process(), []
    with tempfile.TemporaryDirectory() as folder:
        place = ge.File(folder, memory=kept * dim * 8)
        tables, taken = [], []
        for name, options in (
            ("all in memory", {}),
            ("demoted", {"eviction": ge.LeastRecent(max_rows=kept), "on_evict": "demote", "placement": place}),
        ):
            before = process.memory_info().rss
            emb = ge.DistEmbedding(ge.growing(max_rows=rows), dim, name, ge.initializers.Uniform(seed=0), **options)
            tables.append((emb, ge.SparseAdagrad([emb], lr=0.1)))
            for low in range(0, rows, batch // 2):
                ids = torch.arange(low, min(rows, low + batch // 2)) * 7919
                step_of(*tables[-1], ids)
            taken.append((process.memory_info().rss - before) >> 20)
        rng = np.random.default_rng(0)
        for share in (0.0, 0.01, 0.1):
            times: list[list[float]] = [[], []]
            for _ in range(repeats):
                recent = rows - 1 - rng.integers(0, kept // 2, batch)
                away = rng.integers(0, rows // 2, batch)
                ids = torch.from_numpy(np.where(rng.random(batch) < share, away, recent) * 7919)
                for one, (emb, opt) in zip(times, tables, strict=True):
                    one.append(step_of(emb, opt, ids))
            ratios = [there / here for here, there in zip(*times, strict=True)]
            found.append(
                {
                    "of the ids in the file": share,
                    "ms": statistics.median(times[0]),
                    "ms, demoted": statistics.median(times[1]),
                    "ratio": statistics.median(ratios),
                    "MiB": taken[0],
                    "MiB, demoted": taken[1],
                }
            )
        everything = torch.arange(rows) * 7919
        for some in everything.split(batch):
            assert torch.equal(*(emb.weight[some] for emb, _ in tables))
    return found


def measure_evictions(rows: int, repeats: int) -> list[dict[str, Any]]:
    """Passes of each eviction: of one row, which is the work of choosing, and of a tenth of the rows.

    Rows are of 16 numbers. What a tenth takes longer than one row is the work of removing.
    """
    rules = {
        "unused for long": ge.LeastRecent(max_rows=rows, low_water=1.0, every=1 << 30),
        "used little": ge.LeastUsed(max_rows=rows, low_water=1.0, every=1 << 30),
        "small norms": ge.SmallNorm(max_rows=rows, low_water=1.0, every=1 << 30),
    }
    found = []
    for name, rule in rules.items():
        emb = ge.DistEmbedding(
            ge.growing(2 * rows), 16, f"evicting {name}", ge.initializers.Uniform(seed=0), eviction=rule
        )
        opt = ge.SparseAdagrad([emb], lr=0.01)
        fresh, times = 0, []

        def grow(count: int, emb: ge.DistEmbedding = emb, opt: ge.SparseOptimizer = opt) -> None:
            nonlocal fresh
            for start in range(fresh, fresh + count, 1 << 17):
                ids = torch.arange(start, min(fresh + count, start + (1 << 17)))
                opt.update(ids, torch.ones(len(ids), 16), emb)
            fresh += count

        grow(rows)
        for _ in range(repeats):
            turn = []
            for count in (1, rows // 10):
                grow(count)
                start = time.perf_counter()
                gone = emb.evict()
                turn.append(time.perf_counter() - start)
                assert len(gone) == count
            times.append(turn)
        one, tenth = np.median(np.array(times[1:]), axis=0) * 1e9
        found.append({
            "rows that leave first": name, "rows": rows, "choosing, ns a live row (aim 5)": one / rows,
            "removing, ns a row that leaves (aim 200)": (tenth - one) / (rows // 10),
        })  # fmt: skip
        del emb, opt, grow
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["map", "steps", "growth", "delta", "demoted", "evictions"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--sizes", nargs="+", type=int, default=[100_000, 10_000_000], help="ids of the map")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=40_960)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--growth", nargs=2, type=int, default=[1_000_000, 16_000_000], help="rows of 16 numbers")
    parser.add_argument(
        "--processor-time", action="store_true", help="of growth: one thread, whose waits for the machine do not count"
    )
    parser.add_argument("--cold", action="store_true", help="do not touch memory before")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.cold:
        lend(psutil.virtual_memory().available // 3)
    ge.init(mode="local")
    measure_map([1000], 100, 1)  # compile
    found: dict[str, Any] = {}
    if "map" in args.parts:
        found["map"] = measure_map(args.sizes, args.batch, args.repeats)
        print(tabulate(found["map"], headers="keys", floatfmt=".3g"))
    if "steps" in args.parts:
        found["steps"] = measure_steps(args.rows, args.dim, args.batch, args.repeats)
        print(tabulate([found["steps"]], headers="keys", floatfmt=".3g"))
    if "growth" in args.parts:
        threads, clock = torch.get_num_threads(), time.thread_time if args.processor_time else time.perf_counter
        torch.set_num_threads(1 if args.processor_time else threads)
        found["growth"], found["pauses"] = measure_growth(*args.growth, 16, args.batch, clock)
        torch.set_num_threads(threads)
        print(tabulate([found["growth"]], headers="keys", floatfmt=".3g"))
        print(tabulate(found["pauses"], headers="keys", floatfmt=".3g"))
    if "delta" in args.parts:
        found["delta"] = measure_delta(args.rows // 4, args.dim, args.batch)
        print(tabulate([found["delta"]], headers="keys", floatfmt=".4g"))
    if "demoted" in args.parts:
        found["demoted"] = measure_demoted(args.rows // 2, args.dim, args.batch, args.repeats)
        print(tabulate(found["demoted"], headers="keys", floatfmt=".3g"))
    if "evictions" in args.parts:
        found["evictions"] = measure_evictions(args.rows, args.repeats)
        print(tabulate(found["evictions"], headers="keys", floatfmt=".3g"))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
