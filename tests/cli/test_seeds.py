from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from graph_emb.cli.main import main
from graph_emb.cli.train import parse_seeds, words_of
from graph_emb.core.errors import ConfigError


def test_lists_and_ranges_of_seeds() -> None:
    assert parse_seeds("0,1,5") == [0, 1, 5]
    assert parse_seeds("0-9") == list(range(10))
    assert parse_seeds("1, 3-4") == [1, 3, 4]


@pytest.mark.parametrize("text", ["", "a", "1-", "3", "1,1", "2-1", "0,-1", "²,1", "1,2-²", "0-1-2", "1 2,3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


def test_a_range_that_runs_backward_is_no_empty_one() -> None:
    with pytest.raises(ConfigError, match=r"seeds '0,1,9-2': 9-2 ends before it begins; write 2-9"):
        parse_seeds("0,1,9-2")


def test_a_seed_has_its_own_command() -> None:
    words = ["train", "rotate", "--seeds", "0-1", "--out", "runs/x", "--dim=8", "model.n3=0.1"]
    expected = ["train", "rotate", "--dim=8", "model.n3=0.1", "--seed", "1", "--out", "runs/x/seed-1"]
    assert words_of(words, 1, Path("runs/x/seed-1")) == expected
    assert words_of(["--seeds=0,1", "--out=a", "train"], 0, Path("b")) == ["train", "--seed", "0", "--out", "b"]


def test_seeds_run_one_after_the_other_and_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"e{n}\tr\te{(n + 1) % 6}\n" for n in range(6)]
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "test.txt").write_text("e0\tr\te2\ne1\tr\te3\n")
    words = ["train", "distmult", "--dataset", str(tmp_path), "--threads", "1", "--epochs", "1", "--seeds", "3,5"]
    sizes = ["model.dim=4", "model.chunk_size=2", "model.num_negatives=2", "train.batch_size=2"]
    assert main([*words, "--out", str(tmp_path / "runs"), *sizes]) == 0
    found = json.loads((tmp_path / "runs" / "seeds.json").read_text())
    assert found["seeds"] == [3, 5]
    own = []
    for seed in (3, 5):
        folder = tmp_path / "runs" / f"seed-{seed}"
        assert f"seed: {seed}\n" in (folder / "config.yaml").read_text()
        metrics = json.loads((folder / "metrics.json").read_text())
        own.append(metrics["evaluation"]["triples_test"]["both"]["mrr"]["realistic"])
    mrr = found["metrics"]["test mrr"]
    assert mrr["values"] == own
    assert mrr["mean"] == pytest.approx(sum(own) / 2)
    assert mrr["std"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
    assert "2 seeds, unbiased std" in capsys.readouterr().out
    # the same command keeps what is finished; other settings are refused there
    before = [(tmp_path / "runs" / f"seed-{seed}" / "metrics.json").stat().st_mtime_ns for seed in (3, 5)]
    shutil.rmtree(tmp_path / "runs" / "seed-5")
    assert main([*words, "--out", str(tmp_path / "runs"), *sizes]) == 0
    after = [(tmp_path / "runs" / f"seed-{seed}" / "metrics.json").stat().st_mtime_ns for seed in (3, 5)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert json.loads((tmp_path / "runs" / "seeds.json").read_text())["metrics"].keys() == found["metrics"].keys()
    assert "seed 3 is finished" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "runs"), *sizes, "train.lr=0.5"]) == 2
    assert "seed-3" in capsys.readouterr().err


def test_one_seed_and_several_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "deepwalk", "--dataset", "digits", "--seeds", "0-1", "--out", str(tmp_path / "r")]
    assert main([*words, "--seed", "1"]) == 2
    assert "--seed 1 and --seeds 0-1: give one of them" in capsys.readouterr().err
    assert main([*words, "seed=1"]) == 2
    assert "an override of seed and --seeds 0-1: every run would have the same" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
