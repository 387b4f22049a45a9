"""Training by several ranks in lockstep: the first reads, cuts and judges the graph, all walk and train on parts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import partition
from graph_emb.config import RunConfig
from graph_emb.data.part_graph import PartGraph
from graph_emb.data.partitioned_walks import PartitionedWalkSampler
from graph_emb.embedding import DistEmbedding
from graph_emb.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram import SkipGramConfig, SkipGramProgress, SkipGramResult, train_skipgram
from graph_emb.models.skipgram_model import SkipGram
from graph_emb.partition_book import PartitionBook
from graph_emb.transport import active
from graph_emb.transport.base import Transport
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.routing import Layout, layout
from partition.hetero import EDGE_TYPE, NODE_TYPE, HeteroGraph

CHUNK_ROWS = 1 << 16
"""Rows that travel to the first rank at a time after the training."""
WEIGHT = "weight"
MOST_SILENCE = 30.0
"""Seconds until a kvstore process that does not answer counts as dead, whatever an exchange may take."""


@dataclass(frozen=True)
class GatheredRows:
    """What the ranks made together.

    Attributes:
        result: This rank's view of the training.
        rows: All rows in the graph's original order on the first rank, (N, D); None on the others.
    """

    result: SkipGramResult
    rows: torch.Tensor | None


@dataclass(frozen=True)
class Ranks:
    """The trainers of a job.

    Attributes:
        group: Brings their walkers and their plans together.
        transport: Where the tables live: with the ranks (collective), or with DGL's servers (kvstore).
    """

    group: ProcessGroup
    transport: Transport

    @property
    def rank(self) -> int:
        """This trainer."""
        return self.group.rank

    def layout(self, book: PartitionBook) -> Layout:
        """Which trainer walks from which nodes."""
        if isinstance(self.transport, CollectiveTransport):
            return self.transport.layout(book, "walks")
        return layout(book, self.group.world_size, None, "walks")

    def close(self) -> None:
        """Leave the mode and the group."""
        active.shutdown()
        self.group.close()


def start(config: RunConfig) -> Ranks:
    """Enter the mode of a configuration and check that all ranks were given the same one.

    Raises:
        ConfigError: the number of ranks, or the configuration of one of them, differs.
    """
    parallel = config.parallel
    if parallel.mode == "collective":
        made: Any = active.init(mode="collective", timeout=parallel.timeout)
        ranks = Ranks(made.group, made)
    else:
        group = ProcessGroup(timeout=parallel.timeout)
        ranks = Ranks(group, active.init(mode="kvstore", timeout=min(parallel.timeout, MOST_SILENCE)))
    try:
        if ranks.group.world_size != parallel.trainers:
            raise ConfigError(
                f"parallel.trainers = {parallel.trainers}, but the launcher started {ranks.group.world_size}; "
                "make them equal"
            )
        if len(set(ranks.group.gather_objects(config.model_dump_json(), "start"))) > 1:
            raise ConfigError("the ranks were given different configurations; start them all with the same arguments")
    except BaseException:
        ranks.close()
        raise
    return ranks


def cut(graph: Graph, config: RunConfig, folder: Path) -> partition.PartitionedGraph:
    """Partition a graph for the trainers; on the first rank."""
    heads = np.repeat(np.arange(graph.num_nodes, dtype=np.int64), np.diff(graph.indptr))
    data = {} if graph.weights is None else {EDGE_TYPE: {WEIGHT: graph.weights}}
    arcs = {EDGE_TYPE: (heads, graph.indices.astype(np.int64))}
    whole = HeteroGraph({NODE_TYPE: graph.num_nodes}, arcs, edge_data=data, name="graph")
    parts = config.parallel.trainers
    if parts > graph.num_nodes:
        raise ConfigError(f"parallel.trainers = {parts}: the graph has {graph.num_nodes} nodes; take fewer trainers")
    return partition.build(
        whole, parts, config.parallel.method, out=folder / "parts", seed=config.seed, report=False, allow_empty=True
    )


def train(
    ranks: Ranks,
    config: RunConfig,
    skipgram: SkipGramConfig,
    graph: Graph | None,
    *,
    progress: bool,
    log: Callable[[SkipGramProgress], None] | None = None,
) -> GatheredRows:
    """Cut the graph and train on its parts. Every rank calls it; the first one gives the graph and gets the rows.

    The parts lie in a temporary folder that all ranks can read: one machine, or a shared ``TMPDIR``.
    """
    first = ranks.rank == 0
    with tempfile.TemporaryDirectory(prefix="graph-emb-parts-") if first else nullcontext() as folder:
        told = None
        if folder is not None:
            assert graph is not None
            told = (str(cut(graph, config, Path(folder)).path), graph.directed)
        path, directed = ranks.group.gather_objects(told, "the parts' place")[0]
        parts = partition.load(path)
        own = own_part(parts, ranks, directed)
        order = parts.node_map() if first else None
        ranks.group.barrier()
    model_options = config.model
    sampler = PartitionedWalkSampler(
        own,
        ranks.group,
        num_walks=model_options.num_walks,
        walk_length=model_options.walk_length,
        p=getattr(model_options, "p", 1.0),
        q=getattr(model_options, "q", 1.0),
        seed=config.seed,
    )
    model = SkipGram(parts.num_nodes(), skipgram, seed=config.seed, part_policy=parts.policy())
    result = train_skipgram(
        sampler,
        model=model,
        seed=config.seed,
        num_threads=config.train.threads,
        progress=progress and first,
        log_interval=config.train.log_interval,
        on_batch=log,
    )
    ranks.transport.flush()
    ranks.transport.barrier()
    rows = _combined(model, config.output.context, first)
    if rows is not None and order is not None:
        original = torch.empty_like(rows)
        original[torch.from_numpy(np.array(order))] = rows
        rows = original
    ranks.transport.barrier()  # nobody leaves while the first one reads
    return GatheredRows(result, rows)


def own_part(parts: partition.PartitionedGraph, ranks: Ranks, directed: bool) -> PartGraph:
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
    token = _all_rows(model.embedding, wanted)
    if context == "none" or model.context is model.embedding:
        return token
    other = _all_rows(model.context, wanted)
    if token is None or other is None:
        return None
    return token + other if context == "add" else torch.cat([token, other], dim=1)


def _all_rows(table: DistEmbedding, wanted: bool) -> torch.Tensor | None:
    """All rows of a table on the rank that wants them, chunk by chunk; the others answer."""
    out = torch.empty(table.num_embeddings, table.embedding_dim) if wanted else None
    with torch.no_grad():
        for low in range(0, table.num_embeddings, CHUNK_ROWS):
            high = min(low + CHUNK_ROWS, table.num_embeddings)
            rows = table(torch.arange(low, high if wanted else low))
            if out is not None:
                out[low:high] = rows
    return out
