"""The rows of a growing table that one process stores: made at the first admitted gradient, evicted as one with their
state.

Transports name ids of growing tables by keys (``graph_emb.graph.hash_book.key_of``), so that owners are ranges of keys
as they are ranges of ids elsewhere.

Legend: B asked keys, R live rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.hash_book import id_of
from graph_emb.table.growth import LeastUsed, TotalOf, leaving
from graph_emb.table.id_map import IdMap, reserved
from graph_emb.table.initializers import CHUNK_ELEMENTS, fill_rows_at_
from graph_emb.table.lazy_decay import DECAYED
from graph_emb.table.shard import WEIGHT, EmbeddingShard, RowCopy
from graph_emb.table.spec import StateSpec, TableSpec

MOST_CANDIDATES = 1 << 26
COUNTS = ("uses", "last")
"""What is counted of each row, and of each id that waits for one: steps that used it, and the last of them."""


def _sparse(shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Zeros that take memory where they are written."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = torch.from_numpy(np.frombuffer(reserved(num_bytes, what), np.uint8))
    return memory[:num_bytes].view(dtype).view(shape)


class Places(EmbeddingShard):
    """The memory of ``max_rows`` rows, at positions that the map gives; nothing is filled before a row is made."""

    def __init__(self, spec: TableSpec, num_rows: int, ids: np.ndarray) -> None:
        self.spec, self.first_id, self._ids = spec, 0, ids
        self.weight = _sparse((num_rows, spec.dim), spec.dtype, f"table {spec.name!r}")
        self.free_state()

    def original_ids(self, rows: Tensor) -> np.ndarray:
        return self._ids[rows.cpu().numpy()]

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        self.check_free()
        wanted = {spec.name: spec for spec in specs}
        fresh = {}
        for name, spec in wanted.items():
            shape, dtype = spec.shape(self.num_rows, self.spec.dim), spec.dtype_beside(self.weight.dtype)
            fresh[name] = _sparse(shape, dtype, f"table {self.spec.name!r}: {name}")
            if spec.kind == "table":
                fresh[name].fill_(spec.initial)
        self.hold_state(wanted, fresh)

    def begin(self, rows: Tensor, values: Tensor, start: int) -> None:
        """Give rows, (R,), ascending, their first values, and their state its own; those from ``start`` on are new."""
        self.weight.index_copy_(0, rows, values)
        for name, tensor in self.state.items():
            spec = self.state_specs[name]
            if spec.kind != "table":
                used = rows if spec.initial else rows[rows < start]  # fresh memory is zeros
                tensor.index_fill_(0, used, spec.initial)
        self.wrote(rows)


class GrowingShard(EmbeddingShard):
    """``EmbeddingShard`` of a table that grows. Its ``rows`` are keys, int64, any of which may be asked for.

    Reads make no row: an id without one reads as its first value. Rows are made by updates, one step's in ascending
    order of ids, and by ``grow``, ``write``, ``freeze`` and ``overwrite_state``.

    Attributes:
        places: The memory of the rows.
        step: Updates of the table so far.
        epoch: Counts the passes in which rows of any owner left: equal on all of them. Rows never move.
        evicted: The ids that left since ``take_evicted``.
    """

    grows = True

    def __init__(self, spec: TableSpec) -> None:
        growth = spec.growth
        assert growth is not None
        if spec.device.type != "cpu":
            raise ConfigError(
                f"table {spec.name!r}: device {spec.device}; growing tables lie in host memory, use 'cpu'"
            )
        self.spec, self.first_id, self.growth = spec, 0, growth
        what, size = f"table {spec.name!r}", growth.max_rows
        self._ids = np.frombuffer(reserved(8 * size, what), np.int64)[:size]
        self._last = np.frombuffer(reserved(4 * size, what), np.uint32)[:size]
        self._count = np.frombuffer(reserved(4 * size, what), np.uint32)[:size]
        self._map = IdMap(size, what)
        self._candidates = None if growth.admission is None else IdMap(MOST_CANDIDATES, f"{what}: candidates")
        self._end = 0  # of the places that have been used
        self._free = np.empty(0, np.int64)  # of them those that are empty now, ascending
        self.places = Places(spec, size, self._ids)
        self.step, self.epoch = 0, 0
        self.evicted: list[np.ndarray] = []

    # What the rows of other shards are attributes for.
    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """All places that have been used, (places, D), in the order in which rows were made."""
        return self.places.weight[: self._end]

    @property
    def state(self) -> dict[str, Tensor]:  # type: ignore[override]
        return self.places.state

    @property
    def state_specs(self) -> dict[str, StateSpec]:  # type: ignore[override]
        return self.places.state_specs

    @property
    def attached(self) -> bool:  # type: ignore[override]
        return self.places.attached

    @property
    def frozen(self) -> Tensor | None:  # type: ignore[override]
        return self.places.frozen

    @property
    def num_rows(self) -> int:
        """Rows that are there."""
        return self._end - len(self._free)

    @property
    def live(self) -> np.ndarray:
        """Their places, ascending, (R,)."""
        return np.setdiff1d(np.arange(self._end), self._free, assume_unique=True)

    def ids(self) -> np.ndarray:
        """Their ids, ascending, (R,), int64."""
        return np.sort(self._ids[self.live])

    def contains(self, rows: Tensor) -> Tensor:
        """Whether each key has a row, (B,) bool."""
        return torch.from_numpy(self._map.find(id_of(rows)) >= 0)

    def find(self, rows: Tensor) -> np.ndarray:
        """The place of each key's row, (B,), -1 where there is none."""
        return self._map.find(id_of(rows))

    def check_places(self, rows: Tensor, places: np.ndarray) -> None:
        """Raise a ConfigError unless each place, (B,), is that of the key's row, or -1."""
        ids = id_of(rows)
        inside = (places >= 0) & (places < self._end)
        wrong = ((places != -1) & ~inside) | (inside & (self._ids[np.where(inside, places, 0)] != ids))
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            raise ConfigError(
                f"table {self.spec.name!r}: slot {int(places[k])} is not that of id {int(ids[k])}; take slots from "
                "emb.lookup(ids) alone"
            )

    # Reading
    def read(self, rows: Tensor, decay: float | None = None) -> Tensor:
        ids = id_of(rows)
        at = self._map.find(ids)
        absent = np.flatnonzero(at < 0)
        if not len(absent):
            return self.places.read(torch.from_numpy(at), decay)
        out = self.places.weight.new_empty((len(ids), self.spec.dim))
        here = np.flatnonzero(at >= 0)
        out[torch.from_numpy(here)] = self.places.read(torch.from_numpy(at[here]), decay)
        out[torch.from_numpy(absent)] = self._missing(ids[absent])
        return out

    def _missing(self, ids: np.ndarray) -> Tensor:
        """What ids without a row read as, (B, D)."""
        if self.growth.missing == "error":
            raise PartitionError(
                f"table {self.spec.name!r}: id {int(ids[0])} has no row, and the table was made with missing='error'; "
                "emb.grow(ids) makes rows"
            )
        if self.growth.missing == "zeros":
            return self.places.weight.new_zeros((len(ids), self.spec.dim))
        return self._first_values(ids)

    def _first_values(self, ids: np.ndarray) -> Tensor:
        """The first values of ids, (B, D), in any order, repeats allowed."""
        distinct, place = np.unique(ids, return_inverse=True)
        values = self.places.weight.new_empty((len(distinct), self.spec.dim))
        step = max(1, CHUNK_ELEMENTS // self.spec.dim)
        for start in range(0, len(distinct), step):
            piece = distinct[start : start + step]
            fill_rows_at_(self.spec.initializer, values[start : start + step], piece, piece, None)
        return values if len(distinct) == len(ids) and (distinct == ids).all() else values[torch.from_numpy(place)]

    def read_into(self, rows: Tensor, out: Tensor) -> None:
        out.copy_(self.read(rows))

    def copy_of(
        self, rows: Tensor, others: Tensor | None = None, place: Tensor | None = None, out: Tensor | None = None
    ) -> RowCopy:
        found, num = self.read(rows), len(rows if place is None else place)
        made = found.new_empty((num, self.spec.dim)) if out is None else out
        return RowCopy(found, torch.arange(len(rows)), made, others, place)

    def state_rows(self, name: str, rows: Tensor) -> Tensor:
        state, at = self.state[name], torch.from_numpy(self._map.find(id_of(rows)))
        found = state.index_select(0, at.clamp(min=0))
        found[at < 0] = self.state_specs[name].initial
        return found

    def in_order(self) -> Tensor:
        """The places of the rows in the ascending order of their ids, (R,)."""
        live = self.live
        return torch.from_numpy(live[np.argsort(self._ids[live])])

    def saved_state(self) -> dict[str, Tensor]:
        """The state of the rows that are there, in the ascending order of their ids."""
        state, rows = self.places.saved_state(), self.in_order()
        kinds = self.state_specs
        return {k: v if kinds[k].kind == "table" else v.index_select(0, rows) for k, v in state.items()}

    def settle(self, rows: Tensor | None = None) -> None:
        if self.lazy:
            at = self.live if rows is None else self._map.find(id_of(rows))
            self.places.settle(torch.from_numpy(at[at >= 0]))

    # Making rows
    def begin_update(
        self, rows: Tensor, grads: Any, places: np.ndarray | None = None
    ) -> tuple[EmbeddingShard, Tensor, Any]:
        """The memory of the rows that a step changes, their positions in it, and their gradients.

        Admits ids, makes their rows, and counts the step.

        Args:
            places: What ``find`` told of the keys before, in this epoch; None: it is asked.
        Raises:
            ConfigError: there is no room for the new rows; the step has changed nothing then.
        """
        ids = id_of(rows)
        at = self._map.find(ids) if places is None else places
        if (at < 0).any():
            fresh = self._admitted(np.unique(ids[at < 0]))
            if len(fresh):
                self._make(fresh, self.step + 1)
                at = self._map.find(ids)
        self.step += 1
        _use(at, self._last, self._count, np.uint32(self.step))
        if (at >= 0).all():
            return self.places, torch.from_numpy(at), grads
        kept = torch.from_numpy(np.flatnonzero(at >= 0))
        return self.places, torch.from_numpy(at)[kept], grads[kept.to(grads.device)]

    def _admitted(self, ids: np.ndarray) -> np.ndarray:
        """Those of distinct, ascending ids without a row, (R,), that get one in the coming step, which uses them."""
        rule, candidates = self.growth.admission, self._candidates
        if rule is None or candidates is None:
            return ids
        step = self.step + 1
        told = candidates.find(ids)  # uses, and the last step above them
        uses, last = told & 0xFFFFFFFF, told >> 32
        uses = np.where((told < 0) | (step - last > rule.candidate_steps), 0, uses) + 1
        enough = uses >= rule.uses
        self._check_room(int(enough.sum()))
        known = told >= 0
        candidates.remove(ids[known & enough])
        number = step << 32 | uses
        candidates.set(ids[known & ~enough], number[known & ~enough])
        candidates.add(ids[~known & ~enough], number[~known & ~enough])
        return ids[enough]

    def check_total(self, num_rows: int) -> None:
        """Raise a ConfigError where all owners together have more rows than the table may."""
        if num_rows > self.growth.max_rows:
            raise ConfigError(
                f"table {self.spec.name!r}: {num_rows} rows of all ranks exceed max_rows={self.growth.max_rows}; load "
                "the last checkpoint into a larger table, or give it an eviction"
            )

    def _check_room(self, num: int) -> None:
        if self.num_rows + num > self.growth.max_rows:
            raise ConfigError(
                f"table {self.spec.name!r}: {num} new ids beside {self.num_rows} rows exceed "
                f"max_rows={self.growth.max_rows}; save a checkpoint and load it into a larger table, or evict rows"
            )

    def _make(self, ids: np.ndarray, step: int, values: Tensor | None = None) -> None:
        """Make rows for distinct, ascending ids without one, (R,): the lowest free places first."""
        num, start = len(ids), self._end
        self._check_room(num)
        self._map.add(ids, at := np.concatenate([self._free[:num], np.arange(start, start + num)])[:num])
        self._free = self._free[num:]
        self._end = max(start, int(at[-1]) + 1) if num else start
        self._ids[at], self._last[at], self._count[at] = ids, step, 0
        if self._candidates is not None:
            waiting = ids[self._candidates.find(ids) >= 0]
            self._candidates.remove(waiting)
        rows = torch.from_numpy(at)
        self.places.begin(rows, self._first_values(ids) if values is None else values, start)
        if self.frozen is not None:
            self.frozen[rows] = False

    def grow(self, rows: Tensor) -> None:
        """Make rows for keys that have none, repeats allowed; admitted at once."""
        ids = np.unique(id_of(rows))
        self._make(ids[self._map.find(ids) < 0], self.step)

    def _made(self, rows: Tensor) -> Tensor:
        """The places of keys, (B,), whose rows are made where there are none."""
        self.grow(rows)
        return torch.from_numpy(self._map.find(id_of(rows)))

    # Writing
    def write(self, rows: Tensor, values: Tensor) -> None:
        self.places.write(self._made(rows), values)

    def wrote(self, rows: Tensor) -> None:
        raise AssertionError("places are written, not keys")

    def freeze(self, rows: Tensor, frozen: bool = True) -> None:
        self.places.freeze(self._made(rows) if frozen else self._there(rows), frozen)

    def reset(self, rows: Tensor, *, weight: bool = True) -> None:
        at = self._there(rows).unique()
        if weight:
            self.places.write(at, self._first_values(self._ids[at.numpy()]))
        self.places.reset(at, weight=False)

    def frozen_ids(self) -> np.ndarray:
        """The ids of frozen rows, ascending."""
        if self.frozen is None:
            return np.empty(0, np.int64)
        live = self.live
        return np.sort(self._ids[live[self.frozen[torch.from_numpy(live)].numpy()]])

    def _there(self, rows: Tensor) -> Tensor:
        """The places of those keys that have a row."""
        at = self._map.find(id_of(rows))
        return torch.from_numpy(at[at >= 0])

    def overwrite_state(self, name: str, rows: Tensor, values: Tensor) -> None:
        self.places.overwrite_state(name, self._made(rows), values)

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        self.places.allocate_state(specs)
        at = torch.from_numpy(self.live)
        self.places.begin(at, self.places.weight[at], 0)

    def free_state(self) -> None:
        self.places.free_state()

    def hold_state(self, specs: Mapping[str, StateSpec], state: Mapping[str, Tensor]) -> None:
        self.places.hold_state(specs, state)

    def num_bytes(self) -> int:
        """Bytes of the rows that are there with their state, of their numbers and of the map."""
        row = self.spec.row_bytes + 16
        for name, spec in self.state_specs.items():
            row += self.state[name][:1].numel() * self.state[name].element_size() if spec.kind != "table" else 0
        return self.num_rows * row + self._map.num_bytes()

    # Checkpoints
    def column_at(self, column: str, places: Tensor) -> Tensor:
        """Rows of the weight, a piece of state, or ``growth.uses`` and ``growth.last`` as a checkpoint has them."""
        if column == WEIGHT:
            return self.places.read(places)
        if column.startswith("growth."):
            counts = self._count if column == "growth.uses" else self._last
            return torch.from_numpy(counts[places.numpy()].astype(np.int64))
        found = self.state[column].index_select(0, places)
        return torch.zeros_like(found) if column == DECAYED else found

    def candidates(self) -> dict[str, np.ndarray]:
        """The ids that wait for a row, ascending, with their uses and last steps, (N,) int64 each."""
        ids, told = (np.empty(0, np.int64),) * 2 if self._candidates is None else self._candidates.items()
        return {"ids": ids, "uses": told & 0xFFFFFFFF, "last": told >> 32}

    def clear(self, step: int) -> None:
        """Give up all rows and candidates; the table has made ``step`` steps."""
        self._map.remove(self.ids())
        if self._candidates is not None:
            self._candidates.remove(self._candidates.items()[0])
        if self.frozen is not None:
            self.frozen[:] = False
        self._free = np.arange(self._end)
        self.evicted.clear()
        self.step, self.epoch = step, self.epoch + 1

    def restore(
        self,
        ids: np.ndarray,
        weight: Tensor,
        state: Mapping[str, Tensor],
        uses: np.ndarray | None = None,
        last: np.ndarray | None = None,
    ) -> None:
        """Make rows of distinct ids without one, (R,), ascending, as a checkpoint has them."""
        self._make(ids, self.step, weight)
        at = self._map.find(ids)
        self.places.write_state(torch.from_numpy(at), state)
        self._count[at] = 0 if uses is None else uses
        self._last[at] = self.step if last is None else last

    def restore_candidates(self, ids: np.ndarray, uses: np.ndarray, last: np.ndarray) -> None:
        """Let distinct ids wait for a row; those of a table that admits every id do not."""
        if self._candidates is not None:
            self._candidates.add(ids, last << 32 | uses)

    # Eviction
    def norms(self) -> np.ndarray:
        """The Euclidean norm of each live row, (R,), float64."""
        values = self.places.read(torch.from_numpy(self.live)).double()
        return values.square().sum(dim=1).sqrt().numpy()

    @property
    def last(self) -> np.ndarray:
        return self._last[self.live]

    @property
    def count(self) -> np.ndarray:
        return self._count[self.live]

    def after_step(self, total_of: TotalOf) -> None:
        """What policies do after a step: halve counts, forget candidates, evict. Every owner calls it."""
        rule, admission = self.growth.eviction, self.growth.admission
        if isinstance(rule, LeastUsed) and rule.half_life and self.step % rule.half_life == 0:
            self._count[: self._end] >>= 1
        if self._candidates is not None and admission and self.step % admission.candidate_steps == 0:
            ids, told = self._candidates.items()
            self._candidates.remove(ids[self.step - (told >> 32) >= admission.candidate_steps])
        if rule is not None and self.step % rule.every == 0:
            self.evict(total_of)

    def evict(self, total_of: TotalOf) -> np.ndarray:
        """Make a pass of the table's eviction; the ids of this owner that left, ascending. Every owner calls it.

        Raises:
            ConfigError: the table has no eviction.
        """
        if self.growth.eviction is None:
            raise ConfigError(f"table {self.spec.name!r} has no eviction; make it with eviction=ge.Unused(steps=...)")
        live = self.live
        free = np.ones(len(live), bool) if self.frozen is None else ~self.frozen[torch.from_numpy(live)].numpy()
        chosen, num = leaving(self.growth.eviction, self, self._ids[live], free, total_of)
        gone = live[chosen]
        ids = np.sort(self._ids[gone])
        self.epoch += num > 0
        if len(gone):
            self._map.remove(ids)
            self._free = np.union1d(self._free, gone)
            self.evicted.append(ids)
        return ids

    def take_evicted(self) -> np.ndarray:
        """The ids that left since the last call, in the order of the passes."""
        found = np.concatenate([np.empty(0, np.int64), *self.evicted])
        self.evicted.clear()
        return found


@njit(cache=True, nogil=True)
def _use(at: np.ndarray, last: np.ndarray, count: np.ndarray, step: np.uint32) -> None:
    """Count a step for each row that it uses, once; a new row is one that was made for this step."""
    for i in range(len(at)):
        row = at[i]
        if row >= 0 and (last[row] != step or count[row] == 0):
            last[row] = step
            count[row] += np.uint32(1)
