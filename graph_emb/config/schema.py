"""What a run may be told, section by section, with the limit of every value.

The defaults of a model section are that model's preset. Every field changes a result or a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

MAX_SEED = 2**63 - 1

RuleName = Literal["sgd", "adagrad", "row_adagrad", "adam", "row_adam"]
FormatName = Literal["npy", "parquet", "word2vec"]


def _not_a_truth_value(value: Any) -> Any:
    # YAML reads yes/no/on/off as booleans and pydantic would take True for 1
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Count = Annotated[int, BeforeValidator(_not_a_truth_value)]
Number = Annotated[float, BeforeValidator(_not_a_truth_value)]
Ratio = Annotated[Number, Field(gt=0, lt=1)]
HitsAt = Annotated[Count, Field(ge=1)]


class Section(BaseModel):
    """A group of fields that refuses unknown keys, NaN and infinities."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a file that is called 2024 reads as a number in YAML
        protected_namespaces=(),
    )


class DatasetSection(Section):
    """Which graph is read and how."""

    name: str = Field(min_length=1, description="a known data set or a path to a graph file")
    root: str | None = Field(default=None, description="folder of data sets; null: $GRAPH_EMB_DATA, else ./data")
    directed: bool | None = Field(default=None, description="read arcs as directed; null: as the data set says")
    download: bool = Field(default=False, description="allow the network when files are missing")


class WalkSection(Section):
    """Fields that DeepWalk and node2vec share."""

    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding")
    num_walks: Count = Field(default=10, ge=1, le=100_000, description="walks that start at each node, per epoch")
    walk_length: Count = Field(default=40, ge=2, le=100_000, description="nodes in a walk")
    window: Count = Field(default=10, ge=1, le=10_000, description="largest distance of a context node in a walk")
    negatives: Count = Field(default=5, ge=1, le=1_000, description="random nodes per context pair")
    negative_power: Number = Field(0.75, ge=0, le=1, description="negatives follow degree ** power; 0: uniform")
    subsample: Number = Field(default=0.0, ge=0, le=1, description="threshold of frequent-node subsampling; 0: off")
    tables: Literal[1, 2] = Field(default=2, description="2: separate context vectors; 1: one table for both sides")


class DeepWalkSection(WalkSection):
    """Uniform (weighted) random walks; Perozzi et al. 2014."""

    name: Literal["deepwalk"] = "deepwalk"


class Node2VecSection(WalkSection):
    """Second-order walks with return (p) and in-out (q) parameters; Grover and Leskovec 2016.

    The preset's p = q = 0.25 is the paper's choice for BlogCatalog; p = q = 1 is DeepWalk.
    """

    name: Literal["node2vec"] = "node2vec"
    walk_length: Count = Field(default=80, ge=2, le=100_000, description="nodes in a walk")
    p: Number = Field(default=0.25, gt=0, le=1e6, description="return parameter: small values stay near")
    q: Number = Field(default=0.25, gt=0, le=1e6, description="in-out parameter: small values move away")


class TrainSection(Section):
    """How the rows are updated."""

    rule: RuleName = Field(default="sgd", description="update rule of the embedding rows")
    lr: Number = Field(default=0.025, gt=0, le=1e3, description="learning rate; with sgd it decays linearly to zero")
    epochs: Count = Field(default=1, ge=1, le=1_000_000, description="passes over the walks")
    threads: Count | None = Field(default=None, ge=1, le=4_096, description="threads; null: all cores")
    log_interval: Number = Field(default=1.0, ge=0, le=86_400, description="seconds between lines of metrics.jsonl")


class EvaluateSection(Section):
    """What is measured after training, as far as the data allows it."""

    enabled: bool = Field(default=True, description="evaluate after training")
    ratios: tuple[Ratio, ...] = Field(default=(0.1, 0.5, 0.9), min_length=1, description="labelled parts to train on")
    shuffles: Count = Field(default=3, ge=1, le=1_000, description="random label splits per ratio")
    hits: tuple[HitsAt, ...] = Field(default=(10, 20, 50, 100), min_length=1, description="the K of Hits@K")


class OutputSection(Section):
    """What is written into the run folder."""

    formats: tuple[FormatName, ...] = Field(default=("npy",), min_length=1, description="files of the embeddings")

    @field_validator("formats", mode="after")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a format twice")
        return value


ModelSection = Annotated[DeepWalkSection | Node2VecSection, Field(discriminator="name")]
MODELS: dict[str, type[WalkSection]] = {"deepwalk": DeepWalkSection, "node2vec": Node2VecSection}


class RunConfig(Section):
    """Everything that decides the result of a run."""

    seed: Count = Field(0, ge=0, le=MAX_SEED, description="one number for walks, initial rows, negatives, splits")
    dataset: DatasetSection
    model: ModelSection
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    output: OutputSection = OutputSection()
