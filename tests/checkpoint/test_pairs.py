"""Law 6: saved at one number of parts, ranks and mode, a checkpoint loads at another and training goes on the same.

``benchmarks/checkpoint_pairs.py`` runs all 784 pairs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.layouts import Layout, Reference, everywhere, reference
from tests.ranks import Ranks

SOME = [
    Layout("local", 3, 1),
    Layout("collective", 2, 2),
    Layout("collective", 3, 4),
    Layout("kvstore", 4, 1),  # servers of three machines without a trainer
    Layout("kvstore", 2, 4),
]


@pytest.fixture(scope="module")
def uninterrupted() -> Reference:
    return reference()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks, uninterrupted: Reference) -> list[Path]:
    folder = tmp_path_factory.mktemp("saved")
    for layout in SOME:
        assert everywhere("save_at", layout, folder, uninterrupted, ranks=ranks) == []
    return [folder / layout.name for layout in SOME]


@pytest.mark.dist
@pytest.mark.parametrize("layout", SOME, ids=lambda layout: layout.name)
def test_a_checkpoint_of_any_layout_goes_on_bit_for_bit(
    layout: Layout, saved: list[Path], ranks: Ranks, uninterrupted: Reference
) -> None:
    assert everywhere("load_at", layout, saved, uninterrupted, ranks=ranks) == []
