from __future__ import annotations

import numpy as np
import pytest

from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram.config import DeepWalkConfig, Metapath2VecConfig, SkipGramConfig
from graph_emb.models.skipgram.rates import rate_of_walks
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.sampling.walks import WalkSampler


def test_few_passes_of_each_arc_want_long_steps_and_many_want_word2vecs() -> None:
    rates = [rate_of_walks(passes * 500, 500) for passes in (0.1, 3, 5, 9, 30, 1_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (0.1, 0.025)
    assert rates[3] == pytest.approx(0.2 * 9**-0.6, rel=0.005)


def test_a_graph_without_arcs_has_a_rate() -> None:
    assert rate_of_walks(100, 0) == 0.025


def trained(num_walks: int, **fields: object) -> float:
    ring = Graph.from_edges(np.arange(40), (np.arange(40) + 1) % 40)
    sampler = WalkSampler(ring, num_walks=num_walks, walk_length=10)
    result = train_skipgram(sampler, SkipGramConfig(dim=4, **fields), num_threads=1, progress=False)
    return result.first_lr


def test_the_training_starts_at_the_rate_of_its_walks() -> None:
    # 40 * 10 tokens for each walk from every node, 80 arcs: 5 passes, then 50
    assert trained(1) == rate_of_walks(5 * 80, 80) == pytest.approx(0.0761)
    assert trained(10) == 0.025


def test_a_given_rate_and_the_rate_of_another_rule_stay() -> None:
    assert trained(1, lr=0.3) == 0.3
    assert trained(1, rule="adagrad") == 0.05
    assert trained(1, path="optimizer") == 0.025


def test_auto_is_null_and_rows_of_a_file_want_the_low_rate() -> None:
    assert DeepWalkConfig(lr="auto") == DeepWalkConfig()
    assert DeepWalkConfig().rate_follows_walks
    assert not DeepWalkConfig(warm_start="rows.npy").rate_follows_walks
    assert not Metapath2VecConfig().rate_follows_walks
