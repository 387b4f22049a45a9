"""Metapaths as text, and the arcs of their steps in a graph with node types."""

# M arcs of a step.

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.sampling.metapath_walks import StepArcs

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
        >>> from graph_emb.sampling.metapath import Metapath
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
