"""The memory of a growing table's rows, at the places that its map gives, and the counts of their uses.

Legend: R rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.threads import SERIAL_ROWS, threads_for
from graph_emb.table.id_map import reserved
from graph_emb.table.initializers import fill_rows_at_
from graph_emb.table.row_memory import prefetch
from graph_emb.table.selection import row_norms
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import StateSpec, TableSpec

AHEAD = 12  # rows whose counts are asked for before they are needed
NORMS = 1 << 14  # rows that are read at a time for their norms: they stay in the cache


def sparse(shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Zeros that take memory where they are written."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = torch.from_numpy(np.frombuffer(reserved(num_bytes, what), np.uint8))
    return memory[:num_bytes].view(dtype).view(shape)


class RoomForRows(Protocol):
    """Memory of ``max_rows`` rows that is claimed as rows are made.

    Attributes:
        weight: Zeros where no row was, (max_rows, D).
    """

    weight: Tensor

    def claim(self, num_rows: int) -> None:
        """Be sure of the memory of the first rows; a ConfigError where there is none, and nothing has changed."""


class Places(EmbeddingShard):
    """The memory of ``max_rows`` rows, at positions that the map gives; nothing is filled before a row is made.

    Args:
        room: Where the rows lie; None: in memory of this process.
    """

    def __init__(self, spec: TableSpec, num_rows: int, ids: np.ndarray, room: RoomForRows | None = None) -> None:
        self.spec, self.first_id, self._ids, self._room = spec, 0, ids, room
        self.weight = sparse((num_rows, spec.dim), spec.dtype, f"table {spec.name!r}") if room is None else room.weight
        self._norms: np.ndarray | None = None  # of each place, as of the step _norms_at; 0: not known
        self._norms_at = 0
        self.free_state()

    def claim(self, num_rows: int) -> None:
        """Be sure of the memory of the first rows, before one of them is made."""
        if self._room is not None:
            self._room.claim(num_rows)

    def original_ids(self, rows: Tensor) -> np.ndarray:
        return self._ids[rows.cpu().numpy()]

    def norms(self, live: Callable[[], np.ndarray], last: np.ndarray, step: int) -> np.ndarray:
        """The Euclidean norms of the rows at all first places, (P,), float64; anything where there is none.

        They are kept, so that the next call reads but the rows that changed.

        Args:
            live: Gives the places of rows that are there, (R,); rows whose decay is lazy are taken one by one.
            last: The last step that used each place, (P,).
            step: The table's.
        """
        if not self.lazy and self.weight.dtype in (torch.float32, torch.float64):
            if self._norms is None:
                self._norms = sparse((self.num_rows,), torch.float64, f"table {self.spec.name!r}: norms").numpy()
            known = self._norms[: len(last)]
            row_norms(self.weight[: len(last)].numpy(), known, last, self._norms_at)
            self._norms_at = step
            return known
        found, at = np.zeros(len(last)), live()
        for begin in range(0, len(at), NORMS):
            some = at[begin : begin + NORMS]
            norms, unused = np.zeros(len(some)), np.zeros(len(some), np.uint32)
            row_norms(self.read(torch.from_numpy(some)).double().numpy(), norms, unused, 0)
            found[some] = norms
        return found

    @property
    def keeps_norms(self) -> bool:
        """Whether ``norms`` has kept any, 8 bytes a place."""
        return self._norms is not None

    def wrote(self, rows: Tensor) -> None:
        super().wrote(rows)
        if self._norms is not None:
            self._norms[rows.numpy()] = 0.0

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        self.check_free()
        wanted = {spec.name: spec for spec in specs}
        fresh = {}
        for name, spec in wanted.items():
            shape, dtype = spec.shape(self.num_rows, self.spec.dim), spec.dtype_beside(self.weight.dtype)
            fresh[name] = sparse(shape, dtype, f"table {self.spec.name!r}: {name}")
            if spec.kind == "table":
                fresh[name].fill_(spec.initial)
        self.hold_state(wanted, fresh)

    def begin(self, at: np.ndarray, ids: np.ndarray, values: Tensor | None, start: int) -> None:
        """Give rows at the places ``at``, (R,), ascending, what they begin with; places from ``start`` on are new.

        Args:
            ids: Of the rows, (R,).
            values: (R, D); None: first values.
        """
        rows = torch.from_numpy(at)
        if len(at) and at[-1] - at[0] == len(at) - 1:
            self._fill(self.weight[int(at[0]) : int(at[-1]) + 1], ids, values)
        else:
            made = self.weight.new_empty((len(at), self.spec.dim)) if values is None else values
            if values is None:
                self._fill(made, ids, None)
            self.weight.index_copy_(0, rows, made)
        self.begin_state(rows, start)

    def _fill(self, weight: Tensor, ids: np.ndarray, values: Tensor | None) -> None:
        if values is None:
            fill_rows_at_(self.spec.initializer, weight, ids, ids, None)
        else:
            weight.copy_(values)

    def begin_state(self, rows: Tensor, start: int) -> None:
        """Give rows, (R,), the state that they begin with; that of places from ``start`` on is zeros."""
        for name, tensor in self.state.items():
            spec = self.state_specs[name]
            if spec.kind != "table":
                used = rows if spec.initial else rows[rows < start]
                tensor.index_fill_(0, used, spec.initial)
        self.wrote(rows)


def count_uses(at: np.ndarray, uses: np.ndarray, step: int, times: np.ndarray | None = None) -> None:
    """Count a step's uses of each of the places, (B,), that is none of -1.

    Args:
        uses: Of each place its last step, and in the lower 32 bits how often it was used; changed.
        times: How often the step uses each, (B,); None: once, however often a place stands among them.
    """
    if times is not None:
        _use_each(at, times, uses, np.uint64(step))
        return
    if len(at) < SERIAL_ROWS:
        _use_some(at, uses, np.uint64(step), 0, len(at))
        return
    with threads_for(len(at)) as parts:
        _use(at, uses, np.uint64(step), parts)


def distinct_ids(ids: np.ndarray) -> np.ndarray:
    """The distinct ones of ids, ascending: for some thousands a sort takes less time than ``np.unique``."""
    ids = np.sort(ids)
    return ids[np.concatenate([np.ones(min(len(ids), 1), bool), ids[1:] != ids[:-1]])]


def used_ids(ids: np.ndarray, times: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of ids, (B,), ascending, and how often a step uses each; ``times`` as of ``count_uses``."""
    distinct = distinct_ids(ids)
    if times is None:
        return distinct, np.ones(len(distinct), np.int64)
    uses = np.zeros(len(distinct), np.int64)
    np.add.at(uses, np.searchsorted(distinct, ids), times)
    return distinct, uses


@njit(cache=True, nogil=True)
def _use_each(at: Any, times: Any, uses: Any, step: Any) -> None:
    """Count the step so many times for each row; by one thread, since a row may stand in the shares of several."""
    most = np.uint64(0xFFFFFFFF)
    for i in range(len(at) + AHEAD):
        if i < len(at) and at[i] >= 0:
            prefetch(uses, at[i])
        k = i - AHEAD
        if k >= 0 and at[k] >= 0:
            uses[at[k]] = step << np.uint64(32) | min(most, (uses[at[k]] & most) + np.uint64(times[k]))


@njit(cache=True, nogil=True)
def _use_some(at: Any, uses: Any, step: Any, low: Any, high: Any) -> None:
    """Count a step for each row that it uses, once; a new row is one that was made for this step."""
    for i in range(low, high + AHEAD):
        if i < high and at[i] >= 0:
            prefetch(uses, at[i])
        k = i - AHEAD
        if k >= low and at[k] >= 0:
            word = uses[at[k]]
            last, count = word >> np.uint64(32), word & np.uint64(0xFFFFFFFF)
            if last != step or count == 0:
                # Of two threads that find the old word both write the same new one, and none counts twice.
                uses[at[k]] = step << np.uint64(32) | (count + np.uint64(1))


@njit(parallel=True, cache=True, nogil=True)
def _use(at: np.ndarray, uses: np.ndarray, step: np.uint64, parts: int) -> None:
    num = len(at)
    for part in prange(parts):
        _use_some(at, uses, step, part * num // parts, (part + 1) * num // parts)
