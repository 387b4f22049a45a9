"""Networks of runs, built again: their scores and rows are those at the end of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import DataError
from graph_emb.formats.network_files import NETWORK, load_network
from graph_emb.run.family import read_again
from graph_emb.run.run_folder import read_run
from tests.ogb_layout import write_ddi, write_mag
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

TINY: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 4, "eval_every": 2, "patience": None, "threads": 1}
RUNS = {
    "sage of links": ("sage", "ogbl-ddi", {}),
    "gcn of ranked links": ("sage", "ogbl-ddi", {"aggregator": "gcn", "loss": "auc", "num_negatives": 2}),
    "sage of links, averaged": ("sage", "ogbl-ddi", {"ema_decay": 0.5, "predictor_layers": 3}),
    "sage of links, in blocks of float64": ("sage", "ogbl-ddi", {"dtype": "float64", "parallel": {"blocks": 2}}),
    "rgcn with features": ("rgcn", "ogbn-mag", {"fanouts": [3, 3]}),
    "rgcn of one-hot rows": ("rgcn", "ogbn-mag", {"inputs": "onehot"}),
    "rgcn of bases": ("rgcn", "ogbn-mag", {"inputs": "basis", "num_bases": 2}),
    "rgcn of hashed rows, narrow": ("rgcn", "ogbn-mag", {"inputs": "hash", "dtype": "float16"}),
}


def trained(folder: Path, model: str, dataset: str, **options: Any) -> ge.run.pipeline.PipelineResult:
    {"ogbl-ddi": write_ddi, "ogbn-mag": write_mag}[dataset](folder)
    return ge.pipeline(model, dataset, root=folder, out=folder / "run", **{**TINY, **options})


def scores_again(run: Path) -> dict[str, dict[str, Any]]:
    config, _, tables = read_run(run)
    family = read_again(config)
    data = family.load()
    first, *_ = family.judge_rows(family.aligned(tables, data), data, load_network(run), progress=False)
    return first.scores.as_dict()["metrics"]


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_network_scores_as_at_the_end(tmp_path: Path, name: str) -> None:
    model, dataset, options = RUNS[name]
    result = trained(tmp_path, model, dataset, **options)
    last = result.history[-1]
    found = scores_again(tmp_path / "run")
    assert {metric: one["valid"] for metric, one in found.items()} == pytest.approx(last["valid"])
    if last["test"] is not None:
        assert {metric: one["test"] for metric, one in found.items()} == pytest.approx(last["test"])
    assert {one["epoch"] for one in found.values()} == {4}
    assert NETWORK in result.metrics.get("files", [NETWORK])


def together(folder: str) -> None:
    parallel = {"mode": "collective", "trainers": 2}
    ge.pipeline("rgcn", "ogbn-mag", root=folder, out=f"{folder}/run", parallel=parallel, **TINY)


@pytest.mark.dist
def test_one_process_judges_the_network_of_two_trainers(tmp_path: Path, ranks: Ranks) -> None:
    write_mag(tmp_path)
    ranks.run(together, 2, str(tmp_path))
    _, metrics, _ = read_run(tmp_path / "run")
    last = metrics["evaluation"]["graph_network"]["runs"][0]["history"][-1]
    assert scores_again(tmp_path / "run")["accuracy"]["valid"] == pytest.approx(last["valid"]["accuracy"])


def test_the_first_seed_is_kept(tmp_path: Path) -> None:
    trained(tmp_path, "rgcn", "ogbn-mag", num_seeds=2)
    both = load_network(tmp_path / "run")
    ge.pipeline("rgcn", "ogbn-mag", root=tmp_path, out=tmp_path / "one", **TINY)
    one = load_network(tmp_path / "one")
    assert both is not None
    assert one is not None
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(both.tensors[name], tensor)


def test_another_graph_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    trained(tmp_path, "rgcn", "ogbn-mag")
    config, _, tables = read_run(tmp_path / "run")
    family = read_again(config)
    data = family.load()
    kept = load_network(tmp_path / "run")
    assert kept is not None
    about = {**kept.about, "etypes": kept.about["etypes"][:-1]}
    other = type(kept)(kept.tensors, about)
    with pytest.raises(DataError, match="the network was trained on the edge types"):
        family.judge_rows(family.aligned(tables, data), data, other, progress=False)
    (tmp_path / "run" / NETWORK).write_bytes(b"{}")
    with pytest.raises(DataError, match=r"network.safetensors is no network of graph_emb or is damaged"):
        load_network(tmp_path / "run")
