"""Levels of a run's composed tables: the numbers of parts in its configuration, and the part of each node."""

# N nodes, L levels.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.shared_rows import LEVELS, SharedRows
from graph_emb.run import parallel
from partition import PartitionedGraph
from partition.relabel import inverse


def with_levels(config: RunConfig, own: PartitionedGraph | None) -> RunConfig:
    """The configuration with ``model.levels`` filled in where rows are composed of those of parts.

    Args:
        own: The partition of which each trainer reads its own parts; None: one process has the whole graph.
    Raises:
        ConfigError: ``model.levels`` asks for others than the run's partition has, or the trainers read a partition
            without levels.
    """
    model: Any = config.model
    if not isinstance(model, SharedRows) or not model.takes_levels:
        return config
    given, asked = parallel.given_partition(config), model.levels
    sizes = () if given is None else given[0].level_sizes
    if given is not None and sizes and asked not in (None, sizes):
        assert asked is not None
        raise ConfigError(
            f"model.levels = {list(asked)}: the partition {given[0].path} has the levels {list(sizes)}; leave it "
            f"out, or change them: partition.refine({str(given[0].path)!r}, {list(asked)})"
        )
    if own is not None and not sizes:
        raise ConfigError(
            f"model.{model.kind_field} = {model.table_kind!r}: {own.path} has no levels, and no trainer has the whole "
            f"graph to cut; add them: partition.refine({str(own.path)!r}, {list(asked or LEVELS)})"
        )
    return config.model_copy(update={"model": model.model_copy(update={"levels": sizes or asked or LEVELS})})


def levels_by_type(
    config: RunConfig,
    graph: HeteroGraph | None,
    own: PartitionedGraph | None,
    ranks: parallel.Trainers | None,
    *,
    names: Sequence[str] | None = None,
    typed: HeteroGraph | None = None,
) -> dict[str, np.ndarray] | None:
    """The part of each node at each level, (N, L) by node type, in the graph's order. Every rank calls it.

    Args:
        config: As ``with_levels`` gives it.
        graph: All its edges, on the first rank; not read where trainers read their own parts.
        own: As of ``with_levels``.
        names: What the types of ``own`` are called; None: as there.
        typed: As in ``parallel.assigned``.
    Returns:
        None where rows are not composed of those of parts.
    Raises:
        ConfigError: a level has more parts than the graph has nodes.
    """
    model: Any = config.model
    if not isinstance(model, SharedRows) or not model.takes_levels:
        return None
    if own is not None:
        return _of_parts(own, names or own.ntypes)
    levels = {}
    if graph is not None:
        assert model.levels is not None
        total = sum(graph.num_nodes.values())
        if max(model.levels) > total:
            fitting = [num_parts for num_parts in LEVELS if num_parts < total] or [2]
            raise ConfigError(
                f"model.levels = {list(model.levels)}: {total} nodes cannot be cut into {max(model.levels)} parts; "
                f"give fewer, such as model.levels={str(fitting).replace(' ', '')}"
            )
        found = parallel.levels_of_nodes(config, graph, model.levels, typed)
        parts = np.split(found, np.cumsum(list(graph.num_nodes.values()))[:-1])
        levels = dict(zip(graph.num_nodes, parts, strict=True))
    if ranks is not None:
        levels = ranks.group.gather_objects(levels, "the levels of the nodes")[0]
    return levels


def _of_parts(own: PartitionedGraph, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The part of each node at each level of a partition, (N, L) by node type, in the graph's order."""
    levels = {}
    for ntype, name in zip(own.ntypes, names, strict=True):
        found = own.levels(ntype)
        levels[name] = found[inverse(own.node_map(ntype))] if own.has_id_map("node") else found
    return levels


def levels_of_start(
    config: RunConfig,
    graph: HeteroGraph | None,
    own: PartitionedGraph | None,
    ranks: parallel.Trainers | None,
    sizes: Sequence[int],
    typed: HeteroGraph | None = None,
) -> np.ndarray:
    """The part of each node at the levels of a multilevel start, in the graph's order. Every rank calls it.

    Args:
        graph, own, ranks, typed: As of ``levels_by_type``.
        sizes: Parts by level, coarsest first.
    Returns:
        Shape (N, L), the node types one after the other.
    """
    if own is not None:
        columns = [own.level_sizes.index(size) for size in sizes]
        return np.concatenate([*_of_parts(own, own.ntypes).values()])[:, columns]
    found = None if graph is None else parallel.levels_of_nodes(config, graph, sizes, typed)
    if ranks is not None:
        found = ranks.group.gather_objects(found, "the levels of the nodes")[0]
    assert found is not None  # the first rank has the graph
    return found


def levels_of_table(
    config: RunConfig,
    graph: HeteroGraph | None,
    own: PartitionedGraph | None,
    ranks: parallel.Trainers | None,
    typed: HeteroGraph | None = None,
) -> np.ndarray | None:
    """As ``levels_by_type``, of one table that has all nodes, the types one after the other: shape (N, L)."""
    levels = levels_by_type(config, graph, own, ranks, typed=typed)
    return None if levels is None else np.concatenate([*levels.values()])
