"""Steps that tables hear of before they are trained, so that rows in files come meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Step = TypeVar("Step")


def announced(steps: Iterable[Step], announce: Callable[[Step], object], ahead: int) -> Iterator[Step]:
    """The steps in their order; ``announce`` is called with each one ``ahead`` steps before it comes."""
    coming: deque[Step] = deque()
    for step in steps:
        announce(step)
        coming.append(step)
        if len(coming) > ahead:
            yield coming.popleft()
    yield from coming
