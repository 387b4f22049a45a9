"""The gradients of handed-out rows that came back to a table, until a step takes them.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ModeError
from graph_emb.optim.apply import merge, merged_bags
from graph_emb.table.bags import BagGradients
from graph_emb.table.row_sums import TableGradients
from graph_emb.table.spec import TableSpec, accumulation_dtype

Gradients = Tensor | BagGradients | TableGradients


class Trace:
    """Gradients that came back since the last step. One trace lives from one reset to the next.

    They are kept without a copy, with the version that torch counts up whenever a tensor is written in place.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor | None, Gradients, int]] = []
        self.touched = False

    def add(self, ids: Tensor, grads: Tensor | BagGradients) -> None:
        """Keep the gradients of ids, (B, D), or of the bags that they are in."""
        self._add(ids, grads)

    def add_shared(self, grads: TableGradients) -> None:
        """Keep the gradients of sums of shared rows, which know their ids."""
        self._add(None, grads)

    def _add(self, ids: Tensor | None, grads: Gradients) -> None:
        self.touched = True
        self.entries.append((ids, grads, _received(grads)._version))

    def scale(self, table: str, factor: float) -> None:
        """Multiply what came back by a factor."""
        self._check(table)
        entries, self.entries = self.entries, []
        for ids, grads, _ in entries:
            self._add(ids, grads * factor)

    def _check(self, table: str) -> None:
        for _, grads, version in self.entries:
            if (came := _received(grads))._version != version:
                raise ModeError(
                    f"table {table!r}: a gradient of shape {tuple(came.shape)} was changed in place after "
                    "backward(); keep it until step(), or pass a copy to backward()"
                )

    def checked(self, table: str) -> list[tuple[Tensor, Tensor | BagGradients]]:
        """The ids and gradients of each backward; a ModeError where one was written in place since."""
        self._check(table)
        return [_with_ids(ids, grads) for ids, grads, _ in self.entries]

    def joined(self, table: str, dim: int, bags: Literal["kept", "merged", "spread"]) -> tuple[Tensor, Any]:
        """As ``DistEmbedding.joined_pending``, of a table of this width."""
        self._check(table)
        if not self.entries:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
        rows: list[tuple[Tensor, Tensor]] = []
        for ids, given, _ in self.entries:
            if isinstance(given, TableGradients) and bags != "spread" and (merged := given.merged()) is not None:
                rows.append(merged)
                continue
            of, grads = _with_ids(ids, given)
            if bags == "kept" and len(self.entries) == 1:
                return of, grads
            if isinstance(grads, BagGradients):
                of, grads = (of, grads.rows()) if bags == "spread" else merged_bags(of, grads)
            rows.append((of, grads))
        if len(rows) == 1:
            return rows[0]
        device = rows[0][1].device
        joined = torch.cat([ids.to(device) for ids, _ in rows])
        return joined, torch.cat([grads.to(device) for _, grads in rows])


def _received(grads: Gradients) -> Tensor:
    """The tensor that backward handed in."""
    return grads if isinstance(grads, Tensor) else grads.grads


def _with_ids(ids: Tensor | None, grads: Gradients) -> tuple[Tensor, Tensor | BagGradients]:
    """Gradients with their ids; those of sums as bags."""
    if isinstance(grads, TableGradients):
        return grads.spread()
    assert ids is not None
    return ids, grads


class PendingGradients:
    """The gradients of a ``DistEmbedding`` that wait for a step."""

    _live_trace: Trace
    _name: str
    _spec: TableSpec

    @property
    def live_trace(self) -> Trace:
        """Where the gradients of rows that are handed out now will come back to."""
        return self._live_trace

    def reset_trace(self) -> None:
        """Forget every gradient that has come back, and those still to come from earlier calls."""
        self._live_trace = Trace()

    def clear_gradients(self) -> None:
        """Forget the gradients that have come back; a backward of an earlier call still counts."""
        self._live_trace.entries.clear()
        self._live_trace.touched = False

    def pending(self) -> list[tuple[Tensor, Tensor]]:
        """(ids, gradients) that came back since the last step: shapes (B,) and (B, D), bags' with a row for each id.

        Raises:
            ModeError: a gradient was written in place since; ``scale_gradients`` makes new ones.
        """
        came = self._live_trace.checked(self._name)
        return [(ids, grads if isinstance(grads, Tensor) else grads.rows()) for ids, grads in came]

    def joined_pending(self, bags: Literal["kept", "merged", "spread"] = "merged") -> tuple[Tensor, Any]:
        """``pending`` as one pair; of no rows where a backward met none, which still counts as a step.

        Args:
            bags: ``"kept"`` leaves the gradients of bags as they are where they are all; ``"merged"`` sums those of an
                id within a call (see ``merged_bags``); ``"spread"`` has one for each id, for averages and the like.
        """
        return self._live_trace.joined(self._name, self._spec.dim, bags)

    def sparse_grad(self) -> Tensor:
        """The gradient that came back in this process since the last step, for an update of one's own.

        Returns:
            Shape (num_embeddings, D), a coalesced sparse tensor: duplicates are summed, those of 16-bit tables in
            float32. ``clear_gradients`` forgets it.
        """
        ids, grads = self.joined_pending()
        distinct, merged = merge(ids.to(grads.device), grads.to(accumulation_dtype(grads.dtype)))
        places, size = distinct.unsqueeze(0), (self._spec.num_rows, self._spec.dim)
        return torch.sparse_coo_tensor(places, merged, size, is_coalesced=True, check_invariants=False)

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients that came back since the last step, to clip them for instance."""
        self._live_trace.scale(self._name, factor)

    @property
    def touched(self) -> bool:
        """Whether a backward, even of an empty batch, reached the table since the last step."""
        return self._live_trace.touched
