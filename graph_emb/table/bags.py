"""Bags of ids: sums of rows over them, and their gradients, without a copy of a row for each id.

Legend: B ids, G bags, R rows in reach, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.compiled import group, njit
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.core.threads import threads_for
from graph_emb.graph.partition_book import num_distinct
from graph_emb.optim.rounding import memory_of, opened
from graph_emb.table.row_memory import prefetch_to_read
from graph_emb.table.shard import AHEAD, lend
from graph_emb.table.spec import accumulation_dtype

MODES = ("sum", "mean")
Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What ``graph_emb.core.compiled.group`` returns."""


@dataclass(frozen=True)
class Bags:
    """The bags of one call.

    Attributes:
        ids: Shape (B,), int64, on the CPU; -1 stands for a row of zeros that counts in a mean.
        starts: Where each bag begins, and the end of the last one, (G + 1,), int64, on the CPU.
        factor: Of each id, (B,), in the table's accumulation dtype, on the CPU; None: 1.
        mean: Whether sums are divided by the number of ids.
    """

    ids: Tensor
    starts: Tensor
    factor: Tensor | None
    mean: bool

    @cached_property
    def sizes(self) -> Tensor:
        """Ids of each bag, (G,)."""
        return self.starts.diff()

    @cached_property
    def source(self) -> Tensor:
        """The bag of each id, (B,)."""
        return torch.repeat_interleave(self.sizes)

    @cached_property
    def inside(self) -> Tensor | None:
        """Which ids have rows, (B,) bool; None: all."""
        found = self.ids >= 0
        return None if found.all() else found

    @cached_property
    def groups(self) -> Groups:
        """The occurrences of each id that has a row, in the order of those ids."""
        return group((self.ids if self.inside is None else self.ids[self.inside]).numpy())

    def counts(self) -> tuple[int, int]:
        """How many ids have rows, and how many of them are distinct. A backward needs the groups, and they tell it."""
        if torch.is_grad_enabled():
            distinct, _, following = self.groups
            return len(following), len(distinct)
        ids = self.ids if self.inside is None else self.ids[self.inside]
        return len(ids), num_distinct(ids)

    def distinct(self) -> tuple[Tensor, Tensor]:
        """The ids, (R,), each once, and the place of each of B among them, -1 for rows of zeros."""
        inside = self.ids >= 0
        distinct, inverse = torch.unique(self.ids[inside], return_inverse=True)
        return distinct, torch.full_like(self.ids, -1).masked_scatter_(inside, inverse)

    def sums(self, rows: Tensor, places: Tensor) -> Tensor:
        """Sums (or means) of the rows at places, first to last, shape (G, D), in the accumulation dtype of rows.

        Args:
            rows: Shape (R, D).
            places: The row of each id, (B,), int64 in [0, R), or -1.
        """
        dtype = accumulation_dtype(rows.dtype)
        if rows.device.type != "cpu" or not rows.is_contiguous():
            return self._sums_by_torch(rows.to(dtype), places.to(rows.device))
        out = lend((len(self.sizes), rows.shape[1]), dtype, rows.device)
        factor = None if self.factor is None else self.factor.numpy()
        with threads_for(len(places)) as parts:
            shares = np.searchsorted(self.starts.numpy(), np.arange(parts + 1) * len(places) // parts)
            shares[0], shares[-1] = 0, len(out)  # empty bags at both ends too
            _sums(memory_of(rows), places.numpy(), self.starts.numpy(), factor, self.mean, shares, out.numpy())
        return out

    def _sums_by_torch(self, rows: Tensor, places: Tensor) -> Tensor:
        """``sums`` on any device."""
        factor = torch.ones(len(places), dtype=rows.dtype) if self.factor is None else self.factor
        factor = factor.to(places.device) * (places >= 0)
        starts = self.starts[:-1].to(places.device)
        found = F.embedding_bag(places.clamp(min=0), rows, starts, mode="sum", per_sample_weights=factor)
        return found / self.sizes.clamp(min=1).unsqueeze(1).to(found) if self.mean else found

    def gradients(self, grads: Tensor) -> tuple[Tensor, BagGradients]:
        """The ids that have rows, and their gradients, from those of the bags, (G, D)."""
        if self.mean:
            grads = grads.to(accumulation_dtype(grads.dtype))
            grads = grads / self.sizes.clamp(min=1).unsqueeze(1).to(grads)
        found, ids = BagGradients(grads, self.source, self.factor), self.ids
        if self.inside is not None:
            found, ids = found[self.inside], ids[self.inside]
        return ids, replace(found, groups=self.__dict__.get("groups"))  # those that forward has found


@dataclass(frozen=True)
class BagGradients:
    """Gradients of ids, (B, D), each a multiple of its bag's: what an update takes in place of a tensor.

    Attributes:
        grads: Of the bags, shape (G, D).
        source: The bag of each id, (B,), int64.
        factor: Of each id, (B,); None: 1.
        groups: The occurrences of each id, where they are known; an update need not look for them again.
    """

    grads: Tensor
    source: Tensor
    factor: Tensor | None
    groups: Groups | None = None

    @property
    def device(self) -> torch.device:
        return self.source.device

    def to(self, device: torch.device) -> BagGradients:
        """The same where an update wants it."""
        factor = None if self.factor is None else self.factor.to(device)
        return BagGradients(self.grads.to(device), self.source.to(device), factor, self.groups)

    def __getitem__(self, chosen: Tensor) -> BagGradients:
        return BagGradients(self.grads, self.source[chosen], None if self.factor is None else self.factor[chosen])

    def __mul__(self, number: float) -> BagGradients:
        return replace(self, grads=self.grads * number)

    def __neg__(self) -> BagGradients:
        return replace(self, grads=-self.grads)

    def rows(self) -> Tensor:
        """The gradient of each id, (B, D), in the accumulation dtype."""
        found = self.grads.to(accumulation_dtype(self.grads.dtype)).index_select(0, self.source.to(self.grads.device))
        return found if self.factor is None else found * self.factor.unsqueeze(1).to(found)


class CaptureBags(torch.autograd.Function):
    """Identity on sums over bags; its backward hands their gradients to the table and to the weights of the ids.

    ``rows`` and ``places``, as in ``Bags.sums``, are needed where the weights require a gradient, else None.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weights: Tensor | None, found: Tensor, trace: Any, bags: Bags,
        rows: Tensor | None, places: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.trace, ctx.bags, ctx.rows, ctx.places, ctx.weights = trace, bags, rows, places, weights
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.trace.add(*ctx.bags.gradients(grad))
        of_weights = None
        if ctx.rows is not None:
            dots = _weight_gradient(ctx.rows, ctx.places, grad, ctx.bags.source)
            of_weights = dots.view(ctx.weights.shape).to(ctx.weights)
        return None, of_weights, None, None, None, None, None


def _weight_gradient(rows: Tensor, places: Tensor, grads: Tensor, source: Tensor) -> Tensor:
    """Inner products of each id's row and its bag's gradient, (B,)."""
    dtype = accumulation_dtype(rows.dtype)
    grads = grads.to(rows.device, dtype).contiguous()
    if rows.device.type != "cpu":
        at, source = places.clamp(min=0).to(rows.device), source.to(rows.device)
        found = (rows.to(dtype).index_select(0, at) * grads.index_select(0, source)).sum(dim=1)
        return found * (places >= 0).to(found.device)
    out = torch.empty(len(places), dtype=dtype)
    with threads_for(len(places)) as parts:
        _dots(memory_of(rows), places.numpy(), grads.numpy(), source.numpy(), parts, out.numpy())
    return out


def checked_bags(
    table: str, ids: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None, dtype: torch.dtype
) -> Bags:
    """The bags of a call of ``DistEmbedding.bag``, whose arguments these are; ids are checked by the caller.

    Args:
        table: The name that errors show.
        dtype: Of the table.
    Raises:
        ShapeError: offsets or weights do not fit the ids.
        ConfigError: an unknown mode, or weights of a mean.
    """
    if ids.dim() == 2 and offsets is None:
        offsets = torch.arange(len(ids)) * ids.shape[1]
    elif ids.dim() != 1 or offsets is None:
        raise ShapeError(f"table {table!r}: ids of shape {tuple(ids.shape)}: (B,) needs offsets, (bags, n) none")
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    num = ids.numel()
    steps = offsets.diff() if offsets.dim() == 1 and not offsets.is_floating_point() else None
    if steps is None or (len(offsets) and (offsets[0] != 0 or (steps < 0).any() or offsets[-1] > num)):
        raise ShapeError(f"table {table!r}: offsets must be integers that ascend from 0 to at most {num}, the ids")
    if num and not len(offsets):
        raise ShapeError(f"table {table!r}: {num} ids and no bag; give the offset 0")
    if weights is not None and mode == "mean":
        raise ConfigError(f"table {table!r}: per_sample_weights are for mode='sum', as in torch.nn.EmbeddingBag")
    if weights is not None and (weights.numel() != num or not weights.is_floating_point()):
        raise ShapeError(
            f"table {table!r}: per_sample_weights of shape {tuple(weights.shape)} and {weights.dtype}; expected a "
            f"floating factor for each of {num} ids"
        )
    starts = torch.cat([offsets.long().cpu(), torch.tensor([num])])
    factor = None if weights is None else weights.detach().flatten().to("cpu", accumulation_dtype(dtype)).contiguous()
    own = ids.detach().to("cpu", torch.int64, copy=True).flatten()  # the caller may refill ids
    return Bags(own, starts, factor, mode == "mean")


@njit(parallel=True, cache=True, nogil=True)
def _sums(weight: Any, places: Any, starts: Any, factor: Any, mean: bool, shares: Any, out: Any) -> None:
    width = out.shape[1]
    for part in prange(len(shares) - 1):
        held = np.empty(width, out.dtype)
        bits = held.view(np.uint32)
        last = starts[shares[part + 1]]
        for k in range(shares[part], shares[part + 1]):
            total = out[k]
            for d in range(width):
                total[d] = 0.0
            for i in range(starts[k], starts[k + 1]):
                if i + AHEAD < last and places[i + AHEAD] >= 0:
                    prefetch_to_read(weight, places[i + AHEAD])
                if places[i] >= 0:
                    row = opened(weight, places[i], held, bits)
                    if factor is None:
                        for d in range(width):
                            total[d] += row[d]
                    else:
                        for d in range(width):
                            total[d] += row[d] * factor[i]
            size = starts[k + 1] - starts[k]
            if mean and size > 1:
                for d in range(width):
                    total[d] /= size


@njit(parallel=True, cache=True, nogil=True)
def _dots(rows: Any, places: Any, grads: Any, source: Any, parts: int, out: Any) -> None:
    num, width = len(places), rows.shape[1]
    for part in prange(parts):
        held = np.empty(width, out.dtype)
        bits = held.view(np.uint32)
        for i in range(part * num // parts, (part + 1) * num // parts):
            total = out.dtype.type(0.0)
            if places[i] >= 0:
                row = opened(rows, places[i], held, bits)
                for d in range(width):
                    total += row[d] * grads[source[i], d]
            out[i] = total
