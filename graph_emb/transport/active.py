"""The transport that this process uses: ``init`` chooses it, tables find it, ``shutdown`` ends it."""

from __future__ import annotations

from graph_emb.errors import ModeError, unknown_name
from graph_emb.transport.base import Transport
from graph_emb.transport.local import LocalTransport

MODES = ("local", "collective", "kvstore")
_active: Transport | None = None


def init(mode: str = "local") -> Transport:
    """Choose where tables live and how gradients reach them. Without a call, the mode is local.

    Args:
        mode: ``"local"``, ``"collective"`` or ``"kvstore"``.
    Returns:
        The transport, for those who want its rank, world_size, flush and barrier.
    Raises:
        ConfigError: an unknown mode.
        ModeError: already initialised, or the mode is not built yet.
    """
    global _active
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if mode != "local":
        raise ModeError(f"mode {mode!r} is not built yet; use mode='local'")
    if _active is not None:
        raise ModeError("graph_emb is initialised already; call graph_emb.shutdown() first")
    _active = LocalTransport()
    return _active


def current() -> Transport:
    """The active transport; the first call without ``init`` starts the local one."""
    return _active if _active is not None else init("local")


def shutdown() -> None:
    """Free every table and end the mode. Tables made before raise ModeError when they are used. May be repeated."""
    global _active
    if _active is not None:
        _active.close()
        _active = None
