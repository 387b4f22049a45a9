"""``emb.kvstore``: the tables of a mode by name, with the words of DGL's ``KVClient``.

Legend: B ids, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError, ShapeError
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.graph.partition_book import Ids, as_book, as_ids, check_ids
from graph_emb.table.initializers import initializer_for
from graph_emb.table.spec import TableSpec
from graph_emb.transport.base import Named, Transport
from graph_emb.weight import Weight

ROLE = "default"
"""DGL's word for a trainer; its samplers have no tables."""


@dataclass(frozen=True)
class _OpenTable:
    """A live table as its weight knows it."""

    spec: TableSpec
    transport: Transport
    part_policy: Any
    kvstore: Any


class NamedStore:
    """Rows by name and id in every mode; further attributes are those of ``emb.transport``.

    In collective mode every rank makes the same calls in the same order, as with any other.

    Attributes:
        client_id, role, machine_id: This trainer, ``"default"``, and the machine that it runs on.
        num_servers: Processes that own rows, of all machines.
    """

    role = ROLE

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.client_id, self.machine_id = int(transport.rank), transport.machine
        self.num_servers = transport.num_servers

    def __getattr__(self, word: str) -> Any:
        if word.startswith("_"):
            raise AttributeError(word)
        return getattr(self._transport, word)

    def push(self, name: str, id_tensor: Ids, data_tensor: Any) -> None:
        """Assign rows, (B, D), to distinct ids; in kvstore mode the table's push handler takes them where it has one.

        Raises:
            ModeError: no live table has the name.
            PartitionError, ShapeError: ids or rows do not fit the table.
        """
        pushed = getattr(self._transport, "push_data", None)  # kvstore mode, where handlers are
        if pushed is None:
            self._weight(name)[as_ids(id_tensor)] = data_tensor
        else:
            pushed(name, as_ids(id_tensor), torch.as_tensor(data_tensor))

    def pull(self, name: str, id_tensor: Ids) -> Tensor:
        """Copies of rows, (B, D), in request order; errors as ``push``."""
        return self._weight(name)[as_ids(id_tensor)]

    def init_data(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        part_policy: Any = None,
        init_func: Any = None,
        is_gdata: bool = True,
    ) -> None:
        """Make rows that live until ``delete_data``, such as ``<table>_sum`` of a push handler, on every trainer.

        Args:
            name: Free.
            shape: (rows, D).
            dtype: Floating.
            part_policy, init_func: As ``DistEmbedding``.
            is_gdata: Whether ``gdata_name_list`` names it.
        Raises:
            ConfigError: the name is taken, or the rows cannot be made.
            ShapeError: shape has not two numbers.
        """
        if len(shape) != 2:
            raise ShapeError(
                f"data {name!r} of shape {tuple(shape)}: pass (rows, width), (rows, 1) for one number a row"
            )
        num_rows, dim = shape
        ids = as_original_ids(None, part_policy, num_rows, name)
        book = as_book(part_policy, num_rows, name)
        first = initializer_for(init_func, num_rows, dim, name, ids)
        self._transport.create(TableSpec(name, num_rows, dim, book, first, dtype, original_ids=ids))
        self._transport.named[name] = Named(part_policy if part_policy is not None else book, True, is_gdata)

    def delete_data(self, name: str) -> None:
        """Free what ``init_data`` made; every trainer calls it.

        Raises:
            ConfigError: it is the table of a ``DistEmbedding``, which ends with its last object.
            ModeError: nothing live has the name.
        """
        if not self._named(name).by_name:
            raise ConfigError(f"data {name!r} is the table of a DistEmbedding; drop that one instead")
        self._transport.destroy(name)
        del self._transport.named[name]

    def data_name_list(self) -> list[str]:
        """The names of all live tables."""
        return self._transport.table_names()

    def gdata_name_list(self) -> list[str]:
        """Those that ``init_data`` made with ``is_gdata``."""
        return [name for name in self.data_name_list() if self._named(name).is_gdata]

    def get_data_meta(self, name: str) -> tuple[torch.dtype, tuple[int, int], Any]:
        """The dtype, the shape of the whole table, and the policy (a book where none was given)."""
        spec = self._transport.shard(name).spec
        return spec.dtype, (spec.num_rows, spec.dim), self._named(name).policy

    def get_partid(self, name: str, id_tensor: Ids) -> Tensor:
        """The part of the policy that owns each id, (B,), int64."""
        spec = self._transport.shard(name).spec
        return spec.book.owner(check_ids(id_tensor, spec.num_rows, name).flatten())

    def count_nonzero(self, name: str) -> int:
        """As ``emb.weight.count_nonzero``."""
        return self._weight(name).count_nonzero()

    def register_push_handler(
        self, name: str, func: Callable[..., None] | None, merge: Literal["none"] | None = None
    ) -> None:
        """As ``KVStoreTransport.register_push_handler``; a ModeError outside of kvstore mode."""
        self._handlers("push")(name, func, merge)

    def register_pull_handler(self, name: str, func: Callable[..., Tensor] | None) -> None:
        """As ``KVStoreTransport.register_pull_handler``; a ModeError outside of kvstore mode."""
        self._handlers("pull")(name, func)

    def _handlers(self, kind: str) -> Callable[..., None]:
        found: Callable[..., None] | None = getattr(self._transport, f"register_{kind}_handler", None)
        if found is None:
            raise ModeError(f"mode {self._transport.mode!r} has no {kind} handlers; use graph_emb.init(mode='kvstore')")
        return found

    def _named(self, name: str) -> Named:
        self._transport.shard(name)  # a ModeError names those that are alive
        return self._transport.named[name]

    def _weight(self, name: str) -> Weight:
        return Weight(_OpenTable(self._transport.shard(name).spec, self._transport, self._named(name).policy, self))
