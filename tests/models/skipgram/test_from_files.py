"""Walk models on tables in files of which memory holds a part: the bits of tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.core.hidden import size_text
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.partition_book import RangeBook
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.local_sgd import ExchangeSteps, walks_together
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.steps import InPlaceSteps
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from tests.models.skipgram.local_sgd import NODES, SMALL, WALKS, graph_of_groups
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

MEMORY = 24_000
"""Five of the 20 pages of a table of rows of 512 numbers, and the map of its pages."""


def trained(placement: Any, rows: int = 2, seed: int = 0, **fields: Any) -> tuple[SkipGram, torch.Tensor]:
    walks = WalkSampler(graph_of_groups(), num_walks=4, walk_length=12, seed=1)
    config = SkipGramConfig(**{**SMALL, "dim": 512, "tables": rows, "epochs": 2, **fields})
    model = SkipGram(NODES, config, seed=seed, placement=placement)
    train_skipgram(walks, model=model, seed=seed, num_threads=1, progress=False)
    return model, model.embeddings("concat")


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("policy", ["lookahead", "lru"])
def test_rows_in_a_file_have_the_bits_of_rows_in_memory(tmp_path: Path, tables: int, policy: Any) -> None:
    file = ge.File(tmp_path, memory=MEMORY, policy=policy)
    model, found = trained(file, tables)
    _, expected = trained("host", tables)
    assert torch.equal(found, expected)
    assert not torch.equal(expected, trained("host", tables, seed=1)[1])
    for table in model.tables:
        stats = table.cache_stats()
        assert stats.hits > 0
        assert stats.misses > 20  # rows came more than once
        assert stats.prefetched > 0
    assert torch.equal(model.embeddings("only"), found[:, 512:])
    assert torch.equal(model.embeddings("add"), found[:, :512] + found[:, 512:])


@pytest.mark.parametrize("fields", [{"rule": "adagrad", "lr": 0.1}, {"path": "optimizer"}], ids=str)
def test_other_rules_and_paths_have_them_too(tmp_path: Path, fields: dict[str, Any]) -> None:
    file = ge.File(tmp_path, memory=2 * MEMORY, policy="lookahead")
    assert torch.equal(trained(file, **fields)[1], trained("host", **fields)[1])


def test_copies_take_an_eighth_of_what_memory_holds(tmp_path: Path) -> None:
    config = SkipGramConfig(**{**SMALL, "dim": 512})
    blocks = -(-12 // config.block)
    a_walk = (12 + blocks * config.shared_negatives) * 512 * 4
    model = SkipGram(NODES, config, placement=ge.File(tmp_path, memory=8 * 5 * a_walk))
    assert ExchangeSteps.fits(model)
    assert not InPlaceSteps.fits(model)
    assert walks_together(model, 1, 12, 1000, 0.025) == 5
    least = SkipGram(NODES, config, placement=ge.File(tmp_path / "least", memory=10_000))
    assert walks_together(least, 1, 12, 1000, 0.025) == 1
    assert not ExchangeSteps.fits(SkipGram(NODES, config))


def test_tables_share_the_memory_of_a_run() -> None:
    section = config_from({"train": {"memory": "2MiB"}, "dataset": {"name": "x"}, "model": {"name": "deepwalk"}}).train
    assert [section.table_placement(tables=tables).memory_bytes >> 20 for tables in (1, 2)] == [2, 1]


def test_rows_that_must_not_change_do_not(tmp_path: Path) -> None:
    walks = WalkSampler(graph_of_groups(), num_walks=40, walk_length=12, seed=1)
    model = SkipGram(NODES, SkipGramConfig(**{**SMALL, "dim": 512}), placement=ge.File(tmp_path, memory=MEMORY))
    assert isinstance(model.embedding, ge.DistEmbedding)
    before = model.embeddings()
    model.embedding.freeze([3, 5])
    train_skipgram(walks, model=model, num_threads=1, progress=False)
    moved = (model.embeddings() != before).any(dim=1)
    assert (~moved).nonzero().flatten().tolist() == [3, 5, 19, 39]  # of which the last two are alone


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "edges.csv"
    graph = graph_of_groups()
    path.write_text("".join(f"{u},{v}\n" for u, v in graph.edges()), encoding="utf-8")
    return path


def test_edges_from_files_are_logged_every_few_intervals(tmp_path: Path) -> None:
    """A batch was half a million edges: minutes, in which Ctrl-C waited and the log said nothing."""
    edges = EdgeSampler.of_graph(graph_of_groups(), draws_per_edge=2)
    lines: list[Any] = []
    train_line(
        edges,
        LineConfig(dim=512, order="first", exchange_walks=10),
        num_threads=1,
        progress=False,
        log_interval=0.0,
        on_batch=lambda _, line: lines.append(line),
        placement=ge.File(tmp_path / "rows", memory=MEMORY),
    )
    assert [line.walks for line in lines[:2]] == [80, 160]


OPTIONS: dict[str, Any] = {"dim": 512, "num_walks": 4, "walk_length": 12, "evaluate": False, "report": "none"}


@pytest.mark.parametrize("context", ["none", "add"])
def test_one_setting_puts_the_rows_of_a_run_into_files(edges: Path, tmp_path: Path, context: str) -> None:
    found, plain = {}, ge.pipeline("node2vec", edges, threads=1, **OPTIONS).embeddings
    for name, train in {"memory": {}, "files": {"memory": str(2 * MEMORY), "scratch": str(tmp_path / "rows")}}.items():
        run = ge.pipeline(
            "node2vec",
            edges,
            out=tmp_path / name,
            output={"context": context},
            train={"threads": 1, **train},
            **OPTIONS,
        )
        rows, ids = run.embeddings.weights, run.embeddings.node_ids  # type: ignore[union-attr]
        found[name] = rows, ids, np.load(tmp_path / name / "context.npy")
        cache = run.metrics["train"].get("cache", {})
        assert sorted(cache) == (["context", "token"] if train else [])
        assert run.metrics["train"]["local_share"] == 1.0
    assert 0.0 < cache["token"]["hit_share"] < 1.0
    assert all(np.array_equal(*both) for both in zip(*found.values(), strict=True))
    rows, _, other = found["files"]
    assert np.array_equal(rows, plain.weights + other if context == "add" else plain.weights)  # type: ignore[union-attr]
    assert list((tmp_path / "rows").iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"typed_negatives": True}, {"buckets": 9, "episode_walks": 50}], ids=str)
def test_metapath2vec_has_the_bits_of_rows_in_memory(options: dict[str, Any], tmp_path: Path, capfd: Any) -> None:
    rng = np.random.default_rng(0)
    by = ("paper", "by", "author")
    typed = HeteroGraph({"author": 30, "paper": 70}, {by: (rng.integers(0, 70, 200), rng.integers(0, 30, 200))})
    given = {**OPTIONS, "metapath": "author-paper-author", "window": 3, **options}
    memory, found = {"memory": "160KiB", "scratch": str(tmp_path / "rows")}, []
    for train in ({}, memory):
        run = ge.pipeline(
            "metapath2vec", Dataset("works", typed), train={"threads": 1, **train}, progress=True, **given
        )
        found.append(run.tables)
        assert sorted(run.metrics["train"].get("cache", {})) == (["context", "token"] if train else [])
    assert run.metrics["train"]["cache"]["token"]["evictions"] > 0
    for ntype, rows in found[0].items():
        assert np.array_equal(rows.weights, found[1][ntype].weights)
    assert "plan: 100 nodes with their state" in capfd.readouterr().err
    assert list((tmp_path / "rows").iterdir()) == []


def test_one_setting_trains_a_run_by_buckets_with_the_rows_of_buckets_in_memory(
    edges: Path, tmp_path: Path, capfd: Any
) -> None:
    found, said = {}, {}
    buckets, memory = {"buckets": 4, "episode_walks": 50}, {"memory": "125KiB", "scratch": str(tmp_path / "rows")}
    for name, train in {"host": buckets, "file": buckets | memory, "plain": memory}.items():
        options = OPTIONS | {"config": {"train": {"threads": 1, **train}}}
        run = ge.pipeline("deepwalk", edges, progress=True, **options)
        found[name], said[name] = run.embeddings.weights, capfd.readouterr().err  # type: ignore[union-attr]
    assert np.array_equal(found["host"], found["file"])
    assert not np.array_equal(found["file"], found["plain"])
    assert "plan: 4 parts of the nodes, 16 buckets; an episode is 50 walks" in said["host"]
    assert "an episode is 50 walks, reads and writes 285.00 KiB each; a disk of 1 GB/s keeps up with" in said["file"]
    assert "train.buckets=auto (2 here) trains pairs by buckets of two parts" in said["plain"]
    assert "125.00 KiB of memory hold" in said["plain"]
    assert "100.00 KiB of memory hold" in said["file"]  # the rest is for the walks of an episode
    assert ["random ids miss" in said[name] for name in said] == [False, False, True]


@pytest.mark.parametrize(
    ("model", "memory", "expected"),
    [("deepwalk", "125KiB", 2), ("deepwalk", "100MiB", 0), ("line", "80KiB", 4), ("deepwalk", None, 0)],
)
def test_buckets_are_as_few_as_the_memory_wants(
    edges: Path, tmp_path: Path, model: str, memory: str | None, expected: int
) -> None:
    where = {} if memory is None else {"memory": memory, "scratch": str(tmp_path / "rows")}
    own = {"order": "second", "draws_per_edge": 3} if model == "line" else {"num_walks": 2, "walk_length": 10}
    found = {}
    for name, buckets in {"auto": "auto", "number": expected}.items():
        train = {"threads": 1, "buckets": buckets, **where}
        out = tmp_path / name
        run = ge.pipeline(model, edges, out=out, evaluate=False, dim=512, report="none", train=train, **own)
        found[name] = run.embeddings.weights  # type: ignore[union-attr]
        assert yaml.safe_load((out / "config.yaml").read_text())["train"]["buckets"] == expected
    assert np.array_equal(found["auto"], found["number"])


def test_auto_buckets_of_too_little_memory_are_refused(edges: Path) -> None:
    with pytest.raises(ge.ConfigError, match=r"train.memory = '8KiB' does not hold one of (\d\d) parts of \1 rows"):
        ge.pipeline("deepwalk", edges, dim=512, train={"buckets": "auto", "memory": "8KiB"})


@pytest.mark.parametrize(
    ("model", "train", "said"),
    [
        ("deepwalk", {"memory": "60KiB", "buckets": 2}, r"one of 2 parts .* or take train.buckets=\d+$"),
        ("line", {"memory": "80KiB", "buckets": 2}, r"two of 2 parts .* or take train.buckets=\d+$"),
        ("deepwalk", {"memory": 1}, "a page of each table; raise it$"),
    ],
)
def test_memory_that_is_too_little_is_told_as_the_run_was_given_it(
    edges: Path, tmp_path: Path, model: str, train: dict[str, Any], said: str
) -> None:
    """A table's share of it was named, which no setting has: of 1 byte, memory=0."""
    with pytest.raises(ge.ConfigError, match=rf"train.memory = '{train['memory']}' does not hold {said}"):
        ge.pipeline(model, edges, dim=512, train={**train, "scratch": str(tmp_path / "rows")})
    with pytest.raises(ge.ConfigError, match=r"^train.memory = '?0'?: must be at least 1 byte$"):
        ge.pipeline(model, edges, dim=512, train={**train, "memory": "0"})


def test_auto_buckets_of_a_placement_are_its_parts(tmp_path: Path) -> None:
    config = SkipGramConfig(dim=8, buckets="auto")  # type: ignore[arg-type]
    assert SkipGram(64, config).config.buckets == 0
    assert SkipGram(64, config, placement=ge.Buckets(tmp_path, memory="1MiB", parts=3)).config.buckets == 3


@pytest.mark.parametrize(("order", "memory"), [("first", "62KiB"), ("both", "186KiB")])
def test_line_by_buckets_ends_with_the_same_files_wherever_its_rows_lie(
    edges: Path, tmp_path: Path, capfd: Any, order: str, memory: str
) -> None:
    options = {"order": order, "dim": 1024 if order == "both" else 512, "draws_per_edge": 3, "report": "none"}
    buckets, found = {"threads": 1, "buckets": 4, "episode_walks": 100}, {}
    for name, where in {"host": {}, "files": {"memory": memory, "scratch": str(tmp_path / "rows")}}.items():
        out = tmp_path / name
        run = ge.pipeline("line", edges, out=out, evaluate=False, progress=True, train={**buckets, **where}, **options)
        found[name] = {path.name: path.read_bytes() for path in out.glob("*.npy")}
        for told in run.metrics["train"]["orders"].values():
            assert ("cache" in told) == bool(where)
            assert all(cache["dirty_writes"] > 0 for cache in told.get("cache", {}).values())
    assert found["host"] == found["files"]
    assert sorted(found["host"]) == ["context.npy", "embeddings.npy", "ids.npy", "lengths.npy"][order == "first" :]
    said, table = capfd.readouterr().err, len(np.load(out / "ids.npy")) * 512 * 4
    assert "4 parts of the nodes, 16 buckets; an episode is 100 edges, reads and writes" in said
    assert f"nodes with their state, {size_text(table if order == 'first' else 3 * table)}, in" in said
    assert list((tmp_path / "rows").iterdir()) == []


def test_a_run_from_files_goes_on_in_memory(edges: Path, tmp_path: Path) -> None:
    """It was refused, for a setting that the run before had and nobody gave."""
    new = tmp_path / "new.csv"
    new.write_text("0,99\n", encoding="utf-8")
    train = {"threads": 1, "memory": str(2 * MEMORY), "scratch": str(tmp_path / "rows"), "policy": "lru"}
    ge.pipeline("deepwalk", edges, out=tmp_path / "run", train=train, **OPTIONS)
    found = ge.continue_run(tmp_path / "run", new)
    assert found.embeddings is not None
    assert found.embeddings.weights.shape[0] == len(load_embeddings(tmp_path / "run").weights) + 1
    assert "cache" not in found.metrics["train"]
    with pytest.raises(ge.ConfigError, match=r"model.from_run needs all rows in memory"):
        ge.continue_run(tmp_path / "run", new, train={"memory": "1MiB"})


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("deepwalk", {"parallel": {"mode": "collective", "trainers": 2}}, "one process trains walks from files"),
        ("deepwalk", {"output": {"context": "concat"}}, "output.context=concat needs all rows in memory"),
        ("node2vec", {"multilevel": True}, "model.multilevel needs all rows in memory"),
        ("deepwalk", {"warm_start": "rows.npy"}, "model.warm_start needs all rows in memory"),
        ("deepwalk", {"table": "hash", "train": {"memory": "1MiB", "rule": "adagrad"}}, "model.table needs all rows"),
        ("line", {"multilevel": True}, "model.multilevel needs all rows in memory"),
        ("line", {"train": {"buckets": 4}, "parallel": {"mode": "collective"}}, "one process trains walks by buckets"),
        (
            "deepwalk",
            {"train": {"buckets": "auto", "rule": "adagrad"}},
            "buckets = auto: sgd in place trains by buckets",
        ),
        (
            "line",
            {"train": {"buckets": "auto"}, "parallel": {"mode": "collective"}},
            "train.buckets = auto: one process",
        ),
        (
            "deepwalk",
            {"train": {"buckets": 4}, "parallel": {"mode": "collective"}},
            "one process trains walks by buckets",
        ),
    ],
)
def test_what_needs_all_rows_is_refused(model: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ge.ConfigError, match=said):
        ge.pipeline(model, "nothing.csv", **{"train": {"memory": "1MiB"}, **options})


BOOK = RangeBook([0, 25, 40])


def trained_on_a_rank(folder: str) -> list[torch.Tensor]:
    """Rows after a training of sgd in place on rows in memory, by the optimizer there and in a file."""
    try:
        transport: Any = ge.init(mode="collective")
        part = PartGraph.of_graph(graph_of_groups(), transport.layout(BOOK, "walks"), transport.rank)
        found = []
        for path, placement in (("optimizer", "host"), ("auto", ge.File(f"{folder}/{transport.rank}", MEMORY))):
            sampler = PartitionedWalkSampler(part, transport.group, **WALKS)
            config = SkipGramConfig(**{**SMALL, "dim": 512, "path": path})
            model = SkipGram(NODES, config, part_policy=BOOK, placement=placement)
            train_skipgram(sampler, model=model, num_threads=1, progress=False)
            found.append(model.embeddings())
        return found
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_with_files_take_the_optimizers_path(ranks: Ranks, tmp_path: Path) -> None:
    (first, one), (second, other) = ranks.run(trained_on_a_rank, 2, str(tmp_path))
    assert torch.equal(first, one)
    assert torch.equal(first, second)
    assert torch.equal(first, other)
