"""A table of collective mode as one rank sees it, and a prefetch on its way.

Legend: R distinct ids, D width, W ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RankRanges, Route
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec


@dataclass
class Prefetch:
    """Rows that are being fetched before they are pulled.

    Attributes:
        ids, route, rows: The asked ids, their owners, and the memory for the answer, (R, D).
        asks, wanted: Rows that come from and go to each rank, (W,).
        asked, served: Rows of this rank that the others asked for, and the copies that were sent.
        changed: Which rows of the shard a push has changed since; None where stale rows are allowed.
        wait: Returns when the rows are here.
    """

    ids: Tensor
    route: Route
    rows: Tensor
    asks: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    asked: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    served: Tensor | None = None
    changed: Tensor | None = None
    wait: Callable[[], None] = lambda: None


@dataclass
class RankTable:
    """A table as this rank sees it: its shard, who stores the rest, and whether an optimizer trains it.

    Attributes:
        identity: Its number, the same on every rank and unlike those of other tables (``lockstep.identity``).
        shared: All rows of the table, where all ranks reach them; else None.
    """

    spec: TableSpec
    ranges: RankRanges
    shard: EmbeddingShard
    identity: int
    shared: Tensor | None = None
    attached: bool = False
    early: Prefetch | None = None

    @property
    def said(self) -> str:
        """The table as an error describes it."""
        return f"{self.spec.name!r} ({self.spec.num_rows}, {self.spec.dim}) of {self.spec.dtype}"
