"""The transport that this process uses: ``init`` chooses it, tables find it, ``shutdown`` ends it."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from graph_emb.core.errors import ConfigError, ModeError, PeerError, check_flags, unknown_name
from graph_emb.transport import job, kvstore
from graph_emb.transport.base import Transport
from graph_emb.transport.local import LocalTransport

AUTO = "auto"
MODES = ("local", "collective", "kvstore")
OPTIONS: dict[str, tuple[str, ...]] = {
    "local": (),
    "collective": ("backend", "timeout", "part", "staleness", "shared_memory", "hogwild", "wire_dtype"),
    "kvstore": tuple(inspect.signature(kvstore.connect).parameters),
}
DYNAMIC = "USE_DYNAMIC_EXPANSION"
_log = logging.getLogger("graph_emb.init")
_active: Transport | None = None
T = TypeVar("T")
_END = object()


def init(mode: str = AUTO, **options: Any) -> Transport:
    """Choose where tables live and how gradients reach them. Without a call, the first table does it, by ``"auto"``.

    ``"auto"`` takes DGL's servers where ``dgl.distributed`` is initialised, or those that ``graph-emb launch`` started;
    else the process group of torch.distributed or of the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT) where the job has several processes; else local. Every process of the job must come to it. The logger
    ``graph_emb.init`` says in a line what was chosen and why.

    Args:
        mode: ``"auto"``, ``"local"``, ``"collective"`` or ``"kvstore"``. ``"local"`` by name is honoured in a job of
            several processes too, with a warning on that logger: each then has tables of its own.
        options: Of the mode. Of the collective mode: ``backend`` (``"gloo"``, ``"nccl"``; None chooses by device),
            ``timeout`` (seconds until a silent process becomes an error, 300), ``part`` (the part at which this rank
            sits; None puts the ranks at the parts in order) and ``staleness`` (0: prefetched rows are exact; 1: one
            step old), ``shared_memory`` (True: ranks of one machine exchange through memory; False: through sockets)
            and ``hogwild`` (True: models that train in place change each other's rows without locks; one machine only;
            None: where the ranks share memory)
            and ``wire_dtype`` (``torch.bfloat16`` or ``torch.float16``: exchanged rows and gradients are rounded to it:
            inexact, half the bytes; ``torch.int8``: a quarter, where models train copies of rows in place).
            Of the kvstore mode: see ``graph_emb.transport.kvstore.connect``. Of every mode:
            ``use_dynamic_expansion`` (True: ``ge.DistEmbedding(N, D)`` makes a growing table, of any number of rows,
            unless it is tied to ids by a partition policy, ``original_ids``, ``bounds`` or a placement; None: as the
            environment's ``USE_DYNAMIC_EXPANSION``, 0 or 1, says).
    Returns:
        The transport: its rank, world_size, flush and barrier.
    Raises:
        ConfigError: an unknown mode or option.
        ModeError: already initialised, or a process that would stand alone in a job of several, which it cannot find.
        PeerError: the processes of the job did not come together.
    """
    if mode not in (AUTO, *MODES):
        raise unknown_name("mode", mode, (AUTO, *MODES))
    if _active is not None:
        raise ModeError("graph_emb is initialised already; call graph_emb.shutdown() first")
    if mode != AUTO:
        return _start(mode, options)
    mode, why = job.choose()
    _log.info("mode %r: %s", mode, why)
    try:
        return _start(mode, options)
    except PeerError as error:
        raise PeerError(
            f"{error}; mode {mode!r} was chosen because {why}: every process of the job must come to its first table "
            "or graph_emb.init()"
        ) from error


def _start(mode: str, options: dict[str, Any]) -> Transport:
    global _active
    dynamic = _dynamic_expansion(options.pop("use_dynamic_expansion", None))
    for option in options:
        if option not in OPTIONS[mode]:
            raise unknown_name(f"option of mode {mode!r}", option, OPTIONS[mode])
    check_flags(shared_memory=options.get("shared_memory", True))
    check_flags(none=True, hogwild=options.get("hogwild"))
    if mode == "local":
        _active = LocalTransport()
        if why := job.several():
            _log.warning("mode 'local' by name in %s: this process has tables of its own", why)
    elif mode == "kvstore":
        _active = kvstore.connect(**options)
    else:
        # Here: torch.distributed and DGL are imported only where they are needed.
        from graph_emb.transport.collective import CollectiveTransport
        from graph_emb.transport.process_group import ProcessGroup

        own = {name: options.pop(name) for name in ("part", "staleness", "hogwild", "wire_dtype") if name in options}
        group = ProcessGroup(**options)
        try:
            _active = CollectiveTransport(group, **own)
        except BaseException:
            group.close()
            raise
    _active.grows_by_default = dynamic
    atexit.register(shutdown)  # a process group that is left to the interpreter's exit aborts it
    return _active


def _dynamic_expansion(asked: bool | None) -> bool:
    """Whether tables grow by default: as asked, else as the environment says.

    Raises:
        ConfigError: the option or the variable is something else.
    """
    said, given = ("use_dynamic_expansion", asked) if asked is not None else (DYNAMIC, os.environ.get(DYNAMIC, ""))
    known: dict[Any, bool] = {True: True, False: False} if asked is not None else {"1": True, "0": False, "": False}
    if not isinstance(given, (bool, str)) or given not in known:
        raise ConfigError(f"{said}={given!r} must be {'True or False' if asked is not None else '0 or 1'}")
    return known[given]


def current() -> Transport:
    """The active transport; the first call without ``init`` chooses it (``init``)."""
    return _active if _active is not None else init()


def begun() -> Transport | None:
    """The active transport; None before the first use."""
    return _active


def start_local(by_name: bool, asked: str) -> None:
    """Begin local mode for a run that asks for it, unless the program began a mode.

    Args:
        by_name: Whether the user named it; where it is only a default, a job of several processes is an error.
        asked: What asks, in the words of the error.
    Raises:
        ModeError: the process is one of several, and would train tables of its own.
    """
    if _active is None:
        if not by_name and (why := job.several()):
            job.refuse(asked, why)
        init("local", use_dynamic_expansion=False)


@contextmanager
def fixed_tables() -> Iterator[None]:
    """Tables made inside have a fixed size by default, as those of a run, whose ids are its graph's."""
    transport = _active
    if transport is None or not transport.grows_by_default:
        yield
        return
    transport.grows_by_default = False
    try:
        yield
    finally:
        transport.grows_by_default = True


def _forget() -> None:
    """In the child of a fork: the mode is its parent's, whose place in the job it must not take."""
    global _active
    _active = None


os.register_at_fork(after_in_child=_forget)


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
