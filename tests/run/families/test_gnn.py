"""Graph networks through the pipeline: what is read, trained, judged, written and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import MODELS, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.dealt_triples import _Counting
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.graph.views import message_graph
from graph_emb.models.gnn.config import GNN_MODELS, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import TripleTask
from graph_emb.models.gnn.train import train_rgcn
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.run.families import gnn as family
from graph_emb.run.families.gnn import GNNFamily
from graph_emb.run.family import TrainingJob
from graph_emb.run.parallel import Trainers
from graph_emb.run.run_folder import RunFolder
from graph_emb.transport.process_group import ProcessGroup
from tests.models.gnn.planted import planted_triples
from tests.models.skipgram.test_kvstore import as_a_rank
from tests.ogb_layout import write_ddi, write_mag
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode")

TINY: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 4, "eval_every": 2, "threads": 1}


def test_the_defaults_are_the_published_recipes() -> None:
    assert set(GNN_MODELS) <= set(MODELS)
    for name, dataset, settings in (("rgcn", "aifb", RGCNConfig()), ("sage", "ogbl-ddi", SAGEConfig())):
        assert config_from({"model": {"name": name}, "dataset": {"name": dataset}}).model == settings
    assert (RGCNConfig().network_lr, SAGEConfig().network_lr) == (0.01, 0.005)


def test_every_field_reaches_the_model() -> None:
    given: dict[str, Any] = {
        "dim": 3, "hidden_dim": 5, "num_layers": 1, "dropout": 0.25, "weight_decay": 0.5, "dense_lr": 0.125,
        "init": "normal", "fanouts": [-1], "clip_norm": 2.0, "eval_every": 7, "patience": 9, "ema_decay": 0.5,
        "predictor_layers": 4, "negatives": "targets", "precision": "bfloat16",
    }  # fmt: skip
    train = {"rule": "adamw", "lr": 0.75, "epochs": 11, "weight_decay": 0.25}
    sections = {"model": {"name": "sage", **given}, "train": train, "dataset": {"name": "ogbl-ddi"}}
    settings = SAGEConfig(**{**given, "rule": "adamw", "lr": 0.75, "epochs": 11, "table_weight_decay": 0.25})
    assert GNNFamily(config_from(sections)).model == settings
    assert (settings.network_lr, settings.first_lr) == (0.125, 0.75)


def test_memory_for_averages_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    write_ddi(tmp_path)

    def loaded(**options: Any) -> Any:
        sections = {"model": {"name": "sage", "dim": 8, **options}, "train": {"rule": "sgd"}}
        dataset = {"name": "ogbl-ddi", "root": str(tmp_path)}
        return GNNFamily(config_from({**sections, "dataset": dataset})).load()

    rows = loaded().graph.total_nodes

    class Memory:
        available = rows * 8 * 4 * 2

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    loaded()
    with pytest.raises(ConfigError, match="of memory is free"):
        loaded(ema_decay=0.5)


def test_mag_learns_the_rows_of_types_without_features(tmp_path: Path) -> None:
    write_mag(tmp_path)
    run = tmp_path / "run"
    result = ge.pipeline("rgcn", "ogbn-mag", root=tmp_path, out=run, num_seeds=2, fanouts=[3, 3], **TINY)
    assert list(result.tables) == ["author", "field_of_study", "institution"]
    assert load_embeddings(run / "institution").weights.shape == (6, 8)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["dataset"]["edge_types"] == 8
    assert metrics["dataset"]["features"] == ["paper"]
    found = metrics["evaluation"]["graph_network"]
    assert found["seeds"] == [0, 1]
    assert len(found["summary"]["accuracy"]["test"]["values"]) == 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["epoch"]) for line in lines] == [(0, 2), (0, 4), (1, 2), (1, 4)]


def test_ddi_is_judged_by_its_own_metric(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    result = ge.pipeline("sage", "ogbl-ddi", root=tmp_path, batch_size=64, lr=0.05, **TINY)
    found = result.metrics["evaluation"]["graph_network"]
    assert next(iter(found["summary"])) == "hits@20"
    assert 0 < found["summary"]["hits@20"]["test"]["mean"] <= 1
    assert result.embeddings is not None
    assert np.abs(result.embeddings.weights).max() > 0


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    """12 people in two groups, who share a project each; the last four are for testing."""
    place = tmp_path / "people"
    place.mkdir()
    lines = [f'<p{n}> <works/on> <project{n % 2}> .\n<p{n}> <name> "n{n}" .\n' for n in range(12)]
    (place / "people.nt").write_text("".join(lines))
    for file, numbers in (("trainingSet.tsv", range(8)), ("testSet.tsv", range(8, 12))):
        rows = [f"{n}\tp{n}\tgroup{n % 2}" for n in numbers]
        (place / file).write_text("\n".join(["id\tperson\tlabel_group", *rows]) + "\n")
    return place


def test_entities_of_rdf_are_classified(entities: Path) -> None:
    result = ge.pipeline("rgcn", entities, threads=1, num_seeds=1, lr=0.05)
    assert result.metrics["evaluation"]["graph_network"]["summary"]["accuracy"]["test"]["mean"] == 1.0
    assert result.embeddings is not None
    assert set(result.embeddings.node_ids) == {f"<p{n}>" for n in range(12)} | {f'"n{n}"' for n in range(12)} | {
        "<project0>",
        "<project1>",
    }


@pytest.mark.parametrize(("seed", "finished"), [(0, []), (1, [0])])
def test_an_interrupt_keeps_the_first_seeds_rows_and_what_finished_seeds_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, finished: list[int]
) -> None:
    append = RunFolder.append

    def interrupted(self: RunFolder, line: dict[str, Any]) -> None:
        append(self, line)
        if (line["seed"], line["epoch"]) == (seed, 2):
            raise KeyboardInterrupt

    write_mag(tmp_path)
    monkeypatch.setattr(RunFolder, "append", interrupted)
    run = tmp_path / "run"
    result = ge.pipeline("rgcn", "ogbn-mag", root=tmp_path, out=run, num_seeds=3, **TINY)
    assert result.interrupted
    assert load_embeddings(run / "institution").weights.shape == (6, 8)
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["status"], metrics["evaluation"]) == ("interrupted", {})
    found = metrics["train"]["finished_seeds"]
    assert found["seeds"] == finished
    assert [len(run["history"]) for run in found["runs"]] == [2] * len(finished)
    assert set(found["summary"]) == ({"accuracy"} if finished else set())
    monkeypatch.undo()
    whole = ge.pipeline("rgcn", "ogbn-mag", root=tmp_path, **{**TINY, "epochs": 4 if finished else 2})
    np.testing.assert_array_equal(load_embeddings(run).weights, whole.embeddings.weights)  # type: ignore[union-attr]


def test_an_interrupt_between_two_seeds_keeps_the_first(entities: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, seeds = family.train_rgcn, []

    def interrupted(*args: Any, seed: int, **options: Any) -> Any:
        seeds.append(seed)
        if seed == 1:
            raise KeyboardInterrupt
        return train(*args, seed=seed, **options)

    monkeypatch.setattr(family, "train_rgcn", interrupted)
    result = ge.pipeline("rgcn", entities, threads=1, epochs=2, num_seeds=3)
    assert result.interrupted
    assert seeds == [0, 1]
    assert result.metrics["train"]["finished_seeds"]["seeds"] == [0]
    with pytest.raises(KeyboardInterrupt):
        ge.pipeline("rgcn", entities, threads=1, epochs=2, seed=1)


@pytest.mark.data
def test_aifb_is_read_and_classified(shared_data: Path) -> None:
    """Over ten seeds the preset finds .956 of the 36 test entities; one seed found no less than .916."""
    result = ge.pipeline("rgcn", "aifb", root=shared_data, threads=1, num_seeds=2)
    assert result.metrics["dataset"]["nodes"] == 8285
    assert result.metrics["dataset"]["edge_types"] == 90
    assert result.metrics["evaluation"]["graph_network"]["summary"]["accuracy"]["test"]["mean"] > 0.9


def train(folder: str) -> Any:
    result = ge.pipeline("rgcn", folder, parallel={"mode": "collective", "trainers": 2}, epochs=12, threads=1, lr=0.1)
    rows = None if result.embeddings is None else result.embeddings.weights
    return rows, result.metrics.get("evaluation")


@pytest.mark.dist
def test_two_ranks_make_one_run(entities: Path, ranks: Ranks) -> None:
    first, second = ranks.run(train, 2, str(entities))
    assert first[0].shape == (26, 16)
    assert first[1]["graph_network"]["summary"]["accuracy"]["test"]["mean"] == 1.0
    assert second == (None, None)


def ranked_at_the_end(transport: Any, group: ProcessGroup) -> Any:
    """The ranks of a run's end by all trainers, of which the first ranks nothing alone, and by this process alone."""
    sizes = {"dim": 8, "hidden_dim": 8, "decoder": "complex", "num_blocks": 1}
    config = config_from({"model": {"name": "rgcn", **sizes}, "dataset": "planted", "train": {"epochs": 4}})
    model, graph = config.model, planted_triples()
    assert isinstance(model, RGCNConfig)
    result, made = train_rgcn(message_graph(graph), TripleTask(graph), model, group=group), GNNFamily(config)
    counted: list[int] = []
    run = _Counting.run

    def count(self: Any) -> Any:
        counted.append(len(self._places))
        return run(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("graph_emb.run.families.triple_findings.rank_part")
        patch.setattr("graph_emb.evaluate.triple_ranks.QUERY_BLOCK", 4)
        patch.setattr(_Counting, "run", count)
        made._rank(TripleTask(graph), result, TrainingJob(Trainers(group, transport)))
        assert made._ranked is not None
        found = [(finding.name, finding.scores.as_dict()) for finding in made._ranked.findings()]
        if result.ranked is None:
            return found, [], counted
        scorer = scorer_of(model.decoder_settings)
        alone = {part: rank_part(scorer, *result.ranked, graph, part) for part in ("valid", "test")}
    return found, [(f"triples_{part}", ranks.as_dict()) for part, ranks in alone.items()], counted


def ranked_in_ranks() -> Any:
    transport: Any = ge.init(mode="collective")
    try:
        return ranked_at_the_end(transport, transport.group)
    finally:
        ge.shutdown()


def ranked_beside_servers(transport: Any, port: int) -> Any:
    group = as_a_rank(transport, port)
    try:
        return ranked_at_the_end(transport, group)
    finally:
        group.close()


def check_shared(of_ranks: list[Any]) -> None:
    (found, alone, _), *others = of_ranks
    assert found == alone
    assert len(found) == 2
    assert [other[:2] for other in others] == [([], [])] * len(others)
    for blocks in zip(*(counted for _, _, counted in of_ranks), strict=True):
        assert max(blocks) - min(blocks) <= 1, "each counts as many blocks as the others"
        assert min(blocks) > 0


@pytest.mark.dist
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_rank_triples_at_the_end(ranks: Ranks, num_ranks: int) -> None:
    check_shared(ranks.run(ranked_in_ranks, num_ranks))


@pytest.mark.dist
@pytest.mark.usefixtures("idle_servers")
@pytest.mark.parametrize("num_trainers", [2, 3])
def test_trainers_beside_servers_rank_triples_at_the_end(num_trainers: int) -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check_shared(Cluster(trainers=num_trainers).run(ranked_beside_servers, store.port))


def train_in_blocks(folder: str, **parallel: Any) -> Any:
    parallel["blocks"] = 4
    result = ge.pipeline("rgcn", folder, parallel=parallel, epochs=12, dtype="float64", lr=0.1)
    if result.embeddings is None:
        return None
    assert result.network is not None
    return result.embeddings.weights, result.network.tensors, result.metrics["evaluation"]["graph_network"]


def train_in_blocks_on_two(folder: str) -> Any:
    return train_in_blocks(folder, mode="collective", trainers=2)


@pytest.mark.dist
def test_a_run_in_blocks_ends_with_the_bits_of_one_process(entities: Path, ranks: Ranks) -> None:
    rows, network, found = train_in_blocks(str(entities))
    theirs, others, judged = ranks.run(train_in_blocks_on_two, 2, str(entities))[0]
    assert np.array_equal(rows, theirs)
    assert judged["summary"] == found["summary"]
    assert {name for name in network if network[name].dtype.itemsize == 8}, "in float64"
    assert all(np.array_equal(network[name], others[name]) for name in network)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("rgcn", {"fanouts": [5]}, "names 1 layers; num_layers is 2"),
        ("rgcn", {"fanouts": [0, 5]}, "give a positive number or -1"),
        (
            "rgcn",
            {"parallel": {"mode": "collective", "trainers": 2, "hogwild": True}},
            r"parallel\.hogwild = True has no effect on rgcn",
        ),
        ("sage", {}, "has 4 edge types, and sage takes one; take rgcn"),
        (
            "rgcn",
            {"parallel": {"mode": "collective", "trainers": 3, "blocks": 4}},
            r"parallel\.blocks = 4 are not shared evenly by 3 trainers",
        ),
        (
            "rgcn",
            {"parallel": {"mode": "collective", "trainers": 2, "blocks": 4, "wire_dtype": "bfloat16"}},
            r"parallel\.blocks = 4 is for equal bits, and parallel\.wire_dtype rounds",
        ),
    ],
)
def test_what_means_nothing_is_refused(entities: Path, model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        ge.pipeline(model, entities, **options)


@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
def test_a_device_that_is_not_there_is_named_before_training(entities: Path, device: str) -> None:
    with pytest.raises(ge.ConfigError, match=rf"^train\.device='{device}' is no device [^\n]+$"):
        ge.pipeline("rgcn", entities, device=device, **TINY)


def test_features_of_all_nodes_leave_nothing_to_learn(tmp_path: Path) -> None:
    from tests.ogb_layout import write_arxiv

    write_arxiv(tmp_path)
    with pytest.raises(ge.ConfigError, match=r"so nothing is learned; set model\.features=false"):
        ge.pipeline("sage", "ogbn-arxiv", root=tmp_path, **TINY)
    result = ge.pipeline("sage", "ogbn-arxiv", root=tmp_path, features=False, **TINY)
    assert result.metrics["evaluation"]["graph_network"]["summary"]["accuracy"]["test"]["mean"] >= 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("predictor_layers", 3),
        ("negatives", "targets"),
        ("num_negatives", 2),
        ("loss", "auc"),
        ("precision", "bfloat16"),
    ],
)
def test_fields_of_the_link_predictor_mean_nothing_to_classes(tmp_path: Path, field: str, value: Any) -> None:
    from tests.ogb_layout import write_arxiv

    write_arxiv(tmp_path)
    with pytest.raises(ge.ConfigError, match=rf"model\.{field} = {value!r} has no effect on classes of nodes; leave"):
        ge.pipeline("sage", "ogbn-arxiv", root=tmp_path, features=False, **TINY, **{f"model.{field}": value})


def test_data_that_cannot_be_classified_is_refused(entities: Path) -> None:
    (entities / "testSet.tsv").write_text("id\tperson\tlabel_group\n1\tnobody\tgroup0\n")
    with pytest.raises(ge.DataError, match=r"testSet\.tsv: no column starts with 'label', or none holds IRIs"):
        ge.pipeline("rgcn", entities)
    with pytest.raises(ge.DataError, match=r"data set 'digits' has no split of its nodes"):
        ge.pipeline("sage", "digits")
