"""What the tests of the transports share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graph_emb as ge


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No test takes over a mode, or leaves its own to the next."""
    ge.shutdown()
    yield
    ge.shutdown()
