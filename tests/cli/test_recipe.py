"""``graph-emb train --recipe`` runs what the scripts of examples/ogb run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graph_emb.cli.main import main
from graph_emb.ogb.record import read_record, write_record
from graph_emb.ogb.script import Script
from tests import ogb_layout

SMALL = {
    "ogbl-ddi/deepwalk": [
        "num_walks=2", "walk_length=6", "model.dim=4", "predictor.epochs=5", "predictor.hidden_dim=8",
    ],
    "ogbn-arxiv/node2vec": ["num_walks=2", "walk_length=6", "dim=4", "mlp.epochs=3", "mlp.hidden_dim=8"],
    "ogbl-wikikg2/transe": ["dim=8", "model.num_negatives=4", "chunk_size=16", "batch_size=32", "epochs=2"],
    "ogbn-mag/rgcn": ["model.hidden_dim=8", "train.batch_size=32", "epochs=2"],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_gives_the_bits_of_its_script(tmp_path: Path, name: str) -> None:
    """Of every kind one: links, node classes, a knowledge graph, a graph network."""
    dataset, _, model = name.partition("/")
    ogb_layout.WRITERS[dataset](tmp_path)
    common = ["--root", str(tmp_path), "--threads", "1"]
    words = ["train", "--recipe", name, *common, "--out", str(tmp_path / "a"), "--seeds", "3,5", *SMALL[name]]
    assert main(words) == 0
    script = Script.of(dataset, file="x.py", description="")
    own = [*common, "--out", str(tmp_path / "b"), "--model", model, "--seeds", "3", "5", "--set", *SMALL[name]]
    assert script.main(own) == 0
    for seed in (3, 5):
        found, wanted = (read_record(tmp_path / side / model / f"seed-{seed}.json") for side in "ab")
        assert found.command == f"graph-emb {' '.join(words)}"
        assert found.settings == wanted.settings
        assert found.finished().scores == wanted.finished().scores


def test_the_default_is_seed_0_and_a_finished_seed_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ogb_layout.WRITERS["ogbl-ddi"](tmp_path)
    words = ["train", "--recipe", "ogbl-ddi/deepwalk", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    for _ in range(2):
        assert main([*words, *SMALL["ogbl-ddi/deepwalk"]]) == 0
        assert {p.name for p in (tmp_path / "runs" / "deepwalk").iterdir()} == {"seed-0.json", "seed-0"}
    assert "DeepWalk, published" in capsys.readouterr().out
    assert main([*words, *SMALL["ogbl-ddi/deepwalk"], "predictor.lr=0.5"]) == 2
    assert "evaluate.predictor.lr=0.01 there, 0.5 now" in capsys.readouterr().err


def test_the_record_says_on_which_part_settings_were_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ogb_layout.WRITERS["ogbl-ddi"](tmp_path)
    words = ["train", "--recipe", "ogbl-ddi/deepwalk", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    assert main([*words, "--settings-selected-on", "valid", *SMALL["ogbl-ddi/deepwalk"]]) == 0
    record = read_record(tmp_path / "runs" / "deepwalk" / "seed-0.json")
    assert (record.settings_selected_on, "--settings-selected-on valid" in record.command) == ("valid", True)
    assert main([*words, *SMALL["ogbl-ddi/deepwalk"]]) == 2
    assert "settings_selected_on='valid' there, 'none' now" in capsys.readouterr().err


def test_a_seed_is_a_run_with_folder_and_checkpoints(tmp_path: Path) -> None:
    ogb_layout.WRITERS["ogbl-ddi"](tmp_path)
    words = ["train", "--recipe", "ogbl-ddi/deepwalk", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    words += ["--checkpoint-every", "1", "--formats", "npy,word2vec", *SMALL["ogbl-ddi/deepwalk"]]
    assert main(words) == 0
    folder = tmp_path / "runs" / "deepwalk"
    assert {"config.yaml", "metrics.json", "metrics.jsonl", "embeddings.npy"} <= {
        p.name for p in (folder / "seed-0").iterdir()
    }
    judged = json.loads((folder / "seed-0" / "metrics.json").read_text())["evaluation"]["link_predictor"]["metrics"]
    result = read_record(folder / "seed-0.json").finished()
    assert judged == {name: score.model_dump() for name, score in result.scores.items()}
    assert any(p.name.isdigit() for p in (folder / "seed-0-checkpoints").iterdir())
    again = ["train", "--config", str(folder / "seed-0" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert main([*again, "checkpoint.every=null", "checkpoint.keep_last=2"]) == 0  # the file says all of it
    found = json.loads((tmp_path / "again" / "metrics.json").read_text())["evaluation"]["link_predictor"]["metrics"]
    assert found == judged


def test_a_seed_that_broke_off_is_run_again_in_its_place(tmp_path: Path) -> None:
    ogb_layout.WRITERS["ogbl-ddi"](tmp_path)
    words = ["train", "--recipe", "ogbl-ddi/deepwalk", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    words += SMALL["ogbl-ddi/deepwalk"]
    assert main(words) == 0
    path = tmp_path / "runs" / "deepwalk" / "seed-0.json"
    whole = read_record(path)
    write_record(path, whole.model_copy(update={"status": "started", "result": None}))
    assert main(words) == 0  # the run folder that is there is replaced
    assert read_record(path).finished().scores == whole.finished().scores
    path.unlink()
    assert main(words) == 2  # of a folder without a record nobody knows what it is
    path.unlink(missing_ok=True)
    assert main([*words, "--overwrite"]) == 0


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("mode", [["--trainers", "2"], ["--mode", "kvstore", "--trainers", "2"]], ids=str)
def test_several_trainers_run_the_seeds_of_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    ogb_layout.WRITERS["ogbl-ddi"](tmp_path)
    words = ["train", "--recipe", "ogbl-ddi/deepwalk", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    words += ["--seeds", "0,1", "--threads", "1", *mode, *SMALL["ogbl-ddi/deepwalk"]]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("deepwalk, seed ") == 2
    assert "DeepWalk, published" in printed
    for seed in (0, 1):
        record = read_record(tmp_path / "runs" / "deepwalk" / f"seed-{seed}.json")
        assert record.seed == seed
        assert record.settings["parallel"]["trainers"] == 2
        assert record.finished().parameters["embedding"] == 2 * 40 * 4
    assert main(words) == 0  # and are kept


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--recipe", "ogbl-ddi/deepwlak"], "unknown recipe 'ogbl-ddi/deepwlak'; known: "),
        (["--recipe", "ogbl-ddi/deepwlak"], "did you mean 'ogbl-ddi/deepwalk'?"),
        (["deepwalk", "--recipe", "ogbl-ddi/mf"], "model deepwalk has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "--dataset", "cora"], "--dataset cora has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "--hold-out", "0.1"], "--hold-out 0.1 has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "predictor.epcohs=3"], "did you mean 'predictor.epochs'?"),
        (["--recipe", "ogbl-ddi/mf", "--seed", "1x"], "seed = '1x': should be a valid integer"),
        (["--recipe", "ogbl-ddi/mf", "--seed", "9223372036854775808"], "seed = 9223372036854775808: should be less"),
        (["--recipe", "ogbl-ddi/mf", "--threads", "0"], "train.threads = 0: should be greater than or equal to 1"),
        (["--recipe", "ogbl-ddi/mf", "--seed", "1", "--seeds", "0-2"], "give one of them"),
        (["--recipe", "ogbl-ddi/mf", "seed=1", "--seeds", "0-2"], "every run would have the same"),
        (["--recipe", "ogbl-ddi/mf", "--trainers", "2"], "parallel.mode = 'collective' has no effect on mf"),
        (["--recipe", "ogbl-ddi/mf", "--no-eval"], "--no-eval True has no effect on a recipe"),
        (["mf", "--dataset", "ogbl-ddi", "--settings-selected-on", "valid"], "--settings-selected-on valid is kept in"),
    ],
)
def test_words_that_mean_nothing_to_a_recipe_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["train", *words, "--root", str(tmp_path), "--out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert list(tmp_path.iterdir()) == []
