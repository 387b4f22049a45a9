"""Which nodes of a composed table have a row of their own beside those that they share.

Legend: N nodes, k of them with rows of their own, B asked ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.graph.original_ids import OriginalIds
from graph_emb.graph.partition_book import Ids, PartitionBook, RangeBook, as_ids, check_ids


def of_highest_degree(degrees: Sequence[np.ndarray], count: int, of: str = "nodes") -> list[np.ndarray]:
    """The nodes of highest degree of several types together; of equal ones the first type's, then the lower id's.

    Args:
        degrees: Of each type's nodes by original id, (N,) integers.
        count: How many nodes.
        of: What an error calls them.
    Returns:
        Original ids by type, ascending.
    Raises:
        ConfigError: there are fewer nodes.
    """
    total = sum(map(len, degrees))
    if count > total:
        raise ConfigError(f"own_rows = {count}: there are {total} {of}; give at most as many")
    chosen = np.zeros(total, dtype=bool)
    chosen[np.argsort(-np.concatenate(degrees), kind="stable")[:count]] = True
    return [np.flatnonzero(one) for one in np.split(chosen, np.cumsum([len(own) for own in degrees])[:-1])]


class OwnRows:
    """Places of nodes in a table of k rows, each of which lies with the part of its node.

    Args:
        name, kind: Of the composed table.
        nodes: Their ids, (k,), each once.
        book: Who owns which of the N nodes.
        original: Original ids of all nodes; None: their ids.
    Attributes:
        nodes: Their ids in the order of the rows, (k,), int64.
        original_ids: Theirs, (k,), int64, which are those of the rows.
        book: Who owns which row.
    Raises:
        ConfigError: no node, one twice, or a table of kind ``"full"``, where each has its row.
        PartitionError: an id out of range.
    """

    def __init__(self, name: str, kind: str, nodes: Ids, book: PartitionBook, original: OriginalIds | None) -> None:
        if kind == "full":
            raise ConfigError(f"table {name!r}: kind 'full' has a row for each node; leave out own_rows")
        ids = check_ids(as_ids(nodes), book.num_rows, name)
        if ids.ndim != 1:
            raise ConfigError(f"table {name!r}: own_rows of shape {tuple(ids.shape)}; give the ids of nodes, (k,)")
        again = len(ids) - len(ids.unique())
        if not len(ids) or again:
            said = f"{again} of {len(ids)} nodes again; give each once" if again else "no node; leave it out"
            raise ConfigError(f"table {name!r}: own_rows has {said}")
        owner = book.owner(ids).numpy()
        self.nodes = ids.numpy()[np.lexsort((ids.numpy(), owner))]
        self.original_ids = self.nodes if original is None else original.of(0, book.num_rows)[self.nodes]
        self.book = RangeBook.of_sizes(np.bincount(owner, minlength=book.num_parts).tolist())
        self._places = np.full(book.num_rows, -1, np.int32)
        self._places[self.nodes] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.nodes)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of ids (B,) have a row of their own, as their places in the batch, and which rows these are."""
        places = self._places[ids.numpy()]
        where = np.flatnonzero(places >= 0)
        return torch.from_numpy(where), torch.from_numpy(places[where].astype(np.int64))
