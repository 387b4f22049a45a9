"""Models that train skip-gram on random walks."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.settings import Count, ModelBase, Number


class WalkSection(ModelBase):
    """Fields that DeepWalk and node2vec share: the walks and the skip-gram loss on them."""

    family: ClassVar[str] = "walks"
    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding")
    num_walks: Count = Field(default=10, ge=1, le=100_000, description="walks from each node, per epoch")
    walk_length: Count = Field(default=40, ge=2, le=100_000, description="nodes in a walk")
    window: Count = Field(default=10, ge=1, le=10_000, description="largest distance of a context in a walk")
    window_weighting: Literal["linear", "uniform"] = Field(
        default="linear", description="linear: near contexts count more, as in word2vec"
    )
    num_negatives: Number = Field(default=5.0, gt=0, le=1_000, description="negatives per context pair")
    shared_negatives: Count = Field(default=32, ge=1, le=100_000, description="nodes drawn for a block of a walk")
    negative_power: Number = Field(default=0.75, ge=0, le=10, description="negatives follow degree ** power")
    subsample: Number = Field(default=0.0, ge=0, le=1, description="threshold for frequent nodes; 0: off")
    tables: Literal[1, 2] = Field(default=2, description="2: separate context rows; 1: one row for both")
    block: Count = Field(default=20, ge=1, le=100_000, description="tokens that are updated together")


class WarmWalkSection(WalkSection):
    """Walks on nodes of one type, whose rows may begin with those of a file."""

    symmetrize: bool = Field(default=True, description="walk along and against every edge; false: edges as they are")
    duplicates: Literal["first", "sum"] | None = Field(
        default=None, description="weight of a repeated edge; null: as the data set is defined, else first"
    )
    warm_start: str | None = Field(
        default=None, min_length=1, description="file of first rows by the graph's ids: npy, pt, parquet or word2vec"
    )
    warm_start_partial: bool = Field(
        default=False, description="let ids be in one of file and graph only; false: that is an error"
    )

    @model_validator(mode="after")
    def _partial_has_an_effect(self) -> WarmWalkSection:
        if self.warm_start_partial and self.warm_start is None:
            raise ValueError("warm_start_partial has no effect without warm_start; give a file or leave it out")
        return self


class DeepWalkSection(WarmWalkSection):
    """Random walks that follow the edge weights; Perozzi et al. 2014."""

    name: Literal["deepwalk"] = "deepwalk"


class Node2VecSection(WarmWalkSection):
    """Second-order walks with return (p) and in-out (q) parameters; Grover and Leskovec 2016.

    The preset's p = q = 0.25 is the paper's choice for BlogCatalog; p = q = 1 is DeepWalk.
    """

    name: Literal["node2vec"] = "node2vec"
    walk_length: Count = Field(default=80, ge=2, le=100_000, description="nodes in a walk")
    p: Number = Field(default=0.25, gt=0, le=1e6, description="return parameter: small values stay near")
    q: Number = Field(default=0.25, gt=0, le=1e6, description="in-out parameter: small values move away")
