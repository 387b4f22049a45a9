"""What the training of a link predictor may be told, with the limit of every value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.evaluate.link_prediction import measure

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NEGATIVES = ("non_edges", "targets", "given")


@dataclass(frozen=True)
class LinkPredictorConfig:
    """The recipe; the defaults are those of OGB's ``examples/linkproppred/ddi/mlp.py``.

    Attributes:
        hidden_dim: H.
        num_layers: Linear layers, at least 2.
        dropout: After each hidden layer, at least 0 and below 1.
        lr: Adam's learning rate.
        batch_size: Edges of a step; as many negatives join them.
        epochs: Passes over the training edges.
        eval_every: Epochs between two evaluations.
        patience: Evaluations without a better validation value of ``select`` after which training ends; None: never.
        metrics: Of "hits@K", "mrr" and "rocauc".
        select: The metric that ``patience`` watches, one of ``metrics``.
        negatives: ``non_edges`` draws pairs that no training edge joins; ``targets`` keeps the source of each edge and
            draws its target among all nodes, as OGB's ogbl-citation2 scripts do; ``given`` takes the training part's
            own ``edge_neg``, that of the same number as the edge, as OGB's ogbl-vessel scripts do.
        precision: Of the products in training; scores and ranks are always float32.
    Raises:
        ConfigError: a value is outside its limits.
    """

    hidden_dim: int = 256
    num_layers: int = 3
    dropout: float = 0.5
    lr: float = 0.01
    batch_size: int = 64 * 1024
    epochs: int = 200
    eval_every: int = 5
    patience: int | None = None
    metrics: tuple[str, ...] = ("hits@10", "hits@20", "hits@30", "hits@50", "hits@100")
    select: str = "hits@20"
    negatives: str = "non_edges"
    precision: str = "float32"

    def __post_init__(self) -> None:
        for field in ("hidden_dim", "batch_size", "epochs", "eval_every"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.num_layers < 2:
            raise ConfigError(f"num_layers is {self.num_layers}; a hidden and an output layer are the least")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"lr is {self.lr}; it must be positive and finite")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience is {self.patience}; give at least 1, or None to train all epochs")
        if self.epochs < self.eval_every:
            raise ConfigError(f"epochs={self.epochs} ends before the first evaluation, eval_every={self.eval_every}")
        for name in self.metrics:
            measure(name)
        if self.select not in self.metrics:
            raise ConfigError(f"select={self.select!r} is not among metrics={self.metrics}")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.negatives not in NEGATIVES:
            raise unknown_name("negatives", self.negatives, NEGATIVES)
