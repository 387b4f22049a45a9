"""The gradients of handed-out rows that came back to a table, until a step takes them.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ModeError
from graph_emb.optim.apply import merged_bags
from graph_emb.table.bags import BagGradients


class Trace:
    """Gradients that came back since the last step. One trace lives from one reset to the next.

    They are kept without a copy, with the version that torch counts up whenever a tensor is written in place.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, Tensor | BagGradients, int]] = []
        self.touched = False

    def add(self, ids: Tensor, grads: Tensor | BagGradients) -> None:
        """Keep the gradients of ids, (B, D), or of the bags that they are in."""
        self.touched = True
        self.entries.append((ids, grads, _received(grads)._version))

    def checked(self, table: str) -> list[tuple[Tensor, Tensor | BagGradients]]:
        """The ids and gradients of each backward; a ModeError where one was written in place since."""
        for _, grads, version in self.entries:
            if (came := _received(grads))._version != version:
                raise ModeError(
                    f"table {table!r}: a gradient of shape {tuple(came.shape)} was changed in place after "
                    "backward(); keep it until step(), or pass a copy to backward()"
                )
        return [(ids, grads) for ids, grads, _ in self.entries]

    def joined(self, table: str, dim: int, bags: Literal["kept", "merged", "spread"]) -> tuple[Tensor, Any]:
        """As ``DistEmbedding.joined_pending``, of a table of this width."""
        entries = self.checked(table)
        if not entries:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
        if bags == "kept" and len(entries) == 1:
            return entries[0]
        rows: list[tuple[Tensor, Tensor]] = []
        for ids, grads in entries:
            if isinstance(grads, BagGradients):
                ids, grads = (ids, grads.rows()) if bags == "spread" else merged_bags(ids, grads)
            rows.append((ids, grads))
        if len(rows) == 1:
            return rows[0]
        device = rows[0][1].device
        joined = torch.cat([ids.to(device) for ids, _ in rows])
        return joined, torch.cat([grads.to(device) for _, grads in rows])


def _received(grads: Tensor | BagGradients) -> Tensor:
    """The tensor that backward handed in."""
    return grads if isinstance(grads, Tensor) else grads.grads
