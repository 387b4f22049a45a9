"""Known answers by bucket: those of all triples, of which few are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from graph_emb.sampling.bucket_answers import BucketAnswers
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.sampling.stored_triples import StoredTriples

ENTITIES, RELATIONS, PARTS = 60, 3, 4


def owner(entities: np.ndarray) -> np.ndarray:
    return np.asarray(entities) * PARTS // ENTITIES


@pytest.fixture
def triples() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, (ENTITIES, RELATIONS, ENTITIES), (1_500, 3))


@pytest.fixture
def read() -> Counter[int]:
    """How often each bucket was read."""
    return Counter()


@pytest.fixture
def answers(triples: np.ndarray, read: Counter[int], tmp_path: Path) -> BucketAnswers:
    def bucket(some: np.ndarray) -> np.ndarray:
        return owner(some[:, 0]) * PARTS + owner(some[:, 2])

    class Counted(StoredTriples):
        def of(self, bucket: int) -> tuple[np.ndarray, np.ndarray]:
            read[bucket] += 1
            return super().of(bucket)

    stored = Counted(lambda: iter([(np.arange(len(triples)), triples)]), bucket, PARTS**2, tmp_path)
    return BucketAnswers(stored, owner, PARTS, RELATIONS)


def of_parts(triples: np.ndarray, *parts: int) -> np.ndarray:
    return triples[np.isin(owner(triples[:, 0]), parts) & np.isin(owner(triples[:, 2]), parts)]


@pytest.mark.parametrize("side", [HEAD, TAIL])
def test_they_mark_what_those_of_all_triples_mark(triples: np.ndarray, answers: BucketAnswers, side: int) -> None:
    rng, whole = np.random.default_rng(1), KnownAnswers.of(triples, side, RELATIONS)
    for parts in ([0, 1], [1, 3], [2], [0, 1, 2, 3], [3]):  # a chunk may hold triples of two states
        chunks = rng.choice(of_parts(triples, *parts), (5, 7))
        candidates = rng.choice(np.flatnonzero(np.isin(owner(np.arange(ENTITIES)), parts[:2])), (5, 20))
        wanted = whole.among(whole.find(chunks.reshape(-1, 3)).reshape(5, 7), candidates)
        assert wanted.any()
        assert not wanted.all()
        assert np.array_equal(answers.known(chunks, candidates, side), wanted)


def test_a_bucket_is_read_once_while_its_parts_stay(
    triples: np.ndarray, answers: BucketAnswers, read: Counter[int]
) -> None:
    def ask(*parts: int) -> None:
        own = of_parts(triples, *parts)
        answers.known(own[None], own[None, :, 2], TAIL)
        answers.known(own[None], own[None, :, 0], HEAD)

    ask(0, 1)
    ask(0, 1)
    ask(0, 2)
    assert read == dict.fromkeys([0, 1, 4, 5, 2, 8, 10], 1)  # of the parts (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), ...
    ask(2, 3)
    ask(2, 3)
    assert read[10] == 1
    ask(0, 1)
    assert read[0] == read[1] == read[4] == read[5] == 2


def test_a_table_of_candidates_finds_each_of_many() -> None:
    """Repeats, entities beyond 2^40, and so many that slots collide."""
    rng = np.random.default_rng(2)
    tails = np.unique(rng.integers(0, 1 << 40, 900))
    known = KnownAnswers.of(np.stack([np.zeros_like(tails), np.zeros_like(tails), tails], axis=1), TAIL, 1)
    candidates = np.concatenate([rng.choice(tails, 700), rng.integers(0, 1 << 40, 700)])[None]
    found = known.among(np.zeros((1, 1), np.int64), candidates)
    assert np.array_equal(found[0, 0], np.isin(candidates[0], tails))
