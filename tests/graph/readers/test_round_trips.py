"""A random graph written in each format reads back equal; a registered reader without a row here fails."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import partition
from graph_emb.graph.readers import READERS, read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from tests.compat.ogb.layout import write_csv, write_graph


@dataclass(frozen=True)
class Sample:
    """A directed graph with parallel edges, loops, isolated nodes; weights are multiples of 1/8, never all 1."""

    num_nodes: int
    src: np.ndarray
    dst: np.ndarray
    weight: np.ndarray
    relation: np.ndarray

    def rows(self, *columns: np.ndarray) -> list[tuple]:
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def distinct(self) -> Sample:
        """The same with the first of parallel edges only, by source and destination."""
        _, first = np.unique(self.src * self.num_nodes + self.dst, return_index=True)
        columns = (column[first] for column in (self.src, self.dst, self.weight, self.relation))
        return Sample(self.num_nodes, *columns)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    num_nodes = draw(st.integers(1, 9))
    num_edges = draw(st.integers(1, 24))
    numbers = st.integers(0, num_nodes - 1)
    src, dst = (np.array(draw(st.lists(numbers, min_size=num_edges, max_size=num_edges))) for _ in range(2))
    weight = np.array(draw(st.lists(st.integers(1, 40), min_size=num_edges, max_size=num_edges))) / 8 + 2**-4
    relation = np.array(draw(st.lists(st.integers(0, 2), min_size=num_edges, max_size=num_edges)))
    return Sample(num_nodes, src, dst, weight, relation)


Written = tuple[Any, dict[str, Any]]


def as_memory(sample: Sample, folder: Path) -> Written:
    edge_data = {EDGE_TYPE: {"weight": sample.weight}}
    return HeteroGraph({NODE_TYPE: sample.num_nodes}, {EDGE_TYPE: (sample.src, sample.dst)}, edge_data=edge_data), {}


def _dgl_graph(sample: Sample) -> Any:
    import torch

    from graph_emb.compat.dgl import load

    graph = load().graph((sample.src, sample.dst), num_nodes=sample.num_nodes)
    graph.edata["weight"] = torch.from_numpy(sample.weight)
    return graph


def as_dgl(sample: Sample, folder: Path) -> Written:
    return _dgl_graph(sample), {}


def as_dgl_file(sample: Sample, folder: Path) -> Written:
    from graph_emb.compat.dgl import load

    load().save_graphs(str(folder / "graph.dgl"), [_dgl_graph(sample)])
    return folder / "graph.dgl", {}


def _networkx_graph(sample: Sample) -> Any:
    import networkx

    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(sample.num_nodes))
    graph.add_edges_from((u, v, {"weight": w}) for u, v, w in sample.rows(sample.src, sample.dst, sample.weight))
    return graph


def as_networkx(sample: Sample, folder: Path) -> Written:
    return _networkx_graph(sample), {}


def as_gpickle(sample: Sample, folder: Path) -> Written:
    import pickle

    with gzip.open(folder / "graph.gpickle.gz", "wb") as stream:
        pickle.dump(_networkx_graph(sample), stream)
    return folder / "graph.gpickle.gz", {"trust_pickle": True}


def as_scipy(sample: Sample, folder: Path) -> Written:
    shape = (sample.num_nodes, sample.num_nodes)
    return sparse.coo_array((sample.weight, (sample.src, sample.dst)), shape=shape), {}


def as_scipy_file(sample: Sample, folder: Path) -> Written:
    sparse.save_npz(folder / "graph.npz", as_scipy(sample, folder)[0])
    return folder / "graph.npz", {}


def as_rows(sample: Sample, folder: Path) -> Written:
    order = np.argsort(sample.src, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(sample.src, minlength=sample.num_nodes))])
    np.savez(folder / "g.npz", indptr=indptr, indices=sample.dst[order], weights=sample.weight[order], directed=True)
    return folder / "g.npz", {}


def as_mat(sample: Sample, folder: Path) -> Written:
    from scipy import io

    io.savemat(folder / "graph.mat", {"network": as_scipy(sample, folder)[0].tocsc()})
    return folder / "graph.mat", {}


def as_csv(sample: Sample, folder: Path) -> Written:
    rows = [f"{u},{v},{w}" for u, v, w in sample.rows(sample.src, sample.dst, sample.weight)]
    (folder / "graph.csv").write_text("src,dst,weight\n" + "\n".join(rows) + "\n")
    return folder / "graph.csv", {"num_nodes": sample.num_nodes}


def as_text_folder(sample: Sample, folder: Path) -> Written:
    rows = [f"{u}\t{v}\t{w}\n" for u, v, w in sample.rows(sample.src, sample.dst, sample.weight)]
    place = folder / "edges"
    place.mkdir()
    half = (len(rows) + 1) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        if part:
            with gzip.open(place / f"part-{number}.tsv.gz", "wt") as stream:
                stream.writelines(part)
    return place, {"num_nodes": sample.num_nodes, "weight": True}


def as_parquet(sample: Sample, folder: Path) -> Written:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"weight": sample.weight, "dst": sample.dst, "src": sample.src})
    parquet.write_table(table, folder / "graph.parquet")
    return folder / "graph.parquet", {"num_nodes": sample.num_nodes}


def as_frame(sample: Sample, folder: Path) -> Written:
    frame = pd.DataFrame({"weight": sample.weight, "dst": sample.dst, "src": sample.src})
    return frame, {"num_nodes": sample.num_nodes}


def as_array(sample: Sample, folder: Path) -> Written:
    matrix = np.zeros((sample.num_nodes, sample.num_nodes))
    matrix[sample.src, sample.dst] = sample.weight
    return matrix, {}


def as_yaml(sample: Sample, folder: Path) -> Written:
    (folder / "e.csv").write_text(
        "w,to,from\n" + "".join(f"{w},{v},{u}\n" for u, v, w in sample.rows(sample.src, sample.dst, sample.weight))
    )
    (folder / "graph.yaml").write_text(
        f"nodes: {{_N: {{num_nodes: {sample.num_nodes}}}}}\n"
        "edges: [{type: [_N, _E, _N], files: e.csv, source: from, destination: to, weight: w}]\n"
    )
    return folder / "graph.yaml", {}


def as_chunked(sample: Sample, folder: Path) -> Written:
    half = len(sample.src) // 2
    for number, own in enumerate((slice(0, half), slice(half, None))):
        np.savetxt(folder / f"e{number}.csv", np.stack([sample.src[own], sample.dst[own]], axis=1), fmt="%d")
        np.save(folder / f"w{number}.npy", sample.weight[own])
    chunks = [number for number, size in ((0, half), (1, len(sample.src) - half)) if size]
    metadata = {
        "graph_name": "chunks",
        "node_type": ["_N"],
        "edge_type": ["_N:_E:_N"],
        "num_nodes_per_chunk": [[sample.num_nodes]],
        "num_edges_per_chunk": [[half, len(sample.src) - half]],
        "edges": {
            "_N:_E:_N": {"format": {"name": "csv", "delimiter": " "}, "data": [f"e{number}.csv" for number in chunks]}
        },
        "edge_data": {
            "_N:_E:_N": {"weight": {"format": {"name": "numpy"}, "data": [f"w{number}.npy" for number in chunks]}}
        },
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder, {}


def as_ogb(sample: Sample, folder: Path) -> Written:
    place = folder / "ogbn_arxiv"
    write_graph(place, [list(row) for row in sample.rows(sample.src, sample.dst)], num_nodes=sample.num_nodes)
    write_csv(place / "raw" / "node-label.csv.gz", [[0]] * sample.num_nodes)
    write_csv(place / "raw" / "node_year.csv.gz", [[2000]] * sample.num_nodes)
    for part in ("train", "valid", "test"):
        write_csv(place / "split" / "time" / f"{part}.csv.gz", [[0]])
    return "ogbn-arxiv", {"root": folder}


def as_triples(sample: Sample, folder: Path) -> Written:
    rows = [f"n{u}\tr{r}\tn{v}\n" for u, r, v in sample.rows(sample.src, sample.relation, sample.dst)]
    (folder / "graph.txt").write_text("".join(rows))
    return folder / "graph.txt", {"format": "triples", "relations": "column"}


def as_ntriples(sample: Sample, folder: Path) -> Written:
    rows = sample.rows(sample.src, sample.relation, sample.dst)
    with gzip.open(folder / "graph.nt.gz", "wt") as stream:
        stream.writelines(f"<x/n{u}> <x/r{r}> <x/n{v}> .\n" for u, r, v in rows)
    return folder / "graph.nt.gz", {"relations": "column"}


def as_partition(sample: Sample, folder: Path) -> Written:
    graph, parts = as_memory(sample, folder)[0], min(2, sample.num_nodes)
    return partition.build(graph, parts, "hash", out=folder / "parts", report=False, allow_empty=True).path, {}


FORMATS: dict[str, list[Callable[[Sample, Path], Written]]] = {
    "memory": [as_memory],
    "dgl": [as_dgl, as_dgl_file],
    "networkx": [as_networkx, as_gpickle],
    "scipy": [as_scipy, as_array],
    "pandas": [as_frame],
    "npz": [as_rows, as_scipy_file],
    "mat": [as_mat],
    "edges": [as_csv, as_text_folder, as_parquet],
    "yaml": [as_yaml],
    "chunked": [as_chunked],
    "partition": [as_partition],
    "ogb": [as_ogb],
    "triples": [as_triples],
    "ntriples": [as_ntriples],
}
SORTED = {as_networkx, as_gpickle, as_rows, as_mat, as_array}
"""Writers whose format does not keep the order of the edges."""
WITHOUT_WEIGHTS = {as_ogb, as_triples, as_ntriples}


def test_every_registered_reader_has_a_row_here() -> None:
    assert set(FORMATS) == set(READERS)


@pytest.mark.parametrize("write", [write for writers in FORMATS.values() for write in writers])
@given(sample=samples())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_graph_reads_back_equal(write: Callable[[Sample, Path], Written], sample: Sample) -> None:
    if write in (as_mat, as_array):
        sample = sample.distinct()
    with tempfile.TemporaryDirectory() as folder:
        source, options = write(sample, Path(folder))
        graph = read_graph(source, **options)
    src, dst = graph.edges[EDGE_TYPE]
    assert src.dtype == dst.dtype == np.int64
    third, values = sample.weight, graph.edge_data.get(EDGE_TYPE, {}).get("weight")
    if write in (as_triples, as_ntriples):
        used = np.unique(np.concatenate([sample.src, sample.dst]))
        names = graph.node_ids[NODE_TYPE]
        assert [int(name.strip("<>").rpartition("n")[2]) for name in names] == used.tolist()
        src, dst = used[src], used[dst]
        relations = graph.relation_names[graph.edge_data[EDGE_TYPE]["relation"]]
        third, values = sample.relation, np.array([int(name.strip("<>")[-1]) for name in relations])
    else:
        assert graph.num_nodes == {NODE_TYPE: sample.num_nodes}
        assert graph.node_ids == {}
    if write is as_ogb:
        third = values = np.zeros(len(src))
    expected, got = sample.rows(sample.src, sample.dst, third), sample.rows(src, dst, values)
    assert got == expected if write not in SORTED else sorted(got) == sorted(expected)
