"""Matrix factorisation: one embedding per node, trained together with OGB's link predictor."""

# B pairs, R distinct nodes of a batch, N nodes, D width.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graph_emb.embedding import DistEmbedding
from graph_emb.models.links.config import LinkPredictorConfig, MatrixFactorizationConfig
from graph_emb.models.links.training import LinkPredictorResult, train_link_predictor
from graph_emb.optimizer import OPTIMIZERS, SparseOptimizer
from graph_emb.table.initializers import Normal
from graph_emb.table.placement import AUTO


class LearningRows:
    """A table that is trained with the predictor: rows are pulled once per distinct node of a batch.

    Args:
        embedding: The table; of one process, and not in memory, it hears of the nodes of the batches to come.
        optimizer: The optimizer of that table.
    """

    def __init__(self, embedding: DistEmbedding, optimizer: SparseOptimizer) -> None:
        self.embedding = embedding
        self.optimizer: SparseOptimizer | None = optimizer
        self.dim = embedding.embedding_dim
        self.num_parameters = embedding.num_embeddings * embedding.embedding_dim
        self._traced: Tensor | None = None
        self._is_told = embedding.transport.mode == "local" and embedding.spec.placement is not None

    def prefetch(self, pairs: Tensor) -> None:
        """Start to bring the rows of the distinct nodes of pairs (B, 2) from a file."""
        if self._is_told:
            self.embedding.prefetch(torch.unique(pairs))

    def gather(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (R, D) of the distinct nodes of pairs (B, 2), and the positions (B, 2) among them."""
        nodes, local = torch.unique(pairs, return_inverse=True)
        rows = self.embedding(nodes, dtype=torch.float32)
        if not torch.is_grad_enabled():
            return rows, local
        # The chunks of a batch each run backward, so they need a leaf on which their gradients add up.
        self._traced = rows
        return rows.detach().requires_grad_(), local

    def step(self, row_grads: Tensor | None) -> None:
        """Apply the gradient that the chunks of a batch have summed."""
        assert self._traced is not None, "step() before gather()"
        self._traced.backward(row_grads)
        self._traced = None
        assert self.optimizer is not None
        self.optimizer.step()  # and consumes the gradients


def train_matrix_factorization(
    link_split: Mapping[str, Mapping[str, Any]],
    num_nodes: int,
    config: MatrixFactorizationConfig | None = None,
    predictor: LinkPredictorConfig | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
    placement: Any = AUTO,
) -> tuple[DistEmbedding, LinkPredictorResult]:
    """Train embeddings and predictor on the same batches.

    OGB's script steps a dense Adam over all rows; here a sparse one steps the rows that a batch touches. Both are the
    same where a batch touches every row, as 65,536 edges and non-edges of ogbl-ddi's 4,267 nodes do; elsewhere dense
    Adam also moves untouched rows along their momentum, and the sparse one leaves them.

    Args:
        link_split, num_nodes, seed, progress: As in ``train_link_predictor``.
        config: The embedding's recipe.
        predictor: The network's recipe.
        placement: Of the table, as in ``DistEmbedding``; no result depends on it.
    Returns:
        The table, shape (N, D), and the evaluations.
    """
    config = config or MatrixFactorizationConfig()
    first = Normal(0.0, config.std, seed=seed)
    options: dict[str, Any] = {"dtype": config.table_dtype, "placement": placement}
    embedding = DistEmbedding(num_nodes, config.dim, init_func=first, **options)
    optimizer = OPTIMIZERS[config.rule]([embedding], lr=config.lr, **config.numbers(seed))
    rows = LearningRows(embedding, optimizer)
    how: dict[str, Any] = {"schedule": config, "seed": seed, "progress": progress}
    result = train_link_predictor(rows, link_split, num_nodes, predictor, **how)
    return embedding, result
