"""The pipeline by several ranks: the first one judges and writes, all train on parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram.config import DeepWalkConfig
from graph_emb.run.parallel import Trainers, cut, of_one_type, own_part
from graph_emb.run.run_folder import read_metrics
from graph_emb.transport.process_group import SHARED_VARIABLE
from tests.ranks import Ranks as Workers
from tests.ranks import raised

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("warm_starts")]

QUICK: dict[str, Any] = {
    "dim": 16,
    "num_walks": 5,
    "seed": 1,
    "threads": 1,
    "evaluate": {"ratios": [0.5], "shuffles": 1},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def run_pipeline(out: str, trainers: int, options: dict[str, Any]) -> tuple[Any, ...]:
    result = ge.pipeline(
        "deepwalk", "digits", out=out, parallel={"mode": "collective", "trainers": trainers}, **options
    )
    rows = None if result.embeddings is None else result.embeddings.weights
    return result.metrics, rows, None if result.folder is None else str(result.folder)


@pytest.mark.parametrize("rule", ["sgd", "row_adagrad"])
def test_two_ranks_learn_what_one_process_learns(ranks: Workers, tmp_path: Path, rule: str) -> None:
    found = ranks.run(run_pipeline, 2, str(tmp_path / "run"), 2, {**QUICK, "rule": rule})
    metrics, rows, folder = found[0]
    assert rows.shape == (1797, 16)
    assert np.isfinite(rows).all()
    assert folder == str(tmp_path / "run")
    assert (tmp_path / "run" / "embeddings.npy").is_file()
    micro = metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"]
    assert micro > 0.9, "digits are easy; rows in another order would give one class in ten"
    assert found[1][1:] == (None, None), "only the first rank has the rows and the folder"


def join_the_job(out: str, begun: bool) -> tuple[Any, ...]:
    """A pipeline that names no mode, in a process of a job."""
    if begun:
        ge.init(mode="collective", timeout=60)
    try:
        result = ge.pipeline("deepwalk", "digits", out=out, **QUICK)
    except ge.ModeError as error:
        return (str(error),)
    finally:
        ge.shutdown()
    return result.config.parallel.mode, result.config.parallel.trainers, result.embeddings is None


def test_a_run_in_a_process_of_a_job_joins_it(ranks: Workers, tmp_path: Path) -> None:
    found = ranks.run(join_the_job, 2, str(tmp_path / "run"), False)
    assert found == [("collective", 2, False), ("collective", 2, True)]
    assert read_metrics(tmp_path / "run")["train"]["sharing"].startswith("parallel.hogwild=auto: trainers ")
    for (message,) in ranks.run(join_the_job, 2, str(tmp_path / "other"), True):
        assert message.startswith("graph_emb is initialised already")


def test_another_number_of_ranks_than_asked_for_is_refused(ranks: Workers, tmp_path: Path) -> None:
    errors = "".join(ranks.run(raised, 2, run_pipeline, str(tmp_path / "run"), 3, QUICK))
    assert "parallel.trainers = 3, but the launcher started 2; make them equal" in errors
    assert not (tmp_path / "run").exists()


def small_graph(directed: bool, weighted: bool) -> Graph:
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, 60, 300), generator.integers(0, 60, 300)
    weights = generator.random(300).astype(np.float32) + 0.5 if weighted else None
    return Graph.from_edges(src, dst, num_nodes=64, weights=weights, directed=directed)


def read_own_part(folder: str, directed: bool) -> tuple[Any, ...]:
    import partition

    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        own = own_part(partition.load(folder), Trainers(transport.group, transport), directed)
        return own.low, own.indptr, own.indices, own.weights
    finally:
        ge.shutdown()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("directed", "weighted"), [(False, False), (True, True)])
def test_ranks_read_the_arcs_that_leave_their_nodes(
    ranks: Workers, tmp_path: Path, world_size: int, directed: bool, weighted: bool
) -> None:
    graph = small_graph(directed, weighted)
    config = config_from(
        {"model": {"name": "deepwalk"}, "dataset": {"name": "digits"}},
        {"parallel": {"mode": "collective", "trainers": 2, "method": "ldg"}},
    )
    parts = cut(of_one_type(graph), config, tmp_path)
    order = np.asarray(parts.node_map())
    place = np.argsort(order)
    found = ranks.run(read_own_part, world_size, str(parts.path), directed)
    for low, indptr, indices, weights in found:
        for row in range(len(indptr) - 1):
            old = order[low + row]
            begin, end = graph.indptr[old : old + 2]
            expected = np.argsort(place[graph.indices[begin:end]], kind="stable")
            assert indices[indptr[row] : indptr[row + 1]].tolist() == place[graph.indices[begin:end]][expected].tolist()
            if weighted:
                assert weights is not None
                assert graph.weights is not None
                assert weights[indptr[row] : indptr[row + 1]].tolist() == graph.weights[begin:end][expected].tolist()


@pytest.mark.parametrize(("mode", "logs"), [("collective", []), ("kvstore", ["server-0.log", "servers.txt"])])
def test_the_trainers_of_the_command_line_write_one_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str, logs: list[str]
) -> None:
    from graph_emb.cli.main import main

    words = ["train", "deepwalk", "--dataset", "digits", "--mode", mode, "--trainers", "2", "--threads", "1", "--out"]
    overrides = ["model.num_walks=2", "model.dim=8", "evaluate.ratios=[0.5]", "evaluate.shuffles=1"]
    assert main([*words, str(tmp_path / "run"), *overrides]) == 0
    told = capfd.readouterr()
    assert "deepwalk on digits: 1,797 nodes" in told.out
    assert told.err.count("parallel.hogwild=auto: trainers ") == 1
    names = sorted(p.name for p in (tmp_path / "run-logs").iterdir())
    assert names == [*logs, "trainer-0.log", "trainer-1.log"]
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"mode: {mode}" in config
    shared = mode == "kvstore" or os.environ.get(SHARED_VARIABLE) != "0"
    assert f"hogwild: {str(shared).lower()}" in config


LONG = {
    "deepwalk": "--dataset digits train.epochs=100000 train.log_interval=0.01 model.num_walks=1",
    "distmult": "--dataset {triples} train.epochs=100000 model.valid_every=0 train.batch_size=8 model.chunk_size=8",
}


@pytest.mark.parametrize(
    ("model", "mode", "number"),
    [
        ("deepwalk", "collective", signal.SIGINT),
        ("deepwalk", "kvstore", signal.SIGTERM),
        ("distmult", "collective", signal.SIGINT),
    ],
)
def test_ctrl_c_keeps_what_several_trainers_have_trained(
    model: str, mode: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The launcher sent SIGTERM, which raised KeyboardInterrupt in the middle of an exchange at every trainer, and
    SIGKILL ten seconds later: nothing was saved."""
    triples = tmp_path / "ring.tsv"
    triples.write_text("".join(f"n{head}\tnext\tn{(head + 1) % 40}\n" for head in range(40)))
    options = LONG[model].format(triples=triples).split()
    words = [model, *options, "--mode", mode, "--trainers", "2", "--threads", "1", "--dim", "8"]
    command = [sys.executable, "-m", "graph_emb", "train", *words, "--out", str(tmp_path / "run")]
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        job = subprocess.Popen(command, stdout=stream, stderr=stream, process_group=0)
    try:
        deadline = time.monotonic() + 240
        while not any(file.stat().st_size for file in tmp_path.glob(".run.partial-*/metrics.jsonl")):
            assert job.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.05)
        os.killpg(job.pid, number)
        assert job.wait(120) == 130, errors.read_text()
    finally:
        job.kill()
        job.wait()
    assert "interrupted; what was trained is in" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    metrics = read_metrics(tmp_path / "run")
    assert metrics["status"] == "interrupted"
    assert np.isfinite(np.load(tmp_path / "run" / "embeddings.npy")).all()
    assert not list(tmp_path.glob(".run*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "500 trainers on a machine of 2 cores: at most 8"),
        (["--oversubscribe"], "parallel.trainers = 500: the graph has 40 nodes; take fewer trainers"),
    ],
)
def test_more_trainers_than_cores_or_nodes_start_no_process(
    options: list[str],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--trainers 500`` on 40 nodes and two cores started 500 processes."""
    from graph_emb.cli.main import main

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", started)
    (tmp_path / "g.csv").write_text("".join(f"{node},{(node + 1) % 40}\n" for node in range(40)))
    words = ["train", "deepwalk", "--dataset", str(tmp_path / "g.csv"), "--trainers", "500", *options]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert message in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.csv"]


def test_bad_input_of_a_parallel_run_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from graph_emb.cli.main import main

    (tmp_path / "g.csv").write_text("1,2,3,4,5\n")
    words = ["train", "deepwalk", "--dataset", str(tmp_path / "g.csv"), "--trainers", "2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert len(capfd.readouterr().err.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.csv"]


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"trainers": 2}, "need mode=collective or kvstore"),
        ({"mode": "collective", "servers": 1}, "collective mode has none"),
        ({"mode": "kvstore", "trainers": 2}, "needs servers"),
        ({"negatives": "local"}, "negatives has no effect on one process"),
    ],
)
def test_counts_that_do_not_fit_the_mode_are_refused(parallel: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        ge.pipeline("deepwalk", "digits", parallel=parallel)


COLLECTIVE: dict[str, Any] = {"mode": "collective", "trainers": 2}


@pytest.mark.parametrize(
    ("parallel", "train", "message"),
    [
        (
            {**COLLECTIVE, "exchange_walks": 9},
            {"rule": "adagrad"},
            "parallel.exchange_walks has no effect with train.rule",
        ),
        ({**COLLECTIVE, "exchange_walks": 9}, {"path": "optimizer"}, "parallel.exchange_walks has no effect"),
        ({**COLLECTIVE, "reduction": "sum"}, {"path": "optimizer"}, "parallel.reduction has no effect"),
        ({**COLLECTIVE, "wire_dtype": "int8"}, {"rule": "adam"}, "wire_dtype = int8 is for walks by sgd in place"),
        ({"mode": "kvstore", "servers": 1, "trainers": 2, "wire_dtype": "int8"}, {}, "wire_dtype = int8 is for walks"),
        ({**COLLECTIVE, "wire_dtype": "int8", "hogwild": True}, {}, "wire_dtype has no effect with parallel.hogwild"),
        ({**COLLECTIVE, "negative_pool": 9}, {"rule": "adam"}, "parallel.negative_pool has no effect with train.rule"),
        ({**COLLECTIVE, "remote_negatives": 9}, {"rule": "adam"}, "parallel.remote_negatives has no effect with"),
        ({**COLLECTIVE, "remote_negatives": 9, "hogwild": True}, {}, "negatives has no effect with parallel.hogwild"),
        (
            {**COLLECTIVE, "wire_dtype": "float16", "hogwild": True},
            {},
            "wire_dtype has no effect with parallel.hogwild",
        ),
        (
            {**COLLECTIVE, "reduction": "sum", "hogwild": True},
            {},
            "parallel.reduction has no effect with parallel.hogwild",
        ),
        ({**COLLECTIVE, "remote_negatives": 9, "negative_pool": 9}, {}, "no effect with negative_pool"),
        ({**COLLECTIVE, "overlap": True}, {"rule": "adam"}, "parallel.overlap has no effect with train.rule"),
        ({**COLLECTIVE, "overlap": True, "hogwild": True}, {}, "parallel.overlap has no effect with"),
        ({"overlap": True}, {}, "parallel.overlap has no effect on one process"),
        (
            {"mode": "kvstore", "servers": 1, "trainers": 2, "reduction": "adasum"},
            {},
            "parallel.reduction has no effect with parallel.mode=kvstore",
        ),
        (
            {"mode": "kvstore", "servers": 1, "trainers": 2, "overlap": True},
            {},
            "parallel.overlap has no effect with parallel.mode=kvstore",
        ),
        *(
            ({"mode": "collective", "trainers": 1, name: value}, {}, f"{name} has no effect with parallel.trainers=1")
            for name, value in (("exchange_walks", 9), ("negative_pool", 9), ("remote_negatives", 9), ("overlap", True))
        ),
        ({"mode": "collective", "reduction": "adasum"}, {}, "reduction has no effect with parallel.trainers=1, which"),
        ({"mode": "collective", "wire_dtype": "float16"}, {}, "wire_dtype has no effect on one trainer"),
        (
            {"mode": "kvstore", "servers": 1, "exchange_walks": 9},
            {},
            "exchange_walks has no effect with parallel.train",
        ),
        ({**COLLECTIVE, "remote_negatives": 32}, {}, "remote_negatives is 32 of 32 shared_negatives"),
        ({**COLLECTIVE, "hogwild": True}, {"rule": "adam"}, "parallel.hogwild has no effect with train.rule"),
        ({**COLLECTIVE, "hogwild": True, "negative_pool": 9}, {}, "negative_pool has no effect with parallel.hogwild"),
        ({"hogwild": True}, {}, "hogwild has no effect on one process"),
        ({"blocks": 4}, {}, "parallel.blocks = 4 has no effect on deepwalk"),
        (
            {"mode": "kvstore", "servers": 1, "trainers": 2, "negative_pool": 9},
            {"path": "autograd"},
            "parallel.negative_pool has no effect",
        ),
    ],
)
def test_exchanges_that_nobody_makes_are_refused(parallel: dict[str, Any], train: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        ge.pipeline("deepwalk", "digits", parallel=parallel, train=train)


def test_rows_that_travel_between_machines_of_servers_may_be_rounded_beside_hogwild() -> None:
    base = {"model": {"name": "deepwalk"}, "dataset": {"name": "digits"}}
    kvstore = {"mode": "kvstore", "servers": 1, "trainers": 2, "hogwild": True, "wire_dtype": "float16"}
    assert config_from(base, {"parallel": kvstore}).parallel.wire_dtype == "float16"
    adagrad = {"train": {"rule": "adagrad"}, "parallel": {**COLLECTIVE, "wire_dtype": "float16"}}
    assert config_from(base, adagrad).parallel.wire_dtype == "float16"


def test_trainers_of_servers_meet_as_often_under_any_rule() -> None:
    parallel = {"mode": "kvstore", "servers": 1, "trainers": 2, "exchange_walks": 9}
    base = {"model": {"name": "deepwalk"}, "dataset": {"name": "digits"}}
    made = config_from(base, {"train": {"rule": "adagrad"}, "parallel": parallel})
    assert isinstance(made.model, DeepWalkConfig)
    assert made.model.exchange_walks == 9
