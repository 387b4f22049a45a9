"""Knowledge graphs through the pipeline: what is read, trained, judged, written and refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.cli.main import main
from graph_emb.config import MODELS, config_from
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.models.kge.config import DEFAULT_LR, KGE_MODELS, KGEConfig, LossName
from graph_emb.models.kge.model import LOSSES
from graph_emb.models.kge.scorers import SCORERS
from tests.models.kge.references import ring
from tests.ogb_layout import write_biokg, write_wikikg2
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

TINY: dict[str, Any] = {
    "dim": 8, "num_negatives": 4, "chunk_size": 2, "batch_size": 8, "epochs": 4, "valid_every": 2, "threads": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The ring as text, with names."""
    place = tmp_path / "ring"
    place.mkdir()
    for part, triples in ring().parts.items():
        lines = [f"e{h}\tr{r}\te{t}\n" for h, r, t in triples.tolist()]
        (place / f"{part}.txt").write_text("".join(lines))
    (place / "test.txt").write_text("e8\tr0\te9\n")
    return place


@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
def test_a_device_that_is_not_there_is_named_before_training(folder: Path, tmp_path: Path, device: str) -> None:
    with pytest.raises(ge.ConfigError, match=rf"^train\.device='{device}' is no device [^\n]+$"):
        ge.pipeline("complex", folder, out=tmp_path / "run", device=device, **TINY)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"parallel": {"mode": "collective", "trainers": 2}},
            r"one process trains complex on a device; leave parallel",
        ),
        ({"train.memory": "1MiB"}, r"rows in files are read to the processor; leave train\.memory or it out"),
    ],
)
def test_a_device_is_of_one_process_with_its_rows_in_memory(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ge.ConfigError, match=r"train\.device = 'cuda': " + message):
        ge.pipeline("complex", folder, **{"train.device": "cuda"}, **options, **TINY)


def test_every_model_has_settings_and_a_scorer() -> None:
    assert set(KGE_MODELS) == set(SCORERS)
    assert set(KGE_MODELS) <= set(MODELS)
    assert set(LOSSES) == set(LossName.__args__)


@pytest.mark.parametrize("model", SCORERS)
def test_every_model_is_a_recipe(model: str) -> None:
    recipe = config_from({"model": {"name": model}, "dataset": {"name": "fb15k237"}}).model
    assert isinstance(recipe, KGEConfig)
    assert recipe == KGEConfig(model=model)
    assert recipe.first_lr == DEFAULT_LR[recipe.rule]
    assert recipe.batch_size == 1024


def test_a_run_writes_both_tables_under_their_names(folder: Path, tmp_path: Path) -> None:
    result = ge.pipeline("complex", folder, out=tmp_path / "run", **TINY)
    entities, relations = load_embeddings(tmp_path / "run"), load_embeddings(tmp_path / "run" / "relation")
    assert entities.weights.shape == (12, 8)
    assert sorted(entities.node_ids.tolist()) == sorted(f"e{n}" for n in range(12))
    assert sorted(relations.node_ids.tolist()) == ["r0", "r1"]
    np.testing.assert_array_equal(result.tables["relation"].weights, relations.weights)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["dataset"] == {
        "name": "ring", "entities": 12, "relations": 2, "triples": 21, "valid_triples": 3, "test_triples": 1,
    }  # fmt: skip
    test = metrics["evaluation"]["triples_test"]
    assert (test["candidates"], test["filtered"], test["num_triples"]) == ("all 12 entities", True, 1)
    assert metrics["train"]["best_epoch"] in (2, 4)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert metrics["train"]["best_valid_mrr"] == max(line["valid_mrr"] for line in lines[1::2])


GNN: dict[str, Any] = {
    "dim": 8, "hidden_dim": 8, "num_negatives": 4, "chunk_size": 2, "batch_size": 8, "epochs": 4, "eval_every": 2,
    "threads": 1, "model.l2": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("model", "options"), [("complex", TINY), ("rgcn", GNN)])
def test_a_run_is_ranked_again_as_its_training_did(
    folder: Path, tmp_path: Path, model: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """eval link read two tables of triples as one of nodes, and refused them."""
    run, judged = tmp_path / "run", tmp_path / "judged.json"
    told = ge.pipeline(model, folder, out=run, **options).metrics["evaluation"]
    assert main(["eval", "link", "--embeddings", str(run), "--json", str(judged)]) == 0
    found = json.loads(judged.read_text())
    assert found["task"] == "triples"
    assert {part: found[part] for part in ("triples_valid", "triples_test")} == {
        part: told[part] for part in ("triples_valid", "triples_test")
    }
    assert "filtered, both sides of 1 triples against all 12 entities" in capfd.readouterr().out
    (tmp_path / "held.tsv").write_text("e8\tr0\te9\ne4\tr1\te6\n")
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.txt").write_bytes((folder / "train.txt").read_bytes())
    words = ["eval", "link", "--embeddings", str(run), "--dataset", str(whole)]
    assert main([*words, "--test-edges", str(tmp_path / "held.tsv"), "--json", str(judged)]) == 0
    assert json.loads(judged.read_text())["triples_test"]["num_triples"] == 2
    for flags, message in (
        (words, "whole has no held-out triples; give --dataset and --test-edges"),
        ([*words, "--hits", "10"], "--hits 10 has no effect on a run of triples"),
        (["eval", "link", "--embeddings", str(run), "--dataset", str(tmp_path / "held.tsv")], "are they of one graph?"),
    ):
        assert main(flags) != 0
        assert message in capfd.readouterr().err


def test_a_graph_network_learns_triples(folder: Path, tmp_path: Path) -> None:
    """The rows that rank are written: the network's of the entities, the decoder's of the relations."""
    result = ge.pipeline("rgcn", folder, out=tmp_path / "run", num_blocks=2, edge_dropout=0.3, **GNN)
    assert load_embeddings(tmp_path / "run").weights.shape == (12, 8)
    assert load_embeddings(tmp_path / "run" / "relation").weights.shape == (2, 8)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["dataset"]["triples"], metrics["dataset"]["test_triples"]) == (21, 1)
    best = metrics["evaluation"]["graph_network"]["summary"]["mrr"]
    for part in ("valid", "test"):
        assert metrics["evaluation"][f"triples_{part}"]["both"]["mrr"]["realistic"] == best[part]["mean"]
    assert result.embeddings is not None
    assert sorted(result.embeddings.node_ids.tolist()) == sorted(f"e{n}" for n in range(12))
    with pytest.raises(ge.ConfigError, match=r"dataset\.split = .* has no effect on links, which rgcn predicts here"):
        ge.pipeline("rgcn", folder, split=str(folder / "test.txt"), **GNN)


def test_the_evaluation_judges_the_best_rows(folder: Path) -> None:
    result = ge.pipeline("complex", folder, valid_triples=0, **TINY)
    (valid,) = (finding for finding in result.findings if finding.name == "triples_valid")
    assert valid.scores.as_dict()["both"]["mrr"]["realistic"] == result.metrics["train"]["best_valid_mrr"]


@pytest.mark.parametrize(("name", "write"), [("ogbl-biokg", write_biokg), ("ogbl-wikikg2", write_wikikg2)])
def test_ogbs_graphs_are_ranked_among_their_own_negatives(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path)
    result = ge.pipeline("distmult", name, root=tmp_path, **TINY)
    for finding in result.findings:
        assert finding.scores.as_dict()["candidates"] == "5 given entities for each triple"
    assert result.embeddings is not None
    assert result.embeddings.node_ids.tolist() == list(range(result.dataset.num_entities))


def test_the_command_line_trains_and_tells(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", "transe", "--dataset", str(folder), "--threads", "1", "--out", str(tmp_path / "run")]
    overrides = [f"model.{key}={TINY[key]}" for key in ("dim", "num_negatives", "chunk_size")]
    assert main([*words, "train.batch_size=8", "train.epochs=2", *overrides]) == 0
    told = capfd.readouterr().out
    assert "transe on ring: 12 entities, 2 relations, 21 triples, 3 valid triples, 1 test triples" in told
    assert "filtered, both sides of 1 triples against all 12 entities" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "rotate", "dim": 7}, "dim = 7: rotate needs an even width"),
        ({"model": "complex", "margin": 3.0}, "margin = 3 has no effect on the softmax loss"),
        ({"model": "complex", "temperature": 0.5}, "belongs to loss=self_adversarial"),
        ({"model": "rotate", "loss": "hinge"}, "model.loss"),
        ({"model": "rotate", "batch_size": 100}, "batch_size = 100: should be a multiple of chunk_size"),
        ({"model": "rotate", "directed": True}, "dataset.directed = True has no effect on rotate"),
        ({"model": "rotate", "path": "autograd"}, "train.path = 'autograd' has no effect on rotate"),
        ({"model": "rotate", "norm": 2}, "norm"),
        ({"model": "rotate", "candidates": 12, "valid_every": 0}, r"num_candidates is 12; it must be in \[1, 12\)"),
    ],
)
def test_options_without_effect_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        ge.pipeline(dataset=folder, **options)


def test_data_that_is_no_knowledge_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("1 2\n")
    with pytest.raises(ge.DataError, match="expected 3: head, relation, tail"):
        ge.pipeline("rotate", tmp_path)


def run(folder: str, mode: dict[str, Any]) -> Any:
    result = ge.pipeline("complex", folder, parallel=mode, **TINY)
    return None if result.embeddings is None else result.embeddings.weights


def run_into(out: str, dataset: str, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """The evaluation of a run by several trainers, of which the first ranks nothing alone."""
    mode = {"mode": "collective", "trainers": int(os.environ["WORLD_SIZE"])}
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("graph_emb.run.families.triple_findings.rank_part")
        patch.delattr("graph_emb.evaluate.dealt_triples.rank_part")
        patch.setattr("graph_emb.evaluate.triple_ranks.QUERY_BLOCK", 2)
        result = ge.pipeline(model, dataset, out=out, parallel=mode, **options)
    return {part: told for part, told in result.metrics.get("evaluation", {}).items() if part.startswith("triples")}


@pytest.mark.dist
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize(
    ("model", "options"),
    [("complex", TINY), ("complex", {**TINY, "candidates": 5}), ("rgcn", GNN), ("rgcn", {**GNN, "num_seeds": 2})],
)
def test_all_trainers_judge_a_run_as_one_process_does(
    ranks: Ranks,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_ranks: int,
    model: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr("graph_emb.evaluate.triple_ranks.QUERY_BLOCK", 2)  # as in ``run_into``
    out, judged = tmp_path / "run", tmp_path / "judged.json"
    told, *others = ranks.run(run_into, num_ranks, str(out), str(folder), model, options)
    assert others == [{}] * (num_ranks - 1)
    assert main(["eval", "link", "--embeddings", str(out), "--json", str(judged)]) == 0
    found = json.loads(judged.read_text())
    assert {part: found[part] for part in ("triples_valid", "triples_test")} == told


@pytest.mark.dist
@pytest.mark.parametrize(("model", "options"), [("complex", TINY), ("rgcn", GNN)])
def test_all_trainers_judge_among_the_negatives_of_a_data_set(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any]
) -> None:
    write_wikikg2(tmp_path)
    monkeypatch.setattr("graph_emb.evaluate.triple_ranks.QUERY_BLOCK", 2)
    given, out, judged = {**options, "root": str(tmp_path)}, tmp_path / "run", tmp_path / "judged.json"
    told, other = ranks.run(run_into, 2, str(out), "ogbl-wikikg2", model, given)
    assert other == {}
    words = ["eval", "link", "--embeddings", str(out), "--root", str(tmp_path), "--json", str(judged)]
    assert main(words) == 0
    found = json.loads(judged.read_text())
    assert told["triples_test"]["candidates"] == "5 given entities for each triple"
    assert {part: found[part] for part in ("triples_valid", "triples_test")} == told


@pytest.mark.dist
def test_two_ranks_write_what_one_does(ranks: Ranks, folder: Path) -> None:
    alone = run(str(folder), {})
    ge.shutdown()
    found = ranks.run(run, 2, str(folder), {"mode": "collective", "trainers": 2, "hogwild": False})
    np.testing.assert_allclose(found[0], alone, rtol=1e-3, atol=1e-4)
    assert found[1] is None
