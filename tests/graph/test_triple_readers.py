from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.triple_readers import load_triples
from tests.compat.ogb.layout import write_split
from tests.ogb_layout import write_biokg, write_wikikg2

TRIPLES = {"train": np.array([[0, 0, 1], [2, 1, 0]], np.int32), "valid": np.array([[1, 0, 2]], np.int32)}


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


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "my_set")
    monkeypatch.setenv("GRAPH_EMB_DATA", str(tmp_path))
    assert load_triples("my_set").num_entities == 4


def test_text_files_are_numbered_in_order_of_appearance(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text('x y\tr "1\tz\nz\tr2\tx y\n')
    with gzip.open(tmp_path / "test.tsv.gz", "wt") as stream:
        stream.write("z\tr3\tnew\n")
    graph = load_triples(tmp_path)
    assert graph.entities == ("x y", "z", "new")
    assert graph.relations == ('r "1', "r2", "r3")
    assert {part: t.tolist() for part, t in graph.parts.items()} == {
        "train": [[0, 0, 1], [1, 1, 0]],
        "test": [[1, 2, 2]],
    }


def test_one_file_is_the_training_part(tmp_path: Path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("NA\t1\tnull\n")  # words that readers take for missing values
    graph = load_triples(file)
    assert (graph.name, list(graph.parts), graph.entities) == ("facts", ["train"], ("NA", "null"))


def test_biokg_lays_the_types_one_after_the_other(tmp_path: Path) -> None:
    write_biokg(tmp_path)
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
    write_wikikg2(tmp_path)
    graph = load_triples("ogbl_wikikg2", tmp_path)
    assert (graph.num_entities, graph.num_relations, graph.entity_types) == (40, 2, None)
    assert graph.negatives["valid"].tails.shape == (60, 5)


def test_a_biokg_id_outside_its_type_is_refused(tmp_path: Path) -> None:
    folder = write_biokg(tmp_path)
    tables = {"head_type": ["drug"], "head": np.array([14]), "relation": np.array([1])}
    tables |= {"tail_type": ["protein"], "tail": np.array([0])}
    write_split(folder / "split" / "random" / "train.pt", tables)
    with pytest.raises(DataError, match="ogbl-biokg, train: an entity of head is outside its type"):
        load_triples("ogbl-biokg", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("a\tb\n", "expected head, relation and tail in each line"), ("", "train.txt")],
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
    with pytest.raises(DataError, match=r"holds neither triples\.npz nor train\.tsv or train\.txt"):
        load_triples(tmp_path)
    (tmp_path / "facts.csv").write_text("a,b,c\n")
    with pytest.raises(DataError, match=r"no file of triples; known: \.npz, \.tsv"):
        load_triples(tmp_path / "facts.csv")
    with pytest.raises(ConfigError, match="only OGB's data sets are downloaded, 'umls' is none"):
        load_triples("umls", tmp_path, download=True)
    (tmp_path / "triples.npz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="the copy is damaged"):
        load_triples(tmp_path)
    np.savez(tmp_path / "triples.npz", train=np.zeros((2, 2), np.int64))
    with pytest.raises(DataError, match=r"train has shape \(2, 2\) of int64"):
        load_triples(tmp_path)
