"""One small weighted graph, written in every format that has a reader."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
from scipy import sparse

SRC, DST, WEIGHTS = [0, 1, 3, 0], [1, 2, 0, 2], [2.0, 3.0, 4.0, 0.5]
#   1 --2-- 0 --4-- 3
#    \      |
#     3-2-0.5


def _text(separator: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        rows = [separator.join(map(str, row)) for row in zip(SRC, DST, WEIGHTS, strict=True)]
        content = "\n".join([separator.join(("src", "dst", "weight")), *rows, ""]).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    return write


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"src": SRC, "dst": DST, "weight": WEIGHTS}), path)


def symmetric() -> sparse.csr_array:
    upper = sparse.coo_array((WEIGHTS, (SRC, DST)), shape=(4, 4))
    return sparse.csr_array(upper + upper.T)


def _npz(path: Path) -> None:
    matrix = symmetric()
    np.savez(path, indptr=matrix.indptr, indices=matrix.indices, weights=matrix.data)


def _mat(path: Path) -> None:
    scipy.io.savemat(path, {"network": symmetric()})


def networkx_graph() -> nx.Graph:
    graph = nx.Graph()
    graph.add_weighted_edges_from(zip(SRC, DST, WEIGHTS, strict=True))
    return graph


def _gpickle(path: Path) -> None:
    content = pickle.dumps(networkx_graph())
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _graphml(path: Path) -> None:
    nx.write_graphml(networkx_graph(), path)  # packs by itself where the name ends in .gz


def _json(path: Path) -> None:
    content = json.dumps(nx.node_link_data(networkx_graph(), edges="links")).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _dgl(path: Path) -> None:
    import torch

    from graph_emb.compat.dgl import load

    dgl = load()
    matrix = symmetric().tocoo()
    graph = dgl.graph((torch.as_tensor(matrix.row).long(), torch.as_tensor(matrix.col).long()), num_nodes=4)
    graph.edata["weight"] = torch.as_tensor(matrix.data)
    dgl.save_graphs(str(path), [graph])


WRITERS: dict[str, Callable[[Path], None]] = {
    "csv": _text(","),
    "csv.gz": _text(","),
    "tsv": _text("\t"),
    "tsv.gz": _text("\t"),
    "txt": _text(" "),
    "txt.gz": _text(" "),
    "edges": _text(" "),
    "edgelist": _text(" "),
    "parquet": _parquet,
    "pq": _parquet,
    "npz": _npz,
    "mat": _mat,
    "dgl": _dgl,
    "bin": _dgl,
    "gpickle": _gpickle,
    "gpickle.gz": _gpickle,
    "pkl": _gpickle,
    "pickle": _gpickle,
    "graphml": _graphml,
    "graphml.gz": _graphml,
    "json": _json,
    "json.gz": _json,
}
