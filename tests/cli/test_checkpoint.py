"""``graph-emb checkpoint inspect`` and ``graph-emb export`` of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.export import save_ids
from graph_emb.checkpoint.saving import save_checkpoint
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings
from graph_emb.optim.rule import ROW_OPTIONS
from tests.cli.conftest import CliqueFiles, Outcome

Cli = Callable[..., Outcome]


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """``ck/3`` and ``ck/20``, with a trained table, one without an optimizer, and a model."""
    ge.shutdown()
    ge.init(mode="local")
    node = ge.DistEmbedding(1200, 3, "node", ge.initializers.Normal(seed=1))
    relation = ge.DistEmbedding(2, 4, "relation", dtype=torch.float64)
    opt = ge.SparseAdam([node], lr=0.25)
    for step in (3, 20):
        node(torch.tensor([5])).sum().backward()
        opt.step()
        save_checkpoint(
            tmp_path / "ck" / str(step),
            tables=[node, relation],
            optimizers=[opt],
            step=step,
            model=torch.nn.Linear(2, 2),
            extra={"epoch": 3},
        )
    yield tmp_path / "ck"
    ge.shutdown()


def test_inspect_prints_tables_sizes_rule_and_step(cli: Cli, saved: Path) -> None:
    outcome = cli("checkpoint", "inspect", saved / "3")
    assert outcome.code == 0, outcome.err
    for text in ("step              3", "1 rank in local mode", "1,200 x 3", "2 x 4", "float64", "Adam lr=0.25",
                 "none saved", "exp_avg (float32 per", "step (int64 per table)", "extra             "):  # fmt: skip
        assert text in outcome.out, text
    size = sum(file.stat().st_size for file in (saved / "3").rglob("*.safetensors"))
    assert f"3 files, {size:,} bytes: sizes and checksums are right" in outcome.err


def test_a_folder_of_checkpoints_means_the_newest(cli: Cli, saved: Path) -> None:
    facts = json.loads(cli("checkpoint", "inspect", saved, "--json").out)
    assert facts["step"] == 20
    assert facts["tables"]["node"] == {
        "num_rows": 1200,
        "dim": 3,
        "dtype": "float32",
        "rule": "Adam",
        "options": {"clock": "global", "eps_placement": "raw", "merge": "sum"},
        "numbers": {"lr": 0.25, "betas": [0.9, 0.999], "eps": 1e-08, **ROW_OPTIONS},
        "state": {"exp_avg": "float32 per element", "exp_avg_sq": "float32 per element", "step": "int64 per table"},
        "files": 1,
        "bytes": facts["tables"]["node"]["bytes"],
    }
    assert facts["bytes"] > 1200 * 3 * 4 * 3
    outcome = cli("checkpoint", "inspect", saved, "--json", "facts.json")
    assert json.loads(Path("facts.json").read_text(encoding="utf-8")) == facts
    assert "1,200 x 3" in outcome.out


@pytest.mark.parametrize("what", ["flipped", "cut", "gone", "manifest"])
def test_damage_is_exit_code_2_and_one_line_that_names_the_file(cli: Cli, saved: Path, what: str) -> None:
    name = "manifest.json" if what == "manifest" else "dense.safetensors"
    path = saved / "3" / name
    content = path.read_bytes()
    if what == "gone":
        path.unlink()
    elif what == "cut":
        path.write_bytes(content[:-1])
    elif what == "manifest":
        path.write_bytes(content.replace(b'"step": 3', b'"step": 4'))
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for words in (["--json"], []):
        outcome = cli("checkpoint", "inspect", saved / "3", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert name in outcome.err


def test_no_checkpoint_is_said(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("checkpoint", "inspect", tmp_path)
    assert outcome.code == 2
    assert "is no complete checkpoint and holds none" in outcome.err
    assert cli("checkpoint", "inspct", tmp_path).code == 2


@pytest.mark.parametrize("name", ["npy", "parquet", "word2vec", "pt"])
def test_export_takes_the_newest_checkpoint_and_a_table(cli: Cli, saved: Path, name: str) -> None:
    outcome = cli("export", saved, "--format", name, "--table", "node", "--out", "out")
    assert outcome.code == 0, outcome.err
    assert outcome.out.split()[-1].startswith("out/embeddings.")
    expected = ge.DistEmbedding(1200, 3, "again", ge.initializers.Normal(seed=1)).weight[:]
    found = torch.from_numpy(load_embeddings("out").weights)
    assert ((found != expected).any(dim=1).nonzero().flatten()).tolist() == [5]


def test_export_uses_the_ids_that_it_is_given(cli: Cli, saved: Path) -> None:
    names = np.array([f"n{i}" for i in range(1200)])
    save_embeddings("run", np.zeros((1200, 1), np.float32), names)
    words = ("export", saved / "3", "--format", "word2vec", "--table", "node", "--out")
    assert cli(*words, "a", "--ids", "run").code == 0
    assert cli(*words, "b", "--ids", "run/ids.npy").code == 0
    save_ids(saved, "node", names)
    assert cli(*words, "c").code == 0
    for folder in "abc":
        assert load_embeddings(folder).node_ids.tolist() == names.tolist()


def test_what_export_cannot_do_is_said(cli: Cli, saved: Path) -> None:
    save_embeddings("run", np.zeros((2, 1), np.float32))
    save_embeddings("run/relation", np.ones((3, 1), np.float32))
    for words, text in (
        ((saved, "--out", "o"), "has the tables node, relation; name one"),
        (("run", "--ids", "x", "--out", "o"), "--ids x is for checkpoints; run has its own ids"),
        (("run", "--table", "edge", "--out", "o"), "run has no table 'edge' besides its main one; others: relation"),
    ):
        outcome = cli("export", *words, "--format", "npy")
        assert outcome.code == 2
        assert text in outcome.err
    assert cli("export", "run", "--table", "relation", "--out", "o", "--format", "pt").code == 0
    assert load_embeddings("o").weights.tolist() == [[1.0]] * 3


def test_export_names_the_tables_of_a_run_as_neighbors_does(cli: Cli, cliques: CliqueFiles) -> None:
    """The main one by its name was refused, and ../other was a table."""
    words = ["--threads", "1", "dim=4", "num_walks=1", "walk_length=5", "--no-eval", "output.report=none"]
    assert cli("train", "deepwalk", "--dataset", cliques[0], "--out", "a run", *words).code == 0
    assert cli("export", "a run", "--table", "node", "--format", "npy", "--out", "o").code == 0
    np.testing.assert_array_equal(load_embeddings("o").weights, load_embeddings("a run").weights)
    assert (
        "unknown table '../o'; known: node"
        in cli("export", "a run", "--table", "../o", "--format", "pt", "--out", "p").err
    )
    assert (
        "o has no table '../a run' besides"
        in cli("export", "o", "--table", "../a run", "--format", "pt", "--out", "p").err
    )


def test_merge_makes_a_full_checkpoint_that_inspect_and_export_take(cli: Cli, tmp_path: Path) -> None:
    ge.shutdown()
    ge.init(mode="local")
    emb = ge.DistEmbedding(ge.growing(10), 2, "node", eviction=ge.Unused(1, every=100))
    opt = ge.SparseSGD([emb], lr=1.0)
    base = None
    for step, ids in enumerate(([3, 10**12], [7], [7]), 1):
        opt.update(ids, torch.ones(len(ids), 2), emb)
        if step == 3:
            emb.evict()
        base = ge.save_checkpoint(tmp_path / "ck" / str(step), tables=[emb], optimizers=[opt], step=step, base=base)
    ge.shutdown()
    looked = cli("checkpoint", "inspect", "ck/3")
    assert "number 2, follows 2" in looked.out
    assert cli("export", "ck/3", "--format", "npy", "--out", "no").code == 2
    merged = cli("checkpoint", "merge", "ck/1", "ck/2", "ck/3", "--out", "full")
    assert merged.code == 0
    assert "full: step 3, 2 deltas merged" in merged.err
    assert "follows" not in cli("checkpoint", "inspect", "full").out
    assert cli("export", "full", "--format", "npy", "--out", "out").code == 0
    assert load_embeddings(tmp_path / "out").weights.tolist() == [[-2.0, -2.0]]
    wrong = cli("checkpoint", "merge", "ck/1", "ck/3", "--out", "other")
    assert wrong.code == 2
    assert "ck/3 is delta 2 of" in wrong.err
