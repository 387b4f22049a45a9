"""What the scripts of this folder share: how a job begins and ends, started by us or by DGL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import dgl
import torch
from torch import Tensor, nn

import graph_emb as ge


def begin() -> None:
    """Join the servers; under DGL's own variables a server stays in here until its trainers are done."""
    if "DGL_ROLE" in os.environ:
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    ge.init()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")


def copies(network: nn.Module, unused: bool = False) -> nn.Module:
    """The network of all trainers, whose gradients torch averages; ``unused``: a step may leave some of it out."""
    if not torch.distributed.is_initialized():
        return network
    return nn.parallel.DistributedDataParallel(network, find_unused_parameters=unused)


def num_classes(labels: Any) -> int:
    """One more than the largest of DGL's distributed labels."""
    return int(labels[torch.arange(len(labels))].max()) + 1


def mean(total: float, count: int) -> float:
    """``total / count`` over all trainers."""
    both = torch.tensor([total, count], dtype=torch.float64)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(both)
    return float(both[0] / both[1])


@torch.no_grad()
def accuracy(batches: Any, predict: Callable[[Any, Any], Tensor], labels: Any, target: str | None = None) -> float:
    """Share of nodes whose class is predicted.

    Args:
        batches: A loader of nodes.
        predict: From input ids and blocks to logits of the batch's nodes.
        labels: By global id, of the classified nodes.
        target: Their type; None: the graph has one.
    """
    right = count = 0
    for inputs, seeds, blocks in batches:
        nodes = seeds[target] if isinstance(seeds, Mapping) else seeds
        right += int((predict(inputs, blocks).argmax(1) == labels[nodes]).sum())
        count += len(nodes)
    return mean(right, count)


def end(tables: Mapping[str, ge.DistEmbedding], network: nn.Module) -> None:
    """Print what identifies the rows and the network of this trainer, which are those of all, and leave."""
    for name, table in tables.items():
        table.transport.flush()
        table.transport.barrier()
        print(f"rows of {name}: {_digest([table.weight[:]])}", flush=True)
        table.transport.barrier()
    print(f"network: {_digest(list(network.parameters()))}", flush=True)
    ge.shutdown()


def _digest(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
