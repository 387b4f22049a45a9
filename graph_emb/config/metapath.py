"""metapath2vec: skip-gram on walks along a path of node types."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.config.walks import WalkSection
from graph_emb.core.settings import Count

FILE_OPTIONS = (
    "download", "labels", "hold_out", "directed", "weights", "duplicates", "self_loops", "num_nodes", "ids", "header",
    "separator", "comment", "columns",
)  # fmt: skip
"""Fields of the data set that are about graphs of one node type."""


class Metapath2VecSection(WalkSection):
    """Walks that follow a metapath such as ``author-paper-venue-paper-author``; Dong et al. 2017.

    With ``typed_negatives`` it is metapath2vec++. Window, length and negatives are the paper's.
    """

    name: Literal["metapath2vec"] = "metapath2vec"
    family: ClassVar[str] = "metapath"
    without: ClassVar[tuple[str, ...]] = (
        "evaluate.hits",
        "evaluate.scorer",
        *(f"dataset.{field}" for field in FILE_OPTIONS),
    )
    metapath: str | None = Field(
        default=None, min_length=1, description="node types joined by '-', relations in brackets; null: the data set's"
    )
    num_walks: Count = Field(default=10, ge=1, le=100_000, description="walks from each first node, per epoch")
    walk_length: Count = Field(default=100, ge=2, le=100_000, description="nodes in a walk")
    window: Count = Field(default=7, ge=1, le=10_000, description="largest distance of a context in a walk")
    typed_negatives: bool = Field(default=False, description="negatives of the context's own type: metapath2vec++")

    @model_validator(mode="after")
    def _typed_negatives_need_whole_walks(self) -> Metapath2VecSection:
        if self.typed_negatives and self.subsample:
            raise ValueError(f"subsample={self.subsample} drops nodes, and typed_negatives go by places of a walk")
        return self
