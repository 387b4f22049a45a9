"""The map equals a dict, whatever the ids, and its space follows what it holds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from graph_emb.core.compiled import GOLDEN
from graph_emb.core.errors import ConfigError
from graph_emb.table.id_map import SUB_BITS, SUB_MAPS, IdMap, _Blocks

EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]


def one_hash(num: int, sub: int = 0) -> np.ndarray:
    """Keys that one sub-map gets, at one place of it: their hashes differ in bits that neither looks at."""
    inverse = np.uint64(pow(int(GOLDEN), -1, 1 << 64))
    return ((np.uint64(sub << 64 - SUB_BITS) | np.arange(num, dtype=np.uint64)) * inverse).view(np.int64)


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
    assert len(all_ids) == len(set(all_ids.tolist()))


@pytest.mark.parametrize("kind", ["random", "one hash"])
def test_ten_thousand_short_programs_equal_a_dict(kind: str) -> None:
    """Of few ids, so that sub-maps of one or two lines become full and empty again; a map serves a hundred of them."""
    rng, num = np.random.default_rng(5), 24
    for program in range(10_000):
        if program % 100 == 0:
            found = IdMap(num, "map")
        ids = one_hash(num, program % SUB_MAPS) if kind == "one hash" else rng.integers(-(2**63), 2**63 - 1, num)
        ids[:5] = EDGES if kind == "random" else ids[:5]
        first, gone, last = rng.random((3, num)) < rng.random((3, 1))
        found.add(ids[first], np.arange(num)[first])
        expected = {int(ids[k]): k for k in np.flatnonzero(first)}
        found.remove(ids[first & gone])
        for k in np.flatnonzero(first & gone):
            del expected[int(ids[k])]
        there = first & ~gone
        found.set(ids[last & there], np.arange(100, 100 + num)[last & there])
        found.add(ids[last & ~there], np.arange(100, 100 + num)[last & ~there])
        expected |= {int(ids[k]): 100 + int(k) for k in np.flatnonzero(last)}
        assert found.find(ids).tolist() == [expected.get(i, -1) for i in ids.tolist()], program
        if program % 10 == 0:
            assert dict(zip(*(piece.tolist() for piece in found.items()), strict=True)) == expected, program
        found.remove(ids[there | last])
        assert len(found) == 0


def test_a_number_is_not_taken_for_the_key_that_it_equals() -> None:
    """Keys and numbers of four places lie in one cache line, whose words are compared at once."""
    low, high = np.sort(one_hash(4000)[1:])[-2:]  # large, of one line
    found = IdMap(100, "map")
    found.add(np.array([low]), np.array([high - 1]))  # kept plus one
    assert found.find(np.array([low, high])).tolist() == [high - 1, -1]
    found.add(np.array([high]), np.array([7]))
    assert found.find(np.array([low, high])).tolist() == [high - 1, 7]
    found.set(np.array([high]), np.array([8]))
    assert found.find(np.array([low, high])).tolist() == [high - 1, 8]


def test_a_growth_moves_few_ids_and_memory_follows_them() -> None:
    found, ids = IdMap(1 << 18, "map"), np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1 << 18)
    grown = []
    for start in range(0, len(ids), 1024):
        before = found._sizes.copy()
        found.add(ids[start : start + 1024], np.arange(start, start + 1024))
        grown.append(int((found._sizes > before).sum()))
    assert found.find(ids).tolist() == list(range(len(ids)))
    assert max(grown[64:]) < SUB_MAPS / 8  # not all at once
    assert found.num_bytes() <= 32 * len(ids)
    assert found._blocks.end * 16 < 1.2 * found.num_bytes()  # holes are used again


def test_too_many_ids_are_refused_before_anything_changes() -> None:
    found = IdMap(10, "table 'x'")
    found.add(np.arange(9), np.arange(9))
    with pytest.raises(ConfigError, match="table 'x': 11 ids; at most 10 fit"):
        found.add(np.array([20, 21]), np.array([0, 0]))
    assert len(found) == 9
    assert found.find(np.array([20, 8])).tolist() == [-1, 8]


def test_ids_of_one_hash_after_another_fill_the_map_and_are_refused() -> None:
    """Sub-maps do not shrink: each that once had all ids keeps its places."""
    found = IdMap(2000, "table 'x'")

    def fill(sub: int) -> None:
        found.add(keys := one_hash(2000, sub), np.arange(2000))
        assert found.find(keys[::-1].copy()).tolist() == list(range(2000))[::-1]
        found.remove(keys)

    with pytest.raises(ConfigError, match=r"table 'x': \d+ places for ids of one hash do not fit"):
        [fill(sub) for sub in range(SUB_MAPS)]
    assert len(found) == 0
    assert found.find(one_hash(2, 0)).tolist() == [-1, -1]
    found.add(again := one_hash(1000, 0), np.arange(1000))
    assert found.find(again).tolist() == list(range(1000))


def test_pieces_never_overlap_and_the_end_comes_back() -> None:
    rng, blocks, there = np.random.default_rng(0), _Blocks(10_000, 50), dict[int, int]()
    for _ in range(200):
        nums = rng.integers(1, 20, rng.integers(0, 50 - len(there) + 1))
        there.update(zip(blocks.take(nums).tolist(), nums.tolist(), strict=True))
        taken = sorted(there.items())
        assert all(low + num <= after for (low, num), (after, _) in pairwise(taken))
        assert blocks.end == max((low + num for low, num in taken), default=0)
        gone = rng.permutation(np.array(list(there), np.int64))[: rng.integers(0, len(there) + 1)]
        blocks.give(gone, np.array([there.pop(int(low)) for low in gone], np.int64))
    assert blocks.end < 50 * 20 * 2  # holes are used again
