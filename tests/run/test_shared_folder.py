"""Ranks that do not see one folder end before they train."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

import graph_emb as ge
from graph_emb.run.shared_folder import check_shared
from tests.ranks import Ranks

pytestmark = pytest.mark.dist


def seen(root: str, mount: str) -> str:
    """What a rank is told; with a ``mount`` the second one sees another disk than the first at the same path."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        group = transport.group
        if mount and group.rank == 1:
            real = group.gather_objects
            moved = lambda found: [each.replace(root, mount) if isinstance(each, str) else each for each in found]  # noqa: E731
            group.gather_objects = lambda value, what: moved(real(value, what))
        check_shared(group, Path(root) / "not there yet" / "run-checkpoints")
        return ""
    except ge.ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()


def test_ranks_that_see_one_folder_go_on(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(seen, 2, str(tmp_path), "") == ["", ""]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("mounted", "words"), [(True, "has another folder there"), (False, "cannot write")])
def test_a_host_with_another_disk_is_named(ranks: Ranks, tmp_path: Path, mounted: bool, words: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    if mounted:
        second.mkdir()
    for said in ranks.run(seen, 2, str(first), str(second)):
        assert f"{socket.gethostname()} (rank 1) {words}" in said
        assert "rank 0" not in said
    assert not list(first.iterdir())


def seen_without_room(root: str) -> str:
    """As ``seen``, where the first rank's disk takes no file."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["RANK"] == "0":
            patch.setattr(Path, "touch", full)
        return seen(root, "")


def full(path: Path, *_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_first_host_that_cannot_write_is_the_one_that_is_named(ranks: Ranks, tmp_path: Path) -> None:
    for said in ranks.run(seen_without_room, 2, str(tmp_path)):
        assert f"{socket.gethostname()} (rank 0) cannot write {tmp_path}: No space left on device" in said
        assert "rank 1" not in said
