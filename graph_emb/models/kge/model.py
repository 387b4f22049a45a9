"""A knowledge-graph model: a scorer and its two tables."""

# K chunks, C triples and N negatives of a chunk, B = K * C triples, D width.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.embedding import DistEmbedding
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.losses import EXCLUDED, LOSSES
from graph_emb.models.kge.penalties import power_sums
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.sampling.known_triples import TAIL

SEEDS = 2**63
"""Initializers take seeds below it; a model takes two, one after the other."""


@dataclass(frozen=True, eq=False)
class TripleBatch:
    """Chunks of triples of which all lose their heads, or all their tails.

    Attributes:
        triples: Shape (K, C, 3), int64.
        weights: Shape (K, C), float32; 0 for a triple that only fills a chunk up.
        total_weight: Of the whole step, all ranks together.
        side: ``HEAD`` or ``TAIL``: what the negatives take the place of.
        negatives: Entities that were drawn, shape (K, N), int64.
        excluded: Negatives that do not count, shape (K, C, N), or (K, C, N + C) with the chunk's own entities.
    """

    triples: np.ndarray
    weights: np.ndarray
    total_weight: float
    side: int
    negatives: np.ndarray
    excluded: np.ndarray


class KGEModel:
    """Tables of entities and relations under a scorer.

    Args:
        num_entities, num_relations: Rows.
        config: The recipe.
        seed: Of the first rows.
        part_policy: Of the entities; relations lie in one even range.
        names: Of the tables of entities and relations; an empty one is chosen by the table.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        config: KGEConfig,
        *,
        seed: int = 0,
        part_policy: Any = None,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        self.config = config
        self.scorer = SCORERS[config.model](config)
        entity_first, relation_first = self.scorer.initializers(2 * seed % SEEDS)
        self.entity = DistEmbedding(
            num_entities, self.scorer.dim, names[0] or None, init_func=entity_first, part_policy=part_policy
        )
        self.relation = DistEmbedding(
            num_relations, self.scorer.relation_dim, names[1] or None, init_func=relation_first
        )

    @property
    def tables(self) -> list[DistEmbedding]:
        """Entities, relations."""
        return [self.entity, self.relation]

    @property
    def num_parameters(self) -> int:
        """Numbers in all rows."""
        return sum(table.num_embeddings * table.embedding_dim for table in self.tables)

    def loss(self, batch: TripleBatch) -> Tensor:
        """The batch's share of the step's weighted mean loss with its penalties; a scalar.

        Every table is pulled once, so that ranks in lockstep stay so, whatever they hold.
        """
        config, scorer = self.config, self.scorer
        chunks, size = batch.weights.shape
        triples = torch.from_numpy(batch.triples).view(-1, 3)
        drawn = torch.from_numpy(batch.negatives)
        rows = self.entity(torch.cat([triples[:, 0], triples[:, 2], drawn.flatten()]))
        head, tail, negative = rows.split([len(triples), len(triples), drawn.numel()])
        relation = self.relation(triples[:, 1])
        if batch.side == TAIL:
            query, true = scorer.tail_query(head, relation), tail
        else:
            query, true = scorer.head_query(relation, tail), head
        negative = negative.view(*drawn.shape, scorer.dim)
        if config.in_batch:
            negative = torch.cat([negative, true.view(chunks, size, scorer.dim)], dim=1)
        scores = scorer.comparison.chunks(query.view(chunks, size, scorer.dim), negative)
        scores = scores.masked_fill(torch.from_numpy(batch.excluded), EXCLUDED).flatten(0, 1)
        losses = LOSSES[config.loss](scorer.comparison.pairs(query, true), scores, config.margin, config.temperature)
        for weight, power in ((config.n3, 3), (config.l2, 2)):
            if weight:
                losses = losses + weight * power_sums(scorer, (head, relation, tail), power)
        return (losses * torch.from_numpy(batch.weights).flatten()).sum() / batch.total_weight
