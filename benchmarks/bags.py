"""Sums over bags of ids: forward, backward and a step of row-wise Adagrad, ours beside the peers, from one run.

    python benchmarks/bags.py --json bags.json

40,960 bags of 1 to 20 ids of a table of 2,000,000 x 128. Every system meets the same bags and gradients, in turns.
Torch has no row-wise Adagrad: its bags train by its Adagrad. FBGEMM is skipped by name where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import torch
from tabulate import tabulate
from torch import Tensor

import graph_emb as ge

Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, float]]
"""From ids, offsets and the gradient of the bags to the bags, and milliseconds of the forward pass in the step."""
TARGETS = {"torch": 3.0, "fbgemm": 1.0}


def trained(bags: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer | None) -> Step:
    """A step of a system; None: its backward updates."""

    def step(ids: Tensor, offsets: Tensor, grad: Tensor) -> tuple[Tensor, float]:
        start = time.perf_counter()
        found = bags(ids, offsets)
        forward = (time.perf_counter() - start) * 1e3
        found.backward(grad)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return found.detach(), forward

    return step


def systems(args: argparse.Namespace, first: Tensor) -> dict[str, Step]:
    """Ours and the peers that are installed, with the same rows at first."""
    emb = ge.DistEmbedding(args.rows, args.dim, init_func=ge.initializers.FromArray(first))
    made = {"ours": trained(emb.bag, ge.SparseRowAdagrad([emb], lr=0.01, eps=1e-8))}
    peer = torch.nn.EmbeddingBag(args.rows, args.dim, mode="sum", sparse=True)
    peer.weight.data.copy_(first)
    made["torch"] = trained(peer, torch.optim.Adagrad(peer.parameters(), lr=0.01))
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except ImportError as error:
        print(f"fbgemm: skipped, {error}")
        return made
    batched = SplitTableBatchedEmbeddingBagsCodegen(
        [(args.rows, args.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
        pooling_mode=PoolingMode.SUM,
    )
    batched.split_embedding_weights()[0].copy_(first)
    made["fbgemm"] = trained(lambda ids, offsets: batched(ids, torch.cat([offsets, torch.tensor([len(ids)])])), None)
    return made


def batch(args: argparse.Namespace, number: int) -> tuple[Tensor, Tensor]:
    """Ids and where each bag begins; other ids in every repeat, so that no cache keeps the last ones."""
    generator = torch.Generator().manual_seed(number)
    sizes = torch.randint(1, args.longest + 1, (args.bags,), generator=generator)
    return torch.randint(0, args.rows, (int(sizes.sum()),), generator=generator), sizes.cumsum(0) - sizes


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--bags", type=int, default=40_960)
    parser.add_argument("--longest", type=int, default=20, help="ids of the longest bag")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()
    made = systems(args, torch.empty(args.rows, args.dim).uniform_(-0.1, 0.1))
    grad = torch.randn(args.bags, args.dim) * 1e-2
    times: dict[str, list[float]] = {name: [] for name in made}
    forwards: dict[str, list[float]] = {name: [] for name in made}
    for number in range(5 + args.repeats):  # the first ones compile and touch the memory
        ids, offsets = batch(args, number)
        results = {}
        for name, step in made.items():
            start = time.perf_counter()
            results[name], forward = step(ids, offsets, grad)
            times[name].append((time.perf_counter() - start) * 1e3)
            forwards[name].append(forward)
        if number == 0:
            for name, found in results.items():
                torch.testing.assert_close(found, results["ours"], msg=lambda text, name=name: f"{name}: {text}")
    rows = []
    for name in made:
        mine, theirs = times["ours"][5:], times[name][5:]
        ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
        wanted = f">= {TARGETS[name]:g}" if name in TARGETS else ""
        medians = [statistics.median(kind[name][5:]) for kind in (times, forwards)]
        rows.append([name, *medians, None if name == "ours" else ratio, wanted])
    headers = ["system", "median ms", "of it forward", "peer / ours", "target"]
    print(tabulate(rows, headers=headers, floatfmt=".2f", missingval=""))
    if args.json:
        numbers = {"args": vars(args), "systems": [dict(zip(headers, row, strict=True)) for row in rows]}
        args.json.write_text(json.dumps(numbers, default=str, indent=2))


if __name__ == "__main__":
    sys.exit(main())
