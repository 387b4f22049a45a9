"""Settings of the link predictor, OGB's network on the product of two rows, and of rows that learn with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from graph_emb.core.settings import Count, Number, Settings
from graph_emb.models.schedule import RateSchedule
from graph_emb.models.search import Space, Span
from graph_emb.models.settings import OF_FROZEN_ROWS, At, ModelSettings, RuleName, WeightDecay

NegativesName = Literal["non_edges", "targets", "by_degree", "in_batch", "given"]
LinkLossName = Literal["logistic", "auc", "hinge", "squared_hinge", "softmax"]
PrecisionName = Literal["float32", "bfloat16"]


def _known_metric(name: str) -> str:
    from graph_emb.evaluate.link_prediction import measure  # here: it imports torch

    measure(name)
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


class LinkPredictorConfig(Settings):
    """The recipe; the defaults are those of OGB's ``examples/linkproppred/ddi/mlp.py``.

    Attributes:
        hidden_dim: H.
        num_layers: Linear layers, at least 2.
        dropout: After each hidden layer, at least 0 and below 1.
        lr: Adam's learning rate.
        batch_size: Edges of a step; ``num_negatives`` times as many negatives join them.
        epochs: Passes over the training edges.
        eval_every: Epochs between two evaluations.
        patience: Evaluations without a better validation value of ``select`` after which training ends; None: never.
        metrics: Of "hits@K", "mrr" and "rocauc".
        select: The metric that ``patience`` watches, one of ``metrics``.
        negatives: ``non_edges`` draws pairs that no training edge joins; ``targets`` keeps the source of each edge and
            draws its target among all nodes, as OGB's ogbl-citation2 scripts do; ``by_degree`` the same, in proportion
            to the number of training edges of a node to the power of .75; ``in_batch`` keeps it and takes the targets
            of other edges of the step, with loss="softmax" the in-batch softmax; ``given`` takes the training part's
            own ``edge_neg``, that of the same number as the edge, as OGB's ogbl-vessel scripts do.
        num_negatives: Of each edge, K.
        loss: Of an edge against its negatives; see ``graph_emb.models.links.losses``.
        precision: Of the products in training; scores and ranks are always float32.
    """

    hidden_dim: Count = Field(default=256, ge=1, le=65_536)
    num_layers: Count = Field(default=3, ge=2, le=100)
    dropout: Number = Field(default=0.5, ge=0, lt=1)
    lr: Number = Field(default=0.01, gt=0, le=1e3)
    batch_size: Count = Field(default=64 * 1024, ge=1, le=1 << 24)
    epochs: Count = Field(default=200, ge=1, le=1_000_000)
    eval_every: Count = Field(default=5, ge=1, le=1_000_000)
    patience: Count | None = Field(default=None, ge=1)
    metrics: tuple[MetricName, ...] = (
        "hits@10", "hits@20", "hits@30", "hits@50", "hits@100",
    )  # fmt: skip
    select: str = "hits@20"
    negatives: NegativesName = "non_edges"
    num_negatives: Count = Field(default=1, ge=1, le=1_024)
    loss: LinkLossName = "logistic"
    precision: PrecisionName = "float32"

    @model_validator(mode="after")
    def _something_is_judged(self) -> LinkPredictorConfig:
        if self.epochs < self.eval_every:
            raise ValueError(f"epochs = {self.epochs} ends before the first evaluation, eval_every={self.eval_every}")
        if self.select not in self.metrics:
            raise ValueError(f"select = {self.select!r} is not among metrics={self.metrics}")
        check_negatives(self.negatives, self.num_negatives)
        return self


def check_negatives(kind: str, count: int) -> None:
    """Raise a ValueError where an edge is given fewer negatives than are asked for."""
    if kind == "given" and count > 1:
        raise ValueError(f"num_negatives = {count}: negatives=given has one of each edge; leave one of them out")


TAKEN = ("dataset.test_edges", "dataset.validation_edges", "evaluate.predictor")
"""Fields that mean something to rows which learn with the predictor."""


class MatrixFactorizationConfig(ModelSettings, RateSchedule):
    """A row for each node, trained together with the link predictor; the defaults are OGB's ``mf.py`` for ogbl-ddi.

    A run's ``evaluate.predictor`` is the predictor's recipe.

    Attributes:
        dim: D.
        std: Of the initial values, which are normal with mean 0 (``nn.Embedding``'s own).
        lr: Learning rate of the rows. The schedule is that of the predictor's rate too.
    Raises:
        ConfigError: a value is outside its limits.
    """

    family: ClassVar[str] = "links"
    without: ClassVar[tuple[str, ...]] = (
        *(path for path in OF_FROZEN_ROWS if path not in TAKEN),
        "train.device",
        "parallel.mode",
        "checkpoint.every",
    )
    rates: ClassVar[Mapping[str, float]] = {}  # lr has a value
    search: ClassVar[Space] = {"std": Span(0.01, 1.0, log=True), "lr": Span(0.001, 0.1, log=True)}

    name: Literal["mf"] = "mf"
    dim: Count = Field(default=256, ge=1, le=65_536, description="width of an embedding")
    std: Number = Field(default=1.0, gt=0, le=1e3, description="standard deviation of the first rows")
    rule: Annotated[RuleName, At("train.rule")] = Field(default="adam", description="update rule of the rows")
    lr: Annotated[Number, At("train.lr")] = Field(default=0.01, gt=0, le=1e3, description="learning rate of the rows")
    weight_decay: WeightDecay = None
