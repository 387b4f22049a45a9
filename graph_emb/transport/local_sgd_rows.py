"""Local SGD on rows of other ranks: copies fetched for all tables at once, changed here, their changes given back.

Legend: T tables, W ranks, P pieces, N copied rows of a table, S copied rows of all tables, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import threads_for
from graph_emb.optim.apply import apply_update
from graph_emb.optim.merging import share
from graph_emb.optim.rules import SGD
from graph_emb.table.shard import EmbeddingShard, gather, narrower
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.lockstep import COPY, RETURN


class RowCopies:
    """Memory and counts of copies of other ranks' rows, in collective mode.

    Memory is reused between turns: fresh pages cost more than the rows that are laid on them. With the transport's
    ``wire_dtype`` rows and changes are rounded to it as they leave, and come back as float32.

    Args:
        transport: Of the tables.
        tables: Names of float32 tables of one width on the CPU, T.
    Raises:
        ConfigError: other tables.
    """

    def __init__(self, transport: CollectiveTransport, tables: Sequence[str]) -> None:
        self._transport, self._names = transport, list(tables)
        specs = [transport.shard(name).spec for name in tables]
        fit = all(spec.dtype is torch.float32 and spec.device.type == "cpu" for spec in specs)
        if not fit or len({spec.dim for spec in specs}) > 1:
            found = ", ".join(f"{spec.name!r} {spec.dim} of {spec.dtype} on {spec.device}" for spec in specs)
            raise ConfigError(f"copies of rows need float32 tables of one width on the CPU; these have {found}")
        self._wire = narrower(torch.float32, transport.wire_dtype)
        self._dim, self._row_bytes = specs[0].dim, specs[0].dim * self._wire.itemsize
        self._tables_said = f"table {', '.join(map(repr, self._names))}"
        self._signature = transport.signature(self._names)
        self._memory: dict[str, Tensor] = {}

    def _lend(self, use: str, num_rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of num_rows rows, reused between turns while it is large enough."""
        known = self._memory.get(use)
        if known is None or len(known) < num_rows:
            known = self._memory[use] = torch.empty(num_rows + num_rows // 4, self._dim, dtype=dtype)
        return known[:num_rows]

    def _wired(self, use: str, rows: Tensor) -> Tensor:
        """Memory in which these rows travel: their own, or a buffer of the narrower dtype."""
        return rows if self._wire is rows.dtype else self._lend(f"{use}, wired", len(rows), self._wire)

    def _read(self, shard: EmbeddingShard, rows: Tensor, out: Tensor) -> None:
        """Read own rows (N,) into what leaves, (N, D)."""
        if out.dtype is shard.spec.dtype:
            shard.read_into(rows, out)
        else:
            out.copy_(shard.read(rows))

    def _add_up(self, shard: EmbeddingShard, rows: Tensor, came: Tensor) -> None:
        """Take from own rows (N,), distinct, what another rank's copies have gone down, (N, D)."""
        apply_update(SGD(1.0), shard, rows, came, "sum", prepared=True, distinct=True)
        self._transport.mark_changed(shard.spec.name, rows)

    def _count_pull(self, asks: np.ndarray, wanted: np.ndarray) -> None:
        """Count rows that are asked for and served, each (W, T)."""
        for name, num_asked, num_served in zip(self._names, asks.sum(axis=0), wanted.sum(axis=0), strict=True):
            counts = self._transport.counts[name]
            counts.asked, counts.distinct = counts.asked + int(num_asked), counts.distinct + int(num_asked)
            counts.bytes_sent += int(num_asked) * 8 + int(num_served) * self._row_bytes

    def _count_return(self, asks: np.ndarray) -> None:
        """Count the changes of copied rows that are sent, (W, T)."""
        for name, num in zip(self._names, asks.sum(axis=0), strict=True):
            self._transport.counts[name].bytes_sent += int(num) * self._row_bytes
            self._transport.counts[name].steps += 1
        self._transport.num_steps += 1


class LocalSGDRows(RowCopies):
    """Local SGD in collective mode: ranks train copies of each other's rows for a while, then give back the changes.

    A pull asks for the ids of all tables in one exchange, and the rows come in one. The owners remember who has which
    rows, so that ``give_back`` sends changes without ids.

    Args:
        transport, tables: As in ``RowCopies``.
    """

    def __init__(self, transport: CollectiveTransport, tables: Sequence[str]) -> None:
        super().__init__(transport, tables)
        self._asks = np.zeros((transport.world_size, len(tables)), np.int64)
        self._wanted = self._asks.copy()
        self._asked = torch.empty(0, dtype=torch.int64)
        self._places: list[Tensor] = []
        self._copies: list[Tensor] = []

    def pull(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """Copies of rows, (N, D) for each table in the order asked; valid until the next pull. Every rank calls it.

        Args:
            ids: For each table distinct checked ids of other ranks' rows, (N,), int64; may be empty.
        Raises:
            PeerError: a process is gone, or is in another call.
        """
        what = f"copies of rows of {self._tables_said}"
        with self._transport.joint(what):
            return self._pull(ids, what)

    def _pull(self, ids: Sequence[Tensor], what: str) -> list[Tensor]:
        transport = self._transport
        routes = [transport.layout_of(name).route(some) for name, some in zip(self._names, ids, strict=True)]
        self._asks = np.array([route.counts for route in routes], np.int64).T  # (W, T)
        self._wanted = transport.agree(COPY, self._signature, torch.from_numpy(self._asks), what).numpy()
        starts = np.cumsum(self._asks).reshape(self._asks.shape) - self._asks  # rank by rank, then by table
        shifts = starts - (np.cumsum(self._asks, axis=0) - self._asks)  # from a place in a table's route
        sent, self._places = torch.empty(int(self._asks.sum()), dtype=torch.int64), []
        for t, route in enumerate(routes):
            at = torch.from_numpy(np.arange(len(route.ids)) + np.repeat(shifts[:, t], self._asks[:, t]))
            sent[at] = route.ids
            self._places.append(at[route.place])
        here = self._lend("pulled", len(sent))
        asks, wanted = self._asks.sum(axis=1).tolist(), self._wanted.sum(axis=1).tolist()
        self._asked = transport.group.exchange(sent, asks, wanted, what)
        arriving = self._wired("pulled", here)
        rows = transport.group.outgoing(arriving, sum(wanted))
        for shard, part in self._served():
            self._read(shard, self._asked[part] - shard.first_id, rows[part])
        transport.group.exchange_into(arriving, rows, wanted, asks, what)
        if arriving is not here:
            here.copy_(arriving)
        self._copies = [self._lend(f"copies {t}", len(places)) for t, places in enumerate(self._places)]
        for copies, places in zip(self._copies, self._places, strict=True):
            gather(here, places, copies)
        self._count_pull(self._asks, self._wanted)
        return self._copies

    def give_back(self) -> None:
        """Add by how much each copy has changed to its owner's row, in the order of ranks; once for each pull.

        Every rank calls it.

        Raises:
            ModeError: there are no copies: nothing was pulled since the last time.
            PeerError: a process is gone, or is in another call.
        """
        if not self._copies:
            raise ModeError(f"{self._tables_said}: no copies to give back; pull them first")
        what = f"changes of copied rows of {self._tables_said}"
        with self._transport.joint(what):
            self._give_back(what)

    def _give_back(self, what: str) -> None:
        transport = self._transport
        transport.agree(RETURN, self._signature, torch.from_numpy(self._asks), what)
        pulled = self._memory["pulled"]
        asks, wanted = self._asks.sum(axis=1).tolist(), self._wanted.sum(axis=1).tolist()
        came = self._lend("came", sum(wanted))
        arriving = self._wired("came", came)
        leaving = transport.group.outgoing(arriving, sum(asks))
        changes = leaving if self._wire is pulled.dtype else self._lend("changes", sum(asks))
        for copies, places in zip(self._copies, self._places, strict=True):
            with threads_for(len(places)) as parts:
                _subtract_rows(pulled.numpy(), copies.numpy(), places.numpy(), changes.numpy(), parts)
        if leaving is not changes:
            leaving.copy_(changes)
        transport.group.exchange_into(arriving, leaving, asks, wanted, what)
        if came is not arriving:
            came.copy_(arriving)
        for shard, part in self._served():
            self._add_up(shard, self._asked[part] - shard.first_id, came[part])
        self._count_return(self._asks)
        self._copies = []

    def _served(self) -> Iterator[tuple[EmbeddingShard, slice]]:
        """Each table's rows that each rank has copied: the shard, and where they stand among all."""
        end = 0
        for counts in self._wanted.tolist():
            for name, count in zip(self._names, counts, strict=True):
                start, end = end, end + count
                yield self._transport.shard(name), slice(start, end)


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
            self._count_pull(own, theirs)
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
        leaving = self._transport.group.outgoing(arriving, int((served + gone).sum()))
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
            self._transport.group.exchange_into(arriving, leaving, to_send, to_receive, what)
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


@njit(parallel=True, cache=True, nogil=True)
def _subtract_rows(before, after, places, out, parts):
    """``out[places] = before[places] - after``: how far each copy has gone down."""
    for part in prange(parts):
        low, high = share(part, parts, len(places))
        for k in range(low, high):
            place = places[k]
            for d in range(out.shape[1]):
                out[place, d] = before[place, d] - after[k, d]
