"""Placements: where a table's rows lie, and how much memory they may take there. Plain data, and what it excludes.

A placement never changes a result: the same instructions meet the same numbers, wherever those lie in between.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.paths import user_path

if TYPE_CHECKING:
    import torch

AUTO: Final = "auto"
"""All rows in memory of the table's ``device``, as the mode has them."""
HOST: Final = "host"
"""All rows in memory of the processor."""
SHARED: Final = "shared"
"""All rows in memory of the processor, where the processes of a machine reach them."""
DEVICE: Final = "device"
"""All rows in memory of a GPU."""
WORDS = (AUTO, HOST, SHARED, DEVICE)

Policy = Literal["lru", "lfu", "lookahead"]
POLICIES: tuple[str, ...] = get_args(Policy)


@dataclass(frozen=True)
class Cached:
    """Rows in a lower tier of which ``memory`` holds a part: the base of ``File`` and ``DeviceCache``."""

    def _check(self, memory: int | str, policy: str) -> None:
        from graph_emb.core.settings import memory_bytes  # here: a launcher starts without pydantic

        object.__setattr__(self, "memory", memory_bytes(memory))
        if self.memory_bytes < 1:
            raise ConfigError(f"memory={memory!r} must be at least 1 byte")
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)

    @property
    def memory_bytes(self) -> int:
        """The budget of this process, bytes, optimizer state included."""
        return int(self.memory)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class File(Cached):
    """Rows and state in a file, of which each process that owns rows holds at most ``memory`` bytes.

    The file is scratch: it belongs to one run and goes with the table; what is to last goes into a checkpoint.

    Args:
        folder: Where the file lies: a fast local disk with room for the table and its state.
        memory: Of each process for this table, such as ``"4GiB"``: pages of rows with their state, the map of pages,
            and state of one value a row, which stays in memory.
        policy: Which page leaves: ``"lru"`` (CLOCK), ``"lfu"`` (counts that decay), ``"lookahead"`` (the one whose next
            use in the announced batches is farthest).
        leftover: What becomes of the table's file of a run that did not end: ``"refuse"`` raises and names the
            checkpoint to load, ``"remove"`` deletes it.
    Example:
        >>> import tempfile
        >>> place = ge.File(tempfile.mkdtemp(), memory="16KiB")
        >>> emb = ge.DistEmbedding(10_000, 8, init_func=ge.initializers.Uniform(seed=0), placement=place)
        >>> opt = ge.SparseAdagrad([emb], lr=0.1)  # 64 rows with their sums are a page of 4 KiB
        >>> for ids in ([1, 2, 500], [9_999, 4_000, 1], [7_000, 2, 5_000]):
        ...     emb(torch.tensor(ids)).sum().backward()
        ...     opt.step()
        >>> stats = emb.cache_stats()
        >>> stats.requested, stats.hits + stats.misses == stats.distinct, stats.dirty_writes > 0
        (18, True, True)
    """

    folder: str | os.PathLike[str]
    memory: int | str
    policy: Policy = "lru"
    leftover: Literal["refuse", "remove"] = "refuse"

    def __post_init__(self) -> None:
        self._check(self.memory, self.policy)
        if self.leftover not in ("refuse", "remove"):
            raise unknown_name("leftover", self.leftover, ("refuse", "remove"))
        object.__setattr__(self, "folder", os.fspath(self.folder))

    @property
    def path(self) -> Path:
        """The folder."""
        return user_path(self.folder)


@dataclass(frozen=True)
class Buckets(File):
    """A file whose rows come in and leave by parts of the table, in the order of a schedule of buckets.

    ``graph_emb.models.kge.training.train_kge`` has such a schedule; another loop calls ``emb.hold(ranges)``. Rows that
    the schedule did not foresee are read as from a ``File``.

    Args:
        folder, memory, policy, leftover: As of ``File``; policy is for rows that were not foreseen.
        parts: Of the table, as many rows each; memory must hold one of them.
    Example:
        >>> import tempfile
        >>> place = ge.Buckets(tempfile.mkdtemp(), memory="256KiB", parts=8)
        >>> emb = ge.DistEmbedding(10_000, 8, placement=place)  # 40 KB a part
        >>> emb.hold([(0, 1_250), (5_000, 6_250)])
    """

    parts: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 2:
            raise ConfigError(f"parts={self.parts!r} must be at least 2")


@dataclass(frozen=True)
class DeviceCache(Cached):
    """Rows and state in memory of the host, of which the table's ``device`` holds at most ``memory`` bytes.

    Args:
        memory: On the device, of each process for this table, such as ``"8GiB"``: rows with their state, and for all
            rows the state of one value a row, which stays on the device. The map of rows is on the host.
        policy: As of ``File``.
    Example:
        >>> place = ge.DeviceCache(memory="16KiB", policy="lfu")
        >>> emb = ge.DistEmbedding(10_000, 64, device="cpu", placement=place)  # "cuda" keeps the cache on a GPU
        >>> opt = ge.SparseAdagrad([emb], lr=0.1)  # 512 bytes a row: 28 of them on the device
        >>> for ids in ([1, 2, 500], [9_999, 4_000, 1]):
        ...     emb(torch.tensor(ids)).sum().backward()
        ...     opt.step()
        >>> emb.cache_stats().hit_rows  # the update of what was looked up, and id 1 again
        7
    """

    memory: int | str
    policy: Policy = "lru"

    def __post_init__(self) -> None:
        self._check(self.memory, self.policy)


Placement = File | DeviceCache


def in_memory(placement: Any) -> bool:
    """Whether a ``placement`` argument is a word: all rows lie in memory, of the processor or of a GPU."""
    return isinstance(placement, str)


def as_placement(placement: Any, table: str) -> Placement | None:
    """What a ``placement`` argument stands for: None is memory, of the device that ``device_for`` gives.

    Raises:
        ConfigError: neither a known word nor a placement.
    """
    if placement in WORDS:
        return None
    if isinstance(placement, Cached):
        return placement  # type: ignore[return-value]
    raise ConfigError(
        f"table {table!r}: placement={placement!r}; pass {', '.join(map(repr, WORDS))}, "
        "graph_emb.File(folder, memory=...), graph_emb.Buckets(folder, memory=..., parts=...) or "
        "graph_emb.DeviceCache(memory=...)"
    )


def device_for(
    placement: Any, device: torch.device | str | None, table: str, *, mode: str, hogwild: bool = False
) -> torch.device:
    """The device of a table's rows; of ``DeviceCache`` that of the cache.

    Args:
        placement: As of ``as_placement``.
        device: As asked for; None: the processor, and of ``"device"`` the current GPU.
        table: The name that an error shows.
        mode, hogwild: The transport's.
    Raises:
        ConfigError: placement and device exclude each other, the mode has no such rows, or there is no such device; of
            other GPUs than of ``"device"`` the memory is asked for later.
    """
    from graph_emb.core.devices import device_of  # here: a configuration is read and refused without torch

    given = ("cuda" if placement == DEVICE else "cpu") if device is None else device
    found = device_of(f"table {table!r}: device", given, here=False)
    said = f"table {table!r}: placement={placement!r}"
    if placement == DEVICE:
        _check_on_device(said, found, mode, hogwild)
    elif placement in (HOST, SHARED) and found.type != "cpu":
        raise ConfigError(f"{said} is memory of the processor, not of device {found}; pass 'device', or leave one out")
    elif placement == SHARED and mode != "kvstore" and not hogwild:
        raise ConfigError(
            f"{said}: processes share rows in kvstore mode, and in collective mode with hogwild=True; this is {mode} "
            "mode without; call graph_emb.init(mode='collective', hogwild=True), or pass 'host'"
        )
    return found  # the memory is asked for later


def _check_on_device(said: str, device: torch.device, mode: str, hogwild: bool) -> None:
    """Raise a ConfigError where rows cannot lie on a GPU."""
    import torch

    if device.type != "cuda":
        raise ConfigError(f"{said} is memory of a GPU, not of device {device}; pass device='cuda', or leave one out")
    if mode == "kvstore":
        raise ConfigError(f"{said}: servers keep rows in memory of the processor; pass 'shared'")
    if hogwild:
        raise ConfigError(
            f"{said}: with hogwild=True ranks share rows in memory of the processor; pass 'shared', or call "
            "graph_emb.init(hogwild=False)"
        )
    if not torch.cuda.is_available():
        raise ConfigError(f"{said}: torch finds no GPU here; pass 'host'")
