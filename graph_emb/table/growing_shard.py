"""The rows of a growing table that one process stores: made at the first admitted gradient, evicted as one with their
state.

Transports name ids of growing tables by keys (``graph_emb.graph.hash_book.key_of``), so that owners are ranges of keys
as they are ranges of ids elsewhere.

Legend: B asked keys, R live rows, D width.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.hash_book import ids_of, keys_of
from graph_emb.table.candidates import Candidates
from graph_emb.table.changes import Changes
from graph_emb.table.growing_rows import GrowingRows, check_evicts
from graph_emb.table.growth import LeastUsed, leaving, times_counted
from graph_emb.table.id_map import IdMap, reserved
from graph_emb.table.initializers import fill_rows_at_
from graph_emb.table.lazy_decay import DECAYED
from graph_emb.table.look_ups import LookUps
from graph_emb.table.places import Places, RoomForRows, count_uses, distinct_ids, used_ids
from graph_emb.table.selection import Sums, TotalOf, marked_places, summed
from graph_emb.table.shard import WEIGHT, EmbeddingShard, RowCopy, lend
from graph_emb.table.spec import StateSpec, TableSpec


class GrowingShard(GrowingRows):
    """``EmbeddingShard`` of a table that grows. Its ``rows`` are keys, int64, any of which may be asked for.

    Reads make no row: an id without one reads as its first value. Rows are made by updates, one step's in ascending
    order of ids, and by ``grow``, ``write``, ``freeze`` and ``overwrite_state``.

    Attributes:
        spaces: How many times ``max_rows`` places there are.
        places: The memory of the rows.
        step: Updates of the table so far.
        epoch: Counts the passes in which rows of any owner left: equal on all of them. Rows never move.
        evicted: The ids that left in the last pass, ascending; none of them where an update came after it.
        since: The digest of the checkpoint since which changes are known (``track``); None: they are not.
    """

    spaces = 1

    def __init__(self, spec: TableSpec, room: RoomForRows | None = None) -> None:
        growth = spec.growth
        assert growth is not None
        if spec.device.type != "cpu":
            raise ConfigError(
                f"table {spec.name!r}: device {spec.device}; growing tables lie in host memory, use 'cpu'"
            )
        self.spec, self.first_id, self.growth = spec, 0, growth
        what, size = f"table {spec.name!r}", growth.max_rows
        spaces = size * self.spaces
        self._ids = np.frombuffer(reserved(8 * spaces, what), np.int64)[:spaces]
        # Of each row its last step, and below that how many steps used it: one word, which threads write as a whole.
        self._uses = np.frombuffer(reserved(8 * spaces, what), np.uint64)[:spaces]
        halves = self._uses.view(np.uint32).reshape(spaces, 2)
        self._count, self._last = (halves[:, k if sys.byteorder == "little" else 1 - k] for k in range(2))
        self._map = IdMap(size, what)
        self._candidates = None if growth.admission is None else Candidates(growth.admission, what)
        self._end = 0  # of the places that have been used
        self._free = np.empty(0, np.int64)  # of them those that are empty now, ascending
        self._look_ups = LookUps(self._map)
        self.places = Places(spec, size, self._ids, room)
        self.step, self.epoch = 0, 0
        self.evicted = np.empty(0, np.int64)
        self._changes = Changes(self._map, spaces, what)

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
        """The places of those in memory, ascending, (R,)."""
        return marked_places(self._has_row())

    def _has_row(self) -> np.ndarray:
        """Whether each place has a row, (places,), bool."""
        there = np.ones(self._end, bool)
        there[self._free] = False
        return there

    def all_places(self) -> np.ndarray:
        """The places of all, (R,)."""
        return self.live

    def ids(self) -> np.ndarray:
        """Their ids, ascending, (R,), int64."""
        return np.sort(self._ids[self.all_places()])

    def contains(self, rows: Tensor) -> Tensor:
        """Whether each key has a row, (B,) bool."""
        return torch.from_numpy(self._map.find(rows.numpy()) >= 0)

    def places_of(self, rows: Tensor) -> np.ndarray:
        """The place of each key's row, (B,), -1 where there is none."""
        return self._map.find(rows.numpy())

    def find(self, rows: Tensor) -> np.ndarray:
        """The place of each key's row, (B,), -1 where there is none; kept for the update that follows."""
        return self._look_ups.find(rows.numpy())

    def check_places(self, rows: Tensor, places: np.ndarray) -> None:
        """Raise a ConfigError unless each place, (B,), is that of the key's row, or -1."""
        ids = ids_of(rows.numpy())
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
        at = self.find(rows)
        absent = np.flatnonzero(at < 0)
        if not len(absent):
            return self.places.read(torch.from_numpy(at), decay)
        missing = self._missing(ids_of(rows.numpy()[absent]), decay)
        found = self.places.read(torch.from_numpy(np.maximum(at, 0)), decay)
        return found.index_copy_(0, torch.from_numpy(absent), missing)

    def _missing(self, ids: np.ndarray, decay: float | None) -> Tensor:
        """What ids without a row in memory read as, (B, D)."""
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
        values = self.places.weight.new_empty((len(ids), self.spec.dim))
        fill_rows_at_(self.spec.initializer, values, ids, ids, None)
        return values

    def read_into(self, rows: Tensor, out: Tensor) -> None:
        out.copy_(self.read(rows))

    def copy_of(
        self, rows: Tensor, others: Tensor | None = None, place: Tensor | None = None, out: Tensor | None = None
    ) -> RowCopy:
        at, num = self.find(rows), len(rows if place is None else place)
        made = lend((num, self.spec.dim), self.spec.dtype, self.spec.device) if out is None else out
        if self.lazy or (at < 0).any():
            return RowCopy(self.read(rows), torch.arange(len(rows)), made, others, place)
        return RowCopy(self.places.weight, torch.from_numpy(at), made, others, place)

    def state_rows(self, name: str, rows: Tensor) -> Tensor:
        state, at = self.state[name], torch.from_numpy(self._map.find(rows.numpy()))
        found = state.index_select(0, at.clamp(min=0))
        found[at < 0] = self.state_specs[name].initial
        return found

    def in_order(self) -> Tensor:
        """The places of the rows in the ascending order of their ids, (R,)."""
        places = self.all_places()
        return torch.from_numpy(places[np.argsort(self._ids[places])])

    def saved_state(self) -> dict[str, Tensor]:
        """The state of the rows that are there, in the ascending order of their ids."""
        state, rows = self.places.saved_state(), self.in_order()
        kinds = self.state_specs
        return {k: v if kinds[k].kind == "table" else v.index_select(0, rows) for k, v in state.items()}

    def settle(self, rows: Tensor | None = None) -> None:
        if self.lazy:
            at = self.live if rows is None else self._map.find(rows.numpy())
            self.places.settle(torch.from_numpy(at[at >= 0]))

    # Making rows
    def begin_update(
        self, rows: Tensor, grads: Any, places: np.ndarray | None = None, occurrences: Tensor | None = None
    ) -> tuple[EmbeddingShard, Tensor, Any]:
        """The memory of the rows that a step changes, their positions in it, and their gradients.

        Admits ids, makes their rows, and counts the step.

        Args:
            places: What ``find`` told of the keys before, in this epoch; None: it is asked.
            occurrences: For how many of the step's gradients each stands, (B,); None: for one.
        Raises:
            ConfigError: there is no room for the new rows; the step has changed nothing then.
        """
        keys, told = rows.numpy(), None if occurrences is None else occurrences.numpy()
        at = self._look_ups.recalled(keys) if places is None else places.copy()
        if len(absent := np.flatnonzero(at < 0)) and (self._look_ups.outdated or places is not None):
            at[absent] = self._map.find(keys[absent])
            absent = absent[at[absent] < 0]
        if len(absent):
            waiting, times = keys[absent], times_counted(self.growth.admission, len(keys), told)
            used = used_ids(ids_of(waiting), None if times is None else times[absent])
            self._make(self._admitted(*used), self.step + 1)
            at[absent] = self._map.find(waiting)
        self._look_ups.forget()
        self.evicted = self.evicted[:0]
        self.step += 1
        count_uses(at, self._uses, self.step, times_counted(self.growth.eviction, len(keys), told))
        if not len(absent) or (at >= 0).all():
            return self.places, torch.from_numpy(at), grads
        kept = torch.from_numpy(np.flatnonzero(at >= 0))
        return self.places, torch.from_numpy(at)[kept], grads[kept.to(grads.device)]

    def _admitted(self, ids: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Those of distinct, ascending ids without a row, (R,), that get one in the coming step.

        Args:
            times: How often that step uses each, (R,).
        """
        if self._candidates is None:
            return ids
        uses = self._candidates.used(ids, self.step + 1, times)
        enough = uses >= self._candidates.rule.uses
        self._check_room(int(enough.sum()))
        self._candidates.count(ids[~enough], uses[~enough], self.step + 1)
        return ids[enough]

    def _check_room(self, num: int) -> None:
        if self.num_rows + num > self.growth.max_rows:
            raise ConfigError(
                f"table {self.spec.name!r}: {num} new ids beside {self.num_rows} rows exceed "
                f"max_rows={self.growth.max_rows}; save a checkpoint and load it into a larger table, or evict rows"
            )
        self.places.claim(self._end + max(0, num - len(self._free)))

    def _make(self, ids: np.ndarray, step: int, values: Tensor | None = None) -> None:
        """Make rows for distinct, ascending ids without one, (R,): the lowest free places first."""
        num, start, keys = len(ids), self._end, keys_of(ids)
        if not num:
            return
        self._check_room(num)
        self._look_ups.outdated = True
        at = np.concatenate([self._free[:num], np.arange(start, start + num)])[:num]
        self.places.begin(at, ids, values, start)  # first: an initializer that lacks an id leaves no row
        self._map.add(keys, at)
        self._free = self._free[num:]
        self._end = max(start, int(at[-1]) + 1)
        self._ids[at], self._last[at], self._count[at] = ids, step, 0
        if self._candidates is not None:
            self._candidates.drop(keys)
        self._changes.mark(at)
        if self.frozen is not None:
            self.frozen[torch.from_numpy(at)] = False

    def grow(self, rows: Tensor) -> None:
        """Make rows for keys that have none, repeats allowed; admitted at once."""
        keys = rows.numpy()
        self._make(distinct_ids(ids_of(keys[self._map.find(keys) < 0])), self.step)

    def _made(self, rows: Tensor) -> Tensor:
        """The places of keys, (B,), whose rows are made where there are none, and are about to change."""
        self.grow(rows)
        at = self._map.find(rows.numpy())
        self._changes.mark(at)
        return torch.from_numpy(at)

    # Writing
    def write(self, rows: Tensor, values: Tensor) -> None:
        self.places.write(self._made(rows), values)

    def wrote(self, rows: Tensor) -> None:
        raise AssertionError("places are written, not keys")

    def freeze(self, rows: Tensor, frozen: bool = True) -> None:
        self.places.freeze(self._made(rows) if frozen else self._there(rows), frozen)

    def reset(self, rows: Tensor, *, weight: bool = True) -> None:
        at = self._there(rows).unique()
        self._changes.mark(at.numpy())
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
        at = self._map.find(rows.numpy())
        return torch.from_numpy(at[at >= 0])

    def overwrite_state(self, name: str, rows: Tensor, values: Tensor) -> None:
        self.places.overwrite_state(name, self._made(rows), values)

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        self.places.allocate_state(specs)
        self._changes.mark(self.live)
        self.places.begin_state(torch.from_numpy(self.live), self._end)

    def free_state(self) -> None:
        self._changes.mark(self.live)
        self.places.free_state()

    def hold_state(self, specs: Mapping[str, StateSpec], state: Mapping[str, Tensor]) -> None:
        self._changes.mark(self.live)
        self.places.hold_state(specs, state)

    def num_bytes(self) -> int:
        """Bytes of the rows that are there with their state, of their numbers and of the map."""
        norms = 8 * self._end if self.places.keeps_norms else 0
        return self.num_rows * (self.row_bytes() + 16) + norms + self._map.num_bytes()

    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        state = [self.state[name][:1] for name, spec in self.state_specs.items() if spec.kind != "table"]
        return self.spec.row_bytes + sum(one.numel() * one.element_size() for one in state)

    # Checkpoints
    def track(self, checkpoint: str | None) -> None:
        """Know the changes from now on: the rows are as the checkpoint of this digest has them; None: know none."""
        self._changes.track(checkpoint, self.step, self.all_places())

    @property
    def since(self) -> str | None:  # type: ignore[override]
        return self._changes.since

    def touched(self) -> Tensor:
        """The places of the rows that changed since ``track``, in the ascending order of their ids.

        Rows whose decay is lazy change in every step, all of them.
        """
        at = self.in_order().numpy()
        changed = self._changes.marks(at) | (self._last[at] > self._changes.step)
        return torch.from_numpy(at if self.lazy else at[changed])

    def gone(self) -> np.ndarray:
        """The ids that left since ``track`` and have no row, (N,), ascending."""
        return self._changes.gone()

    def halvings(self) -> int:
        """How often all counts were halved since ``track``."""
        half = self.growth.eviction.half_life if isinstance(self.growth.eviction, LeastUsed) else None
        return self.step // half - self._changes.step // half if half else 0

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
        none = np.empty(0, np.int64)
        return {"ids": none, "uses": none, "last": none} if self._candidates is None else self._candidates.items()

    def clear(self, step: int) -> None:
        """Give up all rows and candidates; the table has made ``step`` steps."""
        self._map.remove(keys_of(self._ids[self.live]))
        self._look_ups.forget()
        if self._candidates is not None:
            self._candidates.clear()
        if self.frozen is not None:
            self.frozen[:] = False
        self._free = np.arange(self._end)
        self.evicted = self.evicted[:0]
        self.step, self.epoch, self._changes.since = step, self.epoch + 1, None

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
        at = self._map.find(keys_of(ids))
        self.places.write_state(torch.from_numpy(at), state)
        self._count[at] = 0 if uses is None else uses
        self._last[at] = self.step if last is None else last

    def restore_candidates(self, ids: np.ndarray, uses: np.ndarray, last: np.ndarray) -> None:
        """Let distinct ids wait for a row; those of a table that admits every id do not."""
        if self._candidates is not None:
            self._candidates.restore(ids, uses, last)

    # Eviction
    def norms(self) -> np.ndarray:
        """See ``growth.Counted``."""
        return self.places.norms(lambda: self.live, self.last, self.step)

    @property
    def last(self) -> np.ndarray:
        return self._last[: self._end]

    @property
    def count(self) -> np.ndarray:
        return self._count[: self._end]

    def after_step(self, total_of: TotalOf) -> None:
        """Do what policies do after a step. Every owner calls it."""
        summed(self.ending(self.step - 1), total_of)

    def ending(self, since: int) -> Sums[np.ndarray]:
        """Halve counts, forget candidates and evict after the steps from ``since`` on; the ids that left, ascending."""
        rule = self.growth.eviction

        def periods(steps: int) -> int:
            return self.step // steps - since // steps

        if isinstance(rule, LeastUsed) and rule.half_life and (times := periods(rule.half_life)):
            self._halve(min(31, times))
        if self._candidates is not None and self.step > since:
            if periods(self._candidates.rule.candidate_steps):
                self._candidates.forget(self.step)
            yield from self._candidates.leaving()
        if rule is None or not periods(rule.every):
            return np.empty(0, np.int64)
        return (yield from self.evicting())

    def _halve(self, times: int) -> None:
        self._count[: self._end] >>= times

    def evict(self, total_of: TotalOf) -> np.ndarray:
        """Make a pass of the table's eviction; the ids of this owner that left, ascending. Every owner calls it.

        Raises:
            ConfigError: the table has no eviction.
        """
        return summed(self.evicting(), total_of)

    def evicting(self) -> Sums[np.ndarray]:
        """``evict`` in steps."""
        check_evicts(self.spec)
        assert self.growth.eviction is not None
        live = self._has_row()
        free = live if self.frozen is None else live & ~self.frozen[: self._end].numpy()
        chosen, num = yield from leaving(self.growth.eviction, self, self._ids[: self._end], live, free)
        ids = np.sort(self._ids[gone := marked_places(chosen)])
        self.epoch += num > 0
        if len(gone):
            self._let_go(gone)
        self.evicted = ids
        return ids

    def _let_go(self, at: np.ndarray) -> None:
        """Let the rows at places, (R,), ascending, leave the table."""
        self._remove(at)
        self._changes.left(self._ids[at])

    def _remove(self, at: np.ndarray) -> None:
        """Give up the places, (R,), ascending, of rows."""
        self._map.remove(keys_of(self._ids[at]))
        self._look_ups.forget()
        self._free = np.sort(np.concatenate([self._free, at]), kind="stable")  # merges what is in order
