"""What a step costs on P machines: a model fed with costs measured here, checked against steps measured here.

    python benchmarks/scaling.py --json scaling.json
    python benchmarks/scaling.py --costs scaling.json --link-gbit 25 --latency-us 30 --remote 0.2
    python benchmarks/scaling.py --graphs

Measured: nanoseconds of an id that stays local (route, gather, merge, update), from one rank; what a step of two ranks
costs beyond that when all its ids are local, and when all are remote; start-up and bytes per second of bare exchanges
of 2 and of 4 ranks. Predicted from these: steps on ids without locality of 2 and of 4 ranks, beside what such steps
take. Then the same formula with a data centre's link. ``--graphs`` measures nothing: it predicts trainings on graphs of
two sizes from constants of docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tabulate import tabulate

from graph_emb.run.cost import STEP_MESSAGES


@dataclass(frozen=True)
class Costs:
    """What a machine and its link cost.

    Attributes:
        id_ns: Nanoseconds of an id in pull, backward and step when its row is local.
        served_ns: Nanoseconds of an id whose row another rank owns, beyond ``id_ns`` and the wire: its row is read
            there, put into order here, and its gradient is sorted and merged a second time.
        call_us: Start-up of an exchange, for each other rank.
        first_us: Start-up of an exchange that does not grow with the ranks, and what else a step costs once.
        bytes_per_us: Of the link, each way, for one rank.
    """

    id_ns: float
    served_ns: float
    call_us: float
    first_us: float
    bytes_per_us: float


def step_us(costs: Costs, ranks: int, ids: int, dim: int, remote: float, cores: int | None = None) -> dict[str, float]:
    """Microseconds of pull + backward + step on each of ``ranks`` ranks.

    Args:
        costs: Of the machine and its link.
        ranks: W, or P machines with one rank each.
        ids: Distinct ids of a rank's batch.
        dim: D, float32.
        remote: Share of the ids whose row another rank owns; 1 - 1/W for ids without locality.
        cores: Where fewer cores than ranks share the work; None: every rank has its own.
    """
    crowd = max(1.0, ranks / cores) if cores else 1.0
    travelling = ids * remote
    sent = travelling * (2 * 8 + 2 * 4 * dim)  # ids twice; a row comes, a gradient goes
    local = (ids * costs.id_ns + travelling * costs.served_ns) / 1e3 * crowd
    start = STEP_MESSAGES * (costs.first_us + costs.call_us * (ranks - 1)) if ranks > 1 else 0.0
    wire = sent / costs.bytes_per_us if ranks > 1 else 0.0
    return {"local": local, "start": start, "wire": wire, "total": local + start + wire, "bytes": sent}


def _rank(
    function: Callable[..., Any], rank: int, size: int, port: int, args: tuple[Any, ...], pipe: Connection
) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import torch

    import graph_emb as ge

    torch.set_num_threads(1)
    transport = ge.init(mode="collective")
    pipe.send(function(transport, *args))
    transport.barrier()
    ge.shutdown()


def on_ranks(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """What the function returns on each of ``size`` ranks of this machine."""
    from torch.distributed import TCPStore

    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        mine, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(function, rank, size, store.port, args, theirs))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return found


def bare_exchanges(transport: Any, sizes: list[int], repeats: int) -> list[float]:
    """Microseconds of an all_to_all of so many bytes from each rank, for each size."""
    import torch

    found = []
    for size in sizes:
        share = size // transport.world_size
        piece = torch.zeros(share * transport.world_size, dtype=torch.uint8)
        even = [share] * transport.world_size
        times = []
        for _ in range(repeats + 3):
            start = time.perf_counter()
            transport.group.exchange(piece, even, even, "bare")
            times.append((time.perf_counter() - start) * 1e6)
        found.append(statistics.median(times[3:]))
    return found


def whole_steps(transport: Any, rows: int, dim: int, ids: int, repeats: int, remote: float | None = None) -> float:
    """Median microseconds of pull + backward + step on ids of which a share is remote; None: ids without locality."""
    import torch

    import graph_emb as ge

    emb = ge.DistEmbedding(rows, dim, f"t{ids}", ge.initializers.Uniform(seed=0))
    opt = ge.SparseAdagrad([emb], lr=0.01)
    grad, ranks = torch.randn(ids, dim) * 1e-2, transport.world_size
    generator = torch.Generator().manual_seed(transport.rank)
    times = []
    for turn in range(repeats + 8):
        batch = torch.randint(0, rows, (ids,), generator=generator)
        if remote is not None:  # the same ids, moved into the rank's own range or out of it
            share = rows // transport.world_size
            shift = (torch.rand(ids, generator=generator) < remote).long() * (1 + batch // share % (ranks - 1))
            batch = batch % share + (transport.rank + shift) % ranks * share
        transport.barrier()
        start = time.perf_counter()
        emb(batch).backward(grad)
        opt.step()
        transport.barrier()
        if turn >= 8:
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def measure(args: argparse.Namespace) -> tuple[dict[int, Costs], dict[int, float]]:
    """Costs for each number of ranks of this machine, and the steps to be predicted."""
    cores = os.cpu_count() or 1
    work = (args.rows, args.dim, args.ids, args.repeats)
    alone = on_ranks(whole_steps, 1, *work)[0]
    twice = on_ranks(whole_steps, 1, args.rows, args.dim, 2 * args.ids, args.repeats)[0]
    id_ns = (twice - alone) / args.ids * 1e3
    near, far = (max(on_ranks(whole_steps, 2, *work, remote)) for remote in (0.0, 1.0))
    sizes = [8 * 4, args.ids * args.dim * 4]
    bare = {
        ranks: [max(t) for t in zip(*on_ranks(bare_exchanges, ranks, sizes, args.repeats), strict=True)]
        for ranks in (2, 4)
    }
    rates = {ranks: sizes[1] * (1 - 1 / ranks) / (large - small) for ranks, (small, large) in bare.items()}
    bytes_of_id = 2 * 8 + 2 * 4 * args.dim
    served_ns = max(0.0, (far - near) / args.ids * 1e3 - bytes_of_id / rates[2] * 1e3)
    once = max(0.0, (near - args.ids * id_ns / 1e3) / STEP_MESSAGES - bare[2][0])  # of an exchange, beyond the bare one
    costs = {
        ranks: Costs(id_ns=id_ns, served_ns=served_ns, call_us=0.0, first_us=bare[ranks][0] + once,
                     bytes_per_us=rates[ranks])
        for ranks in bare
    }  # fmt: skip
    steps = {ranks: max(on_ranks(whole_steps, ranks, *work)) for ranks in bare}
    print(f"{cores} cores; an id costs {id_ns:.0f} ns on one rank, {served_ns:.0f} ns more where its row is remote")
    print(f"a step of 2 ranks: {near / 1e3:.2f} ms with local ids, {far / 1e3:.2f} ms with remote ones")
    return costs, steps


TRIPLE_US, SERVED_NS = 1e6 / 209_000, 44.0
"""ComplEx in memory, rows of 128, Adagrad, four triples an entity as Freebase, two cores (Intel Xeon): 209,000
triples/s. ``served_ns`` of ``Costs``, of the same width and rule."""
WALKED = ("ogbn-papers100M", 111_000_000, 1_600_000_000)
"""Nodes and edges."""
TRIPLES = ("Freebase", 86_000_000, 338_000_000)
"""Entities and triples."""
BATCH, IDS_TRIPLE, DIM = 8192, 3, 128
"""Triples of a machine and step; ids of each: head, tail and a share of the negatives; width of rows."""
MACHINES = [2**k for k in range(2, 11)]


def predicted_graphs(
    link_gbit: float, latency_us: float, remote: float | None, memory_gib: float
) -> dict[str, list[list[Any]]]:
    """Machines, seconds of work, exchange, wire, start and all, GiB a machine, and what bounds them, by title.

    A machine walks by one thread and trains triples by two. Memory: rows and state of a machine's share, its edges or
    triples, and copies.
    Where that is more than ``memory_gib`` memory bounds the training, whatever else takes long.
    """
    from graph_emb.models.skipgram.config import PlainWalkConfig
    from graph_emb.run.cost import USUAL, WalkLoad, bytes_of_counts, forecast
    from graph_emb.transport.link import Link

    config = PlainWalkConfig(num_walks=1)
    name, nodes, edges = WALKED
    kg, entities, triples = TRIPLES
    step = Costs(0.0, SERVED_NS, latency_us, 0.0, link_gbit * 1e9 / 8 / 1e6)
    walks, steps = [], []
    for machines in MACHINES:
        share = 1 - 1 / machines if remote is None else remote
        load = WalkLoad(config, nodes, 2 * edges, nodes * config.num_walks, config.walk_length)
        sent, interval, copied = bytes_of_counts(load, machines, share)
        tokens = load.num_walks * load.walk_length
        cost = forecast(USUAL, Link(link_gbit, latency_us), machines, tokens, sent, interval)
        row = 4 * config.dim
        gib = (nodes * config.tables * row / machines + 2 * edges * 8 / machines + 4 * copied * row) / 2**30
        parts = {"work": cost.work, "exchange": cost.exchange, "wire": cost.wire, "start": cost.start}
        walks.append(_line(machines, parts, gib, memory_gib))
        found, count = step_us(step, machines, BATCH * IDS_TRIPLE, DIM, share), triples / (machines * BATCH) / 1e6
        parts = {
            "work": triples / machines * TRIPLE_US / 1e6,
            "exchange": found["local"] * count,
            "wire": found["wire"] * count,
            "start": found["start"] * count,
        }
        gib = (2 * entities * 4 * DIM + triples * 24) / machines / 2**30 + 4 * BATCH * IDS_TRIPLE * 4 * DIM / 2**30
        steps.append(_line(machines, parts, gib, memory_gib))
    walked = f"{config.num_walks} walk of {config.walk_length} a node, rows of {config.dim}"
    return {
        f"DeepWalk, {name}: {nodes:,} nodes, {edges:,} edges, {walked}": walks,
        f"ComplEx, {kg}: {entities:,} entities, {triples:,} triples, an epoch, rows of {DIM}, {BATCH:,} a step": steps,
    }


def _line(machines: int, parts: dict[str, float], gib: float, memory_gib: float) -> list[Any]:
    bound = "memory" if gib > memory_gib else max(parts, key=lambda part: parts[part])
    return [machines, *parts.values(), sum(parts.values()), gib, bound]


def main() -> None:
    """Measure or read the costs, check the prediction, print the table of machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ids", type=int, default=20_000, help="distinct ids of a rank and step")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--link-gbit", type=float, default=10.0, help="of each machine, each way")
    parser.add_argument("--latency-us", type=float, default=50.0, help="of one message between two machines")
    parser.add_argument("--remote", type=float, help="share of remote ids, such as the edge cut; default 1 - 1/P")
    parser.add_argument("--costs", type=Path, help="a --json of an earlier run: measure nothing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--graphs", action="store_true", help="predict trainings on 4 to 1,024 machines, no more")
    parser.add_argument("--memory-gib", type=float, default=64.0, help="of a machine, for --graphs")
    args = parser.parse_args()
    if args.graphs:
        headers = ["machines", "work s", "exchange s", "wire s", "start s", "predicted s", "GiB a machine", "bound by"]
        for title, lines in predicted_graphs(args.link_gbit, args.latency_us, args.remote, args.memory_gib).items():
            print(f"{title} (predicted)\n")
            print(tabulate(lines, headers=headers, floatfmt=",.1f", tablefmt="github"), end="\n\n")
        return
    if args.costs:
        saved = json.loads(args.costs.read_text())
        costs = {int(ranks): Costs(**found) for ranks, found in saved["costs"].items()}
        steps = {int(ranks): float(time_) for ranks, time_ in saved["steps"].items()}
    else:
        costs, steps = measure(args)
    checks = []
    for ranks, measured in steps.items():
        predicted = step_us(costs[ranks], ranks, args.ids, args.dim, 1 - 1 / ranks, os.cpu_count())
        checks.append([ranks, predicted["total"] / 1e3, measured / 1e3, predicted["total"] / measured])
    print(tabulate(checks, headers=["ranks here", "predicted ms", "measured ms", "ratio"], floatfmt=".2f"))
    link = Costs(costs[2].id_ns, costs[2].served_ns, args.latency_us, 0.0, args.link_gbit * 1e9 / 8 / 1e6)
    rows = []
    for machines in [2**k for k in range(1, 11)]:
        remote = 1 - 1 / machines if args.remote is None else args.remote
        found = step_us(link, machines, args.ids, args.dim, remote)
        rate = machines * args.ids / found["total"]
        parts = [found[part] / 1e3 for part in ("local", "start", "wire", "total")]
        rows.append([machines, remote, found["bytes"] / 1e6, *parts, rate])
    headers = ["machines", "remote", "MB sent", "local ms", "start ms", "wire ms", "step ms", "million ids/s"]
    print()
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    if args.json:
        found_costs = {ranks: asdict(cost) for ranks, cost in costs.items()}
        args.json.write_text(
            json.dumps({"args": vars(args), "costs": found_costs, "steps": steps}, default=str, indent=2)
        )


if __name__ == "__main__":
    main()
