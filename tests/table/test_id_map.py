"""The map equals a dict, whatever the ids, and its space follows what it holds."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.graph.hash_book import id_of
from graph_emb.table.id_map import SUB_MAPS, IdMap

EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]


def one_hash(num: int) -> np.ndarray:
    """Ids that one sub-map gets, at one place of it: their hashes differ in bits that neither looks at."""
    import torch

    return id_of(torch.arange(num) << 20)


@pytest.mark.parametrize("kind", ["random", "small", "one hash"])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_equal_a_dict(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = {
        "random": np.concatenate([EDGES, rng.integers(-(2**63), 2**63 - 1, 800)]),
        "small": np.arange(-400, 400),
        "one hash": one_hash(500),
    }[kind]
    found, expected = IdMap(2000, "map"), dict[int, int]()
    for turn in range(60):
        some = rng.choice(ids, rng.integers(0, 60), replace=False)
        here = np.array([int(i) in expected for i in some], bool)
        numbers = rng.integers(0, 1 << 60, len(some))
        if turn % 3 < 2:
            found.add(some[~here], numbers[~here])
            found.set(some[here], numbers[here])
            expected.update(zip(some.tolist(), numbers.tolist(), strict=True))
        else:
            found.remove(some[here])
            for i in some[here].tolist():
                del expected[i]
        asked = rng.choice(ids, 100)
        assert found.find(asked).tolist() == [expected.get(int(i), -1) for i in asked]
        assert len(found) == len(expected)
    all_ids, numbers = found.items()
    assert dict(zip(all_ids.tolist(), numbers.tolist(), strict=True)) == expected
    assert (np.diff(all_ids.astype(object)) > 0).all()


def test_a_growth_moves_few_ids_and_memory_follows_them() -> None:
    found, ids = IdMap(1 << 18, "map"), np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1 << 18)
    grown = []
    for start in range(0, len(ids), 1024):
        before = found._bits.copy()
        found.add(ids[start : start + 1024], np.arange(start, start + 1024))
        grown.append(int((found._bits > before).sum()))
    assert found.find(ids).tolist() == list(range(len(ids)))
    assert max(grown[32:]) < SUB_MAPS / 4  # not all at once
    assert found.num_bytes() <= 40 * len(ids)


def test_too_many_ids_are_refused_before_anything_changes() -> None:
    found = IdMap(10, "table 'x'")
    found.add(np.arange(9), np.arange(9))
    with pytest.raises(ConfigError, match="table 'x': 11 ids; at most 10 fit"):
        found.add(np.array([20, 21]), np.array([0, 0]))
    assert len(found) == 9
    assert found.find(np.array([20, 8])).tolist() == [-1, 8]


def test_too_many_ids_of_one_hash_are_refused() -> None:
    found = IdMap(1 << 17, "table 'x'")  # from here on the map counts on hashes that spread
    with pytest.raises(ConfigError, match="have one hash"):
        found.add(one_hash(9000), np.arange(9000))
    assert len(found) == 0
