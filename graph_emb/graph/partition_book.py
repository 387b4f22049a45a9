"""Partition books: which part owns an id, and where its row lies inside that part.

One book per id space (a node type or an edge type). The owner of an id is computed here and nowhere else: by a book
for its parts, by ``RankRanges`` for processes.

Legend: B asked ids, R distinct ids, P parts, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NewType, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, group, njit
from graph_emb.core.errors import PartitionError, ShapeError

Rank = NewType("Rank", int)
"""A process of the job, 0 .. world_size - 1; never taken for a part."""
Part = NewType("Part", int)
"""A piece of a table, 0 .. num_parts - 1."""


@runtime_checkable
class PartitionBook(Protocol):
    """Who owns which id of one id space: plain data, the same in every process, that never changes.

    ``to_ids(owner(i), to_rows(i))`` is ``i`` for every id. Ids have any shape (B,), int64 or int32; an id outside
    [0, num_rows), a row outside its part or a part outside [0, num_parts) raises PartitionError.
    """

    @property
    def num_rows(self) -> int:
        """Ids in the whole space."""

    @property
    def num_parts(self) -> int:
        """Parts that share the space; some may own no id."""

    def owner(self, ids: Tensor) -> Tensor:
        """The part that owns each id, shape (B,), int64."""

    def to_rows(self, ids: Tensor) -> Tensor:
        """The row of each id inside the part that owns it, at least 0 and below its ``part_size``, (B,), int64."""

    def to_ids(self, part: Part, rows: Tensor) -> Tensor:
        """The ids of rows of one part, shape (B,), int64."""

    def part_size(self, part: Part) -> int:
        """Rows that a part owns."""


Ids = Tensor | np.ndarray | Sequence[int]
"""Ids as callers may give them, any shape."""


def as_ids(ids: Ids) -> Tensor:
    """A tensor of ids; what holds no integers stays as it is, for ``check_ids`` to refuse it."""
    if isinstance(ids, Tensor):
        return ids
    array = _array(ids)
    if array is None or (array.size and array.dtype.kind not in "iu") or _too_large(array) is not None:
        return ids  # type: ignore[return-value]
    return torch.from_numpy(array.astype(np.int64))


def _array(ids: Any) -> np.ndarray | None:
    """What may be ids as an array; None: it cannot be one."""
    if not isinstance(ids, (np.ndarray, np.integer, Sequence, int)):
        return None
    try:
        return np.asarray(ids)
    except ValueError:  # lists of several lengths
        return None


def _too_large(array: np.ndarray) -> int | None:
    """An unsigned number among ids that no int64 is: as one it would be another id; None: there is none."""
    most = int(array.max()) if array.dtype == np.uint64 and array.size else 0
    return most if most > np.iinfo(np.int64).max else None


def check_ids(ids: Ids, num_rows: int | None, table: str) -> Tensor:
    """ids as int64, after a check that each lies in [0, num_rows).

    Args:
        ids: Any shape; a tensor of int64 or int32, or an array or a list of integers.
        num_rows: The size of the id space; None: any int64 is in it.
        table: The name that an error shows.
    Raises:
        ShapeError: ids are no integers.
        PartitionError: an id is negative, or not below num_rows, or no int64.
    """
    ids = as_ids(ids)
    if not isinstance(ids, Tensor):
        array = _array(ids)
        if array is not None and (large := _too_large(array)) is not None:
            most = np.iinfo(np.int64).max
            raise PartitionError(f"table {table!r}: id {large} is above {most}, the last int64; hash ids to int64")
        raise ShapeError(f"table {table!r}: ids are {type(ids).__name__}; pass integers: a tensor, an array or a list")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"table {table!r}: ids have dtype {ids.dtype}; pass torch.int64")
    if ids.numel() and num_rows is not None:
        low, high = extremes(ids)
        if low < 0 or high >= num_rows:
            bad = low if low < 0 else high
            raise PartitionError(
                f"table {table!r}: id {bad} is outside [0, {num_rows}); was the graph relabelled after partitioning?"
            )
    return ids.long()


class RangeBook(PartitionBook):
    """Part p owns the contiguous ids [bounds[p], bounds[p + 1]); methods as ``PartitionBook`` has them.

    Args:
        bounds: P + 1 non-decreasing integers from 0 to num_rows; equal neighbours make an empty part.
    """

    def __init__(self, bounds: Sequence[int] | Tensor) -> None:
        edges = torch.as_tensor(bounds, dtype=torch.int64).flatten()
        if len(edges) < 2 or int(edges[0]) != 0:
            raise PartitionError(f"bounds {edges.tolist()[:4]}... must start at 0 and name at least one part")
        if bool((edges[1:] < edges[:-1]).any()):
            raise PartitionError(f"bounds {edges.tolist()[:8]} decrease; part p owns [bounds[p], bounds[p + 1])")
        self.bounds = edges

    @classmethod
    def even(cls, num_rows: int, num_parts: int = 1) -> RangeBook:
        """num_parts ranges of equal size, the first ones one row longer where it does not divide."""
        if num_rows < 0 or num_parts < 1:
            raise PartitionError(f"cannot split {num_rows} rows among {num_parts} parts; both must be positive")
        size, longer = divmod(num_rows, num_parts)
        return cls.of_sizes([size + (part < longer) for part in range(num_parts)])

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> RangeBook:
        """Parts of the given sizes, one after the other."""
        return cls([0, *accumulate(sizes)])

    @property
    def num_rows(self) -> int:
        return int(self.bounds[-1])

    @property
    def num_parts(self) -> int:
        return len(self.bounds) - 1

    def owner(self, ids: Tensor) -> Tensor:
        ids = check_ids(ids, self.num_rows, "partition book")
        return torch.searchsorted(self.bounds.to(ids.device), ids, right=True) - 1

    def pieces(self, sorted_ids: Tensor) -> list[tuple[int, int, int]]:
        """(part, start, end) of the ascending ids that each part owns; parts without ids are left out."""
        return cut(torch.searchsorted(sorted_ids, self.bounds).diff().tolist())

    def to_rows(self, ids: Tensor) -> Tensor:
        return ids.long() - self.bounds.to(ids.device)[self.owner(ids)]

    def to_ids(self, part: Part, rows: Tensor) -> Tensor:
        rows = check_ids(rows, self.part_size(part), f"part {part}")
        return rows + int(self.bounds[part])

    def part_size(self, part: Part) -> int:
        if not 0 <= part < self.num_parts:
            raise PartitionError(f"part {part} is outside [0, {self.num_parts})")
        return int(self.bounds[part + 1] - self.bounds[part])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeBook) and torch.equal(self.bounds, other.bounds)

    def __hash__(self) -> int:
        return hash(tuple(self.bounds.tolist()))

    def __repr__(self) -> str:
        return f"RangeBook({self.num_rows} ids, {self.num_parts} parts)"


@dataclass(frozen=True)
class Route:
    """The distinct ids of one batch, grouped by the rank that stores them.

    Attributes:
        ids: Distinct ids, shape (R,), rank after rank.
        counts: How many of them each rank stores, (W,).
        place: For each asked position the index of its id in ``ids``, shape (B,).
        first, following: Chains of equal positions, as ``graph_emb.core.compiled.group`` returns them.
    """

    ids: Tensor
    counts: list[int]
    place: Tensor
    first: np.ndarray
    following: np.ndarray


Laid = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Distinct ids and, for each, its first position, (R,); following positions and places, (B,); counts, (W,)."""


class RankRanges:
    """The rank that stores each id of a table: contiguous ranges of ids, each with its rank.

    A rank's ranges are neighbours, so that what it stores is one range. In kvstore mode the ranks are the servers'.

    Attributes:
        bounds: Range i is [bounds[i], bounds[i + 1]); shape (N + 1,), int64.
        ranks: The rank of range i; shape (N,), int64.
        world_size: W.
    """

    def __init__(self, bounds: Sequence[int], ranks: Sequence[int], world_size: int) -> None:
        self.bounds = np.asarray(bounds, np.int64)
        self.ranks = np.asarray(ranks, np.int64)
        self.world_size = world_size

    def owned(self, rank: int) -> tuple[int, int]:
        """The ids [low, high) that a rank stores."""
        mine = np.flatnonzero(self.ranks == rank)
        return (int(self.bounds[mine[0]]), int(self.bounds[mine[-1] + 1])) if len(mine) else (0, 0)

    @property
    def facts(self) -> tuple[object, ...]:
        """What has to be the same on every rank, as numbers."""
        return self.bounds.tolist(), self.ranks.tolist()

    def owner(self, ids: Tensor) -> Tensor:
        """The rank of each checked id, shape (B,), int64, on the CPU; ids of any integer dtype."""
        found = torch.searchsorted(torch.from_numpy(self.bounds), ids.cpu().long(), right=True) - 1
        return torch.from_numpy(self.ranks)[found.clamp_(max=len(self.ranks) - 1)]  # the last key of all is a bound

    def route(self, ids: Tensor, last: int | None = None) -> Route:
        """Group the distinct ones of checked ids by the rank that stores them, in one pass.

        Args:
            ids: Shape (B,), int64, on any device.
            last: The rank whose ids stand at the end; None: all stand in the order of ranks.
        """
        asked = ids.detach().cpu().contiguous().numpy()
        distinct, first, following, place, counts = self._routed(asked, -1 if last is None else last)
        return Route(torch.from_numpy(distinct), counts.tolist(), torch.from_numpy(place), first, following)

    def _routed(self, ids: np.ndarray, last: int) -> Laid:
        """``lay_out`` of the groups of ids by their owners."""
        return _route(ids, self.bounds, self.ranks, self.world_size, last)


def extremes(ids: Tensor) -> tuple[int, int]:
    """The least and the largest of ids, any shape but empty, int64 or int32."""
    if ids.device.type == "cpu" and ids.is_contiguous():
        return _extremes(ids.detach().numpy().reshape(-1))
    low, high = torch.aminmax(ids)
    return int(low), int(high)


@njit(cache=True, nogil=True)
def _extremes(ids: np.ndarray) -> tuple[int, int]:
    """One thread: waking others takes longer than a batch of ids."""
    low = high = ids[0]
    for i in range(len(ids)):
        low, high = min(low, ids[i]), max(high, ids[i])
    return low, high


def num_distinct(ids: Tensor) -> int:
    """How many distinct values ids, (B,), int64, have."""
    return _num_distinct(ids.contiguous().numpy()) if ids.device.type == "cpu" else len(ids.unique())


@njit(cache=True, nogil=True)
def _num_distinct(ids: np.ndarray) -> int:
    """By a hash table of at least twice as many slots."""
    bits = 4
    while (1 << bits) < 2 * len(ids):
        bits += 1
    slots = np.full(1 << bits, -1, np.int32)
    shift, mask = np.uint64(64 - bits), (1 << bits) - 1
    found = 0
    for i in range(len(ids)):
        slot = np.int64((np.uint64(ids[i]) * GOLDEN) >> shift)
        while slots[slot] >= 0 and ids[slots[slot]] != ids[i]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = i
            found += 1
    return found


def cut(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(owner, start, end) of the rows of each owner that has some, where they lie owner after owner."""
    ends = accumulate(counts)
    return [(owner, end - count, end) for owner, (count, end) in enumerate(zip(counts, ends, strict=True)) if count]


@njit(cache=True, nogil=True)
def range_of(bounds: np.ndarray, row_id: int) -> int:
    """The range [bounds[i], bounds[i + 1]) that holds an id inside the bounds, by bisection."""
    low, high = 0, len(bounds) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if bounds[middle] <= row_id:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _route(ids: np.ndarray, bounds: np.ndarray, ranks: np.ndarray, world_size: int, last: int) -> Laid:
    groups = group(ids)
    owner = np.empty(len(groups[0]), np.int32)
    for k in range(len(owner)):
        owner[k] = ranks[range_of(bounds, groups[0][k])]
    return lay_out(groups, owner, world_size, last)


@njit(cache=True, nogil=True)
def lay_out(groups: Any, owner: np.ndarray, world_size: int, last: int) -> Laid:
    """Counting sort of the distinct ids of ``group`` by owner, (R,), rank ``last``'s (-1: nobody's) at the end.

    Returns:
        distinct (R,) and, for each, its first position in ids (R,); following (B,): the next position of the same
        id or -1; place (B,): where each position's id stands in distinct; counts (W,).
    """
    found, first, following = groups
    num = len(found)
    # Count the ids of each rank.
    counts = np.zeros(world_size, np.int64)
    for k in range(num):
        counts[owner[k]] += 1
    # Where the ids of each rank begin.
    ends = np.empty(world_size, np.int64)
    start = 0
    for rank in range(world_size):
        if rank != last:
            ends[rank] = start
            start += counts[rank]
    if last >= 0:
        ends[last] = start
    # Lay them out, and tell every position of an id where it stands.
    distinct = np.empty(num, np.int64)
    firsts = np.empty(num, np.int64)
    place = np.empty(len(following), np.int64)
    for k in range(num):
        at = ends[owner[k]]
        ends[owner[k]] += 1
        distinct[at] = found[k]
        firsts[at] = first[k]
        i = first[k]
        while i >= 0:
            place[i] = at
            i = following[i]
    return distinct, firsts, following, place, counts


class DGLPolicyBook(RangeBook):
    """The book behind a DGL ``NodePartitionPolicy`` or ``EdgePartitionPolicy``.

    DGL's range partition books give each part contiguous ids of every type, so the ranges are all that is kept.

    Args:
        policy: A DGL partition policy (dgl 1.1.3 and 2.1.0); only its public methods are used.
    Raises:
        PartitionError: the policy's parts are not contiguous ranges of ids.
    """

    def __init__(self, policy: Any) -> None:
        book, type_name = policy.partition_book, policy.type_name
        ids_of = book.partid2nids if policy.is_node else book.partid2eids
        ends = [0]
        for part in range(book.num_partitions()):
            ids = ids_of(part, type_name)
            if len(ids) and (int(ids[0]) != ends[-1] or int(ids[-1]) != ends[-1] + len(ids) - 1):
                raise PartitionError(
                    f"policy {policy.policy_str!r}: part {part} does not own a contiguous range after id {ends[-1]}; "
                    "partition the graph again with dgl.distributed.partition_graph"
                )
            ends.append(ends[-1] + len(ids))
        super().__init__(ends)
        self.policy_str: str = policy.policy_str


def as_book(policy: object, num_rows: int, table: str) -> PartitionBook:
    """The book that a ``part_policy`` argument stands for.

    Args:
        policy: None (one even range), a PartitionBook, an object with a ``book`` (``partition``'s policies),
            or a DGL partition policy.
        num_rows: Rows of the table; the book must cover exactly as many.
        table: The name that an error shows.
    Raises:
        PartitionError: it is none of these, or covers another number of rows.
    """
    if policy is None:
        return RangeBook.even(num_rows)
    book = getattr(policy, "book", policy)
    if all(hasattr(policy, name) for name in ("policy_str", "partition_book", "type_name", "is_node")):
        book = DGLPolicyBook(policy)
    if not isinstance(book, PartitionBook):
        raise PartitionError(
            f"table {table!r}: part_policy is a {type(policy).__name__}; pass None, a partition book, "
            "a policy of partition.load(...) or a DGL partition policy"
        )
    if book.num_rows != num_rows:
        raise PartitionError(
            f"table {table!r}: part_policy covers {book.num_rows} ids but num_embeddings is {num_rows}; "
            "they must be equal"
        )
    return book
