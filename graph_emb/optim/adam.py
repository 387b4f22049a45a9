"""Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019) and Adam with a row-wise second moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import unknown_name
from graph_emb.optim.rule import Rule, State, bias_correction, mean_square
from graph_emb.table.shard import StateSpec

Clock = Literal["row", "global"]
EpsPlacement = Literal["corrected", "raw"]
CHOICES = {"clock": ("row", "global"), "eps_placement": ("corrected", "raw")}


@dataclass(frozen=True)
class Adam(Rule):
    """Adam (Kingma and Ba 2015) on touched rows; the moments of a row do not decay while it is untouched.

    ``m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g * g;  w <- w - lr * (m / c1) / (sqrt(v / c2) + e) - lr * wd * w``
    with ``c = 1 - b ** t``.

    Args:
        clock: ``t`` counts the steps that touched the row (``"row"``, DGL) or the steps of the table
            (``"global"``, ``torch.optim.SparseAdam``).
        eps_placement: ``e = eps`` added to the corrected root (``"corrected"``: DGL, FBGEMM, dense Adam), or to
            the raw one, ``e = eps / sqrt(c2)`` (``"raw"``: ``torch.optim.SparseAdam``).
        weight_decay: Decoupled as in AdamW (Loshchilov and Hutter 2019); a row decays in the steps that touch it.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clock: Clock = "global"
    eps_placement: EpsPlacement = "raw"

    limits: ClassVar = {
        **Rule.limits,
        "beta1": (0.0, 1.0),
        "beta2": (0.0, 1.0),
        "eps": (0.0, math.inf),
        "weight_decay": (0.0, math.inf),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)

    def state_specs(self) -> tuple[StateSpec, ...]:
        return (
            StateSpec("exp_avg", "element"),
            StateSpec("exp_avg_sq", "element"),
            StateSpec("step", "row" if self.clock == "row" else "table", dtype=torch.int64),
        )

    def second_moment(self, grad: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """The new second moment as stored and, for the division, in a shape that broadcasts to (R, D)."""
        new = self.beta2 * old + (1.0 - self.beta2) * grad.square()
        return new, new

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        step = state["step"] + 1
        first = self.beta1 * state["exp_avg"] + (1.0 - self.beta1) * grad
        second, divisor = self.second_moment(grad, state["exp_avg_sq"])
        correction1 = bias_correction(self.beta1, step, first).unsqueeze(1)
        root2 = bias_correction(self.beta2, step, first).sqrt().unsqueeze(1)
        eps = self.eps / root2 if self.eps_placement == "raw" else self.eps
        delta = (first / correction1) / (divisor.sqrt() / root2 + eps)
        decayed = weight * (1.0 - self.lr * self.weight_decay)
        return decayed - self.lr * delta, {"exp_avg": first, "exp_avg_sq": second, "step": step}


@dataclass(frozen=True)
class RowAdam(Adam):
    """Adam with one second moment per row, ``v <- b2 v + (1 - b2) mean(g * g)``: FBGEMM's partial row-wise Adam."""

    def state_specs(self) -> tuple[StateSpec, ...]:
        first, second, step = super().state_specs()
        return first, StateSpec(second.name, "row"), step

    def second_moment(self, grad: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """The new second moment, shape (R,), and the same with shape (R, 1)."""
        new = self.beta2 * old + (1.0 - self.beta2) * mean_square(grad)
        return new, new.unsqueeze(1)
