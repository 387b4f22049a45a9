"""A partition as the data set: read as its input was, followed as ``--partition`` is, and what it lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.config import MODELS, config_from
from graph_emb.graph.datasets import load_dataset, read_source
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import digest, plain_dataset, typed_nodes
from graph_emb.run.family import FAMILIES
from graph_emb.run.inputs import following, partition_of
from graph_emb.run.parallel import assigned
from tests.graph.test_datasets import write_dbis
from tests.ogb_layout import write_arxiv, write_biokg, write_collab, write_mag
from tests.partition.streaming.edge_files import MEMORY
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

NAMES = np.array([f"n{(7 * number) % 40:02}" for number in range(40)])
"""Forty names in another order than their own."""


@dataclass(frozen=True)
class Case:
    """A model, its data set (a folder below the root, or a name) and what both runs are given.

    Attributes:
        read: How the data set is read when it is partitioned.
    """

    data: str
    options: dict[str, Any]
    read: dict[str, Any] = field(default_factory=dict)


CASES = {
    "deepwalk": Case("ring.txt", {"dim": 8, "num_walks": 2}),
    "node2vec": Case("ogbl-collab", {"dim": 8, "num_walks": 2}),
    "line": Case("ring.txt", {"dim": 8}),
    "metapath2vec": Case("dbis", {"dim": 8, "num_walks": 2, "metapath": "author-paper-venue-paper-author"}),
    "rotate": Case(
        "triples",
        {"dim": 8, "epochs": 2, "batch_size": 8, "chunk_size": 4, "num_negatives": 4, "valid_every": 0},
        {"relations": "column"},
    ),
    "rgcn": Case("ogbn-mag", {"dim": 8, "hidden_dim": 8, "epochs": 2, "num_seeds": 1}),
    "sage": Case("ogbn-arxiv", {"dim": 8, "hidden_dim": 8, "epochs": 5, "num_seeds": 1}),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small data set of each kind."""
    lines = [f"{NAMES[i]} {NAMES[(i + step) % 40]}\n" for i in range(40) for step in (1, 3)]
    (tmp_path / "ring.txt").write_text("".join(lines))
    (tmp_path / "triples").mkdir()
    lines = [f"{NAMES[i]}\tr{step}\t{NAMES[(i + step) % 40]}\n" for i in range(40) for step in (3, 1)]
    (tmp_path / "triples" / "train.txt").write_text("".join(lines))
    (tmp_path / "triples" / "test.txt").write_text("n01\tr1\tn02\n")
    (tmp_path / "entities").mkdir()
    lines = [f'<p{n}> <works/on> <project{n % 2}> .\n<p{n}> <name> "n{n}" .\n' for n in range(12)]
    (tmp_path / "entities" / "people.nt").write_text("".join(lines))
    for file, numbers in (("trainingSet.tsv", range(8)), ("testSet.tsv", range(8, 12))):
        rows = [f"{n}\tp{n}\tgroup{n % 2}" for n in numbers]
        (tmp_path / "entities" / file).write_text("\n".join(["id\tperson\tlabel_group", *rows]) + "\n")
    write_arxiv(tmp_path, features=False)
    write_mag(tmp_path)
    write_collab(tmp_path)
    write_dbis(tmp_path / "dbis")
    return tmp_path


def built(root: Path, data: str, method: str = "hash", **read: Any) -> Path:
    """The partition of a data set into three parts."""
    source = str(root / data) if (root / data).exists() else data
    more = {} if (root / data).exists() or data == "digits" else {"root": str(root)}
    out = root / f"parts-{data}-{method}"
    return partition.build(source, 3, method, out=out, report=False, reader_options={**read, **more}).path


def rows_of(result: Any) -> dict[str, tuple[list[Any], np.ndarray]]:
    return {name: (table.node_ids.tolist(), table.weights) for name, table in result.tables.items()}


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, (ids, rows) in found.items():
        assert ids == expected[name][0]
        np.testing.assert_array_equal(rows, expected[name][1])


def train_both(model: str, root: str, parts: str) -> Any:
    """The rows from the data set and its partition, and from the partition alone."""
    case = CASES[model]
    parallel = {"mode": "collective", "trainers": 1}
    data = Path(root) / case.data
    source = str(data) if data.exists() else case.data
    options = {"threads": 1, "evaluate": False, **case.options}
    first = ge.pipeline(model, source, root=root, parallel={**parallel, "partition": parts}, **options)
    second = ge.pipeline(model, parts, parallel=parallel, **options)
    return rows_of(first), rows_of(second), second.config.parallel.partition


def test_every_family_that_follows_parts_has_a_case() -> None:
    assert {MODELS[model].family for model in CASES} == FAMILIES.keys() - {"links", "spectral"}


@pytest.mark.dist
@pytest.mark.parametrize("model", CASES)
def test_the_partition_alone_gives_the_rows_of_its_data_set(ranks: Ranks, root: Path, model: str) -> None:
    parts = built(root, CASES[model].data, **CASES[model].read)
    ((first, second, followed),) = ranks.run(train_both, 1, model, str(root), str(parts))
    assert_same(second, first)
    assert followed == str(parts)


def train_on(parts: str) -> Any:
    result = ge.pipeline("deepwalk", partition.load(parts), parallel={"mode": "collective", "trainers": 2}, threads=1)
    return None if result.embeddings is None else (result.embeddings.node_ids.tolist(), result.config)


@pytest.mark.dist
def test_two_trainers_follow_the_opened_partition(ranks: Ranks, root: Path) -> None:
    parts = built(root, "ring.txt")
    (ids, config), nothing = ranks.run(train_on, 2, str(parts))
    assert sorted(ids) == sorted(NAMES.tolist())
    assert (config.dataset.name, config.parallel.partition) == (str(parts), str(parts))
    assert nothing is None


def test_one_process_trains_the_whole_graph(root: Path) -> None:
    options: dict[str, Any] = {"dim": 8, "num_walks": 2, "threads": 1, "evaluate": False}
    parts = built(root, "ring.txt")
    expected = ge.pipeline("deepwalk", root / "ring.txt", **options)
    found = ge.pipeline("deepwalk", parts, **options)
    assert_same(rows_of(found), rows_of(expected))
    assert found.config.parallel.partition is None


def test_typed_entities_follow_their_parts(root: Path) -> None:
    """Types of ogbl-biokg lie one after the other in a model of triples, and by name in a partition."""
    write_biokg(root)
    graph = load_dataset("ogbl-biokg", root).graph
    parts = built(root, "ogbl-biokg")
    parallel = {"mode": "collective", "trainers": 2, "partition": str(parts)}
    config = config_from({"model": "rotate", "dataset": str(parts), "parallel": parallel})
    flat = HeteroGraph({"_N": graph.total_nodes}, {("_N", "to", "_N"): (np.arange(3), np.arange(3))})
    own = partition.load(parts).assignment().parts
    expected = np.concatenate([own[ntype] for ntype in graph.num_nodes])
    np.testing.assert_array_equal(assigned(flat, config, graph).parts["_N"], expected)


def rotate_typed(parts: str, root: str) -> Any:
    options: dict[str, Any] = {**CASES["rotate"].options, "threads": 1, "evaluate": False}
    parallel = {"mode": "collective", "trainers": 1}
    alone = ge.pipeline("rotate", parts, parallel=parallel, **options)
    beside = ge.pipeline("rotate", "ogbl-biokg", root=root, parallel={**parallel, "partition": parts}, **options)
    return len(alone.embeddings.node_ids), len(beside.embeddings.node_ids)


@pytest.mark.dist
def test_triples_between_types_are_trained(ranks: Ranks, root: Path) -> None:
    write_biokg(root)
    assert ranks.run(rotate_typed, 1, str(built(root, "ogbl-biokg")), str(root)) == [(60, 60)]


def test_a_partition_is_read_as_its_input(root: Path) -> None:
    for data in ("ring.txt", "entities", "dbis", "ogbn-arxiv", "ogbn-mag", "ogbl-collab"):
        source = root / data if (root / data).exists() else data
        graph = read_source(source, root)
        parts = built(root, data)
        found = ge.read_graph(parts)
        assert found.edges.keys() == graph.edges.keys()
        for etype, ends in graph.edges.items():
            np.testing.assert_array_equal(found.edges[etype], ends)
        assert {t: ids.tolist() for t, ids in found.node_ids.items()} == {
            t: ids.tolist() for t, ids in graph.node_ids.items()
        }
        assert {t: sorted(own) for t, own in found.node_data.items()} == {
            t: sorted(own) for t, own in graph.node_data.items()
        }
        assert found.repeats == graph.repeats
        assert digest(ge.load_dataset(partition.load(parts))) == digest(ge.load_dataset(parts))


def test_a_partition_of_rdf_keeps_classes_and_split(root: Path) -> None:
    found, expected = (typed_nodes(load_dataset(path)) for path in (built(root, "entities"), root / "entities"))
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert {part: nodes.tolist() for part, nodes in found.split.items()} == {
        part: sorted(nodes.tolist()) for part, nodes in expected.split.items()
    }


def test_a_partition_keeps_that_its_graph_is_symmetric(root: Path) -> None:
    """With a reverse type for each type a symmetric graph would hold every edge four times."""
    for directed, expected in ((False, True), (True, False)):
        graph = ge.read_graph(root / "ring.txt", directed=directed)
        out = root / f"parts-{directed}"
        partition.build(graph, 2, "hash", out=out, report=False)
        assert ge.read_graph(out).symmetric is expected


def test_weights_of_repeated_edges_add_up_as_in_the_data_set(root: Path) -> None:
    """OGB lists a repeated collaboration once for each year; a partition kept the first weight in silence."""
    expected = plain_dataset(load_dataset("ogbl-collab", root)).graph
    parts = built(root, "ogbl-collab")
    again = partition.repartition(parts, 2, "range", out=root / "again", report=False)
    for source in (parts, again, ge.read_graph("ogbl-collab", root=root)):
        np.testing.assert_array_equal(plain_dataset(load_dataset(source)).graph.edge_weights(), expected.edge_weights())
    unweighted = load_dataset("ogbl-collab", root, weight=False)
    assert unweighted.duplicates == "first"
    assert plain_dataset(unweighted).graph.weights is None


def test_a_folder_named_like_a_data_set_of_ogb_is_a_partition(root: Path) -> None:
    out = root / "elsewhere" / "ogbl_ddi"
    partition.build(root / "ring.txt", 2, "hash", out=out, report=False)
    assert load_dataset(out).graph.total_nodes == 40


def test_without_id_maps_the_partition_is_in_its_own_order(root: Path) -> None:
    """As DGL writes it: the JSON and the parts alone."""
    parts = built(root, "ring.txt")
    own = partition.load(parts)
    (parts / "manifest.json").unlink()
    for kind in ("node", "edge"):
        assert not partition.load(parts).has_id_map(kind)
    config = following(
        config_from({"model": "deepwalk", "dataset": str(parts), "parallel": {"mode": "collective", "trainers": 2}})
    )
    found = assigned(ge.read_graph(parts), config)
    (places,) = found.parts.values()
    assert places.tolist() == np.repeat(np.arange(3), own.nodes.sizes[:, 0]).tolist()
    beside = config_from(
        {
            "model": "deepwalk",
            "dataset": str(root / "ring.txt"),
            "parallel": {"mode": "collective", "trainers": 2, "partition": str(parts)},
        }
    )
    with pytest.raises(ge.DataError, match="without original ids of its nodes"):
        assigned(ge.read_graph(root / "ring.txt"), beside)


def test_another_partition_or_method_beside_it_is_refused(root: Path) -> None:
    parts, other = built(root, "ring.txt"), built(root, "ring.txt", "range")
    section = {"mode": "collective", "trainers": 2}

    def config(**more: Any) -> Any:
        return config_from({"model": "deepwalk", "dataset": str(parts), "parallel": {**section, **more}})

    assert partition_of(config().dataset) == parts
    assert following(config()).parallel.partition == str(parts)
    assert following(config(partition=str(parts))).parallel.partition == str(parts)
    with pytest.raises(ge.ConfigError, match=r"range': the data set is a partition itself, .*; leave it out, or"):
        following(config(partition=str(other)))
    with pytest.raises(ge.ConfigError, match=r"method = 'metis' has no effect on the parts of .*; leave it out, or"):
        following(config(method="metis"))
    with pytest.raises(ge.ConfigError, match="the data set is a partition itself"):
        ge.pipeline("deepwalk", parts, parallel={**section, "partition": str(other)})


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "rgcn",
            {},
            r"has no labels; node .* needs labels and a split; .* is a partition: .*; give that data set as",
        ),
        ("mf", {}, r"holds out no edges for validation and test, by which mf is trained; .* is a partition"),
        ("transe", {}, r"has no relations; models of triples need them\. .* is a partition"),
        (
            "deepwalk",
            {"dataset.validation_edges": "trained on"},
            r"has no validation edges; leave it out\. .* is a parti",
        ),
        ("metapath2vec", {}, r"model\.metapath is missing"),
    ],
)
def test_what_a_partition_lacks_is_told_with_the_next_step(
    root: Path, model: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ge.GraphEmbError, match=message):
        ge.pipeline(model, built(root, "ring.txt"), **options)


def test_the_json_of_a_partition_is_the_partition(root: Path) -> None:
    """A JSON was read as a graph of networkx, whatever lay beside it."""
    parts = built(root, "ring.txt")
    place = partition.load(parts).config_path
    assert digest(ge.load_dataset(place)) == digest(replace(ge.load_dataset(parts), name=place.stem))
    section = {"mode": "collective", "trainers": 2}
    config = config_from({"model": "deepwalk", "dataset": str(place), "parallel": {**section, "partition": str(parts)}})
    assert partition.load(str(following(config).parallel.partition)).path == parts
    (parts / "report.json").write_text("{}")
    with pytest.raises(ge.DataError, match=r"report\.json: no partition of DGL"):
        ge.load_dataset(parts / "report.json")


def test_damage_is_one_line(root: Path) -> None:
    parts = built(root, "ring.txt")
    graph = parts / "part1" / "graph.dgl"
    graph.write_bytes(graph.read_bytes()[:5000])
    with pytest.raises(ge.DataError, match=r"graph\.dgl: cut short"):
        ge.load_dataset(parts)
    (parts / "part0" / "graph.dgl").unlink()
    with pytest.raises(ge.DataError, match=r"takes all 3 parts; parts \[0\] are not here"):
        ge.load_dataset(parts)


def test_the_commands_take_a_partition(root: Path, capfd: Any) -> None:
    parts, other, run = built(root, "ring.txt"), built(root, "ring.txt", "range"), root / "run"
    words = ["train", "deepwalk", "--dataset", str(parts), "--out", str(run), "--dim", "8", "--threads", "1"]
    assert main([*words, "--trainers", "2", "--partition", str(other)]) == 2
    assert "the data set is a partition itself" in capfd.readouterr().err
    assert main([*words, "--hold-out", "0.1", "model.num_walks=2"]) == 0
    assert main(["eval", "link", "--embeddings", str(run), "--json", str(root / "link.json")]) == 0
    assert set(json.loads((root / "link.json").read_text())["parts"]) == {"test"}
    capfd.readouterr()
    judged = ["--embeddings", str(run), "--dataset", str(parts)]
    assert main(["eval", "link", *judged]) == 2
    assert "has no held-out edges" in (said := capfd.readouterr().err)
    assert f"{parts} is a partition" in said
    assert "--partition" not in said
    assert main(["eval", "node-class", *judged]) == 2
    assert "has no labels; give --labels FILE" in capfd.readouterr().err
    (root / "labels.csv").write_text("".join(f"{name},{int(name[1:]) % 2}\n" for name in NAMES))
    words = ["eval", "node-class", "--embeddings", str(run), "--labels", str(root / "labels.csv"), "--ratios", "0.5"]
    assert main(words) == 0
    capfd.readouterr()
    assert main(["info", str(parts)]) == 0
    said = capfd.readouterr().out
    assert "partition parts" in said
    assert "hash" in said
    again = root / "again"
    assert main(["partition", "build", str(parts), "--parts", "2", "--method", "range", "--out", str(again)]) == 0
    assert partition.verify(again, ge.read_graph(root / "ring.txt")).sound


def test_classes_of_typed_nodes_are_judged_from_data_set_partition_and_run(root: Path, capfd: Any) -> None:
    """The evaluation took one edge type only, so neither RDF nor its partition."""
    parts, run = built(root, "entities"), root / "run"
    options: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 2, "num_seeds": 1, "threads": 1}
    ge.pipeline("rgcn", root / "entities", out=run, evaluate=False, **options)
    words = ["eval", "node-class", "--embeddings", str(run), "--ratios", "0.5", "--shuffles", "2"]
    capfd.readouterr()
    said = []
    for source in ([], ["--dataset", str(root / "entities")], ["--dataset", str(parts)]):
        assert main([*words, *source]) == 0
        said.append(capfd.readouterr().out)
    assert "50%" in said[0]
    assert said[1:] == said[:1] * 2
    assert main([*words, "--dataset", str(root / "ring.txt")]) == 2
    assert "has no labels; give --labels FILE" in capfd.readouterr().err
    assert main([*words, "--dataset", "ogbn-arxiv", "--root", str(root)]) == 2
    assert "ogbn-arxiv has 90 nodes; are they of one graph?" in capfd.readouterr().err


def test_a_build_knows_the_names_that_training_knows(root: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("GRAPH_EMB_DATA", str(root))
    (root / "numbers.csv").write_text("0,1\n1,2\n2,0\n")
    out = ["--parts", "2", "--method", "hash", "--out", str(root / "out"), "--overwrite", "--no-report"]
    for name in ("digits", "entities", "triples", "dbis", "ogbn-arxiv"):
        assert main(["partition", "build", name, *out]) == 0
    assert main(["partition", "build", "numbers.csv", "--memory", MEMORY, *out[:-1]]) == 0
    assert ge.read_graph(root / "out").total_edges == 3
    capfd.readouterr()
    for name in ("entities", "digits", "ogbn-arxiv", "triples"):
        assert main(["partition", "build", name, "--memory", MEMORY, *out[:-1]]) == 2
        assert f"memory= reads edge lists, and {name!r} is a data set of another kind" in capfd.readouterr().err
    assert main(["partition", "build", "ogbl-dii", *out]) == 2
    assert "did you mean 'ogbl-ddi'?" in capfd.readouterr().err


def test_a_partition_of_digits_has_their_labels(root: Path) -> None:
    (labels,) = load_dataset(built(root, "digits")).labels.values()
    (expected,) = load_dataset("digits").labels.values()
    np.testing.assert_array_equal(labels.to_single(), expected.to_single())


def test_an_evaluation_reads_labels_from_the_partition(root: Path, capfd: Any) -> None:
    parts, run = built(root, "ogbn-arxiv"), root / "run"
    ge.pipeline("deepwalk", parts, out=run, dim=8, num_walks=2, threads=1, evaluate=False)
    words = ["--embeddings", str(run), "--dataset", str(parts), "--ratios", "0.5", "--shuffles", "1"]
    assert main(["eval", "node-class", *words]) == 0
    assert "50" in capfd.readouterr().out
