"""Input rows, forward pass, optimizer step and average over the epochs, which all objectives share."""

# N nodes of a type, B asked nodes, D width of their rows, O output width.

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graph_emb.composed import expanded
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.dgl_format import MappedRows
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.graph.partition_book import as_book
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.models.gnn.part_rows import PartRows
from graph_emb.models.tables import Table, node_table
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.sampling.blocks import Batch, whole_graph
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.partitioned_neighbors import OwnEdges, PartitionedNeighborSampling
from graph_emb.table.initializers import Normal, XavierUniform
from graph_emb.table.shard import WEIGHT
from graph_emb.transport import runtime
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import DataParallel, ProcessGroup


class Trainer:
    """A network that computes rows of the nodes of type ``target``, with its input rows and optimizers.

    Args:
        graph: The whole graph, or this rank's part of it.
        target: The node type.
        network: Takes blocks and rows by type, gives rows by type.
        inputs: Its input rows.
        config: The recipe.
        group: The ranks that train together; None: one.
        seed: Of batches and samples, the same on all ranks, and of dropout, for which each makes its own of it.
        device: Where the network runs.
    Attributes:
        first_row: Of a part of the graph, the number in partition order of its first target node; else 0.
        average: Averaged weights, which are evaluated instead of the last ones; None: no average.
    """

    def __init__(
        self,
        graph: HeteroGraph | OwnEdges,
        target: str,
        network: nn.Module,
        inputs: InputRows,
        config: GNNConfig,
        *,
        group: ProcessGroup | None,
        seed: int,
        device: torch.device | str,
    ) -> None:
        self.target, self.inputs, self.config, self.group = target, inputs, config, group
        self.device = torch.device(device)
        self.rank, self.num_ranks = (0, 1) if group is None else (group.rank, group.world_size)
        self.network = DataParallel(network, group)
        self.optimizers = [
            torch.optim.Adam(network.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        ]
        self.average: WeightAverage | None = None
        self.own_seed = (seed * self.num_ranks + self.rank) % (1 << 64)  # the largest that torch takes
        self.generator = torch.Generator().manual_seed(seed % (1 << 64))
        self._sampling: NeighborSampling | None = None
        self._whole: Batch | None = None
        self._repeated: Batch | None = None  # of a partitioned graph: what every step computes
        self._part_rows: PartRows | None = None
        self._own = graph if isinstance(graph, OwnEdges) else None
        self.first_row = 0 if self._own is None else self._own.places[target].owned(self.rank)[0]
        if isinstance(graph, OwnEdges):
            fanouts = (-1,) * config.num_layers if config.fanouts is None else config.fanouts
            self._sampling = PartitionedNeighborSampling(graph, fanouts, seed)
            self._part_rows = PartRows(graph, target, inputs, config, device)
            return
        if config.fanouts is not None:
            self._sampling = NeighborSampling(graph, config.fanouts, seed)
        self._whole = whole_graph(graph, config.num_layers, target).to(self.device)

    def rows_of(self, nodes: Tensor) -> Tensor:
        """Target nodes (B,) as samplers number them: in partition order where this rank has a part of the graph."""
        return nodes if self._own is None else self.inputs.rows_of(self.target, nodes)

    def _names(self, rows: Tensor) -> Tensor:
        """Original numbers of own target nodes (B,)."""
        if self._own is None:
            return rows
        return self._own.names[self.target][rows - self.first_row]

    def owned(self, nodes: Tensor) -> Tensor:
        """Positions in ``nodes`` (B,) of the target nodes that this rank trains on."""
        return self.inputs.owned(self.target, nodes, self.rank, self.num_ranks)

    def compute(self, nodes: Tensor, repeated: bool = False) -> Tensor:
        """The network's rows of distinct target nodes (B,), shape (B, O), in training.

        Args:
            nodes: As ``rows_of`` numbers them.
            repeated: These are the nodes of every step of this rank, in any order, and so for every rank.
        """
        if self._sampling is None:
            return self.compute_all().index_select(0, nodes.to(self.device))
        if not (repeated and self.config.fanouts is None):
            return self._computed(self.network, self._sampled(self._sampling, nodes))
        order = torch.argsort(self._names(nodes))
        if self._repeated is None:
            self._repeated = self._sampled(self._sampling, nodes[order])
        return self._computed(self.network, self._repeated).index_select(0, torch.argsort(order).to(self.device))

    def compute_all(self) -> Tensor:
        """The network's rows of all target nodes, shape (N, O), from whole neighbourhoods, in training."""
        assert self._whole is not None
        return self._computed(self.network, self._whole)

    def _sampled(self, sampling: NeighborSampling, nodes: Tensor) -> Batch:
        """A batch on the network's device; of a partitioned graph its inputs are rows of tables."""
        return sampling.sample({self.target: nodes}).to(self.device)

    def _computed(self, network: Any, batch: Batch, tables: Mapping[str, Any] | None = None) -> Tensor:
        rows = self.inputs.gather(batch.inputs, tables, are_rows=self._whole is None)
        out: Tensor = network(batch.blocks, rows)[self.target]
        return out

    def start_epoch(self, epoch: int) -> None:
        """Begin the samples of an epoch."""
        if self._sampling is not None:
            self._sampling.start_epoch(epoch)

    @property
    def samples(self) -> bool:
        """Whether a step computes only the nodes of its batch, not all nodes."""
        return self._sampling is not None

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network to evaluate in the place of one that trains: its average, or itself."""
        return network if self.average is None else self.average.of(network)

    @torch.no_grad()
    def final_rows(self) -> Tensor:
        """The network's rows of all target nodes without dropout, shape (N, O), on the CPU. Every rank calls it."""
        found = self.own_rows()
        if self._own is None:
            return found
        out = torch.zeros(self._own.num_nodes[self.target], found.shape[1], dtype=found.dtype)
        out[self._own.names[self.target]] = found
        return self._own.group.sum(out, "rows of the evaluation")  # all but one of the summands are 0

    @torch.no_grad()
    def own_rows(self) -> Tensor:
        """``final_rows`` of the target nodes whose edges this rank holds, in their order. Every rank calls it."""
        transport = runtime.current()
        transport.flush()
        transport.barrier()
        module = self.evaluated(self.network.module)
        module.eval()
        tables = None if self.average is None else self.average.tables
        if self._whole is None:
            assert self._part_rows is not None
            out = self._part_rows.compute(module, tables)
        else:
            out = self._computed(module, self._whole, tables).to("cpu", torch.get_default_dtype())
        module.train()
        return out

    def batches(self, count: int) -> Sequence[Tensor]:
        """Positions among ``count`` in random order, a batch of all ranks at a time; the same on every rank."""
        return torch.randperm(count, generator=self.generator).split(self.config.batch_size or max(1, count))

    def total(self, *values: float) -> list[float]:
        """Each value summed over the ranks."""
        if self.group is None:
            return list(values)
        return self.group.sum(torch.tensor(values, dtype=torch.float64), "sums of a step").tolist()

    def agreed(self, values: dict[str, float]) -> dict[str, float]:
        """The first rank's values, so that all ranks stop at the same epoch."""
        found: dict[str, float] = values if self.group is None else self.group.gather_objects(values, "evaluation")[0]
        return found

    def step(self, *networks: nn.Module) -> None:
        """Apply the gradients of the networks and of the tables, each clipped on its own."""
        if self.config.clip_norm is not None:
            for network in networks:
                nn.utils.clip_grad_norm_(network.parameters(), self.config.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.inputs.step(self.config.clip_norm, self.group)


def group_of_trainers(group: ProcessGroup | None) -> ProcessGroup | None:
    """The ranks that share the tables of the current mode; None for one process.

    Raises:
        ConfigError: several trainers of the kvstore mode and no group among them.
    """
    transport: Any = runtime.current()
    group = getattr(transport, "group", None) if group is None else group
    if transport.world_size > 1 and group is None:
        raise ConfigError(
            f"{transport.world_size} trainers share the tables but not the network; "
            "pass group=graph_emb.transport.process_group.ProcessGroup()"
        )
    return group if group is not None and group.world_size > 1 else None


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
    def _move(networks: list[tuple[nn.Module, nn.Module]], tables: list[tuple[Any, Any]], factor: float) -> None:
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
                    old, goal = (share.read(WEIGHT, start, stop) for share in (mine, theirs))
                    dtype = torch.get_default_dtype()
                    rows = torch.lerp(old.to(dtype), goal.to(dtype), factor)
                    mine.write(WEIGHT, torch.arange(start, stop), rows.to(old.dtype))
        transport.barrier()


class InputRows:
    """Source of a network's input rows, and sink of their gradients: features, or learnable tables.

    Args:
        num_nodes: N of each node type.
        config: Width, rule, learning rate and first rows of the tables.
        features: Shape (N, any width), floating, for some node types; the others get a table. Where ``own`` is given:
            of this rank's nodes, (R, any width), ``MappedRows`` too; they then lie in tables that do not learn.
        policies: Partition policies of node types, see ``DistEmbedding``; ids stay those of the graph.
        levels: By node type the parts of its nodes, (N, L), in the order of the graph; for composed tables of position.
        prefix: A table is named by its node type with this before it; None: by a fresh number.
        seed: Of the initial values.
        device: Where the network runs; in local mode the tables lie there too.
        own: This rank's part of the graph; None: it is whole.
        etypes: Of the graph, on which the width of a learnable row may depend.
    Attributes:
        tables: By node type; empty where all have features.
        widths: D of each node type's rows.
        optimizer: Of the tables; None where there are none.
    Raises:
        ConfigError: features or a policy of an unknown node type.
        ShapeError: features that are no matrix with a row for each node.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        config: GNNConfig,
        *,
        features: Mapping[str, Any] | None = None,
        policies: Mapping[str, Any] | None = None,
        levels: Mapping[str, Any] | None = None,
        prefix: str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        own: OwnEdges | None = None,
        etypes: Sequence[EdgeType] = (),
    ) -> None:
        for kind, given in (("features", features), ("policies", policies), ("levels", levels)):
            for ntype in given or {}:
                if ntype not in num_nodes:
                    raise unknown_name(f"node type of {kind}", ntype, num_nodes)
        self._num_nodes, self._device = dict(num_nodes), torch.device(device)
        counts = num_nodes if own is None else {ntype: len(names) for ntype, names in own.names.items()}
        self.features = {t: _matrix(t, f, counts[t]) for t, f in (features or {}).items()}
        seeds = np.random.SeedSequence(seed).generate_state(len(num_nodes)).tolist()
        self._policies, self._prefix = dict(policies or {}), prefix
        self._rows: dict[str, Tensor | None] = {}
        self.widths = {
            t: self.features[t].shape[1] if t in self.features else config.learned_width(t, etypes) for t in num_nodes
        }
        if levels and not config.takes_levels:
            raise ConfigError(f"levels have no effect on inputs={config.inputs!r}; leave them out")
        self.tables: dict[str, Table] = {}
        for (ntype, num), own_seed in zip(num_nodes.items(), seeds, strict=True):
            if ntype not in self.features:
                first: Any = XavierUniform(num, seed=own_seed) if config.init == "xavier" else Normal(seed=own_seed)
                self.tables[ntype] = node_table(
                    num,
                    self.widths[ntype],
                    config,
                    name=self._name(ntype),
                    init_func=first,
                    part_policy=self._policies.get(ntype),
                    levels=(levels or {}).get(ntype),
                    seed=own_seed,
                    of=f"node type {ntype!r}",
                    device=self._device,
                )
        self._frozen: dict[str, DistEmbedding] = {}
        for ntype in list(self.features) if own is not None else ():
            assert own is not None
            self._frozen[ntype] = self.make_frozen(ntype, self.widths[ntype])
            self._write_own(ntype, own)
        self.optimizer = None
        if self.tables:
            tables = expanded(self.tables.values())
            self.optimizer = OPTIMIZERS[config.rule](tables, lr=config.first_lr, **config.numbers(seed))

    def _write_own(self, ntype: str, own: OwnEdges) -> None:
        """Move the features of this rank's nodes into their table, as many calls on every rank."""
        rows, places = self.features.pop(ntype), own.places[ntype]
        (low, high), ranks = places.owned(own.group.rank), range(own.group.world_size)
        for start in range(0, max(stop - first for first, stop in map(places.owned, ranks)), CHUNK_ROWS):
            chosen = torch.arange(min(low + start, high), min(low + start + CHUNK_ROWS, high))
            self._frozen[ntype].weight[chosen] = rows[start : start + len(chosen)]

    def _name(self, ntype: str, suffix: str = "") -> str | None:
        return None if self._prefix is None else f"{self._prefix}{ntype}{suffix}"

    def make_frozen(self, ntype: str, width: int) -> DistEmbedding:
        """A table of zeros of torch's default dtype that no optimizer changes, with the partition of a node type."""
        number, policy = self._num_nodes[ntype], self._policies.get(ntype)
        return DistEmbedding(number, width, init_func=None, part_policy=policy, dtype=torch.get_default_dtype())

    def make_averages(self) -> dict[str, DistEmbedding]:
        """Zeros of torch's default dtype for each table, with its partition, and its name with "_average" behind it."""
        found, dtype = {}, torch.get_default_dtype()
        for ntype in self.tables:
            shape, policy = (self._num_nodes[ntype], self.widths[ntype]), self._policies.get(ntype)
            name = self._name(ntype, "_average")
            found[ntype] = DistEmbedding(*shape, name, None, policy, dtype=dtype, device=self._device)
        return found

    @property
    def num_parameters(self) -> int:
        """Elements of all tables."""
        return sum(table.num_embeddings * table.embedding_dim for table in expanded(self.tables.values()))

    def gather(
        self, ids: Mapping[str, Tensor], tables: Mapping[str, Any] | None = None, are_rows: bool = False
    ) -> dict[str, Tensor]:
        """Rows of ids (B,) of every node type, shape (B, D); of learnable ones with their gradients recorded.

        Every table is asked, also for no rows: ranks in lockstep make the same calls.

        Args:
            ids: By node type.
            tables: To ask instead of the learnable ones.
            are_rows: The ids are rows of tables, not nodes.
        """
        tables, found = self.tables if tables is None else tables, {}
        for ntype in self._num_nodes:
            if ntype in self._frozen:
                with torch.no_grad():
                    found[ntype] = self._frozen[ntype](ids[ntype], device=self._device)
            elif ntype in tables:
                rows = ids[ntype] if are_rows else self.rows_of(ntype, ids[ntype])
                found[ntype] = tables[ntype](rows, device=self._device, dtype=torch.get_default_dtype())
            else:
                found[ntype] = self.features[ntype].index_select(0, ids[ntype]).to(self._device)
        return found

    def rows_of(self, ntype: str, nodes: Tensor) -> Tensor:
        """The rows of nodes in their table, (B,), which its policy may number otherwise."""
        if ntype not in self._rows:  # a trainer that has a part of the graph asks for few types, or none
            number = self._num_nodes[ntype]
            original = as_original_ids(None, self._policies.get(ntype), number, ntype)
            self._rows[ntype] = None if original is None else torch.from_numpy(original.find(np.arange(number)))
        found = self._rows[ntype]
        return nodes if found is None else found[nodes]

    def owned(self, ntype: str, nodes: Tensor, rank: int, num_ranks: int) -> Tensor:
        """Positions in ``nodes`` (B,) of the nodes that a rank stores, and therefore trains on."""
        if num_ranks == 1:
            return torch.arange(len(nodes))
        book = as_book(self._policies.get(ntype), self._num_nodes[ntype], ntype)
        owner = layout(book, num_ranks, None, ntype).owner(self.rows_of(ntype, nodes))
        return (owner == rank).nonzero().flatten()

    def step(self, clip_norm: float | None = None, group: ProcessGroup | None = None) -> None:
        """Apply the gradients of the rows gathered since the last step.

        Args:
            clip_norm: The gradients of a table are scaled down to this norm. Over several ranks it is the norm of
                their concatenation, which is at least that of their mean.
            group: The ranks.
        """
        if self.optimizer is None:
            return
        if clip_norm is not None:
            for table in expanded(self.tables.values()):
                grads = [grad for _, grad in table.pending()]
                squares = torch.tensor([sum(float(grad.square().sum()) for grad in grads)], dtype=torch.float64)
                if group is not None:
                    squares = group.sum(squares, f"norm of the gradients of table {table.name!r}")
                norm = float(squares.sqrt())
                if norm > clip_norm:
                    table.scale_gradients(clip_norm / norm)
        self.optimizer.step()


def _matrix(ntype: str, features: Any, num_nodes: int) -> Any:
    """Checked rows; those of mapped files stay there."""
    if isinstance(features, MappedRows) and features.shape[0] == num_nodes:
        return features
    matrix = features if isinstance(features, Tensor) else torch.from_numpy(np.ascontiguousarray(features))
    if matrix.dim() != 2 or len(matrix) != num_nodes or not matrix.is_floating_point():
        raise ShapeError(
            f"features of {ntype!r} have shape {tuple(matrix.shape)} and dtype {matrix.dtype}; "
            f"expected floating ({num_nodes}, width)"
        )
    return matrix.to(torch.get_default_dtype())
