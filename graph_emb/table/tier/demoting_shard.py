"""The rows of a growing table of which those that an eviction chose lie in a file, until a step uses them again.

Memory has the rows that the eviction leaves there, exactly; the file has the others, behind a cache of its pages. No
row is lost, so the table is that without an eviction: reads, state, checkpoints and the order of updates are the same.

Legend: B asked keys, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graph_emb.graph.hash_book import ids_of, keys_of
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.id_map import IdMap
from graph_emb.table.initializers import Zeros
from graph_emb.table.lazy_decay import DECAY, DECAYED
from graph_emb.table.places import RoomForRows, distinct_ids
from graph_emb.table.shard import WEIGHT
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.table.tier.cache import CacheStats
from graph_emb.table.tier.shard import TieredShard

MOVED_BYTES = 1 << 24
"""Of rows and state that leave memory at once."""


def growing_shard_for(spec: TableSpec, owner: int, room: RoomForRows | None = None) -> GrowingShard:
    """The rows of a growing table that one of its owners stores, where its placement wants them.

    Args:
        owner: Its number among the owners.
        room: Memory that others see too; None takes own memory.
    """
    return GrowingShard(spec, room) if spec.placement is None else DemotingShard(spec, owner, room)


class DemotingShard(GrowingShard):
    """``GrowingShard`` whose rows go to a file where they leave memory.

    Reads leave a row where it lies; whatever changes one brings it back first. The place of a row in the file is its
    number there, counted from ``max_rows`` on. A checkpoint is read into the file.

    Args:
        spec, room: As of ``GrowingShard``.
        owner: As of ``growing_shard_for``; it is part of the file's name.
    Raises:
        ConfigError, StorageError: as of ``TieredShard``, whose room on the disk is claimed before rows leave memory.
    """

    spaces = 2

    def __init__(self, spec: TableSpec, owner: int, room: RoomForRows | None = None) -> None:
        super().__init__(spec, room)
        self._size = self.growth.max_rows
        self._numbers = IdMap(self._size, f"table {spec.name!r}: rows in its file")  # by key
        self._filed_end, self._filed_free = 0, np.empty(0, np.int64)  # as of the places in memory
        fixed = replace(spec, growth=None, initializer=Zeros(), original_ids=None)
        self._tier = TieredShard(fixed, owner, self._size, sparse=True)

    @property
    def _file(self) -> TieredShard:
        """The rows in the file, beside the clocks of those in memory."""
        for name, kind in self.state_specs.items():
            if kind.kind == "table":
                self._tier.state[name] = self.state[name]
        return self._tier

    @property
    def num_filed(self) -> int:
        """Rows that lie in the file."""
        return self._filed_end - len(self._filed_free)

    @property
    def num_rows(self) -> int:
        return super().num_rows + self.num_filed

    def _filed(self) -> np.ndarray:
        """Their numbers, ascending, (R,)."""
        there = np.ones(self._filed_end, bool)
        there[self._filed_free] = False
        return np.flatnonzero(there)

    def all_places(self) -> np.ndarray:
        return np.concatenate([self.live, self._filed() + self._size])

    def contains(self, rows: Tensor) -> Tensor:
        return super().contains(rows) | torch.from_numpy(self._numbers.find(rows.numpy()) >= 0)

    # Between memory and the file

    def _columns(self) -> list[str]:
        """What a row has beside its weight."""
        return [name for name, kind in self.state_specs.items() if kind.kind != "table"]

    def _store(self, ids: np.ndarray, columns: Mapping[str, Tensor]) -> np.ndarray:
        """Put distinct rows into the file, the lowest free numbers first; their places, (R,)."""
        num, start = len(ids), self._filed_end
        numbers = np.concatenate([self._filed_free[:num], np.arange(start, start + num)])[:num]
        end = max(start, int(numbers[-1]) + 1)
        self._tier.claim(end)
        self._file.write_columns(torch.from_numpy(numbers), columns)  # an error has changed nothing here
        self._numbers.add(keys_of(ids), numbers)
        self._filed_free = self._filed_free[num:]
        self._filed_end = end
        places = numbers + self._size
        self._ids[places] = ids
        return places

    def _let_go(self, at: np.ndarray) -> None:
        for some in np.array_split(at, -(-len(at) * self.row_bytes() // MOVED_BYTES)):
            rows = torch.from_numpy(some)
            columns = {name: self.state[name].index_select(0, rows) for name in self._columns()}
            columns[WEIGHT] = self.places.weight.index_select(0, rows)
            places = self._store(self._ids[some], columns)
            self._uses[places] = self._uses[some]
            self._changes.set_marks(places, self._changes.marks(some))
            self._remove(some)

    def _bring(self, ids: np.ndarray) -> None:
        """Bring rows of distinct, ascending ids back into memory."""
        if not len(ids):
            return
        keys = keys_of(ids)
        numbers = self._numbers.find(keys)
        rows, places = torch.from_numpy(numbers), numbers + self._size
        weight, *state = (self._file.state_rows(name, rows) for name in (WEIGHT, *self._columns()))
        self.places.claim(self._end + max(0, len(ids) - len(self._free)))
        uses, marks = self._uses[places], self._changes.marks(places)
        self._numbers.remove(keys)
        self._filed_free = np.union1d(self._filed_free, numbers)
        self._make(ids, self.step, weight)
        at = self._map.find(keys)
        self.places.write_state(torch.from_numpy(at), dict(zip(self._columns(), state, strict=True)))
        self._uses[at] = uses
        self._changes.set_marks(at, marks)

    def _bring_keys(self, rows: Tensor) -> None:
        """``_bring`` of those keys, repeats allowed, whose rows lie in the file."""
        keys = rows.numpy()
        self._bring(distinct_ids(ids_of(keys[self._numbers.find(keys) >= 0])))

    def _admitted(self, ids: np.ndarray, times: np.ndarray) -> np.ndarray:
        filed = self._numbers.find(keys_of(ids)) >= 0
        self._bring(ids[filed])
        return super()._admitted(ids[~filed], times[~filed])

    def grow(self, rows: Tensor) -> None:
        super().grow(rows[torch.from_numpy(self._numbers.find(rows.numpy()) < 0)])

    def _made(self, rows: Tensor) -> Tensor:
        self._bring_keys(rows)
        return super()._made(rows)

    def _there(self, rows: Tensor) -> Tensor:
        self._bring_keys(rows)
        return super()._there(rows)

    def _halve(self, times: int) -> None:
        super()._halve(times)
        self._count[self._size : self._size + self._filed_end] >>= times

    # Reading

    def _missing(self, ids: np.ndarray, decay: float | None) -> Tensor:
        numbers = self._numbers.find(keys_of(ids))
        filed, absent = np.flatnonzero(numbers >= 0), np.flatnonzero(numbers < 0)
        found = self.places.weight.new_empty((len(ids), self.spec.dim))
        if len(filed):
            found[torch.from_numpy(filed)] = self._file.read(torch.from_numpy(numbers[filed]), decay)
        if len(absent):
            found[torch.from_numpy(absent)] = super()._missing(ids[absent], decay)
        return found

    def prefetch(self, rows: Tensor) -> None:
        numbers = self._numbers.find(rows.numpy())
        if (filed := numbers >= 0).any():
            self._tier.prefetch(torch.from_numpy(numbers[filed]))

    def state_rows(self, name: str, rows: Tensor) -> Tensor:
        found, numbers = super().state_rows(name, rows), torch.from_numpy(self._numbers.find(rows.numpy()))
        filed = numbers >= 0
        found[filed] = self._file.state_rows(name, numbers[filed])
        return found

    def saved_state(self) -> dict[str, Tensor]:
        state, rows = self.places.saved_state(), self.in_order()
        filed = rows >= self._size
        here, numbers = rows.where(~filed, 0), rows[filed] - self._size
        for name in self._columns():
            now = state[name]
            state[name] = now.index_select(0, here)
            as_read = name == DECAYED  # as if no row lacked any decay
            state[name][filed] = now[:1].expand(len(numbers)) if as_read else self._file.state_rows(name, numbers)
        return state

    def column_at(self, column: str, places: Tensor) -> Tensor:
        filed = places >= self._size
        if column.startswith("growth.") or not filed.any():
            return super().column_at(column, places)
        found = super().column_at(column, places.where(~filed, 0))
        numbers = places[filed] - self._size
        if column == WEIGHT:
            found[filed] = self._file.peek(numbers)
        elif column != DECAYED:
            found[filed] = self._file.state_rows(column, numbers)
        return found

    def settle(self, rows: Tensor | None = None) -> None:
        super().settle(rows)
        if self.lazy:
            numbers = self._filed() if rows is None else self._numbers.find(rows.numpy())
            self._file.settle(torch.from_numpy(numbers[numbers >= 0]))

    # State

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        wanted = list(specs)
        super().allocate_state(wanted)
        try:
            self._tier.allocate_state(wanted)
        except BaseException:
            super().free_state()
            raise

    def hold_state(self, specs: Mapping[str, StateSpec], state: Mapping[str, Tensor]) -> None:
        self._tier.hold_state(specs, state)

    def free_state(self) -> None:
        super().free_state()
        self._tier.free_state()

    def num_bytes(self) -> int:
        return super().num_bytes() + self._numbers.num_bytes()

    # Checkpoints

    def clear(self, step: int) -> None:
        super().clear(step)
        self._numbers.remove(keys_of(self._ids[self._filed() + self._size]))
        self._filed_free = np.arange(self._filed_end)

    def restore(
        self,
        ids: np.ndarray,
        weight: Tensor,
        state: Mapping[str, Tensor],
        uses: np.ndarray | None = None,
        last: np.ndarray | None = None,
    ) -> None:
        if not len(ids):
            return
        columns = {WEIGHT: weight, **state}
        for name in self._columns():
            if name not in state:
                kind = self.state_specs[name]
                value = float(self.state[DECAY]) if name == DECAYED else kind.initial
                columns[name] = torch.full(kind.shape(len(ids), self.spec.dim), value, dtype=self.state[name].dtype)
        places = self._store(ids, columns)
        self._count[places] = 0 if uses is None else uses
        self._last[places] = self.step if last is None else last

    # The file

    def cache_stats(self) -> CacheStats:
        return self._tier.cache_stats()

    def flush(self) -> None:
        """Write every page that the file lacks; a second call writes nothing."""
        self._tier.flush()

    def drop_cache(self) -> None:
        """Let every page of the file leave memory."""
        self._tier.drop_cache()

    def saved_to(self, checkpoint: str) -> None:
        self._tier.saved_to(checkpoint)
