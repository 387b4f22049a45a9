"""Costs of machines: the formula by hand, the bytes by counting, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partition
from graph_emb.cli.main import main
from graph_emb.config import RunConfig, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.skipgram.config import PlainWalkConfig
from graph_emb.models.skipgram.local_sgd import usual_walks
from graph_emb.models.skipgram.rates import rate_of_walks
from graph_emb.models.skipgram.steps import cut_sizes
from graph_emb.run.cost import (
    Costs,
    Forecast,
    WalkLoad,
    bytes_of_counts,
    bytes_of_row,
    bytes_of_token,
    bytes_of_triple,
    forecast,
    rounding_pays,
    usual_forecast,
)
from graph_emb.run.estimate_hosts import estimate_on
from graph_emb.transport.link import Link

COSTS, LINK = Costs(item_us=2.0, byte_ns=3.0), Link(8.0, latency_us=100.0)


def test_seconds_are_work_exchange_wire_and_start() -> None:
    found = forecast(COSTS, LINK, 4, items=4e6, bytes_each=1000.0, interval=1e4)
    assert found.work == pytest.approx(2.0)  # a million tokens of 2 us
    assert found.exchange == pytest.approx(3.0)  # 10^9 bytes of 3 ns
    assert found.wire == pytest.approx(1.0)  # at 10^9 bytes a second
    assert found.start == pytest.approx(100 * 5 * 3 * 100e-6)
    assert found.seconds == pytest.approx(6.15)
    assert found.bound == "exchange"


def test_overlapped_the_longer_of_wire_and_work_counts() -> None:
    fast = forecast(COSTS, LINK, 4, 4e6, 1000.0, 1e4, overlap=True)
    assert fast.seconds == pytest.approx(5.0)
    slow = forecast(COSTS, Link(0.8, 100.0), 4, 4e6, 1000.0, 1e4, overlap=True)
    assert slow.seconds == pytest.approx(10.15)
    assert slow.bound == "wire"


def test_trainers_that_share_cores_work_one_after_the_other() -> None:
    found = forecast(COSTS, LINK, 4, 4e6, 1000.0, 1e4, cores=2)
    assert (found.work, found.exchange, found.wire) == pytest.approx((4.0, 6.0, 1.0))
    assert forecast(COSTS, LINK, 1, 4e6, 1000.0, 1e4).seconds == pytest.approx(8.0)  # nothing is sent


def two_rings(links: int) -> Graph:
    """Two rings of 50 nodes, joined by some edges."""
    ring = np.arange(50)
    sources, targets = (
        np.r_[ring, ring + 50, ring[:links]],
        np.r_[(ring + 1) % 50, (ring + 1) % 50 + 50, ring[:links] + 50],
    )
    return Graph.from_edges(sources, targets, num_nodes=100, directed=False)


def test_bytes_follow_the_rows_of_other_machines() -> None:
    config = PlainWalkConfig(dim=4, walk_length=10, num_walks=1, shared_negatives=1, block=10)
    config = config.model_copy(update={"exchange_walks": 100})  # more than there are: 50 of each machine
    parts = np.repeat([0, 1], 50)
    near, interval = bytes_of_token(two_rings(0), parts, config, 2)
    assert interval == 500
    assert 0 < near < 50 * bytes_of_row(4) / 500  # no token elsewhere, at most 50 negatives
    far, _ = bytes_of_token(two_rings(50), parts, config, 2)
    assert far == pytest.approx((50 + 50) * bytes_of_row(4) / 500, rel=0.1)  # nearly every row of both tables
    one, _ = bytes_of_token(two_rings(50), parts, config.model_copy(update={"tables": 1}), 2)
    assert one == pytest.approx(far / 2, rel=0.1)


def test_growing_intervals_send_fewer_bytes() -> None:
    """Longer intervals need few rows more: nearly all of them are there already."""
    config = PlainWalkConfig(dim=4, walk_length=10, num_walks=60, shared_negatives=1, block=10, lr=0.025)
    parts = np.repeat([0, 1], 50)
    adasum, tokens = bytes_of_token(two_rings(50), parts, config, 2)
    added, fewer = bytes_of_token(two_rings(50), parts, config.model_copy(update={"reduction": "sum"}), 2)
    assert fewer == 80  # 400 exchanges of 6,000 walks of 10 tokens and 2 machines: 8 walks each, rounded up
    assert tokens == pytest.approx(60_000 / 36 / 2)  # 16 walks 6 times, then .2 of those before, 320 at most
    assert adasum < 0.3 * added


@pytest.mark.parametrize(
    ("model", "hosts", "message"),
    [
        ({"name": "deepwalk", "rule": "adam"}, 4, "not for deepwalk with train.rule=adam; leave --hosts out, or train"),
        (
            {"name": "deepwalk", "table": "position", "rule": "adagrad"},
            4,
            "model.table=position, rows that nodes share",
        ),
        ({"name": "complex", "table": "position"}, 4, "not for complex with model.table=position, rows that nodes"),
        ({"name": "complex", "training": "1vsall", "loss": "softmax"}, 4, "with model.training=1vsall, all rows in"),
        ({"name": "sage"}, 4, "by drawn negatives, not for sage; leave --hosts out, or train an epoch there"),
        ({"name": "rgcn"}, 4, "not for rgcn;"),
        ({"name": "line"}, 4, "not for line;"),
        ({"name": "metapath2vec"}, 4, "not for metapath2vec;"),
        ({"name": "mf"}, 4, "one process trains mf, so that more machines change nothing; leave --hosts out"),
        ({"name": "netmf"}, 4, "one process trains netmf"),
        ({"name": "deepwalk"}, 1, "give 2 machines at least"),
        ({"name": "complex"}, 1, "give 2 machines at least"),
    ],
)
def test_what_is_not_estimated_on_machines_is_refused(model: dict[str, str], hosts: int, message: str) -> None:
    rule = {"rule": model.pop("rule")} if "rule" in model else {}
    config = config_from({"model": model, "dataset": "digits", "train": rule})
    with pytest.raises(ConfigError, match=message):
        estimate_on(config, hosts, LINK)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"mode": "kvstore", "trainers": 4, "servers": 1}, "not parallel.mode=kvstore with parallel.trainers=4"),
        ({"mode": "collective", "trainers": 2}, "not parallel.mode=collective with parallel.trainers=2"),
        ({"mode": "collective", "trainers": 4, "negatives": "local"}, "the rows of parallel.negatives=local"),
        ({"mode": "collective", "trainers": 4, "remote_negatives": 9}, "the rows of parallel.remote_negatives=9"),
        ({"mode": "collective", "trainers": 4, "negative_pool": 9}, "the rows of parallel.negative_pool=9"),
    ],
)
def test_jobs_that_are_not_estimated_on_machines_are_refused(parallel: dict[str, Any], message: str) -> None:
    config = config_from({"model": "deepwalk", "dataset": "digits", "parallel": {**parallel, "oversubscribe": True}})
    with pytest.raises(ConfigError, match=message):
        estimate_on(config, 4, LINK)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parallel": {"negatives": "local"}}, "the rows of parallel.negatives=local are not counted"),
        ({"parallel": {"triples": "local"}}, "the rows of parallel.triples=local"),
        ({"parallel": {"method": "random"}}, "the rows of parallel.method=random"),
        ({"train": {"buckets": 8}}, "the rows of train.buckets=8"),
        ({"train": {"buckets": "auto"}}, "the rows of train.buckets=auto"),
        ({"train": {"memory": "1GB"}}, "the rows of train.memory=1GB"),
        ({"multilevel": True}, "the rows of model.multilevel=True"),
    ],
)
def test_triples_whose_rows_are_not_counted_are_refused(settings: dict[str, Any], message: str) -> None:
    job = {"mode": "collective", "trainers": 4, "oversubscribe": True}
    model = {"name": "complex", **{name: settings.pop(name) for name in [*settings] if name == "multilevel"}}
    config = config_from({"model": model, "dataset": "umls", "parallel": job}, settings)
    with pytest.raises(ConfigError, match=message):
        estimate_on(config, 4, LINK)


@pytest.mark.parametrize("name", ["mf", "netmf"])
def test_a_model_of_one_process_is_told_so_by_the_command(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It spoke of parallel.mode, which nobody had given."""
    assert main(["estimate", name, "--dataset", "digits", "--hosts", "3"]) == 2
    assert f"hosts = 3: one process trains {name}" in capfd.readouterr().err


def test_a_partition_of_other_machines_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_emb.run.estimate_hosts.probed_run", None)  # a call fails
    parts = partition.build("digits", 3, out=tmp_path / "parts", report=False)
    parallel = {"mode": "collective", "trainers": 2, "partition": str(parts.path)}
    config = config_from({"model": "deepwalk", "dataset": "digits", "parallel": parallel})
    with pytest.raises(ConfigError, match=r"parallel.partition has 3 parts for 2 machines; give one of 2"):
        estimate_on(config, 2, LINK)


def test_rows_that_are_rounded_to_travel_are_fewer_bytes() -> None:
    assert [bytes_of_row(4, *wire) for wire in ([], ["bfloat16"], ["int8"])] == [8 + 32, 8 + 16, 8 + 2 * (4 + 4)]


def test_a_wire_of_a_twentieth_of_a_training_is_worth_rounding_hidden_or_not() -> None:
    """Overlapped rows were float32 where all of the wire hides: 1.10 of one trainer at 10 Gb/s, 1.33 as int8."""

    def of(gbit: float, bytes_token: float = 1000.0, tokens: float = 4e6, **options: bool) -> Forecast:
        return forecast(COSTS, Link(gbit, 1e-6), 4, tokens, bytes_token, 1e6, **options)

    assert rounding_pays([of(30.0, tokens=4e7)])  # 2.67 of 52.67 s, beside 20 s of work and 30 of exchange
    assert not rounding_pays([of(31.0, tokens=4e7)])  # 2.58 of 52.58 s
    assert not rounding_pays([of(4.7, tokens=4e5)])  # as much of less than a second
    assert rounding_pays([of(4.7, tokens=2e6)] * 2)  # one after the other: of 1.7 s
    assert rounding_pays([of(1.0, overlap=True)])  # 8 s of wire, 5 of them hidden
    assert rounding_pays([of(1.7, overlap=True)])  # 4.7 s, all of them hidden
    assert not rounding_pays([of(35.0, tokens=4e7, overlap=True)])  # 2.3 of 50 s


def test_a_training_is_foreseen_by_its_sizes_before_anything_is_measured() -> None:
    """Those of DeepWalk on ogbn-arxiv between two hosts: 227 bytes a token and 21.1 s were measured at 10 Gb/s."""
    load = WalkLoad(PlainWalkConfig(num_walks=3), 169_343, 2 * 1_157_799, 3 * 169_343, 40)
    found = usual_forecast(load, Link(10.0), 2, 1)
    assert 227 < found.bytes_each < 2 * 227, "an upper bound"
    assert 16 < found.seconds < 30
    assert rounding_pays([found])
    assert not rounding_pays([usual_forecast(load, Link(40.0), 2, 1)])
    assert usual_forecast(load, Link(10.0), 2, 4).work == pytest.approx(found.work / 4)


def test_the_command_takes_the_settings_of_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """parallel.overlap had no effect on one process; with --trainers 2 one machine was measured with two."""
    asked: list[RunConfig] = []

    def measured(config: RunConfig, hosts: int, link: Link, seconds: float) -> Forecast:
        asked.append(config)
        return forecast(Costs(1.0, 1.0), link, hosts, 1e6, 100.0, 1e4, overlap=config.model.overlap)

    monkeypatch.setattr("graph_emb.run.estimate_hosts.estimate_on", measured)
    line = "estimate deepwalk --dataset digits --hosts 3 parallel.overlap=true parallel.wire_dtype=bfloat16"
    assert main(line.split()) == 0
    (config,) = asked
    assert (config.parallel.trainers, config.model.overlap, config.parallel.wire_dtype) == (3, True, "bfloat16")
    assert main(["estimate", "deepwalk", "--dataset", "digits", "--link", "1gbit"]) == 2


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize(
    ("wire", "gbit", "travels"), [("float16", 8.0, "float16"), ("auto", 0.01, "int8"), ("int8", 8.0, "int8")]
)
def test_two_machines_are_estimated_from_two_probes(wire: str, gbit: float, travels: str) -> None:
    """A wire that would be nearly all of the training is taken to be a quarter and to overlap, as the run has it."""
    parallel = {"mode": "collective", "trainers": 3, "wire_dtype": wire, "method": "random"}
    config = config_from({"model": "deepwalk", "dataset": "digits", "train": {"threads": 1}, "parallel": parallel})
    found = estimate_on(config, 3, Link(gbit, 100.0), seconds=0.2)
    assert found.wire_dtype == travels
    assert found.wire == pytest.approx(found.bytes_each * 8 / (gbit * 1e9) * 1797 * 10 * 40 / 3, rel=0.05)
    assert found.hosts == 3
    parts = found.work + found.exchange, found.wire + found.start
    assert found.seconds == pytest.approx(max(parts) if wire == "auto" else sum(parts))
    assert min(found.work, found.exchange, found.wire, found.bytes_each) > 0
    assert "bytes a token" in str(found)
    assert f"rows travel as {travels}" in str(found)


def test_overlapped_intervals_are_cut_by_eight_batches() -> None:
    """Of ranks that wait, by each: their rows are whole there."""
    for overlap, batches, growth in ((True, 8, 0.13), (False, 1, 0.2)):
        config = PlainWalkConfig(walk_length=10, overlap=overlap)
        size = 2 * usual_walks(10**6, 2, 10, 5 * 10**6, config.rate_share * rate_of_walks(5 * 10**7, 10**7))
        cut = batches * (2 * ((1 << 21) // 10) // size * size)
        pieces = [
            cut_sizes(low, min(cut, 5 * 10**6 - low), size, growth, 3_200_000) for low in range(0, 5 * 10**6, cut)
        ]
        _, interval, _ = bytes_of_counts(WalkLoad(config, 10**6, 10**7, 5 * 10**6, 10), 2, 0.2)
        assert interval == pytest.approx(5 * 10**7 / 2 / sum(len([*each]) for each in pieces))


@pytest.mark.parametrize(
    ("threads", "cores", "each", "crowd"), [(1, 2, 1, 2), (2, 2, 1, 1), (1, 1, 1, 1), (8, 2, 4, 1), (3, 4, 1, 2 / 3)]
)
def test_two_probed_trainers_share_the_cores_of_one(
    threads: int, cores: int, each: int, crowd: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one thread the two cores of a pair were taken for the one of a trainer: exchanges of triples seemed free."""
    monkeypatch.setattr("graph_emb.run.estimate_hosts.os.cpu_count", lambda: cores)
    asked: list[RunConfig] = []

    def lines_of(place: Path, config: RunConfig, seconds: float, *, sockets: bool) -> tuple[Any, ...]:
        counts = {"seconds": 4.0, "triples": 1_000_000, "walks": 1_000, "tokens": 40_000, "elapsed": 8.0}
        line = {**counts, "exchange_seconds": 2.0, "bytes_sent": 8e6, "job": {"bytes_out": 8e6, "per_second": 0.0}}
        asked.append(config)
        return ([line if config.parallel.trainers > 1 else {**line, "seconds": 3.0}],), None, None

    monkeypatch.setattr("graph_emb.run.estimate_hosts.probed_run", lines_of)
    train = {"threads": threads}
    walks = estimate_on(config_from({"model": "deepwalk", "dataset": "digits", "train": train}), 2, LINK)
    assert walks.work == pytest.approx(1797 * 10 * 40 / 2 * crowd * 6.0 / 40_000)
    assert [one.train.threads for one in asked] == [each]
    assert asked[0].parallel.trainers == 2
    (tmp_path / "train.txt").write_text("".join(f"e{k}\tr\te{k + 1}\n" for k in range(99)))
    triples = estimate_on(config_from({"model": "complex", "dataset": str(tmp_path), "train": train}), 2, LINK)
    longer = max(0.0, 4 - 3 / crowd)  # us of a triple
    assert triples.exchange / triples.bytes_each == pytest.approx(triples.work / 3 * longer / (8 / 2))
    assert [(one.train.threads, one.parallel.trainers) for one in asked[1:]] == [(threads, 1), (each, 2)]


def star(num: int, relations: int) -> KnowledgeGraph:
    """Triples from entity 0 to each other one, by relations in turn."""
    tails = np.arange(1, num)
    return KnowledgeGraph("star", num, relations, {"train": np.stack([0 * tails, tails % relations, tails], axis=1)})


def test_bytes_of_triples_are_those_of_the_rows_elsewhere() -> None:
    """A step of all triples, dealt out by chunks: by hand where each machine asks for all rows."""
    config = KGEConfig(model="complex", dim=6, batch_size=1024, chunk_size=8, num_negatives=64)
    triples = bytes_of_triple(star(64, 2), config, 2)  # 64 negatives of 64 entities in each of 8 chunks
    row = 16 + 2 * 4 * 6  # an id and a row of the pull, an id and a gradient of the push
    assert triples == pytest.approx(2 * (32 + 1) * row / 63, rel=0.02)  # half of the entities and of two relations
    assert bytes_of_triple(star(64, 2), config, 2, wire_dtype="float16") == pytest.approx(triples * (16 + 24) / row)
    few = bytes_of_triple(star(4000, 2), config.replace(num_negatives=1), 4)
    entity = (3 / 4) * (1 + 1 / 8) * row  # its tail, and one negative of a chunk
    assert few == pytest.approx(entity + 4 * 2 * (3 / 4) * row / 1024, rel=0.05)  # heads and relations are few


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
def test_triples_on_machines_are_estimated_from_two_probes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, [200, 3, 200], (4000, 3)), axis=0)
    (tmp_path / "train.txt").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in rows.tolist()))
    model = {"name": "complex", "dim": 16, "num_negatives": 8, "chunk_size": 32}
    train = {"threads": 1, "batch_size": 256, "epochs": 20}
    config = config_from({"model": model, "dataset": str(tmp_path), "train": train})
    found = estimate_on(config, 3, LINK, seconds=0.2)
    assert (found.hosts, found.unit) == (3, "triple")
    assert found.seconds == pytest.approx(found.work + found.exchange + found.wire + found.start)
    assert found.start == pytest.approx(20 * len(rows) / 256 * 6 * 2 * 100e-6)  # six messages of a step to two others
    graph = knowledge_graph(load_dataset(str(tmp_path)))
    counted = bytes_of_triple(graph, config.model, 3)  # type: ignore[arg-type]
    assert counted < found.bytes_each < 2 * counted, "rows, and triples and marks beside them"
    assert "bytes a triple" in str(found)


@pytest.mark.parametrize("walks", [20, 200])
def test_bytes_of_a_size_are_those_of_a_graph_without_hubs(walks: int) -> None:
    """Nodes of equal degree in parts without locality: what is counted by walking, and not less."""
    rng = np.random.default_rng(0)
    rings = [rng.permutation(2000) for _ in range(8)]
    sources, targets = np.concatenate(rings), np.concatenate([np.roll(ring, 1) for ring in rings])
    graph = Graph.from_edges(sources, targets, num_nodes=2000, directed=False)
    config = PlainWalkConfig(dim=4, walk_length=10, num_walks=1, shared_negatives=20, block=10)
    config = config.model_copy(update={"exchange_walks": walks})
    counted, interval = bytes_of_token(graph, np.arange(2000) % 4, config, 4)
    load = WalkLoad(config, 2000, graph.num_arcs, 2000, 10)
    found, same, rows = bytes_of_counts(load, 4, remote=0.75)
    assert same == pytest.approx(interval, rel=0.02)
    assert 0.97 * counted < found < 1.2 * counted
    assert rows <= 2 * 1500
