"""What ranks do together: every call begins with numbers that say which it is, so that a rank elsewhere is noticed.

Legend: W ranks, K numbers for each rank.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graph_emb.core.errors import PeerError
from graph_emb.table.spec import TableSpec
from graph_emb.transport.collective_table import Table
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.routing import Layout

PULL, PUSH, WRITE, PREFETCH, REPAIR, FREEZE, COPY, RETURN, WALK, HOME, VOTES, BARRIER, CREATE = range(1, 14)
"""What ranks do together, the walkers' calls included: a rank in another call is noticed by its number."""
HEAD = 16
"""Numbers that every call exchanges first: enough for a push of six tables."""
_WORDS = {
    PULL: "pull",
    PUSH: "push",
    WRITE: "write",
    PREFETCH: "prefetch",
    REPAIR: "pull of prefetched rows",
    FREEZE: "freeze",
    COPY: "copies of rows",
    RETURN: "changes of copied rows",
    WALK: "walks over partitions",
    HOME: "walks over partitions",
    VOTES: "votes",
    BARRIER: "barrier",
    CREATE: "create",
}
_AUTOMATIC = re.compile(r"embedding_\d+")


def identity(spec: TableSpec, number: int, layout: Layout) -> int:
    """What tells a table from all others: the same number on ranks that make the same tables in the same order.

    A name that a table took by itself does not count: each process numbers its own, those of earlier modes included.

    Args:
        spec, layout: Of the table.
        number: How many tables were made before it, and itself.
    """
    name = "" if _AUTOMATIC.fullmatch(spec.name) else spec.name
    return _digest(
        number, name, spec.num_rows, spec.dim, str(spec.dtype), layout.bounds.tolist(), layout.ranks.tolist()
    )


def signature(identities: Sequence[int]) -> int:
    """What tells a call for these tables, in this order, from calls for others."""
    return identities[0] if len(identities) == 1 else _digest(*identities)


def _digest(*about: object) -> int:
    """63 bits, the same in every process, as hash() is not."""
    return int.from_bytes(hashlib.blake2b(repr(about).encode(), digest_size=8).digest(), "big") >> 1


def agree(
    group: ProcessGroup, tables: Mapping[str, Table], call: int, number: int, per_rank: Tensor, what: str
) -> Tensor:
    """Exchange one row of numbers with every rank, shape (W, K), and check that all are in the same call.

    Args:
        group: The ranks.
        tables: The live tables of this rank, by name.
        call, number: What this rank does, and with which tables.
        per_rank: What each rank is told, (W, K).
        what: The words with which an error names the call.
    Raises:
        PeerError: a rank is in another call.
    """
    num = per_rank.shape[1]
    head = torch.zeros(group.world_size, HEAD, dtype=torch.int64)
    head[:, :3] = torch.tensor([call, number, num])
    head[:, 3 : 3 + num] = per_rank[:, : HEAD - 3]
    ones = [1] * group.world_size
    got = group.exchange(head, ones, ones, what)
    wrong = (got[:, :3] != head[:, :3]).any(dim=1).nonzero().flatten().tolist()
    if wrong:
        theirs = dict.fromkeys(_said(int(got[rank, 0]), int(got[rank, 1]), tables) for rank in wrong)
        here = ", ".join(table.said for table in tables.values()) or "none"
        raise PeerError(
            f"rank {group.rank} is in {what}, rank {', '.join(map(str, wrong))} in another call ({'; '.join(theirs)}); "
            "in collective mode every rank makes the same calls in the same order, and the same tables "
            f"(graph_emb.in_step keeps loops of unequal length together); tables of rank {group.rank}: {here}"
        )
    if num <= HEAD - 3:
        return got[:, 3 : 3 + num]
    rest = group.exchange(per_rank[:, HEAD - 3 :].contiguous(), ones, ones, what)
    return torch.cat([got[:, 3:], rest], dim=1)


def _said(call: int, number: int, tables: Mapping[str, Table]) -> str:
    """What another rank does, as far as this one can tell."""
    word = _WORDS.get(call, f"call {call}")
    if call in (WALK, HOME, VOTES, BARRIER):
        return word
    known = [f"table {name!r}" for name, table in tables.items() if table.identity == number]
    return f"{word} of {next(iter(known), 'other tables, or of tables made otherwise')}"
