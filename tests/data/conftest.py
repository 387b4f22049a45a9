"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graph_emb.transport.active import init, shutdown


@pytest.fixture
def local_mode() -> Iterator[None]:
    shutdown()  # whatever an earlier test began
    init(mode="local")
    yield
    shutdown()
