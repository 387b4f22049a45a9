"""Estimators of knowledge graphs: entities and relations get rows."""

# T triples.

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graph_emb.core.errors import ShapeError
from graph_emb.estimators.base import GraphEstimator, as_names
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.formats.embedding_files import places_of
from graph_emb.graph.readers.source import is_frame
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.run.families.kge import ENTITY, RELATION

COLUMNS = ("head", "relation", "tail")


class TripleEstimator(GraphEstimator):
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
        frame = frame_of(X)
        if not is_frame(frame) or frame.shape[1] != 3 or not len(frame):
            raise ShapeError("X holds no triples; give names, shape (T, 3), such as [('a', 'likes', 'b')]")
        sides = ((entity, "head"), (relation, "relation"), (entity, "tail"))
        found = [(places_of(table, as_names(frame[column])), len(frame)) for table, column in sides]
        columns = [np.arange(count) if places is None else places for places, count in found]
        known = self._trained_on()
        parts = {"train": known.all_triples(), "test": np.stack(columns, axis=1, dtype=np.int64)}
        graph = KnowledgeGraph(known.name, known.num_entities, known.num_relations, parts)
        scorer = scorer_of(self.config_.model)
        rows, kinds = torch.from_numpy(entity.weights), torch.from_numpy(relation.weights)
        ranks = rank_part(scorer, rows, kinds, graph, "test")
        return float(ranks.mrr().realistic)

    def _checked_array(self, graph: Any, *, reset: bool) -> Any:
        return frame_of(graph)


def frame_of(source: Any) -> Any:
    """Three columns as a data frame of head, relation and tail; anything else as it is."""
    import pandas as pd

    if isinstance(source, list | np.ndarray) and np.ndim(source) == 2 and len(source[0]) == 3:
        return pd.DataFrame(np.asarray(source), columns=COLUMNS)
    if is_frame(source) and source.shape[1] == 3 and {*source.columns} != {*COLUMNS}:
        return source.set_axis([*COLUMNS], axis=1)
    return source
