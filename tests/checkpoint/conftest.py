"""What the tests of checkpoints share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graph_emb as ge
from tests.transport.kvstore.cluster import close_idle


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No test takes over a mode, or leaves its own to the next."""
    ge.shutdown()
    yield
    ge.shutdown()


@pytest.fixture(scope="package", autouse=True)
def _workers() -> Iterator[None]:
    yield
    close_idle()
