"""A run in Python: what goes in, what comes out, and that every field of the configuration counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.cli.train import summary
from graph_emb.config import config_from
from graph_emb.config.schema import FormatName
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.link_prediction import SCORERS
from graph_emb.formats.embedding_files import FORMATS
from graph_emb.models.settings import CONVENTIONS, NUMBERS, RuleName, paths_of
from graph_emb.models.skipgram.config import DeepWalkConfig, SkipGramConfig
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.run.evaluation import SCORER_TITLES
from graph_emb.run.families import plain as family
from graph_emb.run.families import walk_tables
from graph_emb.run.inputs import absolute_paths, read_plain_dataset
from graph_emb.run.machine import STATE_SHARE
from graph_emb.run.sharing import repeats

BASE: dict[str, Any] = {"model": "node2vec", "dataset": "digits"}
TINY: dict[str, Any] = {"num_walks": 1, "walk_length": 6, "dim": 4, "threads": 1, "evaluate": False}


def rows(**overrides: Any) -> np.ndarray:
    return ge.pipeline("node2vec", "digits", **{**TINY, **overrides}).embeddings.weights


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return rows()


def test_a_seed_repeats_the_rows_and_another_does_not(plain: np.ndarray) -> None:
    np.testing.assert_array_equal(plain, rows(seed=0))
    assert not np.array_equal(plain, rows(seed=1))


@pytest.mark.parametrize(
    ("settings", "threads", "when"),
    [
        ({}, 1, "always"),
        ({}, 2, "never"),
        ({"train": {"rule": "adam"}}, 2, "always"),
        ({"model": "line"}, 2, "never"),
        ({"model": "metapath2vec"}, 1, "always"),
        ({"model": "complex"}, 2, "always"),
        ({"model": "complex", "parallel": {"mode": "collective", "trainers": 2}}, 2, "always"),
        ({"model": "complex", "parallel": {"mode": "collective", "trainers": 2, "hogwild": True}}, 1, "never"),
        ({"model": "sage"}, 2, "same threads"),
        ({"model": "mf"}, 1, "same threads"),
        ({"parallel": {"mode": "collective", "trainers": 2}}, 1, "always"),
        ({"parallel": {"mode": "collective", "trainers": 2, "hogwild": True}}, 1, "never"),
        ({"train": {"rule": "adam"}, "parallel": {"mode": "kvstore", "trainers": 2, "servers": 1}}, 1, "never"),
        ({"train": {"rule": "adam"}, "parallel": {"mode": "kvstore", "trainers": 1, "servers": 2}}, 1, "always"),
    ],
)
def test_a_run_says_when_its_seed_repeats_the_bits(settings: dict[str, Any], threads: int, when: str) -> None:
    assert repeats(config_from({**BASE, **settings}), threads) == when


def test_an_optimizers_rows_do_not_depend_on_the_threads() -> None:
    runs = [ge.pipeline("node2vec", "digits", **{**TINY, "rule": "adam", "threads": threads}) for threads in (1, 2)]
    np.testing.assert_array_equal(*(run.embeddings.weights for run in runs))
    assert [run.metrics["train"]["repeats"] for run in runs] == ["always", "always"]
    assert "same bits" not in summary(runs[0].metrics)
    shared = ge.pipeline("node2vec", "digits", **{**TINY, "threads": 2})
    assert "the same seed gives other bits each time" in summary(shared.metrics)


@pytest.mark.parametrize(
    "override",
    [
        {"window": 2},
        {"window_weighting": "uniform"},
        {"num_negatives": 2.5},
        {"shared_negatives": 8},
        {"negative_power": 0.0},
        {"subsample": 1e-4},
        {"tables": 1},
        {"block": 3},
        {"p": 0.5},
        {"q": 4.0},
        {"num_walks": 2},
        {"walk_length": 7},
        {"rule": "adagrad"},
        {"lr": 0.5},
        {"lr_decay": "none"},
        {"epochs": 2},
        {"path": "autograd", "batch_size": 512},
        {"context": "add"},
        {"hold_out": 0.2},
    ],
    ids=str,
)
def test_every_field_changes_the_rows(plain: np.ndarray, override: dict[str, Any]) -> None:
    changed = rows(**override)
    assert changed.shape == plain.shape
    assert not np.array_equal(plain, changed)


def test_dim_and_concat_set_the_width() -> None:
    assert rows(dim=6).shape == (1797, 6)
    assert rows(context="concat").shape == (1797, 8)


def test_batch_size_counts_on_the_autograd_path() -> None:
    big, small = (rows(path="autograd", batch_size=size) for size in (1797, 600))
    assert not np.array_equal(big, small)


def test_the_schema_covers_what_skipgram_accepts() -> None:
    known = {*paths_of(DeepWalkConfig), "contexts", "typed_negatives"}  # of LINE and metapath2vec
    assert set(SkipGramConfig.model_fields) <= known


def test_the_names_in_the_schema_are_those_of_the_registries() -> None:
    assert set(RuleName.__args__) == set(OPTIMIZERS) == set(STATE_SHARE) == set(NUMBERS) == set(CONVENTIONS)
    assert set(FormatName.__args__) == set(FORMATS)
    assert set(SCORER_TITLES) == set(SCORERS)


def test_the_result_holds_config_metrics_rows_and_findings(tmp_path: Path) -> None:
    result = ge.pipeline(
        "deepwalk", "digits", out=tmp_path / "run", seed=3, hold_out=0.1, evaluate={"ratios": [0.5]}, **tiny("evaluate")
    )
    assert (result.config.seed, result.config.evaluate.ratios) == (3, (0.5,))
    assert result.folder == tmp_path / "run"
    assert not result.interrupted
    assert [finding.name for finding in result.findings] == ["node_classification", "link_prediction"]
    assert set(result.metrics["evaluation"]) == {"node_classification", "link_prediction"}
    assert result.embeddings.weights.shape == (1797, 4)
    assert result.embeddings.node_ids.tolist() == list(range(1797))
    assert result.dataset.link_split is not None
    again = ge.pipeline(config=result.folder / "config.yaml", evaluate=False)
    np.testing.assert_array_equal(result.embeddings.weights, again.embeddings.weights)
    assert again.folder is None


def test_one_seed_reaches_data_walks_rows_and_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[str, int] = {}

    def recorded(name: str, place: int | str, module: Any = family) -> None:
        original = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            seeds[name] = options[place] if isinstance(place, str) else args[place]
            return original(*args, **options)

        monkeypatch.setattr(module, name, call)

    recorded("read_plain_dataset", 1)
    recorded("WalkSampler", "seed")
    recorded("train_skipgram", "seed", walk_tables)
    recorded("evaluate", 3)
    ge.pipeline("deepwalk", "digits", seed=7, **{**TINY, "evaluate": {"ratios": [0.5], "shuffles": 1}})
    assert seeds == {"read_plain_dataset": 7, "WalkSampler": 7, "train_skipgram": 7, "evaluate": 7}


def test_an_interrupt_while_evaluating_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(family, "evaluate", interrupted)
    result = ge.pipeline("deepwalk", "digits", out=tmp_path / "run", **tiny("evaluate"))
    assert result.interrupted
    assert (tmp_path / "run" / "embeddings.npy").is_file()


def tiny(*without: str) -> dict[str, Any]:
    return {key: value for key, value in TINY.items() if key not in without}


def test_a_split_of_the_nodes_is_judged_by_accuracy(tmp_path: Path) -> None:
    # two cliques, 0..3 and 4..7, one class each; of each two nodes to train on and one to judge
    pairs = [(u, v) for base in (0, 4) for u in range(base, base + 4) for v in range(base, base + 4) if u != v]
    graph = ge_graph(pairs)
    np.savez(
        tmp_path / "g.npz", indptr=graph.indptr, indices=graph.indices, label=np.repeat([0, 1], 4),
        train_idx=np.array([0, 1, 4, 5]), test_idx=np.array([2, 6]),
    )  # fmt: skip
    result = ge.pipeline("deepwalk", tmp_path / "g.npz", dim=4, threads=1)
    assert list(result.metrics["evaluation"]) == ["split_accuracy"]


def ge_graph(pairs: list[tuple[int, int]]) -> Any:
    from graph_emb.graph import Graph

    return Graph.from_edges(*np.array(pairs).T)


def test_held_out_edges_are_not_trained_on() -> None:
    config = config_from(BASE, {"dataset": {"hold_out": 0.25}})
    dataset = read_plain_dataset(config.dataset, seed=1)
    assert dataset.link_split is not None
    held = dataset.link_split["test"]["edge"]
    assert len(held) == 3085  # a quarter of 12,340
    assert not dataset.graph.has_edges(held[:, 0], held[:, 1]).any()
    assert "valid" not in dataset.link_split
    other = read_plain_dataset(config.dataset, seed=2)
    assert other.link_split is not None
    assert not np.array_equal(held, other.link_split["test"]["edge"])


def test_the_options_of_a_file_reach_its_reader(tmp_path: Path) -> None:
    file = tmp_path / "graph.dat"
    file.write_text("w;to;from\n2;1;7\n3;7;1\n5;4;4\n", encoding="utf-8")
    options = {"format": "edges", "separator": ";", "header": True, "columns": ["from", "to", "w"], "ids": "str"}
    config = config_from({"model": "deepwalk", "dataset": {"name": str(file), "self_loops": "drop", **options}})
    graph = read_plain_dataset(config.dataset, duplicates="sum").graph
    assert graph.weights is not None
    assert graph.weights.tolist() == [5.0, 5.0]  # 1 - 7 in both directions, 2 + 3
    assert graph.node_ids is not None
    assert graph.node_ids.dtype.kind == "U"
    own = {"model": "deepwalk", "dataset": config.dataset.model_dump(exclude_none=True)}
    directed = config_from({"dataset": {"directed": True, "weight": False, "columns": ["from", "to"]}}, own)
    assert read_plain_dataset(directed.dataset, symmetrize=False).graph.weights is None


def test_walk_models_add_the_reverse_of_every_edge_unless_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", indptr=[0, 1, 2, 4], indices=[1, 2, 0, 1], directed=True)
    section = config_from({"model": "deepwalk", "dataset": str(tmp_path / "g.npz")}).dataset
    assert read_plain_dataset(section).graph.num_arcs == 6
    assert read_plain_dataset(section, symmetrize=False).graph.num_arcs == 4
    options = {**tiny(), "dataset": tmp_path / "g.npz"}
    assert ge.pipeline("deepwalk", **options).metrics["dataset"]["directed"] is False
    assert ge.pipeline("deepwalk", symmetrize=False, **options).metrics["dataset"]["directed"] is True
    with pytest.raises(ConfigError, match=r"has no effect with model\.symmetrize = True"):
        ge.pipeline("deepwalk", directed=True, **options)


def test_local_paths_are_written_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.csv").write_text("0,1\n", encoding="utf-8")
    section = config_from({"model": "deepwalk", "dataset": {"name": "g.csv", "root": "absent", "labels": "."}}).dataset
    changed = absolute_paths(section)
    assert (changed.name, changed.root, changed.labels) == (str(tmp_path / "g.csv"), "absent", str(tmp_path))
    assert absolute_paths(config_from(BASE).dataset).name == "digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "deepwolk"}, "did you mean 'deepwalk'"),
        ({"dimm": 3}, "dimm = 3: unknown key; .*did you mean 'model.dim'"),
        ({"name": "x"}, "which one of dataset.name, model.name"),
        ({"train": {"lr": -1}}, "train.lr = -1: should be greater than 0"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ge.pipeline(**{**BASE, **arguments})


def test_bad_data_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        ge.pipeline("deepwalk", tmp_path / "absent.csv", out=tmp_path / "runs" / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.data
def test_ddi_is_trained_and_judged_by_its_own_split(shared_data: Path) -> None:
    result = ge.pipeline("deepwalk", "ogbl-ddi", root=shared_data, **{**TINY, "evaluate": {"hits": [20]}})
    assert result.metrics["dataset"]["edges"] == 1_067_911  # the training edges
    scores = result.metrics["evaluation"]["link_prediction"]
    assert scores["scorer"] == "centred-dot"
    assert scores["parts"]["test"]["num_positives"] == 133_489


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2, but MASTER_ADDR, MASTER_PORT not set"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, r"parallel\.mode is 'local', in a job of 2 processes"),
    ],
)
def test_processes_of_a_job_train_the_same_run_by_name_only(
    monkeypatch: pytest.MonkeyPatch, plain: np.ndarray, words: dict[str, str], message: str
) -> None:
    """Two processes of a job trained, and saved, the same run twice; those of a whole launcher join it."""
    ge.shutdown()
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ge.ModeError, match=message):
        rows()
    np.testing.assert_array_equal(plain, rows(parallel={"mode": "local"}))
    ge.shutdown()
    ge.init(mode="local")
    np.testing.assert_array_equal(plain, rows())
    ge.shutdown()
