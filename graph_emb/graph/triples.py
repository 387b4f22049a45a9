"""Knowledge graphs: triples (head, relation, tail) with their splits, by name or path.

Legend: T triples, E entities, R relations, B judged triples, M given negatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graph_emb.core.errors import DataError

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class GivenNegatives:
    """Entities that a data set says to rank each triple's ends against, shape (B, M) each, int64."""

    heads: np.ndarray
    tails: np.ndarray


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples to train on and to judge by.

    Attributes:
        name: As the data set or its folder is called.
        num_entities: E.
        num_relations: R.
        parts: ``train`` and, where there are, ``valid`` and ``test``: shape (T, 3), int64, head, relation, tail.
        entities: Names of the entities in order, or None.
        relations: Names of the relations in order, or None.
        negatives: By part, where the data set gives them (OGB).
        entity_types: First entity of each type in order, where types share the id space one after the other (biokg).
    Raises:
        DataError: a part is empty or of another shape, or an id is outside its space.
    """

    name: str
    num_entities: int
    num_relations: int
    parts: Mapping[str, np.ndarray]
    entities: tuple[str, ...] | None = None
    relations: tuple[str, ...] | None = None
    negatives: Mapping[str, GivenNegatives] = field(default_factory=dict)
    entity_types: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if "train" not in self.parts:
            raise DataError(f"knowledge graph {self.name!r}: has no train part; known parts: {', '.join(self.parts)}")
        for part, triples in self.parts.items():
            what = f"knowledge graph {self.name!r}, {part}"
            if triples.ndim != 2 or triples.shape[1] != 3 or triples.dtype != np.int64 or not len(triples):
                raise DataError(
                    f"{what}: triples have shape {triples.shape} of {triples.dtype}; expected (T, 3) of int64, T > 0"
                )
            check_ids(f"{what}: entity", triples[:, [0, 2]], self.num_entities)
            check_ids(f"{what}: relation", triples[:, 1], self.num_relations)
        for part, given in self.negatives.items():
            for side, ids in (("head", given.heads), ("tail", given.tails)):
                what = f"knowledge graph {self.name!r}, {part}: {side} negatives"
                if ids.ndim != 2 or len(ids) != len(self.parts.get(part, ())):
                    raise DataError(f"{what} have shape {ids.shape}; expected a row for each of the part's triples")
                check_ids(what, ids, self.num_entities)

    @property
    def train(self) -> np.ndarray:
        """Triples to train on, (T, 3)."""
        return self.parts["train"]

    def all_triples(self) -> np.ndarray:
        """Every triple that is known, of all parts: what filtered ranks leave out."""
        return np.concatenate([self.parts[part] for part in self.parts])

    def occurrences(self) -> np.ndarray:
        """How often each entity is the end of a training triple, shape (E,), int64."""
        return np.bincount(self.train[:, [0, 2]].ravel(), minlength=self.num_entities)


def check_ids(what: str, ids: np.ndarray, limit: int) -> None:
    """Raise a DataError unless all ids are in [0, limit)."""
    if ids.size and not 0 <= ids.min() <= ids.max() < limit:
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise DataError(f"{what} {worst} is outside [0, {limit}); the files do not fit together")
