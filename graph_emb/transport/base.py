"""What a transport does: it decides where (ids, gradients) meet the shard that owns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from graph_emb.core.names import Rank
from graph_emb.optim.merge import Merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport.rows import TableRows


class Push(NamedTuple):
    """The gradients of one table in one step.

    Attributes:
        table: The table's name.
        ids: Checked partition-order ids, shape (B,), int64, repeats allowed.
        grads: Shape (B, D), floating.
        rule: The arithmetic, with the numbers of this step.
        merge: The treatment of duplicates.
        touched: Whether a backward reached the table on this rank. Where the mode is in lockstep, tables that no
            backward reached are pushed too, with no rows, because another rank may have touched them.
    """

    table: str
    ids: Tensor
    grads: Tensor
    rule: SparseRule
    merge: Merge
    touched: bool = True


class Reach(NamedTuple):
    """The rows of a table that a process may change in place: those that only it writes, and in Hogwild those that
    others of its machine write too.

    Attributes:
        first_id: The id of row 0.
        weight: The rows, (R, D), not a copy.
        frozen: Whether any of them must not change.
    """

    first_id: int
    weight: Tensor
    frozen: bool


@dataclass
class Traffic:
    """What a process that shares tables with others asked for and sent, since the start.

    Attributes:
        asked: Ids asked for, repeats counted.
        distinct: Ids asked for, each once a pull.
        local: Distinct ids whose rows it reads without asking anybody.
        bytes_sent: Ids, rows and gradients sent to other ranks or machines.
        steps: Pushes.
    """

    asked: int = 0
    distinct: int = 0
    local: int = 0
    bytes_sent: int = 0
    steps: int = 0

    @property
    def local_share(self) -> float:
        """The share of distinct ids that did not travel."""
        return self.local / self.distinct if self.distinct else 1.0


class Transport(Protocol):
    """Creates tables, pulls rows to the trainer and pushes gradients to the owners.

    Attributes:
        mode: The word that ``init`` takes.
        rank: This process.
        world_size: Processes that share the tables.
        lockstep: True where every rank must call pull and push the same number of times.
    """

    mode: str
    rank: Rank
    world_size: int
    lockstep: bool

    def create(self, spec: TableSpec) -> None: ...
    def destroy(self, table: str) -> None: ...
    def attach(self, table: str, rule: SparseRule) -> None: ...
    def detach(self, table: str) -> None: ...
    def prefetch(self, table: str, ids: Tensor) -> None: ...
    def pull(self, table: str, ids: Tensor) -> Tensor: ...
    def push(self, pushes: Sequence[Push]) -> None: ...
    def write(self, table: str, ids: Tensor, values: Tensor) -> None: ...
    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None: ...
    def votes(self, yes: bool) -> int: ...
    def flush(self) -> None: ...
    def barrier(self) -> None: ...
    def shard(self, table: str) -> EmbeddingShard: ...
    def in_reach(self, table: str) -> Reach: ...
    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]: ...
    def close(self) -> None: ...
