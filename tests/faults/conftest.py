"""A training small enough to fail hundreds of times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graph_emb as ge
from tests.checkpoint.tiny import Tiny


@pytest.fixture
def tiny() -> Iterator[Tiny]:
    """After two steps."""
    made = Tiny(seed=1)
    made.run(2)
    yield made
    ge.shutdown()
