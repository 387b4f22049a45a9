"""Several trainers: tables are distributed, networks are copies, and what they learn is what one process learns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.config.schema import MAX_SEED
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.graph.views import message_graph
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import TripleTask
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.models.settings import ModelSettings
from graph_emb.run.own_parts import FEATURES, data_of, own_edges
from graph_emb.run.parallel import Trainers
from graph_emb.transport.process_group import ProcessGroup
from partition.partitioned import PartPolicy
from tests.models.gnn.planted import planted, planted_links, planted_triples
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.dist

ORDER = np.random.default_rng(7).permutation(120)
EXACT = RGCNConfig(epochs=4, dropout=0.0, lr=0.02, clip_norm=None)
LEARN = RGCNConfig(epochs=12, dropout=0.0, lr=0.05, fanouts=(4, 4), batch_size=40, eval_every=4)
LINKS = SAGEConfig(
    dim=16, hidden_dim=16, epochs=6, batch_size=128, fanouts=(5, 5), lr=0.05, dropout=0.1, clip_norm=None, eval_every=3
)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


def collective(
    config: Any, links: bool, parts: str | None = None, features: bool = False, placement: Any = "host"
) -> Any:
    transport: Any = ge.init(mode="collective")
    try:
        own = None if parts is None else Trainers(transport.group, transport)
        return learn(config, links, features=features, own=own, parts=parts, placement=placement)
    finally:
        ge.shutdown()


@contextmanager
def float64() -> Iterator[None]:
    """Tables and networks in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelSettings, "table_dtype", property(lambda _: torch.float64))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def collective_in_float64(config: Any, links: bool, parts: str | None = None, features: bool = False) -> Any:
    with float64():
        return collective(config, links, parts, features)


def planted_features() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(30, 6)).astype(np.float32)


def learn(
    config: Any,
    links: bool,
    group: ProcessGroup | None = None,
    features: bool = False,
    own: Trainers | None = None,
    parts: str | None = None,
    seed: int = 0,
    placement: Any = "host",
) -> Any:
    """Train on the whole graph, or on the part of it that a trainer owns."""
    graph: Any
    graph, task = planted_task(config, links)
    book = RangeBook([0, 30, 120])  # uneven parts, of users in another order than the graph's
    policies: Any = (
        None if "user" not in graph.num_nodes else {"user": PartPolicy("node~user", book, ArrayIds(ORDER, len(ORDER)))}
    )
    given: dict[str, np.ndarray] = {"tag": planted_features()} if features else {}
    if own is not None:
        held = partition.load(str(parts))
        graph = own_edges(held, own)
        _, given = data_of(held, graph.ranges)
        policies = {ntype: held.policy(ntype) for ntype in held.ntypes}
    train: Any = train_sage if isinstance(config, SAGEConfig) else train_rgcn
    result = train(graph, task, config, group=group, policies=policies, features=given, seed=seed, placement=placement)
    rows = {}
    for ntype, table in result.tables.items():
        places = table.original_ids.find(np.arange(table.num_embeddings))
        rows[ntype] = table(torch.from_numpy(places)).detach()
    if result.ranked is not None:
        rows["ranked"] = result.ranked[0]
    dense = [parameter.detach() for parameter in result.model.parameters()]
    return [replace(e, job=None).as_dict() for e in result.history], rows, dense


def planted_task(config: Any, links: bool) -> Any:
    if links and isinstance(config, RGCNConfig):
        return message_graph(planted_triples()), TripleTask(planted_triples())
    return planted_links() if links else planted()


STEPS = {
    "whole": (EXACT, False),
    "sampled": (EXACT.replace(fanouts=(4, 4), batch_size=17, epochs=3), False),
    "links": (LINKS.replace(dropout=0.0, epochs=2, eval_every=1), True),
    "links of several negatives": (
        LINKS.replace(dropout=0.0, epochs=2, eval_every=1, num_negatives=3, aggregator="gcn"),
        True,
    ),
    "triples": (
        EXACT.replace(batch_size=64, num_blocks=2, chunk_size=16, num_negatives=8, lr=0.01, epochs=3, fanouts=(3, 3)),
        True,
    ),
}
"""Without dropout, whose draws are each rank's own."""


@pytest.mark.parametrize("steps", STEPS)
def test_two_ranks_take_the_steps_of_one(two_ranks: Ranks, steps: str) -> None:
    """The same batches, samples and negatives: the gradient is the same sum, in tables and in networks."""
    config, links = STEPS[steps]
    found = two_ranks.run(collective_in_float64, 2, config, links)
    with float64():
        assert_same_steps(found, learn(config, links))


@pytest.mark.parametrize(
    ("steps", "num_ranks"),
    [
        ("sampled", 2),
        ("sampled", 3),
        ("whole", 2),
        ("links", 2),
        ("features", 3),
        ("average", 2),
        ("basis", 2),
        ("triples", 2),
        ("triples", 3),
    ],
)
def test_ranks_with_a_part_of_the_graph_take_the_steps_of_one(
    two_ranks: Ranks, tmp_path: Path, steps: str, num_ranks: int
) -> None:
    """Owners draw the neighbours, tables give the features, evaluation goes by parts: as if the graph were whole."""
    config, links = STEPS.get(steps, STEPS["sampled"])
    if steps == "basis":
        config = config.replace(inputs="basis", num_bases=3)
    if steps == "average":
        config = config.replace(ema_decay=0.5)
    graph, features = planted_task(config, links)[0], steps == "features"
    if features:
        graph = replace(graph, node_data={"tag": {FEATURES: planted_features()}})
    parts = partition.build(graph, 4, "random", seed=1, out=tmp_path / "parts", report=False).path
    found = two_ranks.run(collective_in_float64, num_ranks, config, links, str(parts), features)
    with float64():
        assert_same_steps(found, learn(config, links, features=features))


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("of_parts", [False, True])
def test_ranks_train_rows_in_files_as_those_in_memory(
    two_ranks: Ranks, tmp_path: Path, links: bool, of_parts: bool
) -> None:
    config = (STEPS["links"][0] if links else STEPS["sampled"][0]).replace(fanouts=(4, 4))
    parts = None
    if of_parts:
        graph = planted_task(config, links)[0]
        parts = str(partition.build(graph, 2, "random", seed=1, out=tmp_path / "parts", report=False).path)
    places = ("host", ge.File(tmp_path / "rows", "1MiB"))
    host, file = (two_ranks.run(collective, 2, config, links, parts, False, place) for place in places)
    for one, other in zip(host, file, strict=True):
        assert all(torch.equal(rows, other[1][ntype]) for ntype, rows in one[1].items())
        assert all(map(torch.equal, one[2], other[2]))


BLOCKS: dict[str, Any] = {
    "whole": EXACT.replace(epochs=3, dropout=0.3),
    "sampled": EXACT.replace(fanouts=(4, 4), batch_size=17, epochs=3, dropout=0.3, clip_norm=0.05),
    "basis": EXACT.replace(fanouts=(4, 4), batch_size=17, epochs=2, inputs="basis", num_bases=3, edge_dropout=0.3),
    "links": LINKS.replace(epochs=2, eval_every=1, clip_norm=0.05),
    "own rows": EXACT.replace(epochs=2, inputs="hash", num_buckets=12, own_rows=9),
    "triples": STEPS["triples"][0].replace(dropout=0.2, clip_norm=0.05, ema_decay=0.5),
}
"""Steps in blocks; dropout too begins anew with each."""


@pytest.mark.parametrize("steps", BLOCKS)
def test_blocks_of_steps_give_any_ranks_the_same_bits(two_ranks: Ranks, tmp_path: Path, steps: str) -> None:
    """Rows, network and evaluations of 1, 2 and 4 ranks, on the whole graph, 2 parts and 4 parts."""
    config, links = BLOCKS[steps].replace(blocks=4, dtype="float64"), steps in ("links", "triples")
    graph = planted_task(config, links)[0]
    expected = learn(config, links)
    assert all(rows.dtype == torch.float64 for rows in expected[1].values())
    for num_ranks, num_parts in ((4, 0), (1, 2), (2, 4)):
        parts = None
        if num_parts:
            out = tmp_path / f"parts-{num_ranks}-{num_parts}"
            parts = str(partition.build(graph, num_parts, "random", seed=num_ranks, out=out, report=False).path)
        for found in two_ranks.run(collective, num_ranks, config, links, parts):
            assert_same_bits(found, expected)


def assert_same_bits(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for ntype, rows in found[1].items():  # those that rank triples are on the first rank alone
        assert torch.equal(rows, expected[1][ntype])
    for ours, theirs in zip(found[2], expected[2], strict=True):
        assert ours.dtype == torch.float64
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("steps", ["whole", "links"])
def test_blocks_take_the_steps_of_whole_batches(steps: str) -> None:
    """But for rounding: full batches are cut, not drawn anew."""
    config, links = BLOCKS[steps].replace(dtype="float64", dropout=0.0, clip_norm=None), steps == "links"
    history, rows, dense = learn(config.replace(blocks=3), links)
    whole = learn(config, links)
    for ours, theirs in zip(history, whole[0], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
    for ntype, own in rows.items():
        torch.testing.assert_close(own, whole[1][ntype], rtol=0, atol=1e-9)
    for one, other in zip(dense, whole[2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert any(not torch.equal(one, other) for one, other in zip(dense, whole[2], strict=True))


def test_ranks_that_cannot_share_the_blocks_are_refused(two_ranks: Ranks) -> None:
    assert two_ranks.run(refused_blocks, 3) == ["refused"] * 3


def refused_blocks() -> str:
    message = "parallel.blocks = 4 are not shared evenly by 3 trainers; take 1, 2, 4 trainers, or as many blocks as a"
    with pytest.raises(ge.ConfigError, match=message):
        collective(EXACT.replace(blocks=4), False)
    return "refused"


def assert_same_steps(found: Any, alone: Any) -> None:
    """But for the order in which ranks add, which moves the last bits of float64."""
    for history, rows, dense in found:
        for ours, theirs in zip(history, alone[0], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
            for part in ("valid", "test"):
                assert (ours[part] is None) == (theirs[part] is None)
                for metric, value in (ours[part] or {}).items():
                    assert value == pytest.approx(theirs[part][metric], abs=1e-12)
        for ntype, own in rows.items():
            assert own.dtype == torch.float64
            torch.testing.assert_close(own, alone[1][ntype], rtol=0, atol=1e-12)
        for parameter, expected in zip(dense, alone[2], strict=True):
            torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(found[0][2], found[1][2], strict=True):
        assert torch.equal(ours, theirs), "the copies of the network stay equal to the last bit"


def test_two_ranks_tell_edges_from_other_pairs(two_ranks: Ranks) -> None:
    found = two_ranks.run(collective, 2, LINKS, True)
    for history, _, _ in found:
        assert history == found[0][0], "the ranks agree about every evaluation"
        assert max(e["valid"]["rocauc"] for e in history) > 0.9
    for ours, theirs in zip(found[0][2], found[1][2], strict=True):
        assert torch.equal(ours, theirs)


def with_the_largest_seed() -> list[float]:
    ge.init(mode="collective")
    try:
        graph, task = planted()
        result = train_rgcn(graph, task, EXACT.replace(epochs=1, batch_size=30), seed=MAX_SEED)
        return [evaluation.loss for evaluation in result.history]
    finally:
        ge.shutdown()


def test_three_ranks_take_the_largest_seed(two_ranks: Ranks) -> None:
    first, *others = two_ranks.run(with_the_largest_seed, 3)
    assert np.isfinite(first)
    assert others == [first, first]


def of_seeds(group: ProcessGroup | None = None) -> list[Any]:
    """Trainings of three seeds: of one alone, a test node or two would decide."""
    return [learn(LEARN, False, group, seed=seed) for seed in range(3)]


def of_seeds_on_a_rank() -> list[Any]:
    ge.init(mode="collective")
    try:
        return of_seeds()
    finally:
        ge.shutdown()


def accuracies(trained: list[Any]) -> list[float]:
    """Of the test part, where the validation is best."""
    best = [max(history, key=lambda e: e["valid"]["accuracy"]) for history, _, _ in trained]
    return [e["test"]["accuracy"] for e in best]


def in_servers(transport: Any, port: int, train: Callable[[ProcessGroup], Any]) -> Any:
    os.environ.update(
        RANK=str(transport.rank),
        LOCAL_RANK=str(transport.rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    group = ProcessGroup()
    try:
        found = train(group)
        transport.barrier()
        return found
    finally:
        group.close()


def with_servers(train: Callable[[ProcessGroup], Any]) -> Any:
    """Of two trainers of the kvstore mode."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return Cluster(trainers=2).run(in_servers, store.port, train)


def test_ranks_and_servers_learn_within_one_std_of_one_process(two_ranks: Ranks) -> None:
    local = accuracies(of_seeds())
    least = np.mean(local) - max(np.std(local, ddof=1), 0.05)
    assert np.mean(accuracies(two_ranks.run(of_seeds_on_a_rank, 2)[0])) > least
    first, second = with_servers(of_seeds)
    assert np.mean(accuracies(first)) > least
    for ours, theirs in zip(first, second, strict=True):
        assert ours[0] == theirs[0], "the trainers agree about every evaluation"
        assert all(torch.equal(one, other) for one, other in zip(ours[2], theirs[2], strict=True))


def a_step_in_blocks(group: ProcessGroup | None = None) -> Any:
    return learn(BLOCKS["whole"].replace(blocks=4, dtype="float64", epochs=1), False, group)


def test_networks_of_trainers_with_servers_keep_the_order_of_blocks() -> None:
    """After a step from the same rows; what servers make of the rows is the rule of their mode."""
    (told, _, dense), *trainers = a_step_in_blocks(), *with_servers(a_step_in_blocks)
    for history, _, parameters in trainers:
        assert history[0]["loss"] == told[0]["loss"]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(parameters, dense, strict=True))


def test_trainers_of_servers_are_told_to_bring_a_group() -> None:
    outcome = Cluster(trainers=2).run(refused)
    assert outcome == ["refused", "refused"]


def refused(transport: Any) -> str:
    with pytest.raises(ge.ConfigError, match="2 trainers share the tables but not the network; pass group="):
        learn(LEARN.replace(fanouts=None), False)
    return "refused"
