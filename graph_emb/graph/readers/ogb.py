"""OGB's node and link data sets by name, heterogeneous ones too; column names are those of OGB's DGL classes."""

# N nodes, E edges

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.compat.ogb import OGBHetero, OGBLink, OGBNode, read_dataset
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers.options import ReadOptions, Relations
from graph_emb.graph.readers.source import MASKS, WEIGHT, Contents, as_path, mask_of, register
from graph_emb.graph.readers.triples import relation_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph

_PREFIXES = ("ogbl-", "ogbl_", "ogbn-", "ogbn_")


def _is_ogb(source: Any) -> bool:
    path = as_path(source)
    if path is None:
        return isinstance(source, OGBNode | OGBLink | OGBHetero)
    return path.name.startswith(_PREFIXES) and "." not in path.name


@register("ogb", _is_ogb, "root", "download", "relations")
def read_ogb(source: Any, options: ReadOptions) -> Contents:
    """The graph of a node data set with features, labels and masks; of a link data set the training edges only.

    Tables are called as OGB's DGL classes call them: ``feat``, ``label``, ``year``, ``weight``, ``species`` ...

    Args:
        source: A name, the data set's folder, or a data set of ``graph_emb.compat.ogb.read_dataset``.
    """
    path = as_path(source)
    data = source if path is None else read_dataset(path.name, _root(path, options.root), options.download)
    meta = data.metadata
    if isinstance(data, OGBHetero):
        graph = _hetero_link(data) if meta.kind == "link" else _hetero_node(data)
    elif isinstance(data, OGBNode):
        graph = _node(data)
    elif "relation" in data.split["train"]:
        return Contents(_knowledge_graph(data, options.relations))
    else:
        graph = _link(data)
    if options.relations != "types":
        raise ConfigError(f"relations={options.relations!r} is for ogbl-wikikg2; {meta.name} has no relation column")
    return Contents(graph, both_ways=not meta.is_hetero and not meta.is_directed)


def _root(path: Path, root: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    if root is None and path.is_dir():
        return path.parent
    if root is None:
        raise DataError(f"data set {path.name!r} needs root=, the folder that holds {path.name.replace('-', '_')}/")
    return root


def _short(table: str) -> str:
    """``node_year`` as OGB's DGL classes call it: ``year``."""
    return table.partition("_")[2]


def _column(table: np.ndarray) -> np.ndarray:
    """A table of one column as that column."""
    return table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else table


def _tables(features: np.ndarray | None, extra: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    columns = {} if features is None else {"feat": features}
    return columns | {_short(key): _column(table) for key, table in extra.items() if key.startswith(prefix)}


def _node(data: Any) -> HeteroGraph:
    columns = _tables(data.node_feat, data.extra, "node_")
    columns["label"] = data.labels
    columns |= {MASKS[part]: mask_of(ids, data.num_nodes) for part, ids in data.split.items()}
    edge_columns = _tables(data.edge_feat, data.extra, "edge_")
    return HeteroGraph(
        {NODE_TYPE: data.num_nodes},
        {EDGE_TYPE: (data.edge_index[0], data.edge_index[1])},
        node_data={NODE_TYPE: columns},
        edge_data={EDGE_TYPE: edge_columns} if edge_columns else {},
        name=data.metadata.folder,
    )


def _link(data: Any) -> HeteroGraph:
    train = data.split["train"]
    src, dst = train["edge"].T if "edge" in train else (train["source_node"], train["target_node"])
    columns = _tables(data.node_feat, data.extra, "node_")
    edge_columns = {name: _column(train[name]) for name in (WEIGHT, "year") if name in train}
    return HeteroGraph(
        {NODE_TYPE: data.num_nodes},
        {EDGE_TYPE: (np.ascontiguousarray(src), np.ascontiguousarray(dst))},
        node_data={NODE_TYPE: columns} if columns else {},
        edge_data={EDGE_TYPE: edge_columns} if edge_columns else {},
        counts=_held_out(data.split),
        name=data.metadata.folder,
    )


def _held_out(split: dict[str, dict[str, np.ndarray]]) -> dict[str, int]:
    """How many edges of the other parts stayed out, so that no one takes the graph for the whole data set."""
    sizes = {}
    for part in ("valid", "test"):
        tables = split[part]
        key = next((key for key in ("edge", "source_node", "head") if key in tables), None)
        if key is not None:
            sizes[f"{part} edges left out"] = len(tables[key])
    return sizes


def _knowledge_graph(data: Any, relations: Relations) -> HeteroGraph:
    train = data.split["train"]
    head, relation, tail = (np.asarray(train[name]).reshape(-1) for name in ("head", "relation", "tail"))
    num_relations = 1 + max(int(np.max(tables["relation"], initial=-1)) for tables in data.split.values())
    names = np.array([f"relation_{number}" for number in range(num_relations)])
    return relation_graph(
        head, relation, tail, names, data.num_nodes, relations, counts=_held_out(data.split), name=data.metadata.folder
    )


def _hetero_node(data: Any) -> HeteroGraph:
    node_data: dict[str, dict[str, np.ndarray]] = {}
    for ntype, num in data.num_nodes.items():
        extra = {key: tables[ntype] for key, tables in data.extra.items() if ntype in tables}
        columns = _tables(data.node_feat.get(ntype), extra, "node_")
        if ntype in data.labels:
            columns["label"] = data.labels[ntype]
        columns |= {MASKS[part]: mask_of(ids[ntype], num) for part, ids in data.split.items() if ntype in ids}
        if columns:
            node_data[ntype] = columns
    edge_data = {}
    for etype in data.edge_index:
        extra = {key: tables[etype] for key, tables in data.extra.items() if etype in tables}
        columns = _tables(data.edge_feat.get(etype), extra, "edge_")
        if columns:
            edge_data[etype] = columns
    edges = {etype: (index[0], index[1]) for etype, index in data.edge_index.items()}
    return HeteroGraph(dict(data.num_nodes), edges, node_data, edge_data, name=data.metadata.folder)


def _hetero_link(data: Any) -> HeteroGraph:
    """Training triples by edge type; ``edge_reltype`` says which type a relation's number stands for."""
    train = data.split["train"]
    head, relation, tail = (np.asarray(train[name]).reshape(-1) for name in ("head", "relation", "tail"))
    numbers: dict[int, EdgeType] = {}
    for etype, table in data.extra.get("edge_reltype", {}).items():
        numbers |= dict.fromkeys(np.unique(table).tolist(), etype)
    unknown = sorted(set(np.unique(relation).tolist()) - set(numbers))
    if unknown:
        raise DataError(f"{data.metadata.name}: no edge type has relation {unknown[0]}; the files do not fit together")
    edges = {}
    for etype in data.edge_index:
        own = np.isin(relation, [number for number, known in numbers.items() if known == etype])
        edges[etype] = (head[own], tail[own])
    return HeteroGraph(dict(data.num_nodes), edges, counts=_held_out(data.split), name=data.metadata.folder)
