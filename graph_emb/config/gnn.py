"""R-GCN and GraphSAGE: what a run may tell them. The defaults are the recipes that the examples of DGL and OGB publish.

``train.rule`` is the rule of the tables, ``train.lr`` the learning rate of tables and network, ``train.batch_size`` the
target nodes or edges of a step over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.settings import Count, ModelBase, Number

FILE_OPTIONS = (
    "labels", "hold_out", "directed", "weights", "duplicates", "self_loops", "format", "num_nodes", "ids", "header",
    "separator", "comment", "columns",
)  # fmt: skip
"""Fields of the data set that are about files of plain graphs."""


class GNNSection(ModelBase):
    """Fields that both share."""

    family: ClassVar[str] = "gnn"
    without: ClassVar[tuple[str, ...]] = (
        "train.path",
        "train.lr_decay",
        "train.log_interval",
        "parallel.method",
        "parallel.negatives",
        "parallel.exchange_walks",
        "parallel.negative_pool",
        "parallel.hogwild",
        "evaluate.ratios",
        "evaluate.shuffles",
        "evaluate.hits",
        "evaluate.scorer",
        "output.context",
        *(f"dataset.{field}" for field in FILE_OPTIONS),
    )

    dim: Count = Field(default=16, ge=1, le=65_536, description="width of the learnable inputs")
    hidden_dim: Count = Field(default=16, ge=1, le=65_536, description="width between layers")
    num_layers: Count = Field(default=2, ge=1, le=100, description="rounds of messages")
    dropout: Number = Field(default=0.5, ge=0, lt=1, description="after each hidden layer")
    weight_decay: Number = Field(default=0.0, ge=0, le=1e3, description="of the network's Adam")
    dense_lr: Number | None = Field(default=None, gt=0, le=1e3, description="of the network; null: train.lr")
    init: Literal["xavier", "normal"] = Field(default="xavier", description="first rows of the tables")
    fanouts: tuple[Count, ...] | None = Field(
        default=None, description="in-edges kept for each layer, -1: all; null: a step computes the whole graph"
    )
    clip_norm: Number | None = Field(default=None, gt=0, le=1e9, description="norm of gradients at most; null: any")
    ema_decay: Number = Field(
        default=0.0, ge=0, lt=1, description="judge and keep the average of the weights over epochs; 0: the last ones"
    )
    eval_every: Count = Field(default=1, ge=1, le=1_000_000, description="epochs between evaluations")
    patience: Count | None = Field(
        default=None, ge=1, description="evaluations without a better validation value that end the training"
    )
    num_seeds: Count = Field(
        default=1, ge=1, le=1_000, description="trainings, of seed, seed + 1 ...; rows: the first's"
    )
    features: bool = Field(default=True, description="take the data set's features; false: learn all inputs")

    @model_validator(mode="after")
    def _a_fanout_for_each_layer(self) -> GNNSection:
        if self.fanouts is not None and len(self.fanouts) != self.num_layers:
            raise ValueError(f"fanouts names {len(self.fanouts)} layers; num_layers is {self.num_layers}")
        if any(fanout < 1 and fanout != -1 for fanout in self.fanouts or ()):
            raise ValueError(f"fanouts={self.fanouts}: give a positive number or -1 (all) for each layer")
        return self


class RGCNSection(GNNSection):
    """Messages through a matrix of each relation; Schlichtkrull et al. 2018. The preset is chosen on AIFB."""

    name: Literal["rgcn"] = "rgcn"
    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"rule": "adam", "lr": 0.01, "epochs": 50, "path": "optimizer"}
    }
    num_bases: Count | None = Field(default=None, ge=1, description="matrices that relations mix; null: each its own")
    self_loop: bool = Field(default=True, description="a node's own row joins its messages")


class SAGESection(GNNSection):
    """GraphSAGE, mean aggregator; Hamilton et al. 2017. The preset is OGB's for ogbl-ddi."""

    name: Literal["sage"] = "sage"
    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"rule": "adam", "lr": 0.005, "epochs": 200, "batch_size": 65_536, "path": "optimizer"}
    }
    for_links: ClassVar[tuple[str, ...]] = ("predictor_layers", "negatives", "precision")
    """Fields of the link predictor, which classes of nodes do without."""
    dim: Count = Field(default=256, ge=1, le=65_536, description="width of the learnable inputs")
    hidden_dim: Count = Field(default=256, ge=1, le=65_536, description="width between layers")
    clip_norm: Number | None = Field(default=1.0, gt=0, le=1e9, description="norm of gradients at most; null: any")
    eval_every: Count = Field(default=5, ge=1, le=1_000_000, description="epochs between evaluations")
    predictor_layers: Count = Field(default=2, ge=2, le=100, description="linear layers of the link predictor")
    negatives: Literal["non_edges", "targets", "given"] = Field(
        default="non_edges", description="what training edges are told from"
    )
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="of the link predictor's products")


GNN_MODELS: dict[str, type[GNNSection]] = {"rgcn": RGCNSection, "sage": SAGESection}
