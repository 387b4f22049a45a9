"""Local SGD on rows of other ranks: copies fetched for all tables at once, changed here, their changes given back.

Legend: T tables, W ranks, N ids asked for, S copied rows of all tables, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.addresses import kind_of
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import threads_for
from graph_emb.optim.rounding import memory_of
from graph_emb.table.row_memory import allocate
from graph_emb.table.shard import EmbeddingShard, narrower
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.copied_rows import Copies, Interval, Nodes, find
from graph_emb.transport.copy_kernels import (
    LATER,
    bytes_on_wire,
    lay_rows,
    round_changes,
    take_changes,
    widen_rows,
)
from graph_emb.transport.lockstep import COPY, RETURN

Job = tuple[np.ndarray | None, ...]
"""Arrays of a loop over rows that others copy, as ``copy_kernels`` names them."""


class LocalSGDRows:
    """Local SGD in collective mode: ranks train copies of each other's rows for a while, then give back the changes.

    A pull asks for the ids of all tables in one exchange, and the rows come in one, where they are trained. The owners
    remember who has which rows, and what these were, so that ``give_back`` sends the copies as they are, without ids;
    with a ``wire_dtype`` their changes. What travels lies node after node, the rows of a node's tables side by side.

    ``pull`` is ``ask``, ``lay_out`` and ``arrived``, and ``give_back`` is ``send`` and ``take``: between them a rank
    may train, and with ``overlap`` what they exchange travels meanwhile. Rows of the next interval may be laid out
    before the changes of this one are sent, once those of the last one are taken: its copies are then as old as that,
    and this rank's own changes since are taken from them as they come.

    Memory is reused between turns: fresh pages cost more than the rows that are laid on them. With the transport's
    ``wire_dtype`` rows and changes are rounded to it as they leave, and come back as float32; rows of int8 travel with
    a scale each.

    Args:
        transport: Of the tables.
        tables: Names of float32 tables of one width on the CPU, T, all of them cut among the ranks in the same way.
        adaptive: Changes of one row by several ranks are joined as AdaSum does (Maleki et al. 2021): what is common to
            two of them counts half in each. Orthogonal changes add up, equal ones are averaged: ranks that moved a row
            without each other would otherwise move it too far together.
        overlap: Rows and changes travel in the background.
    Attributes:
        seconds: Time of exchanges that overlap: laying out, travelling (waiting for others included), adding up. Ids
            travel in the background, and only waiting for them counts.
        hidden: Of it, the time during which this rank trained.
    Raises:
        ConfigError: other tables.
    """

    def __init__(
        self,
        transport: CollectiveTransport,
        tables: Sequence[str],
        *,
        adaptive: bool = False,
        overlap: bool = False,
    ) -> None:
        self._transport, self._names = transport, list(tables)
        self._tables_said = f"table {', '.join(map(repr, self._names))}"
        specs = [transport.shard(name).spec for name in tables]
        fit = all(spec.dtype is torch.float32 and spec.device.type == "cpu" for spec in specs)
        if not fit or len({spec.dim for spec in specs}) > 1:
            found = ", ".join(f"{spec.name!r} {spec.dim} of {spec.dtype} on {spec.device}" for spec in specs)
            raise ConfigError(f"copies of rows need float32 tables of one width on the CPU; these have {found}")
        layouts = [transport.layout_of(name) for name in tables]
        if any(layout.facts != layouts[0].facts for layout in layouts):
            raise ConfigError(f"{self._tables_said}: copies of rows need tables that are cut in the same way")
        for shard in map(transport.shard, tables):
            if shard.lazy or shard.grows or not shard.in_memory:
                raise ConfigError(
                    f"table {shard.spec.name!r}: copies of rows need rows in memory that neither grow nor decay lazily"
                )
        scaled = transport.wire_dtype is torch.int8
        self._wire = torch.int8 if scaled else narrower(torch.float32, transport.wire_dtype)
        self._dim, self._row_bytes = specs[0].dim, bytes_on_wire(specs[0].dim, self._wire)
        self._signature = transport.signature(self._names)
        self._memory: dict[str, Tensor] = {}
        self._layout, self._adaptive, self._overlap = layouts[0], adaptive, overlap
        self._copies_return = self._wire is torch.float32 and not overlap  # as they are
        self._each = np.arange(len(tables), 0, -1)  # rows of an id of each group
        self._background = ThreadPoolExecutor(1, "exchange") if overlap else None
        self._place_of = np.full(int(self._layout.bounds[-1]) if overlap else 0, -1, np.int32)
        self._num = 0
        self._asking: Callable[[], Interval] | None = None  # its ids travel
        self._asked: Interval | None = None  # its rows travel
        self._held: Interval | None = None  # its copies are here
        self._gone: tuple[Interval, Callable[[], None], Tensor, Tensor] | None = None  # its changes travel
        self.seconds, self.hidden = 0.0, 0.0

    def pull(self, ids: Sequence[Tensor]) -> Copies:
        """Copies of rows, to be trained in place until ``give_back``. Every rank calls it.

        Args:
            ids: For each table those whose rows are copied of it and of all tables behind it: distinct checked ids of
                other ranks' rows, (N,), int64, none of them in two groups; may be empty.
        Raises:
            PeerError: a process is gone, or is in another call.
        """
        self.ask(ids)
        self.lay_out()
        return self.arrived()

    def give_back(self) -> None:
        """Bring by how much each copy has changed to its owner's row, in the order of ranks; once for each pull.

        Every rank calls it.

        Raises:
            ModeError: there are no copies: nothing was pulled since the last time.
            PeerError: a process is gone, or is in another call.
        """
        self.send()
        self.take()

    def ask(self, ids: Sequence[Tensor]) -> None:
        """Ask for rows, as ``pull``. Every rank calls it, and no other call than ``lay_out`` or ``take`` after it.

        Raises:
            ModeError: rows that were asked for before have not arrived.
            PeerError: as of ``pull``; with ``overlap`` in the next call.
        """
        if self._asking is not None or self._asked is not None:
            raise ModeError(f"{self._tables_said}: rows that were asked for are under way; call lay_out and arrived")
        if self._background is None:
            interval = self._ask(ids)
            self._asking = lambda: interval
        else:
            self._asking = self._background.submit(self._ask, ids).result

    def lay_out(self) -> None:
        """Let the rows leave that the others asked for. Every rank calls it.

        Raises:
            ModeError: no rank asked, or there are changes that travel.
            PeerError: as of ``pull``.
        """
        if self._asking is None or self._gone is not None:
            raise ModeError(f"{self._tables_said}: no rows to lay out; ask for some, and take changes first")
        with self._calling("copies of rows", self._asking) as what:
            interval, self._asking = self._asking(), None
            coming, going = (interval.asks @ self._each).tolist(), (interval.wanted @ self._each).tolist()
            interval.arriving = self._exchange(interval.came, self._laid_out(interval), going, coming, what)
            self._asked = interval

    def arrived(self) -> Copies:
        """Wait for the rows that were asked for: copies to be trained in place until ``send``.

        Raises:
            ModeError: none were, or there are copies whose changes were not sent.
            PeerError: as of ``pull``.
        """
        if self._asked is None or self._held is not None:
            raise ModeError(f"{self._tables_said}: no copies are under way; ask for them first")
        with self._calling("copies of rows"):
            self._held, self._asked = self._asked, None
            self._held.arriving()
            memory = self._copies(self._held)
        return Copies([memory[t:] for t in range(len(self._names))], self._held.places)

    def send(self) -> None:
        """Send by how much each copy has changed, and let go of the copies. Every rank calls it."""
        if self._held is None:
            raise ModeError(f"{self._tables_said}: no copies to give back; pull them first")
        with self._calling("changes of copied rows") as what:
            self._gone, self._held = self._send(self._held, what), None

    def take(self, share: float = 1.0) -> None:
        """Wait for the changes that the others send, and take them from own rows, in the order of ranks.

        Args:
            share: With AdaSum, which part of the changes of own rows since they were laid out is of the time in which
                the others trained their copies.
        """
        if self._gone is None:
            raise ModeError(f"{self._tables_said}: no changes are under way; send them first")
        with self._calling("changes of copied rows", self._asking):
            interval, arriving, came, _ = self._gone
            arriving()
            self._take(interval, came, share)
            self._gone = None

    @contextmanager
    def _calling(self, what: str, before: Callable[[], object] | None = None) -> Iterator[str]:
        """A joint call, after another one in the background, of which it yields the words, and whose time counts."""
        begun, said = time.perf_counter(), f"{what} of {self._tables_said}"
        if before is not None:
            before()
        with self._transport.joint(said):
            yield said
        self.seconds += time.perf_counter() - begun

    def _lend(self, use: str, num_rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of num_rows rows, reused between turns while it is large enough."""
        known = self._memory.get(use)
        if known is None or len(known) < num_rows:
            width = self._row_bytes if dtype is torch.int8 else self._dim
            shape, device = (num_rows + num_rows // 4, width), torch.device("cpu")
            known = self._memory[use] = allocate(shape, dtype, device, ", ".join(self._names))
        return known[:num_rows]

    def _leaving(self, use: str, like: Tensor, num_rows: int) -> Tensor:
        """Memory of rows for the next exchange, of the width and dtype of ``like``."""
        if self._transport.group.same_memory and not self._overlap:  # memory that the others map; the last one is over
            return self._transport.group.outgoing(like, num_rows)
        return self._lend(use, num_rows, like.dtype)

    def _exchange(
        self, came: Tensor, leaving: Tensor, to_send: list[int], to_receive: list[int], what: str
    ) -> Callable[[], None]:
        """Exchange rows; what it returns waits for them where they travel in the background."""
        group = self._transport.group
        if self._background is None:
            group.exchange_large(came, leaving, to_send, to_receive, what)
            return lambda: None
        begun = time.perf_counter()
        wait = group.start_exchange(came, leaving, to_send, to_receive, what, large=True)

        def travel() -> float:
            wait()
            return time.perf_counter() - begun

        travelling = self._background.submit(travel)

        def arriving() -> None:
            waiting = time.perf_counter()
            took = travelling.result()
            hidden = max(0.0, took - (time.perf_counter() - waiting))
            self.hidden, self.seconds = self.hidden + hidden, self.seconds + hidden

        return arriving

    def _ask(self, ids: Sequence[Tensor]) -> Interval:
        transport, what = self._transport, f"copies of rows of {self._tables_said}"
        routes = [self._layout.route(some) for some in ids]
        asks = np.array([route.counts for route in routes], np.int64).T  # (W, T)
        split = [route.ids.split(route.counts) for route in routes]
        sent = torch.cat([part for of_rank in zip(*split, strict=True) for part in of_rank])
        with transport.joint(what):
            wanted = transport.agree(COPY, self._signature, torch.from_numpy(asks), what).numpy()
            asked = transport.group.exchange(sent, asks.sum(axis=1).tolist(), wanted.sum(axis=1).tolist(), what)
        num_rows, number, first = int((asks @ self._each).sum()), self._num, len(self._names) - 1
        if self._copies_return:
            came = self._lend("copies", first + num_rows)[first:]
        else:
            came = self._lend(f"came {number % 2}", num_rows, self._wire)
        places = self._places(asks, [route.place for route in routes])
        interval = Interval(number, asks, wanted, asked, sent, places, came, lambda: None)
        self._count_pull(np.cumsum(asks, axis=1), np.cumsum(wanted, axis=1), asks)
        self._num += self._overlap
        return interval

    def _places(self, asks: np.ndarray, of_routes: Sequence[Tensor]) -> Tensor:
        """Where the rows of each id lie, in the order asked, by where ids stand among those of a group."""
        found = []
        starts = self._starts(asks)
        for group, place in enumerate(of_routes):
            counts, each = asks[:, group], int(self._each[group])
            shifts = starts[:, group] - each * (np.cumsum(counts) - counts) + each - 1
            at = np.arange(len(place)) * each + np.repeat(shifts, counts)
            found.append(torch.from_numpy(at)[place])
        return torch.cat(found)

    def _starts(self, counts: np.ndarray) -> np.ndarray:
        """Where in a message the rows of each group of ids begin, by (W, T) of their numbers."""
        rows = counts * self._each
        found: np.ndarray = np.cumsum(rows).reshape(rows.shape) - rows
        return found

    def _laid_out(self, interval: Interval) -> Tensor:
        """The rows that others asked for as they travel, and, where their changes will need it, as they are."""
        num_rows = int((interval.wanted @ self._each).sum())
        served = self._kept(interval)
        if served is not None and self._copies_return and not self._transport.group.same_memory:
            rows, message = served, None
        else:
            rows = self._leaving("leaving", interval.came, num_rows)
            message = memory_of(rows)
        jobs = [job for of_rank in self._served(interval, served, message) for job in of_rank]
        with threads_for(num_rows) as parts:
            lay_rows.run(kind_of(jobs[0]), jobs, parts)
        return rows

    def _kept(self, interval: Interval) -> Tensor | None:
        """Memory of rows as others copied them; None: nothing needs them."""
        if not self._copies_return and not self._adaptive:
            return None
        return self._lend(f"served {interval.number % 2}", int((interval.wanted @ self._each).sum()))

    def _copies(self, interval: Interval) -> Tensor:
        """Memory of copies of the rows that came, less own changes that are under way; with T - 1 rows before the
        first, so that a place of the last table is never negative."""
        first = len(self._names) - 1
        memory = self._lend("copies", first + len(interval.came))
        if self._copies_return:
            return memory
        if self._gone is not None:
            before, _, _, gone = self._gone
            both = Nodes.of(before.sent, before.asks), Nodes.of(interval.sent, interval.asks)
            interval.gone = memory_of(gone), self._places_in(*both[::-1], len(interval.came))
        arrays = memory_of(interval.came), memory[first:].numpy(), *interval.gone
        with threads_for(len(interval.came)) as parts:
            widen_rows.run(kind_of(arrays), [arrays], parts)
        return memory

    def _places_in(self, nodes: Nodes, others: Nodes, num_rows: int) -> np.ndarray:
        """Where each of so many rows of a message lies in another one, (S,), or -1."""
        found, places = np.full(len(nodes.ids), -1, np.int32), np.full(num_rows, -1, np.int64)
        find(self._place_of, others.ids, nodes.ids, found)
        both = np.flatnonzero(found >= 0)
        other = found[both]
        first = np.maximum(nodes.group[both], others.group[other])
        for back in range(len(self._names)):
            has = first < len(self._names) - back
            places[nodes.last[both[has]] - back] = others.last[other[has]] - back
        return places

    def _send(self, interval: Interval, what: str) -> tuple[Interval, Callable[[], None], Tensor, Tensor]:
        if self._background is None:  # else the ids of the next interval say whether all are in the same call
            self._transport.agree(RETURN, self._signature, torch.from_numpy(interval.asks), what)
        leaving, coming = (interval.asks @ self._each).tolist(), (interval.wanted @ self._each).tolist()
        came, changes = self._lend("changes", sum(coming), self._wire), self._changes(interval)
        arriving = self._exchange(came, changes, leaving, coming, what)
        self._count_return(np.cumsum(interval.asks, axis=1))
        return interval, arriving, came, changes

    def _changes(self, interval: Interval) -> Tensor:
        """The copies, whose changes their owner knows, or how far they have gone down, as both travel."""
        if self._copies_return:
            return interval.came
        num_rows, first = len(interval.came), len(self._names) - 1
        copies = self._lend("copies", first + num_rows)[first:]
        leaving = self._leaving(f"changes, leaving {interval.number % 2}", interval.came, num_rows)
        arrays = memory_of(interval.came), copies.numpy(), *interval.gone, memory_of(leaving)
        with threads_for(num_rows) as parts:
            round_changes.run(kind_of(arrays), [arrays], parts)
        return leaving

    def _take(self, interval: Interval, came: Tensor, share: float) -> None:
        following = self._held or self._asked  # asked for before these changes were here
        later = self._kept(following) if following is not None and self._adaptive else None
        coming = interval.wanted @ self._each
        flags = self._adaptive, self._copies_return, later is not None
        for rank, jobs in enumerate(self._served(interval, self._kept(interval), memory_of(came), share)):
            if following is not None and later is not None:
                both = self._of_rank(interval, rank), self._of_rank(following, rank)
                places = self._places_in(*both, int(coming.sum()))
                jobs = [(*job[:LATER], later.numpy(), places) for job in jobs]
            with threads_for(int(coming[rank])) as parts:
                take_changes.run(kind_of(jobs[0], flags), jobs, parts)
            self._changed(interval, rank)

    def _of_rank(self, interval: Interval, rank: int) -> Nodes:
        """What a rank asks of this one."""
        ends = np.cumsum(interval.wanted.sum(axis=1))
        low, high = int(ends[rank] - interval.wanted[rank].sum()), int(ends[rank])
        return Nodes.of(interval.asked, interval.wanted).part(low, high)

    def _served(
        self, interval: Interval, served: Tensor | None, message: np.ndarray | None, share: float = 1.0
    ) -> Iterator[list[Job]]:
        """Of each rank what it has copied, jobs of ``copy_kernels``.

        Args:
            served: The rows as they were when it copied them.
            message: What leaves for the ranks, or comes from them.
            share: As of ``take``.
        """
        ends, starts = np.cumsum(interval.wanted).reshape(interval.wanted.shape), self._starts(interval.wanted)
        before, first = None if served is None else served.numpy(), self._layout.owned(self._transport.rank)[0]
        shards = [self._transport.shard(name) for name in self._names]
        some_frozen = any(shard.frozen is not None for shard in shards)
        tables = [(shard.weight.numpy(), _mask(shard) if some_frozen else None) for shard in shards]
        at, counted = interval.asked.numpy() - first, np.array([share], np.float32)
        for rank, counts in enumerate(interval.wanted):
            jobs: list[Job] = []
            for group, each in enumerate(self._each):
                end, span = ends[rank, group], np.array([starts[rank, group], each])
                nodes = at[end - counts[group] : end]
                for weight, frozen in tables[group:]:
                    jobs.append((weight, nodes, span, frozen, before, message, counted, None, None))
                    nodes = at[:0]
            yield jobs

    def _changed(self, interval: Interval, rank: int) -> None:
        """Tell the transport which rows a rank's changes were taken from."""
        ids = interval.asked.split(interval.wanted.sum(axis=1).tolist())[rank]
        own = ids - self._layout.owned(self._transport.rank)[0]
        for name, num in zip(self._names, np.cumsum(interval.wanted[rank]).tolist(), strict=True):
            self._transport.mark_changed(name, own[:num])

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


def _mask(shard: EmbeddingShard) -> np.ndarray:
    """Which rows of a shard are frozen, (R,), uint8."""
    found = np.zeros(shard.num_rows, bool) if shard.frozen is None else shard.frozen.numpy()
    return found.view(np.uint8)
