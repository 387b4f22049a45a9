"""The update rules: stochastic gradient descent, Adagrad and Adam with their row-wise forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import unknown_name
from graph_emb.optim.rule import Rule, State, bias_correction, mean_square
from graph_emb.table.shard import StateSpec


@dataclass(frozen=True)
class SGD(Rule):
    """``b <- momentum * b + g;  w <- w - lr * b`` on touched rows, as ``torch.optim.SGD`` with dampening 0.

    With momentum the heavy ball of Polyak 1964, "Some methods of speeding up the convergence of iteration methods";
    without it there is no state and ``b = g``. A row's momentum does not decay while the row is untouched.
    """

    momentum: float = 0.0

    limits: ClassVar = {**Rule.limits, "momentum": (0.0, 1.0)}

    def state_specs(self) -> tuple[StateSpec, ...]:
        return (StateSpec("momentum_buffer", "element"),) if self.momentum else ()

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        if "momentum_buffer" not in state:
            return weight - self.lr * grad, {}
        buffer = self.momentum * state["momentum_buffer"] + grad
        return weight - self.lr * buffer, {"momentum_buffer": buffer}


@dataclass(frozen=True)
class Adagrad(Rule):
    """``s <- s + g * g;  w <- w - lr * g / (sqrt(s) + eps)``, element by element, as ``torch.optim.Adagrad``.

    With ``lr_decay`` the rate falls as ``lr / (1 + n * lr_decay)`` over the table's n earlier steps.

    Duchi, Hazan and Singer 2011, "Adaptive subgradient methods for online learning and stochastic optimization".
    """

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0
    lr_decay: float = 0.0

    sum_kind: ClassVar[Literal["element", "row"]] = "element"
    limits: ClassVar = {
        **Rule.limits,
        "eps": (0.0, math.inf),
        "initial_accumulator_value": (0.0, math.inf),
        "lr_decay": (0.0, math.inf),
    }

    def state_specs(self) -> tuple[StateSpec, ...]:
        total = StateSpec("sum", self.sum_kind, initial=self.initial_accumulator_value)
        return (total, StateSpec("step", "table", dtype=torch.int64)) if self.lr_decay else (total,)

    def rate(self, state: Mapping[str, Any]) -> float:
        """``lr / (1 + n * lr_decay)`` after n steps of the table."""
        return self.lr / (1.0 + int(state["step"][0]) * self.lr_decay) if self.lr_decay else self.lr

    def later(self, total: Tensor, state: State) -> State:
        """The state after a step."""
        return {"sum": total, **({"step": state["step"] + 1} if self.lr_decay else {})}

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + grad.square()
        return weight - self.rate(state) * grad / (total.sqrt() + self.eps), self.later(total, state)


@dataclass(frozen=True)
class RowAdagrad(Adagrad):
    """``s <- s + mean(g * g);  w <- w - lr * g / (sqrt(s) + eps)`` with one scalar s per row.

    FBGEMM's exact row-wise Adagrad and PyTorch-BigGraph's (Lerer et al. 2019): the state takes 1/D of ``Adagrad``'s.
    """

    sum_kind: ClassVar[Literal["element", "row"]] = "row"

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + mean_square(grad)
        scale = self.rate(state) / (total.sqrt() + self.eps)
        return weight - scale.unsqueeze(1) * grad, self.later(total, state)


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
        scale = self.rate(state) / (total.sqrt() + self.eps)
        return weight - scale.unsqueeze(1) * grad[:, :-1], self.later(total, state)


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
