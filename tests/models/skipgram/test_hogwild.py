"""Skip-gram by processes that train the same rows in place: each reaches all, and taking turns they are one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram.local_sgd import ExchangeSteps
from graph_emb.models.skipgram.steps import InPlaceSteps, WalkBatch, WalkRates
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, train_skipgram
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from tests.models.skipgram.local_sgd import NODES, SMALL, WALKS, fill, graph_of_groups
from tests.models.skipgram.test_collective import GROUPS, PLANTED, accuracy, planted
from tests.models.skipgram.test_kvstore import as_a_rank
from tests.ranks import Ranks, with_shared_memory
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

BOUNDS = [0, 25, 40]
PIECE = 20
"""Walks between two turns."""


def in_turns(transport: Any, tables: int) -> list[torch.Tensor]:
    """Train pieces of all walks in place, one process after the other; all rows."""
    config = SkipGramConfig(**SMALL, tables=tables)
    model = SkipGram(NODES, config, seed=3, part_policy=RangeBook(BOUNDS), name="in turns")
    fill(model)
    transport.barrier()
    assert InPlaceSteps.fits(model)
    graph = graph_of_groups()
    (walks,) = WalkSampler(graph, **WALKS).batches(10_000)
    negatives = NegativeSampler(WalkSampler(graph).degrees(), seed=0)
    with ThreadPoolExecutor(1) as pool:
        steps = InPlaceSteps(model, negatives, WalkRates(0.1, len(walks)), pool, 1)
        for turn, low in enumerate(range(0, len(walks), PIECE)):
            if turn % transport.world_size == transport.rank:
                index = np.arange(low, min(low + PIECE, len(walks)))
                steps.run(WalkBatch(walks[index], index, 0, low, len(index), 0))
            transport.barrier()
    return [table.weight[:] for table in model.tables]


def in_turns_on_a_rank(tables: int) -> list[torch.Tensor]:
    try:
        return in_turns(ge.init(mode="collective", hogwild=True), tables)
    finally:
        ge.shutdown()


@with_shared_memory
@pytest.mark.dist
@pytest.mark.parametrize(("world_size", "tables"), [(2, 2), (3, 1)])
def test_ranks_in_turns_are_one_process(ranks: Ranks, world_size: int, tables: int) -> None:
    found = ranks.run(in_turns_on_a_rank, world_size, tables)
    expected = in_turns(ge.init(mode="local"), tables)
    for rows in found:
        assert all(torch.equal(mine, other) for mine, other in zip(rows, expected, strict=True))


@pytest.mark.dist
def test_trainers_of_a_server_in_turns_are_one_process() -> None:
    found = Cluster(trainers=2, hogwild=True).run(in_turns, 2)
    expected = in_turns(ge.init(mode="local"), 2)
    for rows in found:
        assert all(torch.equal(mine, other) for mine, other in zip(rows, expected, strict=True))


def handled(transport: Any) -> list[Any]:
    """Which tables fit in place, with a push handler, with a pull handler, and without; what a handler of SGD saw."""
    model = SkipGram(NODES, SkipGramConfig(**SMALL), part_policy=RangeBook(BOUNDS), name="handled")
    fill(model)
    transport.barrier()
    fits = []
    for register in (transport.register_push_handler, transport.register_pull_handler):
        register("handled.context", left_alone)
        fits.append(InPlaceSteps.fits(model))
        register("handled.context", None)
    fits.append(InPlaceSteps.fits(model))
    if transport.world_size > 1:
        return fits
    before = [table.weight[:] for table in model.tables]
    transport.register_push_handler("handled.context", left_alone)
    sampler = WalkSampler(graph_of_groups(), **WALKS)
    train_skipgram(sampler, model=model, num_threads=1, progress=False)
    return [*fits, *(torch.equal(table.weight[:], old) for table, old in zip(model.tables, before, strict=True))]


def left_alone(data: Any, name: str, offset: torch.Tensor, values: torch.Tensor | None = None) -> Any:
    """A handler that changes nothing."""
    return data[name][offset] if values is None else None


@pytest.mark.dist
def test_rows_with_handlers_are_not_changed_behind_them() -> None:
    found = Cluster(trainers=2, hogwild=True).run(handled)
    assert found == [[False, False, True]] * 2
    assert handled(ge.init(mode="kvstore")) == [False, False, True, False, True], "the handled table stays as it was"


def planted_rows(transport: Any, group: ProcessGroup) -> dict[str, Any]:
    """Train on a part of the planted graph; all rows, the last line, and the changes of rows that were sent."""
    graph, book = planted(), RangeBook([0, 100, 200])
    part = PartGraph.of_graph(graph, layout(book, transport.world_size, None, "walks"), transport.rank)
    sampler = PartitionedWalkSampler(part, group, **{**WALKS, "num_walks": 20, "walk_length": 20})
    model = SkipGram(200, SkipGramConfig(**PLANTED), part_policy=book, name="planted")
    result = train_skipgram(sampler, model=model, num_threads=1, progress=False)
    found = {"rows": result.embeddings().numpy(), "line": result.history[-1], "pushes": transport.traffic.steps}
    transport.barrier()
    return found


def planted_on_a_rank() -> dict[str, Any]:
    try:
        transport: Any = ge.init(mode="collective", hogwild=True)
        return planted_rows(transport, transport.group)
    finally:
        ge.shutdown()


def planted_with_servers(transport: Any, port: int) -> dict[str, Any]:
    group = as_a_rank(transport, port)
    try:
        return planted_rows(transport, group)
    finally:
        group.close()


def check_planted(found: list[dict[str, Any]]) -> None:
    sampler = WalkSampler(planted(), **{**WALKS, "num_walks": 20, "walk_length": 20})
    local = train_skipgram(sampler, SkipGramConfig(**PLANTED), num_threads=1, progress=False)
    np.testing.assert_array_equal(found[0]["rows"], found[1]["rows"])
    assert [one["pushes"] for one in found] == [0, 0], "rows are changed in place"
    line = found[0]["line"]
    assert (line.walks, line.tokens, line.local_share) == (4000, local.history[-1].tokens, 1.0)
    assert line.loss == pytest.approx(local.history[-1].loss, rel=0.02)
    assert accuracy(found[0]["rows"][GROUPS]) > accuracy(local.embeddings().numpy()[GROUPS]) - 0.03


@with_shared_memory
@pytest.mark.dist
def test_two_ranks_in_place_find_planted_groups_as_well_as_one(ranks: Ranks) -> None:
    check_planted(ranks.run(planted_on_a_rank, 2))


@pytest.mark.dist
def test_two_trainers_in_place_find_planted_groups_as_well_as_one() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    cluster = Cluster(trainers=2, hogwild=True)
    check_planted(cluster.run(planted_with_servers, store.port))


def what_fits(hogwild: bool) -> list[bool]:
    """Before and after the first rank freezes a row of the second: in place, by copies."""
    try:
        transport: Any = ge.init(mode="collective", hogwild=hogwild)
        model = SkipGram(NODES, SkipGramConfig(**SMALL), part_policy=RangeBook(BOUNDS))
        before = [InPlaceSteps.fits(model), ExchangeSteps.fits(model)]
        model.embedding.freeze(torch.tensor([30] if transport.rank == 0 else [], dtype=torch.int64))
        return [*before, InPlaceSteps.fits(model), ExchangeSteps.fits(model)]
    finally:
        ge.shutdown()


@with_shared_memory
@pytest.mark.dist
@pytest.mark.parametrize("hogwild", [True, False])
def test_in_place_only_where_asked_for_and_with_no_row_frozen(ranks: Ranks, hogwild: bool) -> None:
    assert ranks.run(what_fits, 2, hogwild) == [[hogwild, True, False, False]] * 2
