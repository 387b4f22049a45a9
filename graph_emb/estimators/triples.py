"""Estimators of knowledge graphs: entities and relations get rows."""

# T triples.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.estimators.base import GraphEstimator, as_names
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.formats.embedding_files import align, places_of
from graph_emb.graph.readers.source import is_frame
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.scorers import KGEScorer, score, scorer_of
from graph_emb.run.families.triple_findings import ENTITY, RELATION

COLUMNS = ("head", "relation", "tail")


class TriplePredictions(GraphEstimator):
    """Scores of triples by the rows of entities and relations."""

    @property
    def _scorer(self) -> KGEScorer:
        return scorer_of(self.config_.model)

    def predict_triples(self, triples: Any) -> NDArray[np.float32]:
        """Scores of triples, shape (T,), by the model's own function, higher for a likelier one.

        They order triples and are no probabilities.

        Args:
            triples: Of names, shape (T, 3), or a data frame of three columns.
        Raises:
            ShapeError: no such triples.
            DataError: an entity or relation that ``fit`` did not see.
        """
        heads, relations, tails = self._places(triples).T
        entity, relation = (torch.from_numpy(self._main(name).weights) for name in (ENTITY, RELATION))
        return score(self._scorer, entity[heads], relation[relations], entity[tails]).numpy()

    def complete(
        self, head: Any = None, relation: Any = None, tail: Any = None, k: int = 10
    ) -> list[tuple[Any, float]]:
        """The k entities of highest score in the place that is left out, head or tail, true ones among them.

        Returns:
            Names and scores, highest first.
        Raises:
            ConfigError: not exactly one of head and tail, no relation, or k outside [1, number of entities].
            DataError: a name that ``fit`` did not see.
        """
        if (head is None) == (tail is None) or relation is None:
            raise ConfigError("complete takes a relation and one of head and tail; the other is asked for")
        entity, names = self._main(ENTITY), self._main(ENTITY).node_ids
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(names):
            raise ConfigError(f"k={k} of {len(names)} entities: give one in [1, {len(names)}]")
        rows, scorer = torch.from_numpy(entity.weights), self._scorer
        kind = torch.from_numpy(align(self._main(RELATION), as_names([relation])))
        given = torch.from_numpy(align(entity, as_names([tail if head is None else head])))
        scores = score(scorer, rows, kind, given) if head is None else score(scorer, given, kind, rows)
        best = torch.argsort(scores, descending=True, stable=True)[:k].tolist()
        return [(names[place].item(), float(scores[place])) for place in best]

    def _places(self, X: Any) -> NDArray[np.int64]:
        """Triples of names as numbers of rows, shape (T, 3)."""
        entity, relation = self._main(ENTITY), self._main(RELATION)
        frame = frame_of(X)
        if not is_frame(frame) or frame.shape[1] != 3 or not len(frame):
            raise _no_triples("X")
        sides = ((entity, "head"), (relation, "relation"), (entity, "tail"))
        found = [(places_of(table, as_names(frame[column])), len(frame)) for table, column in sides]
        columns = [np.arange(count) if places is None else places for places, count in found]
        return np.stack(columns, axis=1, dtype=np.int64)


class TripleEstimator(TriplePredictions):
    """Triples in a data frame or array of three columns (head, relation, tail), or a graph with edge types.

    ``tables_`` has "entity", the main table, and "relation".
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def score(self, X: Any = None, y: Any = None) -> float:
        """Mean reciprocal rank of triples, of both sides, among all entities but other true answers.

        True are the triples of ``fit`` and those of X.

        Args:
            X: Triples of names, shape (T, 3), or a data frame of three columns.
            y: Not read.
        Raises:
            ShapeError: no such triples.
            DataError: an entity or relation that ``fit`` did not see.
            LackingError: the estimator is a run of a graph in memory that was loaded.
        """
        entity, relation = self._main(ENTITY), self._main(RELATION)
        places, known = self._places(X), self._trained_on()
        parts = {"train": known.all_triples(), "test": places}
        graph = KnowledgeGraph(known.name, known.num_entities, known.num_relations, parts)
        rows, kinds = torch.from_numpy(entity.weights), torch.from_numpy(relation.weights)
        ranks = rank_part(self._scorer, rows, kinds, graph, "test")
        return float(ranks.mrr().realistic)

    def _checked_array(self, graph: Any, *, reset: bool) -> Any:
        checked = frame_of(graph)
        if isinstance(checked, list | np.ndarray):
            raise _no_triples(f"a {type(checked).__name__}")
        return checked


TransE = TripleEstimator.of("TransE", "transe")
DistMult = TripleEstimator.of("DistMult", "distmult")
ComplEx = TripleEstimator.of("ComplEx", "complex")
RotatE = TripleEstimator.of("RotatE", "rotate")
SimplE = TripleEstimator.of("SimplE", "simple")


def frame_of(source: Any) -> Any:
    """Three columns as a data frame of head, relation and tail; anything else as it is."""
    import pandas as pd

    if _is_triples(source):
        return pd.DataFrame(np.asarray(source), columns=COLUMNS)
    if is_frame(source) and source.shape[1] == 3 and {*source.columns} != {*COLUMNS}:
        return source.set_axis([*COLUMNS], axis=1)
    return source


def _is_triples(source: Any) -> bool:
    if isinstance(source, np.ndarray):
        return source.ndim == 2 and source.shape[1] == 3
    rows = source if isinstance(source, list) else ()
    return bool(rows) and all(isinstance(row, list | tuple | np.ndarray) and len(row) == 3 for row in rows)


def _no_triples(name: str) -> ShapeError:
    return ShapeError(f"{name} holds no triples; give names, shape (T, 3), such as [('a', 'likes', 'b')]")
