"""Labels, splits and test edges of files: as good as a data set's own, in every model that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.readers import read_graph
from graph_emb.run.about import about
from tests.ogb_layout import write_mag
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

GNN: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 4, "eval_every": 2, "threads": 1}
WALKS: dict[str, Any] = {"dim": 8, "num_walks": 2, "walk_length": 10, "threads": 1}
QUICK: dict[str, dict[str, Any]] = {
    "sage": GNN,
    "rgcn": GNN,
    "deepwalk": WALKS,
    "line": {"dim": 8, "draws_per_edge": 2, "threads": 1},
    "transe": {"dim": 8, "epochs": 2, "threads": 1},
}
RING = np.stack([np.concatenate([np.arange(60)] * 2), np.concatenate([np.arange(1, 61), np.arange(3, 63)]) % 60], 1)
CLASSES = np.arange(60) // 20
PART = np.array(["train", "train", "valid", "test"])[np.arange(60) % 4]
PART[::9] = ""
ID = np.random.default_rng(0).permutation(60) * 5 + 3
"""The id of each node: integers with gaps, in another order than the nodes'."""


def judged(evaluation: Any) -> str:
    """An evaluation without what the clock says, and without the size of a regression on classes that no node has."""
    if isinstance(evaluation, dict):
        return str({k: judged(v) for k, v in evaluation.items() if k not in ("seconds_per_epoch", "num_parameters")})
    return str([judged(own) for own in evaluation]) if isinstance(evaluation, list) else repr(evaluation)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A graph with labels and a split of its own."""
    graph = Graph.from_edges(*RING.T, 60)
    masks = {f"{part}_idx": np.flatnonzero(part == PART) for part in ("train", "valid", "test")}
    place = tmp_path / "own.npz"
    np.savez(place, indptr=graph.indptr, indices=graph.indices, node_ids=ID, label=CLASSES, **masks)
    return place


@pytest.fixture
def bare(tmp_path: Path, own: Path) -> dict[str, str]:
    """The same graph without them, and the files that say them."""
    arrays = {name: array for name, array in np.load(own).items() if name in ("indptr", "indices", "node_ids")}
    np.savez(tmp_path / "bare.npz", **arrays)
    rows = [(ID[node], f"{CLASSES[node]}", PART[node]) for node in range(60)]
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{i},{c}\n" for i, c, _ in rows))
    (tmp_path / "split.tsv").write_text("id\tsplit\n" + "".join(f"{i}\t{part}\n" for i, _, part in rows))
    (tmp_path / "both.csv").write_text("id,label,split\n" + "".join(f"{i},{c},{part}\n" for i, c, part in rows))
    return {name: str(tmp_path / name) for name in ("bare.npz", "labels.csv", "split.tsv", "both.csv")}


@pytest.mark.parametrize("model", ["sage", "rgcn", "deepwalk", "line"])
def test_labels_of_files_give_the_numbers_of_the_data_sets_own(model: str, own: Path, bare: dict[str, str]) -> None:
    expected = ge.pipeline(model, own, **QUICK[model])
    two = {"labels": bare["labels.csv"], "split": bare["split.tsv"]}
    for files in (two, {"labels": Path(bare["both.csv"])}):
        found = ge.pipeline(model, bare["bare.npz"], **files, **QUICK[model])
        assert judged(found.metrics["evaluation"]) == judged(expected.metrics["evaluation"])
        np.testing.assert_array_equal(found.embeddings.weights, expected.embeddings.weights)  # type: ignore[union-attr]
    kind = "graph_network" if model in ("sage", "rgcn") else "split_accuracy"
    assert list(expected.metrics["evaluation"]) == [kind]


def test_a_split_alone_takes_the_place_of_the_data_sets_own(own: Path, bare: dict[str, str], tmp_path: Path) -> None:
    turned = {"train": "test", "test": "train", "valid": "valid", "": ""}
    other = "".join(f"{ID[node]},{turned[PART[node]]}\n" for node in range(60))
    (tmp_path / "other.csv").write_text("id,split\n" + other)
    found = ge.pipeline("sage", own, split=tmp_path / "other.csv", **GNN).dataset.task
    assert found.nodes["train"].tolist() == np.flatnonzero(PART == "test").tolist()
    assert found.labels.tolist() == CLASSES.tolist()
    shares = ge.pipeline("deepwalk", own, labels=bare["labels.csv"], **WALKS)  # labels without a split have none
    assert list(shares.metrics["evaluation"]) == ["node_classification"]
    with pytest.raises(ConfigError, match=r"split.tsv: bare has no labels; give dataset.labels, too"):
        ge.pipeline("sage", bare["bare.npz"], split=bare["split.tsv"])


def mag_files(root: Path) -> dict[str, Any]:
    (root / "venues.csv").write_text("paper,venue\n" + "".join(f"{n},{n % 3}\n" for n in range(60)))
    split = root / "ogbn_mag" / "split" / "time" / "paper"
    return {"labels": str(root / "venues.csv"), "split": str(split), "label_type": "paper"}


@pytest.mark.parametrize("model", ["rgcn", "metapath2vec"])
def test_labels_of_a_type_are_told_by_its_name(model: str, tmp_path: Path) -> None:
    write_mag(tmp_path)
    options = GNN if model == "rgcn" else {**WALKS, "metapath": "author-paper-author"}
    expected = ge.pipeline(model, "ogbn-mag", root=tmp_path, **options)
    files = mag_files(tmp_path)
    found = ge.pipeline(model, "ogbn-mag", root=tmp_path, **options, **files)
    assert judged(found.metrics["evaluation"]) == judged(expected.metrics["evaluation"])
    assert list(found.metrics["evaluation"]) == ["graph_network" if model == "rgcn" else "split_accuracy_paper"]
    with pytest.raises(ConfigError, match="label_type is missing; ogbn-mag has the node types author, field_of_study"):
        ge.pipeline(model, "ogbn-mag", root=tmp_path, **options, labels=files["labels"])
    with pytest.raises(ConfigError, match=r"unknown node type 'papr'; known: .* \(did you mean 'paper'\?\)"):
        ge.pipeline(model, "ogbn-mag", root=tmp_path, **options, **{**files, "label_type": "papr"})


def on_a_rank(model: str, data: str, options: dict[str, Any]) -> Any:
    parallel = {"mode": "collective", "trainers": 2, "hogwild": False}
    result = ge.pipeline(model, data, parallel=parallel, **QUICK[model], **options)
    return result.metrics.get("evaluation"), None if result.embeddings is None else result.embeddings.weights


@pytest.mark.dist
@pytest.mark.parametrize("model", ["sage", "deepwalk"])
def test_trainers_of_a_partition_take_the_same_files(
    ranks: Ranks, model: str, own: Path, bare: dict[str, str], tmp_path: Path
) -> None:
    parts = partition.build(read_graph(own), 2, "hash", out=tmp_path / "parts", report=False).path
    shared = {"partition": str(parts)}
    files = {"labels": bare["labels.csv"], "split": bare["split.tsv"]}
    (expected, rows), _ = ranks.run(on_a_rank, 2, model, str(own), shared)
    (found, own_rows), _ = ranks.run(on_a_rank, 2, model, bare["bare.npz"], {**shared, **files})
    assert judged(found) == judged(expected)
    np.testing.assert_array_equal(own_rows, rows)


@pytest.fixture
def edges(tmp_path: Path) -> dict[str, str]:
    """A graph, the same without every seventh edge, and these: text of ids, and of triples."""
    held = np.arange(len(RING)) % 7 == 0
    for name, kept in (("whole", held | True), ("less", ~held), ("held", held)):
        (tmp_path / f"{name}.csv").write_text("".join(f"n{a:02},n{b:02}\n" for a, b in RING[kept]))
        folder = tmp_path / name if name != "held" else tmp_path
        folder.mkdir(exist_ok=True)
        triples = "".join(f"n{a:02}\tr{(b - a) % 2}\tn{b:02}\n" for a, b in RING[kept])
        (folder / ("train.tsv" if name != "held" else "held.tsv")).write_text(triples)
    parts = "".join(f"n{b:02},n{a:02},{'val' if place % 2 else 'test'}\n" for place, (a, b) in enumerate(RING[held]))
    (tmp_path / "parts.csv").write_text(parts)
    return {p.name: str(p) for p in tmp_path.iterdir()}


@pytest.mark.parametrize("model", ["deepwalk", "line", "sage", "transe"])
def test_test_edges_never_reach_training(model: str, edges: dict[str, str]) -> None:
    """The graph holds them, in both directions; the rows are those of a training on the graph without them."""
    whole, less, held = [edges[name] for name in ("whole.csv", "less.csv", "parts.csv")]
    if model == "transe":
        whole, less, held = [edges[name] for name in ("whole", "less", "held.tsv")]
    found = ge.pipeline(model, whole, test_edges=held, **QUICK[model])
    expected = ge.pipeline(model, less, test_edges=held, **QUICK[model])
    np.testing.assert_array_equal(found.embeddings.weights, expected.embeddings.weights)  # type: ignore[union-attr]
    assert found.metrics["dataset"]["counts"]["held-out edges removed"] == 18
    assert "held-out edges removed" not in expected.metrics["dataset"].get("counts", {})
    assert judged(found.metrics["evaluation"]) == judged(expected.metrics["evaluation"]) != "{}"
    alone = ge.pipeline(model, whole, **{**QUICK[model], "evaluate": False}) if model != "sage" else None
    assert alone is None or not np.array_equal(alone.embeddings.weights, found.embeddings.weights)  # type: ignore[union-attr]


def test_links_without_a_validation_part_are_judged_after_the_last_epoch(edges: dict[str, str]) -> None:
    result = ge.pipeline("sage", edges["whole.csv"], test_edges=edges["held.csv"], **GNN)
    assert [line["epoch"] for line in result.history] == [4]
    assert set(result.metrics["evaluation"]["graph_network"]["summary"]["hits@20"]) == {"test"}
    with pytest.raises(ConfigError, match="patience=2 needs a validation part"):
        ge.pipeline("sage", edges["whole.csv"], test_edges=edges["held.csv"], patience=2, **GNN)
    with pytest.raises(
        ge.DataError, match=r"hold.* out no edges for validation and test, by which mf is trained; .* both"
    ):
        ge.pipeline("mf", edges["whole.csv"], test_edges=edges["held.csv"])


def test_rows_that_learn_with_the_predictor_take_both_parts(edges: dict[str, str]) -> None:
    options = {"dim": 4, "threads": 1, "evaluate": {"predictor": {"epochs": 2, "eval_every": 1, "hidden_dim": 4}}}
    found = [
        ge.pipeline("mf", edges[name], test_edges=edges["parts.csv"], **options) for name in ("whole.csv", "less.csv")
    ]
    np.testing.assert_array_equal(*(run.embeddings.weights for run in found))  # type: ignore[union-attr]
    assert judged(found[0].metrics["evaluation"]) == judged(found[1].metrics["evaluation"]) != "{}"


def test_a_partition_as_the_data_set_takes_them_by_original_ids(
    own: Path, bare: dict[str, str], tmp_path: Path
) -> None:
    """Nodes of a partition have other numbers than those of the graph."""
    parts = partition.build(read_graph(bare["bare.npz"]), 3, "hash", out=tmp_path / "parts", report=False).path
    held = "".join(f"{ID[a]},{ID[b]}\n" for a, b in RING[:5])
    (tmp_path / "held.csv").write_text(held)
    files = {"labels": bare["both.csv"], "test_edges": str(tmp_path / "held.csv")}
    found = ge.pipeline("deepwalk", parts, **files, **WALKS).dataset
    expected = ge.pipeline("deepwalk", own, test_edges=files["test_edges"], **WALKS).dataset

    def by_id(data: Any) -> tuple[Any, ...]:
        ids = data.graph.ids_of(np.arange(60))
        parts_by_id = {part: sorted(ids[nodes].tolist()) for part, nodes in data.node_split.items()}
        ends = {tuple(sorted(pair)) for pair in ids[data.graph.edges()].tolist()}
        return parts_by_id, dict(zip(ids.tolist(), data.labels.to_single().tolist(), strict=True)), ends

    assert by_id(found) == by_id(expected)


@pytest.mark.dist
@pytest.mark.parametrize("model", ["deepwalk", "sage", "transe"])
def test_test_edges_reach_no_trainer(ranks: Ranks, model: str, edges: dict[str, str], tmp_path: Path) -> None:
    graph = read_graph(edges["whole.csv"])
    parts = partition.build(graph, 2, "hash", out=tmp_path / "parts-of-all", report=False).path
    whole, less, held = [edges[name] for name in ("whole.csv", "less.csv", "parts.csv")]
    if model == "transe":
        whole, less, held = [edges[name] for name in ("whole", "less", "held.tsv")]
    options = {"partition": str(parts), "test_edges": held}
    (found, rows), _ = ranks.run(on_a_rank, 2, model, whole, options)
    (expected, same), _ = ranks.run(on_a_rank, 2, model, less, options)
    assert judged(found) == judged(expected)
    np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize(
    ("model", "data", "options", "words"),
    [
        ("rgcn", "whole.csv", {"test_edges": "held.csv"}, "'whole' has no relations; models of triples need them"),
        ("transe", "whole", {"labels": "l.csv"}, "dataset.labels = 'l.csv' has no effect on transe"),
        (
            "sage",
            "whole.csv",
            {"test_edges": "held.csv", "split": "s.csv"},
            "dataset.split = .* has no effect on links",
        ),
        ("deepwalk", "whole.csv", {"test_edges": "held.csv", "hold_out": 0.1}, "both hold out edges; give one"),
        ("deepwalk", "whole.csv", {"label_type": "x"}, "label_type='x' has no effect without labels or split"),
        ("deepwalk", "whole.csv", {"labels": "l.csv", "label_type": "x"}, "'x' has no effect on whole, which has one"),
        ("deepwalk", "whole.csv", {"labels": "many.csv"}, "many.csv: its split has no effect on nodes of several"),
        ("sage", "whole.csv", {"labels": "l.csv"}, "has no split of its nodes; .* name a file, dataset.split"),
        ("sage", "whole.csv", {}, "has no labels; .* name a file, dataset.labels"),
    ],
)
def test_what_has_no_effect_is_refused(
    model: str, data: str, options: dict[str, Any], words: str, edges: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "l.csv").write_text("n00,x\nn01,y\n")
    (tmp_path / "many.csv").write_text("id,label,split\nn00,x;y,train\nn01,x,test\n")
    paths = {key: str(tmp_path / value) if str(value).endswith(".csv") else value for key, value in options.items()}
    with pytest.raises(ge.GraphEmbError, match=words):
        ge.pipeline(model, edges[data], **(paths if model != "transe" else options))


def test_held_out_edges_of_the_data_set_stay_its_own(edges: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "whole" / "test.tsv").write_text("n00\tr0\tn05\n")
    with pytest.raises(ConfigError, match=r"held\.tsv: whole has test triples of its own; leave it out"):
        ge.pipeline("transe", edges["whole"], test_edges=edges["held.tsv"])


def test_the_command_takes_them_and_a_resumed_run_refuses_others(
    bare: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", "sage", "--dataset", bare["bare.npz"], "--labels", bare["labels.csv"], "--out", str(out)]
    tiny = ["--threads", "1", "epochs=2", "eval_every=1", "dim=4", "hidden_dim=4", "--checkpoint-every", "1"]
    assert main([*words, *tiny, "--split", bare["split.tsv"]]) == 0
    assert "node classes, at the best validation value" in capfd.readouterr().out
    config = (out / "config.yaml").read_text()
    assert f"split: {bare['split.tsv']}" in config
    other = str(tmp_path / "other.tsv")
    again = [*words, *tiny, "--split", other, "--resume", "--overwrite"]
    Path(other).write_text(Path(bare["split.tsv"]).read_text())
    assert main(again) == 0, "the same split in another place"
    header, *rows = Path(other).read_text().splitlines()
    Path(other).write_text("\n".join([header, *reversed(rows)]))
    capfd.readouterr()
    assert main(again) == 2
    assert "is of a run with dataset.split = 'content " in capfd.readouterr().err


def test_what_a_checkpoint_tells_names_the_files(own: Path) -> None:
    config = ge.pipeline("deepwalk", own, evaluate=False, **WALKS).config
    assert {"dataset.labels", "dataset.split", "dataset.label_type", "dataset.test_edges"} <= about(config).keys()
