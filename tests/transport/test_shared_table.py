"""Tables in memory that all ranks of a machine map: what stands in the way is said on every rank."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator

import pytest

import graph_emb as ge
from tests.ranks import Ranks, with_shared_memory

pytestmark = [pytest.mark.dist, with_shared_memory]


def refused_hogwild(shared_memory: bool, device: str) -> str:
    try:
        ge.init(mode="collective", timeout=60, hogwild=True, shared_memory=shared_memory)
        ge.DistEmbedding(9, 2, "far", device=device)
    except ge.ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()
    return ""


@pytest.mark.parametrize(
    ("shared_memory", "device", "message"),
    [(False, "cpu", "must share the memory of one machine"), (True, "meta", "share rows in host memory only")],
)
def test_hogwild_without_common_memory_is_refused(ranks: Ranks, shared_memory: bool, device: str, message: str) -> None:
    found = ranks.run(refused_hogwild, 2, shared_memory, device)
    assert all(message in text for text in found), found


def rows_without_room() -> str:
    """The first rank may not write files, hence memory, of more than a megabyte."""
    try:
        transport = ge.init(mode="collective", timeout=60, hogwild=True)
        if transport.rank == 0:
            with limited_files(1 << 20):
                ge.DistEmbedding(1 << 20, 4, "large")
        else:
            ge.DistEmbedding(1 << 20, 4, "large")
    except ge.ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()
    return ""


@contextlib.contextmanager
def limited_files(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_every_rank_hears_that_there_is_no_room(ranks: Ranks) -> None:
    assert all("cannot share 16,777,216 bytes" in text for text in ranks.run(rows_without_room, 2))
