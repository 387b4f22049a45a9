"""Knowledge graphs: numbered triples (head, relation, tail) by part.

Legend: T triples, E entities, R relations, B judged triples, M given negatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from graph_emb.compat.ogb import OGBHetero, OGBLink
from graph_emb.core.errors import DataError
from graph_emb.graph.typed import summary, summary_card

PIECE = 1 << 20
"""Triples that are looked at together."""
PARTS = ("train", "valid", "test")


def triples_between(triples: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The triples of parts of entities: each once, by head, relation and tail; those inside a part are left out.

    Args:
        triples: Of entities, (T, 3), int64.
        parts: The part of each entity, (E,).
    Returns:
        At most T triples whose ends are parts, (M, 3), int64.
    """
    made = np.stack([parts[triples[:, 0]], triples[:, 1], parts[triples[:, 2]]], axis=1).astype(np.int64)
    made = made[made[:, 0] != made[:, 2]]
    made = made[np.lexsort(made.T[::-1])]
    return made[np.concatenate([[True], (made[1:] != made[:-1]).any(axis=1)])] if len(made) else made


@dataclass(frozen=True, eq=False)
class GivenNegatives:
    """Entities of a data set to rank each triple's ends against, shape (B, M) each, int64."""

    heads: np.ndarray
    tails: np.ndarray


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples by part, with the names of entities and relations.

    Attributes:
        name: As the data set or its folder is called.
        num_entities: E.
        num_relations: R.
        parts: ``train`` and, where there are, ``valid`` and ``test``: shape (T, 3), int64, head, relation, tail.
        entities: Names of the entities in order, strings or integers; None: they have none.
        relations: Names of the relations in order, or None.
        negatives: By part, where the data set gives them (OGB).
        entity_types: First entity of each type in order, where types share the id space one after the other (biokg).
        train_elsewhere: T where trainers hold the training triples, each its own, or where they stay on the disk:
            ``parts`` has those held out alone.
    Raises:
        DataError: a part is empty or of another shape, or an id is outside its space.
    """

    name: str
    num_entities: int
    num_relations: int
    parts: Mapping[str, np.ndarray]
    entities: tuple[str, ...] | tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None
    negatives: Mapping[str, GivenNegatives] = field(default_factory=dict)
    entity_types: Mapping[str, int] | None = None
    train_elsewhere: int = 0

    __repr__ = summary
    _repr_html_ = summary_card

    def __post_init__(self) -> None:
        if "train" not in self.parts and not self.train_elsewhere:
            raise DataError(f"knowledge graph {self.name!r}: has no train part; known parts: {', '.join(self.parts)}")
        for part, triples in self.parts.items():
            what = f"knowledge graph {self.name!r}, {part}"
            if triples.ndim != 2 or triples.shape[1] != 3 or triples.dtype != np.int64 or not len(triples):
                raise DataError(
                    f"{what}: triples have shape {triples.shape} of {triples.dtype}; expected (T, 3) of int64, T > 0"
                )
            for column, kind, limit in (
                (0, "entity", self.num_entities), (2, "entity", self.num_entities), (1, "relation", self.num_relations)
            ):  # fmt: skip
                check_ids(f"{what}: {kind}", triples[:, column], limit)
        for part, given in self.negatives.items():
            for side, ids in (("head", given.heads), ("tail", given.tails)):
                what = f"knowledge graph {self.name!r}, {part}: {side} negatives"
                if ids.ndim != 2 or len(ids) != len(self.parts.get(part, ())):
                    raise DataError(f"{what} have shape {ids.shape}; expected a row for each of the part's triples")
                check_ids(what, ids, self.num_entities)

    @property
    def train(self) -> np.ndarray:
        """Triples to train on, (T, 3).

        Raises:
            DataError: the trainers hold them, or the disk.
        """
        if self.train_elsewhere:
            raise DataError(
                f"{self.name}: its training triples are not here, each trainer holds its own or they stay on the disk; "
                "load the data set to have them"
            )
        return self.parts["train"]

    @property
    def num_triples(self) -> int:
        """T, to train on."""
        return self.train_elsewhere or len(self.train)

    def all_triples(self) -> np.ndarray:
        """The triples of all parts.

        Raises:
            DataError: as ``train``.
        """
        return np.concatenate([self.train, *(triples for part, triples in self.parts.items() if part != "train")])

    def occurrences(self) -> np.ndarray:
        """Count the training triples that each entity is an end of, shape (E,), int64."""
        counts = np.zeros(self.num_entities, np.int64)
        for piece in pieces_of(self.train, max(PIECE, self.num_entities)):
            counts += np.bincount(piece[:, [0, 2]].ravel(), minlength=self.num_entities)
        return counts


def pieces_of(triples: np.ndarray, size: int | None = None) -> Iterator[np.ndarray]:
    """Triples (T, 3) some at a time, so that what is made of them takes little memory."""
    size = PIECE if size is None else size
    return (triples[low : low + size] for low in range(0, len(triples), size))


def check_ids(what: str, ids: np.ndarray, limit: int) -> None:
    """Raise a DataError unless all ids are in [0, limit)."""
    if ids.size and not 0 <= ids.min() <= ids.max() < limit:
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise DataError(f"{what} {worst} is outside [0, {limit}); the files do not fit together")


def triples_of_ogb(data: OGBLink | OGBHetero) -> KnowledgeGraph:
    """The triples of ogbl-biokg or ogbl-wikikg2 with their given negatives.

    Entity types of biokg share one id space, one after the other; OGB numbers each of them from 0.

    Raises:
        DataError: an entity is outside its type.
    """
    name, starts = data.metadata.name, None
    if isinstance(data, OGBHetero):
        starts = dict(zip(data.num_nodes, accumulate(data.num_nodes.values(), initial=0), strict=False))

    def first_ids(part: str, tables: dict[str, np.ndarray], side: str) -> np.ndarray:
        """The first entity of the type of each triple's end, shape (T,)."""
        if not isinstance(data, OGBHetero):
            return np.zeros(len(tables[side]), np.int64)
        assert starts is not None
        kinds, numbers = np.unique(tables[f"{side}_type"], return_inverse=True)
        unknown = [kind for kind in kinds.tolist() if kind not in starts]
        if unknown:
            raise DataError(f"{name}, {part}: {side} type {unknown[0]!r} has no entities; the files do not fit")
        of_types = ([own[kind] for kind in kinds.tolist()] for own in (starts, data.num_nodes))
        first, limit = (np.array(own, np.int64)[numbers] for own in of_types)
        for key in (side, f"{side}_neg"):
            local = tables.get(key)
            if local is not None and ((local < 0) | (local >= (limit if local.ndim == 1 else limit[:, None]))).any():
                raise DataError(
                    f"{name}, {part}: an entity of {key} is outside its type; the files do not fit together"
                )
        return first

    parts, negatives = {}, {}
    for part, tables in data.split.items():
        first = {side: first_ids(part, tables, side) for side in ("head", "tail")}
        columns = [tables["head"] + first["head"], tables["relation"], tables["tail"] + first["tail"]]
        parts[part] = np.stack(columns, axis=1)
        if "head_neg" in tables:
            negatives[part] = GivenNegatives(*(tables[f"{side}_neg"] + own[:, None] for side, own in first.items()))
    num_relations = 1 + max(int(own[:, 1].max(initial=-1)) for own in parts.values())
    num_entities = sum(data.num_nodes.values()) if isinstance(data, OGBHetero) else data.num_nodes
    return KnowledgeGraph(name, num_entities, num_relations, parts, negatives=negatives, entity_types=starts)
