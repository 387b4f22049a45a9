"""Walk models on rows that nodes share: the steps of a dense reference, in any number of trainers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import graph_emb as ge
from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.model import SkipGram, cut_blocks
from graph_emb.models.skipgram.steps import Kernel
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from graph_emb.transport.lockstep import layout
from partition.partitioned import PartPolicy
from tests.models.skipgram.local_sgd import NODES, SMALL, WALKS, graph_of_groups
from tests.models.skipgram.test_kvstore import as_a_rank
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode")

IDS = np.arange(NODES)
LEVELS = np.stack([IDS // 20, IDS // 5], axis=1)
KINDS = ("position-hash", "position", "hash", "quotient-remainder")


def config_of(kind: str, **options: Any) -> SkipGramConfig:
    buckets = {} if kind == "position" else {"num_buckets": 6}
    given = {**SMALL, "rule": "adagrad", "batch_size": 160, "epochs": 3, "lr": 0.1, "table": kind, **buckets, **options}
    return SkipGramConfig(**given)


def levels_of(kind: str) -> np.ndarray | None:
    return LEVELS if kind.startswith("position") else None


def dense(emb: Any, tables: list[Tensor]) -> Tensor:
    """All rows (N, D) by the formulas, from whole tables in the order of ``emb.tables``."""
    if emb.kind == "quotient-remainder":
        return tables[0][IDS // 6] + tables[1][IDS % 6]
    total: Any = 0.0
    if emb.kind.startswith("position"):
        total = tables[0][IDS // 20] + tables[1][IDS // 5]
    if emb.kind.endswith("hash"):
        buckets = tables[-2][emb.buckets_of(torch.from_numpy(IDS))]
        total = total + ((1 + tables[-1]).unsqueeze(2) * buckets).sum(dim=1)
    return total


def stepped(model: SkipGram, rule: str) -> list[Tensor]:
    """The tables after the walks of three epochs, one step each, in float64 on whole tables."""
    leaves = [table.weight[:].double().requires_grad_() for table in expanded(model.tables)]
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    count = len(model.embedding.tables)  # type: ignore[union-attr]
    sampler = WalkSampler(graph_of_groups(), **WALKS)
    kernel = Kernel(model.config, NegativeSampler(sampler.degrees(), 0.75, seed=3))
    for epoch in range(3):
        ((walks, index),) = sampler.numbered_batches(10_000, epoch=epoch)
        blocks = cut_blocks(walks, kernel.draw(walks, epoch, index), model.config)
        token = dense(model.embedding, leaves[:count])
        other = token if model.config.tables == 1 else dense(model.context, leaves[count:])
        x, near, far = token[blocks.tokens], other[blocks.contexts], other[blocks.negatives]  # -1 has weight 0
        loss = -(blocks.weights * logsigmoid(x @ near.mT)).sum()
        loss = loss - (blocks.negative_weights * logsigmoid(-(x @ far.mT))).sum()
        grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for leaf, grad, total in zip(leaves, grads, sums, strict=True):
                total += grad**2
                leaf -= model.config.first_lr * (grad if rule == "sgd" else grad / (total.sqrt() + 1e-10))
    return [leaf.detach() for leaf in leaves]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{"tables": 1}, {"path": "autograd"}, {"rule": "sgd", "path": "optimizer"}], ids=str
)
def test_steps_are_those_of_a_dense_reference(kind: str, options: dict[str, Any]) -> None:
    config = config_of(kind, lr_decay="none", **options)
    given: dict[str, Any] = {"seed": 3, "levels": levels_of(kind)}
    wanted = stepped(SkipGram(NODES, config, **given), config.rule)
    found = train_skipgram(WalkSampler(graph_of_groups(), **WALKS), config, num_threads=1, progress=False, **given)
    assert isinstance(found.embedding, ComposedEmbedding)
    for table, leaf in zip(expanded(found.model.tables), wanted, strict=True):
        torch.testing.assert_close(table.weight[:].double(), leaf, rtol=2e-3, atol=2e-4)
    count = len(found.embedding.tables)
    torch.testing.assert_close(
        found.embeddings().double(), dense(found.embedding, wanted[:count]), rtol=2e-3, atol=5e-4
    )
    assert found.model.num_parameters == sum(leaf.numel() for leaf in wanted)


ORDER = np.random.default_rng(0).permutation(NODES)
BOOK = RangeBook([0, 25, 40])


def trained_on_a_rank(kind: str) -> Tensor:
    try:
        transport: Any = ge.init(mode="collective")
        part = PartGraph.of_graph(graph_of_groups(), transport.layout(BOOK, "walks"), transport.rank)
        sampler = PartitionedWalkSampler(part, transport.group, **WALKS)
        model = SkipGram(NODES, config_of(kind, batch_size=20), seed=3, part_policy=BOOK, levels=levels_of(kind))
        train_skipgram(sampler, model=model, num_threads=1, progress=False)
        return model.embeddings()
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["position-hash", "quotient-remainder"])
def test_two_ranks_step_as_one_process(ranks: Ranks, kind: str) -> None:
    model = SkipGram(NODES, config_of(kind, batch_size=40), seed=3, levels=levels_of(kind))
    train_skipgram(WalkSampler(graph_of_groups(), **WALKS), model=model, num_threads=1, progress=False)
    for rows in ranks.run(trained_on_a_rank, 2, kind):
        torch.testing.assert_close(rows, model.embeddings(), rtol=1e-3, atol=1e-4)


def trained_with_servers(transport: Any, port: int) -> Tensor:
    group = as_a_rank(transport, port)
    try:
        part = PartGraph.of_graph(graph_of_groups(), layout(BOOK, transport.world_size, None, "walks"), transport.rank)
        sampler = PartitionedWalkSampler(part, group, **{**WALKS, "num_walks": 40})
        config = config_of("position-hash", batch_size=20, epochs=1)
        model = SkipGram(NODES, config, seed=3, part_policy=BOOK, levels=LEVELS)
        train_skipgram(sampler, model=model, num_threads=1, progress=False)
        transport.barrier()
        rows = model.embeddings()
        transport.barrier()
        return rows
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.usefixtures("idle_servers")
def test_trainers_of_servers_learn_the_groups() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rows, other = Cluster(trainers=2, machines=1).run(trained_with_servers, store.port)
    assert torch.equal(rows, other)
    unit = torch.nn.functional.normalize(rows[torch.cat([torch.arange(19), torch.arange(20, 39)])])
    near, far = (unit @ unit.T)[:19, :19].mean(), (unit @ unit.T)[:19, 19:].mean()
    assert near > far + 0.3


def test_levels_follow_original_ids() -> None:
    """A policy of ``partition`` numbers rows anew: row r is of node ORDER[r]."""
    policy = PartPolicy("node~n", RangeBook([0, NODES]), ArrayIds(ORDER, NODES))
    plain, moved = (
        SkipGram(NODES, config_of("position-hash"), seed=3, levels=LEVELS, part_policy=given).embeddings()
        for given in (None, policy)
    )
    torch.testing.assert_close(moved, plain[torch.from_numpy(ORDER)])


def test_the_seed_chooses_buckets() -> None:
    kept = [SkipGram(NODES, config_of("hash"), seed=seed).embedding for seed in (3, 4)]
    one, other = (emb.buckets_of(torch.from_numpy(IDS)) for emb in kept if isinstance(emb, ComposedEmbedding))
    assert not torch.equal(one, other)


def test_line_trains_both_orders_on_shared_rows() -> None:
    config = LineConfig(dim=8, draws_per_edge=20, rule="adagrad", table="position", levels=(2, 8))
    edges = EdgeSampler.of_graph(graph_of_groups(), draws_per_edge=20)
    result = train_line(edges, config, num_threads=1, progress=False, levels=LEVELS)
    assert result.num_parameters == (2 + 8) * 4 * 3  # one table of the first order, two of the second
    rows = result.embeddings()
    assert len(rows.unique(dim=0)) == 8
    assert float(rows[:19].mean(dim=0) @ rows[20:39].mean(dim=0)) < 0.5


def test_what_does_not_fit_is_refused() -> None:
    walks = WalkSampler(graph_of_groups(), **WALKS)
    with pytest.raises(ConfigError, match="table='position' needs the levels of nodes"):
        train_skipgram(walks, config_of("position"), progress=False)
    model = SkipGram(NODES, config_of("hash"))
    with pytest.raises(ConfigError, match="levels are given and a model, which has its own"):
        train_skipgram(walks, model=model, levels=LEVELS, progress=False)
    with pytest.raises(ValueError, match="table = 'hash': rows that nodes share are trained by an optimizer"):
        SkipGramConfig(table="hash")
    with pytest.raises(ConfigError, match="has a row for each node; shared rows need values that depend on ids"):
        SkipGram(NODES, config_of("hash"), init_func=ge.initializers.FromArray(torch.ones(NODES, 6)))
