"""Ends the processes that the clusters of these tests left waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.kvstore.cluster import close_idle


@pytest.fixture(scope="package", autouse=True)
def _workers() -> Iterator[None]:
    yield
    close_idle()
