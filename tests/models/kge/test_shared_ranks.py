"""Validation by all ranks of a training finds what one process finds on the same rows, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.evaluate import dealt_triples, triple_ranks
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.graph.triples import GivenNegatives
from graph_emb.models.kge import training
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.run.families.triple_findings import SharedRanks
from graph_emb.sampling.partitioned_triples import OwnTriples
from graph_emb.transport.process_group import ProcessGroup
from tests.models.kge.references import ring
from tests.models.skipgram.test_kvstore import as_a_rank
from tests.ranks import Ranks, with_shared_memory
from tests.transport.kvstore.cluster import Cluster

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("fresh_mode", "idle_servers")]

CONFIG = KGEConfig(
    model="complex", dim=8, num_negatives=4, chunk_size=2, batch_size=8, epochs=4, valid_every=2, valid_triples=0
)


def own_triples(group: ProcessGroup) -> OwnTriples:
    graph = ring()
    owner = np.arange(graph.num_entities) % group.world_size
    triples = graph.train if group.rank == 0 else graph.train[:0]
    numbers = np.arange(len(triples))
    return OwnTriples.gathered(triples, numbers, graph.num_relations, owner, group)


def judged(transport: Any, group: Any, config: KGEConfig, own: bool) -> Any:
    """Each validation's MRR, that of this process alone on the rows, and the blocks that this rank counted."""
    seen: list[tuple[float, float]] = []
    counted: list[int] = []
    dealt, run = training.rank_part_dealt, dealt_triples._Counting.run

    def both(group: Any, scorer: Any, rows: Any, graph: Any, part: str, **options: Any) -> Any:
        found = dealt(group, scorer, rows, graph, part, **options)
        if found is not None:
            alone = rank_part(scorer, *rows, graph, part, **options)
            assert found.as_dict() == alone.as_dict()
            for mine, other in ((found.head, alone.head), (found.tail, alone.tail)):
                assert mine.optimistic.tolist() == other.optimistic.tolist()
                assert mine.pessimistic.tolist() == other.pessimistic.tolist()
            seen.append((found.mrr().realistic, alone.mrr().realistic))
        return found

    def count(self: Any) -> Any:
        counted.append(len(self._places))
        return run(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triple_ranks, "QUERY_BLOCK", 1)
        patch.setattr(triple_ranks, "ENTITY_BLOCK", 5)
        patch.setattr(training, "rank_part_dealt", both)
        patch.setattr(dealt_triples._Counting, "run", count)
        result = train_kge(ring(), config, seed=3, num_threads=1, own=own_triples(group) if own else None)
    return [line.valid_mrr for line in result.history], seen, counted


def collective(config: KGEConfig, hogwild: bool, own: bool) -> Any:
    transport: Any = ge.init(mode="collective", hogwild=hogwild)
    try:
        return judged(transport, transport.group, config, own)
    finally:
        ge.shutdown()


def served(transport: Any, port: int) -> Any:
    group = as_a_rank(transport, port)
    try:
        return judged(transport, group, CONFIG, True)
    finally:
        group.close()


def check(found: Any) -> None:
    (mrrs, seen, counted), *others = found
    assert [mrr for mrr in mrrs if mrr is not None] == [mrr for mrr, _ in seen]
    assert len(seen) == 2, "after epochs 2 and 4"
    graph = ring()
    valid = graph.parts["valid"].tolist()
    blocks = len({(r, t) for _, r, t in valid}) + len({(h, r) for h, r, _ in valid})
    for number in range(2):
        of_ranks = [counted[number], *(other[2][number] for other in others)]
        assert sum(of_ranks) == blocks
        assert max(of_ranks) - min(of_ranks) <= 1
    assert all(other[:2] == ([None] * 4, []) for other in others)


@pytest.mark.parametrize(
    ("num_ranks", "hogwild", "own", "change"),
    [
        (2, False, False, {}),
        (3, False, True, {}),
        pytest.param(2, True, True, {"model": "transe", "margin": 2.0}, marks=with_shared_memory),
        (2, False, False, {"candidates": 6}),
    ],
)
def test_ranks_share_a_validation(
    ranks: Ranks, num_ranks: int, hogwild: bool, own: bool, change: dict[str, Any]
) -> None:
    check(ranks.run(collective, num_ranks, CONFIG.replace(**change), hogwild, own))


def test_trainers_beside_servers_share_a_validation() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check(Cluster(trainers=2, machines=2).run(served, store.port))


def ended(what: str) -> Any:
    """The findings of a run's end, or what kept them away."""
    transport: Any = ge.init(mode="collective")
    try:
        graph, group = ring(), transport.group
        result = train_kge(graph, CONFIG, seed=3, num_threads=1)
        rows = None if result.entities is None or result.relations is None else (result.entities, result.relations)
        if rows is not None and what == "infinite":
            rows[0][0] = float("inf")
        if what == "given":
            graph.negatives["valid"] = GivenNegatives(graph.parts["valid"][:, :2], graph.parts["valid"][:, :2])
        shared = SharedRanks.of(group, result.model.scorer, rows, graph, None, num_candidates=None, seed=3)
        group.barrier()  # the ranks are in step
        try:
            return [finding.scores.as_dict() for finding in shared.findings()]
        except ge.DataError as error:
            return str(error)
    finally:
        ge.shutdown()


def test_the_end_of_a_run_is_judged_by_all_and_an_error_waits_for_the_rows(ranks: Ranks) -> None:
    first, second = ranks.run(ended, 2, "fine")
    assert [found["num_triples"] for found in first] == [len(ring().parts["valid"])]
    assert second == []
    first, second = ranks.run(ended, 2, "infinite")
    assert "entity rows are not finite" in first
    assert second == []
    first, second = ranks.run(ended, 2, "given")
    assert [found["candidates"] for found in first] == ["2 given entities for each triple"]
    assert second == []
