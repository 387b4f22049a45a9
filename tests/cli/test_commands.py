"""What the commands do when all is well: train, eval, export, info and the demo's parts."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from graph_emb.cli import demo, doctor
from graph_emb.cli.demo import draw_map, markdown
from graph_emb.cli.parser import parse
from graph_emb.cli.train import config_of, default_folder
from graph_emb.config import config_from
from graph_emb.core import left_behind
from graph_emb.core.hidden import HiddenFolder
from graph_emb.formats.embedding_files import load_embeddings
from tests.cli.conftest import CliqueFiles, Outcome
from tests.cli.test_main import refused
from tests.ogb_layout import write_citation2

Cli = Callable[..., Outcome]
TINY = ("model.dim=8", "model.walk_length=10", "model.window=2", "train.threads=1")


def train(cli: Cli, cliques: CliqueFiles, *words: str) -> Outcome:
    graph, labels = cliques
    flags = ("--dataset", graph, "--labels", labels, "--hold-out", "0.1", "--out", "run")
    outcome = cli("train", "deepwalk", *flags, *TINY, *words)
    assert outcome.code == 0, outcome.err
    return outcome


def test_training_writes_a_complete_run(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    outcome = train(cli, cliques, "train.epochs=3", "train.log_interval=1e-9", "--formats", "npy,word2vec")
    files = [
        "config.yaml",
        "context.npy",
        "embeddings.npy",
        "embeddings.w2v.txt",
        "ids.npy",
        "metrics.json",
        "metrics.jsonl",
    ]
    files.append("report.html")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == files
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["files"] == files
    assert metrics["status"] == "finished"
    counts = {"reverse edges added": 57}
    shape = {"nodes": 16, "edges": 51, "directed": False, "counts": counts}  # 6 of 57 held out
    assert metrics["dataset"] == {"name": "cliques", **shape}
    assert "edges: 57 reverse edges added" in outcome.out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["walks"] for line in lines] == [160, 320, 480]  # 10 walks from 16 nodes in each epoch
    assert metrics["train"]["walks"] == 480
    assert "micro-F1" in outcome.out
    assert "score: dot product" in outcome.out
    assert "run folder" in outcome.err


@pytest.mark.parametrize("model", [("deepwalk",), ("line", "model.order=second")], ids=["deepwalk", "line"])
def test_citations_are_ranked_among_the_wrong_targets_of_their_source(
    cli: Cli, tmp_path: Path, model: tuple[str, ...]
) -> None:
    """ogbl-citation2 has no shared negatives: the run trained, and then said that it has none."""
    write_citation2(tmp_path)
    flags = ("--dataset", "ogbl-citation2", "--root", tmp_path)
    outcome = cli("train", *model, *flags, "--out", "run", "model.dim=4", "train.threads=1", "train.epochs=1")
    assert outcome.code == 0, outcome.err
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())["evaluation"]["link_prediction"]["parts"]
    assert {part: (f["num_positives"], f["num_negatives"]) for part, f in found.items()} == {
        "valid": (80, 12),
        "test": (80, 12),
    }
    judged = cli("eval", "link", "--embeddings", "run", *flags, "--json", "x.json")
    assert judged.code == 0, judged.err
    assert json.loads((tmp_path / "x.json").read_text())["parts"] == found


def test_a_folder_whose_name_is_no_utf8_holds_a_whole_run(cli: Cli, cliques: CliqueFiles) -> None:
    """The page of the run holds the command, with the name: UnicodeEncodeError after the training."""
    name = os.fsdecode(b"bad\xff")
    words = ("deepwalk", "--dataset", cliques[0], "--dim", 4, "--out", name, "num_walks=1", "walk_length=4")
    assert cli("train", *words).code == 0
    assert r"bad\udcff" in (Path(name) / "report.html").read_text("utf-8")
    assert cli("info", name).code == 0


def test_an_empty_word_is_no_default(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    """``--out ""`` wrote to the default folder, and an empty path was the current one."""
    before = sorted(tmp_path.iterdir())
    done = cli("train", "deepwalk", "--dataset", cliques[0], "--out", "")
    assert (done.code, done.err) == (2, "graph-emb: error: --out is empty; give a value or leave it out\n")
    assert "is empty; give a value" in cli("info", "").err
    assert sorted(tmp_path.iterdir()) == before


def test_the_written_configuration_repeats_the_run(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    train(cli, cliques, "seed=5")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert 0.025 <= config["train"]["lr"] <= 0.1  # by the number of walks, filled in
    assert cli("train", "--config", "run/config.yaml", "--out", "again").code == 0
    assert cli("train", "--config", "run/config.yaml", "--out", "other", "seed=6").code == 0
    first, again, other = (load_embeddings(tmp_path / name).weights for name in ("run", "again", "other"))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_quiet_prints_results_only(cli: Cli, cliques: CliqueFiles) -> None:
    assert train(cli, cliques, "-q").err == ""


def test_no_eval_trains_only(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    assert "micro-F1" not in train(cli, cliques, "--no-eval").out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))["evaluation"] == {}


def test_flags_win_over_the_file_and_overrides_over_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: {name: node2vec, dim: 2, p: 3}\ntrain: {lr: 0.2, epochs: 2}\nseed: 2\n", encoding="utf-8")
    words = ["train", "--config", str(file), "--dataset", "digits", "--dim", "3", "--lr", "0.3", "lr=0.4", "q=1"]
    config = config_of(parse(words))
    assert config.dataset.name == "digits"
    assert config.model.model_dump(include={"name", "dim", "p", "q", "walk_length"}) == {
        "name": "node2vec", "dim": 3, "p": 3.0, "q": 1.0, "walk_length": 80
    }  # fmt: skip
    assert (config.model.lr, config.model.epochs, config.seed) == (0.4, 2, 2)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("ogbl-ddi", "deepwalk-ogbl-ddi"), ("data/my graph.csv.gz", "deepwalk-my-graph"), ("runs/..", "deepwalk-.")],
)
def test_the_default_folder_is_named_after_model_and_data(name: str, folder: str) -> None:
    assert default_folder(config_from({"model": "deepwalk", "dataset": name})) == Path("runs") / folder


def test_eval_of_a_run_takes_the_data_that_it_held_out(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    train(cli, cliques, "seed=5")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert cli("eval", "link", "--embeddings", "run", "--json", "link.json").code == 0
    found = json.loads((tmp_path / "link.json").read_text(encoding="utf-8"))
    assert found["parts"] == metrics["evaluation"]["link_prediction"]["parts"]
    line = ("eval", "node-class", "--embeddings", "run", "--ratios", "0.1,0.5,0.9", "--shuffles", "3", "--seed", "5")
    refused(cli(*line[:-1], "x"), "seed = 'x'")
    outcome = cli(*line, "--json", "class.json")
    assert "micro-F1" in outcome.out
    found = json.loads((tmp_path / "class.json").read_text(encoding="utf-8"))
    assert found["ratios"] == metrics["evaluation"]["node_classification"]["ratios"]


def test_eval_judges_a_run_of_walks_again(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    train(cli, cliques, "seed=5")
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["evaluation"]
    done = cli("eval", "run", "--json", "again.json")  # a folder that is called as the task: read as RUN is missing
    refused(done, "RUN")
    done = cli("eval", "./run", "--json", "again.json")
    assert done.code == 0
    assert "metrics.json has the same values" in done.err
    found = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["evaluation"]
    assert found["link_prediction"]["parts"] == saved["link_prediction"]["parts"]
    assert found["node_classification"]["ratios"] == saved["node_classification"]["ratios"]
    done = cli("eval", "./run", "scorer=dot", "evaluate.ratios=[0.5]")
    assert "score: dot product\n" in done.out
    assert "90%" not in done.out
    refused(cli("eval", "./run", "dim=4"), "finished run")


def test_eval_judges_a_run_that_was_not_judged(cli: Cli, cliques: CliqueFiles) -> None:
    train(cli, cliques, "--no-eval")
    done = cli("eval", "./run")
    assert "micro-F1" in done.out
    assert "metrics.json has no scores" in done.err


def test_eval_ranks_the_triples_of_a_run_again(cli: Cli, tmp_path: Path) -> None:
    facts = [(f"e{a}", f"r{(a + b) % 2}", f"e{b}") for a in range(9) for b in range(9) if a != b and (a * b) % 4 != 1]
    (tmp_path / "kg").mkdir()
    parts = {"train": [f for n, f in enumerate(facts) if n % 7], "valid": facts[::14], "test": facts[7::14]}
    for part, own in parts.items():
        (tmp_path / "kg" / f"{part}.txt").write_text("".join("\t".join(fact) + "\n" for fact in own), encoding="utf-8")
    tiny = ("dim=8", "epochs=2", "batch_size=16", "chunk_size=8", "num_negatives=4", "threads=1")
    data = ("--dataset", "kg")
    for model, words in (("transe", tiny), ("rgcn", ("hidden_dim=8", "epochs=5", "eval_every=5", "threads=1"))):
        done = cli("train", model, *data, "--out", model, *words)
        assert done.code == 0, done.err
        settings = tmp_path / model / "config.yaml"
        text = settings.read_text(encoding="utf-8")
        assert text.count("device: cpu") == 1
        text = text.replace("device: cpu", "device: cuda:999").replace("placement: auto", "placement: device")
        settings.write_text(text, encoding="utf-8")
        done = cli("eval", model)  # ranks are the processor's, wherever the run was trained
        assert "ranks of the test triples" in done.out
        assert "the same values" in done.err


def test_eval_of_a_network_gives_its_scores_at_the_end(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    nodes = [line.split(",") for line in labels.read_text(encoding="utf-8").split()]
    parts = ("train", "train", "valid", "test")
    (tmp_path / "split.csv").write_text("".join(f"{n},{parts[i % 4]}\n" for i, (n, _) in enumerate(nodes)))
    data = ("--dataset", graph, "--labels", labels, "--split", "split.csv")
    done = cli("train", "sage", *data, "--out", "net", "epochs=5", "eval_every=5", "dim=8", "hidden_dim=8")
    assert done.code == 0, done.err
    done = cli("eval", "net")
    assert done.code == 0, done.err
    assert "node classes by the network that the run keeps, after epoch 5" in done.out
    assert "the same values" in done.err
    facts = " ".join(cli("info", "net").out.split())
    assert "network file network.safetensors" in facts
    assert "network after epoch 5" in facts
    config = tmp_path / "net" / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("hidden_dim: 8", "hidden_dim: 4"), encoding="utf-8")
    refused(cli("eval", "net"), "network.safetensors is of other settings than config.yaml")
    (tmp_path / "net" / "network.safetensors").unlink()  # as of an earlier version
    assert "scores of the rows alone" in cli("eval", "net").err


def test_a_run_without_symmetrize_does_not_draw_other_edges_in_silence(
    cli: Cli, cliques: CliqueFiles, tmp_path: Path
) -> None:
    """Held-out edges are drawn among the edges of the model, and an older configuration does not say which."""
    train(cli, cliques, "--no-eval")
    config = tmp_path / "run" / "config.yaml"
    old = config.read_text(encoding="utf-8").replace("  symmetrize: true\n", "")
    config.write_text(old, encoding="utf-8")
    refused(cli("eval", "link", "--embeddings", "run"), "is of an earlier version and lacks model.symmetrize")
    config.write_text(old.replace("  hold_out: 0.1\n", "  hold_out: 0.0\n"), encoding="utf-8")
    assert cli("eval", "node-class", "--embeddings", "run", "--ratios", "0.5").code == 0


def test_eval_matches_rows_by_id_whatever_their_order(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    from graph_emb.formats.embedding_files import save_embeddings

    train(cli, cliques, "--no-eval")
    run = load_embeddings(tmp_path / "run")
    order = np.random.default_rng(0).permutation(16)
    save_embeddings(tmp_path / "shuffled", run.weights[order], run.node_ids[order])
    (tmp_path / "run" / "embeddings.npy").write_bytes((tmp_path / "shuffled" / "embeddings.npy").read_bytes())
    straight = link_scores(cli, tmp_path)
    (tmp_path / "run" / "ids.npy").write_bytes((tmp_path / "shuffled" / "ids.npy").read_bytes())
    matched = link_scores(cli, tmp_path)
    np.save(tmp_path / "run" / "embeddings.npy", run.weights)
    np.save(tmp_path / "run" / "ids.npy", run.node_ids)
    assert matched == link_scores(cli, tmp_path)
    assert matched != straight  # the wrong ids do matter


def link_scores(cli: Cli, folder: Path) -> object:
    assert cli("eval", "link", "--embeddings", "run", "--json", "link.json").code == 0
    return json.loads((folder / "link.json").read_text(encoding="utf-8"))["parts"]


def test_eval_reads_labels_by_original_ids(cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from graph_emb.formats.embedding_files import save_embeddings

    sides = np.repeat([[-1.0], [1.0]], 10, axis=0).astype(np.float32)  # node i+100 is left for i < 10
    save_embeddings(tmp_path / "e", sides, np.arange(100, 120))
    lines = [f"{node},{'left' if node < 110 else 'right'}\n" for node in reversed(range(100, 120))]
    (tmp_path / "l.csv").write_text("".join(lines), encoding="utf-8")
    words = ("eval", "node-class", "--embeddings", "e", "--labels", "l.csv", "--ratios", "0.5", "--shuffles", "4")
    assert cli(*words, "--json", "x.json").code == 0
    (row,) = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["ratios"]
    assert (row["num_train"], row["micro_mean"], row["macro_mean"]) == (10, 1.0, 1.0)


def test_eval_takes_a_split_and_test_edges_of_files(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    parts = "".join(f"{side}{i},{('train', 'test')[i % 2]}\n" for side in "ab" for i in range(8))
    (tmp_path / "s.csv").write_text(parts, encoding="utf-8")
    (tmp_path / "t.csv").write_text("a0,a1\nb2,b3\n", encoding="utf-8")
    flags = ("--dataset", graph, "--labels", labels, "--split", "s.csv", "--test-edges", "t.csv", "--out", "run")
    assert cli("train", "deepwalk", *flags, *TINY).code == 0
    trained = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["evaluation"]
    words = ("eval", "node-class", "--embeddings", "run", "--labels", labels, "--split", "s.csv")
    assert cli(*words, "--json", "x.json").code == 0
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert found["accuracy"]["test"] == trained["split_accuracy"]["accuracy"]["test"]
    assert link_scores(cli, tmp_path) == trained["link_prediction"]["parts"]
    refused(cli(*words, "--ratios", "0.5"), "--ratios 0.5 has no effect with --split")
    assert cli("export", "run", "--format", "npy", "--out", "e").code == 0
    link = ("eval", "link", "--embeddings", "e", "--test-edges", "t.csv")
    refused(cli(*link), "--test-edges t.csv needs --dataset")
    assert cli(*link, "--dataset", graph, "--json", "y.json").code == 0
    assert json.loads((tmp_path / "y.json").read_text(encoding="utf-8"))["parts"] == trained["link_prediction"]["parts"]


def test_eval_refuses_what_it_cannot_judge(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    assert cli("train", "deepwalk", "--dataset", graph, "--out", "plain", *TINY).code == 0
    refused(cli("eval", "link", "--embeddings", "plain"), "cliques has no held-out edges")
    refused(cli("eval", "node-class", "--embeddings", "plain"), "cliques has no labels; give --labels FILE")
    refused(cli("eval", "node-class", "--embeddings", "plain", "--dataset", "digits"), "plain has 16 rows, digits has")
    assert cli("export", "plain", "--format", "npy", "--out", "e").code == 0
    refused(cli("eval", "link", "--embeddings", "e"), "e is no run folder, so --dataset must say")
    words = ("eval", "node-class", "--embeddings", "e", "--labels", labels)
    refused(cli(*words, "--root", "x"), "--root x means nothing with --labels")
    refused(cli(*words, "--ratios", "2"), "evaluate.ratios.0 = '2': should be less than 1")
    refused(cli(*words, "--json", "no/folder/x.json"), "No such file or directory")
    refused(cli("eval", "link", "--embeddings", "plain", "--scorer", "dto"), "did you mean 'dot'?")


def test_failed_evaluation_keeps_the_trained_rows(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    labels.write_text("a0,only\n", encoding="utf-8")  # one class: nothing to tell apart
    outcome = cli("train", "deepwalk", "--dataset", graph, "--labels", labels, "--out", "run", *TINY)
    assert outcome.code == 2
    assert "trained, but not evaluated: labels use 1 of 1 classes" in outcome.err
    assert f"the embeddings are in {tmp_path / 'run'}" in outcome.err
    assert load_embeddings(tmp_path / "run").weights.shape == (16, 8)


@pytest.mark.parametrize("form", ["npy", "parquet", "word2vec"])
def test_an_export_reads_back_equal(cli: Cli, cliques: CliqueFiles, tmp_path: Path, form: str) -> None:
    train(cli, cliques, "--no-eval")
    outcome = cli("export", "run", "--format", form, "--out", "out")
    assert all(Path(line).is_file() for line in outcome.out.splitlines())
    run, out = load_embeddings(tmp_path / "run"), load_embeddings(tmp_path / "out")
    np.testing.assert_array_equal(run.weights, out.weights)
    assert list(out.node_ids) == [f"{group}{i}" for group in "ab" for i in range(8)]
    refused(cli("export", "run", "--format", form, "--out", "out"), "exists")
    assert cli("export", "run", "--format", form, "--out", "out", "--overwrite").code == 0
    refused(cli("export", "out", "--format", form, "--out", "run", "--overwrite"), "--out run is a run folder")


def test_info_describes_each_kind_of_thing(cli: Cli, cliques: CliqueFiles) -> None:
    train(cli, cliques)
    assert cli("export", "run", "--format", "parquet", "--out", "e").code == 0
    assert "threads" in cli("info").out
    assert "score test auc" in cli("info", "run").out
    assert "a0 .. b7 (text)" in cli("info", "e").out
    assert re.search(r"^edges +57$", cli("info", cliques[0]).out, re.MULTILINE)
    refused(cli("info", "nowhere.csv"), "nowhere.csv: no such file")
    refused(cli("info", "--root", "x"), "means nothing without the name")


def test_doctor_lists_and_removes_what_killed_processes_left(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("shm", "tmp", "runs", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(left_behind, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(doctor, "complaints", lambda: [])
    places = ["x", "runs/run", "tmp/graph-emb-parts", "other/x"]
    folders = [HiddenFolder(tmp_path / place) for place in places]
    living = HiddenFolder(tmp_path / "runs" / "run")
    for folder in folders:
        folder.close(remove=False)
    told = cli("doctor").out
    assert "threads" in told
    assert all(f"left by a killed process: {folder.path}" in told for folder in folders)
    assert "graph-emb doctor --clean removes it" in told
    assert all(folder.path.exists() for folder in folders)
    assert f"removed {folders[3].path}" in cli("doctor", "--clean", "other").out
    assert "no killed process left anything in other or" in cli("doctor", "other").out
    assert cli("doctor", "--clean").out.count("removed ") == 3
    assert [folder.path.exists() for folder in folders] == [False] * 4
    living.close()
    assert cli("doctor").out.splitlines()[-1].startswith("no killed process left anything in ., runs, ")
    refused(cli("doctor", "nowhere"), "doctor: nowhere is no folder")


def test_the_demo_draws_judges_and_replaces_its_own_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {**demo.CONFIG, "evaluate": {"ratios": [0.5], "shuffles": 1, "scorer": "cosine"}}
    monkeypatch.setattr(demo, "CONFIG", quick)
    monkeypatch.setattr(
        "graph_emb.cli.demo.project", lambda weights, method, seed: weights[:, :2]
    )  # t-SNE takes seconds
    outcome = cli("demo")
    assert outcome.code == 0, outcome.err
    place = tmp_path / "runs" / "demo"
    assert (place / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "| auc" in (place / "table.md").read_text(encoding="utf-8")
    assert "1,234 further edges were held out" in outcome.out
    metrics = json.loads((place / "metrics.json").read_text(encoding="utf-8"))
    assert {"map.png", "table.md"} <= set(metrics["files"])
    assert metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"] > 0.9
    assert metrics["evaluation"]["link_prediction"]["parts"]["test"]["metrics"]["auc"]["value"] > 0.9
    assert cli("demo").code == 0
    refused(cli("demo", "--out", "runs/demo", "-q"), "holds a run; give another --out, or --overwrite")


def test_the_map_is_a_picture(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(40, 2))
    draw_map(tmp_path / "m.png", points, np.repeat([0, 1], 20), ["left", "right", "empty"], "a title")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_the_markdown_holds_both_tables() -> None:
    scores = {"micro_mean": 0.5, "micro_std": 0.01, "macro_mean": 0.25, "macro_std": 0.02}
    text = markdown(
        {
            "node_classification": {"ratios": [{"ratio": 0.1, **scores}]},
            "link_prediction": {"parts": {"test": {"metrics": {"auc": {"value": 0.75}}}}},
        }
    )
    assert "| 10%        | 50.0 ± 1.0   | 25.0 ± 2.0   |" in text
    assert "| auc              | 0.7500 |" in text


def test_neighbors_are_printed_and_written(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    train(cli, cliques, "train.epochs=3")
    found = load_embeddings("run")
    first = str(found.node_ids[0])
    outcome = cli("neighbors", "run", "--id", first, "--id", found.node_ids[1], "-k", "2", "--json", "near.json")
    assert outcome.code == 0, outcome.err
    rows = found.weights / np.linalg.norm(found.weights, axis=1, keepdims=True)
    best = np.argsort(-(rows @ rows[0]))[1:3]
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0] == ["id", "neighbour", "cosine"]
    assert [line[:2] for line in lines[2:4]] == [[first, str(found.node_ids[place])] for place in best]
    written = json.loads((tmp_path / "near.json").read_text(encoding="utf-8"))
    assert [name for name, _ in written["nearest"][0]["neighbors"]] == found.node_ids[best].tolist()
    assert "no embedding, the first is id 'nobody'" in cli("neighbors", "run", "--id", "nobody").err
    assert "unknown table 'relation'; known: node" in cli("neighbors", "run", "--id", first, "--table", "relation").err
    assert "unknown metric 'cos'" in cli("neighbors", "run", "--id", first, "--metric", "cos").err
    assert "neighbors needs --id ID" in cli("neighbors", "run").err
    assert "--json x.json needs --id" in cli("neighbors", "run", "--save-index", "x", "--json", "x.json").err


def test_neighbors_by_an_index_tell_its_recall(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    train(cli, cliques, "train.epochs=3")
    first = str(load_embeddings("run").node_ids[0])
    exact = cli("neighbors", "run", "--id", first, "-k", "2").out
    made = cli("neighbors", "run", "--index", "faiss", "--save-index", "near.index", "-k", "2")
    assert (made.code, made.out) == (0, "")
    assert "near.index: 16 rows in their order, index of faiss" in made.err
    assert "recall 1.000 of the exact 2 nearest, over 16 rows" in made.err
    words = ("--index", "faiss", "--effort", "20", "--load-index", "near.index")
    assert cli("neighbors", "run", "--id", first, "-k", "2", *words).out == exact


def test_neighbors_of_the_tables_of_a_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("a\tlikes\tb\nb\tknows\tc\nc\tlikes\ta\n")
    settings = ("dim=4", "epochs=1", "train.batch_size=2", "chunk_size=2", "num_negatives=2", "train.threads=1")
    assert cli("train", "transe", "--dataset", "facts.tsv", "--out", "run", *settings).code == 0
    outcome = cli("neighbors", "run", "--id", "likes", "--table", "relation", "-k", "1")
    assert outcome.out.splitlines()[2].split()[:2] == ["likes", "knows"]
    assert cli("neighbors", "run", "--id", "a", "--table", "entity", "-k", "2").code == 0
