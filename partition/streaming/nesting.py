"""Levels of a partition on disk, part by part: no more than one part's edges are in memory.

A finer level splits each part by the method in memory, which sees the edges inside the part; a coarser one joins parts
by the graph whose nodes are the parts. A last pass over the edges counts the cut of each level.
Legend: N nodes of all types in partition order, L levels, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.methods.coarsening import Level
from partition.nesting import LevelQuality, checked_levels, joined, nested, split
from partition.partitioned import PartitionedGraph
from partition.streaming.source import Budget

EDGES_AT_ONCE = 1 << 20
MATRIX_BYTES = 24
"""Of two parts in the matrices of the edges between parts, three of them for a moment."""


def check_room(budget: Budget, work: int, part: str, sizes: tuple[int, int], num_parts: int) -> None:
    """Raise a ConfigError unless a part of so many nodes and edges can be split in memory.

    Args:
        work: Bytes beside the arrays of all nodes.
        part: What the error calls it.
        sizes: Its nodes and edges.
        num_parts: It is split into.
    """
    nodes, edges = sizes
    if not budget.holds(nodes, 2 * edges, num_parts, work):
        raise ConfigError(
            f"memory {size_text(budget.memory)} is too little to split {part} of {nodes:,} nodes and {edges:,} edges "
            f"into {num_parts}; raise memory, or make more and smaller parts"
        )


def nested_by_parts(
    whole: PartitionedGraph, levels: Sequence[int], budget: Budget, *, seed: int = 0, num_threads: int | None = None
) -> tuple[np.ndarray, list[LevelQuality]]:
    """As ``partition.nesting.nested`` around the parts of a partition on disk, in bounded memory.

    Args:
        whole: All its node types are split together.
        levels, seed, num_threads: As of ``nested``.
        budget: Of this process.
    Returns:
        (N, L), int32, in homogeneous partition order, and what each level is like.
    Raises:
        ConfigError: levels that do not fit, or a part does not fit into memory.
    """
    counts, num_parts = checked_levels(levels, whole.num_parts, whole.num_nodes()), whole.num_parts
    work = budget.work_bytes(whole.num_nodes())
    pieces = [count // num_parts for count in counts if count > num_parts]
    spans = [whole.nodes.of_part(part) for part in range(num_parts)]
    if pieces:
        for part, (start, stop) in enumerate(spans):
            edges = int(whole.edges.sizes[part].sum())
            check_room(budget, work, f"part {part}", (stop - start, edges), pieces[-1])
    if min(counts) < num_parts and MATRIX_BYTES * num_parts**2 > work:
        raise ConfigError(f"memory {size_text(budget.memory)} is too little to join {num_parts} parts; raise memory")
    found = np.empty((whole.num_nodes(), len(counts)), np.int32)
    between = np.zeros((num_parts, num_parts), np.int64) if min(counts) < num_parts else None
    none = np.empty(0, np.int64)
    for part, (start, stop) in enumerate(spans):
        found[start:stop, [place for place, count in enumerate(counts) if count == num_parts]] = part
        sources, destinations = [none], [none]
        for src, dst in _edges(whole, part):
            if pieces:
                inside = (src >= start) & (src < stop) & (dst >= start) & (dst < stop)
                sources.append(src[inside] - start)
                destinations.append(dst[inside] - start)
            if between is not None:
                np.add.at(between, (whole.nodes.owners(src), whole.nodes.owners(dst)), 1)
        if pieces:
            ends = np.concatenate(sources), np.concatenate(destinations)
            own = _split_part(ends, stop - start, pieces, seed, num_threads)
            found[start:stop, len(counts) - len(pieces) :] = own + part * np.array(pieces, np.int32)
    fewer = [count for count in counts if count < num_parts]
    if between is not None:
        sizes = np.array([stop - start for start, stop in spans], np.int64)
        of_part = _joined_parts(between, sizes, fewer, seed, num_threads)
        for part, (start, stop) in enumerate(spans):
            found[start:stop, : len(fewer)] = of_part[part]
    return found, _qualities(whole, found, counts)


def by_type(whole: PartitionedGraph, found: np.ndarray) -> dict[str, np.ndarray]:
    """Rows (N, L) in homogeneous partition order as those of each node type in its own."""
    starts = whole.nodes.starts
    return {
        ntype: np.concatenate([found[starts[part, t] : starts[part, t + 1]] for part in range(whole.num_parts)])
        for t, ntype in enumerate(whole.ntypes)
    }


def _edges(whole: PartitionedGraph, part: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The ends of the edges that a part owns, homogeneous partition-order ids, block by block; no self loops."""
    one = whole.part(part)
    ids, graph = one.node_ids, one.graph
    for low in range(0, one.num_inner_edges, EDGES_AT_ONCE):
        rows = slice(low, min(low + EDGES_AT_ONCE, one.num_inner_edges))
        src, dst = ids[graph.src[rows]], ids[graph.dst[rows]]
        kept = src != dst
        yield src[kept], dst[kept]
    one.forget()


def _split_part(
    ends: tuple[np.ndarray, np.ndarray], num_nodes: int, pieces: Sequence[int], seed: int, num_threads: int | None
) -> np.ndarray:
    """The piece of each node of a part at each level, (n, levels), int32; of a small part each node is one."""
    made = np.repeat(np.arange(num_nodes, dtype=np.int32)[:, None], len(pieces), axis=1)
    fitting = [count for count in pieces if count <= num_nodes]
    if fitting:
        graph = HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: ends})
        made[:, : len(fitting)] = nested(graph, fitting, seed=seed, num_threads=num_threads)[0]
    return made


def _joined_parts(
    between: np.ndarray, sizes: np.ndarray, fewer: Sequence[int], seed: int, num_threads: int | None
) -> np.ndarray:
    """The part of each of P parts at levels of fewer parts, (P, levels), int32.

    Args:
        between: Edges from each part to each, (P, P).
        sizes: Nodes of each part, (P,).
    """
    links = between + between.T
    np.fill_diagonal(links, 0)
    rows, columns = links.nonzero()
    indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=len(sizes))))
    weights = links[rows, columns]
    kind = np.int32 if weights.sum() < 2**31 else np.int64
    level = Level(indptr, columns.astype(np.int32), weights.astype(kind), sizes[:, None].copy())
    to_level, found = np.arange(len(sizes)), np.empty((len(sizes), len(fewer)), np.int32)
    rng = np.random.default_rng(seed)
    with ThreadPool(thread_count(num_threads)) as threads:
        for place in reversed(range(len(fewer))):
            level.groups = np.zeros(level.num_nodes, np.int32)
            made = split(level, fewer[place], 1, rng, threads)
            found[:, place] = made[to_level]
            level, to_level = joined(level, made, to_level, threads)
    return found


def _qualities(whole: PartitionedGraph, found: np.ndarray, counts: Sequence[int]) -> list[LevelQuality]:
    cut, total = np.zeros(len(counts), np.int64), 0
    for part in range(whole.num_parts):
        for src, dst in _edges(whole, part):
            total += len(src)
            for place in range(len(counts)):
                cut[place] += np.count_nonzero(found[src, place] != found[dst, place])
    quality = partial(LevelQuality.of, num_nodes=len(found))
    return [
        quality(np.bincount(found[:, place], minlength=count), float(cut[place]) / max(1, total))
        for place, count in enumerate(counts)
    ]
