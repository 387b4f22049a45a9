"""The table of a model's nodes: a row for each of them, or rows that they share, as the settings say."""

# N nodes, L levels, D width.

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.models.shared_rows import SharedRows
from graph_emb.table.placement import AUTO, Buckets, in_memory

Table = DistEmbedding | ComposedEmbedding


def with_parts(config: Any, placement: Any) -> Any:
    """A recipe whose ``buckets`` are a number: of "auto" the parts of ``ge.Buckets``, or none."""
    if config.buckets is not None:
        return config
    return config.model_copy(update={"buckets": placement.parts if isinstance(placement, Buckets) else 0})


def node_table(
    num_nodes: int,
    dim: int,
    config: SharedRows,
    *,
    name: str | None,
    init_func: Any,
    part_policy: Any = None,
    levels: Any = None,
    own_rows: Any = None,
    seed: int = 0,
    of: str = "nodes",
    placement: Any = AUTO,
    device: Any = None,
) -> Table:
    """A table of N rows of D numbers, by ``config.table_kind``.

    Args:
        config: Kind, buckets, hashes, dtype.
        levels: The part of each node at each level, (N, L) integers by original id; for kinds of position.
        own_rows: Original ids of the nodes that have a row of their own, as ``of_highest_degree`` chooses as many as
            ``config.own_rows``; it may be that none of these is in this table.
        seed: Of the hashes.
        of: Whose levels or degrees an error asks for.
        name, init_func, part_policy, placement, device: As in ``DistEmbedding``.
    Raises:
        ConfigError: levels or nodes with own rows are missing, or of no effect; or first values or a placement that
            shared rows cannot have.
        ShapeError: levels are of another number of nodes.
    """
    kind = f"{config.kind_field}={config.table_kind!r}"
    if levels is not None and not config.takes_levels:
        raise ConfigError(f"levels have no effect on {kind}; leave them out")
    if own_rows is not None and not config.own_rows:
        raise ConfigError(f"own_rows= has no effect without own_rows in the settings of {kind}; leave it out")
    if not config.composed:
        options: dict[str, Any] = {"dtype": config.table_dtype, "device": device, "placement": placement}
        return DistEmbedding(num_nodes, dim, name, init_func, part_policy, **options)
    if not in_memory(placement):
        raise ConfigError(f"{kind} keeps few rows, in memory; leave out the file that they were to lie in")
    if config.takes_levels and levels is None:
        raise ConfigError(
            f"{kind} needs the levels of {of}: pass levels= of partition.nesting.nested, or train on a partition that "
            "has some"
        )
    original = as_original_ids(None, part_policy, num_nodes, name or of)
    if own_rows is not None and original is not None:
        own_rows = original.find(np.asarray(own_rows))
    if config.own_rows and own_rows is None:
        raise ConfigError(f"own_rows = {config.own_rows} needs the {of} of highest degree: pass their ids as own_rows=")
    if levels is not None:
        levels = np.asarray(levels)
        if levels.shape[:1] != (num_nodes,):
            raise ShapeError(f"levels of {of} have shape {levels.shape}; give a row for each of the {num_nodes}")
        levels = levels if original is None else levels[original.of(0, num_nodes)]
    used: dict[str, Any] = {"num_hashes": config.num_hashes} if config.hashes else {}
    if config.shares_buckets:
        used["num_buckets"] = config.num_buckets
    if config.hashes or init_func is None:
        used["seed"] = seed
    return ComposedEmbedding(
        num_nodes if levels is None else levels,
        dim,
        config.table_kind,
        name=name,
        init_func=init_func,
        part_policy=part_policy,
        own_rows=own_rows if own_rows is not None and len(own_rows) else None,
        **used,
        dtype=config.table_dtype,
        device=device,
        placement=placement,
    )
