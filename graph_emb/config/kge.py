"""Knowledge-graph models: what a run may tell them. The defaults are each model's preset, chosen on FB15k-237."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.settings import Count, ModelBase, Number

LossName = Literal["logistic", "margin", "softmax", "self_adversarial"]


def _preset(rule: str, epochs: int) -> Mapping[str, Mapping[str, Any]]:
    shared = {"lr_decay": "linear", "batch_size": 1024, "path": "optimizer"}
    return {"train": {"rule": rule, "epochs": epochs, **shared}}


class KGESection(ModelBase):
    """Fields of all knowledge-graph models: loss, negatives, penalties, early stopping.

    ``train.batch_size`` counts triples of a step, of all ranks that step together; ``train.epochs`` is the most.
    """

    family: ClassVar[str] = "kge"
    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = _preset("adam", 15)
    without: ClassVar[tuple[str, ...]] = (
        "train.path",
        "train.log_interval",
        "dataset.labels",
        "dataset.hold_out",
        "dataset.directed",
        "dataset.weights",
        "dataset.duplicates",
        "dataset.self_loops",
        "dataset.format",
        "dataset.num_nodes",
        "dataset.ids",
        "dataset.header",
        "dataset.separator",
        "dataset.comment",
        "dataset.columns",
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
    )

    dim: Count = Field(default=256, ge=1, le=65_536, description="width of an entity's row")
    loss: LossName = Field(default="self_adversarial", description="of a triple against its negatives")
    margin: Number = Field(default=0.0, ge=0, le=1e4, description="gamma of the loss")
    temperature: Number = Field(default=1.0, gt=0, le=1e3, description="alpha of the self-adversarial loss")
    num_negatives: Count = Field(default=256, ge=0, le=1 << 20, description="entities drawn for each chunk")
    chunk_size: Count = Field(default=256, ge=1, le=1 << 20, description="triples that share negatives")
    negative_power: Number = Field(default=0.0, ge=0, le=10, description="negatives follow occurrences ** power")
    in_batch: bool = Field(default=False, description="entities of the chunk's other triples are negatives too")
    filter_negatives: bool = Field(default=True, description="leave out negatives that make a training triple true")
    subsampling: bool = Field(default=False, description="weigh triples of frequent pairs less, as RotatE's code")
    n3: Number = Field(default=0.0, ge=0, le=1e3, description="weight of sum |x|^3 of a triple's rows")
    l2: Number = Field(default=0.0, ge=0, le=1e3, description="weight of sum |x|^2 of a triple's rows")
    valid_every: Count = Field(default=5, ge=0, le=1_000_000, description="epochs between validations; 0: none")
    patience: Count = Field(
        default=3, ge=0, le=1_000_000, description="validations without a better MRR that end the training; 0: none do"
    )
    valid_triples: Count = Field(default=2000, ge=0, description="triples of a validation, drawn once; 0: all")
    candidates: Count | None = Field(
        default=None, ge=1, description="entities sampled to rank against in validation and evaluation; null: all"
    )

    @model_validator(mode="after")
    def _every_value_has_an_effect(self) -> KGESection:
        if self.loss == "softmax" and self.margin_counts_only_in_loss and self.margin:
            raise ValueError(f"margin = {self.margin:g} has no effect on the softmax loss; leave it at 0")
        if self.temperature != 1.0 and self.loss != "self_adversarial":
            raise ValueError(f"temperature = {self.temperature:g} belongs to loss=self_adversarial; leave it out")
        return self

    margin_counts_only_in_loss: ClassVar[bool] = True


class DistanceSection(KGESection):
    """Models whose score is a negative distance: the margin also bounds their first rows."""

    margin_counts_only_in_loss: ClassVar[bool] = False
    margin: Number = Field(default=9.0, ge=0, le=1e4, description="gamma of the loss, and of the first rows' range")


class ProductSection(KGESection):
    """Models whose score is a product."""

    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = _preset("adagrad", 10)
    loss: LossName = Field(default="softmax", description="of a triple against its negatives")
    num_negatives: Count = Field(default=512, ge=0, le=1 << 20, description="entities drawn for each chunk")
    chunk_size: Count = Field(default=512, ge=1, le=1 << 20, description="triples that share negatives")
    n3: Number = Field(default=0.05, ge=0, le=1e3, description="weight of sum |x|^3 of a triple's rows")
    init_std: Number = Field(default=0.1, gt=0, le=1e3, description="standard deviation of the first rows")


class TransESection(DistanceSection):
    """A relation is a translation; Bordes et al. 2013."""

    name: Literal["transe"] = "transe"
    norm: Literal[1, 2] = Field(default=1, description="of the distance")


class RotatESection(DistanceSection):
    """A relation is a rotation of D / 2 complex numbers; Sun et al. 2019."""

    name: Literal["rotate"] = "rotate"
    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = _preset("adam", 35)


class DistMultSection(ProductSection):
    """A relation weighs a dot product; Yang et al. 2015."""

    name: Literal["distmult"] = "distmult"


class ComplExSection(ProductSection):
    """DistMult over D / 2 complex numbers; Trouillon et al. 2016."""

    name: Literal["complex"] = "complex"


class SimplESection(ProductSection):
    """D / 2 numbers of an entity as a head and D / 2 as a tail; Kazemi and Poole 2018."""

    name: Literal["simple"] = "simple"


KGE_MODELS: dict[str, type[KGESection]] = {
    "transe": TransESection,
    "distmult": DistMultSection,
    "complex": ComplExSection,
    "rotate": RotatESection,
    "simple": SimplESection,
}
