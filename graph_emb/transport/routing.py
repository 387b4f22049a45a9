"""Which rank stores which rows: plain data, tested without a process.

Legend: P parts, W ranks, B asked ids, R distinct ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.core.names import Part, Rank
from graph_emb.graph.partition_book import PartitionBook, RangeBook
from graph_emb.transport import routing_kernels


@dataclass(frozen=True)
class Route:
    """Where the ids of one batch go.

    Attributes:
        ids: Distinct ids, shape (R,), rank after rank.
        counts: How many of them each rank owns, (W,).
        place: For each asked position the index of its id in ``ids``, shape (B,).
        first, following: Chains of equal positions, as ``graph_emb.optim.grouping.group`` returns them.
    """

    ids: Tensor
    counts: list[int]
    place: Tensor
    first: np.ndarray
    following: np.ndarray


class Layout:
    """The rank that stores each id of a table: contiguous ranges of ids, each with its rank.

    A rank's ranges are neighbours, so that what it stores is one range.

    Attributes:
        bounds: Range i is [bounds[i], bounds[i + 1]); shape (R + 1,), int64.
        ranks: The rank of range i; shape (R,), int64.
    """

    def __init__(self, bounds: Sequence[int], ranks: Sequence[int], world_size: int) -> None:
        self.bounds = np.asarray(bounds, np.int64)
        self.ranks = np.asarray(ranks, np.int64)
        self.world_size = world_size

    def owned(self, rank: int) -> tuple[int, int]:
        """The ids [low, high) that a rank stores."""
        mine = np.flatnonzero(self.ranks == rank)
        if not len(mine):
            return 0, 0
        return int(self.bounds[mine[0]]), int(self.bounds[mine[-1] + 1])

    def owner(self, ids: Tensor) -> Tensor:
        """The rank of each id, shape (B,), int64."""
        places = np.searchsorted(self.bounds[1:-1], ids.cpu().numpy(), side="right")
        return torch.from_numpy(self.ranks[places])

    def route(self, ids: Tensor, last: Rank | None = None) -> Route:
        """Group the distinct ones of checked ids by the rank that stores them, rank ``last``'s at the end."""
        asked = ids.detach().cpu().contiguous().numpy()
        distinct, first, following, place, counts = routing_kernels.route(
            asked, self.bounds, self.ranks, self.world_size, -1 if last is None else last
        )
        return Route(torch.from_numpy(distinct), counts.tolist(), torch.from_numpy(place), first, following)


def layout(book: PartitionBook, world_size: int, parts_of_ranks: Sequence[int] | None, table: str) -> Layout:
    """Who stores the rows of a table.

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
        return Layout(even.bounds.tolist(), range(world_size), world_size)
    if parts_of_ranks is None:
        if world_size < num_parts:
            return Layout(bounds, [part * world_size // num_parts for part in range(num_parts)], world_size)
        parts_of_ranks = [rank * num_parts // world_size for rank in range(world_size)]
    return _split(bounds, parts_of_ranks, world_size, table)


def _split(bounds: list[int], parts_of_ranks: Sequence[int], world_size: int, table: str) -> Layout:
    """Each part's range, cut evenly among the ranks that sit there."""
    edges, ranks = [0], []
    for part in range(len(bounds) - 1):
        here = [rank for rank, of in enumerate(parts_of_ranks) if of == part]
        if not here:
            raise ConfigError(
                f"table {table!r}: no rank sits at part {part} of {len(bounds) - 1}; "
                f"the ranks sit at parts {list(parts_of_ranks)}; start one there or pass part=None to init()"
            )
        pieces = RangeBook.even(bounds[part + 1] - bounds[part], len(here))
        edges += [bounds[part] + int(end) for end in pieces.bounds[1:]]
        ranks += here
    if max(parts_of_ranks) >= len(bounds) - 1:
        raise ConfigError(
            f"table {table!r}: a rank sits at part {max(parts_of_ranks)}, the table has {len(bounds) - 1} parts"
        )
    return Layout(edges, ranks, world_size)


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
