"""Rows over ranks that are fetched before they are pulled, and sent again where a push changed them.

Legend: R distinct ids, D width.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from graph_emb.core.errors import ModeError
from graph_emb.graph.partition_book import Route
from graph_emb.table.shard import lend
from graph_emb.transport import lockstep
from graph_emb.transport.growing import GrowingTables
from graph_emb.transport.lockstep import Prefetch, RankTable


class Prefetching(GrowingTables):
    """The part of ``CollectiveTransport`` that fetches rows early."""

    staleness: int

    @abstractmethod
    def _ask(self, call: int, found: RankTable, route: Route) -> tuple[list[int], list[int], Tensor]:
        """Send the remote ids to their owners: counts that this rank asks for, is asked for, and the rows wanted."""

    @abstractmethod
    def _agree_counts(self, call: int, number: int, counts: list[int], what: str) -> list[int]:
        """Tell every rank how many rows are for it; returns how many each has for this one."""

    @abstractmethod
    def _wired(self, values: Tensor) -> Tensor:
        """Rows or gradients as they travel."""

    @abstractmethod
    def _count(self, table: str, route: Route, asked: int) -> None:
        """Count a pull."""

    def prefetch(self, table: str, ids: Tensor) -> None:
        """As ``Transport.prefetch``. With staleness 0 the pull sends again the rows that a push changes in between."""
        with self.joint(f"prefetch of table {table!r}"):
            self._prefetch(self._tables[table], ids)

    def _prefetch(self, found: RankTable, ids: Tensor) -> None:
        table = found.spec.name
        if found.shard.grows:
            return self._announce(found, ids)
        if found.early is not None:
            raise ModeError(f"table {table!r}: the prefetched rows were not pulled yet; pull before the next prefetch")
        route = found.ranges.route(ids, self.rank)
        self._count(table, route, len(ids))
        rows = lend((len(route.ids), found.spec.dim), found.spec.dtype, found.shard.weight.device)
        early = Prefetch(ids.clone(), route, rows)
        found.shard.prefetch(route.ids[len(route.ids) - route.counts[self.rank] :] - found.shard.first_id)
        if self.world_size > 1:
            asks, wanted, early.asked = self._ask(lockstep.PREFETCH, found, route)
            early.asks, early.wanted = asks, wanted
            early.served = self._wired(found.shard.read(early.asked))
            self.counts[table].bytes_sent += early.served.numel() * early.served.element_size()
            what = f"prefetch of table {table!r}"
            exact = early.served.dtype is rows.dtype
            early.coming = rows[: sum(asks)] if exact else early.served.new_empty((sum(asks), found.spec.dim))
            early.wait = self.group.start_exchange(early.coming, early.served, wanted, asks, what)
            if not self.staleness:
                early.changed = torch.zeros(found.shard.num_rows, dtype=torch.bool, device=rows.device)
        found.early = early

    def _announce(self, found: RankTable, ids: Tensor) -> None:
        """Let the owners bring rows of a growing table from their files; the pull asks for them, and for new ones.

        Nothing where all rows lie in memory.
        """
        if found.spec.placement is None:
            return
        route = found.ranges.route(ids, self.rank)
        if self.world_size > 1:  # the pull reads them in this order
            found.shard.prefetch(self._ask(lockstep.PREFETCH, found, route)[2])
        found.shard.prefetch(route.ids[len(route.ids) - route.counts[self.rank] :] - found.shard.first_id)

    def _finish(self, found: RankTable, ids: Tensor) -> Tensor:
        """The rows of a prefetch, (R, D), sent again where a push changed them."""
        early, shard = found.early, found.shard
        assert early is not None
        if not torch.equal(early.ids, ids):
            raise ModeError(f"table {found.spec.name!r}: other ids are pulled than were prefetched; pull those first")
        own = len(early.route.ids) - early.route.counts[self.rank]
        shard.read_into(early.route.ids[own:] - shard.first_id, early.rows[own:])
        if self.world_size > 1:
            early.wait()
            if early.coming.dtype is not early.rows.dtype:
                early.rows[: len(early.coming)].copy_(early.coming)
            if not self.staleness:
                self._repair(found, early)
        return early.rows

    def _repair(self, found: RankTable, early: Prefetch) -> None:
        """Send again the served rows that a push changed since, and put the rows that come into their places."""
        assert early.changed is not None
        what = f"pull of prefetched rows of table {found.spec.name!r}"
        stale = early.changed[early.asked].cpu()
        pieces = [piece.nonzero().flatten() for piece in stale.split(early.wanted)]
        counts = [len(piece) for piece in pieces]
        coming = self._agree_counts(lockstep.REPAIR, found.identity, counts, what)
        places = self.group.exchange(torch.cat(pieces), counts, coming, what)
        fresh = self._wired(found.shard.read(early.asked[stale.nonzero().flatten().to(early.asked.device)]))
        got = self.group.exchange(fresh, counts, coming, what)
        starts = torch.tensor([0, *early.asks]).cumsum(0)[:-1].repeat_interleave(torch.tensor(coming))
        early.rows.index_copy_(0, (places + starts).to(got.device), got.to(early.rows.dtype))
        self.counts[found.spec.name].bytes_sent += len(places) * 8 + fresh.numel() * fresh.element_size()
