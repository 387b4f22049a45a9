"""A partition keeps what its data set is judged by: trained and judged alone, it gives the scores of the data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import knowledge_graph
from tests.compat.ogb.layout import write_csv
from tests.ogb_layout import WRITERS
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

PREDICTOR = {"epochs": 3, "eval_every": 1, "hidden_dim": 8, "batch_size": 64}
WALKS = {"dim": 8, "num_walks": 2, "threads": 1}
TRIPLES = {"dim": 8, "epochs": 2, "batch_size": 32, "chunk_size": 8, "num_negatives": 4, "threads": 1}
COLUMN = {"relations": "column"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Links with pairs and with targets as negatives, and triples with and without given ones."""
    for name in ("ogbl-ddi", "ogbl-citation2", "ogbl-vessel", "ogbl-wikikg2", "ogbl-biokg"):
        WRITERS[name](tmp_path)
    triples = [f"n{i}\tr{step}\tn{(i + step) % 20}\n" for i in range(20) for step in (3, 1, 7)]
    triples = [triples[place] for place in np.random.default_rng(0).permutation(60)]
    (tmp_path / "facts").mkdir()
    for part, cut in (("train", slice(44)), ("valid", slice(44, 52)), ("test", slice(52, 60))):
        (tmp_path / "facts" / f"{part}.txt").write_text("".join(triples[cut]))
    return tmp_path


def built(root: Path, data: str, **read: Any) -> Path:
    place = root / data
    source, options = (str(place), read) if place.exists() else (data, {**read, "root": str(root)})
    return partition.build(
        source, 3, "hash", out=root / f"parts-{data}", report=False, reader_options=options, overwrite=True
    ).path


def scores_of(run: Any) -> Any:
    """Of every finding, without times; None of a rank that judges nothing."""
    found = run.metrics.get("evaluation", {})
    timeless = {name: {key: own[key] for key in own if key != "seconds_per_epoch"} for name, own in found.items()}
    return timeless or None


def scores(model: str, data: Any, root: Path, **options: Any) -> Any:
    return scores_of(ge.pipeline(model, data, root=root, **options))


@pytest.mark.parametrize("data", ["ogbl-ddi", "ogbl-citation2", "ogbl-vessel"])
@pytest.mark.parametrize(("model", "judge"), [("deepwalk", {}), ("mf", {"predictor": PREDICTOR})])
def test_links_are_judged_as_those_of_the_data_set(root: Path, data: str, model: str, judge: Any) -> None:
    options = {**(WALKS if model == "deepwalk" else {"dim": 8, "threads": 1}), "evaluate": judge}
    expected = scores(model, data, root, **options)
    assert expected
    assert scores(model, built(root, data), root, **options) == expected


@pytest.mark.parametrize("data", ["ogbl-wikikg2", "facts"])
def test_triples_are_judged_as_those_of_the_data_set(root: Path, data: str) -> None:
    source = root / data if (root / data).exists() else data
    expected = scores("transe", source, root, **TRIPLES)
    assert expected.keys() == {"triples_valid", "triples_test"}
    assert scores("transe", built(root, data, **COLUMN), root, **TRIPLES) == expected


def named(graph: Any, part: str) -> list[tuple[Any, ...]]:
    """Triples by the names of their relations, where they have some, and by number."""
    relations = graph.relations or range(graph.num_relations)
    return [(head, relations[relation], tail) for head, relation, tail in graph.parts[part].tolist()]


def test_relations_that_are_edge_types_keep_their_triples(root: Path) -> None:
    found = knowledge_graph(load_dataset(built(root, "facts")))
    expected = knowledge_graph(load_dataset(root / "facts"))
    assert found.entities == expected.entities
    assert sorted(named(found, "train")) == sorted(named(expected, "train"))
    for part in ("valid", "test"):
        assert named(found, part) == named(expected, part)


def test_typed_entities_keep_their_negatives(root: Path) -> None:
    found = knowledge_graph(load_dataset(built(root, "ogbl-biokg")))
    expected = load_dataset("ogbl-biokg", root).triples
    assert expected is not None
    assert found.entity_types == expected.entity_types
    for part in ("valid", "test"):
        np.testing.assert_array_equal(found.parts[part], expected.parts[part])
        for side in ("heads", "tails"):
            own = getattr(found.negatives[part], side)
            np.testing.assert_array_equal(own, getattr(expected.negatives[part], side))


def judged_by_trainers(root: str, parts: str, judge: Any) -> Any:
    section = {"mode": "collective", "trainers": 2, "hogwild": False}
    found = []
    for source, more in (("ogbl-ddi", {"partition": parts}), (parts, {})):
        run = ge.pipeline("deepwalk", source, root=root, parallel={**section, **more}, **WALKS, evaluate=judge)
        found.append(scores_of(run))
    return found


@pytest.mark.dist
@pytest.mark.parametrize("judge", [{}, {"predictor": PREDICTOR}], ids=["dot", "predictor"])
def test_trainers_that_follow_the_parts_give_the_same_scores(ranks: Ranks, root: Path, judge: Any) -> None:
    """The first reads its own parts alone, unless the training edges are wanted to judge with."""
    (beside, alone), _ = ranks.run(judged_by_trainers, 2, str(root), str(built(root, "ogbl-ddi")), judge)
    assert beside
    assert alone == beside


def test_a_split_keeps_its_order_and_labels_their_classes(root: Path) -> None:
    WRITERS["ogbn-arxiv"](root)
    place = root / "ogbn_arxiv" / "split" / "time" / "train.csv.gz"
    order = [node for node in range(90) if node % 3 != 2][::-1]
    write_csv(place, np.array(order).reshape(-1, 1))
    found, expected = (load_dataset(source, root) for source in (built(root, "ogbn-arxiv"), "ogbn-arxiv"))
    ((ntype, split),) = found.node_split.items()
    assert {part: own.tolist() for part, own in split.items()} == {
        part: own.tolist() for part, own in expected.node_split[ntype].items()
    }
    assert split["train"].tolist() == order
    assert found.labels[ntype].num_classes == expected.labels[ntype].num_classes == 40


def test_another_partition_of_a_partition_keeps_what_is_held_out(root: Path) -> None:
    parts = built(root, "ogbl-ddi")
    again = partition.repartition(parts, 2, "range", out=root / "again", report=False).path
    expected = load_dataset("ogbl-ddi", root).link_split
    assert expected is not None
    for place in (parts, again):
        found = load_dataset(place).link_split
        assert found is not None
        for part, tables in expected.items():
            for name in ("edge", *(("edge_neg",) if part != "train" else ())):
                np.testing.assert_array_equal(found[part][name], tables[name])


def test_the_file_is_listed_verified_and_small(root: Path) -> None:
    parts = built(root, "ogbl-ddi")
    manifest = json.loads((parts / "manifest.json").read_text())
    assert (manifest["version"], manifest["held_out"]) == (2, "held_out.dgl")
    assert manifest["files"]["held_out.dgl"]["bytes"] < 7000, "training edges are those of the parts"
    graph = ge.read_graph("ogbl-ddi", root=root)
    assert partition.verify(parts, graph).sound
    assert graph.held_out is not None
    other = {**graph.held_out.links, "test": {"edge": np.zeros((1, 2), np.int64)}}
    found = partition.verify(parts, replace(graph, held_out=replace(graph.held_out, links=other)))
    assert "what is held out differs" in found.problems[0]
    (parts / "held_out.dgl").write_bytes((parts / "held_out.dgl").read_bytes()[:300])
    assert "held_out.dgl" in partition.verify(parts).problems[0]
    with pytest.raises(ge.DataError, match=r"held_out\.dgl"):
        load_dataset(parts)


def test_a_partition_of_before_reads_without(root: Path) -> None:
    parts = built(root, "ogbl-ddi")
    manifest = json.loads((parts / "manifest.json").read_text())
    del manifest["held_out"], manifest["files"]["held_out.dgl"]
    (parts / "held_out.dgl").unlink()
    (parts / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    assert load_dataset(parts).link_split is None
    assert partition.verify(parts).sound


def test_an_evaluation_takes_held_out_edges_from_the_partition(root: Path, capfd: Any) -> None:
    parts, run = built(root, "ogbl-ddi"), root / "run"
    ge.pipeline("deepwalk", parts, out=run, evaluate=False, **WALKS)
    said = []
    for source in (["--dataset", str(parts)], ["--dataset", "ogbl-ddi", "--root", str(root)]):
        assert main(["eval", "link", "--embeddings", str(run), *source]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
