"""Data sets by name, by path and from memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, ShapeError
from graph_emb.graph import Graph, Labels, read_graph
from graph_emb.graph.datasets import AREA_VENUES, Dataset, available, find_dataset, load_dataset, read_source
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph
from graph_emb.graph.views import PlainDataset, knowledge_graph, plain_dataset, typed_nodes
from tests import ogb_layout
from tests.compat.ogb import layout

VENUES = [venue for venues in AREA_VENUES.values() for venue in venues]
TRIPLES = {"train": np.array([[0, 0, 1], [2, 1, 0]], np.int32), "valid": np.array([[1, 0, 2]], np.int32)}


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPH_EMB_DATA", raising=False)


def load(*place: str | Path, symmetrize: bool = False, **options: object) -> PlainDataset:
    """The plain view of a data set, of the edges that it holds."""
    return plain_dataset(load_dataset(*place, **options), symmetrize=symmetrize)


def load_triples(*place: str | Path, **options: object) -> KnowledgeGraph:
    return knowledge_graph(load_dataset(*place, **options))


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
    assert {part: nodes.tolist() for part, nodes in data.node_split.items()} == {"train": [0], "test": [1, 3]}
    assert data.link_split is None


def test_the_environment_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "cora")
    monkeypatch.setenv("GRAPH_EMB_DATA", str(tmp_path))
    assert load("cora").graph.num_edges == 2


def test_a_file_is_read_with_the_options_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "my.graph.csv.gz"
    path.write_bytes(gzip.compress(b"a;b;2\nb;c;3\n"))
    data = load(path, separator=";", weight=False)
    assert data.name == "my.graph.csv"[:-4]
    assert data.graph.directed
    assert data.graph.weights is None
    assert data.graph.node_ids.tolist() == ["a", "b", "c"]


def test_a_file_below_the_root_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n")
    assert load("edges.txt", tmp_path).name == "edges"
    assert load(tmp_path / "edges.txt", format="edges", separator=" ").graph.num_edges == 1
    assert find_dataset("edges.txt", tmp_path) == tmp_path / "edges.txt"
    assert find_dataset("nowhere", tmp_path) is None


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
        ("dbis", {"root": "nowhere"}, DataError, "no such file; root= is the folder that holds dbis/"),
        ("nothing.csv", {}, DataError, "nothing.csv: no such file"),
        ("some/where", {}, DataError, "no such file"),
        ("digits", {"download": True}, ConfigError, "only OGB's data sets are downloaded"),
        ("digits", {"header": True}, ConfigError, "unknown option of format 'scipy' 'header'"),
        ("digits", {"format": "csv"}, ConfigError, "format is an option of files"),
        ("digits", {"self_lops": "drop"}, ConfigError, "unknown option"),
        ("digits", {"duplicates": "last"}, ConfigError, "unknown duplicates policy"),
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
    with pytest.raises(ConfigError, match="only OGB's data sets are downloaded"):
        load(write_folder(tmp_path / "cora"), download=True)


def test_labels_of_another_graph_are_refused() -> None:
    graph = read_graph(Graph.from_edges([0], [1], num_nodes=3))
    with pytest.raises(ShapeError, match="labels of 2 nodes for a graph of 3"):
        Dataset("x", graph, {NODE_TYPE: Labels.from_single([0, 1])})


def test_available_names_what_load_dataset_reads() -> None:
    assert {"digits", "dbis", "blogcatalog", "cora", "ogbl-ddi", "ogbn-arxiv", "ogbl-biokg", "ogbn-mag"} <= set(
        available()
    )


def test_a_graph_in_memory_is_a_data_set() -> None:
    matrix = sparse.csr_array(np.array([[0, 2], [0, 0]], dtype=np.float32))
    data = load_dataset(matrix)
    assert data.graph.total_edges == 1
    assert load_dataset(data) is data
    assert plain_dataset(data).graph.weights.tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match="root= and download= mean nothing to a csr_array in memory"):
        load_dataset(matrix, "data")
    with pytest.raises(ConfigError, match="self_loops= means nothing to a Dataset"):
        load_dataset(data, self_loops="drop")
    with pytest.raises(ConfigError, match="is no graph"):
        load_dataset(3)


def test_columns_of_node_data_become_labels_split_and_features() -> None:
    graph = read_graph(Graph.from_edges([0, 1], [1, 2]))
    graph.node_data[NODE_TYPE] = {
        "label": np.array([1, -1, 0]), "feat": np.ones((3, 2)), "val_mask": np.array([False, True, True]),
    }  # fmt: skip
    data = load_dataset(graph)
    assert data.labels[NODE_TYPE].to_single().tolist() == [1, -1, 0]
    assert data.node_split[NODE_TYPE]["valid"].tolist() == [1, 2]
    assert data.features[NODE_TYPE].shape == (3, 2)


def test_repeated_ogb_edges_add_their_weights_up(tmp_path: Path) -> None:
    """ogbl-collab lists a collaboration once for each year, with its count."""
    folder = tmp_path / "ogbl_collab"
    layout.write_graph(folder, [[0, 1], [1, 2], [0, 1]], num_nodes=4)
    layout.write_csv(folder / "raw" / "node-feat.csv.gz", [[0.5]] * 4)
    for name, values in {"edge_weight": [[2], [5], [3]], "edge_year": [[2000]] * 3}.items():
        layout.write_csv(folder / "raw" / f"{name}.csv.gz", values)
    tables = {"edge": np.array([[0, 1], [1, 2], [0, 1]]), "weight": np.array([2, 5, 3]), "year": np.array([2000] * 3)}
    for part in ("train", "valid", "test"):
        layout.write_split(folder / "split" / "time" / f"{part}.pt", tables)
    data = load_dataset("ogbl-collab", tmp_path)
    loaded = plain_dataset(data)
    assert loaded.graph.edges().tolist() == [[0, 1], [1, 2]]
    assert loaded.graph.edge_weights().tolist() == [5.0, 5.0]
    assert loaded.graph.num_nodes == 4
    assert loaded.link_split["train"]["edge"].tolist() == tables["edge"].tolist()
    assert plain_dataset(data, duplicates="first").graph.edge_weights().tolist() == [2.0, 5.0]


def test_sources_and_targets_become_pairs(tmp_path: Path) -> None:
    ogb_layout.write_citation2(tmp_path)
    data = load("ogbl-citation2", tmp_path)
    train = data.link_split["train"]
    assert train["edge"].tolist() == np.stack([train["source_node"], train["target_node"]], axis=1).tolist()
    assert data.graph.directed


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
    assert load("ogbn-arxiv", shared_data, symmetrize=True).graph.num_edges == 1157799


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


def write_arrays(folder: Path, names: bool = True) -> Path:
    folder.mkdir()
    np.savez(folder / "triples.npz", **TRIPLES)
    if names:
        for file, words in (("entities", ["a b", "c", "d", "never"]), ("relations", ["likes", "is"])):
            with gzip.open(folder / f"{file}.txt.gz", "wt", encoding="utf-8") as stream:
                stream.write("".join(f"{word}\n" for word in words))
    return folder


def test_arrays_with_names(tmp_path: Path) -> None:
    write_arrays(tmp_path / "my_set")
    for graph in (load_triples("my-set", tmp_path), load_triples(tmp_path / "my_set")):
        assert (graph.name, graph.num_entities, graph.num_relations) == ("my_set", 4, 2)
        assert graph.entities == ("a b", "c", "d", "never")
        assert graph.train.tolist() == [[0, 0, 1], [2, 1, 0]]
        assert graph.train.dtype == np.int64


def test_arrays_without_names_count_the_ids(tmp_path: Path) -> None:
    graph = load_triples(write_arrays(tmp_path / "plain", names=False))
    assert (graph.num_entities, graph.num_relations, graph.entities) == (3, 2, None)


def test_the_root_of_triples_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "my_set")
    monkeypatch.setenv("GRAPH_EMB_DATA", str(tmp_path))
    assert load_triples("my_set").num_entities == 4


def test_text_files_are_numbered_in_sorted_order_over_all_parts(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text('x y\tr "1\tz\nz\tr2\tx y\n')
    with gzip.open(tmp_path / "test.tsv.gz", "wt") as stream:
        stream.write("z\tr3\tnew\n")
    graph = load_triples(tmp_path)
    assert graph.entities == ("new", "x y", "z")
    assert graph.relations == ('r "1', "r2", "r3")
    assert {part: t.tolist() for part, t in graph.parts.items()} == {
        "train": [[1, 0, 2], [2, 1, 1]],
        "test": [[2, 2, 0]],
    }


def test_one_file_is_the_training_part(tmp_path: Path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("NA\t1\tnull\n")  # words that readers take for missing values
    graph = load_triples(file, format="triples")
    assert (graph.name, list(graph.parts), graph.entities) == ("facts", ["train"], ("NA", "null"))


def test_biokg_lays_the_types_one_after_the_other(tmp_path: Path) -> None:
    ogb_layout.write_biokg(tmp_path)
    graph = load_triples("ogbl-biokg", tmp_path)
    starts = {"disease": 0, "drug": 12, "function": 26, "protein": 36, "sideeffect": 52}
    assert graph.entity_types == starts
    assert (graph.num_entities, graph.num_relations) == (60, 3)
    head, relation, tail = graph.train.T
    firsts = np.array([[0, 36], [12, 36], [36, 26]])[relation]  # disease-protein, drug-protein, protein-function
    sizes = np.array([[12, 16], [14, 16], [16, 10]])[relation]
    assert ((firsts[:, 0] <= head) & (head < firsts[:, 0] + sizes[:, 0])).all()
    assert ((firsts[:, 1] <= tail) & (tail < firsts[:, 1] + sizes[:, 1])).all()
    assert ((head - firsts[:, 0]) % 2 == (tail - firsts[:, 1]) % 2).all(), "what the writer planted"
    given, test = graph.negatives["test"], graph.parts["test"]
    first = np.array([0, 12, 36])[test[:, 1]]
    assert ((given.heads - first[:, None]) % 2 != (test[:, :1] - first[:, None]) % 2).all()
    assert load_triples(tmp_path / "ogbl_biokg").num_entities == 60


def test_wikikg2_has_one_id_space(tmp_path: Path) -> None:
    ogb_layout.write_wikikg2(tmp_path)
    graph = load_triples("ogbl_wikikg2", tmp_path)
    assert (graph.num_entities, graph.num_relations, graph.entity_types) == (40, 2, None)
    assert graph.negatives["valid"].tails.shape == (60, 5)


def test_a_biokg_id_outside_its_type_is_refused(tmp_path: Path) -> None:
    folder = ogb_layout.write_biokg(tmp_path)
    tables = {"head_type": ["drug"], "head": np.array([14]), "relation": np.array([1])}
    tables |= {"tail_type": ["protein"], "tail": np.array([0])}
    layout.write_split(folder / "split" / "random" / "train.pt", tables)
    with pytest.raises(DataError, match="ogbl-biokg, train: an entity of head is outside its type"):
        load_triples("ogbl-biokg", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("a\tb\n", r"2 column\(s\) in the first line, expected 3: head, relation, tail"), ("", "train.txt")],
)
def test_text_that_holds_no_triples_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_triples(tmp_path)


def test_other_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data set 'umls': no "):
        load_triples("umls", tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        load_triples(tmp_path / "none" / "umls")
    with pytest.raises(DataError, match=r"is a folder without graph\.npz"):
        load_triples(tmp_path)
    (tmp_path / "facts.csv").write_text("a,b,c\n")
    with pytest.raises(DataError, match="a third column without a name, 'c'"):
        load_triples(tmp_path / "facts.csv")
    assert load_triples(tmp_path / "facts.csv", format="triples").entities == ("a", "c")
    with pytest.raises(ConfigError, match="only OGB's data sets are downloaded, 'umls' is none"):
        load_triples("umls", tmp_path, download=True)
    (tmp_path / "triples.npz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="was cut off"):
        load_triples(tmp_path)
    np.savez(tmp_path / "triples.npz", train=np.zeros((2, 2), np.int64))
    with pytest.raises(DataError, match=r"train has shape \(2, 2\) of int64"):
        load_triples(tmp_path)


def write_dbis(folder: Path, names: list[str] | None = None, drop: str = "") -> Path:
    """The layout of the DBIS network: a paper in each venue, by two authors, and a second, smaller venue "KDD"."""
    names = [*VENUES, "KDD", "Elsewhere"] if names is None else names
    papers = 2 * len(VENUES) + 2
    conf = np.r_[np.repeat(np.arange(len(VENUES)), 2), len(VENUES), len(VENUES) + 1]
    arrays = {
        "paper_author": np.array([np.repeat(np.arange(papers), 2), np.arange(2 * papers) % 40], np.int32),
        "paper_conf": np.array([np.arange(papers), conf], np.int32),
        "paper_id": np.arange(papers) + 100,
        "author_id": np.arange(40) + 7000,
        "conf_id": np.arange(len(VENUES) + 2) + 3000,
    }
    arrays.pop(drop, None)
    folder.mkdir()
    np.savez(folder / "graph.npz", **arrays)
    with gzip.open(folder / "conf_names.txt.gz", "wt") as file:
        file.write("".join(f"{name}\n" for name in names))
    return folder


def test_dbis_has_types_ids_areas_and_names(tmp_path: Path) -> None:
    write_dbis(tmp_path / "dbis")
    found = load_dataset("dbis", tmp_path)
    assert found.graph.num_nodes == {"author": 40, "paper": 32, "venue": 17}
    assert found.graph.node_ids["author"][0] == 7000
    assert found.labels["venue"].to_single().tolist() == [*[0] * 5, *[1] * 5, *[2] * 5, -1, -1]
    assert found.names["venue"][found.asked["venue"]].tolist() == ["KDD", "SIGMODConference", "SIGIR", "WWW"]
    assert found.asked["venue"][0] == VENUES.index("KDD"), "the KDD with more papers"


def test_damaged_and_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dbis: no such file; root= is the folder that holds dbis/"):
        load_dataset("dbis", tmp_path)
    write_dbis(tmp_path / "a", drop="paper_conf")
    with pytest.raises(DataError, match="has no paper_conf; is it the DBIS network"):
        load_dataset(tmp_path / "a")
    write_dbis(tmp_path / "b", names=VENUES)
    with pytest.raises(DataError, match="15 names for 17 venues"):
        load_dataset(tmp_path / "b")
    write_dbis(tmp_path / "c", names=[*VENUES[1:], "x", "y", "z"])
    with pytest.raises(DataError, match="no venue 'SIGMODConference'"):
        load_dataset(tmp_path / "c")


def test_any_other_graph_with_types_is_read_with_its_labels(tmp_path: Path) -> None:
    (tmp_path / "by.csv").write_text("src,dst\n0,0\n1,1\n2,0\n")
    (tmp_path / "paper.csv").write_text("id,label\n0,1\n1,0\n2,1\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes:\n  paper: {files: paper.csv, id: id, label: label}\n  author: {num_nodes: 2}\n"
        "edges:\n  - {type: [paper, by, author], files: by.csv, source: src, destination: dst}\n"
    )
    found = load_dataset(tmp_path / "graph.yaml")
    assert found.graph.num_nodes == {"paper": 3, "author": 2}
    assert found.metapath is None
    assert found.labels["paper"].to_single().tolist() == [1, 0, 1]


@pytest.mark.data
def test_the_real_dbis_has_all_areas(shared_data: Path) -> None:
    found = load_dataset("dbis", shared_data)
    assert found.graph.num_nodes == {"author": 60_694, "paper": 72_902, "venue": 464}
    assert found.labels["venue"].class_counts().tolist() == [5, 5, 5]


def test_every_name_gives_its_typed_graph_alone(tmp_path: Path) -> None:
    write_dbis(tmp_path / "dbis")
    write_arrays(tmp_path / "my_set")
    write_folder(tmp_path / "cora")
    layout.write_ddi(tmp_path)
    assert set(read_source("dbis", tmp_path).num_nodes) == {"author", "paper", "venue"}
    assert [etype[1] for etype in read_source("my-set", tmp_path).edges] == ["likes", "is"]
    assert read_source("my-set", tmp_path, relations="column").edge_data
    assert read_source("cora", tmp_path).node_data[NODE_TYPE]["train_mask"].tolist() == [True, False, False, False]
    assert read_source("ogbl-ddi", tmp_path).total_edges == read_source(tmp_path / "ogbl_ddi").total_edges == 8
    assert read_source("digits").num_nodes == {NODE_TYPE: 1797}
    with pytest.raises(DataError, match=r"no nothing in .*; root= is the folder"):
        read_source("nothing", tmp_path)


@pytest.mark.data
def test_entities_of_rdf_have_classes_and_a_split(shared_data: Path) -> None:
    found = typed_nodes(load_dataset("aifb", shared_data))
    assert len(found.class_names) == 4
    assert {part: len(nodes) for part, nodes in found.split.items()} == {"train": 140, "test": 36}
    assert len(found.graph.edges) == 2 * len(read_source("aifb", shared_data).edges)


def test_booleans_of_the_node_data_are_a_split_by_any_word() -> None:
    edges = {("_N", "_E", "_N"): (np.array([0]), np.array([1]))}
    masks = {"train": np.array([1, 0, 0], bool), "valid": np.array([0, 1, 0], bool), "test": np.array([0, 0, 1])}
    graph = HeteroGraph({"_N": 3}, edges, {"_N": {**masks, "val_mask": np.array([0, 0, 1])}})
    split = Dataset.of_graph(graph).node_split["_N"]
    assert {part: nodes.tolist() for part, nodes in split.items()} == {"train": [0], "valid": [2]}
