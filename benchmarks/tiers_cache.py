"""The cache of a table in a file beside what its disk allows: model, power laws, look-ahead, flushes, prefetches.

    python benchmarks/tiers_cache.py model zipf lookahead flush prefetch --folder /fast/disk --json tiers_cache.json

``model``: steps (pull, backward, Adagrad) of which .5, 2, 5 and 20 % of the distinct rows are not in memory, the next
batch announced, beside the same steps of a table in memory and beside ``min(1, I / (2 m T))``: T distinct rows a second
in memory, I pages a second that plain threads of ``pread`` and ``pwrite`` move, m the share that came from the file,
all of one run. ``zipf``: the same for ids by a power law, rows in the order of their frequency, a fifth of them in
memory. ``lookahead``: pages that ``lookahead`` and ``lru`` bring over recorded batches (sampled neighbourhoods and
walks of ogbn-arxiv) beside Belady's choice with the same window, written here in plain Python, and with all of the
future. ``flush``: all pages of memory written, beside one thread that writes as many bytes in sequence; and once more,
when there is nothing to write. ``prefetch``: how much less a training waits for transfers that are announced, where it
computes for longer than they take.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from tiers import DIM, dirtied, made, pages_of, plain_floor, step
from tiers_buckets import sequential

import graph_emb as ge
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import plain_dataset, typed_nodes
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.walks import WalkSampler
from graph_emb.table.tier.frames import Frames

ROW_BYTES = DIM * 8  # with Adagrad's sum
SHIFT = 2  # 4 rows of 1 KiB a page of 4 KiB
WINDOW = 32
"""Batches that are announced before they come."""


def beside_model(options: argparse.Namespace, batches: list[torch.Tensor], num: int, budget: int) -> dict[str, Any]:
    """Speed of a table in a file, its next batch announced, beside one in memory and beside the model; all rows were
    written, and the first third of the batches does not count."""
    host, file = made(num, "host"), made(num, ge.File(options.folder, budget))
    for emb, _ in (host, file):
        dirtied(emb) if emb is file[0] else emb.weight.__setitem__(slice(0, num), 0.5)
    grads = torch.randn(max(map(len, batches)), DIM)
    warm, times, rows = len(batches) // 3, [], 0
    before = file[0].cache_stats()
    file[0].prefetch(batches[0])
    for k, (ids, following) in enumerate(pairwise([*batches, batches[0]])):
        if k == warm:
            before = file[0].cache_stats()
        theirs = step(*host, ids, grads[: len(ids)])
        began = time.perf_counter()
        file[0].prefetch(following)
        step(*file, ids, grads[: len(ids)])
        if k >= warm:
            times.append((theirs, time.perf_counter() - began))
            rows += len(ids.unique())
    after = file[0].cache_stats()
    _, cache = pages_of(file[0])
    moved = (after.bytes_read - before.bytes_read) // cache.reader.file.layout.page_bytes
    written = (after.bytes_written - before.bytes_written) // cache.reader.file.layout.page_bytes
    some = max(1, min(moved, 4096) // 8)
    pages = [np.random.default_rng(k).choice(cache.in_file.size, some, replace=False) for k in range(8)]
    floor = plain_floor(cache.reader.file.path, pages, cache.reader.file.layout.page_bytes)
    in_memory, in_file = np.array(times).sum(0)
    missing, rate, transfers = moved / rows, rows / in_memory, 2 * 8 * some / floor
    model = min(1.0, transfers / (2 * missing * rate)) if missing else 1.0
    return {
        "m": missing, "written": written / rows, "T, million/s": rate / 1e6, "I, 1000/s": transfers / 1e3,
        "speed": in_memory / in_file, "model": model, "ratio": in_memory / in_file / model,
        "waited": (after.seconds_waited - before.seconds_waited) / in_file,
    }  # fmt: skip


def model(options: argparse.Namespace) -> dict[str, Any]:
    """A hot eighth of the rows in memory, and a share of each batch from the others, no two in one page."""
    num, batch, found = options.rows, 20_480, {}
    hot, generator = num // 8, np.random.default_rng(0)
    for share in (0.005, 0.02, 0.05, 0.2):
        cold = int(batch * share)
        batches = [
            np.concatenate([
                generator.choice(hot, batch - cold, replace=False),
                hot + (generator.choice((num - hot) >> SHIFT, cold, replace=False) << SHIFT),
            ])
            for _ in range(options.rounds)
        ]  # fmt: skip
        found[f"{share:.1%} asked"] = beside_model(
            options, [torch.from_numpy(ids) for ids in batches], num, int(hot * ROW_BYTES * 1.5)
        )
        gc.collect()
    return found


def zipf(options: argparse.Namespace) -> dict[str, Any]:
    """Batches of 40,960 ids by a power law."""
    num, found = options.rows, {}
    for exponent in (1.05, 1.2, 1.4):
        sums = np.cumsum(1.0 / np.arange(1, num + 1) ** exponent)
        generator = np.random.default_rng(0)
        batches = [
            torch.from_numpy(np.minimum(np.searchsorted(sums, generator.random(40_960) * sums[-1]), num - 1))
            for _ in range(options.rounds)
        ]
        found[str(exponent)] = beside_model(options, batches, num, num * ROW_BYTES // 5)
        gc.collect()
    return found


def brought(batches: list[np.ndarray], num_pages: int, capacity: int, policy: str, window: int) -> int:
    """Pages that a cache of our policy brings, each batch announced ``window`` before it comes."""
    frames = Frames(num_pages, capacity, capacity, 0, policy)
    total = 0
    for pages in batches[:window]:
        frames.announce(pages)
    for k, pages in enumerate(batches):
        frames.arrived(pages)
        if k + window < len(batches):
            frames.announce(batches[k + window])
        assert frames.fits(pages), f"{len(pages)} pages of a batch do not fit into {capacity}"
        touched = frames.touch(pages, True)
        frames.remove(frames.victims(frames.excess(len(touched.missing))), 0)
        frames.insert(touched.missing, frames.take(len(touched.missing)), write=True, pin=False)
        total += len(touched.missing)
    return total


def belady(batches: list[np.ndarray], capacity: int, window: int) -> int:
    """Pages that are brought when the one whose next use is farthest leaves; unknown ones first, the least recent."""
    held: dict[int, int] = {}  # page: its last use
    total, never = 0, len(batches) + window
    uses: dict[int, list[int]] = {}
    for k, pages in reversed(list(enumerate(batches))):
        for page in pages.tolist():
            uses.setdefault(page, []).append(k)
    for k, pages in enumerate(batches):
        here = set(pages.tolist())
        for page in here:
            uses[page].pop()
        missing = [page for page in here if page not in held]
        total += len(missing)
        excess = max(0, len(held) + len(missing) - capacity)
        if excess:
            able = []
            for page, last in held.items():
                if page not in here:
                    following = uses[page][-1] if uses[page] else never
                    able.append((-following if following <= k + window else -never, last, page))
            for *_, page in sorted(able)[:excess]:
                del held[page]
        held |= dict.fromkeys(here, k)
    return total


def neighbourhoods(graph: HeteroGraph, target: str, count: int) -> Iterator[np.ndarray]:
    """Input nodes of batches of 64 nodes, two layers of 10 and 5 neighbours, one epoch after another."""
    sampler = NeighborSampling(graph, [10, 5])
    for epoch in range(1 << 30):
        sampler.start_epoch(epoch)
        order = torch.randperm(graph.num_nodes[target], generator=torch.Generator().manual_seed(epoch))
        for targets in order.split(64):
            yield sampler.sample({target: targets}).inputs[target].numpy()


def walked(root: str) -> Iterator[np.ndarray]:
    """Nodes of 64 walks of 20 nodes, one epoch after another."""
    graph = plain_dataset(load_dataset("ogbn-arxiv", root)).graph
    sampler = WalkSampler(graph, num_walks=1, walk_length=20)
    for epoch in range(1 << 30):
        for batch in sampler.batches(epoch=epoch, num_threads=1):
            for some in np.split(batch, range(64, len(batch), 64)):
                yield some[some >= 0]


def lookahead(options: argparse.Namespace) -> dict[str, Any]:
    """Recorded batches over a cache of a fifth of the pages."""
    nodes = typed_nodes(load_dataset("ogbn-arxiv", options.root))
    num_pages = (nodes.graph.num_nodes[nodes.ntype] >> SHIFT) + 1
    count, found = options.trace, {}
    for name, trace in (
        ("sampled neighbourhoods", neighbourhoods(nodes.graph, nodes.ntype, count)), ("walks", walked(options.root)),
    ):  # fmt: skip
        batches = [np.unique(rows >> SHIFT) for rows in islice(trace, count)]
        capacity = num_pages // 5
        ours, lru = (brought(batches, num_pages, capacity, policy, WINDOW) for policy in ("lookahead", "lru"))
        same, all_of_it = (belady(batches, capacity, window) for window in (WINDOW, len(batches)))
        found[name] = {
            "pages a batch": float(np.mean([len(pages) for pages in batches])), "lookahead": ours, "lru": lru,
            "Belady, same window": same, "Belady, all": all_of_it, "of Belady's (<= 1.05)": ours / same,
            "of lru's (<= .7)": ours / lru, "Belady, same window, of lru's": same / lru,
        }  # fmt: skip
    return found


def flush(options: argparse.Namespace) -> dict[str, Any]:
    """A quarter of a table in memory, every page of it changed."""
    num, found = options.rows, {}
    emb, opt = made(num, ge.File(options.folder, num * ROW_BYTES // 4))
    dirtied(emb)
    shard, cache = pages_of(emb)
    held = cache.frames.capacity << SHIFT
    for repeat in range(5):
        for start in range(0, held // 2, 1 << 14):  # half of what fits: none of it leaves by itself
            ids = torch.arange(start, min(held // 2, start + (1 << 14)))
            step(emb, opt, ids, torch.ones(len(ids), DIM))
        before, began = emb.cache_stats().bytes_written, time.perf_counter()
        shard.flush()
        seconds = time.perf_counter() - began
        written = emb.cache_stats().bytes_written - before
        shard.flush()
        again = emb.cache_stats().bytes_written - before - written
        floor, _ = sequential(Path(options.folder, "sequential"), written)
        found[f"run {repeat}"] = {
            "MiB": written / 2**20, "MB/s": written / seconds / 1e6, "sequential MB/s": floor / 1e6,
            "ratio (>= .8)": written / seconds / floor, "bytes of the second": again,
        }  # fmt: skip
    return found


def prefetch(options: argparse.Namespace) -> dict[str, Any]:
    """A sixteenth in memory, 1,024 random rows a step, which computes for twice as long as its transfers take."""
    num, batch = options.rows, 1024
    emb, opt = made(num, ge.File(options.folder, num * ROW_BYTES // 16))
    dirtied(emb)
    generator, grads = torch.Generator().manual_seed(0), torch.randn(batch, DIM)
    one = torch.randn(256, 256)

    def run(rounds: int, seconds: float, announced: bool) -> float:
        """Seconds a step that it waits for transfers."""
        batches = [torch.randint(0, num, (batch,), generator=generator) for _ in range(rounds + 1)]
        before = emb.cache_stats().seconds_waited
        if announced:
            emb.prefetch(batches[0])
        for ids, following in pairwise(batches):
            loss = emb(ids)
            if announced:
                emb.prefetch(following)
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                one @ one
            loss.backward(grads)
            opt.step()
        return (emb.cache_stats().seconds_waited - before) / rounds

    run(options.rounds, 0.0, False)  # until what is in memory is dirty
    alone = run(options.rounds, 0.0, False)
    found = {}
    for repeat in range(3):
        waited = [run(options.rounds, 2 * alone, announced) for announced in (False, True)]
        found[f"run {repeat}"] = {
            "compute ms a step": 2e3 * alone, "waits ms": waited[0] * 1e3, "announced ms": waited[1] * 1e3,
            "hidden (>= .8)": 1 - waited[1] / waited[0],
        }  # fmt: skip
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "model": model, "zipf": zipf, "lookahead": lookahead, "flush": flush, "prefetch": prefetch,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--folder", help="on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--root", default="../shared/data", help="of data sets")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--trace", type=int, default=1000, help="batches of a recorded trace")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = folder
        ge.init(mode="local")
        results = {}
        for part in options.parts:
            results[part] = PARTS[part](options)
            gc.collect()
            names = list(dict.fromkeys(chain.from_iterable(results[part].values())))
            rows = [[name, *(one.get(column) for column in names)] for name, one in results[part].items()]
            print(f"\n{part}\n" + tabulate(rows, ["", *names], floatfmt=".4g"), flush=True)
        ge.shutdown()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, default=float), encoding="utf-8")


if __name__ == "__main__":
    main()
