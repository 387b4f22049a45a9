"""A partition whose graph has grown: new nodes go to their neighbours' parts, and no node that was there moves.

Legend: N nodes, P parts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.threads import thread_count
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.building import build
from partition.methods.base import assign
from partition.methods.nodewise import Placed
from partition.partitioned import PartitionedGraph, load
from partition.problem import constraints, symmetric

log = logging.getLogger("graph_emb.partition.extending")

PAYS = 1.15
"""A repartition pays where the cut is more than this many times what it would be, or was when all was partitioned."""
PASSES = 3
"""Over the new nodes; the later ones see where the others went."""
Ends = tuple[np.ndarray, np.ndarray]


def extend(
    source: str | Path,
    new_edges: Ends | Mapping[EdgeType, Ends],
    new_nodes: int | Mapping[str, int] = 0,
    *,
    out: str | Path,
    node_data: Mapping[str, Mapping[str, Any]] | None = None,
    edge_data: Mapping[EdgeType, Mapping[str, Any]] | None = None,
    node_ids: Mapping[str, Any] | None = None,
    balance: Sequence[str] = ("nodes", "edges"),
    tolerance: float | Mapping[str, float] | None = None,
    compare: bool = False,
    seed: int = 0,
    num_threads: int | None = None,
    **options: Any,
) -> PartitionedGraph:
    """Write the partition of a graph that has grown; every node that was there keeps its part.

    A new node goes to the part with most of its neighbours among those with room, of equal ones to the emptiest (the
    greedy rule of Stanton and Kliot, KDD 2012), in the order of ids and in three passes. Positions of old nodes in the
    input stay; new ones follow them, so that rows of a checkpoint load by original id with ``allow_new_rows=True``.
    What old nodes and edges were judged by (``held_out``) is left out. ``made["extended"]`` of the manifest, and the
    report's ``why``, say how the cut compares, and whether a repartition pays.

    Args:
        source: The partition; it stays as it is.
        new_edges: Sources and destinations, (E,) integers each, positions in the input, old or new; by edge type where
            there are several.
        new_nodes: How many; by node type where there are several.
        out: Folder of the new partition.
        node_data, edge_data, node_ids: Of the new nodes and edges, by type: whatever the graph has of old ones.
        balance, tolerance, seed, num_threads: As ``build``. A part that is above its limit takes no node while others
            have room.
        compare: Also partition the grown graph anew, in memory, to compare with; else with the old cut.
        options: Others of ``build``, such as ``halo`` and ``overwrite``.
    Raises:
        ConfigError: an option is wrong, or data of new nodes or edges is missing.
        PartitionError: a node of a new edge does not exist.
        DataError: a part of the source is not here.
    """
    whole = load(source)
    before, old = whole.assignment(), whole.to_graph()
    graph = grown(old, new_edges, new_nodes, node_data or {}, edge_data or {}, node_ids or {})
    known = whole.manifest.made.get("extended", {}) if whole.manifest else {}
    found = extended(
        graph, before, balance=balance, tolerance=tolerance, edge_owner=whole.edge_owner, num_threads=num_threads
    )
    cut, first = cut_share(graph, found), known.get("partitioned_cut", cut_share(old, before))
    told: dict[str, Any] = {
        "times": int(known.get("times", 0)) + 1,
        "new_nodes": graph.total_nodes - old.total_nodes,
        "cut": cut,
        "partitioned_cut": first,
    }
    other, what = first, "when all of it was partitioned"
    if compare:
        chosen: dict[str, Any] = {"balance": balance, "tolerance": tolerance, "seed": seed, "num_threads": num_threads}
        anew = assign(graph, before.num_parts, edge_owner=whole.edge_owner, **chosen)
        other, what = cut_share(graph, anew), "partitioned anew"
        told["anew"] = {"cut": other, "balance": anew.balance}
    told["repartition_pays"] = pays = cut > PAYS * other
    why = f"{told['new_nodes']:,} new nodes by their neighbours' parts: {cut:.1%} of the edges are cut, {other:.1%} "
    why += what
    why += "; a repartition pays" if pays else ""
    log.info("%s: %s", out, why)
    found = replace(found, method=before.method, seed=before.seed, why=why, extended=told)
    options = {"edge_owner": whole.edge_owner, "num_threads": num_threads, **options}
    return build(graph, assignment=found, out=out, **options)


def grown(
    old: HeteroGraph,
    new_edges: Ends | Mapping[EdgeType, Ends],
    new_nodes: int | Mapping[str, int],
    node_data: Mapping[str, Mapping[str, Any]],
    edge_data: Mapping[EdgeType, Mapping[str, Any]],
    node_ids: Mapping[str, Any],
) -> HeteroGraph:
    """A graph with more nodes at the end of each type and more edges; arguments and errors as ``extend``."""
    nodes = _by_type("new_nodes", new_nodes, list(old.num_nodes))
    edges = _by_type("new_edges", new_edges, list(old.edges))
    num_nodes = {ntype: num + int(nodes.get(ntype, 0)) for ntype, num in old.num_nodes.items()}
    if any(int(more) < 0 for more in nodes.values()):
        raise ConfigError(f"new_nodes={new_nodes!r}: no number may be negative")
    ends: dict[EdgeType, Ends] = {}
    for etype, (src, dst) in old.edges.items():
        more = [_ends(etype, side) for side in edges.get(etype, ((), ()))]
        if len(more) != 2 or len(more[0]) != len(more[1]):
            raise ConfigError(
                f"new_edges of {etype!r}: {[len(side) for side in more]} ends; give as many of both kinds"
            )
        for side, ntype in zip(more, (etype[0], etype[2]), strict=True):
            wrong = np.flatnonzero((side < 0) | (side >= num_nodes[ntype]))
            if len(wrong):
                raise PartitionError(
                    f"new_edges: node {side[wrong[0]]} of type {ntype!r} is outside [0, {num_nodes[ntype]}); "
                    "give new_nodes"
                )
        ends[etype] = np.concatenate([src, more[0]]), np.concatenate([dst, more[1]])
    fresh = {ntype: num_nodes[ntype] - num for ntype, num in old.num_nodes.items()}
    longer = {etype: len(ends[etype][0]) - len(src) for etype, (src, _) in old.edges.items()}
    ids = {t: _more(f"node_ids of {t!r}", ids, node_ids.get(t), fresh[t]) for t, ids in old.node_ids.items()}
    if old.held_out is not None:
        log.warning("what the old graph's nodes and edges were judged by is not part of the grown one")
    return replace(
        old,
        num_nodes=num_nodes,
        edges=ends,
        node_data={t: _columns("node_data", t, of, node_data.get(t, {}), fresh[t]) for t, of in old.node_data.items()},
        edge_data={t: _columns("edge_data", t, of, edge_data.get(t, {}), longer[t]) for t, of in old.edge_data.items()},
        node_ids=ids,
        held_out=None,
        symmetric=False,
    )


def _ends(etype: EdgeType, side: Any) -> np.ndarray:
    found = np.asarray(side)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(f"new_edges of {etype!r}: ends of shape {found.shape} and {found.dtype}; give integers, (E,)")
    return found.astype(np.int64)


def _by_type(what: str, given: Any, types: list[Any]) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        if len(types) > 1:
            raise ConfigError(f"{what}: the graph has types {types}; give them by type")
        return {types[0]: given}
    for name in given:
        if name not in types:
            raise ConfigError(f"{what}: unknown type {name!r}; known: {types}")
    return given


def _columns(what: str, kind: Any, old: dict[str, np.ndarray], new: Mapping[str, Any], num: int) -> dict[str, Any]:
    if more := sorted(set(new) - set(old)):
        raise ConfigError(f"{what} of {kind!r}: the graph has no column {more[0]!r}; it has {', '.join(sorted(old))}")
    return {name: _more(f"{what} of {kind!r}: {name!r}", column, new.get(name), num) for name, column in old.items()}


def _more(what: str, old: np.ndarray, new: Any, num: int) -> np.ndarray:
    if new is None:
        if not num:
            return old
        raise ConfigError(f"{what} is missing for {num} new ones; the old ones have it")
    found = np.asarray(new)
    if found.shape != (num, *old.shape[1:]):
        raise ConfigError(f"{what} has shape {found.shape} for {num} new ones; expected {(num, *old.shape[1:])}")
    return np.concatenate([old, found if old.dtype.kind == "U" else found.astype(old.dtype)])


def extended(
    graph: HeteroGraph,
    before: Assignment,
    *,
    balance: Sequence[str] = ("nodes", "edges"),
    tolerance: float | Mapping[str, float] | None = None,
    edge_owner: EdgeOwner = "destination",
    num_threads: int | None = None,
) -> Assignment:
    """The parts of a graph whose first nodes of each type have those of ``before``; looks at new nodes' edges alone."""
    began, threads = time.perf_counter(), thread_count(num_threads)
    parts = np.full(graph.total_nodes, -1, np.int32)
    for ntype, start in graph.node_offsets.items():
        parts[start : start + len(before.parts[ntype])] = before.parts[ntype]
    new = np.flatnonzero(parts < 0)
    wanted = constraints(graph, balance, tolerance, edge_owner=edge_owner, num_threads=threads)
    if len(new):
        touching = {}
        for etype, (src, dst) in graph.edges.items():
            is_new = (src >= len(before.parts[etype[0]])) | (dst >= len(before.parts[etype[2]]))
            touching[etype] = src[is_new], dst[is_new]
        lean = HeteroGraph(dict(graph.num_nodes), touching, name=graph.name)
        adjacency = symmetric(lean, num_threads=threads)
        placed = Placed(wanted, before.num_parts, 0.0, fennel=True, parts=parts)  # a price of 0: neighbours alone count
        for _ in range(PASSES):
            placed.place(new, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    found = Assignment.of_homogeneous(graph, parts, before.num_parts, balance=wanted.balance(parts, before.num_parts))
    return replace(found, seconds=time.perf_counter() - began)


def cut_share(graph: HeteroGraph, assignment: Assignment) -> float:
    """The share of the edges with ends in two parts; 0 of a graph without edges."""
    cut = sum(
        int((assignment.parts[etype[0]][src] != assignment.parts[etype[2]][dst]).sum())
        for etype, (src, dst) in graph.edges.items()
    )
    return cut / graph.total_edges if graph.total_edges else 0.0
