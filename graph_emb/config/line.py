"""LINE: first- and second-order proximity of edges."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.settings import Count, ModelBase, Number


class LineSection(ModelBase):
    """Edges in proportion to their weight; Tang et al. 2015.

    ``first`` draws the ends of an edge together (one row per node), ``second`` nodes with the same neighbours (a row as
    source and one as destination, of which the first is kept), ``both`` trains each at half the width and puts the
    halves side by side.
    """

    name: Literal["line"] = "line"
    family: ClassVar[str] = "line"
    without: ClassVar[tuple[str, ...]] = ("output.context",)
    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding; of both: halves of it")
    order: Literal["first", "second", "both"] = Field(default="both", description="which proximity is learnt")
    draws_per_edge: Count = Field(default=100, ge=1, le=1_000_000, description="draws of each edge, mean, per epoch")
    num_negatives: Number = Field(default=5.0, gt=0, le=1_000, description="negatives per pair")
    shared_negatives: Count = Field(default=5, ge=1, le=100_000, description="nodes drawn for both ends of an edge")
    negative_power: Number = Field(default=0.75, ge=0, le=10, description="negatives follow degree ** power")
    symmetrize: bool = Field(default=True, description="edges mean both directions; false: edges as they are")
    duplicates: Literal["first", "sum"] | None = Field(
        default=None, description="weight of a repeated edge; null: as the data set is defined, else first"
    )
    normalize: bool = Field(default=True, description="each order's rows to length 1, as the paper does")

    @model_validator(mode="after")
    def _halves_are_whole(self) -> LineSection:
        if self.order == "both" and self.dim % 2:
            raise ValueError(f"dim={self.dim} has no halves; order=both needs an even width")
        return self
