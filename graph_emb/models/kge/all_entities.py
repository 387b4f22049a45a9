"""Cross entropy of queries over all entities (1-vs-all, k-vs-all), without a matrix of all queries and entities.

Lacroix, Usunier and Obozinski, "Canonical Tensor Decomposition for Knowledge Base Completion", ICML 2018 (1-vs-all);
Dettmers et al., "Convolutional 2D Knowledge Graph Embeddings", AAAI 2018 (k-vs-all).

Legend: Q queries, A their answers, B triples, E entities, D and W widths of their rows and of relations'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.comparisons import Comparison, InnerProduct

SCORES = 1 << 20
"""Scores that are held at once: 4 MiB of float32, about what the cache of a core and its share of the last one keep."""
DEVICE_SCORES = 1 << 26
"""The same on a GPU, which wants few large products: 256 MiB of float32."""
LEAST_QUERIES = 64
"""Queries of a block where all their scores are more than ``SCORES``: a matrix product needs rows to be fast."""


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """Queries with their answers: those for tails first.

    Attributes:
        given: The entity of each query, shape (Q,), int64.
        relations: Its relation, shape (Q,), int64.
        num_tails: How many ask for the tail, (given, relation, ?); the rest ask (?, relation, given).
        starts: Query q's answers are ``answers[starts[q] : starts[q + 1]]``, at least one; shape (Q + 1,), int64.
        answers: Shape (A,), int64; each once a query.
        weights: Shape (Q,), float32.
        total_weight: Of the whole step, summed over ranks.
        step: Number of the step in the training, of which dropped numbers are a function.
    """

    given: np.ndarray
    relations: np.ndarray
    num_tails: int
    starts: np.ndarray
    answers: np.ndarray
    weights: np.ndarray
    total_weight: float
    step: int

    @classmethod
    def of_triples(cls, triples: np.ndarray, weights: np.ndarray, total_weight: float, step: int) -> QueryBatch:
        """Both queries of each triple (B, 3), whose only answer is its own: 1-vs-all."""
        heads, relations, tails = triples.T
        ends = np.concatenate([heads, tails]), np.concatenate([tails, heads])
        both, starts = np.tile(weights, 2), np.arange(2 * len(triples) + 1)
        return cls(ends[0], np.tile(relations, 2), len(triples), starts, ends[1], both, 2 * total_weight, step)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Blocks of queries and of entities whose scores are held at once."""

    num_queries: int
    num_entities: int
    scores: int

    @property
    def queries(self) -> int:
        return max(1, min(self.num_queries, max(LEAST_QUERIES, self.scores // max(1, self.num_entities))))

    @property
    def entities(self) -> int:
        return max(1, min(self.num_entities, max(1, self.scores // self.queries)))


def cross_entropy(
    queries: Tensor,
    entities: Tensor,
    batch: QueryBatch,
    comparison: Comparison,
    smoothing: float = 0.0,
    *,
    bfloat16: bool = False,
) -> Tensor:
    """``sum_q w_q (logsumexp_e s_qe - (1 - eps) mean_a s_qa - eps mean_e s_qe) / total_weight``; a scalar.

    Values and gradients are made in one pass over blocks of queries, in each of which the scores of a block are made,
    normalised in place and turned into gradients while they are in the cache. Where even ``LEAST_QUERIES`` queries have
    more than ``SCORES`` scores, entities come in blocks too and their scores are made twice.

    Args:
        queries: Shape (Q, D); Q may be 0.
        entities: Shape (E, D).
        batch: Answers and weights.
        comparison: The score of a query and an entity.
        smoothing: eps, the share of a query's target that all entities have in equal parts.
        bfloat16: Round the factors of matrix products to 8 binary digits, and add in float32, where the processor
            does that faster (AMX); elsewhere nothing changes.
    """
    weights = torch.from_numpy(batch.weights / np.float64(batch.total_weight)).to(queries)
    with _rounded_products() if bfloat16 else nullcontext():
        loss: Tensor = _CrossEntropy.apply(
            queries, entities, batch.starts, batch.answers, weights, comparison, smoothing
        )
    return loss


@contextmanager
def _rounded_products() -> Iterator[None]:
    """Let torch's float32 matrix products on the CPU round their factors inside."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        raise ConfigError(f"model.products = 'bfloat16' needs torch 2.9, and this is {torch.__version__}; leave it out")
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


class _CrossEntropy(torch.autograd.Function):
    """The gradients are made with the value, while the scores are there; the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        entities: Tensor,
        starts: np.ndarray,
        answers: np.ndarray,
        weights: Tensor,
        comparison: Comparison,
        smoothing: float,
    ) -> Tensor:
        queries, entities = queries.detach(), entities.detach()
        total = queries.new_zeros(())
        learns = any(ctx.needs_input_grad[:2])
        grads = (torch.zeros_like(queries), torch.zeros_like(entities)) if learns else None
        device = queries.device
        tiles = _Tiles(len(queries), len(entities), SCORES if device.type == "cpu" else DEVICE_SCORES)
        for low in range(0, len(queries), tiles.queries):
            rows = slice(low, min(low + tiles.queries, len(queries)))
            own = slice(starts[rows.start], starts[rows.stop])
            counts = np.diff(starts[rows.start : rows.stop + 1])
            block = _Block(
                queries[rows],
                entities,
                torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(device),
                torch.from_numpy(answers[own]).to(device),
                torch.from_numpy(np.repeat(1.0 / counts, counts)).to(queries),
                weights[rows],
                comparison,
                smoothing,
                tiles.entities,
            )
            total += block.run(None if grads is None else (grads[0][rows], grads[1]))
        if grads is not None:
            ctx.save_for_backward(*grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = [
            own * grad if needed else None for own, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return (*found, None, None, None, None, None)


@dataclass(frozen=True, eq=False)
class _Block:
    """A block of queries against all entities.

    Attributes:
        queries, entities: Rows.
        asked, answers: The query in the block and the entity of each answer.
        shares: 1 / number of the query's answers, of each answer.
        weights: Of the queries.
        comparison, smoothing: As of ``cross_entropy``.
        width: Entities whose scores are held at once.
    """

    queries: Tensor
    entities: Tensor
    asked: Tensor
    answers: Tensor
    shares: Tensor
    weights: Tensor
    comparison: Comparison
    smoothing: float
    width: int

    def run(self, grads: tuple[Tensor, Tensor] | None) -> Tensor:
        """The block's part of the value; its gradients join ``grads``, of the queries (q, D) and entities (E, D)."""
        top = self.queries.new_full((len(self.queries),), -torch.inf)
        mass, sums, true = (torch.zeros_like(top) for _ in range(3))
        kept = None
        for low in range(0, len(self.entities), self.width):
            scores, learnt = self._scores(low, grads is not None)
            here, columns = self._answers(low)
            true.index_add_(0, self.asked[here], scores[self.asked[here], columns] * self.shares[here])
            if self.smoothing:
                sums += scores.sum(dim=1)
            higher = torch.maximum(top, scores.amax(dim=1))
            mass *= (top - higher).exp_()
            mass += scores.sub_(higher[:, None]).exp_().sum(dim=1)
            top, kept = higher, (scores, learnt)
        value = top + mass.log() - (1 - self.smoothing) * true - self.smoothing / len(self.entities) * sums
        if grads is not None:
            if self.width < len(self.entities):
                kept = None  # the scores of the last block of entities alone
            for low in range(0, len(self.entities), self.width):
                self._add_gradients(low, kept, top, mass, grads)
        return (value * self.weights).sum()

    def _scores(self, low: int, learn: bool) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
        """Scores that may be changed in place, and for all but inner products what torch derives them from."""
        entities = self.entities[low : low + self.width]
        if not learn or isinstance(self.comparison, InnerProduct):
            return self.comparison.chunks(self.queries[None], entities[None])[0], None
        with torch.enable_grad():
            queries, others = (side.detach().requires_grad_() for side in (self.queries, entities))
            scores = self.comparison.chunks(queries[None], others[None])[0]
        return scores.detach(), (queries, others, scores)  # no comparison keeps its scores for its gradient

    def _answers(self, low: int) -> tuple[Tensor, Tensor]:
        """Which answers are among the entities from ``low`` on, and their columns."""
        if self.width >= len(self.entities):
            return torch.arange(len(self.answers), device=self.answers.device), self.answers
        here = ((self.answers >= low) & (self.answers < low + self.width)).nonzero()[:, 0]
        return here, self.answers[here] - low

    def _add_gradients(self, low: int, kept: Any, top: Tensor, mass: Tensor, grads: tuple[Tensor, Tensor]) -> None:
        if kept is None:
            scores, learnt = self._scores(low, True)
            scores.sub_(top[:, None]).exp_()
        else:
            scores, learnt = kept
        scores *= (self.weights / mass)[:, None]
        here, columns = self._answers(low)
        asked = self.asked[here]
        pull = -(1 - self.smoothing) * self.weights[asked] * self.shares[here]
        scores.index_put_((asked, columns), pull, accumulate=True)
        if self.smoothing:
            scores -= (self.smoothing / len(self.entities) * self.weights)[:, None]
        entities, entity_grads = (own[low : low + self.width] for own in (self.entities, grads[1]))
        if learnt is None:
            grads[0].addmm_(scores, entities)
            entity_grads.addmm_(scores.T, self.queries)
            return
        *sides, output = learnt
        found = torch.autograd.grad(output, sides, scores)
        grads[0].add_(found[0])
        entity_grads.add_(found[1])
