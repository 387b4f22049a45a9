"""Metapaths as text, and walks that follow one, as plain walks over a graph of (place on the path, node)."""

# N nodes of all types, S states, P layers of the path, L nodes of a walk, B walks, M arcs of a step.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walk_kernels import start_batches
from graph_emb.transport.process_group import ProcessGroup

StepArcs = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Sources, destinations (M,), and weights or None, in numbers of all N nodes."""


@dataclass(frozen=True, eq=False)
class MetapathGraph:
    """A rank's share of the graph of states: a state is a node at a place of the path, and arcs go a place further.

    A walk over it visits types in the order of the path, whatever else joins the nodes, and ends where the path
    cannot go on. The arcs of a step are stored once for each place at which the path takes it.

    Attributes:
        states: The arcs that leave this rank's states; rank by rank, place by place, in the order of the nodes.
        nodes: The node of each state, shape (S,), int32.
        starts: The states at which the path begins, shape (A,), int32.
        node_kinds: The type of each node, shape (N,), int8.
        path_kinds: The type of each layer, shape (P,), int8.
        places: The rank that owns each node.
        closed: Whether the path ends where it begins, so that walks go round; its last place is its first layer then.
    """

    states: PartGraph
    nodes: np.ndarray
    starts: np.ndarray
    node_kinds: np.ndarray
    path_kinds: np.ndarray
    places: RankRanges
    closed: bool

    @classmethod
    def build(
        cls,
        kinds_on_path: Sequence[int],
        node_kinds: np.ndarray,
        steps: Sequence[StepArcs],
        places: RankRanges,
        rank: int = 0,
        group: ProcessGroup | None = None,
    ) -> MetapathGraph:
        """The states of a rank.

        Args:
            kinds_on_path: The types along the path, the last one included.
            node_kinds: Shape (N,), the type of each node.
            steps: The arcs of each step, one fewer than types on the path: arcs that leave this rank's nodes, or any
                arcs where ``group`` is given, which sends each to the rank of its source.
            places: The rank that owns each node.
            rank, group: This rank, and all of them; None: there is one.
        Raises:
            DataError: no node has the path's first type, or an arc leaves another type than its place has.
        """
        closed = kinds_on_path[0] == kinds_on_path[-1]
        layers = np.asarray(kinds_on_path[:-1] if closed else kinds_on_path, np.int8)
        kinds = np.asarray(node_kinds, np.int8)
        pieces = [
            [low + np.flatnonzero(kinds[low:high] == kind) for kind in layers]
            for low, high in zip(places.bounds[:-1].tolist(), places.bounds[1:].tolist(), strict=True)
        ]
        sizes = np.array([[len(nodes) for nodes in piece] for piece in pieces], np.int64)
        nodes = np.concatenate([nodes for piece in pieces for nodes in piece]).astype(np.int32)
        layer_of = np.repeat(np.tile(np.arange(len(layers), dtype=np.int16), len(pieces)), sizes.ravel())
        bounds = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))]).tolist()
        starts = np.flatnonzero(layer_of == 0).astype(np.int32)
        if not len(starts):
            raise DataError(f"no node is of type {layers[0]}, at which the path begins")
        heads, tails, weights = [], [], []
        for step, (src, dst, values) in enumerate(steps):
            heads.append(_states_at(step, src, nodes, layer_of, kinds))
            tails.append(_states_at((step + 1) % len(layers), dst, nodes, layer_of, kinds))
            weights.append(values)
        part = PartGraph.from_arcs(
            np.concatenate(heads),
            np.concatenate(tails),
            RankRanges(bounds, places.ranks.tolist(), places.world_size),
            rank,
            weights=_joined_weights(weights, heads),
            directed=True,
            group=group,
        )
        return cls(part, nodes, starts, kinds, layers, places, closed)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_kinds)


class MetapathSampler(PartitionedWalkSampler):
    """Walks of at most ``walk_length`` nodes along a metapath (Dong et al. 2017), ``num_walks`` from each first node.

    A step follows the arcs of its relation with a probability proportional to their weight. A node at which the path
    cannot go on ends the walk; the rest of the row is -1. As for ``PartitionedWalkSampler`` a walk is a function of
    (seed, epoch, its index) and the graph in partition order, the same for any number of ranks and threads.

    Args:
        graph: The states.
        group: The ranks; None for one.
        num_walks: Walks from each node of the path's first type in an epoch.
        walk_length: L. A path that does not end where it begins has no more nodes than its types.
        seed: Any integer.
    Raises:
        ConfigError: an option is outside its limits.
    """

    def __init__(
        self,
        graph: MetapathGraph,
        group: ProcessGroup | None = None,
        *,
        num_walks: int = 10,
        walk_length: int = 40,
        seed: int = 0,
    ) -> None:
        if not graph.closed and walk_length > len(graph.path_kinds):
            raise ConfigError(
                f"walk_length = {walk_length}: the metapath ends at another type than it begins with, so a walk has at "
                f"most {len(graph.path_kinds)} nodes; lower walk_length, or let the path end where it begins"
            )
        self.metapath = graph
        super().__init__(graph.states, group, num_walks=num_walks, walk_length=walk_length, seed=seed)

    def follow(self, graph: Any) -> None:
        """As ``PartitionedWalkSampler.follow``.

        Args:
            graph: The states of the same path in the graph that has grown.
        """
        if not np.array_equal(graph.path_kinds, self.metapath.path_kinds):
            raise ConfigError("the states are of another metapath; make a new sampler")
        super().follow(graph.states)
        self.metapath = graph

    @property
    def num_nodes(self) -> int:
        """N, nodes of all types; those off the path are never visited."""
        return self.metapath.num_nodes

    @property
    def layout(self) -> RankRanges:
        """The rank that owns each node."""
        return self.metapath.places

    @property
    def num_walks_per_epoch(self) -> int:
        """Walks of one epoch, all ranks together."""
        return self.num_walks * len(self.metapath.starts)

    def degrees(self, *, weighted: bool = True) -> np.ndarray:
        """Summed weights of the arcs that the path takes at each node, in and out, or their number, shape (N,)."""
        return np.bincount(self.metapath.nodes, super().degrees(weighted=weighted), minlength=self.num_nodes)

    def own_degrees(self) -> tuple[np.ndarray, int]:
        """``degrees`` of the nodes that this rank owns, and the first of them."""
        low, high = self.metapath.places.owned(self.rank)
        return self.degrees()[low:high], low

    def numbered_batches(
        self, batch_size: int = 8192, *, epoch: int = 0, first: int = 0, num_threads: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """See ``PartitionedWalkSampler.numbered_batches``; nodes are numbers among all N."""
        nodes = np.append(self.metapath.nodes, np.int32(-1))  # place -1: past a dead end
        for walks, index in super().numbered_batches(batch_size, epoch=epoch, first=first, num_threads=num_threads):
            yield nodes[walks], index

    def _starts(self, epoch: int, batch_size: int, first: int) -> Iterator[np.ndarray]:
        starts = self.metapath.starts
        for places in start_batches(self.seed, epoch, len(starts), self.num_walks, batch_size, first):
            yield starts[places]


def _states_at(
    layer: int, wanted: np.ndarray, nodes: np.ndarray, layer_of: np.ndarray, kinds: np.ndarray
) -> np.ndarray:
    """The state of each wanted node at a layer, (M,), int64."""
    state = np.full(len(kinds), -1, np.int32)
    here = np.flatnonzero(layer_of == layer)
    state[nodes[here]] = here
    found = state[wanted].astype(np.int64)
    if len(found) and found.min() < 0:
        wrong = int(np.asarray(wanted)[found.argmin()])
        raise DataError(f"place {layer} of the metapath: node {wrong} has another type than the path has there")
    return found


def _joined_weights(weights: Sequence[np.ndarray | None], heads: Sequence[np.ndarray]) -> np.ndarray | None:
    """The weights of all steps; steps without any count 1 where another has some."""
    if all(values is None for values in weights):
        return None
    pairs = zip(weights, heads, strict=True)
    return np.concatenate([np.ones(len(h), np.float32) if w is None else np.asarray(w, np.float32) for w, h in pairs])


WEIGHT = "weight"
BACKWARD = "^"


@dataclass(frozen=True)
class Step:
    """One step of a metapath.

    Attributes:
        source, target: Node types.
        edge_type: The relation that it follows.
        forward: Whether along the edges; else against them.
    """

    source: str
    target: str
    edge_type: EdgeType
    forward: bool

    def __str__(self) -> str:
        return f"{self.source}-[{'' if self.forward else BACKWARD}{self.edge_type[1]}]-{self.target}"


@dataclass(frozen=True)
class Metapath:
    """Node types and the relations between them.

    Attributes:
        types: Along the path, the last one included, at least two.
        steps: One fewer.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.sampling.metapath_walks import Metapath
        >>> writes = {("author", "writes", "paper"): (np.array([0, 1]), np.array([0, 0]))}
        >>> graph = HeteroGraph({"author": 2, "paper": 1}, writes)
        >>> str(Metapath.parse("author-paper-author", graph))
        'author-[writes]-paper-[^writes]-author'
    """

    types: tuple[str, ...]
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str, graph: HeteroGraph) -> Metapath:
        """The path that a text such as ``author-paper-venue-paper-author`` describes.

        A step takes the relation that joins its two types, along its edges where it points that way, else against
        them. Where several do, write the relation between the types: ``paper-[cites]-paper``; ``[^cites]`` goes
        against the edges.

        Raises:
            ConfigError: an unknown type or relation, types that nothing joins, several relations to choose from, or
                fewer than two types.
        """
        types, relations = _split(text, graph.ntypes)
        ends = pairwise(types)
        steps = [
            _step(text, source, target, relation, graph.etypes)
            for (source, target), relation in zip(ends, relations, strict=True)
        ]
        return cls(tuple(types), tuple(steps))

    def __str__(self) -> str:
        return self.types[0] + "".join(str(step).removeprefix(step.source) for step in self.steps)

    def node_types(self) -> tuple[str, ...]:
        """The distinct types, in the order of the path."""
        return tuple(dict.fromkeys(self.types))


def step_arcs(graph: HeteroGraph, step: Step) -> StepArcs:
    """Sources, destinations and weights of a step, in numbers of all nodes: types one after the other.

    Weights are the edge type's column ``weight``, None without one.
    """
    offsets = graph.node_offsets
    ends = graph.edges[step.edge_type]
    src, dst = ends if step.forward else ends[::-1]
    weights = graph.edge_data.get(step.edge_type, {}).get(WEIGHT)
    return src + offsets[step.source], dst + offsets[step.target], weights


def node_kinds(graph: HeteroGraph) -> np.ndarray:
    """The number of each node's type, shape (N,), int8, types one after the other.

    Raises:
        ConfigError: more than 127 types.
    """
    if len(graph.ntypes) > 127:
        raise ConfigError(f"the graph has {len(graph.ntypes)} node types; metapaths are for at most 127")
    return np.repeat(np.arange(len(graph.ntypes), dtype=np.int8), list(graph.num_nodes.values()))


def _split(text: str, known: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """Types, and the relations between them or None. A type's own '-' is no separator: longer names are tried first."""
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    a_type, relation = re.compile(rf"({names})(?=-|$)"), re.compile(r"-(?:\[([^\]]+)\]-)?")
    types: list[str] = []
    relations: list[str | None] = []
    place = 0
    while True:
        found = a_type.match(text, place)
        if found is None:
            word = text[place:].split("-", 1)[0]
            raise unknown_name(f"node type in metapath {text!r}:", word, known)
        types.append(found[1])
        place = found.end()
        if place == len(text):
            break
        between = relation.match(text, place)
        assert between is not None  # the look-ahead has seen '-'
        relations.append(between[1])
        place = between.end()
    if len(types) < 2:
        raise ConfigError(
            f"metapath {text!r} has one node type; a walk needs a second one, such as {text}-OTHER-{text}"
        )
    return types, relations


def _step(text: str, source: str, target: str, relation: str | None, known: Iterable[EdgeType]) -> Step:
    edge_types = list(known)
    ways = [Step(source, target, e, True) for e in edge_types if (e[0], e[2]) == (source, target)]
    against = [Step(source, target, e, False) for e in edge_types if (e[2], e[0]) == (source, target)]
    if relation is None:
        ways = ways or against
    else:
        named = relation.removeprefix(BACKWARD)
        ways = [way for way in (*ways, *against) if way.edge_type[1] == named]
        if relation.startswith(BACKWARD):
            ways = [way for way in ways if not way.forward]
        ways = ways[:1]  # along the edges where both directions are possible
    if not ways:
        raise ConfigError(_nothing_joins(text, source, target, relation, edge_types))
    if len(ways) > 1:
        choices = " or ".join(str(way) for way in ways)
        raise ConfigError(f"metapath {text!r}: several relations go from {source} to {target}; write {choices}")
    return ways[0]


def _nothing_joins(text: str, source: str, target: str, relation: str | None, known: list[EdgeType]) -> str:
    near = sorted({":".join(e) for e in known if source in (e[0], e[2])})
    what = "no relation" if relation is None else f"no relation {relation!r}"
    return f"metapath {text!r}: {what} joins {source} and {target}; {source} is in: {', '.join(near) or 'none'}"
