"""Which nodes of a composed table have a row of their own beside those that they share.

Legend: N nodes, k of them with rows of their own, B asked ids.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, mix64
from graph_emb.core.errors import ConfigError
from graph_emb.graph.original_ids import OriginalIds
from graph_emb.graph.partition_book import Ids, as_ids, check_ids


class OwnRows:
    """Places of nodes in a table of k rows, which is in the order of their original ids.

    Args:
        name, kind: Of the composed table.
        nodes: Their ids, (k,), each once.
        num_nodes: N.
        original: Original ids of all nodes; None: their ids.
    Attributes:
        digest: A name of which nodes they are, whatever the partition.
    Raises:
        ConfigError: no node, one twice, or a table of kind ``"full"``, where each has its row.
        PartitionError: an id out of range.
    """

    def __init__(self, name: str, kind: str, nodes: Ids, num_nodes: int, original: OriginalIds | None) -> None:
        if kind == "full":
            raise ConfigError(f"table {name!r}: kind 'full' has a row for each node; leave out own_rows")
        ids = check_ids(as_ids(nodes), num_nodes, name).flatten().numpy()
        again = len(ids) - len(np.unique(ids))
        if not len(ids) or again:
            said = f"{again} of {len(ids)} nodes again; give each once" if again else "no node; leave it out"
            raise ConfigError(f"table {name!r}: own_rows has {said}")
        keys = ids if original is None else original.of(0, num_nodes)[ids]
        self._count = len(ids)
        self._places = np.full(num_nodes, -1, np.int32)
        self._places[ids[np.argsort(keys)]] = np.arange(len(ids))
        mixed = mix64(np.sort(keys).astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(1))
        self.digest = f"{int(mixed.sum(dtype=np.uint64)):016x}"[:8]

    def __len__(self) -> int:
        return self._count

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of ids (B,) have a row of their own, as their places in the batch, and which rows these are."""
        places = self._places[ids.numpy()]
        where = np.flatnonzero(places >= 0)
        return torch.from_numpy(where), torch.from_numpy(places[where].astype(np.int64))
