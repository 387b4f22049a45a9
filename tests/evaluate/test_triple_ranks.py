from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate import triple_ranks as module
from graph_emb.evaluate.link_prediction import ogb_metrics
from graph_emb.evaluate.triple_ranks import TripleRanks, rank_given, rank_part, rank_triples, score_given
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import SCORERS, DistMult, score
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from tests.models.kge.references import normal
from tests.ogb_layout import write_biokg, write_wikikg2

# One dimension: the score of (h, r, t) is value[h] * value[t].
VALUES, ONE = torch.tensor([[1.0], [2.0], [3.0], [3.0], [-1.0]]), torch.tensor([[1.0]])
TRIPLE = np.array([[0, 0, 1]])


def known(*triples: tuple[int, int, int]) -> list[KnownAnswers]:
    return [KnownAnswers.of(np.array(triples), side, 1) for side in (HEAD, TAIL)]


def both(found: TripleRanks) -> list[list[float]]:
    return [
        [float(value) for value in (s.optimistic[0], s.realistic[0], s.pessimistic[0])]
        for s in (found.head, found.tail)
    ]


def test_raw_ranks_by_hand() -> None:
    # Tails of (0, 0, ?): 1, [2], 3, 3, -1. Heads of (?, 0, 1): [2], 4, 6, 6, -2.
    assert both(rank_triples(DistMult(1), VALUES, ONE, TRIPLE)) == [[4.0] * 3, [3.0] * 3]


def test_filtered_ranks_leave_out_other_answers_and_keep_the_judged_one() -> None:
    # (0, 0, 2) and (3, 0, 1) are true as well: one better tail and one better head are left out.
    found = rank_triples(DistMult(1), VALUES, ONE, TRIPLE, known((0, 0, 1), (0, 0, 2), (3, 0, 1)))
    assert both(found) == [[3.0] * 3, [2.0] * 3]
    assert found.filtered


def test_ties_are_read_in_three_ways() -> None:
    # (0, 0, 2): entity 3 has the same value, unless it is a known answer.
    triple = np.array([[0, 0, 2]])
    assert both(rank_triples(DistMult(1), VALUES, ONE, triple))[1] == [1.0, 1.5, 2.0]
    assert both(rank_triples(DistMult(1), VALUES, ONE, triple, known((0, 0, 2), (0, 0, 3))))[1] == [1.0] * 3


def test_a_collapsed_model_is_not_good_by_the_realistic_rank() -> None:
    found = rank_triples(DistMult(1), torch.ones(9, 1), ONE, TRIPLE)
    assert found.mrr() == pytest.approx((1 / 5, 1.0, 1 / 9))


def test_metrics_are_the_mean_of_both_sides() -> None:
    found = rank_triples(DistMult(1), VALUES, ONE, TRIPLE)  # ranks 4 and 3
    assert found.mrr().realistic == pytest.approx((1 / 4 + 1 / 3) / 2)
    assert found.hits(3).realistic == 0.5
    assert found.mean_rank() == 3.5
    as_dict = found.as_dict()
    assert as_dict["candidates"] == "all 5 entities"
    assert as_dict["both"]["hits@10"]["realistic"] == 1.0
    assert "raw, both sides of 1 triples against all 5 entities" in str(found)


def dense_rank(
    scorer: Any, entities: Tensor, relations: Tensor, triple: list[int], everything: set[Any], side: int
) -> int:
    """One by one, from the score alone."""
    place = 0 if side == HEAD else 2
    own = score(scorer, entities[triple[0]], relations[triple[1]], entities[triple[2]])
    better = 1
    for e in range(len(entities)):
        other = list(triple)
        other[place] = e
        if tuple(other) not in everything:
            better += int(score(scorer, entities[other[0]], relations[other[1]], entities[other[2]]) > own)
    return better


@pytest.mark.parametrize("name", SCORERS)
def test_filtered_ranks_equal_a_loop_over_all_entities(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_BLOCK", 3)  # several blocks, triples of one query in one of them
    scorer = SCORERS[name](KGEConfig(model=name, dim=4))
    entities = normal(9, 4, dtype=torch.float32)
    relations = normal(2, scorer.relation_dim, seed=1, dtype=torch.float32)
    triples = np.unique(np.random.default_rng(0).integers(0, [9, 2, 9], (30, 3)), axis=0)
    everything = {tuple(t) for t in triples.tolist()}
    answers = [KnownAnswers.of(triples, side, 2) for side in (HEAD, TAIL)]
    found = rank_triples(scorer, entities, relations, triples[::2], answers)
    for side, ranks in ((HEAD, found.head), (TAIL, found.tail)):
        expected = [dense_rank(scorer, entities, relations, t, everything, side) for t in triples[::2].tolist()]
        assert ranks.optimistic.tolist() == expected


def test_sampled_ranks_say_so_and_count_among_the_sample() -> None:
    entities = torch.arange(100.0, 0.0, -1.0)[:, None]  # entity e has e better ones
    triples = np.array([[0, 0, 40]])
    found = rank_triples(DistMult(1), entities, ONE, triples, num_candidates=99, seed=1)
    assert found.candidates == "99 sampled entities"
    assert found.tail.num_negatives == 99
    assert int(found.tail.optimistic) in (40, 41)  # one of 100 is missing, the true one at times
    few = [
        int(rank_triples(DistMult(1), entities, ONE, triples, num_candidates=10, seed=s).tail.optimistic)
        for s in range(50)
    ]
    assert max(few) <= 11
    assert np.mean(few) == pytest.approx(1 + 10 * 0.4, abs=0.8)


def test_sampled_candidates_that_are_known_answers_do_not_count() -> None:
    entities = torch.arange(6.0, 0.0, -1.0)[:, None]
    answers = known(*((0, 0, t) for t in range(6)))
    found = rank_triples(DistMult(1), entities, ONE, np.array([[0, 0, 5]]), answers, num_candidates=5)
    assert int(found.tail.pessimistic) == 1


def test_given_negatives_are_ranked_by_ogbs_evaluator(tmp_path: Path) -> None:
    for name, write in (("ogbl-biokg", write_biokg), ("ogbl-wikikg2", write_wikikg2)):
        write(tmp_path)
        graph = knowledge_graph(load_dataset(name, tmp_path))
        scorer = DistMult(2)
        entities, relations = (
            normal(graph.num_entities, 2, dtype=torch.float32).round(),
            torch.ones(graph.num_relations, 2),
        )
        found = rank_part(scorer, entities, relations, graph, "test")
        assert found.candidates == "5 given entities for each triple"
        given = graph.negatives["test"]
        sides = [
            score_given(scorer, entities, relations, graph.parts["test"], ids, side)
            for ids, side in ((given.heads, HEAD), (given.tails, TAIL))
        ]
        theirs = ogb_metrics(name, torch.cat([p for p, _ in sides]), torch.cat([n for _, n in sides]))
        assert found.mrr().realistic == pytest.approx(theirs["mrr"], abs=1e-6)
        assert found.mrr().gap > 0, "rounded rows make ties, which OGB's rule reads realistically"


def test_given_negatives_by_hand() -> None:
    found = rank_given(DistMult(1), VALUES, ONE, TRIPLE, np.array([[1, 2]]), np.array([[4, 0]]))
    assert both(found) == [[3.0] * 3, [1.0] * 3]


def test_chosen_triples_take_their_own_negatives() -> None:
    triples = np.array([[0, 0, 1], [2, 0, 1], [0, 0, 4]])
    given = GivenNegatives(np.array([[1], [1], [2]]), np.array([[4], [4], [2]]))
    graph = KnowledgeGraph("g", 5, 1, {"train": triples, "test": triples}, negatives={"test": given})
    whole = rank_part(DistMult(1), VALUES, ONE, graph, "test")
    chosen = rank_part(DistMult(1), VALUES, ONE, graph, "test", chosen=np.array([0, 2]))
    assert chosen.tail.optimistic.tolist() == whole.tail.optimistic[[0, 2]].tolist() == [1, 2]


def test_bad_input_is_refused() -> None:
    graph = KnowledgeGraph("g", 5, 1, {"train": TRIPLE})
    with pytest.raises(DataError, match="g has no part 'test'; it has train"):
        rank_part(DistMult(1), VALUES, ONE, graph, "test")
    with pytest.raises(ConfigError, match=r"num_candidates is 5; it must be in \[1, 5\)"):
        rank_triples(DistMult(1), VALUES, ONE, TRIPLE, num_candidates=5)
    with pytest.raises(DataError, match="entity rows are not finite"):
        rank_triples(DistMult(1), VALUES * float("nan"), ONE, TRIPLE)
    with pytest.raises(ShapeError, match=r"expected \(B, 3\)"):
        rank_triples(DistMult(1), VALUES, ONE, TRIPLE[:, :2])
    with pytest.raises(ShapeError, match=r"expected \(1, M\)"):
        score_given(DistMult(1), VALUES, ONE, TRIPLE, np.array([[1], [2]]), HEAD)
    given = GivenNegatives(np.array([[1]]), np.array([[4]]))
    with pytest.raises(ConfigError, match="candidates = 3: g gives its own"):
        rank_part(DistMult(1), VALUES, ONE, KnowledgeGraph("g", 5, 1, {"train": TRIPLE}, negatives={"train": given}),
                  "train", num_candidates=3)  # fmt: skip
