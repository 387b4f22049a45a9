"""Forward pass, optimizer step and average over the epochs, which all objectives share."""

# N nodes of a type, B asked nodes, D width of their rows, O output width.

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.composed import expanded
from graph_emb.core.devices import device_of
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.models.announcing import Step, announced
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.models.gnn.inputs import CHUNK_ROWS, InputRows
from graph_emb.models.gnn.part_rows import EvenRows, PartRows
from graph_emb.models.gnn.step_blocks import StepBlocks, check_network
from graph_emb.sampling.blocks import Batch, BlockEdges, all_edges, whole_graph
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.partitioned_neighbors import OwnEdges, PartitionedNeighborSampling
from graph_emb.table.shard import WEIGHT
from graph_emb.transport import runtime
from graph_emb.transport.data_parallel import DataParallel
from graph_emb.transport.pace import JobPace, PaceMeter
from graph_emb.transport.process_group import ProcessGroup

STEPS_AHEAD = 1
"""Steps before its own in which a table in a file hears of the rows of a step."""


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
        steps_per_epoch: What trains the network says it; for the schedule of rates.
        plateau: The factor of all rates that follows the validation.
        average: Averaged weights, which are evaluated instead of the last ones; None: no average.
        blocks: Of each step; None: a rank computes the nodes of a step that it owns at once.
    Raises:
        ConfigError: ``config.blocks`` that the ranks cannot share evenly, or layers that blocks do not allow.
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
        self.device = device_of("device", device)
        self.rank, self.num_ranks = (0, 1) if group is None else (group.rank, group.world_size)
        self.blocks: StepBlocks | None = None
        if config.blocks > 1:
            config.check_trainers(self.num_ranks)
            check_network(network, config.blocks)
            self.blocks = StepBlocks(config.blocks, group, seed)
        self.network = self.shared(network)
        self.optimizers = [
            torch.optim.Adam(network.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        ]
        self.plateau = config.new_plateau()
        self.average: WeightAverage | None = None
        self.meter = None if group is None else PaceMeter(group.link, runtime.current().link)
        self.own_seed = (seed * self.num_ranks + self.rank) % (1 << 64)  # the largest that torch takes
        self.generator = torch.Generator().manual_seed(seed % (1 << 64))
        self._sampling: NeighborSampling | None = None
        self._whole: Batch | None = None
        self._coming: deque[tuple[Tensor, Batch]] = deque()  # nodes of the next steps, and their samples
        self._repeated: dict[int, Batch] = {}  # of a partitioned graph or of blocks: what every step computes
        self._part_rows: PartRows | None = None
        self._epoch = self._step = 0
        self.steps_per_epoch = 1
        self._own = graph if isinstance(graph, OwnEdges) else None
        self.first_row = 0 if self._own is None else self._own.places[target].owned(self.rank)[0]
        fanouts = (-1,) * config.num_layers if config.fanouts is None else config.fanouts
        edges: dict[EdgeType, BlockEdges] | None = None
        if isinstance(graph, OwnEdges):
            self._sampling = PartitionedNeighborSampling(graph, fanouts, seed)
        elif config.fanouts is not None or self.blocks is not None:
            edges = all_edges(graph)
            self._sampling = NeighborSampling(graph, fanouts, seed, edges=edges)
        if self.blocks is not None or (inputs.in_files and self._own is None):
            self._part_rows = EvenRows(graph, target, inputs, config, group, device, edges)
        elif isinstance(graph, OwnEdges):
            self._part_rows = PartRows(graph, target, inputs, config, device)
        else:
            self._whole = whole_graph(graph, config.num_layers, target).to(self.device)

    def shared(self, network: nn.Module) -> DataParallel:
        """A network of which every rank has a copy; gradients of blocks are not summed until the step."""
        return DataParallel(network, self.group, sums=self.blocks is None)

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
            if self._coming and torch.equal(self._coming[0][0], nodes):
                return self._trained_rows(self._coming.popleft()[1])
            return self._trained_rows(self._sampled(self._sampling, nodes))
        if self.blocks is not None:  # whose nodes come in the same order in every step
            return self._trained_rows(self._known(self.blocks.current, self._sampling, nodes))
        order = torch.argsort(self._names(nodes))
        batch = self._known(0, self._sampling, nodes[order])
        return self._trained_rows(batch).index_select(0, torch.argsort(order).to(self.device))

    def announced(self, steps: Iterator[Step], nodes: Callable[[Step], Tensor]) -> Iterator[Step]:
        """The steps of an epoch; tables in files hear of each one's rows ``STEPS_AHEAD`` before.

        Args:
            nodes: What ``compute`` will be asked for in a step, which is sampled when it is announced.
        """
        alone = runtime.current().mode == "local" and self.blocks is None
        sampling = self._sampling
        if sampling is None or not (alone and self.inputs.in_files):
            return steps

        def announce(step: Step) -> None:
            asked = nodes(step)
            batch = self._sampled(sampling, asked)
            self.inputs.prefetch(batch.inputs)
            self._coming.append((asked, batch))

        return announced(steps, announce, STEPS_AHEAD)

    def compute_all(self) -> Tensor:
        """The network's rows of all target nodes, shape (N, O), from whole neighbourhoods, in training."""
        assert self._whole is not None
        return self._trained_rows(self._whole)

    def _sampled(self, sampling: NeighborSampling, nodes: Tensor) -> Batch:
        """A batch on the network's device; of a partitioned graph its inputs are rows of tables."""
        return sampling.sample({self.target: nodes}).to(self.device)

    def _known(self, block: int, sampling: NeighborSampling, nodes: Tensor) -> Batch:
        if block not in self._repeated:
            self._repeated[block] = self._sampled(sampling, nodes)
        return self._repeated[block]

    def _trained_rows(self, batch: Batch) -> Tensor:
        return self._computed(self.network, batch, dropout=self.config.input_dropout)

    def _computed(
        self, network: Any, batch: Batch, tables: Mapping[str, Any] | None = None, dropout: float = 0.0
    ) -> Tensor:
        rows = self.inputs.gather(batch.inputs, tables, are_rows=self._own is not None)
        if dropout:
            rows = {ntype: F.dropout(of_type, dropout) for ntype, of_type in rows.items()}
        out: Tensor = network(batch.blocks, rows)[self.target]
        return out

    def start_epoch(self, epoch: int) -> None:
        """Begin the samples of an epoch."""
        self._epoch, self._step = epoch, 0
        self._coming.clear()
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
        if self.blocks is not None and self.config.batch_size is None:
            return [torch.arange(count)]  # so that a block has the same nodes in every epoch
        return torch.randperm(count, generator=self.generator).split(self.config.batch_size or max(1, count))

    def shares(self, owned: Tensor, networks: Sequence[nn.Module]) -> Iterator[Tensor | slice]:
        """Selections from a step's items (B,): what this rank computes at a time, with gradients of its own each.

        Args:
            owned: Which items this rank owns, bool; it computes those unless steps have blocks.
            networks: All that the step trains.
        """
        if self.blocks is None:
            yield owned
            return
        for block, chosen in zip(self.blocks.own, self.blocks.slices(len(owned)), strict=True):
            with self.computing(block, networks):
                yield chosen

    def computing(self, block: int, networks: Sequence[nn.Module]) -> AbstractContextManager[None]:
        """Within it a block of this step is computed, see ``StepBlocks``; without blocks it does nothing."""
        if self.blocks is None:
            return nullcontext()
        return self.blocks.computing(block, (self._epoch, self._step), networks)

    def mean_loss(self, sums: Sequence[float], weight: float) -> float:
        """The sums of losses of all ranks' shares, divided by the weight of all."""
        found = self.total(*sums)[0] if self.blocks is None else self.blocks.total(sums)
        return found / weight

    def total(self, *values: float) -> list[float]:
        """Each value summed over the ranks."""
        if self.group is None:
            return list(values)
        return self.group.sum(torch.tensor(values, dtype=torch.float64), "sums of a step").tolist()

    def pace(self) -> JobPace | None:
        """The pace of all ranks since it was last asked; None of one rank. Every rank calls it."""
        if self.meter is None:
            return None
        of_ranks = self.meter.table(self.rank, self.num_ranks)
        found = torch.tensor(self.total(*of_ranks.ravel().tolist()), dtype=torch.float64)
        return JobPace.of(found.view(of_ranks.shape).tolist())

    def agreed(self, values: dict[str, float]) -> dict[str, float]:
        """The first rank's values, so that all ranks stop at the same epoch."""
        found: dict[str, float] = values if self.group is None else self.group.gather_objects(values, "evaluation")[0]
        return found

    def step(self, *networks: nn.Module) -> None:
        """Apply the gradients of the networks and of the tables, each clipped on its own."""
        self._set_rates()
        self._step += 1
        if self.blocks is not None:
            self.blocks.sum_gradients(networks)
        if self.config.clip_norm is not None:
            for network in networks:
                nn.utils.clip_grad_norm_(network.parameters(), self.config.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.inputs.step(self.config.clip_norm, self._squared_norm)

    def _set_rates(self) -> None:
        """Of the next step, by the schedule."""
        step = (self._epoch - 1) * self.steps_per_epoch + self._step
        share = self.plateau.scale * self.config.share_of_step(step, self.config.epochs * self.steps_per_epoch)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.config.network_lr * share
        for group in [] if self.inputs.optimizer is None else self.inputs.optimizer.param_groups:
            group["lr"] = self.config.first_lr * share

    def _squared_norm(self, squares: list[float]) -> float:
        return self.total(sum(squares))[0] if self.blocks is None else self.blocks.total(squares)


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


class WeightAverage(nn.Module):
    """``a_n = a_{n-1} + (1 - d) / (1 - d^n) (x_n - a_{n-1})`` of networks and tables after epoch n, d the decay.

    The factor is 1 at first: the weights of epoch m < n count ``d^(n-m)`` times as much as those of n, and their first
    values not at all, as in Adam's mean of gradients. Averaged rows are tables with the partition of their originals;
    every process averages the rows that it stores, and none travels. Of composed rows the shared ones and the weights
    are averaged.

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
        kept = (zip(expanded([towards]), expanded([moved]), strict=True) for towards, moved in tables)
        for towards_rows, moved_rows in chain.from_iterable(kept):
            shares = transport.rows(towards_rows.name), transport.rows(moved_rows.name, overwrite=True)
            for theirs, mine in zip(*shares, strict=True):
                for start in range(0, mine.num_rows, CHUNK_ROWS):
                    stop = min(start + CHUNK_ROWS, mine.num_rows)
                    old, goal = (share.read(WEIGHT, start, stop) for share in (mine, theirs))
                    dtype = torch.get_default_dtype()
                    rows = torch.lerp(old.to(dtype), goal.to(dtype), factor)
                    mine.write(WEIGHT, torch.arange(start, stop), rows.to(old.dtype))
        transport.barrier()
