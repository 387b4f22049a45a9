"""Rows of a rank's own nodes from whole neighbourhoods: layer by layer where the network has layers."""

# R own nodes of a type, O width of the network's rows, L layers.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graph_emb.embedding import DistEmbedding
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.models.gnn.networks import LayeredNetwork
from graph_emb.sampling.blocks import Batch
from graph_emb.sampling.partitioned_neighbors import OwnEdges, PartitionedNeighborSampling
from graph_emb.transport import runtime

NODES_AT_ONCE = 1 << 14
EDGES_AT_ONCE = 1 << 16
"""Most nodes of a batch, and most edges into them unless it has one node."""


class PartRows:
    """The rows that a network computes of one type's own nodes.

    Each layer of a ``LayeredNetwork`` is computed of all own nodes, and its rows lie in tables for the next one: every
    edge is used once a layer. Other networks compute nodes with all L rounds of neighbours at a time.

    Args:
        own: This rank's part of the graph.
        target: The node type.
        inputs: ``InputRows`` of the part.
        config: L and the width of hidden layers.
        device: Where the network runs.
    """

    def __init__(
        self, own: OwnEdges, target: str, inputs: Any, config: GNNConfig, device: torch.device | str = "cpu"
    ) -> None:
        self._own, self._target, self._inputs, self._device = own, target, inputs, torch.device(device)
        self._all_layers = PartitionedNeighborSampling(own, (-1,) * config.num_layers)
        self._one_layer = PartitionedNeighborSampling(own, (-1,))
        self._width = config.hidden_dim
        self._pieces: dict[str, list[Tensor]] = {}
        self._batches: dict[tuple[bool, str], Batch] = {}  # of types with one piece: the same in every evaluation
        self._hidden: dict[tuple[int, str], DistEmbedding] = {}

    def compute(self, network: nn.Module, tables: Mapping[str, DistEmbedding] | None = None) -> Tensor:
        """Shape (R, O), on the CPU. Every rank calls it.

        Args:
            network: In evaluation mode.
            tables: To ask instead of the learnable inputs.
        """
        if isinstance(network, LayeredNetwork):
            return self._by_layer(network, tables)
        found = []
        for batch in self._sampled(self._target, whole=True):
            rows = self._inputs.gather(batch.inputs, tables, are_rows=True)
            found.append(network(batch.blocks, rows)[self._target].to("cpu", torch.get_default_dtype()))
        return torch.cat(found)

    def _by_layer(self, network: LayeredNetwork, tables: Mapping[str, DistEmbedding] | None) -> Tensor:
        last, transport = len(network.layers) - 1, runtime.current()
        found: list[Tensor] = []
        for number in range(last + 1):
            for ntype in self._own.ntypes if number < last else [self._target]:
                first = self._own.ranges[ntype][0]
                for batch in self._sampled(ntype):
                    if number == 0:
                        rows = self._inputs.gather(batch.inputs, tables, are_rows=True)
                    else:
                        rows = {t: self._table(number - 1, t)(ids, self._device) for t, ids in batch.inputs.items()}
                    out = network.one_layer(number, batch.blocks[0], rows)[ntype].to("cpu", torch.get_default_dtype())
                    if number == last:
                        found.append(out)
                    else:
                        self._table(number, ntype).weight[torch.arange(first, first + len(out))] = out
                        first += len(out)
            transport.flush()
            transport.barrier()
        return torch.cat(found)

    def _table(self, layer: int, ntype: str) -> DistEmbedding:
        """The rows of a layer, of two tables a type in turn."""
        key = layer % 2, ntype
        if key not in self._hidden:
            self._hidden[key] = self._inputs.make_frozen(ntype, self._width)
        return self._hidden[key]

    def _sampled(self, ntype: str, whole: bool = False) -> Any:
        """Batches of the own nodes of a type, as many on every rank; ``whole``: with all rounds of neighbours."""
        sampling = self._all_layers if whole else self._one_layer
        if ntype not in self._pieces:
            self._pieces[ntype] = self._cut(ntype)
        for nodes in self._pieces[ntype]:
            batch = self._batches.get((whole, ntype)) or sampling.sample({ntype: nodes}).to(self._device)
            if len(self._pieces[ntype]) == 1:
                self._batches[whole, ntype] = batch
            yield batch

    def _cut(self, ntype: str) -> list[Tensor]:
        """The own nodes of a type in pieces of few nodes and edges, as many pieces on every rank."""
        own = self._own
        edges = torch.zeros_like(own.names[ntype])
        for etype, found in own.edges.items():
            if etype[2] == ntype:
                edges += found.degrees
        ends = edges.cumsum(0).numpy()
        starts = [0]
        while starts[-1] < len(ends):
            before = ends[starts[-1] - 1] if starts[-1] else 0
            few = int(np.searchsorted(ends, before + EDGES_AT_ONCE, side="right"))
            starts.append(min(max(few, starts[-1] + 1), starts[-1] + NODES_AT_ONCE, len(ends)))
        pieces: Sequence[Tensor] = own.owned(ntype).split(np.diff(starts).tolist())
        missing = max(own.group.gather_objects(len(pieces), "pieces of an evaluation")) - len(pieces)
        return [*pieces, *[torch.empty(0, dtype=torch.int64)] * missing]
