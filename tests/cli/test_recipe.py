"""``graph-emb train --recipe`` runs what the scripts of examples/ogb run."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_emb.cli.main import main
from graph_emb.ogb.record import read_record
from graph_emb.ogb.script import Script
from tests import ogb_layout

SMALL = {
    "ogbl-ddi/deepwalk": [
        "num_walks=2", "walk_length=6", "embedding.skipgram.dim=4", "predictor.epochs=5", "predictor.hidden_dim=8",
    ],
    "ogbn-arxiv/node2vec": ["num_walks=2", "walk_length=6", "dim=4", "mlp.epochs=3", "mlp.hidden_dim=8"],
    "ogbl-wikikg2/transe": ["dim=8", "kge.num_negatives=4", "chunk_size=16", "batch_size=32", "epochs=2"],
    "ogbn-mag/rgcn": ["rgcn.hidden_dim=8", "rgcn.batch_size=32", "rgcn.epochs=2"],
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
        (record,) = (tmp_path / "runs" / "deepwalk").iterdir()
        assert record.name == "seed-0.json"
    assert "DeepWalk, published" in capsys.readouterr().out
    assert main([*words, *SMALL["ogbl-ddi/deepwalk"], "predictor.lr=0.5"]) == 2
    assert "predictor.lr=0.01 there, 0.5 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--recipe", "ogbl-ddi/deepwlak"], "unknown recipe 'ogbl-ddi/deepwlak'; known: "),
        (["--recipe", "ogbl-ddi/deepwlak"], "did you mean 'ogbl-ddi/deepwalk'?"),
        (["deepwalk", "--recipe", "ogbl-ddi/mf"], "model deepwalk has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "--dataset", "cora"], "--dataset cora has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "--hold-out", "0.1"], "--hold-out 0.1 has no effect on a recipe"),
        (["--recipe", "ogbl-ddi/mf", "predictor.epcohs=3"], "did you mean 'predictor.epochs'?"),
        (["--recipe", "ogbl-ddi/mf", "--seed", "1x"], "--seed 1x: give an integer in [0, 9223372036854775807]"),
        (["--recipe", "ogbl-ddi/mf", "--seed", "9223372036854775808"], "give an integer in [0, 9223372036854775807]"),
        (["--recipe", "ogbl-ddi/mf", "--threads", "0"], "--threads 0: give an integer in [1, "),
        (["--recipe", "ogbl-ddi/mf", "--seed", "1", "--seeds", "0-2"], "give one of them"),
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
