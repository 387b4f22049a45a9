"""Whole trainings of tables eight times the memory, in a process that is limited to it.

    python benchmarks/tiers_memory.py triples walks sage --checkpoint --folder /fast/disk --json memory.json

``triples``: ComplEx with Adagrad on random triples of generated entities. ``walks``: DeepWalk by buckets of pairs on a
generated graph. ``sage``: GraphSAGE for classes of nodes on such a graph, steps of sampled neighbourhoods on rows that
learn by Adagrad, and an evaluation of all nodes. With ``--on-disk`` the triples stay in a partition's files. With
``--checkpoint`` a training saves one after nine tenths of its steps (networks: after the first epoch of two), and
another process of the same limit goes on from it.

Each case is a process of its own: it makes the graph and compiles the kernels on a small one, then joins a fresh memory
cgroup whose limit is the budget, a tenth of it and 64 MiB, and trains there, with direct I/O. What it held before does
not count there; all that it takes afterwards does, its file cache too, which the kernel takes back. A process that
needs more is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.threads import torch_threads
from graph_emb.graph.csr import Graph
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_sage
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.models.skipgram.bucket_steps import episode_walks, tables_share
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import SkipGram, train_skipgram
from graph_emb.run import own_parts
from graph_emb.sampling.stored_triples import TriplesOnDisk
from graph_emb.sampling.walks import WalkSampler
from graph_emb.table.tier.cache import CacheStats
from graph_emb.table.tier.sizes import fewest_parts

MIB = 1 << 20
SLACK = 64 * MIB
TIMES = 8  # of the memory
GROUPS = (  # a folder in which groups are made, the limit's file and the peak's
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
)


class Limit:
    """A memory cgroup with the process in it.

    Args:
        most: Bytes that the process may take from now on.
    """

    def __init__(self, most: int, *, loose: bool) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that is free but not given back would be used for nothing
        for root, limit, peak in GROUPS:
            self.folder = Path(root, f"graph-emb-{os.getpid()}")
            if Path(root, "cgroup.procs").exists():
                self.folder.mkdir()
                self._peak = self.folder / peak
                Path(self.folder, "cgroup.procs").write_text(str(os.getpid()))
                Path(self.folder, limit).write_text(str(most * 100 if loose else most))
                Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
                return
        raise SystemExit("no memory cgroup that this process may change; run as root, or in a container that may")

    def peak(self) -> int:
        """The most bytes at once so far."""
        return int(self._peak.read_text())


def resident(word: str = "VmRSS") -> int:
    """Resident bytes of this process now, or the most (``VmHWM``) since ``Limit``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(word)) * 1024


class Case(NamedTuple):
    """What it trains on, its steps, and the training: the counts of its caches, and its triples or tokens."""

    about: str
    steps: int
    run: Callable[[PeriodicCheckpoints | None], tuple[list[CacheStats], int]]


def random_triples(entities: int, count: int) -> KnowledgeGraph:
    """Random triples of 20 relations."""
    rng = np.random.default_rng(0)
    found = np.empty((count, 3), np.int64)
    for column, num in enumerate((entities, 20, entities)):
        found[:, column] = rng.integers(0, num, count)
    return KnowledgeGraph("random", entities, 20, {"train": found})


def cut(place: Path, entities: int, count: int) -> None:
    """Write a partition of random triples; in a process of its own, whose memory does not count."""
    options: Any = {"reader_options": {"relations": "column"}, "report": False}
    partition.build(random_triples(entities, count), 4, "range", out=place, **options)


def triples(options: argparse.Namespace, entities: int, count: int, budget: int) -> Case:
    """A training of triples with so much memory for the table."""
    on_disk = None
    if options.on_disk:
        place = Path(options.folder, f"parts-{count}")
        if not place.exists():
            cutting = get_context("spawn").Process(target=cut, args=(place, entities, count))
            cutting.start()
            cutting.join()
        parted = partition.load(place)
        graph = own_parts.knowledge_graph_of(parted)
        on_disk = TriplesOnDisk(partial(own_parts.triples_in_pieces, parted), Path(options.folder))
    else:
        graph = random_triples(entities, count)
    parts = options.parts
    config = KGEConfig(
        model="complex", dim=options.dim, num_negatives=128, chunk_size=512, batch_size=4096, epochs=1, valid_every=0,
        filter_negatives=options.filter, subsampling=options.subsampling, negative_power=options.negative_power,
        buckets=parts, resident=6,
    )  # fmt: skip
    placement = ge.Buckets(options.folder, budget, parts=parts)

    def run(checkpoints: PeriodicCheckpoints | None) -> tuple[list[CacheStats], int]:
        threads = options.threads
        result = train_kge(
            graph, config, placement=placement, num_threads=threads, progress=False, checkpoints=checkpoints,
            on_disk=on_disk,
        )  # fmt: skip
        return [result.model.entity.cache_stats()], result.history[-1].triples

    return Case(f"{count:,} triples of {entities:,} entities, {parts} parts", -(-count // config.batch_size), run)


def walks(options: argparse.Namespace, nodes: int, count: int, budget: int) -> Case:
    """A training of a walk from each node with so much memory for the tables."""
    ends = np.random.default_rng(0).integers(0, nodes, (2, count))
    graph = Graph.from_edges(*ends, num_nodes=nodes, self_loops="drop")
    del ends
    of_each = int(tables_share(SkipGramConfig(buckets=2)) * budget) // 2
    parts = fewest_parts(nodes, options.dim, of_each) or 2
    config = SkipGramConfig(dim=options.dim, buckets=parts)
    placement = ge.Buckets(options.folder, of_each, parts=parts)
    sampler = WalkSampler(graph, num_walks=1, walk_length=options.length, seed=0)

    def run(checkpoints: PeriodicCheckpoints | None) -> tuple[list[CacheStats], int]:
        model = SkipGram(nodes, config, placement=placement, name="node")
        threads = options.threads
        result = train_skipgram(sampler, model=model, num_threads=threads, progress=False, checkpoints=checkpoints)
        return list(result.model.cache_stats().values()), result.history[-1].tokens

    about = f"{nodes:,} walks of {options.length} nodes, {graph.num_arcs // 2:,} edges, {parts} parts"
    return Case(about, -(-nodes // episode_walks(config, nodes, options.length, nodes)), run)


def sage(options: argparse.Namespace, nodes: int, count: int, budget: int) -> Case:
    """A training of a network with so much memory for the rows that learn and those between its layers."""
    rng = np.random.default_rng(0)
    names = np.arange(nodes)
    graph = HeteroGraph({"node": nodes}, {("node", "to", "node"): tuple(rng.integers(0, nodes, (2, count)))})
    judged = nodes // 10
    split = {"train": names[: min(options.targets, nodes - 2 * judged)]}
    split |= {"valid": names[-2 * judged : -judged], "test": names[-judged:]}
    task = NodeTask("node", names % 16, split)
    config = SAGEConfig(
        dim=options.dim, hidden_dim=16, fanouts=(5, 5), batch_size=1024, epochs=2, rule="adagrad", eval_every=1
    )  # fmt: skip
    placement = ge.File(options.folder, budget, "lookahead")

    def run(checkpoints: PeriodicCheckpoints | None) -> tuple[list[CacheStats], int]:
        prefix = None if checkpoints is None else ""
        with torch_threads(options.threads):
            result = train_sage(graph, task, config, placement=placement, checkpoints=checkpoints, table_prefix=prefix)
        return [table.cache_stats() for table in result.tables.values()], config.epochs * len(split["train"])

    about = f"{nodes:,} nodes, {count:,} edges, {len(split['train']):,} of the nodes trained on"
    return Case(about, config.epochs, run)


CASES = {"triples": triples, "walks": walks, "sage": sage}


def measured(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """A case in this process."""
    ge.init(mode="local")
    rows, count = (options.entities, options.triples) if case == "triples" else (options.nodes, options.edges)
    whole = rows * options.dim * 4 * 2  # with Adagrad's sums, or context rows
    budget = whole // TIMES
    small = CASES[case](options, 20_000, 10_000, 20_000 * options.dim * 8 // 4)
    for resume in (False, True)[: 1 + options.checkpoint]:
        small.run(checkpoints_of(f"small{options.resume}", options, small.steps, resume=resume))  # compiles
    del small
    about, steps, run = CASES[case](options, rows, count, budget)
    checkpoints = checkpoints_of("checkpoints", options, steps, resume=options.resume)
    gc.collect()
    before, most = resident(), budget + budget // 10 + SLACK
    limit, began = Limit(most, loose=options.loose), time.perf_counter()
    stats, done = run(checkpoints)
    seconds, peak = time.perf_counter() - began, limit.peak()
    print(f"{case}: trained, {done / seconds:,.0f} a second, peak {peak / MIB:.1f} MiB", file=sys.stderr, flush=True)
    saved = sum(path.stat().st_size for path in Path(options.folder, "checkpoints").rglob("*.safetensors"))
    return {
        "trained on": about, "tables MiB": whole / MIB, "budget MiB": budget / MIB, "limit MiB": most / MIB,
        "peak of the group MiB": peak / MIB, "a checkpoint MiB": saved / MIB,
        "resident at most, above before, MiB": (resident("VmHWM") - before) / MIB,
        "the graph and the program before, MiB": before / MIB, "seconds": seconds, "a second": done / seconds,
        "GB read": sum(one.bytes_read for one in stats) / 1e9,
        "GB written": sum(one.bytes_written for one in stats) / 1e9,
        "seconds waited for the disk": sum(one.seconds_waited for one in stats),
    }  # fmt: skip


def checkpoints_of(name: str, options: argparse.Namespace, steps: int, *, resume: bool) -> PeriodicCheckpoints | None:
    """One after nine tenths of the steps, where they are asked for."""
    if not options.checkpoint:
        return None
    return PeriodicCheckpoints(Path(options.folder, name), max(1, steps * 9 // 10), keep_last=1, resume=resume)


def of_child(words: list[str], name: str) -> dict[str, Any]:
    """A case in a process of its own."""
    child = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
    told, _ = child.communicate()
    for root, *_ in GROUPS:
        group = Path(root, f"graph-emb-{child.pid}")
        if group.exists():
            group.rmdir()
    if child.returncode:
        raise SystemExit(f"{name}: ended with {child.returncode}; -9 is more memory than the limit")
    found: dict[str, Any] = json.loads(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=list(CASES))
    parser.add_argument("--folder", help="on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--entities", type=int, default=20_000_000)
    parser.add_argument("--triples", type=int, default=20_000_000)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--targets", type=int, default=100_000, help="nodes that a network trains on")
    parser.add_argument("--length", type=int, default=10, help="nodes of a walk")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--parts", type=int, default=64, help="of the entities")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--checkpoint", action="store_true", help="save one, and go on from it, in the same limit")
    parser.add_argument("--on-disk", action="store_true", help="triples in the files of a partition, not in memory")
    parser.add_argument("--filter", action="store_true", help="leave out negatives that are triples")
    parser.add_argument("--subsampling", action="store_true", help="weigh triples by the answers to their queries")
    parser.add_argument("--negative-power", type=float, default=0.0, help="draw negatives by occurrences")
    parser.add_argument("--loose", action="store_true", help="no limit: say what it would take")
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (case,) = options.cases
        print(json.dumps(measured(case, options)))
        return
    results = {}
    for case in options.cases:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            words = ["--folder", folder, "--here"]
            names = "entities triples nodes edges targets length dim parts threads negative_power"
            for name in names.split():
                words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
            words += ["--loose"] * options.loose + ["--checkpoint"] * options.checkpoint
            words += ["--on-disk"] * options.on_disk + ["--filter"] * options.filter
            words += ["--subsampling"] * options.subsampling
            for resume in (False, True)[: 1 + options.checkpoint]:
                name = f"{case}, resumed after nine tenths" if resume else case
                results[name] = of_child([case, *words, *["--resume"] * resume], name)
                print(f"\n{name}\n" + tabulate(results[name].items(), floatfmt=".4g"), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
