"""A knowledge-graph model: a scorer, its two tables, and the loss of a batch of triples."""

# K chunks, C triples and N negatives of a chunk, B = K * C triples, D and W widths of entities and relations.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from graph_emb.composed import expanded, lookup
from graph_emb.core.compiled import GOLDEN, mix64, njit, unit_draw
from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import SameIds
from graph_emb.models.kge.all_entities import QueryBatch, cross_entropy
from graph_emb.models.kge.config import KGEConfig, TripleSettings
from graph_emb.models.kge.scorers import KGEScorer, scorer_of
from graph_emb.models.tables import Table, node_table, with_parts
from graph_emb.sampling.known_triples import HEAD, TAIL
from graph_emb.table.placement import AUTO, in_memory

SEEDS = 2**63
"""Initializers take seeds below it; a model takes two, one after the other."""


@dataclass(frozen=True, eq=False)
class TripleBatch:
    """Chunks of triples, all corrupted on the same side.

    Attributes:
        triples: Shape (K, C, 3), int64.
        weights: Shape (K, C), float32; 0 for a triple that only pads its chunk.
        total_weight: Of the whole step, summed over ranks.
        side: ``HEAD`` or ``TAIL``: the side that negatives replace.
        negatives: Drawn entities, shape (K, N), int64.
        excluded: Negatives that do not count, shape (K, C, N), or (K, C, N + C) with the chunk's own entities.
        step: Number of the step in the training, of which dropped numbers are a function.
    """

    triples: np.ndarray
    weights: np.ndarray
    total_weight: float
    side: int
    negatives: np.ndarray
    excluded: np.ndarray
    step: int = 0

    def entities(self) -> np.ndarray:
        """Heads, tails, then negatives, of all chunks: shape (2 * B + K * N,), repeats included."""
        return np.concatenate([self.triples[..., 0], self.triples[..., 2], self.negatives], axis=None)

    def pieces(self, num_scores: int) -> Iterator[TripleBatch]:
        """The same chunks, as many at a time as have about this many scores; at least one piece."""
        count = max(1, num_scores // max(1, self.excluded[:1].size))
        for first in range(0, max(1, len(self.triples)), count):
            chosen = slice(first, first + count)
            parts = [own[chosen] for own in (self.triples, self.weights, self.negatives, self.excluded)]
            yield TripleBatch(parts[0], parts[1], self.total_weight, self.side, parts[2], parts[3], self.step)


class KGEModel:
    """A scorer with its tables of entities and relations.

    Args:
        num_entities, num_relations: Rows of each table.
        config: The recipe.
        seed: Of the initial values.
        part_policy: Partition of the entities; relations are split into even ranges.
        names: Names of the entity and relation tables; an empty one is chosen by the table.
        placement: Of the entities, as in ``DistEmbedding``; relations are few and lie in memory.
        device: Where rows lie and are scored; None: as in ``DistEmbedding``.
        levels: The part of each entity at each level, (E, L), for ``config.table`` of position.
        own_rows: Ids of the entities that have a row of their own, for ``config.own_rows``.
        first: Initializers of entities and relations; None: the scorer's own.

    Example:
        >>> from graph_emb.models.kge.config import KGEConfig, TripleSettings
        >>> from graph_emb.models.kge.model import KGEModel
        >>> model = KGEModel(14, 3, KGEConfig(model="rotate", dim=8))
        >>> model.entity.weight[:].shape, model.relation.weight[:].shape  # RotatE has D / 2 phases a relation
        (torch.Size([14, 8]), torch.Size([3, 4]))
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
        placement: Any = AUTO,
        device: torch.device | str | None = None,
        levels: Any = None,
        own_rows: Any = None,
        first: tuple[Any, Any] | None = None,
    ) -> None:
        config = with_parts(config, placement)
        self.config = config
        if config.against_all and not in_memory(placement):
            raise ConfigError(
                f"{config.name}: a step against all entities reads them all, which cannot lie in a file or cache; "
                "leave out train.memory, or draw negatives"
            )
        self.scorer = scorer_of(config)
        self.drop = Dropout(config.dropout, seed) if config.dropout else None
        entity_first, relation_first = self.scorer.initializers(2 * seed % SEEDS) if first is None else first
        self.entity: Table = node_table(
            num_entities,
            self.scorer.dim,
            config,
            name=names[0] or None,
            init_func=entity_first,
            part_policy=part_policy,
            levels=levels,
            own_rows=own_rows,
            seed=seed,
            of="entities",
            placement=placement,
            device=device,
        )
        self.device = expanded([self.entity])[0].spec.device
        self.relation = DistEmbedding(
            num_relations,
            self.scorer.relation_dim,
            names[1] or None,
            relation_first,
            dtype=config.table_dtype,
            device=self.device,
        )
        ids = self.entity.original_ids
        self.rows = None if isinstance(ids, SameIds) else ids.find(np.arange(num_entities))

    @property
    def tables(self) -> list[Table]:
        """Entities, relations."""
        return [self.entity, self.relation]

    @property
    def num_parameters(self) -> int:
        """Numbers in all rows."""
        return sum(table.num_embeddings * table.embedding_dim for table in expanded(self.tables))

    @property
    def entities_in_file(self) -> bool:
        """Whether entities lie in a file, which should hear of ids in advance."""
        return isinstance(self.entity, DistEmbedding) and self.entity.spec.placement is not None

    def told_of_file(self, seconds: float) -> str:
        """The end of a line of progress: what memory held of entities in a file, after so many seconds."""
        if not self.entities_in_file:
            return ""
        assert isinstance(self.entity, DistEmbedding)
        return f", {self.entity.cache_stats().told(seconds, 'entities')}"

    def entities_of(self, batch: TripleBatch) -> Tensor:
        """The rows of the entity table that ``loss`` asks for, in its order."""
        entities = batch.entities()
        return torch.from_numpy(entities if self.rows is None else self.rows[entities])

    def loss(self, batch: TripleBatch | QueryBatch) -> Tensor:
        """The batch's share of the step's weighted mean loss, penalties included; a scalar.

        Pulls each table exactly once, so that ranks in lockstep make the same calls whatever triples they hold.
        """
        if self.config.against_all:
            return self._loss_over_all(batch)
        assert isinstance(batch, TripleBatch)
        triples = torch.from_numpy(batch.triples).view(-1, 3)
        asked = [(self.entity, self.entities_of(batch)), (self.relation, triples[:, 1])]
        rows, relation = lookup(asked, self.device, torch.float32)
        return triple_loss(self.scorer, self.config, batch, rows, relation, self.drop)

    def _loss_over_all(self, batch: TripleBatch | QueryBatch) -> Tensor:
        if isinstance(batch, TripleBatch):
            triples, weights = batch.triples.reshape(-1, 3), batch.weights.ravel()
            batch = QueryBatch.of_triples(triples, weights, batch.total_weight, batch.step)
        everyone = np.arange(self.entity.num_embeddings) if self.rows is None else self.rows
        asked = [(self.entity, torch.from_numpy(everyone)), (self.relation, torch.from_numpy(batch.relations))]
        rows, relation = lookup(asked, self.device, torch.float32)
        return query_loss(self.scorer, self.config, batch, rows, relation, self.drop)


def triple_loss(
    scorer: KGEScorer,
    config: TripleSettings,
    batch: TripleBatch,
    entities: Tensor,
    relation: Tensor,
    drop: Dropout | None = None,
) -> Tensor:
    """A batch's share of the step's weighted mean loss, penalties included; a scalar.

    Args:
        scorer, config: Arithmetic, loss and penalties.
        batch: Chunks; none is 0.
        entities: Rows of ``batch.entities()``, shape (2 * B + K * N, D).
        relation: Rows of the triples' relations, (B, W).
        drop: Of the rows of the queries; None: none.
    """
    chunks, size = batch.weights.shape
    num = chunks * size
    head, tail, negative = entities.split([num, num, len(entities) - 2 * num])
    given, true = (head, tail) if batch.side == TAIL else (tail, head)
    asked, kind = given, relation
    if drop is not None:
        asked, kind = drop.apply(batch.step, batch.triples.reshape(-1, 3), batch.side, given, relation)
    query = scorer.tail_query(asked, kind) if batch.side == TAIL else scorer.head_query(kind, asked)
    negative = negative.view(*batch.negatives.shape, scorer.dim)
    if config.in_batch:
        negative = torch.cat([negative, true.view(chunks, size, scorer.dim)], dim=1)
    scores = scorer.comparison.chunks(query.view(chunks, size, scorer.dim), negative)
    scores = scores.masked_fill(torch.from_numpy(batch.excluded).to(scores.device), EXCLUDED).flatten(0, 1)
    losses = LOSSES[config.loss](scorer.comparison.pairs(query, true), scores, config.margin, config.temperature)
    losses = losses + penalties(scorer, config, head, scorer.read_by(batch.side, relation), tail)
    weights = torch.from_numpy(batch.weights).flatten().to(losses.device)
    return (losses * weights).sum() / batch.total_weight


def query_loss(
    scorer: KGEScorer,
    config: KGEConfig,
    batch: QueryBatch,
    entities: Tensor,
    relation: Tensor,
    drop: Dropout | None = None,
) -> Tensor:
    """A batch's share of the step's weighted mean cross entropy over all entities, penalties included; a scalar.

    The penalties of a query are the mean of those of the triples that its answers make.

    Args:
        scorer, config: Arithmetic, smoothing and penalties.
        batch: Queries; none is 0.
        entities: Rows of all entities, (E, D).
        relation: Rows of the queries' relations, (Q, W).
        drop: Of the rows of the queries; None: none.
    """
    tails, ends = batch.num_tails, torch.from_numpy(np.concatenate([batch.given, batch.answers])).to(entities.device)
    given, answer = entities.index_select(0, ends).split([len(batch.given), len(batch.answers)])
    asked, kind = given, relation
    if drop is not None:
        sides = np.where(np.arange(len(batch.given)) < tails, TAIL, HEAD)
        columns = np.stack([batch.given, batch.relations, sides], axis=1)
        asked, kind = drop.apply(batch.step, columns, HEAD + TAIL + 1, given, relation)
    query = torch.cat([scorer.tail_query(asked[:tails], kind[:tails]), scorer.head_query(kind[tails:], asked[tails:])])
    rounded = config.products == "bfloat16"
    loss = cross_entropy(query, entities, batch, scorer.comparison, config.label_smoothing, bfloat16=rounded)
    if not (config.n3 or config.l2):
        return loss
    read = torch.cat([scorer.read_by(TAIL, relation[:tails]), scorer.read_by(HEAD, relation[tails:])])
    counts = np.diff(batch.starts)
    of_query = torch.from_numpy(np.repeat(1.0 / counts, counts).astype(np.float32)).to(answer)
    losses = penalties(scorer, config, given, read)
    asking = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(losses.device)
    losses = losses.index_add(0, asking, penalties(scorer, config, answer) * of_query)
    return loss + (losses * torch.from_numpy(batch.weights).to(losses)).sum() / batch.total_weight


def penalties(scorer: KGEScorer, config: TripleSettings, *rows: Tensor) -> Tensor:
    """``n3 * sum |x|^3 + l2 * sum |x|^2`` over the rows that belong together, shapes (B, D) or (B, W); shape (B,)."""
    found = rows[0].new_zeros(len(rows[0]))
    for weight, power in ((config.n3, 3), (config.l2, 2)):
        if weight:
            found = found + weight * power_sums(scorer, rows, power)
    return found


@dataclass(frozen=True)
class Dropout:
    """Numbers of rows that a step leaves out: a function of seed, step and query, whichever rank trains it.

    Args:
        share: Of the numbers; the rest is scaled by ``1 / (1 - share)``.
        seed: Any integer.
    """

    share: float
    seed: int

    def apply(self, step: int, queries: np.ndarray, side: int, *rows: Tensor) -> list[Tensor]:
        """Rows without the numbers that are left out.

        Args:
            step: Number of the step in the training.
            queries: What tells queries of a step apart, (B, 3), int64.
            side: The same.
            rows: Of each query, shapes (B, width); each is drawn for itself.
        """
        keys, found = self._keys(step, queries, side), []
        for stream, own in enumerate(rows):
            mask = np.empty(own.shape, np.float32)
            _draw_kept(keys + np.uint64(stream), self.share, mask)
            found.append(own * torch.from_numpy(mask).to(own))
        return found

    def _keys(self, step: int, queries: np.ndarray, side: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            keys = mix64(np.full(len(queries), self.seed % (1 << 64), np.uint64) + GOLDEN)
            for column in (np.array([step]), np.array([side]), *queries.T):
                keys = mix64((keys + GOLDEN) ^ mix64(column.astype(np.uint64) + GOLDEN))
        return keys


@njit(cache=True, nogil=True)
def _draw_kept(keys: np.ndarray, share: float, out: np.ndarray) -> None:
    kept = np.float32(1.0 / (1.0 - share))
    for b in range(len(keys)):
        key = mix64(keys[b])
        for d in range(out.shape[1]):
            out[b, d] = np.float32(0.0) if unit_draw(key, d) < share else kept


def power_sums(scorer: KGEScorer, rows: Sequence[Tensor], power: int) -> Tensor:
    """``sum |x|^power`` over the rows of each triple, shape (B,): weight decay of the touched rows only.

    With power 3 this is N3 (Lacroix, Usunier and Obozinski 2018, equation 4) without its factor 1/3; |x| is the
    modulus where the model's numbers are complex.

    Args:
        scorer: Says which numbers of a row are complex.
        rows: Heads, relations and tails, shapes (B, D), (B, W), (B, D).
        power: 2 or 3.
    """
    sums = [scorer.moduli(part).pow(power).sum(dim=-1) for part in rows]
    return torch.stack(sums).sum(dim=0)


EXCLUDED = -1e30  # of a negative that must not count: not -inf, whose differences and products are NaN


def logistic(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``softplus(-(margin + s)) + mean_n softplus(margin + s_n)`` (Trouillon et al. 2016, the margin from RotatE)."""
    return softplus(-(margin + positive)) + softplus(margin + negative).mean(dim=1)


def ranking(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``mean_n max(0, margin - s + s_n)`` (Bordes et al. 2013)."""
    return (margin - positive[:, None] + negative).clamp_min(0).mean(dim=1)


def softmax(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``log(exp(s) + sum_n exp(s_n)) - s``: cross entropy over the triple and its negatives (Kadlec et al. 2017)."""
    return torch.logaddexp(positive, negative.logsumexp(dim=1)) - positive


def self_adversarial(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``(softplus(-(margin + s)) + sum_n p_n softplus(margin + s_n)) / 2`` with ``p = softmax(temperature * s_n)``.

    Equation 5 of Sun et al. 2019 with its authors' factor 1/2; no gradient passes through p.
    """
    weights = (temperature * negative.detach()).softmax(dim=1)
    return (softplus(-(margin + positive)) + (weights * softplus(margin + negative)).sum(dim=1)) / 2


Loss = Callable[[Tensor, Tensor, float, float], Tensor]
LOSSES: dict[str, Loss] = {
    "logistic": logistic,
    "margin": ranking,
    "softmax": softmax,
    "self_adversarial": self_adversarial,
}
"""``loss(positive (B,), negative (B, N), margin, temperature)`` gives (B,); each ignores what its formula lacks."""
