"""The commands: what they print, and one line with exit code 2 for what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.cli import main as graph_emb_cli
from graph_emb.core.errors import ConfigError
from partition import cli
from partition.options import BuildOptions
from tests.ogb_layout import write_ddi
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts

CHECKOUT = Path(__file__).resolve().parents[2]
LOOSE = ["--balance", "nodes", "--tolerance", "1", "--method", "random"]


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "edges.csv"
    rng = np.random.default_rng(0)
    names = np.array([f"n{i}" for i in range(20)])
    path.write_text("".join(f"{a},{b}\n" for a, b in zip(*names[rng.integers(0, 20, (2, 90))], strict=True)))
    return path


@pytest.fixture
def built(tmp_path: Path) -> Path:
    graph = heterogeneous()
    return partition.build(graph, out=tmp_path / "built", assignment=random_parts(graph, 3), report=False).path


@pytest.mark.parametrize("main", [cli.main, lambda words: graph_emb_cli.main(["partition", *words])])
def test_build_report_verify_and_repartition(
    edges: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], main: object
) -> None:
    assert callable(main)
    assert main(["build", str(edges), "--parts", "2", "--out", str(tmp_path / "a"), *LOOSE, "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "90 edges in 2 parts" in out
    assert "method: random" in out
    assert "seed 3" in out
    assert main(["report", str(tmp_path / "a"), "--json", str(tmp_path / "r.json")]) == 0
    assert "cut edges" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())
    assert main(["verify", str(tmp_path / "a"), "--graph", str(edges)]) == 0
    assert "90 edges compared with the graph" in capsys.readouterr().out
    assert main(["repartition", str(tmp_path / "a"), "--parts", "3", "--out", str(tmp_path / "b"), *LOOSE]) == 0
    assert partition.load(tmp_path / "b").original_ids().tolist() != []
    assert set(partition.load(tmp_path / "b").original_ids()) == set(partition.load(tmp_path / "a").original_ids())
    assert main(["verify", str(tmp_path / "b"), "--no-checksums"]) == 0


def test_options_reach_the_reader_and_the_writer(edges: Path, tmp_path: Path) -> None:
    words = ["--read", "self_loops=drop", "--halo", "inbound", "--hops", "2", "--edge-owner", "source", "--name", "g"]
    code = cli.main(["build", str(edges), "--parts", "2", "--out", str(tmp_path / "a"), *LOOSE, *words, "--no-report"])
    assert code == 0
    whole = partition.load(tmp_path / "a")
    assert whole.manifest is not None
    assert (whole.manifest.halo, whole.manifest.num_hops, whole.manifest.edge_owner) == ("inbound", 2, "source")
    assert (whole.name, (tmp_path / "a" / "report.json").exists()) == ("g", False)
    assert whole.num_edges() < 90


def test_a_known_data_set_is_looked_for_below_the_root(tmp_path: Path) -> None:
    """`--root` was unknown to `partition build`, which asked for `--read root=`, where `train` takes it."""
    write_ddi(tmp_path / "2026")
    root, out = ["--root", str(tmp_path / "2026")], str(tmp_path / "parts")
    assert graph_emb_cli.main(["partition", "build", "ogbl-ddi", *root, "--parts", "2", *LOOSE, "--out", out]) == 0
    assert cli.main(["verify", out, "--graph", "ogbl-ddi", *root]) == 0
    assert cli.main(["convert", "ogbl-ddi", str(tmp_path / "chunks"), "--to", "chunked", *root]) == 0
    assert partition.load(out).num_nodes() == 40
    assert cli.main(["verify", out, "--graph", "ogbl-ddi", "--root", str(tmp_path)]) == 2


def test_the_report_counts_edges_where_the_manifest_says(tmp_path: Path) -> None:
    graph = homogeneous()
    whole = partition.build(
        graph, out=tmp_path / "a", assignment=random_parts(graph, 3), edge_owner="source", report=False
    )
    assert cli.main(["report", str(tmp_path / "a"), "--json", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["given"]["edges"] == whole.edges.sizes.sum(axis=1).tolist()


def test_convert(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(built), str(tmp_path / "c"), "--to", "chunked", "--edge-format", "csv"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'c'}\n"
    assert (tmp_path / "c" / "metadata.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["bild"], "(did you mean 'build'?)"),
        (["build", "EDGES", "--out", "OUT"], "num_parts is missing"),
        (["build", "EDGES", "--parts", "two", "--out", "OUT"], "invalid int value: 'two'"),
        (["build", "EDGES", "--parts", "0", "--out", "OUT"], "num_parts is 0; it must lie in 1 .. 20"),
        (["build", "EDGES", "--parts", "99", "--out", "OUT"], "num_parts is 99; it must lie in 1 .. 20"),
        (["build", "NOWHERE", "--parts", "2", "--out", "OUT"], "NOWHERE"),
        (["build", "EDGES", "--parts", "2", "--out", "BUILT"], "holds a partition"),
        (["build", "EDGES", "--parts", "2", "--out", "EDGES"], "is a file"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--read", "name=x"], "argument of its own, --name on"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--read", "progress=true"], "of its own, --quiet on"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--read", "source=x"], "of its own, GRAPH on"),
        (["verify", "BUILT", "--graph", "EDGES", "--read", "progress=true"], "--read: 'progress' is an argument"),
        (["convert", "EDGES", "OUT", "--to", "chunked", "--read", "source=x"], "'source' is an argument of its own"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--set", "x"], "--set 'x': write key=value"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--set", "seed=1"], "argument of its own, --seed on"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--set", "effort=hihg"], "did you mean 'high'?"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--set", "relation_weights=5"], "relation_weights is 5"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--set", "path=3", "--method", "file"], "not 3"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--read", "a=[", *LOOSE], "--read 'a=[': no YAML value"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--method", "metsi"], "did you mean 'metis'"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--halo", "big", *LOOSE], "unknown halo 'big'"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--hops", "0", *LOOSE], "num_hops is 0"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--tolerance", "a=b"], "--tolerance 'a=b': write a number"),
        (["verify", "NOWHERE"], "no such partition"),
        (["build", "EDGES", "--parts", "2", "--out", "OUT", "--root", "a", "--read", "root=b"], "root is given twice"),
        (["verify", "BUILT", "--root", "a"], "--read has no effect without --graph"),
        (["verify", "BUILT", "--read", "a=1"], "--read has no effect without --graph"),
        (["convert", "BUILT", "OUT", "--to", "x"], "unknown form 'x'"),
        (["report", "EDGES"], "no valid JSON"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(
    edges: Path, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    places = {"EDGES": edges, "BUILT": built, "OUT": tmp_path / "out", "NOWHERE": tmp_path / "NOWHERE"}
    before = sorted(tmp_path.iterdir())
    assert cli.main([str(places.get(word, word)) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("partition: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_damage_is_one_line(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (built / "part1" / "graph.dgl").unlink()
    assert cli.main(["verify", str(built)]) == 2
    assert capsys.readouterr().err == f"partition: error: {built / 'part1' / 'graph.dgl'}: missing\n"


def test_both_command_lines_end_alike(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that had left was bad input to ``python -m partition``, and SIGTERM ended it without a word."""
    script = f"{sys.executable} -m partition verify {built} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(cli, "run", lambda args: signal.raise_signal(signal.SIGTERM))
    assert cli.main(["verify", "x"]) == 130
    assert capsys.readouterr().err == "partition: interrupted\n"


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    disk, graph = tmp_path / "disk", homogeneous(2000, 40_000)
    partition.build(graph, out=tmp_path / "whole", assignment=random_parts(graph, 2), report=False)
    script = f"""
mkdir -p {disk} && mount -t tmpfs -o size=256k none {disk} || exit 77
{sys.executable} -m partition convert {tmp_path / "whole"} {disk / "out"} --to chunked --edge-format csv
code=$?
ls -A {disk}
exit $code
"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    if done.returncode in (1, 77) and os.geteuid() != 0:
        pytest.skip("a small disk needs a mount, and that needs root")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unwritable_place_is_one_line(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(built), "/proc/out", "--to", "dgl"]) == 2
    assert capsys.readouterr().err.startswith("partition: error: No such file or directory: /proc/")


def test_parsing_imports_nothing_heavy() -> None:
    script = "import sys, partition.cli; print([m for m in ('numpy', 'torch', 'numba', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout == "[]\n"


def test_defaults_are_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each default stood twice: --halo, --hops, --seed and --edge-owner had their own."""
    told: list[BuildOptions] = []

    def noted(graph: object, options: BuildOptions) -> None:
        told.append(options)
        raise ConfigError("enough")

    monkeypatch.setattr("partition.building._build", noted)
    out = str(tmp_path / "out")
    assert cli.main(["build", "g.csv", "--parts", "2", "--out", out]) == 2
    with pytest.raises(ConfigError, match="enough"):
        partition.build("g.csv", 2, out=out, method_options={}, reader_options={})
    assert told == [told[0]] * 2


def test_a_report_of_a_damaged_partition_is_one_line(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed byte went unseen into the numbers, and a lost file was a traceback."""
    path = built / "part1" / "graph.dgl"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))
    assert cli.main(["report", str(built)]) == 2
    assert capsys.readouterr() == ("", f"partition: error: {path}: its sha256 differs from the manifest's\n")
    path.unlink()
    assert cli.main(["report", str(built)]) == 2
    assert capsys.readouterr() == ("", f"partition: error: {path}: missing\n")


@pytest.mark.parametrize("name", ["part0/graph.dgl", "part1/node_feat.dgl", "manifest.json", "hetero.json"])
def test_every_damaged_byte_is_one_line(built: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    rng, path = np.random.default_rng(0), built / name
    data = path.read_bytes()
    for _ in range(15):
        damaged = bytearray(data[: len(data) if rng.random() < 0.7 else rng.integers(len(data))])
        for place in rng.integers(0, len(damaged), 3) if damaged else ():
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged))
        assert cli.main(["report", str(built)]) in (0, 2)
        assert capsys.readouterr().err.count("\n") <= 1
        path.write_bytes(data)
