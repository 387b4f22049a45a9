"""``DistEmbedding`` of a table that grows: any int64 id, rows made at the first gradient, eviction, slots.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.hash_book import ids_of
from graph_emb.graph.partition_book import Ids, check_ids
from graph_emb.optim.rule import ROW_COUNT, ROW_STEP, RowCounts
from graph_emb.table.bags import Bags
from graph_emb.table.growing_rows import GrowingRows
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.growth import Eviction, Growth, Missing, OnEvict, SeenAtLeast
from graph_emb.table.initializers import FromArray, FromFunction, OwnerInitializer
from graph_emb.table.neighbour_mean import NeighbourMean
from graph_emb.transport import runtime

MOST_ROWS = 1 << 28
"""Rows that a table may have which grows because ``use_dynamic_expansion`` says so: address space for as many."""


def growing(max_rows: int, missing: Missing = "first") -> Growth:
    """What ``DistEmbedding`` takes in the place of a number of rows: a table of any int64 ids that grows.

    Args:
        max_rows: Rows of the whole table, over all ranks; more are an error. Address space is reserved for as many,
            memory is taken as rows are made.
        missing: What an id without a row reads as: ``"first"``, its first value; ``"zeros"``; or ``"error"``. Gradients
            make its row in every case, which begins with its first value.
    """
    return Growth(max_rows, missing)


@dataclass(frozen=True, eq=False)
class Slots:
    """Where the rows of a look-up lie, for ``optimizer.apply_gradients``; of ``GrowingEmbedding.lookup`` alone.

    Attributes:
        table: That was asked.
        keys: Of its ids, (B,).
        places: Of the rows that lie in this process, (B,), -1 for none; None where owners look, who may be others.
        epoch: The table's passes of eviction until then.
    """

    table: GrowingEmbedding
    keys: Tensor
    places: np.ndarray | None
    epoch: int

    def __len__(self) -> int:
        return len(self.keys)

    def checked(self) -> Slots:
        """These slots; a ConfigError where rows may have left them, or they are not those of their ids."""
        shard = self.table.shard
        if self.epoch != shard.epoch:
            raise ConfigError(
                f"table {self.table.name!r}: the slots of {len(self)} ids are stale: rows were evicted "
                f"{shard.epoch - self.epoch} times since lookup(); look the ids up again"
            )
        if self.places is not None:
            assert isinstance(shard, GrowingShard)
            if self.places.shape != (len(self),) or self.places.dtype != np.int64:
                raise ConfigError(f"table {self.table.name!r}: slots were changed; take them from lookup(ids) alone")
            shard.check_places(self.keys, self.places)
        return self


class GrowingEmbedding(DistEmbedding):
    """What ``ge.DistEmbedding(ge.growing(max_rows=...), ...)`` makes: a table whose rows are made as ids come.

    Ids are any int64, none reserved. Reading makes no row: an id without one reads as its first value, a function of
    (seed, id), on whatever rank. The owner makes a row in the step of the first admitted gradient. Rows, state and the
    ids that have one are the same for any number of ranks and threads; in kvstore mode where no row is pushed by two
    trainers in one step, and all come to a barrier after each: rows leave at barriers alone there.

    Args:
        num_embeddings: ``ge.growing(...)``; a number after ``ge.init(use_dynamic_expansion=True)``, where it bounds
            nothing: the table may have ``MOST_ROWS``.
        embedding_dim, name, init_func, dtype: As ``DistEmbedding``; first values must be functions of the id.
        part_policy: ``ge.HashPolicy(num_parts)``; None: one part, which all ranks share evenly; or a policy of
            ``partition``, whose ids are positions in the input: those live with its owners, others go by their hash.
            No row depends on it.
        admission: ``ge.SeenAtLeast(uses)``; None: the first gradient makes a row.
        eviction: ``ge.Unused``, ``LeastRecent``, ``LeastUsed`` or ``SmallNorm``; None: rows stay.
        on_evict: ``"drop"``: rows that leave are gone, and their ids begin anew. ``"demote"``: they go to a file with
            their state and come back when a step uses them: the eviction says how many stay in memory, and no row or
            score depends on it.
        placement: With ``"demote"``, ``ge.File(folder, memory=...)``: where rows lie that left, and how many bytes of
            memory the pages last read of them may take. Not counted are the rows that stay, and 40 to 50 bytes an id.
    Raises:
        ConfigError: an argument that growing tables do not take, or ``hogwild=True``.
    Example:
        >>> item = ge.DistEmbedding(ge.growing(max_rows=1000), 2, "item", admission=ge.SeenAtLeast(2))
        >>> opt = ge.SparseSGD([item], lr=1.0)
        >>> for ids in ([7, -5], [7]):  # two steps: 7 is used twice, -5 once
        ...     item(torch.tensor(ids)).sum().backward()
        ...     opt.step()
        >>> item.ids().tolist(), item.num_rows, item(torch.tensor([7, -5])).tolist()
        ([7], 1, [[-1.0, -1.0], [0.0, 0.0]])
    """

    def __init__(
        self,
        num_embeddings: Growth | int,
        embedding_dim: int,
        name: str | None = None,
        init_func: Any = None,
        part_policy: Any = None,
        *,
        admission: SeenAtLeast | None = None,
        eviction: Eviction | None = None,
        on_evict: OnEvict = "drop",
        **options: Any,
    ) -> None:
        if type(num_embeddings) is int and runtime.current().grows_by_default:
            num_embeddings = growing(max(num_embeddings, MOST_ROWS))
        if not isinstance(num_embeddings, Growth):
            raise ConfigError(f"num_embeddings={num_embeddings!r} must be ge.growing(max_rows=...) for a growing table")
        for option in ("original_ids", "bounds"):
            if option in options:
                raise ConfigError(f"{option}={options[option]!r:.80}: a growing table has every id, and it is original")
        super().__init__(
            replace(num_embeddings, admission=admission, eviction=eviction, on_evict=on_evict),  # type: ignore[arg-type]
            embedding_dim,
            name,
            init_func,
            part_policy,
            **options,
        )
        first = self.spec.initializer
        if isinstance(first, (FromArray, FromFunction, OwnerInitializer)):
            raise ConfigError(
                f"table {self.name!r}: init_func is {type(first).__name__}, which has no values for ids that come; use "
                "Uniform, Normal, XavierUniform, or None for zeros, and emb.grow(ids, rows) for rows that are known"
            )

    @property
    def shard(self) -> GrowingRows:
        shard = super().shard
        assert isinstance(shard, GrowingRows)
        return shard

    @property
    def num_rows(self) -> int:
        """Rows that are there, of all ranks. In collective mode every rank asks."""
        with self.transport.joint(f"ids of table {self.name!r}"):
            return len(self.transport.all_ids(self.name))

    def ids(self) -> Tensor:
        """The ids of all rows, ascending, int64, the same on every rank. In collective mode every rank asks."""
        with self.transport.joint(f"ids of table {self.name!r}"):
            return torch.from_numpy(self.transport.all_ids(self.name))

    def contains(self, ids: Ids) -> Tensor:
        """Whether each id has a row, bool, of the shape of ids. In collective mode every rank asks."""
        with self.transport.joint(f"contains of table {self.name!r}"):
            keys = self.spec.checked_ids(ids)
            return self.transport.contains(self.name, keys.flatten()).view(keys.shape)

    def owned(self, ids: Tensor) -> Tensor:
        """Which ids, (B,), this process owns, bool."""
        return self.transport.owns(self.name, self.spec.checked_ids(ids))

    def grow(self, ids: Ids, values: Any = None) -> None:
        """Make rows for ids that have none, at once, whatever the admission. In collective mode every rank calls it.

        Args:
            ids: Any shape, repeats allowed.
            values: None: first values; ``ge.NeighbourMean(graph)``, the same graph on every rank; else rows for
                distinct ids, (B, D), which those with a row take as well.
        """
        if isinstance(values, NeighbourMean):
            known = self.ids().numpy()
            self.grow(ids)
            new = np.setdiff1d(self.ids().numpy(), known, assume_unique=True)  # of all ranks
            reached, rows = values.values(
                new, known, lambda asked: self.weight[torch.from_numpy(asked)].double().numpy()
            )
            mine = slice(None) if self.transport.rank == 0 or not self.transport.lockstep else slice(0)  # one writes
            self.weight[torch.from_numpy(reached[mine])] = torch.from_numpy(rows[mine]).to(self.dtype)
            return
        if values is not None:
            self.weight[ids] = values
            return
        with self.transport.joint(f"grow of table {self.name!r}"):
            self.transport.grow(self.name, self.spec.checked_ids(ids).flatten())

    def evict(self) -> Tensor:
        """Make a pass of the table's eviction now; the ids that left, ascending, the same on every rank.

        In collective and kvstore mode every rank calls it. Weight and state leave as one; an id that comes back begins
        anew, or after ``on_evict="demote"`` as it left.
        """
        with self.transport.joint(f"evict of table {self.name!r}"):
            return torch.from_numpy(self.transport.evict(self.name))

    def lookup(self, ids: Ids) -> tuple[Tensor, Slots]:
        """Rows of ids, (B, D), without a record for autograd, and the slots with which their gradients come back.

        ``optimizer.apply_gradients([(grads, slots)])`` is the step: it spares the second look-up of the ids, as
        training by address does elsewhere, and refuses slots that are stale or of another table.

        Args:
            ids: (B,), repeats allowed.
        """
        with self.transport.joint(f"pull of table {self.name!r}"), torch.no_grad():
            ids = check_ids(ids, None, self.name).flatten()
            rows = self(ids)
        keys, shard = self.spec.checked_ids(ids), self.shard
        here = None if self.transport.lockstep or not isinstance(shard, GrowingShard) else shard
        places = None if here is None else here.find(keys).copy()  # what is done to them changes no later look-up
        return rows, Slots(self, keys, places, shard.epoch)

    def pending(self) -> list[tuple[Tensor, Tensor]]:
        return [(torch.from_numpy(ids_of(keys.numpy())), grads) for keys, grads in super().pending()]

    def row_counts(self) -> RowCounts:
        """As ``DistEmbedding.row_counts``, of this process's rows in the ascending order of their ids."""
        state = self.shard.saved_state()
        if ROW_COUNT not in state:
            raise ConfigError(f"table {self.name!r}: no optimizer counts its rows; make one with count_rows=True")
        return RowCounts(0, state[ROW_COUNT], state[ROW_STEP])

    def sparse_grad(self) -> Tensor:
        raise ModeError(
            f"table {self.name!r} grows: its ids have no bound, so no sparse tensor has a size for them; use pending()"
        )

    def quantize(self, kind: str = "int8", name: str | None = None) -> Any:
        raise ModeError(f"table {self.name!r} grows: quantize a fixed table made of emb.weight[emb.ids()]")

    def _summed(
        self, bags: Bags, per_sample_weights: Tensor | None, device: torch.device | str, dtype: torch.dtype | None
    ) -> Tensor:
        """As ``DistEmbedding``'s, by torch, of the distinct ids, each pulled once unless occurrences count."""
        if self.spec.counts_occurrences:  # each has a gradient of its own
            distinct, places = bags.ids, torch.arange(len(bags.ids))
        else:
            distinct, places = torch.unique(bags.ids, return_inverse=True)
        rows = self(distinct, device, dtype)
        weights = None if per_sample_weights is None else per_sample_weights.flatten().to(rows.dtype)
        mode, starts = "mean" if bags.mean else "sum", bags.starts[:-1].to(rows.device)
        return F.embedding_bag(places.to(rows.device), rows, starts, mode=mode, per_sample_weights=weights)

    def __repr__(self) -> str:
        return f"GrowingEmbedding({self.name!r}, max_rows={self.num_embeddings}, {self.embedding_dim})"


def _rows_of(table: GrowingEmbedding, ids: np.ndarray) -> np.ndarray:
    found: np.ndarray = table.weight[torch.from_numpy(ids)].double().numpy()
    return found


DistEmbedding.kinds[Growth] = GrowingEmbedding


def checked_slots(given: Iterable[tuple[Tensor, Slots]]) -> tuple[list[tuple[Tensor, Slots]], list[str]]:
    """The pairs of ``apply_gradients`` and their tables, after a check of the slots.

    Args:
        given: Read once, such as ``zip(gradients, slots)``.
    Raises:
        ConfigError: no pairs, gradients that are no tensors, slots that are none or stale, or a table given twice.
    """
    try:
        pairs = [(grads, slots) for grads, slots in given]
    except (TypeError, ValueError):
        raise ConfigError("apply_gradients: pass pairs of gradients and slots, [(gradients, slots), ...]") from None
    names = []
    for grads, slots in pairs:
        if not isinstance(grads, torch.Tensor):
            raise ConfigError(f"apply_gradients: {grads!r:.60} is no tensor; leave out tables without a gradient")
        if not isinstance(slots, Slots):
            raise ConfigError(f"apply_gradients: {slots!r:.60} is no Slots; pass what emb.lookup(ids) returned")
        names.append(slots.checked().table.name)
    if len(set(names)) < len(names):
        raise ConfigError(f"apply_gradients: a table of {', '.join(names)} is given twice; join its gradients")
    return pairs, names
