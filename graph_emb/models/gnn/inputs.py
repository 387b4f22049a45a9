"""Input rows of a graph network: features, or tables that learn."""

# N nodes of a type, R of them with this rank, B asked nodes, D width of their rows.

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.composed import expanded
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.dgl_format import MappedRows
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.graph.partition_book import as_book
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.models.tables import Table, node_table
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from graph_emb.table.initializers import Normal, XavierUniform, Zeros
from graph_emb.table.own_rows import of_highest_degree
from graph_emb.table.placement import AUTO, File, device_for, in_memory
from graph_emb.transport import runtime
from graph_emb.transport.lockstep import layout

CHUNK_ROWS = 1 << 16
"""Rows of a table that are written or averaged at a time."""
LEAST_MEMORY = 1 << 16
"""Bytes of memory of each table in a file: a page at least."""


class InputRows:
    """Source of a network's input rows, and sink of their gradients: features, or learnable tables.

    Args:
        num_nodes: N of each node type.
        config: Width, rule, learning rate and first rows of the tables.
        features: Shape (N, any width), floating, for some node types; the others get a table. Where ``own`` is given:
            of this rank's nodes, (R, any width), ``MappedRows`` too; they then lie in tables that do not learn.
        policies: Partition policies of node types, see ``DistEmbedding``; ids stay those of the graph.
        levels: By node type the parts of its nodes, (N, L), in the order of the graph; for composed tables of position.
        own_rows: By node type its nodes that have a row of their own, for ``config.own_rows``; see
            ``nodes_of_own_rows``. None: none.
        prefix: A table is named by its node type with this before it; None: by a fresh number.
        seed: Of the initial values.
        device: Where the network runs; in local mode the tables lie there too. None: the processor, or the GPU of a
            placement ``"device"``.
        own: This rank's part of the graph; None: it is whole.
        etypes: Of the graph, on which the width of a learnable row may depend.
        placement: Of all tables that learn, a word as in ``DistEmbedding``; or ``ge.File(folder, memory)``, whose
            memory all tables share: those that learn, their averages, and the rows between layers of an evaluation.
    Attributes:
        tables: By node type; empty where all have features.
        device: Where the network runs.
        in_files: Whether tables lie in files.
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
        own_rows: Mapping[str, np.ndarray] | None = None,
        prefix: str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        own: OwnEdges | None = None,
        etypes: Sequence[EdgeType] = (),
        placement: Any = AUTO,
    ) -> None:
        for kind, given in (("features", features), ("policies", policies), ("levels", levels)):
            for ntype in given or {}:
                if ntype not in num_nodes:
                    raise unknown_name(f"node type of {kind}", ntype, num_nodes)
        mode = runtime.current()
        self.device = device_for(placement, device, next(iter(num_nodes)), mode=mode.mode, hogwild=mode.hogwild)
        self._num_nodes = dict(num_nodes)
        counts = num_nodes if own is None else {ntype: len(names) for ntype, names in own.names.items()}
        self.features = {t: _matrix(t, f, counts[t]) for t, f in (features or {}).items()}
        seeds = np.random.SeedSequence(seed).generate_state(len(num_nodes)).tolist()
        self._config, self._seeds = config, dict(zip(num_nodes, seeds, strict=True))
        self._levels, self._own_rows = dict(levels or {}), dict(own_rows or {})
        self._policies, self._prefix = dict(policies or {}), prefix
        self._rows: dict[str, Tensor | None] = {}
        self.widths = {
            t: self.features[t].shape[1] if t in self.features else config.learned_width(t, etypes) for t in num_nodes
        }
        self._placement, self.in_files = placement, not in_memory(placement)
        if self.in_files:
            self._check_files()
        if levels and not config.takes_levels:
            raise ConfigError(f"levels have no effect on inputs={config.inputs!r}; leave them out")
        self.tables: dict[str, Table] = {}
        for ntype, own_seed in self._seeds.items():
            if ntype not in self.features:
                num = num_nodes[ntype]
                first: Any = XavierUniform(num, seed=own_seed) if config.init == "xavier" else Normal(seed=own_seed)
                self.tables[ntype] = self._table(ntype, config, first)
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

    def _table(self, ntype: str, config: GNNConfig, first: Any, suffix: str = "") -> Table:
        """A table of the learnt rows of a node type."""
        return node_table(
            self._num_nodes[ntype],
            self.widths[ntype],
            config,
            name=self._name(ntype, suffix),
            init_func=first,
            part_policy=self._policies.get(ntype),
            levels=self._levels.get(ntype),
            own_rows=self._own_rows.get(ntype),
            seed=self._seeds[ntype],
            of=f"node type {ntype!r}",
            placement=self._share(ntype, self.widths[ntype] * (1 if suffix else 2)),
            device=self.device,
        )

    def _name(self, ntype: str, suffix: str = "") -> str | None:
        return None if self._prefix is None else f"{self._prefix}{ntype}{suffix}"

    def _check_files(self) -> None:
        """Raise a ConfigError for settings that need all rows in memory, and for too little of it."""
        if not isinstance(self._placement, File):
            raise ConfigError(f"placement={self._placement!r}: tables of a network lie in memory or in a ge.File")
        if self._config.fanouts is None:
            raise ConfigError(
                "rows in files need steps of sampled neighbourhoods: without fanouts a step asks for all rows; set "
                "fanouts, as [10, 10] for two layers"
            )
        self._sizes = self._file_sizes()
        if self._placement.memory_bytes < LEAST_MEMORY * len(self._sizes):
            raise ConfigError(
                f"memory of {self._placement.memory_bytes:,} bytes: {len(self._sizes)} tables in files take "
                f"{LEAST_MEMORY:,} each at least; raise it"
            )

    def _file_sizes(self) -> list[int]:
        """Numbers of each table in a file; of those that learn twice, for the optimizer's."""
        learnt = [t for t in self._num_nodes if t not in self.features]
        sizes = [(2, self._num_nodes[t] * self.widths[t]) for t in learnt]
        sizes += [(1, size) for _, size in sizes if self._config.ema_decay]
        sizes += [(1, num * self._config.hidden_dim) for num in self._num_nodes.values()] * 3  # two layers, and results
        return [times * size for times, size in sizes]

    def _share(self, ntype: str, width: int) -> Any:
        """The placement of a table of a node type that is as many numbers wide: with its share of all memory."""
        if not self.in_files:
            return self._placement
        rest = self._placement.memory_bytes - LEAST_MEMORY * len(self._sizes)
        share = self._num_nodes[ntype] * width / sum(self._sizes)
        return replace(self._placement, memory=LEAST_MEMORY + int(rest * share))

    def make_frozen(self, ntype: str, width: int, placement: Any = AUTO) -> DistEmbedding:
        """A table of zeros of torch's default dtype that no optimizer changes, with the partition of a node type."""
        number, policy, dtype = self._num_nodes[ntype], self._policies.get(ntype), torch.get_default_dtype()
        return DistEmbedding(number, width, init_func=None, part_policy=policy, dtype=dtype, placement=placement)

    def make_between(self, ntype: str, width: int) -> DistEmbedding:
        """``make_frozen`` for the rows of a layer, or of the last one, of an evaluation; in a file as all others."""
        return self.make_frozen(ntype, width, self._share(ntype, self._config.hidden_dim) if self.in_files else AUTO)

    def make_averages(self) -> dict[str, Table]:
        """For each table another of its kind, parts, hashes and partition, named as it is with "_average" behind.

        The numbers that are kept are zeros of torch's default dtype.
        """
        dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        config = self._config.model_copy(update={"dtype": dtype})
        return {ntype: self._table(ntype, config, Zeros(), "_average") for ntype in self.tables}

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
                    found[ntype] = self._frozen[ntype](ids[ntype], device=self.device)
            elif ntype in tables:
                rows = ids[ntype] if are_rows else self.rows_of(ntype, ids[ntype])
                found[ntype] = tables[ntype](rows, device=self.device, dtype=torch.get_default_dtype())
            else:
                found[ntype] = self.features[ntype].index_select(0, ids[ntype]).to(self.device)
        return found

    def prefetch(self, ids: Mapping[str, Tensor]) -> None:
        """Start to bring the learnable rows that ``gather`` will be asked for, where they lie in files."""
        for ntype, table in self.tables.items():
            table.prefetch(self.rows_of(ntype, ids[ntype]))

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

    def step(self, clip_norm: float | None = None, total: Callable[[list[float]], float] = math.fsum) -> None:
        """Apply the gradients of the rows gathered since the last step.

        Args:
            clip_norm: The gradients of a table are scaled down to this norm. Over several ranks or blocks it is the
                norm of their concatenation, which is at least that of their mean.
            total: The sum of all ranks' squares of norms, given this rank's.
        """
        if self.optimizer is None:
            return
        if clip_norm is not None:
            for table in expanded(self.tables.values()):
                grads = [grad for _, grad in table.pending()]
                norm = math.sqrt(total([float(grad.square().sum()) for grad in grads]))
                if norm > clip_norm:
                    table.scale_gradients(clip_norm / norm)
        self.optimizer.step()


def nodes_of_own_rows(
    graph: HeteroGraph | OwnEdges, config: GNNConfig, features: Collection[str], policies: Mapping[str, Any]
) -> dict[str, np.ndarray] | None:
    """The ``config.own_rows`` nodes of highest degree, by type without features; None: none. Every rank calls it.

    Args:
        graph: Whose edges count, in and out, of all types; whole, or this rank's part.
        features: Node types that learn no rows.
        policies: Of the other types where ``graph`` is a part, whose order of nodes is theirs.
    Raises:
        ConfigError: there are fewer nodes.
    """
    if not config.own_rows:
        return None
    own = graph if isinstance(graph, OwnEdges) else None
    degrees = {ntype: np.zeros(num, np.int64) for ntype, num in graph.num_nodes.items()}
    for etype in graph.etypes:
        if isinstance(graph, OwnEdges):
            (low, _), edges = graph.ranges[etype[2]], graph.edges[etype]
            arriving = edges.indptr.diff().numpy()
            degrees[etype[2]][low : low + len(arriving)] += arriving
            sources = edges.sources.numpy()
        else:
            sources, destinations = graph.edges[etype]
            degrees[etype[2]] += np.bincount(destinations, minlength=graph.num_nodes[etype[2]])
        degrees[etype[0]] += np.bincount(sources, minlength=graph.num_nodes[etype[0]])
    learnt = [ntype for ntype in degrees if ntype not in features]
    found = []
    for ntype in learnt:
        of_type = degrees[ntype]
        if own is not None:
            of_type = own.group.sum(torch.from_numpy(of_type), "degrees").numpy()
            original = as_original_ids(None, policies.get(ntype), len(of_type), ntype)
            of_type = of_type if original is None else of_type[original.find(np.arange(len(of_type)))]
        found.append(of_type)
    return dict(zip(learnt, of_highest_degree(found, config.own_rows), strict=True))


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
