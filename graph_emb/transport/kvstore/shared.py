"""Rows in DGL's shared memory: the first server of a machine makes them, the others and the trainers map them.

A name leaves the file system as soon as every process has mapped it, so that nothing remains however the processes end.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.left_behind import SHARED_MEMORY, shared_name
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import StateSpec, TableSpec


def open_segment(name: str, shape: tuple[int, ...], dtype: torch.dtype, what: str, *, create: bool) -> Tensor:
    """Shared memory as a tensor; new memory is all zeros.

    Args:
        what: The words with which an error names it.
    Raises:
        ConfigError: the host's shared memory has no room; nothing of it is kept.
    """
    from graph_emb.compat.dgl import load

    load()
    from dgl._ffi.ndarray import empty_shared_mem
    from dgl.base import DGLError

    num_bytes = max(1, math.prod(shape) * dtype.itemsize)
    if create:
        _reserve(name, num_bytes, f"{what}, shape {shape} of {dtype},")
    try:
        memory = empty_shared_mem(name, create, (num_bytes,), "uint8")
    except DGLError as error:
        if create:
            forget_name(name)
        raise ConfigError(
            f"{what}: cannot map {num_bytes:,} bytes of shared memory: {str(error).splitlines()[0]}"
        ) from None
    data = torch.utils.dlpack.from_dlpack(memory.to_dlpack())
    return data[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def open_state(
    table: TableSpec, num_rows: int, specs: Iterable[StateSpec], names: Mapping[str, str], *, create: bool
) -> dict[str, Tensor]:
    """Pieces of an optimizer's state: mapped (all or none), or, of a per-table clock, this process's own."""
    state: dict[str, Tensor] = {}
    try:
        for spec in specs:
            shape, dtype = spec.shape(num_rows, table.dim), spec.dtype_beside(table.dtype)
            if spec.kind == "table":
                state[spec.name] = torch.full(shape, spec.initial, dtype=dtype)
            else:
                what = f"table {table.name!r}: {spec.name}"
                state[spec.name] = open_segment(names[spec.name], shape, dtype, what, create=create)
    except Exception:
        for name in names.values() if create else ():
            forget_name(name)
        raise
    return state


def _reserve(name: str, num_bytes: int, what: str) -> None:
    """Make the file with all of its pages: a page that finds no room at its first touch ends the process by SIGBUS."""
    file = os.open(SHARED_MEMORY / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        if num_bytes > shutil.disk_usage(SHARED_MEMORY).free:  # filling all that is free would only disturb others
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        forget_name(name)
        raise _no_room(what, num_bytes, error) from None
    finally:
        os.close(file)


def _no_room(what: str, num_bytes: int, error: OSError) -> ConfigError:
    free = shutil.disk_usage(SHARED_MEMORY).free
    return ConfigError(
        f"{what} takes {num_bytes:,} bytes of shared memory, but {free:,} are free in {SHARED_MEMORY} "
        f"({error.strerror}); enlarge it (docker run --shm-size=8g, where 64 MB are the default, or "
        f"mount -o remount,size=8g {SHARED_MEMORY}) or use more machines"
    )


class SparseRows:
    """Rows of a growing table in shared memory: ``max_rows`` for each server of a machine, which claims its own.

    Pages take memory when a server claims them, so that one that finds no room is an error and no SIGBUS.

    Args:
        table: Its name, for errors.
        servers: Of the machine.
        mine: The server that makes rows, among these; None: a trainer, which reads all.
        create: Make the memory; else it is there.
    Attributes:
        weight: The rows that this process makes, or all, (R, D).
    Raises:
        ConfigError: the system gives no such room.
    """

    CLAIMED = 4 << 20
    """Bytes that are claimed at once at least."""

    def __init__(
        self, name: str, spec: TableSpec, servers: int, *, mine: int | None = None, create: bool = False
    ) -> None:
        assert spec.growth is not None
        rows, self._what = spec.growth.max_rows, f"table {spec.name!r}"
        self._row_bytes = spec.dim * spec.dtype.itemsize
        num_bytes = servers * rows * self._row_bytes
        self._first, self._end = (mine or 0) * rows * self._row_bytes, num_bytes
        self._claimed = self._first
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR if create else os.O_RDWR
        self._file = os.open(SHARED_MEMORY / name, flags, 0o600)
        try:
            if create:
                os.ftruncate(self._file, num_bytes)
            mapped = np.frombuffer(mmap.mmap(self._file, num_bytes), np.uint8)
        except (OSError, OverflowError, ValueError) as error:
            if create:
                forget_name(name)
            raise ConfigError(
                f"{self._what}: cannot map {num_bytes:,} bytes of shared memory ({error}); use a smaller max_rows"
            ) from None
        weight = torch.from_numpy(mapped).view(spec.dtype).view(servers * rows, spec.dim)
        if mine is not None:
            weight, self._end = weight[mine * rows : (mine + 1) * rows], self._first + rows * self._row_bytes
        self.weight = weight

    def claim(self, num_rows: int) -> None:
        """As ``RoomForRows.claim``."""
        wanted = self._first + num_rows * self._row_bytes
        if wanted <= self._claimed:
            return
        stop = min(self._end, max(wanted, self._claimed + self.CLAIMED))
        try:
            if stop - self._claimed > shutil.disk_usage(SHARED_MEMORY).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(self._file, self._claimed, stop - self._claimed)
        except OSError as error:
            raise _no_room(f"{self._what}: {num_rows:,} rows:", stop - self._claimed, error) from None
        self._claimed = stop

    def __del__(self) -> None:
        if "_file" in self.__dict__:
            os.close(self._file)


def forget_name(name: str) -> None:
    """Take a segment's name out of the file system; those who mapped it keep it."""
    (SHARED_MEMORY / name).unlink(missing_ok=True)


class SharedShard(EmbeddingShard):
    """A shard over memory that is there already, (rows, D), filled."""

    def __init__(self, spec: TableSpec, first_id: int, weight: Tensor) -> None:
        self.spec, self.first_id, self.weight = spec, first_id, weight
        self.free_state()

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        """Refused: the server allocates (``Transport.attach``)."""
        raise ModeError(f"table {self.spec.name!r}: state in kvstore mode is made by attach(), on the servers")

    def narrow(self, low: int, high: int) -> SharedShard:
        """The rows [low, high) with their state, sharing memory; per-table state is shared whole."""
        part = SharedShard(self.spec, self.first_id + low, self.weight[low:high])
        state = {
            name: tensor if self.state_specs[name].kind == "table" else tensor[low:high]
            for name, tensor in self.state.items()
        }
        if self.attached:
            part.hold_state(self.state_specs, state)
        part.frozen = None if self.frozen is None else self.frozen[low:high]
        return part


SMALLEST = 1 << 24
"""Bytes of a first push buffer."""
LINE = 64  # bytes; every row block starts on a cache line


class Place(NamedTuple):
    """Where a server of this machine finds ids and gradients: offsets in the sender's push buffer, in bytes."""

    ids_at: int
    grads_at: int
    num_rows: int
    width: int
    dtype: torch.dtype


def at(memory: Tensor, place: Place) -> tuple[Tensor, Tensor]:
    """The ids (S,) and gradients (S, D) at a place, sharing memory."""
    return (
        _view(memory, place.ids_at, (place.num_rows,), torch.int64),
        _view(memory, place.grads_at, (place.num_rows, place.width), place.dtype),
    )


def _view(memory: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


class PushBuffer:
    """Shared memory that is filled from the front and emptied as a whole, when a flush said that all was read.

    Attributes:
        name: Of the shared memory, until the servers have mapped it.
        memory: Its bytes.
        used: Bytes in use; 0 empties it.
        last: The place that was reserved last.
    """

    def __init__(self, num_bytes: int) -> None:
        self.name = shared_name()
        self.memory = open_segment(self.name, (num_bytes,), torch.uint8, "the push buffer", create=True)
        self.used = 0
        self.last = Place(0, 0, 0, 0, torch.float32)

    @staticmethod
    def size_for(num_rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of a buffer that holds several pushes of this size."""
        return max(SMALLEST, 1 << (4 * _bytes(num_rows, width, dtype)).bit_length())

    def fits(self, num_rows: int, width: int, dtype: torch.dtype) -> bool:
        return self.used + _bytes(num_rows, width, dtype) <= len(self.memory)

    def reserve(self, num_rows: int, width: int, dtype: torch.dtype) -> Place:
        """Room for a push; the caller asked ``fits`` before."""
        grads_at = self.used + _lines(num_rows * 8)
        self.last = Place(self.used, grads_at, num_rows, width, dtype)
        self.used += _bytes(num_rows, width, dtype)
        return self.last

    def lend(self, ids: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``reserve``, with the ids copied in: see ``graph_emb.transport.push_packing.PushMemory``."""
        there, out = at(self.memory, self.reserve(len(ids), width, dtype))
        return there.copy_(ids), out


def _lines(num_bytes: int) -> int:
    return -(-num_bytes // LINE) * LINE


def _bytes(num_rows: int, width: int, dtype: torch.dtype) -> int:
    return _lines(num_rows * 8) + _lines(num_rows * width * dtype.itemsize)
