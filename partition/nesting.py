"""Nested partitions: parts of parts of parts, all levels from one descent of the multilevel method.

The finest level comes first: clusters inside the parts that machines hold, merged to the wanted number along the
heaviest edges, refined on the way back and searched by moves that may lose edges at first (``jet``). Each coarser level
is made in the same way from the graph whose nodes are the parts of the one before, which is smaller by a factor, so
that many parts cost little more than few.
Legend: N nodes, L levels, P parts of a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.dgl_format import write_tensors
from graph_emb.graph.typed import HeteroGraph
from partition.kernels import clustering, merging
from partition.kernels.sorting import cut_of
from partition.manifest import FileSet, WrittenFiles
from partition.methods import jet
from partition.methods.base import at_least
from partition.methods.coarsening import Level, coarsen, contract
from partition.methods.effort import EFFORTS
from partition.problem import RelationWeights, SymmetricAdjacency, symmetric

ROOM = 0.3
"""What a part of a level that no machine holds may have above its even share: such a level is a prior, not a load."""
CLUSTERS_PER_PART = 4
CYCLES = 1
ROUNDS, LEAST_MOVED = 6, 0.002
MANY = 1 << 20


@dataclass(frozen=True)
class LevelQuality:
    """What one level of a nested partition is like.

    Attributes:
        num_parts: P.
        cut: Share of the edges between parts.
        largest: Nodes of the largest part over the mean.
        empty: Parts without a node.
    """

    num_parts: int
    cut: float
    largest: float
    empty: int

    @classmethod
    def of(cls, sizes: np.ndarray, cut: float, num_nodes: int) -> LevelQuality:
        """Of a level whose parts have so many nodes, (P,)."""
        largest = float(sizes.max() * len(sizes) / max(1, num_nodes))
        return cls(len(sizes), cut, largest, int((sizes == 0).sum()))

    def to_dict(self) -> dict[str, float | int]:
        """Numbers for a JSON file."""
        return {"num_parts": self.num_parts, "cut": self.cut, "largest": self.largest, "empty": self.empty}


def checked_levels(levels: Sequence[int], num_parts: int, num_nodes: int) -> tuple[int, ...]:
    """Numbers of parts by level, coarsest first.

    Raises:
        ConfigError: none, not rising, below 2, above the number of nodes, or not in step with ``num_parts``.
    """
    found = tuple(at_least("a level", level, 2) for level in levels)
    if not found or list(found) != sorted(set(found)):
        raise ConfigError(
            f"levels {list(levels)}: give at least one, each larger than the one before, such as 8,64,512"
        )
    if found[-1] > min(num_nodes, MANY):
        of = f" of {num_nodes} nodes" if num_nodes < MANY else ""  # as many as there may be: not known yet
        most = min(num_nodes, MANY)
        raise ConfigError(f"levels {list(levels)}: {found[-1]} parts{of}; the most is {most}")
    odd = next((n for n in found if n % num_parts and num_parts % n), None)
    if odd is not None:
        raise ConfigError(
            f"levels {list(levels)} with num_parts={num_parts}: {odd} is neither a multiple of the parts nor divides "
            "them, so a node's chain would not live with its part"
        )
    return found


def store_levels(
    files: FileSet | WrittenFiles, tensors: Mapping[str, np.ndarray], quality: Sequence[LevelQuality]
) -> None:
    """Write the parts of each level, (N, L) by node type in partition order, and note them in the manifest."""
    counts = "-".join(str(level.num_parts) for level in quality)
    name = f"levels-{counts}.dgl"  # of other levels another: the manifest decides which counts
    files.write(name, partial(write_tensors, tensors=dict(tensors)))
    files.manifest.made["levels"] = {"file": name, "of": [level.to_dict() for level in quality]}


def nested(
    graph: HeteroGraph,
    levels: Sequence[int],
    parts: np.ndarray | None = None,
    num_parts: int = 1,
    *,
    seed: int = 0,
    num_threads: int | None = None,
    relation_weights: RelationWeights | None = None,
) -> tuple[np.ndarray, list[LevelQuality]]:
    """Parts of parts of parts.

    Args:
        graph: All its node types are partitioned together.
        levels: Number of parts of each level, rising.
        parts: The part of each node that machines hold, (N,), types one after the other: a level of as many parts is
            this one, finer levels are inside it, coarser ones are made of it. None: no limits but the levels' own.
        num_parts: Of ``parts``.
        seed: Of random orders.
        num_threads: None: all that the process may use.
        relation_weights: As for ``assign``.
    Returns:
        (N, L), int32, and what each level is like. A part of a level lies in one part of every coarser level.
    Raises:
        ConfigError: levels that do not fit.
    """
    counts = checked_levels(levels, num_parts, graph.total_nodes)
    rng = np.random.default_rng(seed)
    adjacency = symmetric(graph, num_threads=thread_count(num_threads), relation_weights=relation_weights)
    whole = Level(
        adjacency.indptr, adjacency.indices, adjacency.weight_array, np.ones((graph.total_nodes, 1), np.int64)
    )
    columns: dict[int, np.ndarray] = {}
    base = np.zeros(graph.total_nodes, np.int32) if parts is None else parts.astype(np.int32)
    level, to_level = whole, np.arange(graph.total_nodes, dtype=np.int32)
    level.groups = base
    with ThreadPool(thread_count(num_threads)) as threads:
        wanted = [count for count in reversed(counts) if count > num_parts]
        for count in wanted:
            made = split(level, count, num_parts, rng, threads)
            columns[count] = made[to_level]
            level, to_level = joined(level, made, to_level, threads)
        if num_parts in counts:
            columns[num_parts] = base
        fewer = [count for count in reversed(counts) if count < num_parts]
        if fewer:  # made of the machines' parts, as whole ones
            whole.groups = np.empty(0, np.int32)
            level, to_level = joined(whole, base, np.arange(whole.num_nodes), threads)
            for count in fewer:
                level.groups = np.zeros(level.num_nodes, np.int32)
                made = split(level, count, 1, rng, threads)
                columns[count] = made[to_level]
                level, to_level = joined(level, made, to_level, threads)
    found = np.stack([columns[count] for count in counts], axis=1).astype(np.int32)
    return found, qualities(adjacency, found, counts)


def qualities(adjacency: SymmetricAdjacency, found: np.ndarray, counts: Sequence[int]) -> list[LevelQuality]:
    """What each level is like whose parts are the columns of found, (N, L)."""
    rows = (adjacency.indptr, adjacency.indices, adjacency.weight_array)
    total = max(1, int(adjacency.weight_array.sum()) if len(adjacency.weight_array) else len(adjacency.indices))
    return [_quality(rows, found[:, place], count, total) for place, count in enumerate(counts)]


def split(level: Level, count: int, num_groups: int, rng: np.random.Generator, threads: ThreadPool) -> np.ndarray:
    """Parts inside the groups of a level, (N,), int32: each group has its even share of ``count``, in order."""
    ends = count * np.arange(1, num_groups + 1, dtype=np.int64) // num_groups
    first = np.append(0, ends[:-1])
    limits = np.maximum(np.ceil((1 + ROOM) * level.totals / count), level.node_weights.max(axis=0)).astype(np.int64)
    group_of = np.repeat(np.arange(num_groups, dtype=np.int32), ends - first)
    target = CLUSTERS_PER_PART * count
    coarse = coarsen(level, limits, EFFORTS["default"], target, rng, threads)
    parts = merged(coarse[-1], first, ends - first, int(limits[0]))
    parts = _way_back(coarse, parts, group_of, limits, rng, threads)
    for _ in range(CYCLES):  # coarsened inside the parts, which are the first of the way back (Walshaw, 2004)
        coarse = coarsen(replace(level, groups=parts, labels=None), limits, EFFORTS["default"], target, rng, threads)
        parts = _way_back(coarse, coarse[-1].groups.copy(), group_of, limits, rng, threads)
    return jet.search(level, parts, group_of, limits, rng, threads)


def _way_back(
    coarse: list[Level], parts: np.ndarray, group_of: np.ndarray, limits: np.ndarray,
    rng: np.random.Generator, threads: ThreadPool,
) -> np.ndarray:  # fmt: skip
    """Parts of the coarsest level refined on every level up to the finest, each inside its group (P,)."""
    while coarse:
        level = coarse.pop()
        parts = parts if level.labels is None else parts[level.labels]
        _refine(replace(level, groups=group_of[parts]), parts, len(group_of), limits, rng, threads)
    return parts


def merged(level: Level, first: np.ndarray, wanted: np.ndarray, limit: int) -> np.ndarray:
    """The nodes of each group merged to its number of parts, (N,), int32."""
    sizes = level.node_weights[:, 0].copy()
    ends = np.empty((len(level.indices) // 2 + 1, 2), np.int32)
    scores = np.empty(len(ends))
    count = merging.inner_edges(level.indptr, level.indices, level.weights, level.groups, sizes, ends, scores)
    order = np.argsort(-scores[:count], kind="stable")
    parents = np.arange(level.num_nodes, dtype=np.int32)
    merging.join(order, ends, level.groups, sizes, wanted, limit, parents)
    parts = np.empty(level.num_nodes, np.int32)
    largest = np.argsort(-sizes, kind="stable")
    rows = (level.indptr, level.indices, level.weights)
    merging.pack(largest, *rows, level.groups, sizes, first, wanted, limit, parents, parts)
    return parts


def _refine(
    level: Level, parts: np.ndarray, count: int, limits: np.ndarray, rng: np.random.Generator, threads: ThreadPool
) -> None:
    """Label propagation inside the groups, in place."""
    loads = np.zeros((count, 1), np.int64)
    clustering.add_weights(parts, level.node_weights, loads)
    nothing = np.empty(0, np.int32)
    propagation = level.propagation(parts, loads, limits, threads)
    for _ in range(ROUNDS):
        moved, _ = propagation.round(rng, sizes=nothing, favoured=nothing, grouped=True)
        if moved < LEAST_MOVED * level.num_nodes:
            break


def joined(level: Level, parts: np.ndarray, to_level: np.ndarray, threads: ThreadPool) -> tuple[Level, np.ndarray]:
    """The graph whose nodes are the parts of a level, and the one that each node of the whole graph is in."""
    numbers = np.unique(parts, return_inverse=True)[1].astype(np.int32)
    coarser = contract(level, numbers, threads)
    assert level.labels is not None  # contract has set it
    return coarser, level.labels[to_level]


def _quality(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], parts: np.ndarray, count: int, total: int
) -> LevelQuality:
    sizes = np.bincount(parts, minlength=count)
    cut = float(cut_of(*rows, np.ascontiguousarray(parts))) / total
    return LevelQuality.of(sizes, cut, len(parts))
