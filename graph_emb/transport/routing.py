"""Which rank of collective mode stores which rows: plain data, tested without a process.

Legend: P parts, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graph_emb.core.errors import ConfigError
from graph_emb.core.names import Part
from graph_emb.graph.partition_book import PartitionBook, RangeBook, RankRanges


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
    return _split(bounds, parts_of_ranks, world_size, table)


def _split(bounds: list[int], parts_of_ranks: Sequence[int], world_size: int, table: str) -> RankRanges:
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
