"""Data sets by name and by path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, ShapeError
from graph_emb.graph import Graph, Labels
from graph_emb.graph.datasets import Dataset, available, load
from tests import ogb_layout
from tests.compat.ogb import layout


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPH_EMB_DATA", raising=False)


def write_folder(folder: Path) -> Path:
    """Nodes 0-1-2, 3 alone; each edge once."""
    folder.mkdir()
    np.savez(
        folder / "graph.npz",
        indptr=[0, 1, 2, 2, 2],
        indices=[1, 2],
        label=np.array([0, 1, -1, 1], dtype=np.int8),
        train_idx=[0],
        test_idx=[3, 1],
    )
    return folder


def test_digits_is_the_symmetric_ten_nearest_neighbour_graph() -> None:
    data = load("digits")
    assert data.graph.num_nodes == 1797
    assert data.graph.num_edges == 12340
    assert not data.graph.directed
    assert data.graph.degrees().min() >= 10
    assert data.graph.num_self_loops == 0
    assert data.labels.class_counts().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert load("digits", directed=True).graph.degrees().tolist() == [10] * 1797


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_folder_gives_graph_labels_and_splits(by: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    data = load("mine", tmp_path) if by == "name" else load(folder)
    assert data.name == "mine"
    assert data.graph.edges().tolist() == [[0, 1], [1, 2]]
    assert not data.graph.directed
    assert data.graph.degrees().tolist() == [1, 2, 1, 0]
    assert data.labels.to_single().tolist() == [0, 1, -1, 1]
    assert {part: nodes.tolist() for part, nodes in data.node_split.items()} == {"train": [0], "test": [3, 1]}
    assert data.link_split is None


def test_the_catalogue_knows_which_folders_are_directed(tmp_path: Path) -> None:
    write_folder(tmp_path / "soc_epinions1")
    write_folder(tmp_path / "cora")
    assert load("soc-epinions1", tmp_path).graph.directed
    assert load("soc_epinions1", tmp_path, directed=False).graph.num_arcs == 4
    assert not load("cora", tmp_path).graph.directed


def test_the_environment_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "cora")
    monkeypatch.setenv("GRAPH_EMB_DATA", str(tmp_path))
    assert load("cora").graph.num_edges == 2


def test_a_file_is_read_with_the_options_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "my.graph.csv.gz"
    import gzip

    path.write_bytes(gzip.compress(b"a;b;2\nb;c;3\n"))
    data = load(path, separator=";", weights="ignore", directed=True)
    assert data.name == "my.graph.csv"[:-4]
    assert data.graph.directed
    assert data.graph.weights is None
    assert data.graph.node_ids.tolist() == ["a", "b", "c"]


def test_a_file_below_the_root_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n")
    assert load("edges.txt", tmp_path).name == "edges"
    assert load(tmp_path / "edges.txt", format="tsv", separator=" ").graph.num_edges == 1


def test_a_path_that_exists_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "digits")
    assert load("digits").graph.num_nodes == 4


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("digitz", {}, ConfigError, "did you mean 'digits'"),
        ("blogcatalogue", {}, ConfigError, "did you mean 'blogcatalog'"),
        ("ogbl-dd", {"root": "."}, ConfigError, "did you mean 'ogbl-ddi'"),
        ("ogbl-ddi", {}, DataError, "'ogbl-ddi' needs root="),
        ("cora", {}, DataError, "'cora' needs root=, the folder that holds cora/"),
        ("cora", {"root": "nowhere"}, DataError, "no such file; root= is the folder that holds cora/"),
        ("ogbl-wikikg2", {"root": "."}, DataError, "knowledge graph"),
        ("nothing.csv", {}, DataError, "nothing.csv: no such file"),
        ("some/where", {}, DataError, "no such file"),
        ("digits", {"download": True}, ConfigError, "only OGB's data sets are downloaded"),
        ("digits", {"header": True}, ConfigError, "header is an option of files and means nothing to 'digits'"),
        ("digits", {"format": "csv"}, ConfigError, "format is an option of files"),
        ("digits", {"wieghts": "auto"}, ConfigError, "did you mean 'weights'"),
        ("digits", {"duplicates": "last"}, ConfigError, "unknown duplicates policy"),
        ("digits", {"weights": "require"}, DataError, "digits: has no weights"),
        ("\0", {}, ConfigError, "unknown data set"),
        ("x" * 5000, {}, ConfigError, "unknown data set"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_a_next_step(
    name: str, options: dict, error: type, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words) as caught:
        load(name, **options)
    assert isinstance(caught.value, GraphEmbError)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"folder without graph\.npz"):
        load(tmp_path)


def test_a_present_file_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there already"):
        load(write_folder(tmp_path / "cora"), download=True)


def test_labels_of_another_graph_are_refused() -> None:
    with pytest.raises(ShapeError, match="labels of 2 nodes for a graph of 3"):
        Dataset("x", Graph.from_edges([0], [1], num_nodes=3), Labels.from_single([0, 1]))


def test_available_names_only_what_load_reads() -> None:
    names = available()
    assert {"digits", "blogcatalog", "cora", "ogbl-ddi", "ogbn-arxiv"} <= set(names)
    assert not {"ogbl-wikikg2", "ogbl-biokg", "ogbn-mag"} & set(names)


def test_repeated_ogb_edges_add_their_weights_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ogbl-collab lists a collaboration once for each year, with its count; ogbl-citation2 has no ``edge`` table."""
    from types import SimpleNamespace

    from graph_emb.compat import ogb

    data = SimpleNamespace(
        num_nodes=4,
        edge_index=np.array([[0, 1, 0], [1, 2, 1]]),
        extra={"edge_weight": np.array([[2], [5], [3]])},
        split={"train": {"source_node": np.array([0]), "target_node": np.array([1])}, "valid": {}, "test": {}},
        metadata=SimpleNamespace(folder="ogbl_collab"),
        is_directed=False,
        node_feat=None,
        edge_feat=None,
    )
    monkeypatch.setattr(ogb, "read_link_dataset", lambda name, root, download: data)
    loaded = load("ogbl-collab", tmp_path)
    assert loaded.graph.edges().tolist() == [[0, 1], [1, 2]]
    assert loaded.graph.edge_weights().tolist() == [5.0, 5.0]
    assert loaded.graph.num_nodes == 4
    assert loaded.link_split["train"]["edge"].tolist() == [[0, 1]]
    assert load("ogbl_collab", tmp_path, duplicates="first").graph.edge_weights().tolist() == [2.0, 5.0]
    assert load("ogbl_collab", tmp_path, weights="ignore").graph.edge_weights().tolist() == [2.0, 1.0]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "directed", "assignments"),
    [
        ("ogbl-ddi", 4267, 1067911, False, None),
        ("ogbn-arxiv", 169343, 1166243, True, 169343),
        ("blogcatalog", 10312, 333983, False, 14476),
        ("cora", 2708, 5278, False, 2708),
        ("soc_epinions1", 75888, 508837, True, None),
        ("web_notredame", 325729, 1497134, True, None),
        ("cnr2000", 325557, 3216152, True, None),
    ],
)
def test_real_sets_have_their_published_counts(
    shared_data: Path, name: str, nodes: int, edges: int, directed: bool, assignments: int | None
) -> None:
    data = load(name, shared_data)
    graph = data.graph
    assert (graph.num_nodes, graph.num_edges, graph.directed) == (nodes, edges, directed)
    assert (None if data.labels is None else len(data.labels.indices)) == assignments
    by_path = load(shared_data / name.replace("-", "_"))
    assert np.array_equal(by_path.graph.indices, graph.indices)


@pytest.mark.data
def test_the_graph_of_a_link_set_has_no_held_out_edge(shared_data: Path) -> None:
    data = load("ogbl-ddi", shared_data)
    for part in ("valid", "test"):
        edges = data.link_split[part]["edge"]
        assert edges.shape == (133489, 2)
        assert not data.graph.has_edges(edges[:, 0], edges[:, 1]).any()
    train = data.link_split["train"]["edge"]
    assert data.graph.has_edges(train[:, 1], train[:, 0]).all()


@pytest.mark.data
def test_ogbn_arxiv_has_its_split_and_classes(shared_data: Path) -> None:
    data = load("ogbn-arxiv", shared_data)
    assert {part: len(nodes) for part, nodes in data.node_split.items()} == {
        "train": 90941,
        "valid": 29799,
        "test": 48603,
    }
    assert data.labels.num_classes == 40
    assert load("ogbn-arxiv", shared_data, directed=False).graph.num_edges == 1157799


@pytest.mark.data
@pytest.mark.parametrize("name", ["fb15k237", "aifb", "dbis"])
def test_graphs_with_relations_are_refused_in_one_line(shared_data: Path, name: str) -> None:
    with pytest.raises(GraphEmbError):
        load(name, shared_data)


def test_node_features_come_along(tmp_path: Path) -> None:
    ogb_layout.write_ppa(tmp_path)
    features = load("ogbl-ppa", tmp_path).features
    assert features is not None
    assert features.shape == (40, 58)
    assert (features.argmax(axis=1) == np.arange(40)).all()
    ogb_layout.write_ddi(tmp_path)
    assert load("ogbl-ddi", tmp_path).features is None


def test_edge_features_are_averaged_at_nodes_without_any(tmp_path: Path) -> None:
    """ogbn-proteins: node 0 has two edges, node 1 one, node 3 none."""
    folder = tmp_path / "ogbn_proteins"
    layout.write_graph(folder, [[0, 1], [2, 0]], num_nodes=4)
    layout.write_csv(folder / "raw" / "species.csv.gz", [[3702]] * 4)
    layout.write_csv(folder / "raw" / "node-label.csv.gz", [[0] * 112, [1] * 112] * 2)
    layout.write_csv(folder / "raw" / "edge-feat.csv.gz", [[0.25] * 8, [0.75] * 8])
    for part, node in {"train": 0, "valid": 1, "test": 2}.items():
        layout.write_csv(folder / "split" / "species" / f"{part}.csv.gz", [[node]])
    features = load("ogbn-proteins", tmp_path).features
    assert features is not None
    assert features[:, 5].tolist() == [0.5, 0.25, 0.75, 0.0]
