"""The same bits from every layout: graph networks in float64, steps in blocks, by parts and ranks; and the cost.

    python benchmarks/step_blocks.py --root ../shared/data --json step_blocks.json
    python benchmarks/step_blocks.py --datasets aifb --methods metis

R-GCN on AIFB takes full-batch steps of the whole recipe; GraphSAGE on ogbl-ddi a few steps on some training edges, over
all nodes. A digest is of every row, every number of the network, every loss and every metric. One process comes first;
then each number of ranks trains in collective mode on each number of parts, cut by our own method and by METIS.
``seconds/step`` is without evaluation. The cost is told by one process: 1 block on all threads, then 4, which take one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
import partition
from graph_emb.config import config_from
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.run.families.gnn import GNNFamily
from graph_emb.run.own_parts import own_edges
from graph_emb.run.parallel import Trainers

RECIPES: dict[str, GNNConfig] = {
    "aifb": RGCNConfig(epochs=4, eval_every=2),
    "ogbl-ddi": SAGEConfig(dim=64, hidden_dim=64, epochs=1, eval_every=1, batch_size=8192),
}
STEPS = {"aifb": 4, "ogbl-ddi": 3}


def loaded(dataset: str, root: str) -> tuple[Any, Any]:
    """Graph and task as a run has them; of links as many training edges as the steps take, others for messages too."""
    recipe: Any = RECIPES[dataset]
    data = GNNFamily(config_from({"dataset": {"name": dataset, "root": root}, "model": {"name": recipe.name}})).load()
    task: Any = data.task
    if isinstance(task, LinkTask):
        split = {part: dict(arrays) for part, arrays in task.split.items()}
        order = np.random.default_rng(0).permutation(len(split["train"]["edge"]))
        split["train"]["edge"] = split["train"]["edge"][order[: STEPS[dataset] * recipe.batch_size]]
        task = LinkTask(split, task.metrics)
    return replace(data.graph, node_data={}, edge_data={}), task


def trained(dataset: str, blocks: int, graph: Any, task: Any, policies: Any = None) -> dict[str, Any]:
    """Digest and seconds of a training in the current mode."""
    config = RECIPES[dataset].replace(dtype="float64", blocks=blocks)
    train: Any = train_rgcn if isinstance(config, RGCNConfig) else train_sage
    result = train(graph, task, config, policies=policies)
    digest = hashlib.sha256()
    for ntype, table in sorted(result.tables.items()):
        places = torch.from_numpy(table.original_ids.find(np.arange(table.num_embeddings)))
        digest.update(ntype.encode() + table(places).detach().numpy().tobytes())
    for parameter in result.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    for evaluation in result.history:
        digest.update(json.dumps([evaluation.loss, evaluation.valid, evaluation.test]).encode())
    steps = STEPS[dataset] / config.epochs
    return {"digest": digest.hexdigest()[:16], "seconds": result.seconds_per_epoch / steps}


def rank_main(rank: int, size: int, port: int, dataset: str, blocks: int, folder: str, parts: str, pipe: Any) -> None:
    """A rank with its part."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    transport: Any = ge.init(mode="collective")
    held = partition.load(parts)
    own = own_edges(held, Trainers(transport.group, transport))
    task = pickle.loads(Path(folder, "task").read_bytes())
    pipe.send(trained(dataset, blocks, own, task, {ntype: held.policy(ntype) for ntype in held.ntypes}))
    ge.shutdown()


def of_ranks(size: int, dataset: str, blocks: int, folder: str, parts: str) -> dict[str, Any]:
    """The digest of all ranks, or their digests where they differ."""
    from torch.distributed import TCPStore

    store, context = (
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        multiprocessing.get_context("spawn"),
    )
    pipes, processes = [], []
    for rank in range(size):
        mine, theirs = context.Pipe()
        args = (rank, size, store.port, dataset, blocks, folder, parts, theirs)
        processes.append(context.Process(target=rank_main, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    digests = sorted({one["digest"] for one in found})
    return {"digest": " ".join(digests), "seconds": max(one["seconds"] for one in found)}


def compared(dataset: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One process, then every layout of a data set."""
    graph, task = loaded(dataset, args.root)
    alone = trained(dataset, args.blocks, graph, task)
    rows = [{"dataset": dataset, "layout": "one process", **alone, "equal": ""}]
    print(rows[-1], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "task").write_bytes(pickle.dumps(task))
        for method in args.methods:
            for number in args.parts:
                out = Path(folder, f"{method}-{number}")
                parts = str(partition.build(graph, number, method, seed=0, out=out, report=False).path)
                for size in args.ranks:
                    found = of_ranks(size, dataset, args.blocks, folder, parts)
                    layout = f"{size} ranks, {number} parts, {method}"
                    equal = "equal" if found["digest"] == alone["digest"] else "DIFFERENT"
                    rows.append({"dataset": dataset, "layout": layout, **found, "equal": equal})
                    print(rows[-1], flush=True)
    return rows


def costs(dataset: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of a step in one process by blocks: the least of some trainings, since a machine is seldom idle."""
    graph, task = loaded(dataset, args.root)
    found = {}
    for blocks in (1, args.blocks):
        found[blocks] = min(trained(dataset, blocks, graph, task)["seconds"] for _ in range(args.repeats))
    return [
        {"dataset": dataset, "blocks": blocks, "seconds/step": seconds, "times": seconds / found[1]}
        for blocks, seconds in found.items()
    ]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--datasets", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--methods", nargs="+", default=["multilevel", "metis"])
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="trainings of which the quickest counts, of the cost")
    parser.add_argument("--cost", action="store_true", help="tell the cost alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [row for dataset in args.datasets for row in (costs if args.cost else compared)(dataset, args)]
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
