"""The transport that this process uses: ``init`` chooses it, tables find it, ``shutdown`` ends it."""

from __future__ import annotations

from typing import Any

from graph_emb.errors import ModeError, unknown_name
from graph_emb.transport.base import Transport
from graph_emb.transport.local import LocalTransport

MODES = ("local", "collective", "kvstore")
OPTIONS: dict[str, tuple[str, ...]] = {"local": (), "collective": ("backend", "timeout", "part"), "kvstore": ()}
_active: Transport | None = None


def init(mode: str = "local", **options: Any) -> Transport:
    """Choose where tables live and how gradients reach them. Without a call, the mode is local.

    Args:
        mode: ``"local"``, ``"collective"`` or ``"kvstore"``.
        options: Of the collective mode: ``backend`` (``"gloo"``, ``"nccl"``; None chooses by device), ``timeout``
            (seconds until a silent process becomes an error, 300) and ``part`` (the part at which this rank sits; None
            puts the ranks at the parts in order). Of the kvstore mode: see ``graph_emb.transport.kvstore.connect``.
    Returns:
        The transport, for those who want its rank, world_size, flush and barrier.
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
    _active = _start(mode, options)
    return _active


def _start(mode: str, options: dict[str, Any]) -> Transport:
    """The transport of a mode; torch.distributed and DGL are imported only where they are needed."""
    if mode == "local":
        return LocalTransport()
    if mode == "kvstore":
        raise ModeError(f"mode {mode!r} is not built yet; use mode='local' or 'collective'")
    from graph_emb.transport.collective import CollectiveTransport
    from graph_emb.transport.process_group import ProcessGroup

    part = options.pop("part", None)
    group = ProcessGroup(**options)
    try:
        return CollectiveTransport(group, part)
    except BaseException:
        group.close()
        raise


def current() -> Transport:
    """The active transport; the first call without ``init`` starts the local one."""
    return _active if _active is not None else init("local")


def shutdown() -> None:
    """Free every table and end the mode. Tables made before raise ModeError when they are used. May be repeated."""
    global _active
    if _active is not None:
        _active.close()
        _active = None
