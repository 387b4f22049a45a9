"""Processes shared by the tests of the transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graph_emb as ge
from tests.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No test leaves its mode to the next."""
    yield
    ge.shutdown()
