"""Local SGD on rows of other ranks: copies fetched for all tables at once, changed here, their changes given back.

Legend: T tables, W ranks, N ids asked for, S copied rows of all tables, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.addresses import kind_of
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import threads_for
from graph_emb.optim.rounding import memory_of
from graph_emb.table.shard import EmbeddingShard, narrower
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.copy_kernels import lay_rows, round_changes, take_changes
from graph_emb.transport.lockstep import COPY, RETURN

Job = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]
"""Arrays of a loop over rows that others copy, as ``copy_kernels`` names them."""


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

    def _count_pull(self, asks: np.ndarray, wanted: np.ndarray, named: np.ndarray) -> None:
        """Count rows that are asked for and served, and ids that are sent, each (W, T)."""
        numbers = (each.sum(axis=0).tolist() for each in (asks, wanted, named))
        for name, num_asked, num_served, num_ids in zip(self._names, *numbers, strict=True):
            counts = self._transport.counts[name]
            counts.asked, counts.distinct = counts.asked + num_asked, counts.distinct + num_asked
            counts.bytes_sent += num_ids * 8 + num_served * self._row_bytes

    def _count_return(self, asks: np.ndarray) -> None:
        """Count the changes of copied rows that are sent, (W, T)."""
        for name, num in zip(self._names, asks.sum(axis=0), strict=True):
            self._transport.counts[name].bytes_sent += int(num) * self._row_bytes
            self._transport.counts[name].steps += 1
        self._transport.num_steps += 1


class LocalSGDRows(RowCopies):
    """Local SGD in collective mode: ranks train copies of each other's rows for a while, then give back the changes.

    A pull asks for the ids of all tables in one exchange, and the rows come in one, where they are trained. The owners
    remember who has which rows, and what these were, so that ``give_back`` sends the copies as they are, without ids;
    with a ``wire_dtype`` their changes. What travels lies node after node, the rows of a node's tables side by side.

    Args:
        transport, tables: As in ``RowCopies``; all tables are cut among the ranks in the same way.
        adaptive: Changes of one row by several ranks are joined as AdaSum does (Maleki et al. 2021): what is common to
            two of them counts half in each. Orthogonal changes add up, equal ones are averaged: ranks that moved a row
            without each other would otherwise move it too far together.
    Raises:
        ConfigError: other tables.
    """

    def __init__(self, transport: CollectiveTransport, tables: Sequence[str], *, adaptive: bool = False) -> None:
        super().__init__(transport, tables)
        layouts = [transport.layout_of(name) for name in tables]
        if any(layout.facts != layouts[0].facts for layout in layouts):
            raise ConfigError(f"{self._tables_said}: copies of rows need tables that are cut in the same way")
        for shard in map(transport.shard, tables):
            if shard.lazy or shard.grows or not shard.in_memory:
                raise ConfigError(
                    f"table {shard.spec.name!r}: copies of rows need rows in memory that neither grow nor decay lazily"
                )
        self._layout, self._adaptive = layouts[0], adaptive
        self._exact = self._wire is torch.float32
        self._each = np.arange(len(tables), 0, -1)  # rows of an id of each group
        self._asks = np.zeros((transport.world_size, len(tables)), np.int64)
        self._wanted = self._asks.copy()
        self._asked = torch.empty(0, dtype=torch.int64)
        self._copied = False

    def pull(self, ids: Sequence[Tensor]) -> Copies:
        """Copies of rows, to be trained in place until ``give_back``. Every rank calls it.

        Args:
            ids: For each table those whose rows are copied of it and of all tables behind it: distinct checked ids of
                other ranks' rows, (N,), int64, none of them in two groups; may be empty.
        Raises:
            PeerError: a process is gone, or is in another call.
        """
        what = f"copies of rows of {self._tables_said}"
        with self._transport.joint(what):
            return self._pull(ids, what)

    def _pull(self, ids: Sequence[Tensor], what: str) -> Copies:
        transport = self._transport
        routes = [self._layout.route(some) for some in ids]
        self._asks = np.array([route.counts for route in routes], np.int64).T  # (W, T)
        self._wanted = transport.agree(COPY, self._signature, torch.from_numpy(self._asks), what).numpy()
        split = [route.ids.split(route.counts) for route in routes]
        sent = torch.cat([part for of_rank in zip(*split, strict=True) for part in of_rank])
        asks, wanted = self._asks.sum(axis=1).tolist(), self._wanted.sum(axis=1).tolist()
        self._asked = transport.group.exchange(sent, asks, wanted, what)
        coming, going = (self._asks @ self._each).tolist(), (self._wanted @ self._each).tolist()
        memory = self._lend("copies", sum(coming) + len(self._names) - 1)  # a place of the last table is never negative
        copies = memory[len(self._names) - 1 :]
        arriving = copies if self._exact else self._lend("came", len(copies), self._wire)
        transport.group.exchange_large(arriving, self._laid_out(arriving, sum(going)), going, coming, what)
        if arriving is not copies:
            copies.copy_(arriving)
        self._count_pull(np.cumsum(self._asks, axis=1), np.cumsum(self._wanted, axis=1), self._asks)
        self._copied = True
        return Copies([memory[t:] for t in range(len(self._names))], self._places([route.place for route in routes]))

    def _places(self, of_routes: Sequence[Tensor]) -> Tensor:
        """Where the rows of each id lie, in the order asked, by where ids stand among those of a group."""
        found = []
        starts = self._starts(self._asks)
        for group, place in enumerate(of_routes):
            counts, each = self._asks[:, group], int(self._each[group])
            shifts = starts[:, group] - each * (np.cumsum(counts) - counts) + each - 1
            at = np.arange(len(place)) * each + np.repeat(shifts, counts)
            found.append(torch.from_numpy(at)[place])
        return torch.cat(found)

    def _starts(self, counts: np.ndarray) -> np.ndarray:
        """Where in a message the rows of each group of ids begin, by (W, T) of their numbers."""
        rows = counts * self._each
        found: np.ndarray = np.cumsum(rows).reshape(rows.shape) - rows
        return found

    def _laid_out(self, like: Tensor, num_rows: int) -> Tensor:
        """The rows that others asked for as they travel, and, where their changes will need it, as they are."""
        served = self._kept(num_rows)
        if served is not None and self._exact and not self._transport.group.same_memory:
            rows, message = served, None
        else:
            rows = self._leaving(like, num_rows)
            message = memory_of(rows)
        jobs = [job for of_rank in self._served(served, message) for job in of_rank]
        with threads_for(num_rows) as parts:
            lay_rows.run(kind_of(jobs[0]), jobs, parts)
        return rows

    def _kept(self, num_rows: int) -> Tensor | None:
        """Memory of rows as others copied them; None: nothing needs them."""
        return self._lend("served", num_rows) if self._exact or self._adaptive else None

    def give_back(self) -> None:
        """Bring by how much each copy has changed to its owner's row, in the order of ranks; once for each pull.

        Every rank calls it.

        Raises:
            ModeError: there are no copies: nothing was pulled since the last time.
            PeerError: a process is gone, or is in another call.
        """
        if not self._copied:
            raise ModeError(f"{self._tables_said}: no copies to give back; pull them first")
        what = f"changes of copied rows of {self._tables_said}"
        with self._transport.joint(what):
            self._give_back(what)

    def _give_back(self, what: str) -> None:
        transport = self._transport
        transport.agree(RETURN, self._signature, torch.from_numpy(self._asks), what)
        leaving, coming = (self._asks @ self._each).tolist(), (self._wanted @ self._each).tolist()
        came = self._lend("changes", sum(coming), self._wire)
        transport.group.exchange_large(came, self._changes(sum(leaving)), leaving, coming, what)
        for rank, jobs in enumerate(self._served(self._kept(len(came)), memory_of(came))):
            with threads_for(coming[rank]) as parts:
                take_changes.run(kind_of(jobs[0], (self._adaptive,)), jobs, parts)
            self._changed(rank)
        self._count_return(np.cumsum(self._asks, axis=1))
        self._copied = False

    def _changes(self, num_rows: int) -> Tensor:
        """The copies, whose changes their owner knows, or how far they have gone down, as both travel."""
        first = len(self._names) - 1
        copies = self._lend("copies", first + num_rows)[first:]
        if self._exact:
            return copies
        came = self._lend("came", num_rows, self._wire)
        leaving = self._leaving(came, num_rows)
        arrays = memory_of(came), copies.numpy(), memory_of(leaving)
        with threads_for(num_rows) as parts:
            round_changes.run(kind_of(arrays), [arrays], parts)
        return leaving

    def _served(self, served: Tensor | None, message: np.ndarray | None) -> Iterator[list[Job]]:
        """Of each rank what it has copied, jobs of ``copy_kernels``.

        Args:
            served: The rows as they were when it copied them.
            message: What leaves for the ranks, or comes from them.
        """
        ends, starts = np.cumsum(self._wanted).reshape(self._wanted.shape), self._starts(self._wanted)
        before, first = None if served is None else served.numpy(), self._layout.owned(self._transport.rank)[0]
        shards = [self._transport.shard(name) for name in self._names]
        some_frozen = any(shard.frozen is not None for shard in shards)
        tables = [(shard.weight.numpy(), _mask(shard) if some_frozen else None) for shard in shards]
        at = self._asked.numpy() - first
        for rank, counts in enumerate(self._wanted):
            jobs = []
            for group, each in enumerate(self._each):
                end, span = ends[rank, group], np.array([starts[rank, group], each])
                nodes = at[end - counts[group] : end]
                for weight, frozen in tables[group:]:
                    jobs.append((weight, nodes, span, frozen, before, message))
                    nodes = at[:0]
            yield jobs

    def _changed(self, rank: int) -> None:
        """Tell the transport which rows a rank's changes were taken from."""
        ids = self._asked.split(self._wanted.sum(axis=1).tolist())[rank] - self._layout.owned(self._transport.rank)[0]
        for name, num in zip(self._names, np.cumsum(self._wanted[rank]).tolist(), strict=True):
            self._transport.mark_changed(name, ids[:num])


def _mask(shard: EmbeddingShard) -> np.ndarray:
    """Which rows of a shard are frozen, (R,), uint8."""
    found = np.zeros(shard.num_rows, bool) if shard.frozen is None else shard.frozen.numpy()
    return found.view(np.uint8)


class Copies(NamedTuple):
    """Rows of other ranks, to be trained in place.

    Attributes:
        rows: Memory of each table, (S, D).
        places: Shape (N,), int64: the row of each id asked for, group after group, in the memory of each table of
            which it is copied.
    """

    rows: list[Tensor]
    places: Tensor
