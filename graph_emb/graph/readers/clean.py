"""Options that every source obeys: weights, self loops, directions, duplicates, isolated nodes; all are counted."""

# N nodes, E edges of a type

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers.source import WEIGHT, Contents, ReadOptions
from graph_emb.graph.typed import DUPLICATES_KEPT, EdgeType, HeteroGraph

Columns = dict[str, np.ndarray]

REVERSE_PREFIX = "rev_"


def cleaned(contents: Contents, options: ReadOptions) -> HeteroGraph:
    """The graph after weights, self loops, directions, duplicates, reverse types and isolated nodes were seen to.

    Raises:
        ConfigError: ``directed=False`` for a graph without a type whose ends are of one type.
        DataError: a weight that was asked for is not there, a reverse type is, or no node is left.
    """
    graph = contents.graph
    counts = dict(graph.counts)
    says_undirected = contents.both_ways or contents.undirected
    mirror = says_undirected if options.directed is None else not options.directed
    if options.directed is False and not any(s == d for s, _, d in graph.edges):
        raise ConfigError("directed=False: no edge type has both ends of one node type; use reverse_types=True")
    edges, edge_data = {}, {}
    for etype, (src, dst) in graph.edges.items():
        table = _EdgeTable(src, dst, _with_weight(etype, graph.edge_data.get(etype, {}), options.weight))
        if etype[0] == etype[2]:
            if options.self_loops == "drop":
                loops = table.src == table.dst
                _count(counts, "self loops dropped", int(loops.sum()))
                table = table.take(~loops) if loops.any() else table
            if mirror and not graph.symmetric:
                table = _mirrored(table, contents.both_ways, graph.num_nodes[etype[0]], counts)
        table = _merged(table, options.duplicates, graph.num_nodes[etype[2]], counts)
        edges[etype], edge_data[etype] = (table.src, table.dst), table.data
    symmetric = mirror or (graph.symmetric and not options.directed)
    if options.reverse_types:
        for etype in [etype for etype in edges if not (symmetric and etype[0] == etype[2])]:
            reverse = (etype[2], REVERSE_PREFIX + etype[1], etype[0])
            if reverse in edges:
                raise DataError(f"edge type {':'.join(reverse)} is in the data already; leave out reverse_types=True")
            src, dst = edges[etype]
            edges[reverse], edge_data[reverse] = (dst.copy(), src.copy()), dict(edge_data[etype])
            _count(counts, "reverse edge types added", 1)
    graph = replace(graph, edges=edges, edge_data=edge_data, counts=counts, symmetric=symmetric)
    return _without_isolated(graph) if options.isolated == "drop" else graph


def _with_weight(etype: EdgeType, columns: Columns, weight: bool | str | None) -> Columns:
    """The columns with the one that is the weight called so, or without it."""
    if weight is None:
        return dict(columns)
    if weight is False:
        return {name: values for name, values in columns.items() if name != WEIGHT}
    name = WEIGHT if weight is True or WEIGHT in columns else weight
    if name not in columns:
        known = ", ".join(columns) or "none"
        raise DataError(f"edge type {':'.join(etype)} has no weight, but weight={weight!r}; its columns: {known}")
    return {WEIGHT if column == name else column: values for column, values in columns.items()}


@dataclass(frozen=True)
class _EdgeTable:
    src: np.ndarray
    dst: np.ndarray
    data: Columns

    def take(self, which: np.ndarray) -> _EdgeTable:
        """The edges at these positions, or where a mask is true."""
        return _EdgeTable(self.src[which], self.dst[which], {name: v[which] for name, v in self.data.items()})


def _count(counts: dict[str, int], what: str, number: int) -> None:
    if number:
        counts[what] = counts.get(what, 0) + number


def _mirrored(table: _EdgeTable, each: bool, num_nodes: int, counts: dict[str, int]) -> _EdgeTable:
    """With the reverse of every edge (``each``) or of those whose reverse is not there; loops are their own reverse."""
    add = table.src != table.dst
    if not each:
        forward, backward = _keys(table.src, table.dst, num_nodes), _keys(table.dst, table.src, num_nodes)
        add &= ~np.isin(backward, forward)
    extra = table.take(add)
    _count(counts, "reverse edges added", len(extra.src))
    return _EdgeTable(
        np.concatenate([table.src, extra.dst]),
        np.concatenate([table.dst, extra.src]),
        {name: np.concatenate([values, extra.data[name]]) for name, values in table.data.items()},
    )


def _merged(table: _EdgeTable, policy: str, num_destinations: int, counts: dict[str, int]) -> _EdgeTable:
    """Each (source, destination) once, at its first place, with its first data; "sum" adds the weights up."""
    keys = _keys(table.src, table.dst, num_destinations)
    if policy == "keep":
        if not (keys[1:] > keys[:-1]).all():
            keys.sort()
        _count(counts, DUPLICATES_KEPT, int((keys[1:] == keys[:-1]).sum()))
        return table
    _, first, group, size = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    _count(counts, f"duplicate edges {'summed' if policy == 'sum' else 'dropped'}", len(keys) - len(first))
    if len(first) == len(keys) and (policy == "first" or WEIGHT in table.data):
        return table
    order = np.argsort(first)
    merged = table.take(first[order])
    if policy == "sum":
        weights = table.data.get(WEIGHT)
        if weights is None:
            total = size.astype(np.float32)
        else:
            kind = weights.dtype if weights.dtype.kind == "f" else np.int64
            total = np.bincount(group.ravel(), weights=weights.astype(np.float64)).astype(kind)
        merged.data[WEIGHT] = total[order]
    return merged


def _keys(src: np.ndarray, dst: np.ndarray, num_destinations: int) -> np.ndarray:
    """One int64 for each pair; fits up to three billion nodes of a type."""
    return src.astype(np.int64) * max(num_destinations, 1) + dst


def _without_isolated(graph: HeteroGraph) -> HeteroGraph:
    """Without nodes that no edge touches; what is left keeps its order and its original ids."""
    keep = {ntype: np.zeros(num, dtype=bool) for ntype, num in graph.num_nodes.items()}
    for (source, _, destination), (src, dst) in graph.edges.items():
        keep[source][src] = True
        keep[destination][dst] = True
    num_nodes = {ntype: int(mask.sum()) for ntype, mask in keep.items()}
    if num_nodes == graph.num_nodes:
        return graph
    if not any(num_nodes.values()):
        raise DataError("no node has an edge, so isolated='drop' leaves nothing; use isolated='keep'")
    number = {ntype: np.cumsum(mask, dtype=np.int64) - 1 for ntype, mask in keep.items()}
    ids = dict(graph.node_ids)
    for ntype, mask in keep.items():
        if num_nodes[ntype] < len(mask):
            ids[ntype] = ids[ntype][mask] if ntype in ids else np.flatnonzero(mask)
    counts = dict(graph.counts)
    _count(counts, "isolated nodes dropped", graph.total_nodes - sum(num_nodes.values()))
    return replace(
        graph,
        num_nodes=num_nodes,
        edges={e: (number[e[0]][src], number[e[2]][dst]) for e, (src, dst) in graph.edges.items()},
        node_data={
            ntype: {name: values[keep[ntype]] for name, values in columns.items()}
            for ntype, columns in graph.node_data.items()
        },
        node_ids=ids,
        counts=counts,
    )
