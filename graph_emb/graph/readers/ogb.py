"""OGB's node and link data sets by name, heterogeneous ones too; column names are those of OGB's DGL classes."""

# N nodes, E edges

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.compat.ogb import OGBHetero, OGBLink, OGBNode, read_dataset
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers.partitions import holds_partition
from graph_emb.graph.readers.source import MASKS, WEIGHT, Contents, ReadOptions, Relations, mask_of, register
from graph_emb.graph.readers.triples import held_out_triples, numbers_of_types, relation_graph
from graph_emb.graph.triples import triples_of_ogb
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeldOut, HeteroGraph

_PREFIXES = ("ogbl-", "ogbl_", "ogbn-", "ogbn_")


@register(
    "ogb",
    *("root", "download", "relations"),
    objects=lambda source: isinstance(source, OGBNode | OGBLink | OGBHetero),
    paths=lambda path: path.name.startswith(_PREFIXES) and "." not in path.name and not holds_partition(path),
)
def read_ogb(source: Any, options: ReadOptions) -> Contents:
    """The graph of a node data set with features, labels and masks; of a link data set the training edges only.

    Tables are called as OGB's DGL classes call them: ``feat``, ``label``, ``year``, ``weight``, ``species`` ...

    Args:
        source: A name, the data set's folder, or a data set of ``graph_emb.compat.ogb.read_dataset``.
    """
    data = source
    if isinstance(source, Path):
        data = read_dataset(source.name, ogb_root(source, options.root), options.download)
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


def ogb_root(path: Path, root: Any) -> Any:
    """The folder that holds an OGB data set: as asked, or the one that holds its folder."""
    if root is None and not path.is_dir():
        raise needs_root(path.name)
    return path.parent if root is None else root


def needs_root(name: str) -> DataError:
    """The error for a name that is looked up nowhere."""
    return DataError(
        f"data set {name!r} needs root=, the folder that holds {name.replace('-', '_')}/, or $GRAPH_EMB_DATA"
    )


def _column(table: np.ndarray) -> np.ndarray:
    """A table of one column as that column."""
    return table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else table


def _tables(features: np.ndarray | None, extra: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Features and other tables as OGB's DGL classes call them: ``node_year`` is ``year``."""
    columns = {} if features is None else {"feat": features}
    return columns | {key.partition("_")[2]: _column(own) for key, own in extra.items() if key.startswith(prefix)}


def _node(data: Any) -> HeteroGraph:
    columns = _tables(data.node_feat, data.extra, "node_")
    columns["label"] = data.labels
    columns |= {MASKS[part]: mask_of(ids, data.num_nodes) for part, ids in data.split.items()}
    edges = {EDGE_TYPE: (data.edge_index[0], data.edge_index[1])}
    edge_data = {EDGE_TYPE: _tables(data.edge_feat, data.extra, "edge_")}
    held_out = HeldOut(nodes={NODE_TYPE: dict(data.split)}, classes=_classes({NODE_TYPE: data.labels}, data.metadata))
    more = {"name": data.metadata.folder, "held_out": held_out}
    return HeteroGraph({NODE_TYPE: data.num_nodes}, edges, {NODE_TYPE: columns}, edge_data, **more)


def _classes(labels: dict[str, np.ndarray], meta: Any) -> dict[str, int]:
    """The number of classes of node types whose nodes have one each."""
    return {ntype: meta.num_classes for ntype, own in labels.items() if own.ndim == 1}


def link_split(data: OGBLink) -> dict[str, dict[str, np.ndarray]]:
    """The tables of each part, with its edges as (E, 2) where OGB gives sources and targets apart."""
    split = {part: {**tables} for part, tables in data.split.items()}
    for tables in split.values():
        if "edge" not in tables and "source_node" in tables:
            tables["edge"] = np.stack([tables["source_node"], tables["target_node"]], axis=1)
    return split


def _link(data: Any) -> HeteroGraph:
    train = data.split["train"]
    src, dst = train["edge"].T if "edge" in train else (train["source_node"], train["target_node"])
    edges = {EDGE_TYPE: (np.ascontiguousarray(src), np.ascontiguousarray(dst))}
    edge_data = {EDGE_TYPE: {name: _column(train[name]) for name in (WEIGHT, "year") if name in train}}
    node_data = {NODE_TYPE: _tables(data.node_feat, data.extra, "node_")}
    kept = {"train": ("edge", "edge_neg")}  # its other tables are columns of the edges
    apart = ("source_node", "target_node")  # these are edge
    links = {
        part: {name: own for name, own in tables.items() if name in kept.get(part, tables) and name not in apart}
        for part, tables in link_split(data).items()
    }
    more = {"counts": _held_out(data.split), "name": data.metadata.folder, "held_out": HeldOut(links=links)}
    # OGB lists a repeated collaboration once for each year
    return HeteroGraph({NODE_TYPE: data.num_nodes}, edges, node_data, edge_data, repeats="sum", **more)


def _held_out(split: dict[str, dict[str, np.ndarray]]) -> dict[str, int]:
    """How many edges of the other parts stayed out, so that no one takes the graph for the whole data set."""
    tables = [(part, key) for part in ("valid", "test") for key in ("edge", "source_node", "head")]
    return {f"{part} edges left out": len(split[part][key]) for part, key in tables if key in split[part]}


def _train_triples(data: Any) -> list[np.ndarray]:
    return [np.asarray(data.split["train"][name]).reshape(-1) for name in ("head", "relation", "tail")]


def _knowledge_graph(data: Any, relations: Relations) -> HeteroGraph:
    triples = _train_triples(data)
    num_relations = 1 + max(int(np.max(tables["relation"], initial=-1)) for tables in data.split.values())
    names = np.array([f"relation_{number}" for number in range(num_relations)])
    number = np.arange(num_relations)
    if relations == "types":
        number = numbers_of_types(triples[1], num_relations)
    held_out, left = held_out_triples(triples_of_ogb(data), number)
    more = {"counts": _held_out(data.split) | left, "name": data.metadata.folder, "held_out": held_out}
    return relation_graph(triples, names, data.num_nodes, relations, **more)


def _hetero_node(data: Any) -> HeteroGraph:
    node_data: dict[str, dict[str, np.ndarray]] = {}
    for ntype, num in data.num_nodes.items():
        extra = {key: tables[ntype] for key, tables in data.extra.items() if ntype in tables}
        columns = _tables(data.node_feat.get(ntype), extra, "node_")
        if ntype in data.labels:
            columns["label"] = data.labels[ntype]
        masks = {MASKS[part]: mask_of(ids[ntype], num) for part, ids in data.split.items() if ntype in ids}
        node_data[ntype] = columns | masks
    edge_data = {}
    for etype in data.edge_index:
        extra = {key: tables[etype] for key, tables in data.extra.items() if etype in tables}
        edge_data[etype] = _tables(data.edge_feat.get(etype), extra, "edge_")
    edges = {etype: (index[0], index[1]) for etype, index in data.edge_index.items()}
    split: dict[str, dict[str, np.ndarray]] = {}
    for part, ids in data.split.items():
        for ntype, nodes in ids.items():
            split.setdefault(ntype, {})[part] = nodes
    held_out = HeldOut(nodes=split, classes=_classes(data.labels, data.metadata))
    more = {"name": data.metadata.folder, "held_out": held_out}
    return HeteroGraph(dict(data.num_nodes), edges, node_data, edge_data, **more)


def _hetero_link(data: Any) -> HeteroGraph:
    """Training triples by edge type; ``edge_reltype`` says which type a relation's number stands for."""
    head, relation, tail = _train_triples(data)
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
    places = {etype: place for place, etype in enumerate(edges)}
    triples = triples_of_ogb(data)
    number = np.full(max(1 + max(numbers), triples.num_relations), -1)
    number[list(numbers)] = [places[etype] for etype in numbers.values()]
    held_out, left = held_out_triples(triples, number)
    counts = _held_out(data.split) | left
    return HeteroGraph(dict(data.num_nodes), edges, counts=counts, name=data.metadata.folder, held_out=held_out)
