"""OGB's data sets: both directions where OGB means both, masks, years, and held-out edges that stay out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from tests.compat.ogb.layout import write_arxiv, write_csv, write_ddi, write_graph, write_mag, write_split


def pairs_of(graph, etype=EDGE_TYPE) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges[etype]), strict=True))


def test_a_node_set_brings_features_labels_years_and_masks(tmp_path: Path) -> None:
    write_arxiv(tmp_path)
    graph = read_graph("ogbn-arxiv", root=tmp_path)
    data = {name: values.tolist() for name, values in graph.node_data[NODE_TYPE].items()}
    assert data == {
        "feat": [[0.5, -1.0], [1.5, 2.0], [0.0, 0.25], [3.0, 1.0]],
        "year": [2017, 2018, 2019, 2020],
        "label": [7, 0, 7, 39],
        "train_mask": [True, True, False, False],
        "val_mask": [False, False, True, False],
        "test_mask": [False, False, False, True],
    }
    assert pairs_of(graph) == [(0, 1), (2, 1), (3, 0)]
    assert graph.name == "ogbn_arxiv"


def test_a_link_set_has_training_edges_only_in_both_directions(tmp_path: Path) -> None:
    folder = write_ddi(tmp_path)
    graph = read_graph(folder)
    assert graph.num_nodes == {NODE_TYPE: 5}
    assert pairs_of(graph) == [(0, 1), (1, 2), (2, 3), (3, 4), (1, 0), (2, 1), (3, 2), (4, 3)]
    assert graph.counts == {"valid edges left out": 1, "test edges left out": 1, "reverse edges added": 4}
    assert read_graph("ogbl_ddi", root=tmp_path, directed=True).total_edges == 4


def test_weights_and_years_follow_their_edges(tmp_path: Path) -> None:
    folder = tmp_path / "ogbl_collab"
    write_graph(folder, [[0, 1]], num_nodes=3)
    write_csv(folder / "raw" / "node-feat.csv.gz", [[0.5], [1.5], [2.5]])
    write_csv(folder / "raw" / "edge_weight.csv.gz", [[1]])
    write_csv(folder / "raw" / "edge_year.csv.gz", [[2000]])
    for part in ("train", "valid", "test"):
        edges = {"edge": np.array([[0, 1], [1, 0], [1, 2]]), "weight": np.array([3, 4, 5]), "year": np.array([7, 8, 9])}
        write_split(folder / "split" / "time" / f"{part}.pt", edges)
    graph = read_graph("ogbl-collab", root=tmp_path)
    # OGB adds the reverse of every stored edge, also where an edge of another year runs the other way
    assert pairs_of(graph) == [(0, 1), (1, 0), (1, 2), (1, 0), (0, 1), (2, 1)]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [3, 4, 5, 3, 4, 5]
    assert graph.edge_data[EDGE_TYPE]["year"].tolist() == [7, 8, 9, 7, 8, 9]
    assert graph.node_data[NODE_TYPE]["feat"].tolist() == [[0.5], [1.5], [2.5]]
    assert read_graph("ogbl-collab", root=tmp_path, duplicates="sum").edge_data[EDGE_TYPE]["weight"].tolist() == [
        7,
        7,
        5,
        5,
    ]


def test_a_typed_node_set_keeps_its_types(tmp_path: Path) -> None:
    write_mag(tmp_path)
    graph = read_graph("ogbn-mag", root=tmp_path)
    assert graph.num_nodes == {"author": 2, "paper": 3}
    assert pairs_of(graph, ("author", "writes", "paper")) == [(0, 2), (1, 0)]
    assert graph.edge_data["author", "writes", "paper"]["reltype"].tolist() == [1, 1]
    paper = graph.node_data["paper"]
    assert (paper["year"].tolist(), paper["label"].tolist()) == ([2010, 2011, 2012], [4, 5, 6])
    assert {"train_mask", "val_mask", "test_mask", "feat"} <= set(paper)
    assert "author" not in graph.node_data


def write_wikikg(root: Path) -> None:
    folder = root / "ogbl_wikikg2"
    write_graph(folder, [[0, 1]], num_nodes=4)
    write_csv(folder / "raw" / "edge_reltype.csv.gz", [[0]])
    for part, triples in {
        "train": [[0, 1, 2], [2, 0, 3], [1, 1, 1]],
        "valid": [[0, 2, 1]],
        "test": [[3, 1, 0]],
    }.items():
        head, relation, tail = np.array(triples).T
        write_split(folder / "split" / "time" / f"{part}.pt", {"head": head, "relation": relation, "tail": tail})


def test_a_knowledge_graph_has_relations_as_types_or_as_a_column(tmp_path: Path) -> None:
    write_wikikg(tmp_path)
    typed = read_graph("ogbl-wikikg2", root=tmp_path)
    assert typed.etypes == [(NODE_TYPE, "relation_0", NODE_TYPE), (NODE_TYPE, "relation_1", NODE_TYPE)]
    assert pairs_of(typed, typed.etypes[1]) == [(0, 2), (1, 1)]
    left = {"held-out triples of untrained relations": 1}
    assert typed.counts == {"valid edges left out": 1, "test edges left out": 1, **left}
    column = read_graph("ogbl-wikikg2", root=tmp_path, relations="column")
    assert column.edge_data[EDGE_TYPE]["relation"].tolist() == [1, 0, 1]
    assert column.relation_names.tolist() == ["relation_0", "relation_1", "relation_2"]
    assert column.num_nodes == {NODE_TYPE: 4}


def test_a_typed_link_set_puts_training_triples_into_their_types(tmp_path: Path) -> None:
    folder = tmp_path / "ogbl_biokg"
    raw = folder / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [["drug", "protein"], [2, 3]])
    triplets = {("drug", "drug-protein", "protein"): 1, ("protein", "protein-protein", "protein"): 0}
    write_csv(raw / "triplet-type-list.csv.gz", triplets)
    for triplet, number in triplets.items():
        place = raw / "relations" / "___".join(triplet)
        write_csv(place / "edge.csv.gz", [[0, 0]])
        write_csv(place / "num-edge-list.csv.gz", [[1]])
        write_csv(place / "edge_reltype.csv.gz", [[number]])
    (folder / "RELEASE_v1.txt").write_text("# Release note\n")
    columns = {
        "head_type": ["drug", "protein", "drug"],
        "head": np.array([1, 0, 0]),
        "relation": np.array([1, 0, 1]),
        "tail_type": ["protein"] * 3,
        "tail": np.array([2, 2, 1]),
    }
    for part in ("train", "valid", "test"):
        write_split(folder / "split" / "random" / f"{part}.pt", columns)
    graph = read_graph("ogbl-biokg", root=tmp_path)
    assert graph.num_nodes == {"drug": 2, "protein": 3}
    assert pairs_of(graph, ("drug", "drug-protein", "protein")) == [(1, 2), (0, 1)]
    assert pairs_of(graph, ("protein", "protein-protein", "protein")) == [(0, 2)]
    assert graph.counts == {"valid edges left out": 3, "test edges left out": 3}


def test_what_is_missing_or_means_nothing_is_told(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    with pytest.raises(DataError, match="'ogbl-ddi' needs root=, the folder that holds ogbl_ddi/"):
        read_graph("ogbl-ddi")
    with pytest.raises(ConfigError, match="relations='column' is for ogbl-wikikg2"):
        read_graph("ogbl-ddi", root=tmp_path, relations="column")
    with pytest.raises(ConfigError, match=r"ogbl-dii.*did you mean 'ogbl-ddi'"):
        read_graph("ogbl-dii", root=tmp_path)
    (tmp_path / "ogbl_ddi" / "raw" / "edge.csv.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(DataError, match=r"edge.csv.gz: cannot be read"):
        read_graph("ogbl-ddi", root=tmp_path)


@pytest.mark.data
def test_the_real_sets_have_their_published_counts(shared_data: Path) -> None:
    ddi = read_graph("ogbl-ddi", root=shared_data)
    assert (ddi.total_nodes, ddi.total_edges) == (4267, 2 * 1067911)
    arxiv = read_graph("ogbn-arxiv", root=shared_data)
    assert (arxiv.total_nodes, arxiv.total_edges) == (169343, 1166243)
    masks = [int(arxiv.node_data[NODE_TYPE][name].sum()) for name in ("train_mask", "val_mask", "test_mask")]
    assert masks == [90941, 29799, 48603]
