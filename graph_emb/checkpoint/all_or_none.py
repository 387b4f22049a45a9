"""Steps that all ranks complete or none: a rank that fails tells the others before any goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from graph_emb import optimizer_state
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.embedding import DistEmbedding
from graph_emb.transport import runtime
from graph_emb.transport.base import Transport

T = TypeVar("T")


def agree(transport: Transport, step: Callable[[], T], what: str, undo: Callable[[T], object] | None = None) -> T:
    """Run a step on every rank and return its result here once it succeeded on all.

    Args:
        transport: The ranks.
        step: This rank's work; it calls no other rank.
        what: The words with which an error begins.
        undo: Called with this rank's result where another one failed.
    Raises:
        DataError: another rank failed; its own error is raised there.
    """
    result, error = None, None
    try:
        result = step()
    except Exception as raised:  # told to the others first: they would wait for ever
        error = raised
    try:
        num_fine = transport.votes(error is None)
        if error is not None:
            raise error
        if num_fine < transport.world_size:
            failed = transport.world_size - num_fine
            raise DataError(f"{what}: {failed} of {transport.world_size} ranks failed; their errors say why")
    except BaseException:
        if error is None and undo is not None:
            undo(result)  # type: ignore[arg-type]
        raise
    return result  # type: ignore[return-value]


def common_transport(tables: Sequence[DistEmbedding]) -> Transport:
    """The transport of the tables; the active one where there are none.

    Raises:
        ConfigError: two tables have one name.
        ModeError: the tables were made in different modes.
    """
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"table {twice[0]!r} is given twice")
    return optimizer_state.common_transport(tables) if tables else runtime.current()
