"""Tables of collective mode as a rank sees them, and the numbers with which every joint call of the ranks begins.

By the numbers a rank in another call is noticed and named. ``layout``, which rank stores which rows, is plain data.

Legend: R distinct ids, D width, P parts, W ranks.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.graph.hash_book import ExtendedBook, ExtendedRanges, HashPolicy, ranges_of_keys
from graph_emb.graph.partition_book import Part, PartitionBook, RangeBook, RankRanges, Route
from graph_emb.table.initializers import said_of
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.shm_all_to_all import map_memory, new_memory

(
    PULL,
    PUSH,
    WRITE,
    PREFETCH,
    REPAIR,
    FREEZE,
    COPY,
    RETURN,
    WALK,
    HOME,
    VOTES,
    BARRIER,
    CREATE,
    RESET,
    NORM,
    READ_STATE,
    WRITE_STATE,
    GROW,
    CONTAINS,
    EVICT,
    IDS,
) = range(1, 22)
"""Numbers of the joint calls of ranks, the walkers' included."""
HEAD = 16
"""Numbers that every call exchanges first: enough for a push of six tables."""
FIXED = 4
"""Of them: the call, the number of what it is about, how many numbers follow, and which call of the rank it is."""
_WORDS = (
    *("pull", "push", "write", "prefetch", "pull of prefetched rows", "freeze", "copies of rows"),
    *("changes of copied rows", "walks over partitions", "walks over partitions", "votes", "barrier", "create"),
    *("reset", "norm of the gradients", "read of state", "write of state", "grow", "contains", "evict", "ids"),
)
"""The calls as errors name them, in the order of their numbers."""
_AUTOMATIC = re.compile(r"embedding_\d+")


@dataclass
class Prefetch:
    """Rows that are being fetched before they are pulled."""

    ids: Tensor  # asked
    route: Route  # to their owners
    rows: Tensor  # the memory for the answer, (R, D)
    coming: Tensor = field(default_factory=lambda: torch.empty(0))  # where rows of other ranks arrive, as they travel
    asks: list[int] = field(default_factory=list)  # rows that come from each rank, (W,)
    wanted: list[int] = field(default_factory=list)  # rows that go to each rank, (W,)
    asked: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # of this rank, by the others
    served: Tensor | None = None  # the copies that were sent
    changed: Tensor | None = None  # rows of the shard that a push has changed since; None: stale rows are allowed
    wait: Callable[[], None] = lambda: None  # returns when the rows are here


@dataclass
class RankTable:
    """A table as this rank sees it: its shard, and who stores the rest."""

    spec: TableSpec
    ranges: RankRanges
    shard: EmbeddingShard
    identity: int  # the same on every rank and unlike those of other tables (``identity()``)
    shared: Tensor | None = None  # all rows of the table, where all ranks reach them
    shared_state: dict[str, Tensor] = field(default_factory=dict)  # all rows of the state, where all ranks reach them
    shared_of: dict[str, Tensor] | None = None  # the shard's state that it is
    early: Prefetch | None = None

    @property
    def said(self) -> str:
        """The table as an error describes it."""
        first = said_of(self.spec.initializer)
        made = "" if first == "Zeros()" else f" from {first}"
        return f"{self.spec.name!r} ({self.spec.num_rows}, {self.spec.dim}) of {self.spec.dtype}{made}"


def identity(spec: TableSpec, number: int, ranges: RankRanges) -> int:
    """The number of a table: the same on ranks that make the same tables in the same order, another one elsewhere.

    An automatic name does not count: each process numbers its own, those of earlier modes included. ``number`` is how
    many tables were made before it, and itself.
    """
    name = "" if _AUTOMATIC.fullmatch(spec.name) else spec.name
    policies = () if spec.growth is None else (spec.growth,)  # each rank decides by them which rows it makes and drops
    first = said_of(spec.initializer)  # each rank makes its own rows by it
    return _digest(number, name, spec.num_rows, spec.dim, str(spec.dtype), first, *ranges.facts, *policies)


def signature(identities: Sequence[int]) -> int:
    """The number of a call for these tables, in this order."""
    return identities[0] if len(identities) == 1 else _digest(*identities)


def number_of_rules(rules: Iterable[Any]) -> int:
    """The number of optimizers' rules: another one for another rate or option, as every owner applies its own."""
    return _digest(*map(_words_of, rules))


def _words_of(rule: Any) -> str:
    """A rule and its numbers; 1, 1.0 and numpy's are one number, and the same words on each rank."""
    values = {one.name: getattr(rule, one.name) for one in fields(rule)} if is_dataclass(rule) else {}
    numbers = {name: float(x) for name, x in values.items() if isinstance(x, Real) and not isinstance(x, bool)}
    return f"{type(rule).__qualname__}({', '.join(f'{name}={x!r}' for name, x in (values | numbers).items())})"


def check_rules(what: str, own: int, theirs: Sequence[int], pushes: Sequence[Any]) -> None:
    """Raise a ConfigError where a rank steps by other numbers: each applies its own to the rows that it owns.

    Args:
        own, theirs: ``number_of_rules`` of this rank, and of each one.
    """
    if others := [rank for rank, number in enumerate(theirs) if number != own]:
        words = "; ".join(dict.fromkeys(_words_of(push.rule) for push in pushes))
        raise ConfigError(
            f"{what}: rank {', '.join(map(str, others))} steps by an optimizer with other numbers than these: {words}; "
            "give every rank the same rule, rate and options"
        )


def _digest(*about: object) -> int:
    """63 bits, the same in every process, as hash() is not."""
    return int.from_bytes(hashlib.blake2b(repr(about).encode(), digest_size=8).digest(), "big") >> 1


def shared_rows(group: ProcessGroup, spec: TableSpec, word: str = "create") -> Tensor:
    """Memory for all rows of a table, shape (rows, D), the same for every rank. Every rank must call it.

    Args:
        word: Of the call, with which an error names it.
    """
    if spec.device.type != "cpu":
        raise ConfigError(f"table {spec.name!r}: device {spec.device}; ranks share rows in host memory only, use 'cpu'")
    return _shared(group, spec.name, (spec.num_rows, spec.dim), spec.dtype, word)


def share_rows(group: ProcessGroup, table: RankTable) -> None:
    """Move the rows of a table in memory to memory of all ranks. Every rank must call it.

    Returns when the rows of all of them are there; nothing where they lie so already.
    """
    if table.shared is not None:
        return
    shard = table.shard
    whole = shared_rows(group, table.spec, "sharing of rows")
    own = whole[shard.first_id : shard.first_id + shard.num_rows]
    own.copy_(shard.weight)
    shard.weight, table.shared = own, whole
    group.gather_objects(None, f"sharing of rows of table {table.spec.name!r}")


def share_state(group: ProcessGroup, table: RankTable) -> None:
    """Move the optimizer's state of a table, but for its clocks, to memory of all ranks. Every rank must call it.

    Returns when the state of all of them is there; nothing where it lies so already.
    """
    shard = table.shard
    if table.shared_of is shard.state:
        return
    shared = {}
    for name, own in shard.state.items():
        if (spec := shard.state_specs[name]).kind != "table":
            shared[name] = _shared(
                group,
                f"{table.spec.name}.{name}",
                spec.shape(table.spec.num_rows, table.spec.dim),
                own.dtype,
                "sharing of state",
            )
            rows = shared[name][shard.first_id : shard.first_id + len(own)]
            rows.copy_(own)
            shard.state[name] = rows
    table.shared_state, table.shared_of = shared, shard.state
    group.gather_objects(None, f"sharing of state of table {table.spec.name!r}")


def _shared(group: ProcessGroup, name: str, shape: tuple[int, ...], dtype: torch.dtype, word: str) -> Tensor:
    """Uninitialised memory that every rank maps, and the check that all asked for the same."""
    size = math.prod(shape) * dtype.itemsize
    what, descriptor, memory, failed = f"{word} of table {name!r}", -1, None, ""
    if group.rank == 0:
        try:
            descriptor, memory = new_memory(max(1, size))
        except OSError as error:
            failed = (
                f"table {name!r}: cannot share {size:,} bytes: {error.strerror}; "
                "use fewer rows, or a container with more memory"
            )
    try:
        said = f"{shape} of {dtype}"
        told = group.gather_objects((os.getpid(), descriptor, failed, said), what)
        shapes = [entry[3] for entry in told]
        if len(set(shapes)) > 1:
            raise ConfigError(f"table {name!r}: the ranks make it {shapes}; make the same tables on every rank")
        pid, file, reason, _ = told[0]
        if reason:
            raise ConfigError(reason)
        try:
            found = memory if memory is not None else map_memory(pid, file, max(1, size))
        except OSError as error:
            raise PeerError(f"{what}: rank 0 (process {pid}) is gone ({error})") from error
        group.gather_objects(None, what)  # every rank has mapped it
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    values = torch.from_numpy(np.frombuffer(found, np.uint8))
    return values[:size].view(dtype).view(shape)


def told_apart(
    rank: int, what: str, others: Mapping[int, tuple[int, int]], tables: Mapping[str, RankTable], skipped: str
) -> PeerError:
    """The error of ranks that are not in this one's call.

    Args:
        others: The first two numbers of the call of each.
        skipped: Who skipped which call, as the end of a sentence; empty where none did.
    """
    theirs: dict[str, None] = {}  # their calls, as far as this rank can tell
    for call, number in dict.fromkeys(others.values()):
        said = _WORDS[call - 1] if 0 < call <= len(_WORDS) else f"call {call}"
        if call not in (WALK, HOME, VOTES, BARRIER):
            known = (f"table {name!r}" for name, table in tables.items() if table.identity == number)
            said += f" of {next(known, 'other tables, or of tables made otherwise')}"
        theirs[said] = None
    here = ", ".join(table.said for table in tables.values()) or "none"
    return PeerError(
        f"rank {rank} is in {what}, rank {', '.join(map(str, others))} in another call ({'; '.join(theirs)}){skipped}; "
        "in collective mode every rank makes the same calls in the same order, and the same tables "
        f"(graph_emb.in_step keeps loops of unequal length together); tables of rank {rank}: {here}"
    )


def layout_of_keys(policy: HashPolicy, world_size: int, parts_of_ranks: Sequence[int] | None, table: str) -> RankRanges:
    """``layout`` of a growing table: the ranges of its keys, and the owners of the ids that a partition knows."""
    others = ranges_of_keys(layout(RangeBook(policy.buckets()), world_size, parts_of_ranks, table))
    if not isinstance(policy, ExtendedBook):
        return others
    return ExtendedRanges(others, policy.known_ranks(layout(policy.known, world_size, parts_of_ranks, table)))


def layout(book: PartitionBook, world_size: int, parts_of_ranks: Sequence[int] | None, table: str) -> RankRanges:
    """The ranges of a table's rows, each with the rank that stores it.

    Fewer ranks than parts: a rank takes neighbouring parts. More ranks than parts: the ranks of a part split its
    rows evenly. A table of one part is split among all ranks.

    Args:
        book: The table's partition; each part must be one range of ids, in the order of the parts.
        world_size: W.
        parts_of_ranks: The part at which each rank sits, (W,), or None: ranks sit at the parts in order.
        table: The name that an error shows.
    Raises:
        ConfigError: a part is no range of ids, or parts and ranks do not fit.
    """
    bounds = _bounds(book, table)
    num_parts = book.num_parts
    if num_parts == 1:
        even = RangeBook.even(book.num_rows, world_size)
        return RankRanges(even.bounds.tolist(), range(world_size), world_size)
    if parts_of_ranks is None:
        if world_size < num_parts:
            return RankRanges(bounds, [part * world_size // num_parts for part in range(num_parts)], world_size)
        parts_of_ranks = [rank * num_parts // world_size for rank in range(world_size)]
    edges, ranks = [0], []
    for part in range(num_parts):
        here = [rank for rank, of in enumerate(parts_of_ranks) if of == part]
        if not here:
            raise ConfigError(
                f"table {table!r}: no rank sits at part {part} of {num_parts}; "
                f"the ranks sit at parts {list(parts_of_ranks)}; start one there or pass part=None to init()"
            )
        pieces = RangeBook.even(bounds[part + 1] - bounds[part], len(here))
        edges += [bounds[part] + int(end) for end in pieces.bounds[1:]]
        ranks += here
    if max(parts_of_ranks) >= num_parts:
        raise ConfigError(
            f"table {table!r}: a rank sits at part {max(parts_of_ranks)}, the table has {num_parts} parts"
        )
    return RankRanges(edges, ranks, world_size)


def _bounds(book: PartitionBook, table: str) -> list[int]:
    if isinstance(book, RangeBook):
        return book.bounds.tolist()
    ends = [0]
    for part in range(book.num_parts):
        size = book.part_size(Part(part))
        ids = book.to_ids(Part(part), torch.tensor([0, size - 1])) if size else torch.tensor([ends[-1], ends[-1] - 1])
        if ids.tolist() != [ends[-1], ends[-1] + size - 1]:
            raise ConfigError(
                f"table {table!r}: part {part} does not own the range after id {ends[-1]}; collective tables need "
                "contiguous parts, as partition.build and dgl.distributed.partition_graph make them"
            )
        ends.append(ends[-1] + size)
    return ends
