"""The transport that this process uses: ``init`` chooses it, tables find it, ``shutdown`` ends it."""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from graph_emb.core.errors import ModeError, unknown_name
from graph_emb.transport import kvstore
from graph_emb.transport.base import Transport
from graph_emb.transport.local import LocalTransport

MODES = ("local", "collective", "kvstore")
OPTIONS: dict[str, tuple[str, ...]] = {
    "local": (),
    "collective": ("backend", "timeout", "part", "staleness", "shared_memory", "hogwild"),
    "kvstore": tuple(inspect.signature(kvstore.connect).parameters),
}
_active: Transport | None = None
T = TypeVar("T")
_END = object()


def init(mode: str = "local", **options: Any) -> Transport:
    """Choose where tables live and how gradients reach them. Without a call, the mode is local.

    Args:
        mode: ``"local"``, ``"collective"`` or ``"kvstore"``.
        options: Of the collective mode: ``backend`` (``"gloo"``, ``"nccl"``; None chooses by device), ``timeout``
            (seconds until a silent process becomes an error, 300), ``part`` (the part at which this rank sits; None
            puts the ranks at the parts in order) and ``staleness`` (0: prefetched rows are exact; 1: one step old),
            ``shared_memory`` (True: ranks of one machine exchange through memory; False: through sockets) and
            ``hogwild`` (True: models that train in place change each other's rows without locks; one machine only).
            Of the kvstore mode: see ``graph_emb.transport.kvstore.connect``.
    Returns:
        The transport: its rank, world_size, flush and barrier.
    Raises:
        ConfigError: an unknown mode or option.
        ModeError: already initialised, or collective mode outside of a launcher.
        PeerError: the processes of the job did not come together.
    """
    global _active
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if _active is not None:
        raise ModeError("graph_emb is initialised already; call graph_emb.shutdown() first")
    for option in options:
        if option not in OPTIONS[mode]:
            raise unknown_name(f"option of mode {mode!r}", option, OPTIONS[mode])
    if mode == "local":
        _active = LocalTransport()
    elif mode == "kvstore":
        _active = kvstore.connect(**options)
    else:
        # Here: torch.distributed and DGL are imported only where they are needed.
        from graph_emb.transport.collective import CollectiveTransport
        from graph_emb.transport.process_group import ProcessGroup

        own = {name: options.pop(name) for name in ("part", "staleness", "hogwild") if name in options}
        group = ProcessGroup(**options)
        try:
            _active = CollectiveTransport(group, **own)
        except BaseException:
            group.close()
            raise
    atexit.register(shutdown)  # a process group that is left to the interpreter's exit aborts it
    return _active


def current() -> Transport:
    """The active transport; the first call without ``init`` starts the local one."""
    return _active if _active is not None else init("local")


def shutdown() -> None:
    """Free every table and end the mode. Tables made before raise ModeError when they are used. May be repeated."""
    global _active
    if _active is not None:
        atexit.unregister(shutdown)
        try:
            _active.close()
        finally:  # it is closed, even where it raises the error of a failed push
            _active = None


def in_step(batches: Iterable[T], empty: T) -> Iterator[T]:
    """Batches, then ``empty`` until every rank is at the end of its own: keeps loops of unequal length together.

    In a mode without lockstep these are the batches alone. Leave the loop by its end only, on every rank.

    Args:
        batches: This rank's, any number.
        empty: The batch of a rank that has no more, such as ids of shape (0,).
    Example:
        >>> emb = ge.DistEmbedding(10, 4)
        >>> mine = [torch.tensor([1, 2]), torch.tensor([3])]
        >>> [len(emb(ids)) for ids in ge.in_step(mine, torch.empty(0, dtype=torch.int64))]
        [2, 1]
    """
    transport = current()
    own = iter(batches)
    while True:
        batch = next(own, _END)
        more = transport.votes(batch is not _END)
        if not more:
            return
        yield empty if batch is _END else batch  # type: ignore[misc]
