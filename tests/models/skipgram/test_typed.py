"""Skip-gram with negatives by type: metapath2vec++'s gradient, on all paths, and quality that can be lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.skipgram.model import SkipGram, cut_blocks
from graph_emb.models.skipgram.steps import Kernel, gradient_rates
from graph_emb.models.skipgram.training import SkipGramConfig, train_skipgram
from graph_emb.sampling.metapath_walks import Metapath, MetapathGraph, MetapathSampler, node_kinds, step_arcs
from graph_emb.sampling.negatives import TypedNegativeSampler
from graph_emb.sampling.walks import WalkSampler

KINDS = np.array([0, 0, 0, 1, 1, 1], np.int8)
WALKS = np.array([[0, 3, 1, 4, 2], [2, 5, -1, -1, -1], [1, 3, 0, 3, -1]], np.int32)
RECIPE: dict[str, Any] = {"dim": 6, "window": 2, "num_negatives": 3.0, "shared_negatives": 5, "typed_negatives": True}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("block", [2, 5])
def test_negatives_count_for_contexts_of_their_own_type_only(block: int) -> None:
    config = SkipGramConfig(block=block, window_weighting="uniform", **RECIPE)
    rng = np.random.default_rng(0)
    x, c = (rng.normal(0, 0.5, (6, 6)).astype(np.float32) for _ in range(2))
    negatives = TypedNegativeSampler(np.ones(6), KINDS, np.array([0, 1]), 5, seed=1)
    kernel, index = Kernel(config, negatives), np.arange(3)
    drawn = kernel.draw(WALKS, 0, index)
    sums = np.zeros_like(x), np.zeros_like(c)
    kernel.run(WALKS, drawn, (x, c), sums, gradient_rates(len(index)), np.inf, index)
    expected = np.zeros_like(x), np.zeros_like(c)
    for walk, of_walk in zip(WALKS, drawn.reshape(3, -1, 5), strict=True):
        for i, token in enumerate(walk[walk >= 0]):
            for j, context in enumerate(walk[walk >= 0]):
                if i == j or abs(i - j) > 2:
                    continue
                of_type = [n for n in of_walk[i // block] if KINDS[n] == KINDS[context]]
                terms = [(context, sigmoid(x[token] @ c[context]) - 1)]
                terms += [(n, 3.0 / len(of_type) * sigmoid(x[token] @ c[n])) for n in of_type]
                for node, factor in terms:
                    expected[0][token] += factor * c[node]
                    expected[1][node] += factor * x[token]
    for ours, wanted in zip(sums, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
    model = SkipGram(6, config)
    for table, values in zip(model.tables, (x, c), strict=True):
        table.weight[:] = torch.from_numpy(values)
    model.loss(cut_blocks(WALKS, drawn, config, kernel.kinds(WALKS))).backward()
    for table, wanted in zip(model.tables, expected, strict=True):
        np.testing.assert_allclose(gradient_of(table), wanted, rtol=1e-4, atol=1e-5)


def gradient_of(table: Any) -> np.ndarray:
    """What a step of SGD at rate 1 takes off the rows."""
    from graph_emb.optimizer import SparseSGD

    before = table.weight[:].clone()
    SparseSGD([table], lr=1.0).step()
    return (before - table.weight[:]).numpy()


def two_worlds() -> HeteroGraph:
    """Authors 0-19 write papers 0-29 of venue 0, authors 20-39 papers 30-59 of venue 1; a few papers are of both."""
    rng = np.random.default_rng(1)
    paper = np.repeat(np.arange(60), 3)
    author = rng.integers(0, 20, 180) + 20 * (paper >= 30)
    author[::25] = 39 - author[::25]
    return HeteroGraph(
        {"author": 40, "paper": 60, "venue": 2},
        {
            ("paper", "by", "author"): (paper, author),
            ("paper", "in", "venue"): (np.arange(60), (np.arange(60) >= 30).astype(np.int64)),
        },
    )


def sampler_of(graph: HeteroGraph, text: str = "author-paper-venue-paper-author", **options: Any) -> MetapathSampler:
    path = Metapath.parse(text, graph)
    kinds = [graph.ntypes.index(ntype) for ntype in path.types]
    steps = [step_arcs(graph, step) for step in path.steps]
    whole = MetapathGraph.build(kinds, node_kinds(graph), steps, RankRanges([0, graph.total_nodes], [0], 1))
    return MetapathSampler(whole, **{"num_walks": 20, "walk_length": 17, "seed": 1, **options})


@pytest.mark.parametrize("typed", [False, True])
def test_metapath2vec_finds_the_authors_of_a_venue(typed: bool) -> None:
    config = SkipGramConfig(dim=16, window=4, shared_negatives=9, typed_negatives=typed, lr=0.05)
    rows = train_skipgram(sampler_of(two_worlds()), config, num_threads=1, progress=False).embeddings().numpy()[:40]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = unit @ unit.T
    same = np.equal.outer(np.arange(40) < 20, np.arange(40) < 20)
    assert cosine[same].mean() - cosine[~same].mean() > 0.3


def test_types_of_negatives_change_the_rows() -> None:
    recipes = [SkipGramConfig(dim=8, window=4, shared_negatives=9, typed_negatives=typed) for typed in (False, True)]
    rows = [
        train_skipgram(sampler_of(two_worlds()), recipe, num_threads=1, progress=False).embeddings()
        for recipe in recipes
    ]
    assert not torch.allclose(rows[0], rows[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsample": 1e-3}, "subsample is 0.001 with typed_negatives"),
        ({"negative_scope": "local"}, "negative_scope is 'local' with typed_negatives"),
        ({"negative_pool": 9}, "negative_pool is 9 with typed_negatives"),
        ({"remote_negatives": 2}, "remote_negatives is 2 with typed_negatives"),
    ],
)
def test_what_types_cannot_go_with_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SkipGramConfig(typed_negatives=True, **options)


def test_walks_without_types_cannot_have_typed_negatives() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=3)
    with pytest.raises(ConfigError, match="typed_negatives needs the walks of a MetapathSampler"):
        train_skipgram(WalkSampler(graph), SkipGramConfig(typed_negatives=True), progress=False)
