"""DGL graphs in memory, and files of ``dgl.save_graphs``, with all their types and data."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr_readers.source import checked_file, parsing
from graph_emb.graph.readers.source import Contents, as_path, has_suffix, is_object_of, register
from graph_emb.graph.typed import HeteroGraph

# kDGLSerializeMagic of dgl/src/graph/graph_serialize.cc; what DGL makes of other bytes is not defined.
_MAGIC = struct.pack("<Q", 0xDD2E4FF046B4A13F)
_ORIGINAL_IDS = "_ID"  # dgl.NID and dgl.EID: where a subgraph's nodes and edges came from
_is_dgl = is_object_of("dgl")
_is_file = has_suffix(".dgl", ".bin")


@register("dgl", lambda source: _is_dgl(source) or _is_file(source))
def read_dgl(source: Any, *, index: int | None = None) -> Contents:
    """A DGLGraph with its types and data; ``ndata['_ID']`` of a subgraph becomes the original ids.

    Args:
        index: Which graph of a file that holds several.
    """
    path = as_path(source)
    if path is not None:
        return Contents(from_dgl(_load(checked_file(path), index), path.name.rpartition(".")[0] or path.name))
    if index is not None:
        raise ConfigError(f"index={index} chooses a graph of a file and means nothing to a graph in memory")
    if not hasattr(source, "canonical_etypes"):
        raise ConfigError(f"a {type(source).__name__} of DGL is no DGLGraph; pass its graph")
    return Contents(from_dgl(source))


def from_dgl(graph: Any, name: str = "graph") -> HeteroGraph:
    """The nodes and edges of every type, edges in the order of their ids, data as numpy arrays."""
    node_data = {ntype: _columns(graph.nodes[ntype].data) for ntype in graph.ntypes}
    ids = {ntype: columns.pop(_ORIGINAL_IDS) for ntype, columns in node_data.items() if _ORIGINAL_IDS in columns}
    edges, edge_data = {}, {}
    for etype in graph.canonical_etypes:
        src, dst = graph.edges(etype=etype, order="eid")
        edges[etype] = (_array(src).astype(np.int64, copy=False), _array(dst).astype(np.int64, copy=False))
        edge_data[etype] = _columns(graph.edges[etype].data)
    return HeteroGraph(
        {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes},
        edges,
        node_data={ntype: columns for ntype, columns in node_data.items() if columns},
        edge_data={etype: columns for etype, columns in edge_data.items() if columns},
        node_ids={ntype: values.astype(np.int64, copy=False) for ntype, values in ids.items()},
        name=name,
    )


def _columns(frame: Any) -> dict[str, np.ndarray]:
    return {name: _array(frame[name]) for name in frame}


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _load(file: Path, index: int | None) -> Any:
    from graph_emb.compat.dgl import load

    with file.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{file}: is no file of dgl.save_graphs or was cut off; write it again")
    dgl = load()
    with parsing(file, "a DGL graph file"):
        graphs, _ = dgl.load_graphs(str(file))
    if index is None and len(graphs) != 1:
        raise DataError(f"{file}: holds {len(graphs)} graphs, expected 1; choose one with index=")
    if index is not None and not 0 <= index < len(graphs):
        raise ConfigError(f"index={index} is outside [0, {len(graphs)}), the graphs of {file}")
    return graphs[index or 0]
