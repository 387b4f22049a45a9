"""Local SGD on rows of other ranks: copies fetched for all tables at once, changed here, their changes given back.

Legend: T tables, W ranks, N copied rows of a table, S copied rows of all tables, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.addresses import RowLoop, array_at, kind_of
from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import threads_for
from graph_emb.optim.apply import apply_update
from graph_emb.optim.merging import share
from graph_emb.optim.rounding import FAST
from graph_emb.optim.rules import SGD
from graph_emb.table.shard import EmbeddingShard, gather, narrower
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.lockstep import COPY, RETURN

ROWS, AT, BEFORE, CHANGES = range(4)
"""The places of a job's arrays (``graph_emb.core.addresses``): all rows, which of them, and of these what they were
before and the changes that came."""


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

    def _leaving(self, like: Tensor, num_rows: int) -> Tensor:
        """Memory of rows for the next exchange, of the width and dtype of ``like``; the one before is over."""
        if self._transport.group.same_memory:  # memory that the others map
            return self._transport.group.outgoing(like, num_rows)
        return self._lend("leaving", num_rows, like.dtype)

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
        adaptive: Changes of one row by several ranks are joined as AdaSum does (Maleki et al. 2021): what is common to
            two of them counts half in each. Orthogonal changes add up, equal ones are averaged: ranks that moved a row
            without each other would otherwise move it too far together. Owners keep the rows that others copy, as they
            were: memory of S more rows.
    """

    def __init__(self, transport: CollectiveTransport, tables: Sequence[str], *, adaptive: bool = False) -> None:
        super().__init__(transport, tables)
        self._adaptive = adaptive
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
        served = self._lend("served", sum(wanted)) if self._adaptive else None
        as_they_are = served is not None and served.dtype is arriving.dtype and not transport.group.same_memory
        rows = served if served is not None and as_they_are else self._leaving(arriving, sum(wanted))
        for shard, part in self._served():
            at = self._asked[part] - shard.first_id
            self._read(shard, at, rows[part] if served is None else served[part])
        if served is not None and rows is not served:
            rows.copy_(served)
        transport.group.exchange_into(arriving, rows, wanted, asks, what)
        if arriving is not here:
            here.copy_(arriving)
        self._copies = [self._lend(f"copies {t}", len(places)) for t, places in enumerate(self._places)]
        for copies, places in zip(self._copies, self._places, strict=True):
            gather(here, places, copies)
        self._count_pull(self._asks, self._wanted)
        return self._copies

    def give_back(self) -> None:
        """Bring by how much each copy has changed to its owner's row, in the order of ranks; once for each pull.

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
        leaving = self._leaving(arriving, sum(asks))
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
            at, changes = self._asked[part] - shard.first_id, came[part]
            if self._adaptive:
                served = self._memory["served"][part]
                arrays = tuple(each.numpy() for each in (shard.weight, at, served, changes))
                with threads_for(len(at)) as parts:
                    _join_changes.run(kind_of(arrays), [arrays], parts)
            self._add_up(shard, at, changes)
        self._count_return(self._asks)
        self._copies = []

    def _served(self) -> Iterator[tuple[EmbeddingShard, slice]]:
        """Each table's rows that each rank has copied: the shard, and where they stand among all."""
        end = 0
        for counts in self._wanted.tolist():
            for name, count in zip(self._names, counts, strict=True):
                start, end = end, end + count
                yield self._transport.shard(name), slice(start, end)


@njit(parallel=True, cache=True, nogil=True)
def _subtract_rows(before, after, places, out, parts):
    """``out[places] = before[places] - after``: how far each copy has gone down."""
    for part in prange(parts):
        low, high = share(part, parts, len(places))
        for k in range(low, high):
            place = places[k]
            for d in range(out.shape[1]):
                out[place, d] = before[place, d] - after[k, d]


def _join(kind, where, j, low, high, _, __, ___):
    """Changes become what takes rows from where they are to what was before, less the AdaSum of both changes.

    Of each row how far it has gone down from ``BEFORE`` here, and by ``CHANGES`` elsewhere.
    """
    rows, at = array_at(kind, where, j, ROWS), array_at(kind, where, j, AT)
    before, changes = array_at(kind, where, j, BEFORE), array_at(kind, where, j, CHANGES)
    for k in range(low, high):
        row, first, change = rows[at[k]], before[k], changes[k]
        common, near, far = np.float32(0), np.float32(0), np.float32(0)
        for d in range(len(change)):
            own = first[d] - row[d]
            common += own * change[d]
            near += own * own
            far += change[d] * change[d]
        if near == 0 or far == 0:
            continue
        half = common / np.float32(2)
        less, own_less = half / far, half / near
        for d in range(len(change)):
            change[d] -= less * change[d] + own_less * (first[d] - row[d])


_join_changes = RowLoop(_join, AT, fastmath=FAST, error_model="numpy")
