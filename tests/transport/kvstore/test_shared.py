"""Shared memory that has no room is refused before a page of it is touched; pushes lie in it one after the other."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import graph_emb as ge
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.shared import PushBuffer, at

TWO_TABLES = """
import torch
from graph_emb.transport.kvstore import shared
tables = []
for name in ("user", "item"):
    try:
        made = shared.open_segment(shared.shared_name(), (5_000, 1_000), torch.float32, f"table {name!r}", create=True)
        tables.append(made)
    except Exception as error:
        print(type(error).__name__, error)
for table in tables:
    table.fill_(1.0)
print(len(tables), "filled,", sum(1 for _ in shared.SHARED_MEMORY.iterdir()), "named")
"""


def with_small_shared_memory(script: str) -> str:
    """What a script prints where /dev/shm is a file system of 32 MB; skips where none can be mounted."""
    inside = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    mount = "mount -t tmpfs -o size=32m tmpfs /dev/shm"
    if not shutil.which("unshare") or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("this machine lets no process mount a file system of its own (unshare --mount)")
    command = [*inside, f'{mount} && exec "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_two_tables_that_fit_one_by_one_do_not_end_the_process() -> None:
    """Each was compared with what was free when it was made, before the other's pages were touched: then SIGBUS."""
    said = with_small_shared_memory(TWO_TABLES)
    assert said.startswith(
        "ConfigError table 'item', shape (5000, 1000) of torch.float32, takes 20,000,000 bytes of shared memory, but "
    )
    assert "are free in /dev/shm (No space left on device); enlarge it (docker run --shm-size=" in said
    assert said.endswith("1 filled, 1 named\n")


GROWING = """
import torch
import graph_emb as ge
from graph_emb.graph.hash_book import HashPolicy, key_of
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport.kvstore import shared
growth = ge.growing(100_000)  # 800 MB for two servers
spec = TableSpec("item", growth.max_rows, 1_000, HashPolicy(), ge.initializers.Zeros(), growth=growth)
name = shared.shared_name()
shards = [GrowingShard(spec, shared.SparseRows(name, spec, 2, mine=k, create=k == 0)) for k in range(2)]
read = shared.SparseRows(name, spec, 2)
shared.forget_name(name)
for k, shard in enumerate(shards):
    made = 0
    try:
        while True:
            ids = torch.arange(made, made + 500)
            shard.write(key_of(ids), torch.full((500, 1_000), k + 1.0))
            made += 500
    except ge.ConfigError as error:
        print(error)
    assert shard.num_rows == made and not shard.contains(key_of(torch.tensor([made]))).any()
    assert read.weight[k * 100_000 : k * 100_000 + made].eq(k + 1).all()
    print(made)
"""


def test_a_growing_table_that_finds_no_room_for_more_rows_keeps_those_it_has() -> None:
    """Rows of 4,000 bytes in 32 MB: the first server fills all but a rest, the second finds that."""
    first, made, second, more = with_small_shared_memory(GROWING).splitlines()
    assert 6_000 < int(made) < 8_500
    assert int(more) < 1_500
    for said in (first, second):
        assert said.startswith("table 'item': ")
        assert "bytes of shared memory, but" in said
        assert "enlarge it (docker run --shm-size=" in said


def test_a_segment_without_room_leaves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    name = shared.shared_name()
    with pytest.raises(ge.ConfigError, match=r"table 'user', shape \(4, 2\) .* takes 32 bytes .* --shm-size="):
        shared.open_segment(name, (4, 2), torch.float32, "table 'user'", create=True)
    assert not Path("/dev/shm", name).exists()


def test_a_segment_without_rows_is_empty() -> None:
    name = shared.shared_name()
    try:
        assert shared.open_segment(name, (0, 2), torch.float32, "table 'user'", create=True).shape == (0, 2)
    finally:
        shared.forget_name(name)


def test_pushes_lie_one_after_the_other_until_the_buffer_is_full() -> None:
    buffer = PushBuffer(1 << 12)
    shared.forget_name(buffer.name)
    first = buffer.reserve(3, 5, torch.float32)
    second = buffer.reserve(3, 5, torch.float32)
    assert second.ids_at == 128  # 24 bytes of ids and 60 of gradients, each on lines of 64
    at(buffer.memory, first)[1].fill_(1.0)
    at(buffer.memory, second)[1].fill_(2.0)
    assert bool((at(buffer.memory, first)[1] == 1.0).all())
    assert buffer.fits(30, 25, torch.float32) is True
    assert buffer.fits(30, 30, torch.float32) is False
    buffer.used = 0
    assert buffer.reserve(1, 1, torch.float32).ids_at == 0
    assert PushBuffer.size_for(1_000_000, 128, torch.float32) > 4 * 1_000_000 * 128 * 4


def test_lent_memory_holds_the_ids_and_is_where_the_last_place_says() -> None:
    buffer = PushBuffer(1 << 12)
    shared.forget_name(buffer.name)
    buffer.reserve(2, 1, torch.float64)
    ids, grads = buffer.lend(torch.tensor([7, 3]), 2, torch.float64)
    grads.fill_(0.5)
    there, values = at(buffer.memory, buffer.last)
    assert ids.tolist() == there.tolist() == [7, 3]
    assert values.tolist() == [[0.5, 0.5], [0.5, 0.5]]
