"""Growing tables at a server: rows made by the pushes that it applies, in memory that its machine shares.

Only the server knows where the row of a key lies. Trainers of its machine ask for that, and read.

Every server hears of every push of a table, with no rows if need be, so that all count the same steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.core.left_behind import shared_name
from graph_emb.table.live_rows import ChangedRows, LiveRows
from graph_emb.table.selection import Sums
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.demoting_shard import growing_shard_for
from graph_emb.transport.kvstore.rpc import Answer
from graph_emb.transport.kvstore.server_table import Key, OwnedTable, Segments, ServerTable
from graph_emb.transport.kvstore.shared import SparseRows


class GrowingServerTable(OwnedTable):
    """A growing table at one server; ids are keys.

    Args:
        server: Whose table it is.
        owners: The digest of who owns what, the same for every trainer.
        segment: The name of the machine's rows, and the trainers that have not mapped them.
        room: This server's part of them.

    Attributes:
        grown: The rows of this server.
        settled: The step after which counts were halved and rows left last.
        told: At that time the step, the epoch and the number of rows: a trainer that goes on pushes while others ask.
    """

    def __init__(self, spec: TableSpec, server: int, owners: str, segment: Segments, room: SparseRows) -> None:
        self.spec, self.owners = spec, owners
        self.grown = growing_shard_for(spec, server, room)
        self.hold(self.grown, segment)
        self.settled = 0
        self.told = 0, 0, 0
        self.gone = np.empty(0, np.int64)  # in the last pass
        self.passing: Sums[np.ndarray] | None = None
        self.listed: LiveRows | None = None

    def rows(self, ids: Tensor) -> Tensor:
        return ids

    def settle(self) -> None:
        """Fix what is told until the next barrier."""
        self.settled = self.grown.step
        self.told = self.grown.step, self.grown.epoch, self.grown.num_rows

    @contextmanager
    def at_step(self, step: int | None) -> Iterator[None]:
        assert step is not None
        latest, self.grown.step = self.grown.step, step - 1
        try:
            yield
        finally:
            self.grown.step = max(latest, step)


class GrowingCalls:
    """The calls of trainers about growing tables; a part of ``Tables``."""

    _tables: dict[Key, ServerTable]
    _server: int
    _machine: range

    @abstractmethod
    def _agree(self, sender: int, opening: Key, key: Key) -> None: ...

    @abstractmethod
    def _table(self, key: Key) -> ServerTable: ...

    def _growing(self, key: Key) -> GrowingServerTable:
        table = self._table(key)
        assert isinstance(table, GrowingServerTable)
        return table

    def create_growing(
        self, sender: int, key: Key, spec: TableSpec, owners: str, trainers: set[int], segment: str | None
    ) -> Answer:
        """Make the table, without rows, in memory that is made or mapped; a repeated call finds it there."""
        self._agree(sender, key, key)
        table = self._tables.get(key)
        if table is None or segment not in (None, table.segments[0].names.get("")):  # as in ``create``
            create, name = segment is None, segment or shared_name()
            at = self._server - self._machine.start
            room = SparseRows(name, spec, len(self._machine), mine=at, create=create)
            segments = Segments({"": name}, set(trainers) if create else set())
            table = GrowingServerTable(spec, self._server, owners, segments, room)
            self._tables[key] = table
        mine = table.spec
        same = (mine.num_rows, mine.dim, mine.dtype) == (spec.num_rows, spec.dim, spec.dtype)
        if not (same and isinstance(table, GrowingServerTable) and table.owners == owners):
            raise ConfigError(
                f"table {mine.name!r}: trainer {sender} makes a growing one ({spec.num_rows}, {spec.dim}) of "
                f"{spec.dtype}, another one ({mine.num_rows}, {mine.dim}) of {mine.dtype}, or by another part_policy; "
                "make the same tables on every trainer"
            )
        table.users.setdefault(0, set()).add(sender)
        return Answer(table.segments[0].names)

    def find(self, sender: int, key: Key, ids: Tensor) -> Answer:
        """The place of each key's row, -1 for none, and what keys without one read as, in their order."""
        table = self._growing(key)
        at = torch.from_numpy(table.grown.places_of(ids))
        return Answer(None, at, table.read(ids[at < 0], None))

    def grow(self, sender: int, key: Key, ids: Tensor) -> None:
        """Make rows of keys that have none."""
        self._growing(key).grown.grow(ids)

    def contains(self, sender: int, key: Key, ids: Tensor) -> Answer:
        """Whether each key has a row, uint8."""
        return Answer(None, self._growing(key).grown.contains(ids).to(torch.uint8))

    def all_ids(self, sender: int, key: Key) -> Answer:
        """The ids of this server's rows."""
        return Answer(None, torch.from_numpy(self._growing(key).grown.ids()))

    def facts(self, sender: int, key: Key) -> Answer:
        """The table's step and epoch, and the number of this server's rows, at the last barrier or pass."""
        return Answer(self._growing(key).told)

    def end_steps(self, sender: int, key: Key) -> Answer:
        """Do what policies do after the steps since the last call, as ``evict`` does."""
        table = self._growing(key)
        table.passing = table.grown.ending(table.settled)
        table.settle()  # whatever fails, counts are not halved again
        return self.go_on(sender, key)

    def evict(self, sender: int, key: Key) -> Answer:
        """Make a pass of eviction: True with a vector whose sum over all servers ``go_on`` takes; False at the end."""
        table = self._growing(key)
        table.passing = table.grown.evicting()
        return self.go_on(sender, key)

    def go_on(self, sender: int, key: Key, total: Tensor | None = None) -> Answer:
        """Go on with what ``end_steps`` or ``evict`` began."""
        table = self._growing(key)
        assert table.passing is not None
        try:
            vector = next(table.passing) if total is None else table.passing.send(total.numpy())
            return Answer(True, torch.from_numpy(vector))
        except StopIteration as end:
            table.gone, table.passing = end.value, None
            table.settle()
            return Answer(False)

    def gone_ids(self, sender: int, key: Key) -> Answer:
        """The ids that left this server in the last pass."""
        return Answer(None, torch.from_numpy(self._growing(key).gone))

    def list_rows(self, sender: int, key: Key) -> Answer:
        """Fix which rows ``read_listed`` reads, all of this server; their ids, ascending."""
        table = self._growing(key)
        table.listed = LiveRows(table.grown)
        return Answer(None, torch.from_numpy(table.listed.ids))

    def list_changed(self, sender: int, key: Key) -> Answer:
        """``list_rows`` of the rows that changed since ``track``; also the ids that left, halvings and all rows."""
        table = self._growing(key)
        found = ChangedRows.of(table.grown)
        (table.listed,) = found.rows
        return Answer((found.halvings, found.total), torch.from_numpy(found.rows[0].ids), torch.from_numpy(found.gone))

    def track(self, sender: int, key: Key, checkpoint: str | None) -> None:
        """Know the changes from now on, the rows being those of a checkpoint."""
        self._growing(key).grown.track(checkpoint)

    def read_listed(self, sender: int, key: Key, column: str, start: int, stop: int) -> Answer:
        """Rows [start, stop) of a column, of those that ``list_rows`` told."""
        listed = self._growing(key).listed
        assert listed is not None
        return Answer(None, listed.read(column, start, stop).clone())

    def candidates(self, sender: int, key: Key) -> Answer:
        """The ids that wait for a row here, their uses and last steps."""
        return Answer(None, *map(torch.from_numpy, self._growing(key).grown.candidates().values()))

    def frozen_ids(self, sender: int, key: Key) -> Answer:
        """The ids of this server's frozen rows."""
        return Answer(None, torch.from_numpy(self._growing(key).grown.frozen_ids()))

    def clear(self, sender: int, key: Key, step: int) -> None:
        """Give up all rows and candidates."""
        table = self._growing(key)
        table.grown.clear(step)
        table.settle()

    def restore(
        self, sender: int, key: Key, state: tuple[str, ...], ids: Tensor, weight: Tensor, *columns: Tensor
    ) -> None:
        """Make rows as a checkpoint has them: columns of the named state, then counts where there are some."""
        kept = dict(zip(state, columns, strict=False))
        counts = [column.numpy() for column in columns[len(state) :]]
        self._growing(key).grown.restore(ids.numpy(), weight, kept, *counts)

    def restore_candidates(self, sender: int, key: Key, ids: Tensor, uses: Tensor, last: Tensor) -> None:
        """Let ids wait for a row."""
        self._growing(key).grown.restore_candidates(ids.numpy(), uses.numpy(), last.numpy())


GROWING_CALLS = {
    *(
        "create_growing",
        "find",
        "grow",
        "contains",
        "all_ids",
        "facts",
        "end_steps",
        "evict",
        "go_on",
        "gone_ids",
    ),
    *(
        "list_rows",
        "list_changed",
        "track",
        "read_listed",
        "candidates",
        "frozen_ids",
        "clear",
        "restore",
        "restore_candidates",
    ),
}
"""All of them; each is answered."""
