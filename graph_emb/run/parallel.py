"""Training by several ranks in lockstep: the first reads, cuts and judges the graph, all walk and train on parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig, config_text
from graph_emb.core.errors import ConfigError
from graph_emb.core.storage import scratch_folder
from graph_emb.formats.gather_table import all_rows
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import PartitionBook, RankRanges
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.models.skipgram.config import PlainWalkConfig
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.training import SkipGramProgress, SkipGramResult, train_skipgram
from graph_emb.run.warm_start import first_rows
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.transport import runtime
from graph_emb.transport.base import Transport
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from partition import PartitionedGraph

WEIGHT = "weight"
TABLE = "node"
"""The name of the nodes' table in a run and in its checkpoints."""
MOST_SILENCE = 30.0
"""Seconds until a kvstore process that does not answer counts as dead, whatever an exchange may take."""


@dataclass(frozen=True)
class GatheredRows:
    """Result of a training by several ranks.

    Attributes:
        result: This rank's view of the training.
        rows: All rows in the graph's original order on the first rank, (N, D); None on the others.
    """

    result: SkipGramResult
    rows: torch.Tensor | None


@dataclass(frozen=True)
class Trainers:
    """The trainers of a job.

    Attributes:
        group: Brings their walkers and their plans together.
        transport: Where the tables live: with the ranks (collective), or with DGL's servers (kvstore).
        folders: Temporary ones of the first rank, removed by ``close``: tables read their id maps while they live.
    """

    group: ProcessGroup
    transport: Transport
    folders: ExitStack = field(default_factory=ExitStack)

    @property
    def rank(self) -> int:
        """This trainer."""
        return self.group.rank

    def layout(self, book: PartitionBook) -> RankRanges:
        """Which trainer walks from which nodes."""
        if isinstance(self.transport, CollectiveTransport):
            return self.transport.layout(book, "walks")
        return layout(book, self.group.world_size, None, "walks")

    def close(self) -> None:
        """Leave the mode and the group."""
        runtime.shutdown()
        self.group.close()
        self.folders.close()


def start(config: RunConfig) -> Trainers:
    """Enter the mode of a configuration and check that all ranks were given the same one.

    Raises:
        ConfigError: the number of ranks, or the configuration of one of them, differs.
    """
    parallel = config.parallel
    if parallel.mode == "collective":
        made: Any = runtime.init(mode="collective", timeout=parallel.timeout, hogwild=parallel.hogwild)
        ranks = Trainers(made.group, made)
    else:
        group = ProcessGroup(timeout=parallel.timeout)
        silence = min(parallel.timeout, MOST_SILENCE)
        ranks = Trainers(group, runtime.init(mode="kvstore", timeout=silence, hogwild=parallel.hogwild))
    try:
        if ranks.group.world_size != parallel.trainers:
            raise ConfigError(
                f"parallel.trainers = {parallel.trainers}, but the launcher started {ranks.group.world_size}; "
                "make them equal"
            )
        if len(set(ranks.group.gather_objects(config_text(config), "start"))) > 1:
            raise ConfigError("the ranks were given different configurations; start them all with the same arguments")
    except BaseException:
        ranks.close()
        raise
    return ranks


@contextmanager
def parts_for(
    ranks: Trainers, config: RunConfig, graph: HeteroGraph | None, facts: Any = None
) -> Iterator[tuple[PartitionedGraph, Any]]:
    """Cut a graph for the trainers and open the parts on every rank; every rank calls it, the first gives the graph.

    The parts lie in a temporary folder that all ranks can read: one machine, or a shared ``TMPDIR``. They are gone
    when the first rank closes ``ranks``.

    Args:
        facts: What the first rank has to tell the others about the graph.
    Yields:
        The parts, and the first rank's ``facts``.
    """
    told = None
    if ranks.rank == 0:
        assert graph is not None
        folder = ranks.folders.enter_context(scratch_folder("graph-emb-parts"))
        told = (str(cut(graph, config, folder).path), facts)
    path, facts = ranks.group.gather_objects(told, "the parts' place")[0]
    yield partition.load(path), facts
    ranks.group.barrier()


def cut(graph: HeteroGraph, config: RunConfig, folder: Path) -> PartitionedGraph:
    """Partition a graph for the trainers; on the first rank."""
    parts = config.parallel.trainers
    if parts > graph.total_nodes:
        raise ConfigError(f"parallel.trainers = {parts}: the graph has {graph.total_nodes} nodes; take fewer trainers")
    return partition.build(
        graph, parts, config.parallel.method, out=folder / "parts", seed=config.seed, report=False, allow_empty=True
    )


def of_one_type(graph: Graph) -> HeteroGraph:
    """A plain graph as ``partition`` takes it."""
    heads = np.repeat(np.arange(graph.num_nodes, dtype=np.int64), np.diff(graph.indptr))
    data = {} if graph.weights is None else {EDGE_TYPE: {WEIGHT: graph.weights}}
    arcs = {EDGE_TYPE: (heads, graph.indices.astype(np.int64))}
    return HeteroGraph({NODE_TYPE: graph.num_nodes}, arcs, edge_data=data, name="graph")


@dataclass(frozen=True)
class Share:
    """A rank's part of a graph that was cut for the trainers.

    Attributes:
        graph: The arcs that leave its nodes, in partition order.
        policy: Who owns which row of a table of all nodes.
        order: The original number of each node, shape (N,), on the first rank; None on the others.
    """

    graph: PartGraph
    policy: Any
    order: np.ndarray | None


def share_of(ranks: Trainers, config: RunConfig, graph: Graph | None) -> Share:
    """Cut a plain graph and take this rank's share. Every rank calls it; the first one gives the graph."""
    whole = None if graph is None else of_one_type(graph)
    with parts_for(ranks, config, whole, None if graph is None else graph.directed) as (parts, directed):
        order = np.array(parts.node_map()) if ranks.rank == 0 else None
        return Share(own_part(parts, ranks, directed), parts.policy(), order)


def train(
    ranks: Trainers,
    config: RunConfig,
    walks: PlainWalkConfig,
    graph: Graph | None,
    *,
    progress: bool,
    log: Callable[[SkipGramProgress], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
) -> GatheredRows:
    """Cut the graph and train on its parts. Every rank calls it; the first one gives the graph and gets the rows."""
    share = share_of(ranks, config, graph)
    p, q = walks.bias
    sampler = PartitionedWalkSampler(
        share.graph,
        ranks.group,
        num_walks=walks.num_walks,
        walk_length=walks.walk_length,
        p=p,
        q=q,
        seed=config.seed,
    )
    name = None if checkpoints is None else TABLE
    node_ids = ranks.group.gather_objects(None if graph is None else graph.node_ids, "the ids of the nodes")[0]
    first = first_rows(walks, config.seed, node_ids)
    model = SkipGram(
        share.graph.num_nodes, walks, seed=config.seed, part_policy=share.policy, name=name, init_func=first
    )
    result = train_skipgram(
        sampler,
        model=model,
        seed=config.seed,
        num_threads=config.train.threads,
        progress=progress and ranks.rank == 0,
        log_interval=config.train.log_interval,
        on_batch=log,
        checkpoints=checkpoints,
    )
    return GatheredRows(result, gathered_rows(ranks, model, config.output.context, share.order))


def gathered_rows(ranks: Trainers, model: SkipGram, context: str, order: np.ndarray | None) -> torch.Tensor | None:
    """``SkipGram.embeddings`` in the graph's original order, on the rank that has ``order``; every rank calls it."""
    ranks.transport.flush()
    ranks.transport.barrier()
    rows = _combined(model, context, order is not None)
    if rows is not None and order is not None:
        original = torch.empty_like(rows)
        original[torch.from_numpy(order)] = rows
        rows = original
    ranks.transport.barrier()  # every rank stays while the first one reads
    return rows


def own_part(parts: PartitionedGraph, ranks: Trainers, directed: bool) -> PartGraph:
    """The arcs that leave this rank's nodes, read from the parts in which they lie."""
    places = ranks.layout(parts.books[NODE_TYPE])
    low, high = places.owned(ranks.rank)
    starts = parts.nodes.typed_starts[:, 0]
    heads, tails, weights = [], [], []
    for index in range(parts.num_parts):
        if starts[index] >= high or starts[index + 1] <= low:
            continue
        part = parts.part(index)
        src, dst = part.ends()
        mine = (dst >= low) & (dst < high)  # an edge lies with its destination
        heads.append(src[mine])
        tails.append(dst[mine])
        column = part.edge_data().get(WEIGHT)
        if column is not None:
            weights.append(column[mine])
    src, dst = (np.concatenate([np.empty(0, np.int64), *pieces]) for pieces in (heads, tails))
    values = np.concatenate(weights) if weights else None
    if not directed:  # the reverse of every arc is there too, with the same weight
        return PartGraph.from_arcs(dst, src, places, ranks.rank, weights=values)
    return PartGraph.from_arcs(src, dst, places, ranks.rank, weights=values, directed=True, group=ranks.group)


def _combined(model: SkipGram, context: str, wanted: bool) -> torch.Tensor | None:
    """``SkipGram.embeddings`` of rows that lie with many ranks, in partition order."""
    token = all_rows(model.embedding, wanted)
    if context == "none" or model.context is model.embedding:
        return token
    other = all_rows(model.context, wanted)
    if token is None or other is None:
        return None
    return token + other if context == "add" else torch.cat([token, other], dim=1)
