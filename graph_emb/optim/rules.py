"""The update rules: SGD, LARS, and Adagrad, Adam, LAMB with their row-wise forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from graph_emb.optim.rule import DecayMode, Rule, State, bias_correction, mean_square, row_norm
from graph_emb.table.spec import StateSpec


@dataclass(frozen=True)
class SGD(Rule):
    """``b <- momentum * b + g;  w <- w - lr * b`` on touched rows, as ``torch.optim.SGD`` with dampening 0.

    With momentum the heavy ball of Polyak 1964, "Some methods of speeding up the convergence of iteration methods";
    without it there is no state and ``b = g``. A row's momentum does not decay while the row is untouched.
    """

    momentum: float = 0.0

    limits: ClassVar = {**Rule.limits, "momentum": (0.0, 1.0)}

    def own_specs(self) -> tuple[StateSpec, ...]:
        return (StateSpec("momentum_buffer", "element"),) if self.momentum else ()

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
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

    def own_specs(self) -> tuple[StateSpec, ...]:
        total = StateSpec("sum", self.sum_kind, initial=self.initial_accumulator_value)
        return (total, StateSpec("step", "table", dtype=torch.int64)) if self.lr_decay else (total,)

    def rate(self, state: Mapping[str, Any]) -> Any:
        """``lr / (1 + n * lr_decay)`` after n steps of the table."""
        if not self.lr_decay:
            return self.lr
        step = state["step"][0]
        on_a_device = isinstance(step, Tensor) and step.device.type != "cpu"
        return self.lr / (1.0 + (step.double() if on_a_device else int(step)) * self.lr_decay)

    def later(self, total: Tensor, state: State) -> State:
        """The state after a step."""
        return {"sum": total, **({"step": state["step"] + 1} if self.lr_decay else {})}

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + grad.square()
        return weight - self.rate(state) * grad / (total.sqrt() + self.eps), self.later(total, state)


@dataclass(frozen=True)
class RowAdagrad(Adagrad):
    """``s <- s + mean(g * g);  w <- w - lr * g / (sqrt(s) + eps)`` with one scalar s per row.

    FBGEMM's exact row-wise Adagrad and PyTorch-BigGraph's (Lerer et al. 2019): the state takes 1/D of ``Adagrad``'s.
    """

    sum_kind: ClassVar[Literal["element", "row"]] = "row"

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
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

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
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

    ``m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g * g;  w <- w - lr * (m / c1) / (sqrt(v / c2) + e)`` with
    ``c = 1 - b ** t``.

    Args:
        clock: ``t`` counts the steps that touched the row (``"row"``, DGL) or the steps of the table
            (``"global"``, ``torch.optim.SparseAdam``).
        eps_placement: ``e = eps`` added to the corrected root (``"corrected"``: DGL, FBGEMM, dense Adam), or to
            the raw one, ``e = eps / sqrt(c2)`` (``"raw"``: ``torch.optim.SparseAdam``).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clock: Clock = "global"
    eps_placement: EpsPlacement = "raw"

    second_kind: ClassVar[Literal["element", "row"]] = "element"
    limits: ClassVar = {**Rule.limits, "beta1": (0.0, 1.0), "beta2": (0.0, 1.0), "eps": (0.0, math.inf)}
    choices: ClassVar = {**Rule.choices, **CHOICES}

    def own_specs(self) -> tuple[StateSpec, ...]:
        return (
            StateSpec("exp_avg", "element"),
            StateSpec("exp_avg_sq", self.second_kind),
            StateSpec("step", "row" if self.clock == "row" else "table", dtype=torch.int64),
        )

    def direction(self, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """``(m / c1) / (sqrt(v / c2) + e)``, shape (R, D), and the new state."""
        step = state["step"] + 1
        first = self.beta1 * state["exp_avg"] + (1.0 - self.beta1) * grad
        square = grad.square() if self.second_kind == "element" else mean_square(grad)
        second = self.beta2 * state["exp_avg_sq"] + (1.0 - self.beta2) * square
        correction1 = bias_correction(self.beta1, step, first).unsqueeze(1)
        root2 = bias_correction(self.beta2, step, first).sqrt().unsqueeze(1)
        eps = self.eps / root2 if self.eps_placement == "raw" else self.eps
        divisor = second.sqrt() if self.second_kind == "element" else second.sqrt().unsqueeze(1)
        found = (first / correction1) / (divisor / root2 + eps)
        return found, {"exp_avg": first, "exp_avg_sq": second, "step": step}

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        delta, state = self.direction(grad, state)
        return weight - self.lr * delta, state


@dataclass(frozen=True)
class RowAdam(Adam):
    """Adam with one second moment per row, ``v <- b2 v + (1 - b2) mean(g * g)``: FBGEMM's partial row-wise Adam."""

    second_kind: ClassVar[Literal["element", "row"]] = "row"


@dataclass(frozen=True)
class LAMB(Adam):
    """LAMB (You et al. 2020) on touched rows, each row being a layer of its own.

    ``r = (m / c1) / (sqrt(v / c2) + eps) + weight_decay * w;  w <- w - lr * (|w| / |r|) * r`` with Adam's moments m, v
    and corrections c. Where ``|w|`` or ``|r|`` is 0 the ratio is 1, so that rows of zeros move. Its decay is
    ``"decoupled"``.
    """

    eps_placement: EpsPlacement = "corrected"

    own_decay: ClassVar[DecayMode | None] = "decoupled"

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        delta, state = self.direction(grad, state)
        if self.weight_decay_mode == "decoupled":
            delta = delta + self.weight_decay * weight
        return weight - self.lr * trust(row_norm(weight), row_norm(delta)) * delta, state


@dataclass(frozen=True)
class RowLAMB(LAMB):
    """LAMB with one second moment per row, ``v <- b2 v + (1 - b2) mean(g * g)``: FBGEMM's partial row-wise LAMB."""

    second_kind: ClassVar[Literal["element", "row"]] = "row"


@dataclass(frozen=True)
class LARS(Rule):
    """LARS (You, Gitman and Ginsburg 2017) on touched rows, each row being a layer of its own.

    ``a = eta * |w| / (|g| + weight_decay * |w|);  b <- momentum * b + lr * a * (g + weight_decay * w);  w <- w - b``.
    The rate is folded into b, as in the paper. Where ``|w|`` or the divisor is 0, ``a = 1``. Its decay is ``"l2"``.
    """

    momentum: float = 0.9
    eta: float = 1e-3

    own_decay: ClassVar[DecayMode | None] = "l2"
    limits: ClassVar = {**Rule.limits, "momentum": (0.0, 1.0), "eta": (0.0, math.inf)}

    def own_specs(self) -> tuple[StateSpec, ...]:
        return (StateSpec("momentum_buffer", "element"),)

    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        decay = self.weight_decay if self.weight_decay_mode == "l2" else 0.0
        norm = row_norm(weight)
        scale = self.lr * trust(self.eta * norm, row_norm(grad) + decay * norm)
        buffer = self.momentum * state["momentum_buffer"] + scale * (grad + decay * weight)
        return weight - buffer, {"momentum_buffer": buffer}


def trust(norm: Tensor, divisor: Tensor) -> Tensor:
    """``norm / divisor``, and 1 where one of them is 0."""
    return torch.where((norm > 0) & (divisor > 0), norm / divisor, 1.0)
