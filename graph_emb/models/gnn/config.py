"""What a graph network may be told: sizes, the recipe of its training, and R-GCN's and GraphSAGE's own choices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.optimizer import OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class GNNConfig:
    """What R-GCN and GraphSAGE share.

    Attributes:
        dim: Width of the learnable inputs; features of another width pass through a linear map to it.
        hidden_dim: Width between layers, and of the output of link prediction.
        num_layers: Rounds of messages.
        dropout: After each hidden layer, at least 0 and below 1.
        lr: Of torch's Adam on the dense parameters.
        weight_decay: Of the same, added to the gradient.
        rule: Of the tables: "adam", "adagrad", "row_adagrad", "row_adam" or "sgd".
        table_lr: Learning rate of the tables; None: ``lr``.
        init: First rows of the tables: "xavier" (uniform, by the table's shape) or "normal" (standard).
        epochs: Passes over the training nodes or edges.
        batch_size: Target nodes, or edges, of a step over all ranks; None: all of them.
        fanouts: In-edges of each type that a node keeps, for each layer, -1 for all: mini-batches of sampled
            neighbourhoods. None: every step computes the whole graph.
        clip_norm: Gradients of each table and of each network are scaled down to this norm; None: as they are.
        ema_decay: Of an exponential moving average of all weights over the epochs (``WeightAverage``), which is judged
            and given back instead of the last weights; 0: the last ones.
        eval_every: Epochs between two evaluations.
        patience: Evaluations without a better validation value after which training ends; None: never.
    Raises:
        ConfigError: a value is outside its limits.
    """

    dim: int = 64
    hidden_dim: int = 64
    num_layers: int = 2
    dropout: float = 0.0
    lr: float = 0.01
    weight_decay: float = 0.0
    rule: str = "adam"
    table_lr: float | None = None
    init: str = "xavier"
    epochs: int = 50
    batch_size: int | None = None
    fanouts: tuple[int, ...] | None = None
    clip_norm: float | None = None
    ema_decay: float = 0.0
    eval_every: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "hidden_dim", "num_layers", "epochs", "batch_size", "eval_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; give at least 1")
        for name in ("lr", "table_lr", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} is {value}; it must be positive and finite")
        for name in ("dropout", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}; it must be finite and not negative")
        if self.rule not in OPTIMIZERS:
            raise unknown_name("rule", self.rule, OPTIMIZERS)
        if self.init not in ("xavier", "normal"):
            raise unknown_name("init", self.init, ("xavier", "normal"))
        if self.fanouts is not None and len(self.fanouts) != self.num_layers:
            raise ConfigError(
                f"fanouts={self.fanouts} names {len(self.fanouts)} layers; num_layers is {self.num_layers}"
            )
        if self.epochs < self.eval_every:
            raise ConfigError(f"epochs={self.epochs} ends before the first evaluation, eval_every={self.eval_every}")


@dataclass(frozen=True, kw_only=True)
class RGCNConfig(GNNConfig):
    """The recipe of R-GCN; the defaults are those of DGL's ``rgcn-hetero`` example for AIFB.

    Attributes:
        num_bases: Matrices of which each relation's is a mix; None: every relation has its own.
        self_loop: Whether a node's own row, through a matrix of its node type, joins the messages.
    """

    dim: int = 16
    hidden_dim: int = 16
    num_bases: int | None = None
    self_loop: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_bases is not None and self.num_bases < 1:
            raise ConfigError(f"num_bases is {self.num_bases}; give at least 1, or None for a matrix for each relation")


@dataclass(frozen=True, kw_only=True)
class SAGEConfig(GNNConfig):
    """The recipe of GraphSAGE; the defaults are those of OGB's ``examples/linkproppred/ddi/gnn.py --use_sage``.

    Attributes:
        predictor_layers: Linear layers of the link predictor, at least 2; of no effect on node classification.
        negatives: How the negatives of links are drawn; see ``LinkPredictorConfig``.
        precision: Of the link predictor's products in training, "float32" or "bfloat16".
    """

    dim: int = 256
    hidden_dim: int = 256
    dropout: float = 0.5
    lr: float = 0.005
    epochs: int = 200
    batch_size: int | None = 64 * 1024
    clip_norm: float | None = 1.0
    eval_every: int = 5
    predictor_layers: int = 2
    negatives: str = "non_edges"
    precision: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictor_layers < 2:
            raise ConfigError(
                f"predictor_layers is {self.predictor_layers}; a hidden and an output layer are the least"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise unknown_name("precision", self.precision, ("float32", "bfloat16"))
