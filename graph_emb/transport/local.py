"""One process owns every part: a pull is a read, a push is an update."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.names import Rank
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport.base import Push, Reach
from graph_emb.transport.rows import ShardRows, TableRows


class LocalTransport:
    """All rows of all tables in this process, whatever their partition book says."""

    mode = "local"
    rank = Rank(0)
    world_size = 1
    lockstep = False

    def __init__(self) -> None:
        self._shards: dict[str, EmbeddingShard] = {}
        self._attached: set[str] = set()
        self._closed = False

    def create(self, spec: TableSpec) -> None:
        """Allocate and initialise all rows of a table.

        Raises:
            ConfigError: a live table has the name already.
        """
        self._check_open()
        if spec.name in self._shards:
            old = self._shards[spec.name].spec
            raise ConfigError(
                f"a table {spec.name!r} of shape ({old.num_rows}, {old.dim}) is alive already; "
                "choose another name or drop the old DistEmbedding first"
            )
        self._shards[spec.name] = EmbeddingShard(spec, 0, spec.num_rows)

    def destroy(self, table: str) -> None:
        """Free a table with its state; a table that is gone already is fine."""
        self._shards.pop(table, None)
        self._attached.discard(table)

    def attach(self, table: str, rule: SparseRule) -> None:
        """Allocate the rule's state.

        Raises:
            ModeError: another optimizer trains the table.
        """
        if table in self._attached:
            raise ModeError(f"table {table!r} is trained by another optimizer; close() that one first")
        self.shard(table).allocate_state(rule.state_specs())
        self._attached.add(table)

    def detach(self, table: str) -> None:
        """Free the optimizer state of a table; a table that is gone already is fine."""
        if table in self._shards and table in self._attached:
            self._shards[table].free_state()
            self._attached.discard(table)

    def prefetch(self, table: str, ids: Tensor) -> None:
        """All rows are here already."""
        self.shard(table)

    def pull(self, table: str, ids: Tensor) -> Tensor:
        """Rows of checked ids, shape (B, D), in request order, duplicates kept."""
        shard = self.shard(table)
        return shard.read(ids.to(shard.weight.device))

    def push(self, pushes: Sequence[Push]) -> None:
        """Apply the gradients of one step at once, table after table."""
        for table, ids, grads, rule, merge, touched in pushes:
            if touched:
                shard = self.shard(table)
                device = shard.weight.device
                apply_update(rule, shard, ids.to(device), grads.to(device), merge)

    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite rows of checked distinct ids."""
        shard = self.shard(table)
        shard.write(ids.to(shard.weight.device), values.to(shard.weight.device))

    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        """Keep rows of checked ids from updates, or give them back."""
        self.shard(table).freeze(ids, frozen)

    def votes(self, yes: bool) -> int:
        """How many processes say yes: this one, or none."""
        self._check_open()
        return int(yes)

    def flush(self) -> None:
        """Nothing is ever pending here."""
        self._check_open()

    def barrier(self) -> None:
        """There is no other process to wait for."""
        self._check_open()

    def shard(self, table: str) -> EmbeddingShard:
        """The stored rows of a table.

        Raises:
            ModeError: no such table, or the transport was closed.
        """
        self._check_open()
        if table not in self._shards:
            raise ModeError(f"no table {table!r} here; live tables: {', '.join(sorted(self._shards)) or 'none'}")
        return self._shards[table]

    def in_reach(self, table: str) -> Reach:
        """The rows that this process may change in place: all."""
        shard = self.shard(table)
        return Reach(0, shard.weight, shard.frozen is not None)

    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        """All rows of a table, to be saved or, with ``overwrite``, loaded."""
        return [ShardRows(self.shard(table))]

    def close(self) -> None:
        """Free every table; later calls raise."""
        self._shards.clear()
        self._attached.clear()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ModeError("graph_emb was shut down; call graph_emb.init() and create the tables again")
