"""Every format gives the same graph, and no file, however broken, gives anything but one clear line."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError
from graph_emb.graph.csr import Graph
from graph_emb.graph.readers import READERS
from tests.graph.readers.compressed import read_csr
from tests.graph.readers.samples import WRITERS

TEXT_OR_TABLE = ("csv", "csv.gz", "tsv", "tsv.gz", "txt", "txt.gz", "edges", "edgelist", "parquet", "pq")
DIRECTED_AS_STORED = {"npz", "mat", "dgl", "bin"}  # these files hold both directions of each edge
PICKLES = {"gpickle", "gpickle.gz", "pkl", "pickle"}
FORMATS = {
    **dict.fromkeys(("npz", "mat"), ""),
    **dict.fromkeys(("dgl", "bin"), "dgl"),
    **dict.fromkeys((*PICKLES, "graphml", "graphml.gz", "json", "json.gz"), "networkx"),
    **dict.fromkeys(TEXT_OR_TABLE, "edges"),
}
SUFFIXES = sorted({name.removesuffix(".gz") for name in WRITERS})


def read(path: Path, **options: Any) -> Graph:
    suffix = path.name.partition(".")[2]
    known = {"trust_pickle": True} if suffix in PICKLES else {}
    return read_csr(path, **{**known, **options})


def test_every_suffix_of_the_samples_finds_its_reader() -> None:
    for suffix in WRITERS:
        path = Path(f"graph.{suffix}")
        assert [name for name, reader in READERS.items() if reader.accepts(path)] == [FORMATS[suffix] or suffix]


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_written_graph_is_read_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{suffix}"
    WRITERS[suffix](path)
    graph = read(path).validate()
    assert not graph.directed
    assert graph.node_ids is None
    assert graph.edges().tolist() == [[0, 1], [0, 2], [0, 3], [1, 2]]
    assert graph.edge_weights().tolist() == [2.0, 0.5, 4.0, 3.0]


@pytest.mark.parametrize("suffix", WRITERS)
def test_directed_is_what_the_caller_says(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{suffix}"
    WRITERS[suffix](path)
    graph = read(path, directed=True).validate()
    assert graph.directed == (suffix not in DIRECTED_AS_STORED)
    if suffix in DIRECTED_AS_STORED:
        assert graph.num_arcs == 8
    elif suffix in TEXT_OR_TABLE:
        assert graph.edges().tolist() == [[0, 1], [0, 2], [1, 2], [3, 0]]
    else:  # networkx has lost in which direction an undirected edge was written
        assert graph.num_arcs == 4


@pytest.mark.parametrize("suffix", WRITERS)
def test_weights_are_left_out_when_asked(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{suffix}"
    WRITERS[suffix](path)
    assert read(path, weight=False).weights is None
    assert read(path, weight=True).weights is not None


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_option_that_means_nothing_to_a_format_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{suffix}"
    WRITERS[suffix](path)
    known = READERS[FORMATS[suffix] or suffix].options
    values = {"header": False, "separator": ",", "num_nodes": 9, "ids": "str", "comment": "", "columns": ["a", "b"]}
    for name in values.keys() - set(known):
        with pytest.raises(ConfigError, match=f"unknown option of format .* {name!r}; known: "):
            read(path, **{name: values[name]})


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"weight": 3}, "weight=3: expected True, False or the name"),
        ({"ids": "integer"}, "unknown ids policy 'integer'"),
        ({"duplicates": "last"}, "unknown duplicates policy 'last'"),
        ({"self_loops": "no"}, "unknown self_loops policy 'no'"),
        ({"format": "mtx"}, "unknown graph format 'mtx'"),
    ],
)
def test_unknown_words_are_refused(option: dict, words: str, put: Callable[..., Path]) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        read_csr(put("graph.csv", "0,1\n"), **option)


def test_format_overrides_the_suffix(put: Callable[..., Path]) -> None:
    assert read_csr(put("graph.data", "0,1\n"), format="edges").num_edges == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.csv", None, "no such file; check the name"),
        ("folder/none.csv", None, "no folder"),
        ("empty.csv", b"", "is empty"),
        ("graph", b"0 1\n", "cannot tell its format; give format="),
        ("graph.mtx", b"0 1\n", "cannot tell its format; give format=, one of: .*edges"),
        ("graph.npz.gz", b"0 1\n", "cannot tell its format"),
        ("x" * 300 + ".csv", None, "cannot be opened"),
        ("nul\0.csv", None, "no such file|cannot be opened"),
    ],
)
def test_a_path_that_is_no_graph_file_is_refused(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read(path)


def test_a_folder_is_no_graph(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot tell its format"):
        read_csr(tmp_path)


def expect_one_line_or_a_graph(path: Path) -> None:
    try:
        graph = read(path)
    except GraphEmbError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < len(str(path)) + 700
    else:
        graph.validate()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_random_bytes_give_one_line(suffix: str, tmp_path: Path) -> None:
    random_bytes = random.Random(0)
    for size in (1, 2, 7, 100, 5000):
        path = tmp_path / f"noise{size}.{suffix}"
        path.write_bytes(random_bytes.randbytes(size))
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", WRITERS)
def test_truncated_files_give_one_line(suffix: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole.{suffix}"
    WRITERS[suffix](whole)
    content = whole.read_bytes()
    for kept in {1, 2, 9, *range(10, len(content), max(1, len(content) // 25))}:
        path = tmp_path / f"cut{kept}.{suffix}"
        path.write_bytes(content[:kept])
        expect_one_line_or_a_graph(path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_damaged_bytes_give_one_line_or_a_valid_graph(suffix: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole.{suffix}"
    WRITERS[suffix](whole)
    content = whole.read_bytes()
    rng = random.Random(1)
    for trial in range(60):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 2, 8])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / f"damaged{trial}.{suffix}"
        path.write_bytes(damaged)
        expect_one_line_or_a_graph(path)


def test_errors_of_the_arcs_name_the_file(put: Callable[..., Path]) -> None:
    arrays = {"indptr": np.array([0, 1]), "indices": np.array([0]), "weights": np.array([-1.0])}
    with pytest.raises(DataError, match=r"graph\.npz.: weights: value -1\.0 of arc 0"):
        read_csr(put("graph.npz", **arrays))
