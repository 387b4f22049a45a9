"""Pages of rows in a file: how rows are laid on them, and the room that the file takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, StorageError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.initializers import Uniform
from graph_emb.table.placement import File
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.pages import PageFile, PageLayout


@pytest.mark.parametrize(
    ("row_bytes", "rows", "page"),
    [
        ([512, 512], 4, 4096),
        ([512], 8, 4096),
        ([800, 800, 800], 2, 5120),
        ([512, 512, 512], 4, 6144),
        ([4], 1024, 4096),
    ],
)
def test_a_page_is_mostly_rows(row_bytes: list[int], rows: int, page: int) -> None:
    layout = PageLayout.of(row_bytes)
    assert (layout.rows, layout.page_bytes) == (rows, page)
    assert layout.page_bytes % 512 == 0
    assert layout.page_bytes - sum(layout.sections) <= layout.page_bytes / 8


def test_a_disk_without_room_is_refused_at_creation(tmp_path: Path) -> None:
    rows = 2**40
    spec = TableSpec("t", rows, 64, RangeBook.even(rows), Uniform(), placement=File(tmp_path, "1TiB"))
    with pytest.raises(ConfigError, match="choose another folder"):
        PageFile(tmp_path, "t", 0, PageLayout.of([spec.row_bytes]), rows // 64, False)
    assert list(tmp_path.iterdir()) == []


def test_room_is_claimed_as_it_is_needed_and_a_full_disk_takes_none(tmp_path: Path) -> None:
    too_many = 2 * shutil.disk_usage(tmp_path).free // 4096 + 1000
    file = PageFile(tmp_path, "t", 0, PageLayout.of([256]), too_many, False, claimed=2)

    def taken() -> int:
        return os.fstat(file.descriptor).st_blocks * 512

    assert 3 * 4096 <= taken() < 100_000
    file.claim(100)
    assert 101 * 4096 <= taken() < 1_000_000
    before = taken()
    with pytest.raises(StorageError, match="free the disk and go on"):
        file.claim(too_many)
    file.claim(50)
    assert taken() == before
    file.close()
    assert list(tmp_path.iterdir()) == []
