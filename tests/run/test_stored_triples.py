"""The training triples of a partition stay on the disk where buckets train them: the run that memory would give."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.core import scratch_file
from graph_emb.core.errors import ConfigError, DataError, StorageError
from graph_emb.estimators.runs import load_run
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.run import own_parts
from graph_emb.run.families import kge
from graph_emb.run.pipeline import PipelineResult
from graph_emb.sampling.known_triples import KnownAnswers
from graph_emb.sampling.stored_triples import StoredTriples, TriplesOnDisk, triples_of

ENTITIES, RELATIONS = 2_000, 4
RECIPE: dict[str, Any] = {
    "dim": 8, "training": "negatives", "num_negatives": 16, "chunk_size": 16,
    "valid_every": 1, "train": {"batch_size": 64, "epochs": 2, "threads": 1, "memory": "80KiB", "buckets": "auto"},
}  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Partitions of one knowledge graph, whose relations are edge types, or a column of edges."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("triples")
    sizes = {"train": 2_500, "valid": 30, "test": 40}
    split = {part: rng.integers(0, (ENTITIES, RELATIONS, ENTITIES), (num, 3)) for part, num in sizes.items()}
    np.savez(folder / "triples.npz", **split)
    found = {}
    for name in ("types", "column"):
        options = {"reader_options": {"format": "triples", "relations": name}, "report": False}
        found[name] = partition.build(folder / "triples.npz", 3, out=folder / name, **options).path
    return found


def run(dataset: Path, out: Path, **changes: Any) -> PipelineResult:
    recipe = {**RECIPE, **changes}
    return ge.pipeline("complex", dataset, out=out, output={"report": "none"}, seed=3, **recipe)


def rows_and_scores(result: PipelineResult) -> tuple[list[torch.Tensor], Any]:
    tables = [torch.as_tensor(table.weights) for table in result.tables.values()]
    return tables, result.metrics["evaluation"]


@pytest.mark.parametrize(
    ("name", "piece", "negatives"),
    [
        ("types", 100, {}),
        ("column", 1 << 20, {}),
        ("column", 100, {"filter_negatives": False}),
        ("types", 1 << 20, {"in_batch": True}),
        ("types", 100, {"subsampling": True}),
        ("column", 100, {"negative_power": 0.75, "num_negatives": 5}),
        ("column", 1 << 20, {"negative_power": 2.0, "subsampling": True, "filter_negatives": False}),
        ("types", 100, {"train": {**RECIPE["train"], "buckets": 16, "resident": 4, "passes": 3}}),
    ],
)
def test_triples_on_the_disk_train_and_judge_as_those_in_memory(
    parts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    piece: int,
    negatives: dict[str, Any],
) -> None:
    monkeypatch.setattr(own_parts, "TRIPLES_AT_ONCE", piece)
    with monkeypatch.context() as whole:
        whole.setattr(kge.KGEFamily, "_left_on_disk", lambda self: None)
        wanted = run(parts[name], tmp_path / "memory", **negatives)
    monkeypatch.setattr(kge, "read_dataset", lambda *_, **__: pytest.fail("the data set was read whole"))
    found = run(parts[name], tmp_path / "disk", **negatives)
    assert found.config.model.buckets == wanted.config.model.buckets > 2
    for one, other in zip(rows_and_scores(found)[0], rows_and_scores(wanted)[0], strict=True):
        assert torch.equal(one, other)
    assert rows_and_scores(found)[1] == rows_and_scores(wanted)[1]
    assert found.metrics["dataset"] == wanted.metrics["dataset"]


def test_a_run_goes_on_from_a_checkpoint(parts: dict[str, Path], tmp_path: Path) -> None:
    every: dict[str, Any] = {"checkpoint": {"every": 30}}
    wanted = run(parts["types"], tmp_path / "whole", **every)

    def stop(_: dict[str, float]) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        run(parts["types"], tmp_path / "cut", on_evaluation=stop, **every)
    found = run(parts["types"], tmp_path / "cut", resume=True, **every)
    for one, other in zip(rows_and_scores(found)[0], rows_and_scores(wanted)[0], strict=True):
        assert torch.equal(one, other)


def test_triples_on_the_disk_need_buckets(parts: dict[str, Path], tmp_path: Path, local_mode: None) -> None:
    opened = partition.load(parts["types"])
    config = KGEConfig(dim=8, valid_every=0, buckets=0, epochs=1)
    disk = TriplesOnDisk(lambda: own_parts.triples_in_pieces(opened), tmp_path)
    with pytest.raises(ConfigError, match=r"training without train\.buckets needs all training triples in memory"):
        train_kge(own_parts.knowledge_graph_of(opened), config, on_disk=disk)


def pieces_of(triples: np.ndarray, size: int) -> Any:
    """In an order that is not that of their numbers."""
    order = np.random.default_rng(1).permutation(len(triples))

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for low in range(0, len(order), size):
            yield order[low : low + size], triples[order[low : low + size]]

    return pieces


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_buckets_have_their_triples_by_rising_number(tmp_path: Path, size: int) -> None:
    triples = np.random.default_rng(0).integers(0, 9, (90, 3))
    stored = StoredTriples(pieces_of(triples, size), lambda some: some[:, 0] % 4, 5, tmp_path / "new")
    assert stored.sizes.tolist() == np.bincount(triples[:, 0] % 4, minlength=5).tolist()
    for bucket in range(5):
        numbers, records = stored.of(bucket)
        assert numbers.tolist() == np.flatnonzero(triples[:, 0] % 4 == bucket).tolist()
        assert np.array_equal(triples_of(records), triples[numbers])
    assert list((tmp_path / "new").iterdir()) == []


def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scratch_file.os, "posix_fallocate", full)
    triples = np.zeros((90, 3), np.int64)
    with pytest.raises(StorageError, match=r"by bucket, 2.81 KiB: No space left.*train\.scratch"):
        StoredTriples(pieces_of(triples, 9), lambda some: some[:, 0], 1, tmp_path)


def test_a_graph_without_its_triples_says_so(parts: dict[str, Path]) -> None:
    graph = own_parts.knowledge_graph_of(partition.load(parts["types"]))
    assert isinstance(graph, KnowledgeGraph)
    assert graph.num_triples == 2_500
    found = [own_parts.triples_in_pieces(partition.load(path)) for path in parts.values()]
    by_number = [np.concatenate([triples[np.argsort(numbers)] for numbers, triples in one]) for one in found]
    assert sorted(map(tuple, by_number[0].tolist())) == sorted(map(tuple, by_number[1].tolist()))


def test_a_run_is_judged_again_by_all_triples(
    parts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read again without the training triples, ranks were not filtered by them."""
    scores = run(parts["column"], tmp_path / "run").metrics["evaluation"]
    assert main(["eval", str(tmp_path / "run"), "--json", str(tmp_path / "again.json")]) == 0
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["evaluation"]
    assert again == scores
    assert capsys.readouterr().out


def test_an_estimator_of_the_run_knows_the_triples_that_stayed_on_the_disk(
    parts: dict[str, Path], tmp_path: Path
) -> None:
    graph = run(parts["column"], tmp_path / "run").dataset
    with pytest.raises(DataError, match="its training triples are not here"):
        graph.all_triples()
    with pytest.raises(DataError, match="its training triples are not here"):
        KnownAnswers.to(graph.parts["test"], graph)
    opened = partition.load(parts["column"])
    triples = np.concatenate([own for _, own in own_parts.triples_in_pieces(opened)])
    asked = [(head, graph.relations[relation], tail) for head, relation, tail in triples[:20].tolist()]
    fitted = load_run(tmp_path / "run")
    held = KnowledgeGraph("held", ENTITIES, RELATIONS, {"train": triples, "test": triples[:20]})
    entities, relations = (torch.from_numpy(fitted.tables_[name].weights) for name in ("entity", "relation"))
    order = np.argsort(fitted.tables_["entity"].node_ids.astype(np.int64))
    wanted = rank_part(fitted._scorer, entities[torch.from_numpy(order)], relations, held, "test")
    assert fitted.score(asked) == pytest.approx(wanted.mrr().realistic)


def test_a_plan_promises_the_disk_only_where_triples_may_stay_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With edges held out the graph is another one than the partition's."""
    triples = np.random.default_rng(0).integers(0, (ENTITIES, RELATIONS, ENTITIES), (2_500, 3))
    np.savez(tmp_path / "triples.npz", train=triples)
    options: dict[str, Any] = {"reader_options": {"format": "triples"}, "report": False}
    opened = partition.build(tmp_path / "triples.npz", 3, out=tmp_path / "parts", **options)
    relations, file = own_parts.knowledge_graph_of(opened).relations, tmp_path / "test.tsv"
    assert relations is not None
    head, relation, tail = triples[0].tolist()
    file.write_text(f"{head}\t{relations[relation]}\t{tail}\n", encoding="utf-8")
    recipe = {**RECIPE, "subsampling": True, "negative_power": 0.75}
    for held in ({}, {"test_edges": str(file)}):
        dataset = {"name": str(opened.path), **held}
        out = tmp_path / f"run{len(held)}"
        ge.pipeline("complex", dataset, out=out, output={"report": "none"}, progress=True, **recipe)
        plan = "plan: 2,500 triples stay on the disk, 93.75 KiB by bucket in "  # 32 bytes each, and 8 an entity
        assert (plan in capfd.readouterr().err) == (not held)
