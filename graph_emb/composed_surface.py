"""The surface that a composed table shares with ``DistEmbedding``: its rows read, pooled, frozen and counted.

Legend: N nodes, D width, B asked ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from graph_emb.composed_rows import ComposedRows
from graph_emb.core.errors import ConfigError
from graph_emb.core.notebook import Card
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.graph.partition_book import Ids, PartitionBook, as_ids, check_ids
from graph_emb.table.bags import checked_bags
from graph_emb.table.placement import Placement
from graph_emb.table.row_sums import RowTerms
from graph_emb.table.spec import accumulation_dtype
from graph_emb.table.tier.cache import CacheStats, sum_of

ROWS_AT_ONCE = 1 << 16


class ComposedSurface(Card):
    """Everything of a composed table that follows from its tables and from which of their rows an id needs."""

    tables: list[DistEmbedding]
    _name: str
    _num_rows: int
    _dim: int
    _book: PartitionBook
    _original_ids: OriginalIds | None
    _placement: Placement | None

    if TYPE_CHECKING:

        def __call__(self, idx: Ids, device: Any = "cpu", dtype: torch.dtype | None = None) -> Tensor: ...
        def shared(self, ids: Tensor) -> RowTerms: ...
        def of_nodes(self, ids: Tensor) -> list[tuple[DistEmbedding, Tensor]]: ...
        @property
        def shared_tables(self) -> list[DistEmbedding]: ...
        @property
        def kind(self) -> str: ...

    def _checked(self, idx: Ids) -> Tensor:
        """Ids as (B,), int64, after a check."""
        return check_ids(as_ids(idx), self._num_rows, self._name).flatten()

    def _each(self, what: str, idx: Ids, act: Callable[[DistEmbedding, Tensor], None]) -> None:
        """Call act, in one joint call, with every table and its rows, each once, that the rows of ids are made of."""
        with self.transport.joint(f"{what} of table {self._name!r}"):
            flat = self._checked(idx)
            if self.shared_tables:
                for table, rows in zip(self.shared_tables, self.shared(flat).wanted, strict=True):
                    act(table, torch.from_numpy(rows))
            for own, ids in self.of_nodes(flat):
                act(own, ids)

    def bag(
        self,
        ids: Ids,
        offsets: Ids | None = None,
        mode: str = "sum",
        per_sample_weights: Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Sums or means of rows over bags of ids, (bags, D); arguments and errors as of ``DistEmbedding.bag``.

        Each distinct id's row is composed once.

        Example:
            >>> emb = ge.ComposedEmbedding(torch.tensor([[0], [0], [1]]), 2, kind="position")
            >>> bags = emb.bag(torch.tensor([0, 1, 2]), torch.tensor([0, 2]), mode="mean")
            >>> torch.equal(bags, emb.weight[[0, 2]])  # nodes 0 and 1 are of one part
            True
        """
        with self.transport.joint(f"pull of table {self._name!r}"):
            checked = check_ids(as_ids(ids), self._num_rows, self._name)
            starts = None if offsets is None else as_ids(offsets)
            bags = checked_bags(self._name, checked, starts, mode, per_sample_weights, self.dtype)
            distinct, places = bags.distinct()
            rows = self(distinct, device, dtype)
        wide = accumulation_dtype(self.dtype)
        rows = rows.to(wide)
        factors = None if per_sample_weights is None else per_sample_weights.flatten().to(device, wide)
        if not len(bags.ids):  # embedding_bag takes no table without a row
            return (rows.sum(dim=0, keepdim=True) * rows.new_zeros(len(bags.starts) - 1, 1)).to(dtype or self.dtype)
        where, begin = places.to(device), bags.starts[:-1].to(device)
        found = embedding_bag(where, rows, begin, mode=mode, per_sample_weights=factors)
        return found.to(dtype or self.dtype)

    def prefetch(self, idx: Ids) -> None:
        """Start to fetch what the next call of the same ids will ask for; see ``DistEmbedding.prefetch``."""
        self._each("prefetch", idx, lambda table, rows: table.prefetch(rows))

    @torch.no_grad()
    def blocks(self, rows: int = ROWS_AT_ONCE) -> Iterator[Tensor]:
        """All rows in order, at most ``rows`` at a time, (B, D): for export. In collective mode every rank calls it.

        Raises:
            ConfigError: rows is no integer of at least 1.
        """
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise ConfigError(f"table {self._name!r}: blocks of {rows!r} rows; give an integer of at least 1")
        for start in range(0, self._num_rows, rows):
            yield self(torch.arange(start, min(start + rows, self._num_rows)))

    @property
    def weight(self) -> ComposedRows:
        """Rows by id outside autograd: ``emb.weight[ids]``. They are sums, so they cannot be assigned."""
        return ComposedRows(self)

    def freeze(self, ids: Ids) -> None:
        """Keep rows as they are: no ``step()`` changes any row that they are sums of; see ``DistEmbedding.freeze``.

        Other nodes' rows share some of those, which stay as well: of a node in the same part only its hashed or own
        rows go on to train.

        Args:
            ids: As ``emb(ids)`` takes them.
        """
        self._each("freeze", ids, lambda table, rows: table.freeze(rows))

    def unfreeze(self, ids: Ids) -> None:
        """Let optimizers change again every row that those of ids are sums of, also where frozen nodes share it."""
        self._each("freeze", ids, lambda table, rows: table.unfreeze(rows))

    def reset_rows(self, ids: Ids) -> None:
        """Give rows and their state the values that they began with; of kind ``"full"`` only.

        Of other kinds the rows of ids are sums of rows that nodes share: to begin anew those would take from other
        nodes what they have learnt.

        Raises:
            ConfigError: another kind.
            What ``DistEmbedding.reset_rows`` raises.
        """
        if self.kind != "full":
            raise ConfigError(
                f"table {self._name!r}: rows of kind {self.kind!r} are sums of rows that other nodes share, and cannot "
                f"begin anew alone; reset rows of its tables ({', '.join(table.name for table in self.tables)})"
            )
        self._each("reset", ids, lambda table, rows: table.reset_rows(rows))

    def cache_stats(self) -> CacheStats:
        """As ``DistEmbedding.cache_stats``, all tables together."""
        return reduce(sum_of, [table.cache_stats() for table in self.tables])

    @property
    def placement(self) -> Placement | None:
        """Where the rows of all tables lie, with the memory of all; None: in memory."""
        return self._placement

    def reset_trace(self) -> None:
        """As ``DistEmbedding.reset_trace``, of all tables."""
        for table in self.tables:
            table.reset_trace()

    def clear_gradients(self) -> None:
        """As ``DistEmbedding.clear_gradients``, of all tables."""
        for table in self.tables:
            table.clear_gradients()

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_embeddings(self) -> int:
        """N."""
        return self._num_rows

    @property
    def embedding_dim(self) -> int:
        """D."""
        return self._dim

    @property
    def dtype(self) -> torch.dtype:
        return self.tables[0].dtype

    @property
    def transport(self) -> Any:
        """As ``DistEmbedding.transport``."""
        return self.tables[0].transport

    @property
    def book(self) -> PartitionBook:
        """Who owns which node, by ``part_policy``."""
        return self._book

    @property
    def original_ids(self) -> OriginalIds:
        """As ``DistEmbedding.original_ids``."""
        return self._original_ids or SameIds(self._num_rows)

    @property
    def num_parameters(self) -> int:
        """Learnt numbers, all tables together; a full table has N * D."""
        return sum(table.num_embeddings * table.embedding_dim for table in self.tables)

    def __repr__(self) -> str:
        of = f"{self._name!r}, {self._num_rows}, {self._dim}, kind={self.kind!r}"
        return (
            f"ComposedEmbedding({of}, {self.num_parameters / max(1, self._num_rows * self._dim):.2%} of a full table)"
        )

    def _facts(self) -> dict[str, Any]:
        rows = f"{self._num_rows:,} x {self._dim}"
        return {"name": self._name, "rows": rows, "kind": self.kind, "parameters": self.num_parameters}
