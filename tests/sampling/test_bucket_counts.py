"""What is counted over triples bucket by bucket is what all of them say at once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.batches import triple_weights
from graph_emb.sampling.bucket_counts import PartOccurrences, count_answers
from graph_emb.sampling.buckets import BucketSchedule, bucket_of
from graph_emb.sampling.known_triples import HEAD, TAIL, ChunkNegatives, EntityParts, KnownAnswers
from graph_emb.sampling.stored_triples import StoredTriples, triples_of

ENTITIES, RELATIONS, PARTS = 60, 3, 4


@pytest.fixture
def graph() -> KnowledgeGraph:
    """With triples that stand twice, and no triple of the last part's entities as heads."""
    rng = np.random.default_rng(0)
    triples = rng.integers(0, (ENTITIES, RELATIONS, ENTITIES), (1_500, 3))
    triples[:, 0] %= 45
    return KnowledgeGraph("g", ENTITIES, RELATIONS, {"train": np.concatenate([triples, triples[:200]])})


@pytest.fixture(params=["entity k has row k", "shuffled rows"])
def parts(request: pytest.FixtureRequest) -> EntityParts:
    rows = None if request.param.startswith("entity") else np.random.default_rng(1).permutation(ENTITIES)
    return EntityParts(BucketSchedule(PARTS, 2, ENTITIES).bounds, rows)


@pytest.fixture
def stored(graph: KnowledgeGraph, parts: EntityParts, tmp_path: Path) -> StoredTriples:
    bucket = bucket_of(BucketSchedule(PARTS, 2, ENTITIES), parts.owner)
    return StoredTriples(lambda: iter([(np.arange(graph.num_triples), graph.train)]), bucket, PARTS**2, tmp_path)


def test_answers_to_both_queries_are_those_of_all_triples(graph: KnowledgeGraph, stored: StoredTriples) -> None:
    count_answers(stored, PARTS, RELATIONS)
    known = [KnownAnswers.of(graph.train, side, RELATIONS) for side in (HEAD, TAIL)]
    seen = 0
    for bucket in range(PARTS**2):
        numbers, records = stored.of(bucket)
        assert np.array_equal(triples_of(records), graph.train[numbers])
        wanted = sum(side.counts(graph.train[numbers]) for side in known)
        assert np.array_equal(records["answers"], wanted)
        np.testing.assert_array_equal((1 / np.sqrt(wanted + 6.0)).astype(np.float32), triple_weights(graph)[numbers])
        seen += len(numbers)
    assert seen == graph.num_triples


def test_occurrences_are_those_of_all_triples(
    graph: KnowledgeGraph, stored: StoredTriples, parts: EntityParts, tmp_path: Path
) -> None:
    found, bounds = PartOccurrences(stored, parts, tmp_path), parts.bounds.tolist()
    by_row = graph.occurrences()[parts.entities(np.arange(ENTITIES))]
    for low, high in pairwise(bounds):
        assert np.array_equal(found(low, high), by_row[low:high])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_negatives_of_parts_by_occurrences_are_drawn_as_from_memory_and_made_once_while_parts_stay(
    graph: KnowledgeGraph, parts: EntityParts, stored: StoredTriples, tmp_path: Path, power: float
) -> None:
    of_rows, asked = PartOccurrences(stored, parts, tmp_path), []

    def occurrences(low: int, high: int) -> np.ndarray:
        asked.append(low // 15)
        return of_rows(low, high)

    elsewhere = KnowledgeGraph("g", ENTITIES, RELATIONS, {}, train_elsewhere=graph.num_triples)
    whole = ChunkNegatives(graph, 12, power, seed=3, parts=parts)
    found = ChunkNegatives(elsewhere, 12, power, seed=3, parts=parts, filtered=False, occurrences=occurrences)
    chunks, triples = np.arange(5), graph.train[:20].reshape(5, 4, 3)
    for held in ([0, 1], [1, 0], [1, 2], [0, 1], [2, 3], [2, 3]):  # steps of two states may alternate
        among = np.tile(held, (5, 1))
        drawn = [one.candidates(triples, chunks, TAIL, 1, among) for one in (whole, found)]
        assert np.array_equal(*drawn)
    assert asked == [0, 1, 2, 3]
    found.candidates(triples, chunks, TAIL, 1, np.tile([0, 3], (5, 1)))
    assert asked == [0, 1, 2, 3, 0]
