"""Runs with ``train.placement``: each word ends with the rows of a run without it, and the plan says where they lay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb import embedding
from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.run.new_nodes import base_of
from graph_emb.table.placement import device_for
from tests.ranks import with_shared_memory

pytestmark = pytest.mark.usefixtures("fresh_mode")

ENTITIES, MEMORY = 300, "24KiB"
TRIPLES: dict[str, Any] = {
    "dim": 16, "num_negatives": 4, "chunk_size": 8, "batch_size": 32, "epochs": 2, "threads": 1, "evaluate": False,
}  # fmt: skip
WALKS: dict[str, Any] = {"dim": 8, "num_walks": 2, "walk_length": 8, "threads": 1, "evaluate": False}
DRAWS: dict[str, Any] = {"dim": 8, "draws_per_edge": 2, "order": "first", "threads": 1, "evaluate": False}
NETWORK: dict[str, Any] = {
    "dim": 8, "hidden_dim": 8, "epochs": 2, "eval_every": 1, "fanouts": [3, 3], "batch_size": 64, "threads": 1,
    "evaluate": False,
}  # fmt: skip


@pytest.fixture
def triples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    found = np.stack([rng.integers(0, n, 900) for n in (ENTITIES, 3, ENTITIES)], axis=1).tolist()
    place = tmp_path / "kg"
    place.mkdir()
    for part, chosen in {"train": found, "valid": found[:20], "test": found[20:40]}.items():
        lines = [f"a{h}\tr{r}\ta{t}\n" for h, r, t in chosen]
        (place / f"{part}.txt").write_text("".join(lines), encoding="utf-8")
    return place


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "edges.csv"
    steps = [(node, (node + step) % ENTITIES) for node in range(ENTITIES) for step in (1, 7)]
    path.write_text("".join(f"{u},{v}\n" for u, v in steps), encoding="utf-8")
    return path


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The placement of each table that is made in this process."""
    found: list[Any] = []

    def device_of(placement: Any, *args: Any, **options: Any) -> Any:
        found.append(placement)
        return device_for(placement, *args, **options)

    monkeypatch.setattr(embedding, "device_for", device_of)
    return found


def trained(model: str, data: Path, settings: dict[str, Any], **train: Any) -> ge.PipelineResult:
    found = ge.pipeline(model, data, progress=True, **settings, **{f"train.{name}": train[name] for name in train})
    ge.shutdown()
    return found


def rows_of(found: ge.PipelineResult) -> np.ndarray:
    assert found.embeddings is not None
    return found.embeddings.weights


@pytest.mark.parametrize(
    ("model", "train", "kind", "plan"),
    [
        ("distmult", {"placement": "host"}, str, r"298 entities with their state, .* KiB, in memory of the processor$"),
        ("distmult", {"placement": "file", "memory": MEMORY}, ge.File, "in a file in .*; 24.00 KiB of memory hold"),
        ("distmult", {"placement": "device-cache", "memory": MEMORY}, ge.DeviceCache,
         r"in memory of the processor; 24.00 KiB of cpu hold \d+%; policy lookahead$"),
        ("deepwalk", {"placement": "host"}, str, "300 nodes with their state, .* in memory of the processor$"),
        ("deepwalk", {"placement": "file", "memory": MEMORY}, ge.File, "in files in .*; 24.00 KiB of memory hold"),
        ("line", {"placement": "host"}, str, "300 nodes with their state, .* in memory of the processor$"),
    ],
)  # fmt: skip
def test_each_word_of_one_process_ends_with_the_rows_of_a_run_in_memory(
    triples: Path, edges: Path, placed: list[Any], capfd: Any, model: str, train: dict[str, Any], kind: type, plan: str
) -> None:
    data, settings = (triples, TRIPLES) if model == "distmult" else (edges, WALKS if model == "deepwalk" else DRAWS)
    expected = rows_of(trained(model, data, settings))
    assert "plan:" not in capfd.readouterr().err
    assert {*placed} == {"auto"}
    placed.clear()
    found = trained(model, data, settings, **train)
    assert np.array_equal(rows_of(found), expected)
    assert isinstance(placed[0], kind)
    assert placed[0] == train["placement"] or kind is not str
    if model == "distmult" and kind is not str:
        assert found.metrics["train"]["cache"]["dirty_writes"] > 0
    assert re.search(f"^plan: .*{plan}", told := capfd.readouterr().err, re.MULTILINE), told


@pytest.mark.parametrize("train", [{"placement": "host"}, {"placement": "file", "memory": "512KiB"}])
def test_networks_end_with_the_rows_of_a_run_in_memory(
    triples: Path, placed: list[Any], capfd: Any, train: dict[str, Any]
) -> None:
    expected = rows_of(trained("rgcn", triples, NETWORK))
    assert {*placed} == {"auto"}
    placed.clear()
    ran = trained("rgcn", triples, NETWORK, **train)
    found = rows_of(ran)
    assert np.array_equal(found, expected) or "memory" in train  # evaluation from files agrees within rounding
    assert np.allclose(found, expected, atol=1e-5)
    assert isinstance(placed[0], ge.File) if "memory" in train else placed[0] == "host"
    # Adam's two and the weight, of 8 numbers each, and three times 8 between layers: 192 bytes a node; at most a third
    # of them in files at the end, and results of two evaluations.
    in_files = (
        r"298 nodes with their state and rows between layers, 55.88 KiB, in files in .*; at most 83.81 KiB of disk$"
    )
    where = in_files if "memory" in train else "in memory of the processor"
    assert re.search(f"^plan: .*{where}", told := capfd.readouterr().err, re.MULTILINE), told
    if "memory" in train:
        assert ran.metrics["train"]["cache"]["node"]["requested"] > 0


@pytest.mark.parametrize(("model", "more"), [("distmult", {"resident": 2}), ("deepwalk", {})])
def test_buckets_by_name_are_those_of_auto(
    triples: Path, edges: Path, placed: list[Any], model: str, more: dict[str, int]
) -> None:
    data, settings = (triples, TRIPLES) if model == "distmult" else (edges, WALKS)
    train = {"memory": "64KiB", "buckets": 4, **more}
    expected = rows_of(trained(model, data, settings, **train))
    assert np.array_equal(rows_of(trained(model, data, settings, placement="buckets", **train)), expected)
    assert {type(place) for place in placed} - {str} == {ge.Buckets}


@pytest.mark.parametrize("model", ["distmult", "deepwalk"])
def test_buckets_are_refused_where_memory_holds_all_rows(triples: Path, edges: Path, model: str) -> None:
    data, settings = (triples, TRIPLES) if model == "distmult" else (edges, WALKS)
    train = {"memory": "64MiB", "buckets": "auto"}
    trained(model, data, settings, **train)
    with pytest.raises(ConfigError, match=r"train\.placement = 'buckets': train\.memory = '64MiB' holds all rows"):
        trained(model, data, settings, placement="buckets", **train)


def test_a_cache_that_holds_no_page_is_named_before_training(triples: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.memory = '64' does not hold a page of 298 entities"):
        trained("distmult", triples, TRIPLES, placement="device-cache", memory="64")


WORDS = ["--quiet", "train", "distmult", "dim=8", "num_negatives=4", "chunk_size=8", "batch_size=32", "epochs=2"]


def by_command(data: Path, out: Path, *words: str) -> np.ndarray:
    """Rows of entities of a run of the command line, whose trainers are processes of their own."""
    line = [*WORDS, "--dataset", str(data), "--out", str(out), "--no-eval", "--threads", "1", *words]
    assert main(line) == 0
    return np.asarray(load_embeddings(out).weights)


@pytest.mark.dist
@pytest.mark.parametrize(
    "trainers",
    [
        ("--mode", "kvstore", "--trainers", "1"),
        pytest.param(("--mode", "collective", "--trainers", "1", "parallel.hogwild=true"), marks=with_shared_memory),
    ],
)
def test_shared_rows_of_one_trainer_are_those_of_host_and_auto(
    triples: Path, tmp_path: Path, trainers: tuple[str, ...]
) -> None:
    found = {
        word: by_command(triples, tmp_path / word, *trainers, f"train.placement={word}")
        for word in ("auto", "host", "shared")
    }
    assert np.array_equal(found["host"], found["auto"])
    assert np.array_equal(found["shared"], found["auto"])
    assert "placement: shared" in (tmp_path / "shared" / "config.yaml").read_text(encoding="utf-8")


def test_a_run_of_files_goes_on_in_memory(edges: Path, tmp_path: Path) -> None:
    ge.pipeline("deepwalk", edges, out=tmp_path / "run", report="none", **WALKS,
                **{"train.placement": "file", "train.memory": MEMORY})  # fmt: skip
    ge.shutdown()
    train = base_of(tmp_path / "run")["train"]
    assert (train["placement"], train["memory"]) == ("auto", None)
