"""Settings of models whose rows may be composed of rows that nodes share; see ``graph_emb.composed``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.settings import Count
from graph_emb.models.settings import ModelSettings

ComposedName = Literal["position-hash", "position", "hash", "quotient-remainder"]
COMPOSED: tuple[str, ...] = ComposedName.__args__  # type: ignore[attr-defined]
"""Kinds of a ``ComposedEmbedding`` that a run can have in the place of a row a node."""
LEVELS = (8, 64, 512)
"""Parts by level where nothing says others."""

OF_SHARED_ROWS = ("table", "levels", "num_hashes", "num_buckets", "own_rows")
"""Fields that say of what rows are composed."""


class SharedRows(ModelSettings):
    """Levels, hashes and buckets of composed rows; a subclass names the field that chooses their kind.

    Attributes:
        kind_field: That field.
    """

    kind_field: ClassVar[str]

    levels: tuple[Count, ...] | None = Field(
        default=None,
        min_length=1,
        description="of position kinds: parts by level, rising; null: those of the run's partition, else 8, 64, 512",
    )
    num_hashes: Count = Field(default=2, ge=1, le=64, description="of hash kinds: buckets of a node")
    num_buckets: Count = Field(default=4096, ge=1, le=1 << 31, description="of hash kinds: rows that nodes share")
    own_rows: Count = Field(
        default=0,
        ge=0,
        le=1 << 31,
        description="of shared rows: nodes of highest training degree that have a row of their own beside them",
    )

    @property
    def table_kind(self) -> str:
        """What a row is: a kind of ``ComposedEmbedding`` where ``composed``, else the model's own word."""
        kind: str = getattr(self, self.kind_field)
        return kind

    @property
    def composed(self) -> bool:
        """Whether rows are those of a ``ComposedEmbedding``."""
        return self.table_kind in COMPOSED

    @property
    def takes_levels(self) -> bool:
        """Whether rows are composed of rows of a partition's parts."""
        return self.table_kind.startswith("position")

    @property
    def hashes(self) -> bool:
        """Whether rows are composed of rows of buckets that nodes are hashed into."""
        return self.table_kind.endswith("hash")

    @property
    def shares_buckets(self) -> bool:
        """Whether ``num_buckets`` says how many rows nodes share."""
        return self.hashes or self.table_kind == "quotient-remainder"

    def share_kept(self, dim: int, *num_rows: int) -> float:
        """Learnt numbers for each number of the rows of tables of a width; 1 where each node has a row of its own.

        Args:
            num_rows: Rows of each table; rows of their own are of all tables together.
        """
        if not self.composed or not sum(num_rows):
            return 1.0
        shared = sum(self.levels or LEVELS) if self.takes_levels else 0
        shared += self.num_buckets if self.hashes else 0
        kept = shared * len(num_rows) + self.own_rows
        if self.table_kind == "quotient-remainder":
            kept += sum(self.num_buckets + -(-count // self.num_buckets) for count in num_rows)
        return (kept * dim + self.num_hashes * self.hashes * sum(num_rows)) / (sum(num_rows) * dim)

    @model_validator(mode="after")
    def _shared_rows_fit(self) -> SharedRows:
        used = {
            "levels": self.takes_levels,
            "num_hashes": self.hashes,
            "num_buckets": self.shares_buckets,
            "own_rows": self.composed,
        }
        for name, has_effect in used.items():
            value = getattr(self, name)
            earlier = name == "levels" and value == LEVELS  # run folders of earlier versions have this default
            if not (has_effect or earlier) and value != SharedRows.model_fields[name].default:
                raise ValueError(
                    f"{name} = {value!r} has no effect on {self.kind_field} = {self.table_kind!r}; leave it out"
                )
        return self


class TableKind(SharedRows):
    """Of models of one table of nodes or entities: what its rows are.

    Attributes:
        table: "full": a row for each; or a kind of ``ComposedEmbedding``.
    """

    kind_field: ClassVar[str] = "table"

    table: Literal["full", ComposedName] = Field(
        default="full", description="a row for each node or entity, or one composed of rows that they share"
    )
