"""A partition whose graph has grown: new nodes go to their neighbours' parts, and no node that was there moves.

Legend: N nodes, P parts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, check_flags
from graph_emb.core.paths import user_path
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.grown import Ends, grown, grown_by
from graph_emb.graph.typed import NODE_TYPE, EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.building import build
from partition.methods.base import assign, check_seed
from partition.methods.coarsening import Level
from partition.methods.effort import MultilevelSettings
from partition.methods.multilevel import Parts, descend
from partition.methods.nodewise import Placed
from partition.nesting import ROOM
from partition.options import with_options
from partition.partitioned import PartitionedGraph, load
from partition.problem import Constraints, constraints, symmetric
from partition.trainers import without_trainers

log = logging.getLogger("graph_emb.partition.extending")

PAYS = 1.15
"""A repartition pays where the cut is more than this many times what it would be, or was when all was partitioned."""
NOT_OF_PLACED = ("assignment", "num_parts", "method", "method_options", "num_trainers_per_machine", "memory")
"""Options of a build that mean nothing where nodes have their parts already."""
PASSES = 3
"""Over the new nodes; the later ones see where the others went."""


@partial(with_options, without=NOT_OF_PLACED)
def extend(
    source: str | Path,
    new_edges: Ends | Mapping[EdgeType, Ends] | HeteroGraph | str | Path,
    new_nodes: int | Mapping[str, int] = 0,
    *,
    out: str | Path,
    node_data: Mapping[str, Mapping[str, Any]] | None = None,
    edge_data: Mapping[EdgeType, Mapping[str, Any]] | None = None,
    node_ids: Mapping[str, Any] | None = None,
    reader_options: Mapping[str, Any] | None = None,
    balance: Sequence[str] = ("nodes", "edges"),
    tolerance: float | Mapping[str, float] | None = None,
    compare: bool = False,
    seed: int = 0,
    num_threads: int | None = None,
    **options: Any,
) -> PartitionedGraph:
    """Write the partition of a graph that has grown; every node that was there keeps its part.

    A new node goes to the part with most of its neighbours among those with room, of equal ones to the emptiest (the
    greedy rule of Stanton and Kliot, KDD 2012), in the order of ids and in three passes. Then groups of new nodes that
    know each other move where that lowers the cut, down one cycle of the multilevel method, see ``together``. Positions
    of old nodes in the input stay; new ones follow them, so that rows of a checkpoint load by original id with
    ``allow_new_rows=True``. A symmetric graph stays one, and what old nodes and edges are judged by stays, see
    ``graph_emb.graph.grown.grown``.
    Levels stay too: a new node joins the finest part with most of its neighbours inside its own part, and the chain of
    that one; ``levels`` makes them anew. ``made["extended"]`` of the manifest, and the report's ``why``, say how the
    cut compares, and whether a repartition pays.

    Args:
        source: The partition; it stays as it is.
        new_edges: Sources and destinations, (E,) integers each, positions in the input, old or new; by edge type where
            there are several. Or a graph, a path that ``read_graph`` takes or a HeteroGraph, whose nodes are known by
            the ids of the input: ids that are not there are new nodes, in ascending order.
        new_nodes: How many; by node type where there are several.
        out: Folder of the new partition, another one.
        node_data, edge_data, node_ids: Of the new nodes and edges, by type: whatever the graph has of old ones (a label
            and the masks of a split may be left out). A graph of new edges has them itself.
        reader_options: Of ``read_graph``, for a path.
        balance, tolerance, seed, num_threads: As ``build``. A part that is above its limit takes no node while others
            have room; new edges can bring a part above a limit on edges, as no old node moves.
        compare: Also partition the grown graph anew, in memory, to compare with; else with the old cut.
        options: Others of ``build``, such as ``halo`` and ``overwrite``.
    Raises:
        ConfigError: an option is wrong, or data of new nodes or edges is missing.
        PartitionError: a node of a new edge does not exist.
        DataError: a part of the source is not here, or the new edges cannot be read.
    """
    check_flags(compare=compare)
    check_seed(seed)
    for name in NOT_OF_PLACED:
        if name in options:
            raise ConfigError(f"{name}={options[name]!r} has no effect where nodes have their parts; leave it out")
    whole = load(source)
    if user_path(out).resolve() == whole.path.resolve():
        raise ConfigError(f"out = {str(out)!r} is the partition that grows, and stays as it is; give another folder")
    before, old = whole.assignment(), without_trainers(whole.to_graph())
    more = {"new_nodes": new_nodes, "node_data": node_data, "edge_data": edge_data, "node_ids": node_ids}
    if isinstance(new_edges, HeteroGraph | str | os.PathLike):
        for name, value in {**more, "reader_options": isinstance(new_edges, HeteroGraph) and reader_options}.items():
            if value:
                raise ConfigError(f"{name} has no effect beside a graph of new edges; leave it out")
        graph = grown_by(old, new_edges, **(reader_options or {}))
    else:
        if reader_options:
            raise ConfigError("reader_options has no effect on new_edges in memory; leave it out")
        graph = grown(old, new_edges, **more)  # type: ignore[arg-type]
    known = whole.manifest.made.get("extended", {}) if whole.manifest else {}
    chosen: dict[str, Any] = {"balance": balance, "tolerance": tolerance, "seed": seed, "num_threads": num_threads}
    found = extended(graph, before, edge_owner=whole.edge_owner, **chosen)
    cut, first = cut_share(graph, found), known.get("partitioned_cut", cut_share(old, before))
    told: dict[str, Any] = {
        "times": int(known.get("times", 0)) + 1,
        "new_nodes": graph.total_nodes - old.total_nodes,
        "cut": cut,
        "partitioned_cut": first,
    }
    other, what = first, "when all of it was partitioned"
    if compare:
        anew = assign(graph, before.num_parts, edge_owner=whole.edge_owner, **chosen)
        other, what = cut_share(graph, anew), "partitioned anew"
        told["anew"] = {"cut": other, "balance": anew.balance}
    told["repartition_pays"] = pays = cut > PAYS * other
    why = f"{told['new_nodes']:,} new nodes by their neighbours' parts: {cut:.1%} of the edges are cut, {other:.1%} "
    why += what
    why += "; a repartition pays" if pays else ""
    log.info("%s: %s", out, why)
    found = replace(found, method=before.method, seed=before.seed, why=why, extended=told)
    if whole.level_sizes and options.get("levels") is None:
        found = with_levels(graph, found, whole.level_sizes, levels_of(whole), num_threads=num_threads)
    options = {"edge_owner": whole.edge_owner, "num_threads": num_threads, **options}
    return build(graph, assignment=found, out=out, **options)


def extended(
    graph: HeteroGraph,
    before: Assignment,
    *,
    balance: Sequence[str] = ("nodes", "edges"),
    tolerance: float | Mapping[str, float] | None = None,
    edge_owner: EdgeOwner = "destination",
    seed: int = 0,
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
        level = pinned(graph, parts, new, wanted, before.num_parts, threads)
        held = replace(wanted, weights=np.ascontiguousarray(level.node_weights[:, :-1].T))
        near = np.append(np.full(len(new), -1, np.int32), np.arange(before.num_parts, dtype=np.int32))
        placed = Placed(held, before.num_parts, 0.0, fennel=True, parts=near)  # a price of 0: neighbours alone count
        for _ in range(PASSES):
            placed.place(np.arange(len(new)), level.indptr, level.indices, level.weights)
        parts[new] = together(level, near, before.num_parts, placed.limits, seed, threads)[: len(new)]
    found = Assignment.of_homogeneous(graph, parts, before.num_parts, balance=wanted.balance(parts, before.num_parts))
    return replace(found, seconds=time.perf_counter() - began)


def pinned(
    graph: HeteroGraph, parts: np.ndarray, new: np.ndarray, wanted: Constraints, num_parts: int, num_threads: int
) -> Level:
    """The graph of the new nodes, (M,), and of a pin for each part, which stands for all its old nodes.

    The last constraint is of the pins alone: each weighs 1, so that under a limit of 1 none ever moves.

    Args:
        parts: (N,): of old nodes; -1 of new ones.
    """
    place, offsets, touching = len(new) + parts.astype(np.int64), graph.node_offsets, {}
    place[new] = np.arange(len(new))
    for number, (etype, (src, dst)) in enumerate(graph.edges.items()):
        ends = place[offsets[etype[0]] :][src], place[offsets[etype[2]] :][dst]
        is_new = (ends[0] < len(new)) | (ends[1] < len(new))
        touching[NODE_TYPE, str(number), NODE_TYPE] = ends[0][is_new], ends[1][is_new]
    count = len(new) + num_parts
    rows = symmetric(HeteroGraph({NODE_TYPE: count}, touching), num_threads=num_threads)
    weights = np.zeros((count, len(wanted.names) + 1), np.int64)
    for column, own in enumerate(wanted.weights):
        weights[:, column] = np.bincount(place, own, count)  # a float64 sum of integers is exact below 2^53
    weights[len(new) :, -1] = 1
    return Level(rows.indptr, rows.indices, rows.weight_array, weights)


def together(
    level: Level, near: np.ndarray, num_parts: int, limits: np.ndarray, seed: int, num_threads: int
) -> np.ndarray:
    """Parts, (N,), of a graph with pins after a search that moves groups of neighbours as one, down a multilevel cycle.

    Args:
        near: (N,): parts to begin with. No part gets above its limit, or further above it.
        limits: (C,): what a part may hold, without the pins.
    """
    limits, settings, rng = np.append(limits, 1), MultilevelSettings.of(), np.random.default_rng(seed)
    bounds = np.maximum(limits, Parts(level, near, limits, num_parts).loads)
    caps = [settings.caps(level.totals, limits)]
    with ThreadPool(num_threads) as threads:
        return descend(replace(level, groups=near), num_parts, bounds, caps, settings, rng, threads).parts


def levels_of(whole: PartitionedGraph) -> dict[str, np.ndarray]:
    """The nodes' parts of each level by node type, (N, L), in the order of ``to_graph``."""
    found = {}
    for ntype in whole.ntypes:
        in_order = whole.levels(ntype)
        found[ntype] = np.empty(in_order.shape, np.int32)
        found[ntype][whole.node_map(ntype)] = in_order
    return found


def with_levels(
    graph: HeteroGraph,
    found: Assignment,
    sizes: Sequence[int],
    before: Mapping[str, np.ndarray],
    *,
    num_threads: int | None = None,
) -> Assignment:
    """The assignment of a grown graph with the levels of the old one, by the rule of ``extend``.

    Args:
        sizes: Numbers of parts by level, coarsest first.
        before: Parts of the first nodes of each type, (K, L), by node type.
    """
    parts, chains = found.homogeneous(), np.full((graph.total_nodes, len(sizes)), -1, np.int32)
    for ntype, start in graph.node_offsets.items():
        chains[start : start + len(before[ntype])] = before[ntype]
    is_new = chains[:, 0] < 0
    finest, num = parts, found.num_parts
    if sizes[-1] > num:
        finest, num = _inside(graph, chains[:, -1].copy(), is_new, parts, sizes[-1], num_threads), sizes[-1]
    chain_of = np.empty((num, len(sizes)), np.int32)
    chain_of[finest[~is_new]] = chains[~is_new]
    chains[is_new] = chain_of[finest[is_new]]
    split = {ntype: chains[start : start + graph.num_nodes[ntype]] for ntype, start in graph.node_offsets.items()}
    return replace(found, level_sizes=tuple(sizes), levels=split)


def _inside(
    graph: HeteroGraph, finest: np.ndarray, is_new: np.ndarray, parts: np.ndarray, count: int, num_threads: int | None
) -> np.ndarray:
    """Finest parts, (N,), those of new nodes by their neighbours in the same part; without any, the smallest in it."""
    near, offsets = {}, graph.node_offsets
    for etype, (src, dst) in graph.edges.items():
        ends = src + offsets[etype[0]], dst + offsets[etype[2]]
        kept = (is_new[ends[0]] | is_new[ends[1]]) & (parts[ends[0]] == parts[ends[1]])
        near[etype] = src[kept], dst[kept]
    lean = HeteroGraph(dict(graph.num_nodes), near, name=graph.name)
    adjacency = symmetric(lean, num_threads=thread_count(num_threads))
    room = constraints(lean, ["nodes"], ROOM, num_threads=thread_count(num_threads))
    placed = Placed(room, count, 0.0, fennel=True, parts=finest)
    new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
    home = np.full(count, -1, np.int32)
    home[finest[old]] = parts[old]
    for _ in range(PASSES):
        placed.place(new, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    strange = new[home[finest[new]] != parts[new]]
    sizes = np.bincount(finest, minlength=count) - np.bincount(finest[strange], minlength=count)
    for part in np.unique(parts[strange]):
        smallest = [(int(sizes[one]), int(one)) for one in np.flatnonzero(home == part)]
        heapify(smallest)
        for node in strange[parts[strange] == part]:
            size, one = smallest[0]
            finest[node] = one
            heapreplace(smallest, (size + 1, one))
    return finest


def cut_share(graph: HeteroGraph, assignment: Assignment) -> float:
    """The share of the edges with ends in two parts; 0 of a graph without edges."""
    cut = sum(
        int((assignment.parts[etype[0]][src] != assignment.parts[etype[2]][dst]).sum())
        for etype, (src, dst) in graph.edges.items()
    )
    return cut / graph.total_edges if graph.total_edges else 0.0
