"""The contract of a transport, which decides where (ids, gradients) meet the shard that owns them.

Legend: B ids of a call or rows of a piece, R rows in reach, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.partition_book import Rank
from graph_emb.optim.apply import Merge, merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.bags import BagGradients, Bags
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.live_rows import ChangedRows
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport.traffic import LinkCounts, Traffic

T = TypeVar("T")


class Push(NamedTuple):
    """The gradients of one table in one step.

    Attributes:
        table: The table's name.
        ids: Checked partition-order ids, shape (B,), int64, repeats allowed.
        grads: Shape (B, D), floating; where the transport ``takes_bags`` also those of bags.
        rule: The arithmetic, with the numbers of this step.
        merge: The treatment of duplicates.
        touched: Whether a backward reached the table on this rank. Where the mode is in lockstep, tables that no
            backward reached are pushed too, with no rows, because another rank may have touched them.
        places: Of the rows of a growing table that lie here, where a look-up told them; (B,), -1 for none.
    """

    table: str
    ids: Tensor
    grads: Tensor | BagGradients
    rule: SparseRule
    merge: Merge
    touched: bool = True
    places: np.ndarray | None = None


class Reach(NamedTuple):
    """The rows of a table that a process may change in place: those that it alone writes, and in Hogwild
    those of its machine's other processes too.

    Attributes:
        first_id: The id of row 0.
        weight: The rows, (R, D), not a copy; none of a table whose untouched rows decay.
        frozen: Whether any of them must not change.
    """

    first_id: int
    weight: Tensor
    frozen: bool


class Named(NamedTuple):
    """What a transport's user notes about a live table: its policy as given, and how it was made.

    Attributes:
        policy: A partition book where none was given.
        by_name: Whether it lives until it is deleted by its name.
        is_gdata: DGL's word for data of the graph itself.
    """

    policy: Any
    by_name: bool = False
    is_gdata: bool = False


HALVES = (torch.float16, torch.bfloat16)
"""What rows and gradients may be rounded to where they travel."""


def checked_wire(dtype: Any, *more: torch.dtype) -> torch.dtype | None:
    """The option ``wire_dtype``; a ConfigError unless it is None, float16, bfloat16 or one of more, or its name."""
    found, allowed = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype, (*HALVES, *more)
    if found not in (None, *allowed) or (found is None and dtype is not None):
        raise ConfigError(f"wire_dtype={dtype!r} must be {', '.join(map(str, allowed))} or None")
    return found


def squares(grads: Tensor) -> list[float]:
    """The sum of squares of gradients, (R, D), as two numbers: the sum rounded, and what rounding lost.

    So the sum over ranks does not depend on which rank has which row.
    """
    rows = grads.double().square().sum(dim=1).tolist()
    total = math.fsum(rows)
    return [total, math.fsum([*rows, -total]) if math.isfinite(total) else 0.0]


class TableRows(Protocol):
    """Rows [first_id, first_id + num_rows) of a table, in partition order, with their state.

    A column is ``weight`` or the name of a piece of state that has rows. The shares of all processes together are
    the table, and no row is in two of them.
    """

    first_id: int
    num_rows: int

    def read(self, column: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a column, on the CPU; may share the table's memory."""

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows, shape (B,), of a column with values, shape (B, D) or (B,)."""

    def memory(self, column: str) -> Tensor | None:
        """The whole column where it lies in this process's reach on the CPU, contiguous; None elsewhere."""


class ShardRows:
    """Rows of a shard in this process's reach."""

    def __init__(self, shard: EmbeddingShard) -> None:
        self.first_id, self.num_rows = shard.first_id, shard.num_rows
        self.shard = shard

    def read(self, column: str, start: int, stop: int) -> Tensor:
        return self.shard.column(column, start, stop).cpu()

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        self.shard.write_column(column, rows, values)

    def memory(self, column: str) -> Tensor | None:
        return self.shard.memory(column)


class LiveTables(dict[str, T]):
    """The live tables of a transport by name; asking for another one raises a ModeError."""

    closed = False

    def __missing__(self, name: str) -> T:
        self.check_open()
        raise ModeError(f"no table {name!r} here; live tables: {', '.join(sorted(self)) or 'none'}")

    def check_open(self) -> None:
        """Raise a ModeError after ``close``."""
        if self.closed:
            raise ModeError("graph_emb was shut down; call graph_emb.init() and create the tables again")

    def check_free(self, name: str) -> None:
        """Raise a ConfigError where a live table has the name, a ModeError after ``close``."""
        self.check_open()
        if name in self:
            table: Any = self[name]
            raise ConfigError(
                f"a table {name!r} of shape ({table.spec.num_rows}, {table.spec.dim}) is alive already; "
                "choose another name or drop the old DistEmbedding first"
            )

    def close(self) -> None:
        """Free every table."""
        self.clear()
        self.closed = True


class Transport(ABC):
    """The way of one process to the tables of its job: creates them, pulls rows, pushes gradients to the owners.

    ``graph_emb.init`` makes it; ``DistEmbedding`` and the optimizers are its callers, by the name of a table and with
    ids that ``check_ids`` has seen: partition-order int64, shape (B,), any device. One thread of a process calls it.

    Joint calls: where ``lockstep`` is True every rank makes the calls marked so, in one order and for the same tables;
    a rank that is in another one, or has skipped one, raises PeerError on all, and an error in the middle of one makes
    every later one a PeerError with the first cause. Elsewhere each process calls when it likes. Every method but
    ``destroy``, ``detach`` and ``close`` raises ModeError for a table that is not alive and after ``close``, and
    PeerError where another process was needed and is gone.

    Attributes:
        mode: The word that ``init`` takes.
        rank: This process.
        world_size: Processes that share the tables.
        lockstep: Whether pull, push and the other joint calls are made by all ranks together.
        counts: What this process asked for and sent, by table: the transport counts as it goes.
        num_steps: Whole steps that it pushed.
        link: What crossed between this process and the others, and how long it waited for them.
        named: What is known of each table besides its spec, by the table's name.
        machine, num_servers: The machine of this process among those of the job, and the processes that own rows.
        takes_bags: Whether a push may bring the gradients of bags as they are.
        groups_ids: Whether it gains by ``will_train``; the others are not told.
        wire_dtype: What rows and gradients are rounded to where they travel; None: nothing is.
        grows_by_default: Whether tables grow that are made with a number of rows and tied to no ids.
        hogwild: Whether processes of one machine change each other's rows in place, without locks (``in_reach``).
    """

    mode: str
    rank: Rank
    world_size: int
    lockstep: bool
    takes_bags: bool = False
    grows_by_default: bool = False
    hogwild: bool = False
    groups_ids: bool = False
    wire_dtype: torch.dtype | None = None
    joint: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Holds a joint call, in the words of errors, and the checks before it: who fails in them has skipped the call."""
    _tables: LiveTables[Any]

    def __init__(self) -> None:
        self.counts: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.num_steps, self.link = 0, LinkCounts()
        self.named: dict[str, Named] = {}
        self.machine, self.num_servers = 0, 1
        self._past = Traffic()

    @property
    def traffic(self) -> Traffic:
        """The counts of all tables, those that are gone included."""
        found = replace(self._past, steps=self.num_steps)
        for counts in list(self.counts.values()):
            found.add(counts)
        return found

    def traffic_of(self, table: str) -> Traffic:
        """The counts of a live table."""
        self._tables[table]
        return replace(self.counts[table])

    @abstractmethod
    def create(self, spec: TableSpec) -> None:
        """Allocate the rows of a table that this process owns and give them their first values. Joint.

        Before any other call with the name; every process makes the same tables in the same order.

        Raises:
            ConfigError: a live table has the name, there is no memory, or the mode cannot hold such a table.
            PartitionError: the book's parts do not fit the processes.
        """

    def policy_for(self, num_rows: int, table: str) -> Any:
        """The policy of a table without one, where DGL's graph in the job has one of that many ids; None elsewhere.

        Raises:
            PartitionError: several of DGL's policies have as many ids.
        """
        return None

    def table_names(self) -> list[str]:
        """Of all live tables."""
        self._tables.check_open()
        return sorted(self._tables)

    def reopen(self, table: str) -> None:
        """Note that this process asked again for a live table. Where ranks are in lockstep the next joint call shows
        whether all did.

        Raises:
            ConfigError: another process has made a new table of the name.
        """
        self.shard(table)

    def destroy(self, table: str) -> None:
        """Free a table; nothing where it is gone. Waits for no process, because the garbage collector may call it."""
        self._past.add(self.counts.pop(table, Traffic()))
        self._tables.pop(table, None)

    @abstractmethod
    def attach(self, table: str, rule: SparseRule) -> None:
        """Allocate the rule's state for the rows, at its first values: an optimizer is made. One at a time.

        Raises:
            ModeError: another optimizer trains the table.
        """

    @abstractmethod
    def detach(self, table: str) -> None:
        """Free the optimizer's state; nothing where there is none. Waits for no process, as ``destroy``."""

    def prefetch(self, table: str, ids: Tensor) -> None:
        """Start to fetch rows while the process goes on; the next pull of the table asks for the same ids. Joint.

        Modes that gain nothing by it return at once.

        Raises:
            ModeError: the rows of an earlier prefetch were not pulled.
        """
        self.shard(table)

    def will_train(self, asked: Sequence[tuple[str, Tensor]]) -> None:  # noqa: B027
        """Note that the next pull of tables asks for these ids, and that gradients may come back for them.

        Args:
            asked: Names with ids, shape (B,), memory that nobody changes.
        """

    @abstractmethod
    def pull(self, table: str, ids: Tensor) -> Tensor:
        """Copies of rows, shape (B, D), in request order, duplicates kept, where the table's rows lie. Joint.

        All pushes of this process that came before are in them, but for the staleness that the mode allows.
        """

    def pull_sums(self, table: str, bags: Bags) -> Tensor:
        """Sums of rows over bags, (G, D), in the table's accumulation dtype, where its rows lie. Joint.

        ``pull`` of each distinct id; rows that are all here are summed where they lie.
        """
        distinct, places = bags.distinct()
        rows = self.pull(table, distinct)
        self.counts[table].asked += len(bags.ids) - len(distinct)
        return bags.sums(rows, places)

    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """``pull`` of several tables, which may stand twice, in one exchange where the mode has exchanges. Joint."""
        return [self.pull(table, ids) for table, ids in asked]

    @abstractmethod
    def push(self, pushes: Sequence[Push]) -> None:
        """Apply the gradients of one step, at most one ``Push`` a table, each distinct row once. Joint.

        May return before the owners have applied them (``flush``); gradients count as consumed also where it raises.

        Raises:
            ModeError: a rule with state, and no ``attach``.
        """

    def square_of_gradients(self, pushes: Sequence[Push]) -> list[float]:
        """The square of the norm of the gradients of a step, merged: numbers whose exact sum it is. Joint.

        Ranks in lockstep share the step, others have each their own. Nothing is applied.
        """
        totals: list[float] = []
        for push in pushes:
            assert isinstance(push.grads, Tensor)
            totals += squares(merge(push.ids.to(push.grads.device), push.grads, push.merge)[1])
        return totals

    @abstractmethod
    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite the rows of distinct ids with values, (B, D); they are there when it returns. Joint.

        Optimizer state stays as it is. Where ranks write one id at once the highest rank wins.
        """

    @abstractmethod
    def read_state(self, table: str, name: str, ids: Tensor) -> Tensor:
        """Copies of rows of a piece of state, (B, D) or (B,), in request order, where the table's rows lie. Joint.

        All pushes of this process that came before are in them.
        """

    @abstractmethod
    def write_state(self, table: str, name: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite such rows of distinct ids, frozen ones too; they are there when it returns. Joint, as ``write``."""

    @abstractmethod
    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        """Keep rows and their state from every later push, or give them back; ``write`` still changes them. Joint.

        The ids of all ranks count.

        Raises:
            ModeError: processes update rows without asking their owner (kvstore mode with Hogwild).
        """

    @abstractmethod
    def reset(self, table: str, ids: Tensor) -> None:
        """Give rows, frozen ones too, and their state first values again; they are there when it returns. Joint.

        Pushes of this process that came before are applied before. The ids of all ranks count.

        Raises:
            ConfigError: the first values are no function of the id.
        """

    def grow(self, table: str, ids: Tensor) -> None:
        """Make rows of a growing table for keys that have none, repeats allowed. Joint; the keys of all ranks count.

        Raises:
            ModeError: the table does not grow, or the mode has no such tables.
            ConfigError: there is no room for them.
        """
        raise self._fixed(table)

    def contains(self, table: str, ids: Tensor) -> Tensor:
        """Whether each key of a growing table has a row, (B,) bool. Joint; errors as ``grow``."""
        raise self._fixed(table)

    def evict(self, table: str) -> np.ndarray:
        """Make a pass of a growing table's eviction; the ids that left on all ranks, ascending. Joint; errors as
        ``grow``."""
        raise self._fixed(table)

    def all_ids(self, table: str) -> np.ndarray:
        """The ids of all rows of a growing table, ascending, int64. Joint; errors as ``grow``."""
        raise self._fixed(table)

    def owns(self, table: str, ids: Tensor) -> Tensor:
        """Which keys of a growing table, (B,), this process stores, bool."""
        return torch.ones(len(ids), dtype=torch.bool)

    def _fixed(self, table: str) -> ModeError:
        return ModeError(f"table {table!r} does not grow; make it with num_embeddings=ge.growing(max_rows=...)")

    @abstractmethod
    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """As many numbers of each process, in the order of ranks; a barrier in every mode: all processes call it."""

    def votes(self, yes: int) -> int:
        """The sum of what the processes say, as of True and False; a barrier as ``gather``."""
        return sum(said for (said,) in self.gather([int(yes)]))

    def flush(self) -> None:
        """Return when everything that this process pushed is applied.

        Raises:
            GraphEmbError: an earlier push failed at its owner.
        """
        self._tables.check_open()

    def barrier(self) -> None:
        """Return when every process has come here; pushes still on their way need ``flush`` before.

        In kvstore mode rows of growing tables leave here, and what trainers pushed is applied before.
        """
        self._tables.check_open()

    @abstractmethod
    def shard(self, table: str) -> EmbeddingShard:
        """The rows that this process stores, not copied; all processes' shards together are the table.

        For reading state and for tests: writing to it goes past the single writer of a row.
        """

    def local_partition(self, table: str) -> Tensor:
        """The rows of this process, in kvstore mode of its machine, not copied: for reading."""
        return self.shard(table).weight

    @abstractmethod
    def in_reach(self, table: str) -> Reach:
        """The rows that models may change in place, without ``push``; none where handlers must see the changes."""

    def in_place(self, tables: Sequence[str]) -> AbstractContextManager[Any]:
        """A context, entered for each step, whose pulls and pushes are this process's own, also where ``lockstep``:
        on rows and state of all ranks, without locks. Joint; a ModeError where ranks share no rows (``hogwild``)."""
        return nullcontext()

    @abstractmethod
    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        """The pieces that this process saves, or with ``overwrite`` loads: disjoint, and over all processes the table.

        Between ``flush`` and ``barrier`` on one side and ``barrier`` on the other.

        Raises:
            ModeError: ``overwrite`` while prefetched rows would be out of date.
        """

    def changed_rows(self, table: str) -> ChangedRows:
        """Of a growing table those of ``rows`` that changed since ``GrowingRows.track``, and the ids that left."""
        shard = self.shard(table)
        assert isinstance(shard, GrowingShard)
        return ChangedRows.of(shard)

    @abstractmethod
    def close(self) -> None:
        """Free every table and leave the job. May be repeated.

        Raises:
            GraphEmbError: an earlier push failed, or a peer is gone; it is closed all the same.
        """
