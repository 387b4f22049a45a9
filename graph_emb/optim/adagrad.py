"""Adagrad (Duchi, Hazan and Singer 2011): element-wise, row-wise, and DGL 0.5's row-wise form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from graph_emb.optim.rule import Rule, State, mean_square
from graph_emb.table.shard import StateSpec


@dataclass(frozen=True)
class Adagrad(Rule):
    """``s <- s + g * g;  w <- w - lr * g / (sqrt(s) + eps)``, element by element, as ``torch.optim.Adagrad``.

    Duchi, Hazan and Singer 2011, "Adaptive subgradient methods for online learning and stochastic optimization".
    """

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    limits: ClassVar = {**Rule.limits, "eps": (0.0, math.inf), "initial_accumulator_value": (0.0, math.inf)}

    def state_specs(self) -> tuple[StateSpec, ...]:
        return (StateSpec("sum", "element", initial=self.initial_accumulator_value),)

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + grad.square()
        return weight - self.lr * grad / (total.sqrt() + self.eps), {"sum": total}


@dataclass(frozen=True)
class RowAdagrad(Rule):
    """``s <- s + mean(g * g);  w <- w - lr * g / (sqrt(s) + eps)`` with one scalar s per row.

    FBGEMM's exact row-wise Adagrad and PyTorch-BigGraph's (Lerer et al. 2019): the state takes 1/D of ``Adagrad``'s.
    """

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    limits: ClassVar = Adagrad.limits

    def state_specs(self) -> tuple[StateSpec, ...]:
        return (StateSpec("sum", "row", initial=self.initial_accumulator_value),)

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + mean_square(grad)
        scale = self.lr / (total.sqrt() + self.eps)
        return weight - scale.unsqueeze(1) * grad, {"sum": total}


@dataclass(frozen=True)
class OccurrenceRowAdagrad(RowAdagrad):
    """Row-wise Adagrad of DGL 0.5's push handler, which does not merge duplicates before squaring.

    For the occurrences g_i of a row: ``s <- s + sum_i mean(g_i * g_i);  w <- w - lr * sum_i g_i / (sqrt(s) + eps)``.
    Opposite gradients leave the weight alone yet grow the state.
    """

    per_occurrence: ClassVar[bool] = True

    def prepare(self, grads: Tensor) -> Tensor:
        """The gradients with one more column, the mean square of each occurrence; shape (B, D + 1)."""
        return torch.cat([grads, mean_square(grads).unsqueeze(1)], dim=1)

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """New rows and state; weight has shape (R, D), grad (R, D + 1) as summed from ``prepare``."""
        total = state["sum"] + grad[:, -1]
        scale = self.lr / (total.sqrt() + self.eps)
        return weight - scale.unsqueeze(1) * grad[:, :-1], {"sum": total}
