"""Rows of a column by id over ranks in lockstep: of a table's weight, or of a piece of state.

Legend: B ids of this rank, D width, W ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from graph_emb.core.errors import PeerError
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.transport.lockstep import RankTable
from graph_emb.transport.process_group import ProcessGroup

Agree = Callable[[int, int, Tensor, str], Tensor]
"""``JointCalls.agree``."""


def fetch(group: ProcessGroup, agree: Agree, call: int, table: RankTable, name: str, ids: Tensor, what: str) -> Tensor:
    """Copies of rows of a piece of state, (B, D) or (B,), in the order of ids, (B,). Every rank calls it.

    Args:
        call: The number of the joint call.
        name: Of the state; "": whether there is a row, of a growing table.

    Raises:
        PeerError: a rank is gone, in another call, or reads another piece of state.
    """
    shard, first = table.shard, table.shard.first_id

    def read(rows: Tensor) -> Tensor:
        return shard.state_rows(name, rows) if name or not isinstance(shard, GrowingShard) else shard.contains(rows)

    route = table.ranges.route(ids, group.rank)
    own = len(route.ids) - route.counts[group.rank]
    rows = read(route.ids[own:] - first)
    if group.world_size > 1:
        asks, wanted = _counts(group, agree, call, table, name, list(route.counts), what)
        asked = group.exchange(route.ids[:own], asks, wanted, what)
        served = read(asked - first)
        rows = torch.cat([group.exchange(served, wanted, asks, what).to(rows.device), rows])
    return rows[route.place.to(rows.device)]


def blocks_for_owner(
    group: ProcessGroup, agree: Agree, call: int, table: RankTable, name: str, ids: Tensor, values: Tensor, what: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Send values, (B, D) or (B,), of distinct ids, (B,), to the owners. Every rank calls it.

    Args:
        call: The number of the joint call.
        name: Of the column, which all ranks write.
        values: Of the column's dtype, where the table lies.
    Returns:
        Rows of this rank's shard with their values, those of each rank in the order of the ranks.
    Raises:
        PeerError: as ``fetch``.
    """
    route = table.ranges.route(ids, group.rank)
    own = len(route.ids) - route.counts[group.rank]
    sent = values.index_select(0, torch.from_numpy(route.first).to(values.device))
    blocks = [(route.ids[own:], sent[own:])]
    if group.world_size > 1:
        counts, coming = _counts(group, agree, call, table, name, list(route.counts), what)
        got_ids = group.exchange(route.ids[:own], counts, coming, what).split(coming)
        got = group.exchange(sent[:own].contiguous(), counts, coming, what).split(coming)
        others = list(zip(got_ids, got, strict=True))
        blocks = [*others[: group.rank], blocks[0], *others[group.rank + 1 :]]
    for block_ids, block in blocks:
        yield block_ids.to(values.device) - table.shard.first_id, block


def _counts(
    group: ProcessGroup, agree: Agree, call: int, table: RankTable, name: str, counts: list[int], what: str
) -> tuple[list[int], list[int]]:
    """Rows for and from each rank, (W,) each, own ones 0, once all ranks are about the same column."""
    counts[group.rank] = 0
    columns = ["", *sorted(table.shard.state)]
    said = columns.index(name)
    got = agree(call, table.identity, torch.tensor([[count, said] for count in counts]), what)
    strange = (got[:, 1] != said).nonzero().flatten().tolist()
    if strange:
        raise PeerError(f"rank {group.rank} is in {what}, rank {', '.join(map(str, strange))} in that of another one")
    return counts, got[:, 0].tolist()
