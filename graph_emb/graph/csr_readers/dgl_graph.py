"""Graphs that ``dgl.save_graphs`` wrote: one homogeneous graph a file, with DGL's usual field names."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers.matrix import graph_of_matrix
from graph_emb.graph.csr_readers.source import GraphFile, ReadOptions, parsing, register
from graph_emb.graph.labels import Labels

# kDGLSerializeMagic of dgl/src/graph/graph_serialize.cc; what DGL makes of other bytes is not defined.
_MAGIC = struct.pack("<Q", 0xDD2E4FF046B4A13F)
_WEIGHT_NAMES = ("weight", "w")
_SPLIT_NAMES = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


@register("dgl", "bin")
def read_dgl(file: Path, options: ReadOptions) -> GraphFile:
    """The arcs with ``edata['weight']``, undirected where they are symmetric; ``label`` and the masks of nodes.

    A file cut short is an error; of a damaged length inside, DGL 1.1.3 ends the process (uncaught std::bad_alloc).
    """
    with file.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{file}: is no file of dgl.save_graphs or was cut off; write it again")
    graph = _only_graph(file)
    src, dst = (end.numpy() for end in graph.edges(order="eid"))
    weights = next((_numbers(file, graph.edata[name], name) for name in _WEIGHT_NAMES if name in graph.edata), None)
    values = np.ones(len(src), dtype=np.int8) if weights is None else weights
    num_nodes = graph.num_nodes()
    matrix = sparse.coo_array((values, (src, dst)), shape=(num_nodes, num_nodes))
    read = graph_of_matrix(file, matrix, options, has_weights=weights is not None)
    return GraphFile(read, _labels(file, graph), _splits(graph))


def _only_graph(file: Path) -> Any:
    from graph_emb.compat.dgl import load

    dgl = load()
    with parsing(file, "a DGL graph file"):
        graphs, _ = dgl.load_graphs(str(file))
    if len(graphs) != 1:
        raise DataError(f"{file}: holds {len(graphs)} graphs, expected 1; save one graph a file")
    graph = graphs[0]
    if not graph.is_homogeneous:
        raise DataError(
            f"{file}: holds {len(graph.ntypes)} node types and {len(graph.etypes)} edge types, expected 1 of each; "
            "use dgl.to_homogeneous"
        )
    return graph


def _numbers(file: Path, tensor: Any, name: str) -> NDArray:
    values = tensor.numpy()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{file}: {name} has shape {tuple(values.shape)}; expected one number an edge or node")
    return values


def _labels(file: Path, graph: Any) -> Labels | None:
    if "label" not in graph.ndata:
        return None
    values = graph.ndata["label"].numpy()
    if values.ndim == 2 and values.shape[1] > 1:
        nodes, classes = np.nonzero(values)
        return Labels.from_pairs(nodes, classes, len(values), num_classes=values.shape[1])
    single = _numbers(file, graph.ndata["label"], "label")
    if single.dtype.kind not in "iu" or int(single.min(initial=0)) < -1:
        raise DataError(f"{file}: label is {single.dtype} down to {single.min()}; expected classes, -1 for none")
    return Labels.from_single(single)


def _splits(graph: Any) -> dict[str, NDArray[np.int64]] | None:
    found = {
        part: np.flatnonzero(graph.ndata[name].numpy()).astype(np.int64)
        for part, name in _SPLIT_NAMES.items()
        if name in graph.ndata and graph.ndata[name].dim() == 1
    }
    return found or None
