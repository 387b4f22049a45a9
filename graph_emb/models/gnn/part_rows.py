"""Rows of nodes from whole neighbourhoods, shared by ranks: layer by layer where the network has layers."""

# N nodes of a type, R of them this rank's own, O width of the network's rows, L layers.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graph_emb.embedding import DistEmbedding
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.models.gnn.networks import LayeredNetwork
from graph_emb.models.tables import Table
from graph_emb.sampling.blocks import Batch, BlockEdges
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.partitioned_neighbors import OwnEdges, PartitionedNeighborSampling
from graph_emb.transport import runtime
from graph_emb.transport.process_group import ProcessGroup

NODES_AT_ONCE = 1 << 14
EDGES_AT_ONCE = 1 << 16
"""Most nodes of a batch, and most edges into them unless it has one node."""
EVEN_NODES = 1 << 12
"""Nodes of a piece that every layout computes on its own."""


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
        self._own: OwnEdges | None = own
        self._ntypes, self._are_rows = own.ntypes, True
        self._all_layers: NeighborSampling = PartitionedNeighborSampling(own, (-1,) * config.num_layers)
        self._one_layer: NeighborSampling = PartitionedNeighborSampling(own, (-1,))
        self._keep(target, inputs, config, device)

    def _keep(self, target: str, inputs: Any, config: GNNConfig, device: torch.device | str) -> None:
        self._target, self._inputs, self._device = target, inputs, torch.device(device)
        self._width = config.hidden_dim
        self._pieces: dict[str, list[Tensor]] = {}
        self._batches: dict[tuple[bool, str], Batch] = {}  # of types with one piece: the same in every evaluation
        self._hidden: dict[tuple[int, str], DistEmbedding] = {}

    def compute(self, network: nn.Module, tables: Mapping[str, Table] | None = None) -> Tensor:
        """Shape (R, O), on the CPU. Every rank calls it.

        Args:
            network: In evaluation mode.
            tables: To ask instead of the learnable inputs.
        """
        if isinstance(network, LayeredNetwork):
            return self._of_own(self._by_layer(network, tables))
        return self._of_own(self._at_once(network, tables))

    def _at_once(self, network: nn.Module, tables: Mapping[str, Table] | None) -> Iterator[Tensor]:
        for _, batch in self._sampled(self._target, whole=True):
            rows = self._inputs.gather(batch.inputs, tables, are_rows=self._are_rows)
            yield network(batch.blocks, rows)[self._target].to("cpu", torch.get_default_dtype())

    def _by_layer(self, network: LayeredNetwork, tables: Mapping[str, Table] | None) -> Iterator[Tensor]:
        last, transport = len(network.layers) - 1, runtime.current()
        for number in range(last + 1):
            for ntype in self._ntypes if number < last else [self._target]:
                for nodes, batch in self._sampled(ntype):
                    if number == 0:
                        rows = self._inputs.gather(batch.inputs, tables, are_rows=self._are_rows)
                    else:
                        rows = {
                            t: self._table(number - 1, t)(self._rows_of(t, ids), self._device)
                            for t, ids in batch.inputs.items()
                        }
                    out = network.one_layer(number, batch.blocks[0], rows)[ntype].to("cpu", torch.get_default_dtype())
                    if number == last:
                        yield out
                    else:
                        self._table(number, ntype).weight[self._rows_of(ntype, nodes)] = out
            transport.flush()
            transport.barrier()

    def _rows_of(self, ntype: str, nodes: Tensor) -> Tensor:
        """Rows of tables, of nodes as the sampling numbers them, (B,)."""
        return nodes if self._are_rows else self._inputs.rows_of(ntype, nodes)

    def _of_own(self, pieces: Iterator[Tensor]) -> Tensor:
        """The result, from the network's rows of this rank's pieces of the target type, as they come."""
        return torch.cat([*pieces])

    def _table(self, layer: int, ntype: str) -> DistEmbedding:
        """The rows of a layer, of two tables a type in turn."""
        key = layer % 2, ntype
        if key not in self._hidden:
            self._hidden[key] = self._inputs.make_between(ntype, self._width)
        return self._hidden[key]

    def _sampled(self, ntype: str, whole: bool = False) -> Any:
        """Pieces of nodes and their batches, as many on every rank; ``whole``: with all rounds of neighbours."""
        sampling = self._all_layers if whole else self._one_layer
        if ntype not in self._pieces:
            self._pieces[ntype] = self._cut(ntype)
        for nodes in self._pieces[ntype]:
            batch = self._batches.get((whole, ntype)) or sampling.sample({ntype: nodes}).to(self._device)
            if len(self._pieces[ntype]) == 1:
                self._batches[whole, ntype] = batch
            yield nodes, batch

    def _cut(self, ntype: str) -> list[Tensor]:
        """The own nodes of a type in pieces of few nodes and edges, as many pieces on every rank."""
        own = self._own
        assert own is not None
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


class EvenRows(PartRows):
    """The same, to the last bit for any ranks: of pieces of nodes in the order of the graph, spread over the ranks.

    Args:
        graph: The whole graph, or this rank's part of it.
        target, inputs, config, device: As of ``PartRows``.
        group: The ranks; None: one.
        edges: ``all_edges`` of the whole graph, where they are at hand.
    """

    def __init__(
        self,
        graph: HeteroGraph | OwnEdges,
        target: str,
        inputs: Any,
        config: GNNConfig,
        group: ProcessGroup | None,
        device: torch.device | str = "cpu",
        edges: Mapping[EdgeType, BlockEdges] | None = None,
    ) -> None:
        self._group, self._num_nodes, self._ntypes = group, dict(graph.num_nodes), list(graph.num_nodes)
        self._own, self._are_rows = (graph, True) if isinstance(graph, OwnEdges) else (None, False)
        made: Any = PartitionedNeighborSampling if self._are_rows else partial(NeighborSampling, edges=edges)
        self._all_layers, self._one_layer = made(graph, (-1,) * config.num_layers), made(graph, (-1,))
        self._results: DistEmbedding | None = None
        self._keep(target, inputs, config, device)

    def _cut(self, ntype: str) -> list[Tensor]:
        """This rank's pieces of all nodes of a type, as many on every rank."""
        number, ranks = self._num_nodes[ntype], 1 if self._group is None else self._group.world_size
        nodes = torch.arange(number)
        if self._are_rows:
            nodes = self._inputs.rows_of(ntype, nodes)
        pieces = list(nodes.split(EVEN_NODES))
        pieces += [torch.empty(0, dtype=torch.int64)] * (-len(pieces) % ranks)
        return pieces[0 if self._group is None else self._group.rank :: ranks]

    def _of_own(self, pieces: Iterator[Tensor]) -> Tensor:
        """Rows of own nodes (R, O) where this rank has a part of the graph, else of all (N, O); through a table.

        Those of a table in a file, if nodes have its order, are mapped from another file: memory holds what is read.
        """
        transport = runtime.current()
        for number, out in enumerate(pieces):
            if self._results is None:
                self._results = self._inputs.make_between(self._target, out.shape[1])
            self._results.weight[self._rows_of(self._target, self._pieces[self._target][number])] = out
        transport.flush()
        transport.barrier()
        assert self._results is not None
        if self._own is not None:
            return self._results(self._own.owned(self._target))
        nodes = torch.arange(self._num_nodes[self._target])
        rows = self._rows_of(self._target, nodes)
        if self._inputs.in_files and rows is nodes and self._results.dtype == torch.float32:
            found = all_rows(self._results, wanted=True)
            assert found is not None
            return found
        return self._results(rows)
