"""Local SGD on copies of other ranks' rows that travel in the background while the ranks train.

Legend: T tables, W ranks, P pieces, N copied rows of a table, S copied rows of all tables, D width.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ModeError
from graph_emb.core.threads import threads_for
from graph_emb.optim.apply import apply_update
from graph_emb.optim.merging import share
from graph_emb.optim.rules import SGD
from graph_emb.table.shard import EmbeddingShard
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.local_sgd_rows import RowCopies
from graph_emb.transport.lockstep import COPY


@dataclass
class Piece:
    """The copies of one interval.

    Attributes:
        ids, places: For each table the ids asked for, and where each stands among all of the interval, (N,).
        asks, wanted: Rows of each table from and for each rank, (W, T).
        asked: Ids that the others ask of this rank, rank after rank and table by table.
    """

    ids: list[np.ndarray]
    places: list[np.ndarray]
    asks: np.ndarray
    wanted: np.ndarray
    asked: Tensor

    @property
    def num(self) -> int:
        """S, rows that are copied here."""
        return int(self.asks.sum())


class OverlappedRows(RowCopies):
    """Local SGD whose exchanges travel in the background while the ranks train.

    ``plan`` sends the ids of several intervals ahead. At the border before interval k a rank takes what came meanwhile,
    sends one message to each other rank, and trains on; the message holds the rows for interval k + 1 and the changes
    of interval k - 1. A copy is thus its owner's row at the border before, plus this rank's own changes of the two
    intervals before, which the owner has not added yet (here without the rounding of a ``wire_dtype``). An owner
    reads and changes its rows at borders only, so that a seed gives the same rows each time. The changes of another
    rank are one interval later than with ``LocalSGDRows`` at the owner, and two at third ranks.

    Args:
        transport, tables: As in ``RowCopies``.
    Attributes:
        seconds: Time of exchanges: laying out, travelling (waiting for others included), adding up.
        hidden: Of it, the time during which this rank trained.
    """

    def __init__(self, transport: CollectiveTransport, tables: Sequence[str]) -> None:
        super().__init__(transport, tables)
        self._background = ThreadPoolExecutor(1, "exchange")
        self._pieces: list[Piece] = []
        self._next = 0
        self._came: tuple[Tensor, Future[float]] | None = None
        self._copies: list[Tensor] = []
        rows = max(transport.layout_of(name).bounds[-1] for name in tables)
        self._place_of = np.full(int(rows), -1, np.int32)
        self.seconds, self.hidden = 0.0, 0.0

    def plan(self, ids: Sequence[Sequence[Tensor]]) -> None:
        """Tell the owners which rows will be copied in the next intervals. Every rank calls it, after ``finish``.

        Args:
            ids: For each of P intervals, the same number on every rank, as for ``LocalSGDRows.pull``.
        Raises:
            ModeError: intervals planned before are not finished.
            PeerError: a process is gone, or is in another call.
        """
        if self._next < len(self._pieces) or self._came is not None:
            raise ModeError(f"{self._tables_said}: intervals of copies are planned and not finished; finish them first")
        begun = time.perf_counter()
        what = f"copies of rows of {self._tables_said}"
        with self._transport.joint(what):
            self._pieces, self._next = self._planned(ids, what), 0
        self.seconds += time.perf_counter() - begun

    def _planned(self, ids: Sequence[Sequence[Tensor]], what: str) -> list[Piece]:
        transport, ranks, tables = self._transport, self._transport.world_size, len(self._names)
        routes = [
            [transport.layout_of(name).route(some) for name, some in zip(self._names, of_piece, strict=True)]
            for of_piece in ids
        ]
        asks = np.array([[route.counts for route in one] for one in routes], np.int64)  # (P, T, W)
        asks = asks.reshape(len(ids), tables, ranks).transpose(2, 0, 1)  # (W, P, T)
        flat = torch.from_numpy(np.ascontiguousarray(asks).reshape(ranks, -1))
        wanted = transport.agree(COPY, self._signature, flat, what).numpy().reshape(asks.shape)
        split = [[route.ids.split(route.counts) for route in one] for one in routes]
        pieces = [split[p][t][rank] for rank in range(ranks) for p in range(len(ids)) for t in range(tables)]
        sent = torch.cat([torch.empty(0, dtype=torch.int64), *pieces])
        to_send, to_receive = (each.sum(axis=(1, 2)).tolist() for each in (asks, wanted))
        came = transport.group.exchange(sent, to_send, to_receive, what)
        parts = came.split(wanted.sum(axis=2).ravel().tolist())  # by rank, then by piece
        found = []
        for p, one in enumerate(routes):
            own, theirs = asks[:, p], wanted[:, p]
            shifts = (np.cumsum(own).reshape(own.shape) - own) - (np.cumsum(own, axis=0) - own)
            places = [
                route.place.numpy() + np.repeat(shifts[:, t], own[:, t])[route.place.numpy()]
                for t, route in enumerate(one)
            ]
            asked = torch.cat([parts[rank * len(ids) + p] for rank in range(ranks)])
            found.append(Piece([some.numpy() for some in ids[p]], places, own, theirs, asked))
            self._count_pull(own, theirs, own)
        return found

    def copies(self) -> list[Tensor]:
        """Copies of the next interval, (N, D) for each table in the order asked; valid until the next call.

        Every rank calls it for each interval that is planned, and trains on the copies until the next call.

        Raises:
            ModeError: no interval is left.
            PeerError: a process is gone.
        """
        if self._next >= len(self._pieces):
            raise ModeError(f"{self._tables_said}: no interval is planned; call plan first")
        k = self._next
        if k == 0:
            self._send(-1)
        came = self._arrived(k - 1)
        self._send(k)
        begun = time.perf_counter()
        self._lay_copies(k, came)
        self._next += 1
        self.seconds += time.perf_counter() - begun
        return self._copies

    def finish(self) -> None:
        """Bring all changes to their owners, so that every row is whole. Every rank calls it after the last interval.

        Raises:
            ModeError: intervals are left.
            PeerError: a process is gone.
        """
        if self._next < len(self._pieces):
            raise ModeError(f"{self._tables_said}: {len(self._pieces) - self._next} intervals of copies are left")
        last = len(self._pieces)
        if last:
            self._arrived(last - 1)
            self._send(last)
            self._arrived(last)
        self._pieces, self._next = [], 0

    def _shares(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the message of border k: rows sent, changes sent, rows and changes that come, of each rank, (W,)."""
        none = np.zeros(self._transport.world_size, np.int64)
        ahead = self._pieces[k + 1] if k + 1 < len(self._pieces) else None
        before = self._pieces[k - 1] if k > 0 else None
        served, asked = (none, none) if ahead is None else (ahead.wanted.sum(axis=1), ahead.asks.sum(axis=1))
        gone, back = (none, none) if before is None else (before.asks.sum(axis=1), before.wanted.sum(axis=1))
        return served, gone, asked, back

    def _send(self, k: int) -> None:
        """Lay out the message of border k and let it travel."""
        begun = time.perf_counter()
        served, gone, asked, back = self._shares(k)
        came = self._lend(f"came {k % 2}", int((asked + back).sum()))
        arriving = self._wired(f"came {k % 2}", came)
        leaving = self._leaving(arriving, int((served + gone).sum()))
        out = leaving if self._wire is came.dtype else self._lend("out", len(leaving))
        starts = np.cumsum(served + gone) - (served + gone)
        if k + 1 < len(self._pieces):
            piece, at = self._pieces[k + 1], 0
            for rank, counts in enumerate(piece.wanted.tolist()):
                end = int(starts[rank])
                for name, count in zip(self._names, counts, strict=True):
                    shard = self._transport.shard(name)
                    shard.read_into(piece.asked[at : at + count] - shard.first_id, out[end : end + count])
                    at, end = at + count, end + count
        if k > 0:
            self._lay_changes(k - 1, starts + served, out)
        to_send, to_receive = (served + gone).tolist(), (asked + back).tolist()
        what = f"rows and changes of copied rows of {self._tables_said}"

        def travel() -> float:
            start = time.perf_counter()
            if leaving is not out:
                leaving.copy_(out)
            self._transport.group.exchange_large(arriving, leaving, to_send, to_receive, what)
            if came is not arriving:
                came.copy_(arriving)
            return time.perf_counter() - start

        self._came = came, self._background.submit(travel)
        self.seconds += time.perf_counter() - begun

    def _lay_changes(self, k: int, starts: np.ndarray, out: Tensor) -> None:
        """Write how far the copies of interval k have gone down, those of a rank from its start on, (W,)."""
        piece, first = self._pieces[k], self._lend(f"first {k % 3}", self._pieces[k].num)
        of_rank = piece.asks.sum(axis=1)
        shift = np.repeat(starts - (np.cumsum(of_rank) - of_rank), of_rank)
        for copies, places in zip(self._copies, piece.places, strict=True):
            with threads_for(len(places)) as parts:
                _lay_changes(copies.numpy(), places, shift, first.numpy(), out.numpy(), parts)
        self._count_return(piece.asks)

    def _arrived(self, k: int) -> Tensor:
        """Wait for the message of border k, and add the changes in it to the rows; the message, rank after rank."""
        assert self._came is not None
        begun = time.perf_counter()
        came, travelling = self._came
        took = travelling.result()
        waited = time.perf_counter() - begun
        self._came = None
        self.hidden += max(0.0, took - waited)
        if k > 0:
            piece, at = self._pieces[k - 1], 0
            _, _, asked, back = self._shares(k)
            ends = np.cumsum(asked + back) - back
            for rank, counts in enumerate(piece.wanted.tolist()):
                end = int(ends[rank])
                for name, count in zip(self._names, counts, strict=True):
                    shard = self._transport.shard(name)
                    self._add_up(shard, piece.asked[at : at + count] - shard.first_id, came[end : end + count])
                    at, end = at + count, end + count
        self.seconds += time.perf_counter() - begun + max(0.0, took - waited)
        return came

    def _add_up(self, shard: EmbeddingShard, rows: Tensor, came: Tensor) -> None:
        """Take from own rows (N,), distinct, what another rank's copies have gone down, (N, D)."""
        apply_update(SGD(1.0), shard, rows, came, "sum", prepared=True, distinct=True)
        self._transport.mark_changed(shard.spec.name, rows)

    def _lay_copies(self, k: int, came: Tensor) -> None:
        """The copies of interval k of what came, less what own changes that are under way take from them."""
        piece = self._pieces[k]
        _, _, asked, back = self._shares(k - 1)
        shift = np.repeat(np.cumsum(back) - back, asked)
        first = self._lend(f"first {k % 3}", piece.num)
        self._copies = [self._lend(f"copies {t}", len(places)) for t, places in enumerate(piece.places)]
        for t, (copies, places) in enumerate(zip(self._copies, piece.places, strict=True)):
            found, changes = np.full((2, len(places)), -1, np.int32), [first.numpy()[:0]] * 2
            for turn, j in enumerate(range(max(0, k - 2), k)):
                before = self._pieces[j]
                _find(self._place_of, before.ids[t], before.places[t], piece.ids[t], found[turn])
                changes[turn] = self._lend(f"first {j % 3}", before.num).numpy()
            with threads_for(len(places)) as parts:
                _lay_copies(came.numpy(), places, shift, found, *changes, copies.numpy(), first.numpy(), parts)


@njit(cache=True, nogil=True)
def _find(place_of, ids, places, asked, out):
    """``out[i]`` becomes the place of asked[i] among ids, where it is; ``place_of`` is -1, before and after."""
    for i in range(len(ids)):
        place_of[ids[i]] = places[i]
    for i in range(len(asked)):
        if place_of[asked[i]] >= 0:
            out[i] = place_of[asked[i]]
    for i in range(len(ids)):
        place_of[ids[i]] = -1


@njit(parallel=True, cache=True, nogil=True)
def _lay_copies(came, places, shift, found, one, other, copies, first, parts):
    """``copies = came`` less the changes found in ``one`` and ``other``, and the same to ``first[places]``.

    The row of a place in ``came`` is ``shift`` of the place further.
    """
    for part in prange(parts):
        low, high = share(part, parts, len(places))
        for k in range(low, high):
            place = places[k]
            row, near, far = came[place + shift[place]], found[0, k], found[1, k]
            copy, begin = copies[k], first[place]
            for d in range(len(copy)):
                copy[d] = row[d]
            if near >= 0:
                for d in range(len(copy)):
                    copy[d] -= one[near, d]
            if far >= 0:
                for d in range(len(copy)):
                    copy[d] -= other[far, d]
            for d in range(len(copy)):
                begin[d] = copy[d]


@njit(parallel=True, cache=True, nogil=True)
def _lay_changes(copies, places, shift, first, out, parts):
    """``first[places] -= copies``, and the same to ``out``, whose row of a place is ``shift`` of the place further."""
    for part in prange(parts):
        low, high = share(part, parts, len(places))
        for k in range(low, high):
            place = places[k]
            there = place + shift[place]
            for d in range(out.shape[1]):
                down = first[place, d] - copies[k, d]
                first[place, d] = down
                out[there, d] = down
