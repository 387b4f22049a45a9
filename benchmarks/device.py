"""A step of tables on a GPU and of tables whose network is there, beside PyTorch's sparse embedding on the same GPU.

    python benchmarks/device.py --rows 2000000 --batch 40960 --repeats 7

A step is look-up, backward and update of random ids, until the GPU has done it. ``device``: the rows lie on the GPU.
``cache``: they lie in memory of the host, and the GPU holds a share of them. ``host``: they lie in memory of the host
and go to the GPU and back. The systems take turns; the median of the ratios of neighbouring steps counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.optimizer import OPTIMIZERS

PEERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}


def steps_of(rule: str, args: argparse.Namespace) -> dict[str, Callable[[torch.Tensor, torch.Tensor], None]]:
    """By system a step of a table of its own."""
    made: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {}
    a_row = args.dim * 4 * {"sgd": 1, "adagrad": 2, "adam": 3}[rule]
    tables = {
        "device": {"device": args.device},
        "cache": {"device": args.device, "placement": ge.DeviceCache(int(args.share * args.rows * a_row), args.policy)},
        "host": {},
    }
    for system, options in tables.items():
        emb = ge.DistEmbedding(args.rows, args.dim, init_func=ge.initializers.Uniform(seed=0), **options)
        opt = OPTIMIZERS[rule]([emb], lr=0.01)

        def ours(ids: torch.Tensor, grads: torch.Tensor, emb: Any = emb, opt: Any = opt) -> None:
            emb(ids, device=args.device).backward(grads)
            opt.step()

        made[system] = ours
    peer = torch.nn.Embedding(args.rows, args.dim, sparse=True, device=args.device)
    own = PEERS[rule](peer.parameters(), lr=0.01)

    def theirs(ids: torch.Tensor, grads: torch.Tensor) -> None:
        own.zero_grad(set_to_none=True)
        peer(ids.to(args.device)).backward(grads)
        own.step()

    made["torch"] = theirs
    return made


def seconds(step: Callable[[torch.Tensor, torch.Tensor], None], ids: torch.Tensor, grads: torch.Tensor) -> float:
    """Of a step, until the device is idle."""
    began = time.perf_counter()
    step(ids, grads)
    if grads.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Measure the rules and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=40_960)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--share", type=float, default=0.25, help="of the rows, with state, in the cache's memory")
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(0)
    for rule in args.rules:
        steps = steps_of(rule, args)
        found: dict[str, list[float]] = {system: [] for system in steps}
        for repeat in range(args.repeats + 2):
            ids = torch.randint(0, args.rows, (args.batch,), generator=generator)
            grads = torch.randn(args.batch, args.dim, generator=generator).to(args.device)
            for system, step in steps.items():
                took = seconds(step, ids, grads)
                if repeat >= 2:  # the first ones compile
                    found[system].append(took)
        for system, times in found.items():
            ratios = [ours / peer for ours, peer in zip(times, found["torch"], strict=True)]
            rows.append(
                {
                    "rule": rule,
                    "rows": system,
                    "ms": 1e3 * statistics.median(times),
                    "of torch's": statistics.median(ratios),
                    "from": min(ratios),
                    "to": max(ratios),
                }
            )
        del steps
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    print(name)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if args.json is not None:
        args.json.write_text(json.dumps({"device": name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
