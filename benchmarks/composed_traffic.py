"""Bytes of rows that trainers pull from other parts: a full table beside composed ones, by the tables' own counters.

    python benchmarks/composed_traffic.py --root ../shared/data

Cuts ogbn-arxiv, both directions of each arc, into parts with levels; each part's trainer samples neighbourhoods of its
own nodes, pulls their rows from every table, hands gradients back and steps. "pulled" are the rows whose owner is
another trainer, each once a batch; "sent" is all that travels, with ids and gradients. Both are of all trainers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

AIM = 0.3
TABLES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "position": {"kind": "position"},
    "position-hash": {"kind": "position-hash"},
    "position-hash, within parts": {"kind": "position-hash", "scope": "part"},
}


def rank_main(args: argparse.Namespace, rank: int, port: int, folder: str) -> None:
    """One trainer; writes pulled and sent bytes by table."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.parts), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import torch

    import graph_emb as ge
    import partition
    from graph_emb.run.own_parts import own_edges
    from graph_emb.run.parallel import Trainers
    from graph_emb.sampling.partitioned_neighbors import PartitionedNeighborSampling

    torch.set_num_threads(1)
    transport: Any = ge.init(mode="collective")
    parts = partition.load(f"{folder}/parts")
    own = own_edges(parts, Trainers(transport.group, transport))
    ((ntype, (low, high)),) = own.ranges.items()
    nodes = torch.randperm(high - low, generator=torch.Generator().manual_seed(0)) + low
    sampling = PartitionedNeighborSampling(own, args.fanouts)
    made = {
        name: ge.ComposedEmbedding(
            parts.levels(),
            args.dim,
            num_buckets=args.buckets if options["kind"] == "position-hash" else None,
            part_policy=parts.policy(),
            name=f"t{number}",
            **options,
        )
        for number, (name, options) in enumerate(TABLES.items())
    }
    optimizers = [ge.SparseAdagrad([table], lr=0.1) for table in made.values()]
    for number in range(args.batches):
        targets = nodes[number * args.batch_size :][: args.batch_size]
        ids = sampling.sample({ntype: targets}).inputs[ntype]
        for table, optimizer in zip(made.values(), optimizers, strict=True):
            table(ids).sum().backward()
            optimizer.step()
    found = {}
    for name, table in made.items():
        counts = [(one.traffic, one.embedding_dim * 4) for one in table.tables]
        pulled = sum((one.distinct - one.local) * row for one, row in counts)
        found[name] = (pulled, sum(one.bytes_sent for one, _ in counts), table.num_parameters)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    transport.barrier()
    ge.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--buckets", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024, help="of a trainer")
    parser.add_argument("--batches", type=int, default=10, help="of a trainer")
    args = parser.parse_args()
    from torch.distributed import TCPStore

    import partition
    from graph_emb.graph import read_graph
    from graph_emb.graph.views import compressed
    from graph_emb.run.parallel import of_one_type

    graph = of_one_type(compressed(read_graph(args.root / "ogbn_arxiv/graph.npz"), symmetrize=True)[0])
    with tempfile.TemporaryDirectory() as folder:
        partition.build(graph, args.parts, levels=args.levels, out=f"{folder}/parts", report=False)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=rank_main, args=(args, r, store.port, folder)) for r in range(args.parts)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a trainer ended with exit code {process.exitcode}")
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(args.parts)]
    sums = {name: [sum(one[name][column] for one in found) for column in (0, 1)] for name in TABLES}
    rows = [
        [
            name, found[0][name][2] / found[0]["full"][2], *(value / 2**20 for value in own),
            *(value / of_full for value, of_full in zip(own, sums["full"], strict=True)), AIM,
        ]
        for name, own in sums.items()
    ]  # fmt: skip
    heads = ["table", "size / full", "pulled MiB", "sent MiB", "pulled / full", "sent / full", "aim"]
    print(tabulate(rows, heads, floatfmt=".3f"))


if __name__ == "__main__":
    main()
