"""Builds beyond memory: the same files as in memory, inside the limit, restarted, shared, or refused."""

from __future__ import annotations

import gzip
import select
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graph_emb.graph.readers
import partition
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from partition.cli import main
from partition.streaming import shared_stages
from partition.streaming.source import Budget
from tests.partition.streaming.edge_files import (
    LIMIT_SECONDS,
    MEMORY,
    all_finished,
    contents,
    finished,
    made_edges,
    small_file,
    started,
    write_parquet,
)

pytestmark = pytest.mark.usefixtures("warm_starts")


@pytest.mark.parametrize("halo", ["dgl", "inbound"])
@pytest.mark.parametrize("method", ["hash", "random", "range"])
def test_files_equal_those_of_a_build_in_memory(tmp_path: Path, method: str, halo: str) -> None:
    edges = small_file(tmp_path)
    options = {"method": method, "halo": halo}
    ours = partition.build(edges, 4, out=tmp_path / "ours", memory=MEMORY, **options)
    theirs = partition.build(edges, 4, out=tmp_path / "theirs", report=False, **options)
    assert contents(ours.path) == contents(theirs.path)


@pytest.mark.parametrize("halo", ["dgl", "inbound"])
@pytest.mark.parametrize("method", ["hash", "ldg"])
def test_many_small_buckets_and_blocks_give_the_same(
    tmp_path: Path, method: str, halo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = small_file(tmp_path)
    options = {"method": method, "halo": halo, "memory": MEMORY}
    large = contents(partition.build(edges, 3, out=tmp_path / "large", **options).path)
    monkeypatch.setattr(Budget, "bucket_rows", lambda self, work: 500)  # the largest hub has 461 neighbours
    monkeypatch.setattr(Budget, "block_rows", lambda self, work: 37)
    written = []
    monkeypatch.setattr(shared_stages.Workplace, "run", counted(shared_stages.Workplace.run, written))
    assert contents(partition.build(edges, 3, out=tmp_path / "small", **options).path) == large
    counts = dict(written)
    assert counts["order"] >= 9
    assert method == "hash" or counts["neighbours"] >= 16


def counted(run: Callable[..., object], written: list[tuple[str, int]]) -> Callable[..., object]:
    """``run`` that notes the number of tasks of each stage."""

    def call(self: object, stage: str, count: int, *args: object) -> object:
        written.append((stage, count))
        return run(self, stage, count, *args)

    return call


@pytest.mark.parametrize("num_parts", [1, 7])
def test_weights_of_several_files_follow_their_edges(tmp_path: Path, num_parts: int) -> None:
    src, dst = made_edges(300, 4000)
    weight = np.random.default_rng(1).random(4000)
    folder = tmp_path / "edges"
    folder.mkdir()
    for name, rows in (("a", slice(0, 2500)), ("b", slice(2500, None))):
        write_parquet(folder / f"{name}.parquet", {"dst": dst[rows], "w": weight[rows], "src": src[rows]}, 400)
    options = {"method": "hash", "seed": 3, "reader_options": {"columns": ["src", "dst", "w"]}}
    ours = partition.build(folder, num_parts, out=tmp_path / "ours", memory=MEMORY, **options)
    theirs = partition.build(folder, num_parts, out=tmp_path / "theirs", report=False, **options)
    assert contents(ours.path) == contents(theirs.path)
    assert ours.part(0).edge_data()["weight"].dtype == np.float64


def test_gzipped_text_and_parquet_give_the_same(tmp_path: Path) -> None:
    src, dst = made_edges(200, 1500)
    text = "".join(f"{s},{d}\n" for s, d in zip(src, dst, strict=True))
    with gzip.open(tmp_path / "g.csv.gz", "wt") as stream:
        stream.write(text)
    write_parquet(tmp_path / "g.parquet", {"src": src, "dst": dst}, 100)
    found = [
        contents(partition.build(tmp_path / name, 3, "ldg", out=tmp_path / f"{name}-out", memory=MEMORY, seed=5).path)
        for name in ("g.csv.gz", "g.parquet")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["ldg", "fennel", "multilevel"])
def test_streamed_parts_are_balanced_and_true_to_the_graph(tmp_path: Path, method: str) -> None:
    edges = small_file(tmp_path)
    whole = partition.build(edges, 4, method, out=tmp_path / "out", memory=MEMORY)
    graph = graph_emb.graph.readers.read_graph(edges)
    found = partition.verify(whole.path, graph)
    assert found.problems == []
    assert max(whole.manifest.made["balance"].values()) <= 1.1


@pytest.mark.parametrize("num_parts", [6, 9])
@pytest.mark.parametrize("method", ["ldg", "fennel", "multilevel"])
def test_streamed_parts_have_a_node_each(tmp_path: Path, method: str, num_parts: int) -> None:
    """Neighbours that attract each other left parts empty, which a build in memory repairs."""
    edges = tmp_path / "pairs.csv"
    edges.write_text("".join(f"{2 * pair},{2 * pair + 1}\n" for pair in range(5)))
    whole = partition.build(edges, num_parts, method, out=tmp_path / "out", memory=MEMORY)
    assert whole.nodes.sizes.min() == 1
    if method != "multilevel":  # whose parts are never empty here
        assert "moved so that every part has what it needs" in whole.manifest.made["why"]
    assert partition.verify(whole.path, graph_emb.graph.readers.read_graph(edges)).problems == []


@pytest.mark.parametrize("method", ["ldg", "multilevel"])
def test_streamed_parts_keep_communities_together(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    home = rng.integers(0, 4, 6000)
    src, dst = home + 4 * rng.integers(0, 100, 6000), home + 4 * rng.integers(0, 100, 6000)
    src[:400] = dst[:400] = np.arange(400)
    edges = write_parquet(tmp_path / "g.parquet", {"src": src, "dst": dst}, 999)
    whole = partition.build(edges, 4, method, out=tmp_path / "out", memory=MEMORY)
    parts = whole.assignment().parts["_N"]
    assert (parts[src] != parts[dst]).mean() < 0.05  # random: 0.75


def test_a_given_assignment_is_used(tmp_path: Path) -> None:
    edges = small_file(tmp_path)
    given = partition.Assignment({"_N": (np.arange(300) % 3).astype(np.int32)}, 3)
    ours = partition.build(edges, out=tmp_path / "ours", assignment=given, memory=MEMORY)
    theirs = partition.build(edges, out=tmp_path / "theirs", assignment=given, report=False)
    assert contents(ours.path) == contents(theirs.path)
    short = partition.Assignment({"_N": np.zeros(5, np.int32)}, 1)
    with pytest.raises(PartitionError, match="300"):
        partition.build(edges, out=tmp_path / "short", assignment=short, memory=MEMORY)
    assert not list(tmp_path.glob("*short*"))


PEAK = """
import sys, partition
partition.build(sys.argv[1], 4, sys.argv[4], out=sys.argv[2], memory=sys.argv[3], progress=False)
assert "pandas" not in sys.modules, "pyarrow.array of numpy's arrays imports it"
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.cold  # counts the memory of the whole process
@pytest.mark.parametrize(("method", "limit"), [("ldg", 380), ("multilevel", 500)])
def test_the_limit_on_memory_is_kept(tmp_path: Path, method: str, limit: int) -> None:
    # In memory the same build holds above 1 GB; Python with its libraries alone takes 200 MB.
    src, dst = made_edges(200_000, 3_000_000)
    edges = write_parquet(tmp_path / "g.parquet", {"src": src, "dst": dst}, 1 << 20)
    del src, dst
    peak = int(finished(started(PEAK, str(edges), str(tmp_path / "out"), f"{limit}MB", method)))
    assert peak <= limit * 1e6
    assert partition.verify(tmp_path / "out").sound


@pytest.mark.dist
def test_two_workers_write_the_same_bytes_as_one(tmp_path: Path) -> None:
    code = "import sys, partition; partition.build(sys.argv[1], 4, out=sys.argv[2], memory='4GB', progress=False)"
    edges = str(small_file(tmp_path))
    partition.build(edges, 4, out=tmp_path / "one" / "out", memory=MEMORY)
    both = [started(code, edges, str(tmp_path / "two" / "out"), rank=rank, world_size=2) for rank in (1, 0)]
    all_finished(both)
    assert contents(tmp_path / "one" / "out") == contents(tmp_path / "two" / "out")
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["out"]


LATE = """
import os, sys, time, partition
from partition.streaming import building
from partition.streaming import shared_stages as module
from pathlib import Path

run, edge_map = module.Workplace.run, building.PartFiles.edge_map
other = Path(sys.argv[2]).with_name(".out.streaming") / "edges-1.json"


def look_late(self, stage, *rest):
    if stage == "edges":
        module.POLL_S = 3.0
    return run(self, stage, *rest)


def be_the_last(self, form):
    while form == building.FORMS[-1] and not other.exists():
        time.sleep(0.01)
    return edge_map(self, form)


if os.environ["RANK"] == "1":
    module.Workplace.run = look_late
else:
    building.PartFiles.edge_map = be_the_last
partition.build(sys.argv[1], 2, out=sys.argv[2], memory="4GB", progress=False)
"""


@pytest.mark.dist
def test_a_worker_may_look_after_the_first_one_is_done(tmp_path: Path) -> None:
    """The second worker waited half an hour for results that had gone between two looks."""
    edges, out = str(small_file(tmp_path)), str(tmp_path / "two" / "out")
    both = [started(LATE, edges, out, rank=rank, world_size=2) for rank in (1, 0)]
    all_finished(both)
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["out"]
    assert partition.verify(out).sound


WATCHED = """
import sys, partition
from partition.streaming.shared_stages import Workplace

wait = Workplace.wait_arrived


def told(self):
    print("alone", flush=True)
    wait(self)


Workplace.wait_arrived = told
partition.build(sys.argv[1], 2, out=sys.argv[2], memory="4GB", progress=False)
"""


@pytest.mark.dist
def test_a_worker_may_come_when_all_is_done(tmp_path: Path) -> None:
    """The fourth worker, for whom there is no task, waited half an hour for a folder that the first had removed."""
    src, dst = made_edges(300, 4000)
    edges = str(write_parquet(tmp_path / "edges.parquet", {"src": src, "dst": dst}, 4000))  # one slice
    out = str(tmp_path / "four" / "out")
    early = [started(WATCHED, edges, out, rank=rank, world_size=4) for rank in (0, 1, 2)]
    try:
        assert early[0].stdout is not None
        told = select.poll()  # select() takes no file above 1,023, which a process of many tests has open
        told.register(early[0].stdout, select.POLLIN)
        assert told.poll(LIMIT_SECONDS * 1000), "the first worker is not done with its tasks"
    finally:
        fourth = started(WATCHED, edges, out, rank=3, world_size=4)
        printed = all_finished([*early, fourth])
    assert printed == ["alone\n", "", "", ""]
    assert [path.name for path in (tmp_path / "four").iterdir()] == ["out"]
    assert partition.verify(out).sound


KILLED = """
import os, signal, sys, partition
from partition.streaming import shared_stages as module

stage, write = sys.argv[3], module.replace_json


def killed(path, content):
    print(path.name)
    if path.name.startswith(stage):
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)


module.replace_json = killed
partition.build(sys.argv[1], 3, "ldg", out=sys.argv[2], memory="4GB", progress=False)
"""


def test_a_killed_build_goes_on_from_its_last_task(tmp_path: Path) -> None:
    edges, out = small_file(tmp_path), tmp_path / "out"
    child = started(KILLED, str(edges), str(out), "order-1")
    child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == -signal.SIGKILL
    assert not out.exists()
    left = tmp_path / ".out.streaming"
    done = {path.name for path in left.glob("*-*.json")}
    assert {"scan-0.json", "place-0.json", "order-0.json"} <= done
    again = finished(started(KILLED, str(edges), str(out), "no such stage"))
    assert not done & set(again.split())  # nothing is done twice
    whole = partition.build(edges, 3, "ldg", out=tmp_path / "whole", memory=MEMORY)
    assert contents(out) == contents(whole.path)
    assert {path.name for path in tmp_path.iterdir()} == {"edges.parquet", "out", "whole"}


@pytest.mark.parametrize(("method", "halo"), [("ldg", "dgl"), ("ldg", "inbound"), ("multilevel", "dgl")])
def test_a_build_goes_on_from_every_task(
    tmp_path: Path, method: str, halo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Removing what a task had read before its result was on the disk lost edges when the kill fell between both.
    edges, out = small_file(tmp_path), tmp_path / "out"
    options = {"memory": MEMORY, "halo": halo, "progress": False}
    monkeypatch.setattr(Budget, "holds", lambda self, nodes, entries, parts, work: entries < 4000)
    whole = contents(partition.build(edges, 3, method, out=tmp_path / "whole", **options).path)
    write, seen = shared_stages.replace_json, set()

    def interrupted(path: Path, content: dict[str, object]) -> None:
        if path.name not in seen:
            seen.add(path.name)
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(shared_stages, "replace_json", interrupted)
    for _ in range(200):
        try:
            partition.build(edges, 3, method, out=out, **options)
            break
        except KeyboardInterrupt:
            assert not out.exists()
    assert contents(out) == whole
    assert {"scan-0.json", "links-1.json", "neighbours-0.json", "place-0.json", "part-2.json", "edges-2.json"} <= seen


def test_what_another_build_left_is_not_used(tmp_path: Path) -> None:
    edges, out = small_file(tmp_path), tmp_path / "out"
    child = started(KILLED, str(edges), str(out), "shuffle-1")
    child.communicate(timeout=LIMIT_SECONDS)
    ours = partition.build(edges, 2, "hash", out=out, memory=MEMORY)
    theirs = partition.build(edges, 2, "hash", out=tmp_path / "theirs", report=False)
    assert contents(ours.path) == contents(theirs.path)


def test_input_that_changed_after_a_kill_is_read_anew(tmp_path: Path) -> None:
    edges, out = small_file(tmp_path), tmp_path / "out"
    child = started(KILLED, str(edges), str(out), "place-0")
    child.communicate(timeout=LIMIT_SECONDS)
    small_file(tmp_path, num_nodes=200)
    whole = partition.build(edges, 3, "ldg", out=out, memory=MEMORY)
    assert whole.num_nodes() == 200


def test_what_needs_the_whole_graph_is_refused(tmp_path: Path) -> None:
    edges = small_file(tmp_path)
    refused = [
        ({"method": "metis"}, "metis"),
        ({"method": "multilevel", "balance": ("train",)}, "train"),
        ({"method": "multilevel", "method_options": {"effort": "much"}}, "effort 'much'"),
        ({"method": "multilevel", "method_options": {"repeats": 0}}, "repeats is 0"),
        ({"method": "multilevel", "method_options": {"passes": 2}}, "passes"),
        ({"method": "ldg", "balance": ("train",)}, "train"),
        ({"method": "ldg", "method_options": {"passes": 0}}, "passes"),
        ({"method": "ldg", "method_options": {"nonsense": 0}}, "nonsense"),
        ({"reader_options": {"duplicates": "drop"}}, "duplicates"),
        ({"report": True}, "report"),
        ({"num_hops": 2}, "num_hops"),
        ({"edge_owner": "source"}, "edge_owner"),
        ({"allow_empty": True}, "allow_empty"),
        ({"num_threads": 2}, "num_threads"),
        ({"reader_options": {"num_nodes": 10**9}}, "too little for 1,000,000,000 nodes"),
        ({"memory": "10MB"}, "too little"),
        ({"memory": "much"}, "much"),
    ]
    for options, word in refused:
        with pytest.raises(ConfigError, match=word):
            partition.build(edges, 4, out=tmp_path / "out", **{"memory": MEMORY, **options})
    with pytest.raises(ConfigError, match="in memory already"):
        partition.build(graph_emb.graph.readers.read_graph(edges), 4, out=tmp_path / "out", memory=MEMORY)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.parquet"]


def test_missing_nodes_are_refused_unless_their_number_is_given(tmp_path: Path) -> None:
    edges = write_parquet(tmp_path / "g.parquet", {"src": np.array([0, 1, 5]), "dst": np.array([1, 0, 0])}, 2)
    with pytest.raises(ConfigError, match=r"no edge has node 2 \(3 of 6 are missing\)"):
        partition.build(edges, 2, "range", out=tmp_path / "out", memory=MEMORY)
    options = {"reader_options": {"num_nodes": 8}}
    ours = partition.build(edges, 2, "range", out=tmp_path / "ours", memory=MEMORY, **options)
    theirs = partition.build(edges, 2, "range", out=tmp_path / "theirs", report=False, **options)
    assert contents(ours.path) == contents(theirs.path)


def test_a_bad_row_is_named_and_nothing_stays(tmp_path: Path) -> None:
    src = np.arange(100)
    src[77] = -3
    edges = write_parquet(tmp_path / "g.parquet", {"src": src, "dst": np.arange(100)}, 10)
    with pytest.raises(DataError, match=r"row 78: src -3"):
        partition.build(edges, 2, out=tmp_path / "out", memory=MEMORY)
    assert [path.name for path in tmp_path.iterdir()] == ["g.parquet"]


@pytest.mark.parametrize(
    ("weight", "error", "word"),
    [
        (np.arange(1, 41, dtype=np.uint32), DataError, "column 'weight': dtype uint32"),
        ([[1.0, 2.0]] * 40, DataError, "holds lists"),
    ],
)
def test_weights_that_cannot_be_written_are_refused(
    tmp_path: Path, weight: object, error: type[Exception], word: str
) -> None:
    columns = {"src": np.arange(40), "dst": np.arange(40), "weight": weight}
    edges = write_parquet(tmp_path / "g.parquet", columns, 10)
    with pytest.raises(error, match=word):
        partition.build(edges, 2, out=tmp_path / "out", memory=MEMORY)
    with pytest.raises(DataError, match=r"graph name '\.a'"):
        partition.build(edges, 2, out=tmp_path / "out", memory=MEMORY, name=".a")
    assert [path.name for path in tmp_path.iterdir()] == ["g.parquet"]


def test_a_part_above_its_limit_is_named(tmp_path: Path) -> None:
    dst = np.zeros(50, np.int64)  # all edges go to one node
    edges = write_parquet(tmp_path / "g.parquet", {"src": np.arange(50), "dst": dst}, 10)
    with pytest.raises(PartitionError, match=r"ldg: part \d holds 50 of 50 'edges'"):
        partition.build(edges, 2, "ldg", out=tmp_path / "out", memory=MEMORY)


def test_the_command_shows_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = small_file(tmp_path)
    words = ["build", str(edges), "--parts", "2", "--out", str(tmp_path / "out"), "--memory", MEMORY]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "plan: 4,000 edges between 300 nodes into 2 parts" in shown.err
    assert "method: ldg (auto:" in shown.out
    assert "report" not in shown.out
    assert main([*words, "--quiet"]) == 2  # taken
    assert main([*words, "--quiet", "--overwrite"]) == 0
    assert "plan" not in capsys.readouterr().err
