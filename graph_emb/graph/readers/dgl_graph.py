"""DGL graphs in memory, and files of ``dgl.save_graphs``, with all their types and data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.dgl_format import read_graphs
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.scipy_matrix import is_symmetric
from graph_emb.graph.readers.source import (
    WEIGHT,
    Contents,
    as_path,
    checked_file,
    has_suffix,
    is_object_of,
    parsing,
    register,
)
from graph_emb.graph.typed import EdgeType, HeteroGraph

_ORIGINAL_IDS = "_ID"  # dgl.NID and dgl.EID: where a subgraph's nodes and edges came from
_is_file = has_suffix(".dgl", ".bin")


@register("dgl", lambda source: is_object_of(source, "dgl") or _is_file(source), "index")
def read_dgl(source: Any, options: ReadOptions) -> Contents:
    """A DGLGraph with its types and data; ``ndata['_ID']`` of a subgraph becomes the original ids.

    A file is read by our own parser: DGL's ends the process on a damaged length.
    """
    path = as_path(source)
    if path is not None:
        with parsing(checked_file(path), "a DGL graph file"):
            return Contents(_of_file(path, options.index))
    if options.index is not None:
        raise ConfigError(f"index={options.index} chooses a graph of a file and means nothing to a graph in memory")
    if not hasattr(source, "canonical_etypes"):
        raise ConfigError(f"a {type(source).__name__} of DGL is no DGLGraph; pass its graph")
    ends = {etype: source.edges(etype=etype, order="eid") for etype in source.canonical_etypes}
    edges = {etype: (src.cpu().numpy(), dst.cpu().numpy()) for etype, (src, dst) in ends.items()}
    edge_data = {etype: _columns(source.edges[etype].data) for etype in ends}
    node_data = {ntype: _columns(source.nodes[ntype].data) for ntype in source.ntypes}
    num_nodes = {ntype: source.num_nodes(ntype) for ntype in source.ntypes}
    return Contents(_typed(num_nodes, edges, node_data, edge_data, "graph"))


def _of_file(file: Path, index: int | None) -> HeteroGraph:
    graphs = read_graphs(file)
    if index is None and len(graphs) != 1:
        raise DataError(f"{file}: holds {len(graphs)} graphs, expected 1; choose one with index=")
    if index is not None and not 0 <= index < len(graphs):
        raise ConfigError(f"index={index} is outside [0, {len(graphs)}), the graphs of {file}")
    stored = graphs[index or 0]
    # in memory of their own, as the mapped file may change
    node_data = {ntype: {name: v.copy() for name, v in own.items()} for ntype, own in stored.node_data.items()}
    edge_data = {etype: {name: v.copy() for name, v in own.items()} for etype, own in stored.edge_data.items()}
    edges = {etype: (src.copy(), dst.copy()) for etype, (src, dst) in stored.edges.items()}
    return _typed(stored.num_nodes, edges, node_data, edge_data, file.name.rpartition(".")[0] or file.name)


def _typed(
    num_nodes: Mapping[str, int],
    edges: Mapping[EdgeType, tuple[NDArray, NDArray]],
    node_data: Mapping[str, dict[str, NDArray]],
    edge_data: Mapping[EdgeType, dict[str, NDArray]],
    name: str,
) -> HeteroGraph:
    ids = {ntype: columns.pop(_ORIGINAL_IDS) for ntype, columns in node_data.items() if _ORIGINAL_IDS in columns}
    ends = {
        etype: (src.astype(np.int64, copy=False), dst.astype(np.int64, copy=False))
        for etype, (src, dst) in edges.items()
    }
    symmetric = False
    if len(num_nodes) == len(edges) == 1:
        (etype,), (num,) = edges, num_nodes.values()
        columns = edge_data[etype]
        if WEIGHT not in columns and "w" in columns:
            columns[WEIGHT] = columns.pop("w")
        if WEIGHT in columns and columns[WEIGHT].shape[1:] == (1,):
            columns[WEIGHT] = columns[WEIGHT][:, 0]
        weights = columns.get(WEIGHT)
        symmetric = (weights is None or weights.ndim == 1) and is_symmetric(*ends[etype], weights, num)
    return HeteroGraph(
        dict(num_nodes),
        ends,
        node_data=dict(node_data),
        edge_data=dict(edge_data),
        node_ids={ntype: values.astype(np.int64, copy=False) for ntype, values in ids.items()},
        name=name,
        symmetric=symmetric,
    )


def _columns(frame: Any) -> dict[str, NDArray]:
    return {name: frame[name].detach().cpu().numpy() for name in frame}
