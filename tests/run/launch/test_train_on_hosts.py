"""``graph-emb train --hosts``: every family in both modes between hosts with own addresses, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.config import MODELS
from graph_emb.graph.typed import HeteroGraph
from graph_emb.transport.guard import new_token
from graph_emb.transport.process_group import SHARED_VARIABLE
from partition.assignment import Assignment
from tests.netns import Network, network
from tests.ranks import Ranks
from tests.run.test_row_options import RUNS, root, rows_of

__all__ = ["root"]

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("fresh_mode", "warm_starts")]

CHECKOUT = Path(__file__).resolve().parents[3]
PATIENCE = 400
FAMILIES = {MODELS[name].family: name for name in RUNS if name != "mf"}
"""A model of each that trains in several processes."""


NOTHING = "mount -t tmpfs none {}"


def on_hosts(
    net: Network,
    place: Path,
    words: list[str],
    *more: list[str],
    package: Path = CHECKOUT,
    folders: tuple[str, str] = (".", "."),
    mount: str = "true",
    temporary: Path | None = None,
) -> list[tuple[int, str]]:
    """Exit code and output of ``graph-emb`` on each host, given the same words, and ``more`` of its own.

    Args:
        package: What the second host runs.
        folders: Where each of them runs it.
        mount: A command that gives the second host a disk of its own somewhere.
        temporary: Where both have temporary files.
    """
    (place / "hosts.txt").write_text("".join(f"{address}\n" for address in net.addresses))
    environment = {**os.environ, "GRAPH_EMB_TOKEN": new_token(), "PYTHONPATH": str(CHECKOUT)}
    environment |= {} if temporary is None else {"TMPDIR": str(temporary)}
    started = []
    for number in range(len(net.hosts)):
        own = [*words, *(more[number] if more else [])]
        with (place / f"host-{number}").open("wb") as log:
            mounted = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"] if number else []
            command = net.on(number, [*mounted, sys.executable, "-m", "graph_emb", *own])
            found = {**environment, "PYTHONPATH": str(package)} if number else environment
            started.append(subprocess.Popen(command, cwd=place / folders[number], env=found, stdout=log, stderr=log))
    try:
        codes = [process.wait(PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(code, (place / f"host-{n}").read_text(errors="replace")) for n, code in enumerate(codes)]


def command_of(model: str, root: Path, out: str, *words: str) -> list[str]:
    """A run of ``RUNS`` as a command line."""
    dataset, settings = RUNS[model]
    options = [f"{name}={json.dumps(value)}" for name, value in settings.items() if name != "evaluate"]
    said = ["train", model, "--dataset", dataset, "--root", str(root), "--out", out, "--no-eval", *words]
    return [*said, *options]


SWEEP = """
import sys
import numpy as np
from pathlib import Path
from tests.run.test_row_options import rows_of
for model in sys.argv[3:]:
    rows = rows_of(model, Path(sys.argv[1]), hogwild=False)
    if rows is not None:
        np.save(Path(sys.argv[2], model), rows)
"""


def all_rows(root: str, models: list[str]) -> list[np.ndarray | None]:
    return [rows_of(model, Path(root), hogwild=False) for model in models]


def test_every_family_has_the_same_rows_on_two_hosts_as_on_one(root: Path, tmp_path: Path, ranks: Ranks) -> None:
    """The parts lay in a temporary folder of the first host, which others do not see."""
    models = list(FAMILIES.values())
    (tmp_path / "sweep.py").write_text(SWEEP)
    (tmp_path / "disk").mkdir()
    with network(2) as net:
        words = ["launch", "--hosts", "hosts.txt", "--threads", "1", "--", "sweep.py", str(root), ".", *models]
        disk = tmp_path / "disk"
        ended = on_hosts(net, tmp_path, words, mount=NOTHING.format(disk), temporary=disk)
    assert [code for code, _ in ended] == [0, 0], ended
    expected = ranks.run(all_rows, 2, str(root), models)[0]
    for model, rows in zip(models, expected, strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / f"{model}.npy"), rows, err_msg=model)


def test_buckets_of_two_hosts_have_the_rows_of_one_process(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts move between trainers; namespaces of one machine would share its memory, and move none."""
    monkeypatch.setenv(SHARED_VARIABLE, "0")
    words = [*command_of("transe", root, "run", "train.buckets=6", "train.epochs=3", "train.batch_size=2")]
    with network(2) as net:
        ended = on_hosts(net, tmp_path, [*words, "--threads", "1", "--hosts", "hosts.txt"])
    assert [code for code, _ in ended] == [0, 0], ended
    words[words.index("run")] = "alone"
    alone = [sys.executable, "-m", "graph_emb", *words, "--threads", "1", "train.at_once=2"]
    subprocess.run(alone, cwd=tmp_path, check=True, timeout=PATIENCE)
    for table in (".", "relation"):
        rows = [np.load(tmp_path / run / table / "embeddings.npy") for run in ("run", "alone")]
        np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("model", FAMILIES.values())
def test_servers_of_two_hosts_train_every_family(model: str, root: Path, tmp_path: Path) -> None:
    """Rows of this mode differ from run to run: servers apply pushes as they come."""
    with network(2) as net:
        ended = on_hosts(net, tmp_path, command_of(model, root, "run", "--mode", "kvstore", "--hosts", "hosts.txt"))
    assert [code for code, _ in ended] == [0, 0], ended
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert "parallel:\n  mode: kvstore\n  trainers: 2\n  servers: 1\n" in (tmp_path / "run" / "config.yaml").read_text()
    for file in metrics["files"]:
        if file.endswith("embeddings.npy"):
            assert np.isfinite(np.load(tmp_path / "run" / file)).all()


def test_seeds_run_on_all_hosts_and_finished_ones_are_the_first_hosts_to_know(root: Path, tmp_path: Path) -> None:
    """Each host has a disk of its own: the second one sees no finished run and would wait for a seed that is kept."""
    for number in range(2):
        (tmp_path / f"disk-{number}").mkdir()
    words = command_of(
        "transe", root, "run", "--seeds", "0-2", "--trainers", "2", "--threads", "1", "parallel.hogwild=false"
    )
    words.remove("--no-eval")
    own = [["--hosts", "../hosts.txt"] for _ in range(2)]
    with network(2) as net:
        first = on_hosts(net, tmp_path, words, *own, folders=("disk-0", "disk-1"))
        assert [code for code, _ in first] == [0, 0], first
        rows = np.load(tmp_path / "disk-0" / "run" / "seed-1" / "embeddings.npy")
        shutil.rmtree(tmp_path / "disk-0" / "run" / "seed-1")
        again = on_hosts(net, tmp_path, words, *own, folders=("disk-0", "disk-1"))
    assert [code for code, _ in again] == [0, 0], again
    assert "seed 0 is finished" in again[0][1]
    assert "3 seeds, unbiased std" in again[0][1]
    assert [path.name for path in (tmp_path / "disk-1" / "run").glob("seed-?")] == [], "the runs are the first host's"
    np.testing.assert_array_equal(np.load(tmp_path / "disk-0" / "run" / "seed-1" / "embeddings.npy"), rows)


def test_a_host_with_other_settings_or_another_package_stops_all_before_they_train(root: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    for package in ("graph_emb", "partition"):
        shutil.copytree(CHECKOUT / package, copied / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (copied / "graph_emb" / "weight.py").open("a") as file:
        file.write("\n# one more line\n")
    words = command_of("transe", root, "run", "--hosts", "hosts.txt")
    with network(2) as net:
        other = on_hosts(net, tmp_path, words, [], ["model.dim=8"])
        package = on_hosts(net, tmp_path, words, package=copied)
    for ended, said in ((other, "model.dim is 8, and 4 on 10.0.0.1"), (package, "package is ")):
        assert [code for code, _ in ended] == [2, 2]
        for _, text in ended:
            (line,) = [line for line in text.splitlines() if line.startswith("graph-emb: error: ")]
            assert f"host 10.0.0.2: {said}" in line
    assert not list(tmp_path.glob("run*")), "neither a run nor logs of one"


def test_each_host_may_hold_its_own_parts_only(tmp_path: Path) -> None:
    """A copy without part 0 was no partition to the readers, and columns were looked up in part 0."""
    ends = np.arange(24), (np.arange(24) + np.array([1, 5] * 12)) % 24
    owner = {"n": np.repeat(np.arange(2, dtype=np.int32), 12)}

    def built(name: str, relation: str) -> Path:
        graph = HeteroGraph({"n": 24}, {("n", relation, "n"): ends})
        return partition.build(graph, assignment=Assignment(owner, 2), out=tmp_path / name, report=False).path

    parts, other, copy, lacking = built("parts", "to"), built("other", "of"), tmp_path / "copy", tmp_path / "lacking"
    shutil.copytree(parts, copy, ignore=shutil.ignore_patterns("part0"))
    shutil.copytree(parts, lacking, ignore=shutil.ignore_patterns("part1"))
    words = ["train", "deepwalk", "--dataset", str(parts), "--threads", "1", "dim=4", "num_walks=1", "walk_length=5"]
    words.append("parallel.hogwild=false")
    with network(2) as net:
        runs = [
            on_hosts(
                net, tmp_path, [*words, "--out", "run", "--hosts", "hosts.txt"], mount=f"mount --bind {held} {parts}"
            )
            for held in (lacking, other, copy)
        ]
    for ended, said in zip(runs, (r"part1/\w+\.dgl is missing; this", "the digest of the partition is "), strict=False):
        assert [code for code, _ in ended] == [2, 2]
        assert all(re.search(f"graph-emb: error: host 10.0.0.2: .*{said}", text) for _, text in ended), ended
    assert [code for code, _ in runs[2]] == [0, 0], runs[2]
    alone = [sys.executable, "-m", "graph_emb", *words, "--trainers", "2", "--out", "alone"]
    subprocess.run(alone, cwd=tmp_path, check=True, timeout=PATIENCE)
    rows = [np.load(tmp_path / run / "embeddings.npy") for run in ("run", "alone")]
    np.testing.assert_array_equal(*rows)
