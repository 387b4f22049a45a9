"""Exponential moving average of networks and tables over the epochs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from graph_emb.embedding import DistEmbedding
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.transport import runtime
from graph_emb.transport.rows import WEIGHT

CHUNK_ROWS = 1 << 16
"""Rows of a table that are averaged at a time."""


class WeightAverage(nn.Module):
    """``a_n = a_{n-1} + (1 - d) / (1 - d^n) (x_n - a_{n-1})`` of networks and tables after epoch n, d the decay.

    The factor is 1 at first: the weights of epoch m < n count ``d^(n-m)`` times as much as those of n, and their first
    values not at all, as in Adam's mean of gradients. Averaged rows are tables with the partition of their originals;
    every process averages the rows that it stores, and none travels.

    Args:
        networks: On every rank.
        inputs: Their input rows.
        decay: d, at least 0 and below 1.
    Attributes:
        tables: Averaged rows by node type.
    """

    count: torch.Tensor

    def __init__(self, networks: Sequence[nn.Module], inputs: InputRows, decay: float) -> None:
        super().__init__()
        self._decay, self._networks, self._inputs = decay, tuple(networks), inputs
        self.copies = nn.ModuleList(copy.deepcopy(network).requires_grad_(False) for network in networks)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.tables = inputs.make_averages()

    @torch.no_grad()
    def add(self) -> None:
        """After an epoch: the average moves towards the weights. Every rank calls it."""
        self.count += 1
        factor = (1.0 - self._decay) / (1.0 - self._decay ** int(self.count))
        tables = [(table, self.tables[ntype]) for ntype, table in self._inputs.tables.items()]
        self._move(list(zip(self._networks, self.copies, strict=True)), tables, factor)

    @torch.no_grad()
    def take_over(self) -> None:
        """Networks and tables become their averages, if there are any yet. Every rank calls it."""
        if int(self.count):
            tables = [(self.tables[ntype], table) for ntype, table in self._inputs.tables.items()]
            self._move(list(zip(self.copies, self._networks, strict=True)), tables, 1.0)

    def of(self, network: nn.Module) -> nn.Module:
        """The average of one of the networks."""
        found: nn.Module = self.copies[[one is network for one in self._networks].index(True)]
        return found

    @staticmethod
    def _move(
        networks: list[tuple[nn.Module, nn.Module]], tables: list[tuple[DistEmbedding, DistEmbedding]], factor: float
    ) -> None:
        """Move the second one of each pair towards the first."""
        for towards, moved in networks:
            for given, own in zip(towards.parameters(), moved.parameters(), strict=True):
                own.lerp_(given, factor)
        transport = runtime.current()
        transport.flush()
        transport.barrier()
        for towards_rows, moved_rows in tables:
            shares = transport.rows(towards_rows.name), transport.rows(moved_rows.name, overwrite=True)
            for theirs, mine in zip(*shares, strict=True):
                for start in range(0, mine.num_rows, CHUNK_ROWS):
                    stop = min(start + CHUNK_ROWS, mine.num_rows)
                    rows = torch.lerp(mine.read(WEIGHT, start, stop), theirs.read(WEIGHT, start, stop), factor)
                    mine.write(WEIGHT, torch.arange(start, stop), rows)
        transport.barrier()
