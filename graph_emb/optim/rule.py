"""The contract of a sparse rule, arithmetic on touched rows, and the checks that all rules share.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.table.shard import StateSpec

State = dict[str, Tensor]


class SparseRule(Protocol):
    """Arithmetic on distinct rows. Knows no ids, names, devices or ranks; frozen and picklable.

    ``apply_update`` is its only caller, at the owner of the rows: ``prepare`` on pushed rows (in collective mode at the
    sender), duplicates summed, then ``update`` once. Numbers were checked when the rule was made: none of the methods
    raises.

    Attributes:
        per_occurrence: True where duplicates of an id must reach the rule one by one through ``prepare``.
    """

    per_occurrence: ClassVar[bool]

    def state_specs(self) -> tuple[StateSpec, ...]:
        """The state that the rule keeps for the rows, the same for the life of a table."""

    def prepare(self, grads: Tensor) -> Tensor:
        """The columns that are summed over the duplicates of an id, (B, D) or wider, from gradients (B, D)."""

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """New rows and new state; mutates nothing.

        Args:
            weight: Shape (R, D), distinct rows, in the table's accumulation dtype.
            grad: Their merged gradients, shape (R, D), or as wide as ``prepare`` made them.
            state: Exactly the declared entries: (R, D) per element, (R,) per row, (1,) per table.
        Returns:
            Rows (R, D), and state with the same names, shapes and dtypes.
        """


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules: a learning rate, limits on every number, no state, no preparation."""

    lr: float

    per_occurrence: ClassVar[bool] = False
    limits: ClassVar[dict[str, tuple[float, float]]] = {"lr": (0.0, math.inf)}
    """Field to (lowest allowed, first value that is too large)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in self.limits:
                (low, high), value = self.limits[field.name], getattr(self, field.name)
                ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
                if not ok or not low <= value < high:
                    raise ConfigError(f"{type(self).__name__}: {field.name}={value!r} is outside [{low:g}, {high:g})")

    def state_specs(self) -> tuple[StateSpec, ...]:
        """The state that the rule keeps for each row."""
        return ()

    @abstractmethod
    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """New rows and new state, exactly the declared entries; nothing is mutated."""

    def prepare(self, grads: Tensor) -> Tensor:
        """The columns that are summed over the duplicates of an id: the gradients, shape (B, D)."""
        return grads


def mean_square(grad: Tensor) -> Tensor:
    """Mean over the columns of grad squared, shape (R,)."""
    return grad.square().mean(dim=1)


def bias_correction(beta: float, step: Tensor, like: Tensor) -> Tensor:
    """1 - beta ** step in float64, then in the dtype of ``like``; shape of step."""
    return (1.0 - torch.pow(torch.tensor(beta, dtype=torch.float64), step.double().cpu())).to(like)
