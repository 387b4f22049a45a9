"""The same graph in another number of parts, or by another method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graph_emb.core.log import get_logger
from partition.building import build
from partition.partitioned import PartitionedGraph, load

log = get_logger("partition.repartition")


def repartition(
    source: str | Path, num_parts: int, method: str = "auto", *, out: str | Path, **options: Any
) -> PartitionedGraph:
    """Partition the graph of a partition anew; node and edge data move along.

    Original positions and ids stay those of the first input where the source has id maps; a partition that DGL wrote
    without them, or without those of nodes or of edges, counts there as an input in its own order.

    Args:
        source: A partition that ``build`` or DGL wrote.
        num_parts, method, out: As for ``build``.
        options: The other options of ``build``, without ``assignment``.
    Raises:
        What ``build`` raises.
    """
    whole = load(source)
    without = [f"{kind}s" for kind in ("node", "edge") if not whole.has_id_map(kind)]
    if without:
        log.warning(
            "%s has no id maps of its %s: their 'original' ids in the new partition are the ids in this one",
            whole.path,
            " and ".join(without),
        )
    return build(whole.to_graph(), num_parts, method, out=out, **options)
