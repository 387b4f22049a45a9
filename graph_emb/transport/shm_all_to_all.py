"""all_to_all between ranks of one machine through memory that they map: no socket, no kernel buffer.

The memory has no name in any file system (memfd), so nothing is left behind however a rank ends.
Legend: W ranks.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError

_WRITTEN, _TOKEN, _BUFFERS, _READ, _LEFT, _HEAD = 0, 1, 2, 6, 7, 8
"""Numbers at the head of a control memory: exchanges written, token, descriptor and bytes of each of the two buffers,
exchanges read, whether the rank has left. After them: where the pieces for each rank begin, for each buffer."""
T = TypeVar("T")
ORDERED_STORES = ("x86_64", "amd64", "i386", "i686")
"""Machines whose cores see each other's stores in the order in which they were made."""
_LOOKS = 200  # one after the other, before the core is left to another process
_NAP, _SHARE = 1e-3, 1 / 32  # seconds between later looks: this share of the wait so far, at most so many
_FAREWELL = 5.0  # seconds that a rank waits for readers of what it wrote after an exchange that failed for itself
_LOOK = 0.25  # seconds of waiting between two looks whether the others live


def room_for(num_bytes: int) -> int:
    """The bytes from the beginning of a piece of several (``exchange_pieces``) to that of the next one."""
    return (num_bytes + 7) & ~7  # so that a view of any dtype may begin there


class SharedExchange:
    """Pieces for the others are laid into own memory, in two buffers by turns; the others copy them out.

    A rank writes a buffer again only after a later exchange has begun everywhere, when all have read it.

    Args:
        rank: This process.
        controls: The control memory of each rank, (W,).
        pids: The process of each rank, (W,).
        timeout: Seconds until a silent rank is an error.
    """

    def __init__(self, rank: int, controls: list[np.ndarray], pids: Sequence[int], timeout: float) -> None:
        self._rank, self._controls, self._pids, self._timeout = rank, controls, list(pids), timeout
        self._steps = 0
        self._own: list[mmap.mmap | None] = [None, None]
        self._descriptors = [-1, -1]
        self._mapped: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
        self._outgoing: np.ndarray | None = None

    @classmethod
    def open(cls, rank: int, world_size: int, gather: Any, timeout: float, *, wanted: bool) -> SharedExchange | None:
        """The exchange, or None where a rank cannot see the memory of another: other machines or containers.

        None, too, where a rank does not want it, or its cores may show a rank's stores in another order than it made
        them: all but x86. Every rank calls it, whatever it wants and whatever its cores are.
        """
        if not wanted or not hasattr(os, "memfd_create") or platform.machine().lower() not in ORDERED_STORES:
            gather(None)
            return None
        size = 8 * (_HEAD + 2 * world_size)
        descriptor, memory = new_memory(size)
        try:
            own = np.frombuffer(memory, np.int64)
            own[_TOKEN] = secrets.randbits(62)
            told = gather((os.getpid(), descriptor, int(own[_TOKEN])))
            if None in told:
                return None
            controls = [own if r == rank else _control(of_rank, size) for r, of_rank in enumerate(told)]
            if not all(gather(all(control is not None for control in controls))):
                return None
            gather(None)  # every rank has mapped all memory
        finally:
            os.close(descriptor)
        return cls(rank, [c for c in controls if c is not None], [pid for pid, _, _ in told], timeout)

    def outgoing(self, num_bytes: int) -> np.ndarray:
        """Memory for what the next exchange sends, (num_bytes,), uint8; it is not copied then.

        No rank still reads it: all have read what it held when the exchange before this one was written.
        """
        self._outgoing = np.frombuffer(self._block(self._steps % 2, num_bytes), np.uint8)[:num_bytes]
        return self._outgoing

    def exchange(self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int]) -> list[int]:
        """As ``torch.distributed.all_to_all_single(out, send, to_receive, to_send)`` for CPU tensors.

        Returns:
            The bytes that came from the other ranks, and those that left for them.
        Raises:
            RuntimeError: a rank is gone, left, or did not come in time.
            ConfigError: there is no room for what this rank sends.
        """
        width = (send if len(send) else out)[:1].numel() * send.element_size()
        starts, ends = (np.cumsum([0, *counts], dtype=np.int64) * width for counts in (to_send, to_receive))
        incoming = _bytes(out)
        self.exchange_pieces([[incoming[a:b]] for a, b in pairwise(ends.tolist())], _bytes(send), starts)
        own = self._rank
        return [int(at[-1] - at[own + 1] + at[own]) for at in (ends, starts)]

    def exchange_pieces(
        self, targets: Sequence[Sequence[np.ndarray]], outgoing: np.ndarray, starts: np.ndarray
    ) -> None:
        """Copy what each rank sends to memory in several places; errors as ``exchange``.

        Args:
            targets: Memory for the pieces of each rank, (W,), each (bytes,), uint8.
            outgoing: What this rank sends, uint8; a piece begins ``room_for`` the one before it after that one.
            starts: Where the bytes for each rank begin, and the end, (W + 1,).
        """
        turn = self._steps % 2
        laid, self._outgoing = self._outgoing, None
        if laid is not None and len(outgoing) and outgoing.ctypes.data == laid.ctypes.data:
            self._begins(turn)[:] = starts[:-1]
        else:
            self._write(turn, outgoing, starts)
        self._steps += 1
        self._controls[self._rank][_WRITTEN] = self._steps  # after the data: the cores keep the order of stores
        for rank, pieces in enumerate(targets):
            if rank == self._rank:
                begin, source = int(starts[rank]), outgoing
            else:
                self._wait(rank)
                if not any(map(len, pieces)):
                    continue
                begin, source = (
                    int(self._controls[rank][_HEAD + turn * len(targets) + self._rank]),
                    self._memory(rank, turn),
                )
            for piece in pieces:
                piece[:] = source[begin : begin + len(piece)]
                begin += room_for(len(piece))
        self._controls[self._rank][_READ] = self._steps

    def _write(self, turn: int, outgoing: np.ndarray, starts: np.ndarray) -> None:
        """Lay out the pieces for the others, one after the other, and note where each begins."""
        own = slice(int(starts[self._rank]), int(starts[self._rank + 1]))
        needed = len(outgoing) - (own.stop - own.start)
        memory = np.frombuffer(self._block(turn, needed), np.uint8)
        memory[: own.start] = outgoing[: own.start]
        memory[own.start : needed] = outgoing[own.stop :]
        begins = self._begins(turn)
        begins[:] = starts[:-1]
        begins[self._rank + 1 :] -= own.stop - own.start

    def _begins(self, turn: int) -> np.ndarray:
        """Where in a buffer the piece for each rank begins, (W,), as the others see it."""
        world_size = len(self._controls)
        return self._controls[self._rank][_HEAD + turn * world_size : _HEAD + (turn + 1) * world_size]

    def _block(self, turn: int, needed: int) -> mmap.mmap:
        """A buffer of at least ``needed`` bytes."""
        control, block = self._controls[self._rank], self._own[turn]
        if block is None or len(block) < needed:
            size = max(1 << 16, 2 * needed)
            try:
                descriptor, block = new_memory(size)
            except OSError as error:
                raise ConfigError(
                    f"rank {self._rank}: cannot share {size:,} bytes for an exchange of {needed:,}: {error.strerror}; "
                    "use smaller batches, fewer ranks, or a container with more memory"
                ) from None
            if self._descriptors[turn] >= 0:
                os.close(self._descriptors[turn])
            self._descriptors[turn] = descriptor
            self._own[turn] = block
            control[_BUFFERS + 2 * turn] = self._descriptors[turn]
            control[_BUFFERS + 2 * turn + 1] = len(block)
        return block

    def _memory(self, rank: int, turn: int) -> np.ndarray:
        """Another rank's buffer, mapped again when it has grown."""
        size = int(self._controls[rank][_BUFFERS + 2 * turn + 1])
        known = self._mapped.get((rank, turn))
        if known is None or known[0] != size:
            try:
                found = map_memory(self._pids[rank], int(self._controls[rank][_BUFFERS + 2 * turn]), size)
            except OSError as error:  # its descriptors went with it
                if self._controls[rank][_LEFT]:
                    raise RuntimeError(
                        f"rank {rank} (process {self._pids[rank]}) had left before this one read what it sent ({error})"
                    ) from error
                # it was killed after it wrote
                raise RuntimeError(f"rank {rank} (process {self._pids[rank]}) is gone ({error})") from error
            known = self._mapped[rank, turn] = (size, np.frombuffer(found, np.uint8))
        return known[1]

    def _wait(self, rank: int) -> None:
        control, looks, begun, looked = self._controls[rank], 0, 0.0, 0.0
        while control[_WRITTEN] < self._steps:
            looks += 1
            if looks < _LOOKS:
                continue
            now = time.monotonic()
            begun = begun or now
            time.sleep(min(_NAP, (now - begun) * _SHARE))
            gone = control[_LEFT] or (now - looked > _LOOK and not _lives(self._pids[rank]))
            if gone and control[_WRITTEN] < self._steps:  # asked again: it may have written, and left, since
                raise RuntimeError(f"rank {rank} (process {self._pids[rank]}) is gone")
            looked = now if now - looked > _LOOK else looked
            if now - begun > self._timeout:
                raise RuntimeError(f"rank {rank} (process {self._pids[rank]}) did not come for {self._timeout:g} s")

    def close(self) -> None:
        """Tell the others that this rank leaves; its memory goes when those that live have read it.

        It waits for them no longer than an exchange does; 5 seconds where its own last exchange failed, as those that
        this rank missed there may be stopped.
        """
        own = self._controls[self._rank]
        own[_LEFT] = 1
        deadline = time.monotonic() + (self._timeout if own[_READ] == self._steps else min(_FAREWELL, self._timeout))
        for rank, control in enumerate(self._controls):
            while control[_READ] < self._steps and not control[_LEFT] and time.monotonic() < deadline:
                if not _lives(self._pids[rank]):
                    break
                time.sleep(1e-3)
        for turn, descriptor in enumerate(self._descriptors):
            own[_BUFFERS + 2 * turn] = -1  # a late reader must not find another file under the number
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors = [-1, -1]
        self._mapped.clear()


class SharedAllToAll:
    """The exchange of a ``ProcessGroup`` by shared memory; tensors of other devices go the group's own way."""

    def __init__(self, memory: SharedExchange, group: Any) -> None:
        self._memory, self._group = memory, group
        self._elsewhere, self._pieces_elsewhere = group.exchange_into, group.exchange_pieces

    def exchange(self, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], what: str) -> Tensor:
        out = send.new_empty((sum(to_receive), *send.shape[1:]))
        self.exchange_into(out, send, to_send, to_receive, what)
        return out

    def exchange_into(
        self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], what: str
    ) -> None:
        if send.device.type != "cpu":
            self._elsewhere(out, send, to_send, to_receive, what)
        else:
            came, left = self._checked(what, lambda: self._memory.exchange(out, send, to_send, to_receive))
            self._group.link.bytes_in += came
            self._group.link.bytes_out += left

    def exchange_numbers(self, numbers: Tensor, what: str, *, large: bool = False) -> Tensor:
        # large or not, memory is copied both ways at once
        out, ones, begun = torch.empty_like(numbers), [1] * len(numbers), time.perf_counter()
        self._checked(what, lambda: self._memory.exchange(out, numbers, ones, ones))
        self._group.link.waited += time.perf_counter() - begun
        return out

    def exchange_pieces(
        self, targets: Sequence[Sequence[Tensor]], send: Tensor, to_send: Sequence[int], what: str
    ) -> None:
        if send.device.type != "cpu":
            self._pieces_elsewhere(targets, send, to_send, what)
            return
        starts, pieces = np.cumsum([0, *to_send], dtype=np.int64), [list(map(_bytes, one)) for one in targets]
        self._group.link.bytes_in += sum(room_for(len(piece)) for one in pieces for piece in one)
        self._group.link.bytes_out += send.nbytes
        self._checked(what, lambda: self._memory.exchange_pieces(pieces, _bytes(send), starts))

    def _checked(self, what: str, call: Callable[[], T]) -> T:
        if self._group.failed:
            self._group.check()
        try:
            return call()
        except RuntimeError as error:
            raise self._group.lost(error, what) from error
        except BaseException as error:  # no room, Ctrl-C: the others wait in this exchange
            self._group.fail(what, error)
            raise

    def outgoing(self, like: Tensor, num_rows: int) -> Tensor:
        shape = (num_rows, *like.shape[1:])
        num_bytes = math.prod(shape) * like.element_size()
        if like.device.type != "cpu" or not num_bytes:
            return like.new_empty(shape)
        return torch.from_numpy(self._memory.outgoing(num_bytes)).view(like.dtype).view(shape)


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def new_memory(size: int) -> tuple[int, mmap.mmap]:
    """Memory of ``size`` bytes without a name, all zeros, and the descriptor by which others map it.

    Raises:
        OSError: there is no room; left to the first touch of a page, that ends the process by SIGBUS.
    """
    descriptor = os.memfd_create("graph_emb", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def map_memory(pid: int, descriptor: int, size: int) -> mmap.mmap:
    """Memory that another process of this machine made."""
    file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def _control(told: tuple[int, int, int], size: int) -> np.ndarray | None:
    """Control memory of a rank, by its process, descriptor and token; None: on another machine, the token tells."""
    try:
        pid, descriptor, token = told
        found = np.frombuffer(map_memory(pid, descriptor, size), np.int64)
    except (OSError, TypeError, ValueError):
        return None
    return found if int(found[_TOKEN]) == token else None


def _lives(pid: int) -> bool:
    """Whether a process runs; a killed one whose parent has not looked yet does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
