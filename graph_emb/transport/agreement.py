"""Steps that succeed on all ranks or on none, and numbers that all ranks get to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graph_emb.core.errors import DataError
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


def highest(transport: Transport, value: int) -> int:
    """The highest of the ranks' numbers, each at least 0. Every rank calls it."""
    return max(transport.votes(value if rank == transport.rank else 0) for rank in range(transport.world_size))
