"""Multilevel starts: a training on the graph of a partition's parts first, whose rows the nodes begin with.

A part's node of the coarse graph stands for the nodes of the part: an arc between two parts has the sum of their arcs'
weights, and an arc of a part to itself those inside it, so that its walks are those of the graph, seen by part. The
ordinary trainer trains it, and token and context rows are handed down (Lin et al. 2020; HARP, Chen et al. 2018). LINE
draws the arcs between parts alone, and knowledge graphs take the triples between parts, each once, under the relations
that they have; rows of relations go down as they are. In
several trainers each makes the coarse rows of its own nodes: parts of a level lie inside those of the trainers. Those
of a knowledge graph lie in even ranges, since its triples are sent to the owners of their ends whatever the parts.
"""

# N nodes, L levels, P parts of a level, D width.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.graph.csr import to_rows
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.graph.partition_book import RangeBook, RankRanges
from graph_emb.graph.triples import KnowledgeGraph, triples_between
from graph_emb.models.kge.training import train_kge
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.training import Sampler, SkipGram, train_skipgram
from graph_emb.run.parallel import TABLE, Trainers, given_partition
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_triples import OwnTriples
from graph_emb.sampling.walks import EdgeSampler
from graph_emb.table.initializers import FromParts
from partition import PartitionedGraph

NODES_PER_PART = 10
"""Of the level that is chosen where none is given."""
SHARE = {"walks": 0.25, "triples": 0.5}
"""Work of the finest level beside that of the graph itself; of each coarser level half as much again."""
LEVEL_WALKS = 5.0
"""Of a node of the graph, those of the finest level together: in a long training rows of parts gain nothing by more."""
SHORTER = 0.7, 0.4
"""Lengths of token and context rows beside those of their part. A part meets itself and its neighbours more often than
a node does, so that its rows are longer, and steps of pairs that are told apart already are small."""
LEVEL: dict[str, Any] = {"multilevel": False, "buckets": 0, "episode_walks": None}
"""What differs of a level's walks or edges: it is small, and may have fewer parts than the graph has buckets."""


First = tuple[FromParts, FromParts | None]
"""Initializers of the token and context rows of a model, one table takes the first alone; or of entities and relations.
"""


class AnyLevel(Protocol):
    """A level's graph: the part of each node of the graph below all levels, (N,), and its own number of nodes."""

    @property
    def members(self) -> NDArray[np.int64]: ...

    @property
    def num_nodes(self) -> int: ...


@dataclass(frozen=True)
class LevelModel:
    """A model that was trained on a level.

    Attributes:
        nodes: Tables of a row for each node of the level.
        lengths: Of the rows that nodes below begin with, for each of these tables; 1: as they are.
        others: Those whose rows are the same at every level.
    """

    nodes: Sequence[Any]
    lengths: Sequence[float]
    others: Sequence[DistEmbedding] = ()


Told = tuple[list[LevelModel], dict[str, Any]]
"""The models of a level, and what the report says of it."""


@dataclass(frozen=True)
class CoarseStart:
    """The first rows that a training begins with.

    Attributes:
        models: Of each model that is trained: one, or LINE's orders.
        levels: Nodes, walks from each of them, draws of an edge or epochs, first rate and seconds of each level that
            was trained, coarsest first.
    """

    models: list[First]
    levels: list[dict[str, Any]]


@dataclass(frozen=True)
class CoarseGraph:
    """The graph of the parts of a level.

    Attributes:
        graph: This rank's rows of it; parts are numbered as the nodes are, those of a trainer one after the other.
        members: The part of each node, (N,), by partition-order id.
        book: Who owns which part.
    """

    graph: PartGraph
    members: NDArray[np.int64]
    book: RangeBook

    @property
    def num_nodes(self) -> int:
        """Parts of the level."""
        return self.graph.num_nodes


@dataclass(frozen=True)
class CoarseTriples:
    """The triples between the parts of a level.

    Attributes:
        graph: All of them; of several trainers their number alone.
        members: The part of each entity, (E,).
        own: This rank's; None: one process has all.
    """

    graph: KnowledgeGraph
    members: NDArray[np.int64]
    own: OwnTriples | None

    @property
    def num_nodes(self) -> int:
        """Parts of the level."""
        return self.graph.num_entities


def sizes_of(config: RunConfig, num_nodes: int) -> tuple[int, ...]:
    """Numbers of parts by level, coarsest first; where the run names a partition with levels, its own.

    A part of a level must lie with one trainer: of such a partition the levels below its number of parts are left out.

    Args:
        num_nodes: N.
    Raises:
        ConfigError: the partition has other levels than those asked for, or the graph has too few nodes for one.
    """
    model: Any = config.model
    asked, given = model.multilevel, given_partition(config)
    found = () if given is None else given[0].level_sizes
    if given is not None and found:
        usable = tuple(size for size in found if size >= given[0].num_parts)
        if asked is not True and tuple(asked) != usable:
            raise ConfigError(
                f"model.multilevel = {list(asked)}: the partition {given[0].path} has the levels {list(usable)}; set "
                f"it to true, or change them: partition.refine({str(given[0].path)!r}, {list(asked)})"
            )
        return usable
    if asked is not True:
        return tuple(asked)
    num_parts = config.parallel.trainers if given is None else given[0].num_parts
    chosen = num_nodes // NODES_PER_PART // num_parts * num_parts
    if chosen < 2:
        raise ConfigError(
            f"model.multilevel = True: {num_nodes} nodes in {num_parts} parts are too few for parts of "
            f"{NODES_PER_PART} nodes; leave it out"
        )
    return (chosen,)


def check(config: RunConfig, own: PartitionedGraph | None, num_nodes: int) -> None:
    """Refuse a start that cannot be made.

    Args:
        own: The partition of which each trainer reads its own parts; None: one process has the whole graph.
        num_nodes: N.
    Raises:
        ConfigError: as ``sizes_of``; or the trainers read a partition without levels.
    """
    if own is not None and not own.level_sizes:
        raise ConfigError(
            f"model.multilevel: {own.path} has no levels, and no trainer has the whole graph to cut; add them: "
            f"partition.refine({str(own.path)!r}, [...])"
        )
    sizes_of(config, num_nodes)


def level_of(
    graph: PartGraph, parts: NDArray[np.integer], book: RangeBook, ranks: Trainers | None, *, inside: bool = True
) -> CoarseGraph:
    """The graph of the parts of a level, made of this rank's arcs alone. Every rank calls it.

    Args:
        graph: This rank's arcs.
        parts: The part of each node, (N,), by partition-order id.
        book: Who owns which node.
        inside: Arcs inside a part are an arc of the part to itself; False: they are left out.
    Raises:
        ConfigError: a part has nodes of several owners.
    """
    found, members = np.unique(parts, return_inverse=True)
    bounds = book.bounds.tolist()
    sizes = [len(np.unique(members[low:high])) for low, high in pairwise(bounds)]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    if len(owners) != len(found) or (owners[members] != np.repeat(np.arange(len(sizes)), np.diff(bounds))).any():
        raise ConfigError(
            f"model.multilevel: parts of the level of {len(found)} have nodes of several of the {len(sizes)} parts "
            "that trainers hold; take levels of a multiple of them"
        )
    own = RangeBook.of_sizes(sizes)
    layout = RankRanges([0, len(found)], [0], 1) if ranks is None else ranks.layout(own)
    low, high = layout.owned(graph.rank)
    heads = members[graph.low : graph.low + graph.num_own_nodes]
    weights = np.ones(len(graph.indices), np.float32) if graph.weights is None else graph.weights
    arcs = np.repeat(heads, np.diff(graph.indptr)), members[graph.indices], weights
    if not inside:
        arcs = tuple(side[arcs[0] != arcs[1]] for side in arcs)
    indptr, indices, summed = to_rows(*arcs, len(found), directed=True, duplicates="sum")
    summed = np.ones(len(indices), np.float32) if summed is None else summed
    rows = PartGraph(indptr[low : high + 1], indices, summed, graph.directed, layout, graph.rank)
    return CoarseGraph(rows, members, own)


def start_of(
    config: RunConfig,
    graph: PartGraph,
    levels: NDArray[np.integer],
    policy: Any,
    ranks: Trainers | None,
    sampler_of: Callable[[PartGraph, int], Sampler],
    *,
    progress: bool,
) -> CoarseStart:
    """Train the levels of a graph by walks, the coarsest first, each from the one before. Every rank calls it.

    Args:
        graph: This rank's arcs.
        levels: The part of each node at each level, (N, L), by partition-order id, coarsest first.
        policy: Who owns which node; None: this process all.
        sampler_of: Walks on a graph, so many from each node.
        progress: Show bars.
    Raises:
        ConfigError: a part of a level has nodes of several owners.
        KeyboardInterrupt: Ctrl-C, at every rank.
    """
    own: Any = config.model

    def train(level: CoarseGraph, share: float, first: list[First] | None) -> Told:
        num_walks = max(1, round(share * own.num_walks * graph.num_nodes / level.graph.num_nodes))
        lr = None if first is None else own.first_lr  # the first level's follows its walks
        recipe = own.model_copy(update={**LEVEL, "lr": own.lr or lr})
        token, context = (None, None) if first is None else first[0]
        shape: dict[str, Any] = {"seed": config.seed, "part_policy": level.book}
        model = SkipGram(level.graph.num_nodes, recipe, **shape, init_func=token, context_func=context)
        result = train_skipgram(
            sampler_of(level.graph, num_walks),
            model=model,
            seed=config.seed,
            num_threads=config.train.threads,
            progress=progress,
        )
        if result.interrupted:
            raise KeyboardInterrupt
        return [LevelModel(model.tables, SHORTER)], {"num_walks": num_walks, "lr": result.first_lr}

    coarsen, members = _by_arcs(graph, policy, ranks)
    return _descended(levels, coarsen, train, members, min(SHARE["walks"], LEVEL_WALKS / own.num_walks))


def line_start(
    config: RunConfig,
    graph: PartGraph,
    levels: NDArray[np.integer],
    policy: Any,
    ranks: Trainers | None,
    num_edges: int,
    *,
    progress: bool,
) -> CoarseStart:
    """As ``start_of``, by draws of the edges between parts; an edge inside a part says nothing about its row.

    Args:
        num_edges: Of the whole graph.
    Raises:
        ConfigError: as ``start_of``; or no edge lies between the parts of a level.
    """
    own: Any = config.model

    def train(level: CoarseGraph, share: float, first: list[First] | None) -> Told:
        group = None if ranks is None else ranks.group
        edges = EdgeSampler(level.graph, group, draws_per_edge=1).num_edges
        draws = max(1, round(share * own.draws_per_edge * num_edges / edges))
        result = train_line(
            EdgeSampler(level.graph, group, draws_per_edge=draws, seed=config.seed),
            own.model_copy(update=LEVEL),
            part_policy=level.book,
            seed=config.seed,
            num_threads=config.train.threads,
            progress=progress,
            first=None if first is None else dict(zip(own.orders, first, strict=True)),
        )
        if result.interrupted:
            raise KeyboardInterrupt
        models = [LevelModel(model.tables, SHORTER) for model in result.models.values()]
        return models, {"draws_per_edge": draws, "lr": own.first_lr}

    coarsen, members = _by_arcs(graph, policy, ranks, inside=False)
    return _descended(levels, coarsen, train, members, SHARE["walks"])


def triples_start(
    config: RunConfig,
    graph: KnowledgeGraph,
    levels: NDArray[np.integer],
    own: OwnTriples | None,
    ranks: Trainers | None,
    *,
    progress: bool,
) -> CoarseStart:
    """As ``start_of``, by epochs over the triples between parts; work is counted in steps.

    A level has no types of entities and no validation: all its parts are negatives, a schedule by plateaus is linear.

    Args:
        graph: All triples; on ranks with their ``own`` they are not read.
        levels: The part of each entity at each level, (E, L), in the order of the graph.
        own: This rank's triples; None: one process has all.
    Raises:
        ConfigError: no triple lies between the parts of a level.
    """
    recipe: Any = config.model
    size, total = recipe.batch_size, graph.num_triples if own is None else own.num_triples

    def coarsen(parts: NDArray[np.integer]) -> CoarseTriples:
        return triples_level(graph, parts, own, ranks)

    def train(level: CoarseTriples, share: float, first: list[First] | None) -> Told:
        steps = -(-total // size) / -(-level.graph.num_triples // size)
        epochs = max(1, round(share * recipe.epochs * steps))
        scopes = {"negative_scope": "global", "triple_scope": "global"}
        decay = "linear" if recipe.lr_decay == "plateau" else recipe.lr_decay
        # a level may have fewer rows than the graph has buckets
        small = {"multilevel": False, "buckets": 0, "resident": None, "passes": 1, "at_once": None}
        changed = {**small, "epochs": epochs, "valid_every": 0, "lr_decay": decay, **scopes}
        result = train_kge(
            level.graph,
            recipe.model_copy(update=changed),
            seed=config.seed,
            own=level.own,
            num_threads=config.train.threads,
            device=config.train.device,
            progress=progress,
            first=None if first is None else first[0],
        )
        if result.interrupted:
            raise KeyboardInterrupt
        model = LevelModel([result.model.entity], [1.0], [result.model.relation])
        return [model], {"triples": level.graph.num_triples, "epochs": epochs, "lr": recipe.first_lr}

    return _descended(levels, coarsen, train, lambda members: members, SHARE["triples"])


def triples_level(
    graph: KnowledgeGraph, parts: NDArray[np.integer], own: OwnTriples | None, ranks: Trainers | None
) -> CoarseTriples:
    """The triples between the parts of a level. Every rank calls it.

    Raises:
        ConfigError: there are none.
    """
    found, members = np.unique(parts, return_inverse=True)
    held: dict[str, NDArray[np.int64]] = {}
    if own is None:
        made = triples_between(graph.train, members)
        count, elsewhere = len(made), 0
        held = {"train": made} if count else {}
    else:
        assert ranks is not None
        places = ranks.layout(RangeBook([0, len(found)]))
        own = own.between(members, places.owner(torch.arange(len(found))).numpy())
        count = elsewhere = own.num_triples
    if not count:
        raise ConfigError(
            f"model.multilevel: no triple lies between the {len(found)} parts of a level; leave it out, or take more"
        )
    between = KnowledgeGraph(graph.name, len(found), graph.num_relations, held, train_elsewhere=elsewhere)
    return CoarseTriples(between, members, own)


def _by_arcs(
    graph: PartGraph, policy: Any, ranks: Trainers | None, *, inside: bool = True
) -> tuple[Callable[[NDArray[np.integer]], CoarseGraph], Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
    """How a level is made of a graph's arcs, and how parts by partition-order id become those by original id."""
    book = RangeBook([0, graph.num_nodes]) if policy is None else policy.book

    def coarsen(parts: NDArray[np.integer]) -> CoarseGraph:
        return level_of(graph, parts, book, ranks, inside=inside)

    def by_original(members: NDArray[np.int64]) -> NDArray[np.int64]:
        original = as_original_ids(None, policy, graph.num_nodes, TABLE)
        if original is None:
            return members
        out = np.empty_like(members)
        out[original.of(0, len(members))] = members
        return out

    return coarsen, by_original


def _descended(
    levels: NDArray[np.integer],
    coarsen: Callable[[NDArray[np.integer]], Any],
    train: Callable[[Any, float, list[First] | None], Told],
    by_original: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    share: float,
) -> CoarseStart:
    """Train level after level and hand the rows of each model down.

    Args:
        levels: The part of each node at each level, (N, L), coarsest first.
        coarsen: The ``AnyLevel`` of a column of them.
        train: From a level, its work as a share of that of the graph itself, and first rows of each model.
        by_original: From the part of each node in the order of ``levels`` that by original id.
        share: Of the finest level.
    """
    before: tuple[AnyLevel, list[LevelModel]] | None = None
    report = []
    for place, parts in enumerate(levels.T):
        level: AnyLevel = coarsen(parts)
        begin, first = time.perf_counter(), None
        if before is not None:
            up = np.empty(level.num_nodes, np.int64)
            up[level.members] = before[0].members
            first = [_handed_down(model, up) for model in before[1]]
        models, told = train(level, share / 2 ** (levels.shape[1] - 1 - place), first)
        before, seconds = (level, models), round(time.perf_counter() - begin, 3)
        report.append({"nodes": level.num_nodes, **told, "seconds": seconds})
    assert before is not None  # there is a level at least
    members = by_original(before[0].members)
    return CoarseStart([_handed_down(model, members) for model in before[1]], report)


def _handed_down(model: LevelModel, parts: NDArray[np.int64]) -> First:
    """First rows of ids whose part is ``parts``, by original id, and of a model's other tables; every rank calls it."""
    transport = model.nodes[0].transport
    transport.flush()
    transport.barrier()
    shared = [all_rows(table, wanted=True) for table in model.nodes]
    kept = [all_rows(table, wanted=True) for table in model.others]
    transport.barrier()  # every rank stays while another one reads
    lengths = zip(shared, model.lengths, strict=False)  # one table has token rows alone
    made = [FromParts(rows * length, parts) for rows, length in lengths if rows is not None]
    made += [FromParts(rows, np.arange(len(rows))) for rows in kept if rows is not None]
    return made[0], made[1] if len(made) > 1 else None
