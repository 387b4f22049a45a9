"""Stochastic gradient descent on touched rows, with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from graph_emb.optim.rule import Rule, State
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
        if not self.momentum:
            return weight - self.lr * grad, {}
        buffer = self.momentum * state["momentum_buffer"] + grad
        return weight - self.lr * buffer, {"momentum_buffer": buffer}
