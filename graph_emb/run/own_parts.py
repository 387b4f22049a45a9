"""A trainer's share of a partition: read from the parts in which it lies, completed by the other trainers.

No process has the whole graph. Numbers of edges and nodes are the original ones, so that what follows from them (order
of neighbours, samples, first rows) is as on the whole graph. ``graph_emb.graph.views`` makes the same views of that.
"""

# N nodes of a type, R of them with this rank, E edges into them, D columns.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from graph_emb.core.compiled import mix64
from graph_emb.core.errors import DataError
from graph_emb.graph.csr import Duplicates, Graph
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.dgl_format import MappedRows
from graph_emb.graph.ids import are_among
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.readers.source import REVERSE_PREFIX, WEIGHT
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph
from graph_emb.graph.views import ADDED, MERGED, named_triples, with_reverses
from graph_emb.run.parallel import Share, Trainers
from graph_emb.sampling.blocks import BlockEdges, starts_of
from graph_emb.sampling.part_graph import PartGraph, to_owners
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from partition import PartitionedGraph
from partition.partitioned import PartPolicy
from partition.relabel import inverse

FEATURES = "feat"
"""The column of a node type's features, in parts that were cut for the trainers too."""
EDGES_AT_ONCE = 1 << 20
TRIPLES_AT_ONCE = 1 << 17
"""Of a process whose memory may hold few: a triple takes 100 bytes on its way."""
Arcs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]
"""Sources, destinations, original numbers and a column of edges, (E,) each."""


def own_edges(parts: PartitionedGraph, ranks: Trainers) -> OwnEdges:
    """The edges into this rank's nodes as they are stored."""
    own = _own_nodes(parts, ranks)
    return replace(own, edges={etype: _arriving(parts, etype, own) for etype in parts.etypes})


def message_edges(parts: PartitionedGraph, ranks: Trainers, *, merge_within: bool = False) -> OwnEdges:
    """The edges into this rank's nodes in the graph of ``typed_nodes``. Every rank calls it.

    Edges of a graph of one node and one edge type are numbered rank after rank, others as in that graph.

    Args:
        merge_within: As of ``typed_nodes``.
    """
    own = _own_nodes(parts, ranks)
    if is_plain(parts):
        return _both_ways(parts, own)
    reverses = _reverses(parts, own)
    edges = {}
    for etype in message_types(parts, merge_within, tuple(reverses.values())):
        turned = etype[2], etype[1].removeprefix(REVERSE_PREFIX), etype[0]
        if etype not in parts.etypes or etype in reverses.values():
            known = reverses.get(turned)
            edges[etype] = _leaving(parts, turned, own) if known is None else _arriving(parts, known, own)
        elif merge_within and etype[0] == etype[2]:
            edges[etype] = _both(_arriving(parts, etype, own), _leaving(parts, etype, own), parts.num_edges(etype))
        else:
            edges[etype] = _arriving(parts, etype, own)
    return replace(own, edges=edges)


def message_types(parts: PartitionedGraph, merge_within: bool, reverses: Sequence[EdgeType]) -> list[EdgeType]:
    """The edge types of the graph of ``typed_nodes``, in order, where ``reverses`` are the reverses of other types."""
    if is_plain(parts):
        return [EDGE_TYPE]
    nothing = np.empty(0, np.int64)
    given = {etype: (nothing, nothing) for etype in parts.etypes if etype not in reverses}
    types = HeteroGraph({ntype: parts.num_nodes(ntype) for ntype in parts.ntypes}, given, symmetric=parts.symmetric)
    return with_reverses(types, merge_within).etypes


def named_reverses(parts: PartitionedGraph) -> dict[EdgeType, EdgeType]:
    """By edge type the one with the name of its reverse, where there is one with as many edges."""
    found = {}
    for etype in parts.etypes:
        turned = etype[2], etype[1].removeprefix(REVERSE_PREFIX), etype[0]
        if turned[1] != etype[1] and turned in parts.etypes and parts.num_edges(turned) == parts.num_edges(etype):
            found[turned] = etype
    return found


def is_plain(parts: PartitionedGraph) -> bool:
    """Whether the graph has one node and one edge type and no relations, see ``graph_emb.graph.views.is_plain``."""
    return len(parts.ntypes) == len(parts.etypes) == 1 and RELATION not in parts.part(parts.at_hand).edge_data()


@dataclass(frozen=True)
class OwnArcs:
    """A rank's rows of the undirected graph that walks take.

    Attributes:
        share: The arcs that leave this rank's nodes, who owns which row, and on the first rank the order of all.
        num_edges: Of all ranks.
        counts: Edges of all ranks that were merged and added, as ``compressed`` counts them.
    """

    share: Share
    num_edges: int
    counts: dict[str, int]


def own_arcs(parts: PartitionedGraph, ranks: Trainers, duplicates: Duplicates | None) -> OwnArcs:
    """This rank's rows of ``plain_dataset(...).graph`` with the reverse of every arc. Every rank calls it.

    They are made as those of the whole graph, of the arcs that leave or reach this rank's nodes.

    Args:
        duplicates: As of ``plain_dataset``.
    """
    if duplicates is None:
        duplicates = "sum" if parts.repeats == "sum" and WEIGHT in parts.part(parts.at_hand).edge_data() else "first"
    group, (etype,), places = ranks.group, parts.etypes, ranks.layout(parts.books[parts.ntypes[0]])
    low, high = places.owned(ranks.rank)
    src, dst, ids, weights = _stored(parts, etype, places, ranks.rank, column=WEIGHT)
    columns = (dst, ids) if weights is None else (dst, ids, weights)
    heads, others = to_owners(src, columns, places, group)
    far = (others[0] < low) | (others[0] >= high)  # the others are among the arcs that reach this rank's nodes
    order = np.argsort(np.concatenate([ids, others[1][far]]))  # as the input lists them
    numbers = parts.node_map() if parts.has_id_map("node") else np.arange(parts.num_nodes())
    src, dst = (
        numbers[np.concatenate(pair)[order]].astype(np.int64) for pair in ((src, heads[far]), (dst, others[0][far]))
    )
    if weights is not None:
        weights = np.concatenate([weights, others[2][far]])[order]
    given = Graph.from_edges(src, dst, parts.num_nodes(), weights, directed=True, duplicates=duplicates)
    names = np.sort(numbers[low:high])
    weighted = any(group.gather_objects(given.weights is not None, "weights"))
    if not weighted or all(group.gather_objects(_equal_both_ways(given, names), "weights of both directions")):
        found = given.to_undirected("first")
    else:
        found = Graph.from_edges(src, dst, parts.num_nodes(), weights, duplicates=duplicates)
    loops = int(found.has_edges(names, names).sum())
    told = [int(given.degrees()[names].sum()), int(found.degrees()[names].sum()), loops, int(found.weights is not None)]
    arcs, out, loops, weighted = (sum(column) for column in zip(*group.gather_objects(told, "arcs"), strict=True))
    counts = {MERGED: parts.num_edges() - arcs, ADDED: out - arcs}
    inside = np.zeros(parts.num_nodes(), dtype=bool)
    inside[names] = True
    mine = inside[found.sources()]
    heads, tails = (original_ids(parts.policy()).find(ends[mine]) for ends in (found.sources(), found.indices))
    values = _weights(found)[mine] if weighted else None
    graph = PartGraph.from_arcs(heads, tails, places, ranks.rank, weights=values)
    share = Share(graph, policies_of(parts)[NODE_TYPE], np.array(numbers) if ranks.rank == 0 else None)
    return OwnArcs(share, (out + loops) // 2, {what: count for what, count in counts.items() if count})


def _equal_both_ways(graph: Graph, names: np.ndarray) -> bool:
    """Whether each arc of some nodes has its reverse with the same weight."""
    back = graph.reverse()
    inside = np.zeros(graph.num_nodes, dtype=bool)
    inside[names] = True
    mine, theirs = inside[graph.sources()], inside[back.sources()]
    same = np.array_equal(graph.degrees()[names], back.degrees()[names])
    same = same and np.array_equal(graph.indices[mine], back.indices[theirs])
    return same and np.allclose(_weights(graph)[mine], _weights(back)[theirs], rtol=1e-6, atol=0)


def _weights(graph: Graph) -> NDArray[np.float32]:
    return np.ones(graph.num_arcs, np.float32) if graph.weights is None else graph.weights


def data_of(parts: PartitionedGraph, rows: Mapping[str, tuple[int, int]]) -> tuple[Dataset, dict[str, MappedRows]]:
    """Labels and splits of some nodes, each type counted from its first one, and their features.

    They are those that ``load_dataset`` finds among the columns of the whole graph, by the partition's names of types.

    Args:
        parts: The partition.
        rows: The nodes [low, high) of each type, in partition order; of none, the result says what columns there are.
    """
    small: dict[str, dict[str, np.ndarray]] = {}
    features = {}
    for ntype in parts.ntypes:
        pieces = _columns(parts, ntype, *rows[ntype])
        if FEATURES in pieces:
            features[ntype] = MappedRows(pieces[FEATURES])
        small[ntype] = _small(pieces)
    counts = {ntype: high - low for ntype, (low, high) in rows.items()}
    return Dataset.of_graph(HeteroGraph(counts, {}, small, name=parts.name), parts.path.name), features


def knowledge_graph_of(parts: PartitionedGraph) -> KnowledgeGraph:
    """What ``graph_emb.graph.views.knowledge_graph`` has of a partition, without the triples to train on."""
    data = all_nodes(parts)
    graph = replace(data.graph, relation_names=parts.relation_names, held_out=parts.held_out())
    num_triples = sum(parts.num_edges(etype) for etype in parts.etypes)
    return named_triples(data.name, graph, {}, train_elsewhere=num_triples)


def triples_in_pieces(parts: PartitionedGraph) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The triples of ``knowledge_graph``, part after part and some at a time: places in it, (n,), and triples,
    (n, 3).
    """
    offsets = _first_entities(parts)
    before = 0
    for number, etype in enumerate(parts.etypes):
        original = original_ids(parts.policy(etype=etype))
        for index in range(parts.num_parts):
            part = parts.part(index)
            rows, given = part.edge_rows(etype), part.edge_data(etype).get(RELATION)
            for start in range(rows.start, rows.stop, TRIPLES_AT_ONCE):
                stop = min(start + TRIPLES_AT_ONCE, rows.stop)
                here = slice(start - rows.start, stop - rows.start)
                heads, tails = (
                    original_ids_at(parts, ntype, own) + offsets[ntype]
                    for ntype, own in zip((etype[0], etype[2]), part.ends(etype, here), strict=True)
                )
                relations = np.full(stop - start, number) if given is None else given[here]
                yield original.of(start, stop) + before, np.stack([heads, relations, tails], axis=1).astype(np.int64)
                part.forget()
        before += parts.num_edges(etype)


def _first_entities(parts: PartitionedGraph) -> dict[str, int]:
    """The number of the first entity of each node type."""
    return dict(zip(parts.ntypes, np.cumsum([0, *map(parts.num_nodes, parts.ntypes)]).tolist(), strict=False))


def own_triples(
    parts: PartitionedGraph, ranks: Trainers, held: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, int]:
    """The triples that this rank reads, those of all ranks being those of ``knowledge_graph``. Every rank calls it.

    Args:
        held: Held-out triples by part, which are left out.
    Returns:
        Shape (M, 3), their places among all that are left, (M,), and how many of all ranks were left out.
    Raises:
        DataError: none is left.
    """
    offsets = _first_entities(parts)
    pieces, places, before = [], [], 0
    for number, etype in enumerate(parts.etypes):
        of_tails = ranks.layout(parts.books[etype[2]])
        src, dst, ids, relations = _stored(parts, etype, of_tails, ranks.rank, column=RELATION)
        relations = np.full(len(src), number) if relations is None else relations
        ends = [
            original_ids_at(parts, ntype, own) + offsets[ntype] for ntype, own in ((etype[0], src), (etype[2], dst))
        ]
        pieces.append(np.stack([ends[0], relations, ends[1]], axis=1).astype(np.int64))
        places.append(ids + before)
        before += parts.num_edges(etype)
    triples, numbers = np.concatenate(pieces), np.concatenate(places)
    if not held:
        return triples, numbers, 0
    out = np.concatenate(list(held.values()))
    most = np.concatenate([triples, out]).max(axis=0) + 1
    gone = are_among(np.ravel_multi_index(triples.T, most), np.ravel_multi_index(out.T, most))
    removed = np.sort(np.concatenate(ranks.group.gather_objects(numbers[gone], "held-out triples")))
    if len(removed) == before:
        raise DataError(f"{parts.name}: all {before} training triples are held out; none is left to train on")
    triples, numbers = triples[~gone], numbers[~gone]
    return triples, numbers - np.searchsorted(removed, numbers), len(removed)


def original_ids_at(parts: PartitionedGraph, ntype: str, nodes: np.ndarray) -> np.ndarray:
    """The original numbers of nodes of a type, (B,)."""
    return parts.node_map(ntype)[nodes] if parts.has_id_map("node") else nodes


def all_nodes(parts: PartitionedGraph) -> Dataset:
    """The data set without edges and features, in its original order: types, ids, labels and splits of all nodes."""
    data: dict[str, dict[str, np.ndarray]] = {}
    ids = {}
    for ntype in parts.ntypes:
        order = parts.node_map(ntype) if parts.has_id_map("node") else np.arange(parts.num_nodes(ntype))
        stored = _small(_columns(parts, ntype, 0, parts.num_nodes(ntype)))
        data[ntype] = {name: column[inverse(order)] for name, column in stored.items()}
        if (own := parts.input_ids(ntype)) is not None:
            ids[ntype] = own
    counts = {ntype: parts.num_nodes(ntype) for ntype in parts.ntypes}
    nothing = np.empty(0, np.int64)
    edges, columns = dict.fromkeys(parts.etypes, (nothing, nothing)), {}
    for etype in parts.etypes:
        columns[etype] = {name: nothing for name in parts.part(parts.at_hand).edge_data(etype) if name == RELATION}
    graph = HeteroGraph(counts, edges, data, columns, ids, name=parts.name, held_out=parts.held_out())
    return Dataset.of_graph(graph, parts.path.name)


def _columns(parts: PartitionedGraph, ntype: str, low: int, high: int) -> dict[str, list[np.ndarray]]:
    """The columns of the nodes [low, high) of a type, a piece from each part that has some, from one at least."""
    pieces: dict[str, list[np.ndarray]] = {}
    for index in range(parts.num_parts):
        part = parts.part(index)
        rows = part.node_rows(ntype)
        here = slice(max(low - rows.start, 0), max(high - rows.start, 0))
        if index == parts.at_hand or (low < rows.stop and high > rows.start):
            for name, column in part.node_data(ntype).items():
                pieces.setdefault(name, []).append(column[here])
    return pieces


def _small(pieces: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """Labels, and what may be a mask."""
    return {name: np.concatenate(found) for name, found in pieces.items() if name == "label" or found[0].ndim == 1}


def policies_of(parts: PartitionedGraph) -> dict[str, PartPolicy]:
    """Who owns which node, by the names of types that ``message_edges`` uses."""
    if is_plain(parts):
        return {NODE_TYPE: replace(parts.policy(), policy_str=f"node~{NODE_TYPE}")}
    return {ntype: parts.policy(ntype) for ntype in parts.ntypes}


def _own_nodes(parts: PartitionedGraph, ranks: Trainers) -> OwnEdges:
    """A rank's nodes, without edges yet."""
    places = {ntype: ranks.layout(parts.books[ntype]) for ntype in parts.ntypes}
    numbers = {ntype: original_ids(parts.policy(ntype)) for ntype in parts.ntypes}
    names = {t: torch.from_numpy(numbers[t].of(*of_type.owned(ranks.rank))) for t, of_type in places.items()}
    return OwnEdges({ntype: parts.num_nodes(ntype) for ntype in parts.ntypes}, places, names, {}, ranks.group)


def original_ids(policy: PartPolicy) -> OriginalIds:
    """The original numbers of a type's ids: the ids themselves where DGL wrote the partition without id maps."""
    return SameIds(policy.book.num_rows) if policy.original_ids is None else policy.original_ids


def _stored(
    parts: PartitionedGraph, etype: EdgeType, places: RankRanges, rank: int, *, column: str | None = None
) -> Arcs:
    """The edges of a type into a rank's nodes: both ends in partition order, and a column, if any."""
    low, high = places.owned(rank)
    starts = parts.nodes.typed_starts[:, parts.node_type_id(etype[2])]
    # An edge lies with its destination.
    indices = [index for index in range(parts.num_parts) if starts[index] < high and starts[index + 1] > low]
    room = sum(rows.stop - rows.start for rows in (parts.part(index).edge_rows(etype) for index in indices))
    src, dst, ids = (np.empty(room, np.int64) for _ in range(3))
    original, filled = original_ids(parts.policy(etype=etype)), 0
    like = None if column is None else parts.part(parts.at_hand).edge_data(etype).get(column)
    values = None if like is None else np.empty(room, like.dtype)
    for index in indices:
        part = parts.part(index)
        rows = part.edge_rows(etype)
        given = None if column is None or values is None else part.edge_data(etype)[column]
        for start in range(rows.start, rows.stop, EDGES_AT_ONCE):
            stop = min(start + EDGES_AT_ONCE, rows.stop)
            ends = part.ends(etype, slice(start - rows.start, stop - rows.start))
            mine = (ends[1] >= low) & (ends[1] < high)
            found = slice(filled, filled + int(mine.sum()))
            src[found], dst[found], ids[found] = ends[0][mine], ends[1][mine], original.of(start, stop)[mine]
            if values is not None and given is not None:
                values[found] = given[start - rows.start : stop - rows.start][mine]
            filled = found.stop
            part.forget()
    return src[:filled], dst[:filled], ids[:filled], None if values is None else values[:filled]


def _arriving(parts: PartitionedGraph, etype: EdgeType, own: OwnEdges) -> BlockEdges:
    """The stored edges of a type into this rank's nodes."""
    places, rank = own.places[etype[2]], own.group.rank
    src, dst, ids, _ = _stored(parts, etype, places, rank)
    dst -= places.owned(rank)[0]
    return _grouped(src, dst, ids, parts.num_nodes(etype[0]), len(own.names[etype[2]]))


def _leaving(parts: PartitionedGraph, etype: EdgeType, own: OwnEdges) -> BlockEdges:
    """The edges of a type that leave this rank's nodes, turned round; they come from the owners of their other ends."""
    rank, places = own.group.rank, own.places[etype[0]]
    src, dst, ids, _ = _stored(parts, etype, own.places[etype[2]], rank)
    src, (dst, ids) = to_owners(src, (dst, ids), places, own.group)
    src -= places.owned(rank)[0]
    return _grouped(dst, src, ids, parts.num_nodes(etype[2]), len(own.names[etype[0]]))


def _grouped(src: np.ndarray, dst: np.ndarray, ids: np.ndarray, num_sources: int, num_destinations: int) -> BlockEdges:
    """Edges by destination, those of a node in the order of their numbers, as partitions of ours store them."""
    rises = (dst[1:] > dst[:-1]) | ((dst[1:] == dst[:-1]) & (ids[1:] > ids[:-1]))
    if not rises.all():
        order = np.lexsort((ids, dst))
        src, ids = src[order], ids[order]
    starts = starts_of(torch.from_numpy(dst), num_destinations)
    return BlockEdges(starts, torch.from_numpy(src), num_sources, torch.from_numpy(ids))


def _both(ahead: BlockEdges, back: BlockEdges, num_edges: int) -> BlockEdges:
    """Edges and the same edges turned round as one type: the latter are numbered behind the former."""
    src = torch.cat([ahead.sources, back.sources]).numpy()
    dst = torch.cat([ahead.destinations, back.destinations]).numpy()
    ids = torch.cat([ahead.edge_ids, back.edge_ids + num_edges]).numpy()
    return _grouped(src, dst, ids, ahead.num_sources, ahead.num_destinations)


def _both_ways(parts: PartitionedGraph, own: OwnEdges) -> OwnEdges:
    """The neighbours of this rank's nodes along and against the edges of the only type, each once, by their numbers."""
    ((ntype, places),), (etype,), rank = own.places.items(), parts.etypes, own.group.rank
    src, dst, _, _ = _stored(parts, etype, places, rank)
    if not parts.symmetric:
        turned, (others,) = to_owners(src, (dst,), places, own.group)
        src, dst = np.concatenate([src, others]), np.concatenate([dst, turned])
        del others, turned
    dst -= places.owned(rank)[0]
    num_nodes = parts.num_nodes()
    numbers = parts.node_map()[src] if parts.has_id_map("node") else src
    keys = dst * num_nodes + numbers
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    src, dst = src[order[first]], keys[first] // num_nodes
    before = sum(own.group.gather_objects(len(src), "numbers of edges")[:rank])
    ids = np.arange(before, before + len(src))
    edges = {EDGE_TYPE: _grouped(src, dst, ids, num_nodes, len(own.names[ntype]))}
    by_type = {name: {NODE_TYPE: getattr(own, name)[ntype]} for name in ("num_nodes", "places", "names")}
    return OwnEdges(edges=edges, group=own.group, **by_type)


def _reverses(parts: PartitionedGraph, own: OwnEdges) -> dict[EdgeType, EdgeType]:
    """By edge type the one that is its reverse, edge by edge, see ``graph_emb.graph.views.without_reverse``.

    Edges are compared by the sums of their hashes: they need not travel.
    """
    named, rank, sums = named_reverses(parts), own.group.rank, []
    for turned, etype in named.items():
        heads, tails, ids, _ = _stored(parts, turned, own.places[turned[2]], rank)
        one = int(_hashes(ids, heads, tails))
        tails, heads, ids, _ = _stored(parts, etype, own.places[etype[2]], rank)
        sums.append([one, int(_hashes(ids, heads, tails))])
    told = own.group.gather_objects(sums, "reverse edge types")
    totals = [[sum(of_ranks) % (1 << 64) for of_ranks in zip(*pair, strict=True)] for pair in zip(*told, strict=True)]
    return {turned: etype for (turned, etype), (one, two) in zip(named.items(), totals, strict=True) if one == two}


@njit(cache=True, nogil=True)
def _hashes(ids: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> np.uint64:
    """The sum of 64-bit hashes of (id, head, tail), (E,) each, modulo 2**64: of the same ones in any order the same."""
    total = np.uint64(0)
    for e in range(len(ids)):
        state = mix64(np.uint64(ids[e]) + np.uint64(1))
        state = mix64(state ^ np.uint64(heads[e]))
        total += mix64((state << np.uint64(1)) ^ np.uint64(tails[e]) ^ (state >> np.uint64(63)))
    return total
