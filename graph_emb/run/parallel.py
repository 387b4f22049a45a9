"""Training by several ranks in lockstep: the first reads, cuts and judges the graph, all walk and train on parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import partition
from graph_emb.config import RunConfig, fields_of
from graph_emb.core.errors import ConfigError, PartitionError, difference, unknown_name
from graph_emb.core.hidden import scratch_folder
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.graph.csr import Graph
from graph_emb.graph.ids import find_ids
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import PartitionBook, RangeBook, RankRanges
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.run import sharing
from graph_emb.run.cost import WalkLoad
from graph_emb.run.handing_out import at_hand
from graph_emb.run.inputs import folder_of, partition_of
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.transport import runtime
from graph_emb.transport.base import Transport, checked_wire
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.link import Link
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from partition import PartitionedGraph
from partition.assignment import Assignment
from partition.methods import assign
from partition.nesting import nested
from partition.partitioned import PartPolicy

WEIGHT = "weight"
TABLE = "node"
"""The name of the nodes' table in a run and in its checkpoints."""
WALKS: dict[str, Any] = {"balance": ("nodes",), "tolerance": 0.01}
"""How a graph is cut for walks, as ``assign`` takes it: from each node as many begin, so that parts of as many nodes
are as much work; where edges need not be shared evenly, fewer are cut."""
MOST_SILENCE = 30.0
"""Seconds until a kvstore process that does not answer counts as dead, whatever an exchange may take."""


@dataclass(frozen=True)
class Trainers:
    """The trainers of a job.

    Attributes:
        group: Brings their walkers and their plans together.
        transport: Where the tables live: with the ranks (collective), or with DGL's servers (kvstore).
        folders: Temporary ones of this rank, removed by ``close``: tables read their id maps while they live.
        sharing: How they came to share rows, a line for the user; empty where there was nothing to choose.
        link: Between their machines, as they measured it; None: servers hold the rows, or nothing leaves a machine.
        wire: How rows came to travel as they do, a line as ``sharing``.
    """

    group: ProcessGroup
    transport: Transport
    folders: ExitStack = field(default_factory=ExitStack)
    sharing: str = ""
    link: Link | None = None
    wire: str = ""

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


def start(config: RunConfig, before: bool | None = None) -> tuple[Trainers | None, RunConfig]:
    """Enter the mode of a configuration and check that all ranks were given the same one.

    Args:
        before: As of ``sharing.asked``.
    Returns:
        The trainers, None in local mode; and the configuration with their way to share rows filled in.
    Raises:
        ConfigError: the number of ranks, or the configuration of one of them, differs.
        ModeError: the process is one of several, and local is only the default.
    """
    parallel = config.parallel
    if parallel.mode == "local":
        named = "mode" in parallel.model_fields_set and "parallel" in config.model_fields_set
        runtime.start_local(named, "parallel.mode is 'local'")
        return None, config
    wish, why = sharing.asked(config, before)
    if parallel.mode == "collective":
        wired = {"hogwild": wish, "wire_dtype": parallel.rounded_to}
        made: Any = runtime.init(mode="collective", timeout=parallel.timeout, use_dynamic_expansion=False, **wired)
        ranks = Trainers(made.group, made)
    else:
        group = ProcessGroup(timeout=parallel.timeout)
        silence = min(parallel.timeout, MOST_SILENCE)
        options = {"timeout": silence, "answer_timeout": parallel.timeout, "hogwild": wish}
        served: Any = runtime.init(
            mode="kvstore", **options, wire_dtype=parallel.rounded_to, use_dynamic_expansion=False
        )
        ranks = Trainers(group, served)
    try:
        if parallel.rounded_to is not None and parallel.mode == "kvstore" and getattr(served, "num_machines", 1) == 1:
            raise ConfigError(
                f"parallel.wire_dtype = {parallel.wire_dtype!r} has no effect on one machine, whose rows travel to no "
                "other; leave it out"
            )
        if ranks.group.world_size != parallel.trainers:
            raise ConfigError(
                f"parallel.trainers = {parallel.trainers}, but the launcher started {ranks.group.world_size}; "
                "make them equal"
            )
        config, line = sharing.settled(config, wish, why, ranks.transport.hogwild)
        first, *others = ranks.group.gather_objects(fields_of(config), "start")
        for rank, fields in enumerate(others, 1):
            if said := difference(first, fields, "rank 0"):
                raise ConfigError(
                    f"the ranks were given different configurations: on rank {rank} {said}; start them all with the "
                    "same arguments, and where the data set is a partition, put it at the same path on every machine"
                )
        link = Link.measure(ranks.group, ranks.transport.machine) if parallel.mode == "collective" else None
    except BaseException:
        ranks.close()
        raise
    return replace(ranks, sharing=line, link=link), config


def settle_travel(
    ranks: Trainers, config: RunConfig, loads: Sequence[WalkLoad] = (), before: sharing.Travel | None = None
) -> tuple[Trainers, RunConfig]:
    """Fill in how rows travel between machines where a configuration leaves it open, before there are tables.

    Every rank calls it; the first one, which knows the data, decides.

    Args:
        loads, before: As of ``sharing.travel``.
    """
    if ranks.link is None or not sharing.travels_openly(config):
        return ranks, config
    told = None
    if ranks.rank == 0:
        found, line = sharing.travel(config, ranks.link, int(os.environ.get("LOCAL_WORLD_SIZE", 1)), loads, before)
        told = [*found, line]
    wire_dtype, overlap, line = ranks.group.gather_objects(told, "the choice of how rows travel")[0]
    section = config.parallel.model_copy(update={"wire_dtype": wire_dtype})
    model = config.model.model_copy(update={"overlap": overlap})
    if section.rounded_to is not None:
        ranks.transport.wire_dtype = checked_wire(section.rounded_to, torch.int8)
    return replace(ranks, wire=line), config.model_copy(update={"parallel": section, "model": model})


@contextmanager
def parts_for(
    ranks: Trainers,
    config: RunConfig,
    graph: HeteroGraph | None,
    facts: Any = None,
    typed: HeteroGraph | None = None,
    levels: Sequence[int] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Iterator[tuple[PartitionedGraph, Any]]:
    """Cut a graph for the trainers and open the parts on every rank; every rank calls it, the first gives the graph.

    The parts lie in a temporary folder of the first rank; ranks that cannot read it get theirs over the group. They are
    gone when the ranks close ``ranks``.

    Args:
        facts: What the first rank has to tell the others about the graph.
        typed, levels, limits: As in ``cut``.
    Yields:
        The parts, and the first rank's ``facts``.
    """
    told = None
    if ranks.rank == 0:
        assert graph is not None
        folder = ranks.folders.enter_context(scratch_folder("graph-emb-parts"))
        told = (str(cut(graph, config, folder, typed, levels, limits).path), facts)
    path, facts = ranks.group.gather_objects(told, "the parts' place")[0]
    found = at_hand(ranks.group, Path(path), lambda: ranks.folders.enter_context(scratch_folder("graph-emb-parts")))
    yield partition.load(found), facts
    ranks.group.barrier()


def cut(
    graph: HeteroGraph,
    config: RunConfig,
    folder: Path,
    typed: HeteroGraph | None = None,
    levels: Sequence[int] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> PartitionedGraph:
    """Partition a graph for the trainers, with ``levels`` inside the parts; on the first rank.

    Args:
        typed, limits: As in ``assigned``.
    """
    options: dict[str, Any] = {"report": False, "allow_empty": True}
    if levels is not None:  # what a seed is for where the parts are given
        options |= {"levels": levels, "seed": config.seed}
    return partition.build(graph, assignment=assigned(graph, config, typed, limits), out=folder / "parts", **options)


def policies_for(
    ranks: Trainers, config: RunConfig, graph: HeteroGraph | None, typed: HeteroGraph | None = None
) -> dict[str, PartPolicy]:
    """Who owns which row of each node type's table; every rank calls it, the first gives the graph.

    Args:
        typed: As in ``assigned``.
    """
    made = None if graph is None else assigned(graph, config, typed)
    told = None if made is None else (made.parts, made.num_parts)
    parts_by_type, num_parts = ranks.group.gather_objects(told, "the parts of the nodes")[0]
    return {ntype: policy_of(ntype, parts, num_parts) for ntype, parts in parts_by_type.items()}


def policy_of(ntype: str, parts: np.ndarray, num_parts: int) -> PartPolicy:
    """Who owns which row of a node type's table, from the part of each node, (N,)."""
    book = RangeBook.of_sizes(np.bincount(parts, minlength=num_parts).tolist())
    return PartPolicy(f"node~{ntype}", book, ArrayIds(np.argsort(parts, kind="stable"), len(parts)))


def assigned(
    graph: HeteroGraph,
    config: RunConfig,
    typed: HeteroGraph | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Assignment:
    """The part of each node, by a method or as a partition of the user's has it; on the first rank.

    Args:
        typed: The nodes with the types and ids that the data set gives them, where ``graph`` has them otherwise: one
            type after the other.
        limits: What parts share evenly, as ``WALKS`` has it, where the run names neither parts nor a method; None:
            nodes and edges, or nodes alone where one node has more edges than a part may hold.
    """
    section = config.parallel
    given = None if section.partition is None else given_partition(config)
    if given is not None:
        parts = parts_of_nodes(given[0], typed or graph, by_place=given[1])
        return Assignment.of_homogeneous(graph, parts.homogeneous(), parts.num_parts)
    if section.trainers > graph.total_nodes:
        raise ConfigError(
            f"parallel.trainers = {section.trainers}: the graph has {graph.total_nodes} nodes; take fewer trainers"
        )
    chosen = (limits or {}) if section.method == "auto" else {}
    try:
        return assign(graph, section.trainers, section.method, seed=config.seed, **chosen)
    except PartitionError:  # a node with more edges than a part may have
        if section.method != "auto":
            raise
        return assign(graph, section.trainers, seed=config.seed, **WALKS)


def parts_of_nodes(given: PartitionedGraph, graph: HeteroGraph, *, by_place: bool = False) -> Assignment:
    """The part of each node of a graph in a partition; arguments and errors as ``places_of_nodes``."""
    found = {}
    for ntype, (name, places) in places_of_nodes(given, graph, by_place=by_place).items():
        sizes = np.diff(given.nodes.typed_starts[:, given.node_type_id(name)])
        found[ntype] = np.repeat(np.arange(given.num_parts, dtype=np.int32), sizes)[places]
    return Assignment(found, given.num_parts)


def places_of_nodes(
    given: PartitionedGraph, graph: HeteroGraph, *, by_place: bool = False
) -> dict[str, tuple[str, np.ndarray]]:
    """Where the nodes of a graph are in a partition of the same nodes, found by their original ids.

    Where both have one node type, its name does not count.

    Args:
        by_place: Nodes have no ids but their places in the partition.
    Returns:
        By node type of the graph its name in the partition, and the partition-order id of each node, (N,).
    Raises:
        ConfigError: a node type of the graph, or a node, is not in the partition, or the partition has others.
        DataError: DGL wrote the partition without id maps.
    """
    found = {}
    for ntype, num_nodes in graph.num_nodes.items():
        name = given.ntypes[0] if len(graph.num_nodes) == len(given.ntypes) == 1 else ntype
        if name not in given.ntypes:
            raise ConfigError(f"parallel.partition: {given.path}: {unknown_name('node type', ntype, given.ntypes)}")
        known = np.arange(given.num_nodes(name)) if by_place else given.original_ids(name)
        asked = graph.node_ids.get(ntype, np.arange(num_nodes))
        places = find_ids(known, len(known), asked)
        if (places < 0).any() or len(known) != num_nodes:
            missing = asked[places < 0]
            which = f"; it lacks {len(missing)} of them, such as {missing[0]}" if len(missing) else ""
            raise ConfigError(
                f"parallel.partition: {given.path} has {len(known)} nodes of type {name!r}, the graph {num_nodes}"
                f"{which}; build the partition from the same data"
            )
        found[ntype] = name, places
    return found


def given_partition(config: RunConfig) -> tuple[PartitionedGraph, bool] | None:
    """The partition that a run names, as its data set or beside it; and whether its nodes have no ids but their places.

    Without id maps the nodes of a partition that is read as the data set are in its own order.
    """
    own = partition_of(config.dataset)
    place = config.parallel.partition or own
    if place is None:
        return None
    given = partition.load(place)
    return given, own is not None and not given.has_id_map("node") and folder_of(own) == folder_of(given.path)


def levels_of_nodes(
    config: RunConfig, graph: HeteroGraph, levels: Sequence[int], typed: HeteroGraph | None = None
) -> np.ndarray:
    """The part of each node at each level of a nested partition; on the first rank.

    They are those of the partition that the run names, where it has levels, else cut from the graph: what they are
    does not depend on the number of trainers.

    Args:
        graph: All its edges.
        levels: Parts by level to cut, coarsest first.
        typed: As in ``assigned``.
    Returns:
        Shape (N, L), int64, the node types one after the other.
    """
    known = given_levels(config, typed or graph, levels)
    if known is not None:
        return known
    plain = replace(graph, node_data={}, edge_data={})
    found, _ = nested(plain, levels, seed=config.seed, num_threads=config.train.threads)
    return found.astype(np.int64)


def given_levels(config: RunConfig, graph: HeteroGraph, sizes: Sequence[int]) -> np.ndarray | None:
    """The part of each node at some levels of the partition that a run names, as ``levels_of_nodes`` gives them.

    Args:
        sizes: Numbers of parts of the levels.
    Returns:
        None where there is no partition, or none with levels.
    """
    given = given_partition(config)
    if given is None or not given[0].level_sizes:
        return None
    columns = [given[0].level_sizes.index(size) for size in sizes]
    places = places_of_nodes(given[0], graph, by_place=given[1])
    return np.concatenate([given[0].levels(name)[rows][:, columns] for name, rows in places.values()])


def of_one_type(graph: Graph) -> HeteroGraph:
    """A plain graph as ``partition`` takes it."""
    heads = np.repeat(np.arange(graph.num_nodes, dtype=np.int64), np.diff(graph.indptr))
    data = {} if graph.weights is None else {EDGE_TYPE: {WEIGHT: graph.weights}}
    arcs = {EDGE_TYPE: (heads, graph.indices.astype(np.int64))}
    ids = {} if graph.node_ids is None else {NODE_TYPE: graph.node_ids}
    return HeteroGraph({NODE_TYPE: graph.num_nodes}, arcs, edge_data=data, node_ids=ids, name="graph")


@dataclass(frozen=True)
class Share:
    """A rank's part of a graph that was cut for the trainers.

    Attributes:
        graph: The arcs that leave its nodes, in partition order; or the states of a metapath.
        policy: Who owns which row of a table of all nodes.
        order: The original number of each node, shape (N,), on the first rank; None on the others.
        levels: The part of each node at each level of a multilevel start, (N, L), in partition order; None: none.
    """

    graph: Any
    policy: Any
    order: np.ndarray | None
    levels: np.ndarray | None = None


def share_of(
    ranks: Trainers,
    config: RunConfig,
    graph: Graph | None,
    sizes: Sequence[int] | None = None,
    leveled: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> Share:
    """Cut a plain graph and take this rank's share. Every rank calls it; the first one gives the graph.

    Args:
        sizes: Numbers of parts of the levels that are cut inside the parts, on the first rank; None: none.
        leveled: Whether the share has levels: those of the partition that the run names, where it has some.
        limits: As in ``assigned``.
    """
    whole = None if graph is None else of_one_type(graph)
    found = None
    if leveled and whole is not None:
        assert sizes is not None
        found = given_levels(config, whole, sizes)
    facts = None if graph is None else (graph.directed, found)
    wanted = None if found is not None else sizes
    with parts_for(ranks, config, whole, facts, levels=wanted, limits=limits) as (parts, (directed, given)):
        order = np.array(parts.node_map()) if ranks.rank == 0 else None
        levels = None
        if leveled:
            levels = parts.levels() if given is None else given[parts.node_map()]
        return Share(own_part(parts, ranks, directed), parts.policy(), order, levels)


def gathered_rows(ranks: Trainers | None, model: SkipGram, context: str, share: Share | None) -> torch.Tensor | None:
    """``SkipGram.embeddings`` in the graph's original order, on the first rank, of tables that nobody reads or trains
    any more; every rank calls it."""
    if ranks is None or share is None:
        return model.embeddings(context, copy=False)
    ranks.transport.flush()
    ranks.transport.barrier()
    rows = _combined(model, context, share.order is not None)
    if rows is not None and share.order is not None:
        original = torch.empty_like(rows)
        original[torch.from_numpy(share.order)] = rows
        rows = original
    ranks.transport.barrier()  # every rank stays while the first one reads
    return rows


def own_part(parts: PartitionedGraph, ranks: Trainers, directed: bool) -> PartGraph:
    """The arcs that leave this rank's nodes, read from the parts in which they lie."""
    places = ranks.layout(parts.books[NODE_TYPE])
    src, dst, weights = own_arcs(parts, EDGE_TYPE, places, ranks.rank)
    if not directed:  # the reverse of every arc is there too, with the same weight
        return PartGraph.from_arcs(dst, src, places, ranks.rank, weights=weights)
    return PartGraph.from_arcs(src, dst, places, ranks.rank, weights=weights, directed=True, group=ranks.group)


def own_arcs(
    parts: PartitionedGraph, etype: EdgeType, places: RankRanges, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sources, destinations and weights of the arcs of a type that arrive at this rank's nodes."""
    low, high = places.owned(rank)
    starts = parts.nodes.typed_starts[:, 0]
    pieces, weights = [np.empty((2, 0), np.int64)], []
    for index in range(parts.num_parts):
        if starts[index] >= high or starts[index + 1] <= low:
            continue
        part = parts.part(index)
        ends = np.stack(part.ends(etype))
        mine = (ends[1] >= low) & (ends[1] < high)  # an edge lies with its destination
        pieces.append(ends[:, mine])
        column = part.edge_data(etype).get(WEIGHT)
        if column is not None:
            weights.append(column[mine])
    src, dst = np.concatenate(pieces, axis=1)
    return src, dst, np.concatenate(weights) if weights else None


def _combined(model: SkipGram, context: str, wanted: bool) -> torch.Tensor | None:
    """``SkipGram.embeddings`` of rows that lie with many ranks, in partition order."""
    token = all_rows(model.context if context == "only" else model.embedding, wanted)
    if context in ("none", "only") or model.context is model.embedding:
        return token
    other = all_rows(model.context, wanted)
    if token is None or other is None:
        return None
    return model.with_context(context, token, other)
