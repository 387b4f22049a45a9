"""Fixtures shared by all tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_emb.transport.runtime import init, shutdown
from tests.ranks import Ranks

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs: $GRAPH_EMB_DATA, else ../shared/data beside the checkout."""
    folder = Path(os.environ.get("GRAPH_EMB_DATA", CHECKOUT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set GRAPH_EMB_DATA")
    return folder


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that stand for ranks, shared by all tests that need several."""
    made = Ranks()
    yield made
    made.close()


@pytest.fixture
def fresh_mode() -> Iterator[None]:
    """No mode before and after the test."""
    shutdown()
    yield
    shutdown()


@pytest.fixture(scope="module")
def idle_servers() -> Iterator[None]:
    """After the tests of a file the processes end that waited to be servers."""
    from tests.transport.kvstore.cluster import close_idle

    yield
    close_idle()


@pytest.fixture
def one_dgl_graph() -> Iterator[None]:
    """One test at a time on this machine: DGL's servers of two graphs share the memory of columns of one name."""
    with Path(tempfile.gettempdir(), "graph_emb-tests-dgl-graph.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def local_mode() -> Iterator[None]:
    """Local mode, whatever an earlier test began."""
    shutdown()
    init(mode="local")
    yield
    shutdown()
