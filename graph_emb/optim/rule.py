"""The contract of a sparse rule, arithmetic on touched rows, and the checks that all rules share.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Protocol, TypedDict

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, unknown_name
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


DecayMode = Literal["l2", "decoupled"]
BOUNDS = ("clip_value", "clip_row_norm", "max_norm")
ROUNDING_STEP = "rounding_step"


class RowOptions(TypedDict, total=False):
    """Keyword arguments of every sparse optimizer, and numbers of its groups; steps of a row in this order.

    Attributes:
        maximize: Go up the gradient.
        clip_value: Largest absolute value of a number of a row's merged gradient; None: any.
        clip_row_norm: Largest Euclidean norm of a row's merged gradient; None: any.
        weight_decay: A row decays in the steps that touch it.
        weight_decay_mode: ``"l2"``, the default as in torch: ``weight_decay * w`` joins the gradient; ``"decoupled"``,
            the default of AdamW: the row shrinks by ``1 - lr * weight_decay``. LAMB and LARS have their own formulas.
        max_norm: Largest Euclidean norm of a row after a step that touched it; None: any.
        stochastic_rounding: Round rows of float16 or bfloat16 by chance, so that steps smaller than half a unit in the
            last place count on average. The same for all groups, as the seed.
        rounding_seed: Of that chance, which also depends on step, original id and column alone.
    """

    maximize: bool
    clip_value: float | None
    clip_row_norm: float | None
    weight_decay: float
    weight_decay_mode: DecayMode
    max_norm: float | None
    stochastic_rounding: bool
    rounding_seed: int


FIXED_OPTIONS = ("stochastic_rounding", "rounding_seed")
ROW_OPTIONS: RowOptions = {
    "maximize": False,
    "clip_value": None,
    "clip_row_norm": None,
    "weight_decay": 0.0,
    "weight_decay_mode": "l2",
    "max_norm": None,
}


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules: learning rate, decay and bounds of touched rows, limits on every number.

    The steps of a row, in this order: the merged gradient's numbers are clipped to ``clip_value``, then its norm to
    ``clip_row_norm``; ``weight_decay`` joins the gradient (``"l2"``) or shrinks the row by ``1 - lr * weight_decay``
    (``"decoupled"``: Loshchilov and Hutter 2019); the rule moves the row; a norm above ``max_norm`` is scaled down
    to it. A row decays in the steps that touch it. None switches a bound off.

    With ``stochastic_rounding`` a row of 16 bits takes one of the two neighbours of each new number by chance
    (``round_stochastically``); the state counts the table's steps for it.

    Attributes:
        own_decay: The mode in which the rule itself uses ``weight_decay``, by a formula of its paper.
    """

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0
    weight_decay_mode: DecayMode = "l2"
    clip_value: float | None = None
    clip_row_norm: float | None = None
    max_norm: float | None = None
    stochastic_rounding: bool = False
    rounding_seed: int = 0

    per_occurrence: ClassVar[bool] = False
    own_decay: ClassVar[DecayMode | None] = None
    limits: ClassVar[dict[str, tuple[float, float]]] = {"lr": (0.0, math.inf), "weight_decay": (0.0, math.inf)}
    """Field to (lowest allowed, first value that is too large)."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"weight_decay_mode": ("l2", "decoupled")}
    """Field to the words that it takes."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name, (low, high) in self.limits.items():
            if not _finite(value := getattr(self, name)) or not low <= value < high:
                raise ConfigError(f"{kind}: {name}={value!r} is outside [{low:g}, {high:g})")
        for name in BOUNDS:
            if (value := getattr(self, name)) is not None and (not _finite(value) or value <= 0):
                raise ConfigError(f"{kind}: {name}={value!r} must be above 0 and finite, or None")
        if not isinstance(self.stochastic_rounding, bool):
            raise ConfigError(f"{kind}: stochastic_rounding={self.stochastic_rounding!r} must be True or False")
        seed = self.rounding_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ConfigError(f"{kind}: rounding_seed={seed!r} must be an integer in [0, 2**63)")
        for name, known in self.choices.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)

    def state_specs(self) -> tuple[StateSpec, ...]:
        """The state that the rule keeps for each row, and the count of steps that rounding needs."""
        clock = (StateSpec(ROUNDING_STEP, "table", dtype=torch.int64),) if self.stochastic_rounding else ()
        return self.own_specs() + clock

    def own_specs(self) -> tuple[StateSpec, ...]:
        """The state of the rule's own formula."""
        return ()

    def prepare(self, grads: Tensor) -> Tensor:
        """The columns that are summed over the duplicates of an id: the gradients, shape (B, D)."""
        return grads

    def rate(self, state: Mapping[str, Any]) -> float:
        """The learning rate of this step."""
        return self.lr

    def decays(self, state: Mapping[str, Any]) -> tuple[float, float]:
        """What weight decay adds of a row to its gradient, and the factor by which it shrinks the row."""
        if not self.weight_decay or self.weight_decay_mode == self.own_decay:
            return 0.0, 1.0
        if self.weight_decay_mode == "l2":
            return self.weight_decay, 1.0
        return 0.0, 1.0 - self.rate(state) * self.weight_decay

    def update(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """New rows and new state, exactly the declared entries; nothing is mutated."""
        added, factor = self.decays(state)
        own, prepared = grad[:, : weight.shape[1]], grad[:, weight.shape[1] :]
        if self.clip_value is not None:
            own = own.clamp(-self.clip_value, self.clip_value)
        own = at_most(own, self.clip_row_norm)
        if added:
            own = own + added * weight
        if factor != 1.0:
            weight = weight * factor
        moved, new = self.move(weight, torch.cat([own, prepared], dim=1) if prepared.shape[1] else own, state)
        if self.stochastic_rounding:
            new = {**new, ROUNDING_STEP: state[ROUNDING_STEP] + 1}
        return at_most(moved, self.max_norm), new

    @abstractmethod
    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """The rule's own formula: new rows and new state, arguments as ``SparseRule.update``; mutates nothing."""


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def at_most(rows: Tensor, norm: float | None) -> Tensor:
    """Rows (R, D), those of a larger Euclidean norm scaled down to it."""
    if norm is None:
        return rows
    norms = row_norm(rows)
    return torch.where(norms > norm, rows * (norm / norms), rows)


def row_norm(rows: Tensor) -> Tensor:
    """Euclidean norms of rows, shape (R, 1)."""
    return rows.square().sum(dim=1, keepdim=True).sqrt()


def mean_square(grad: Tensor) -> Tensor:
    """Mean over the columns of grad squared, shape (R,)."""
    return grad.square().mean(dim=1)


def bias_correction(beta: float, step: Tensor, like: Tensor) -> Tensor:
    """1 - beta ** step in float64, then in the dtype of ``like``; shape of step."""
    return (1.0 - torch.pow(torch.tensor(beta, dtype=torch.float64), step.double().cpu())).to(like)
