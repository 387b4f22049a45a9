"""The contract of a sparse rule, arithmetic on touched rows, and the checks that all rules share.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, check_flags, unknown_name
from graph_emb.table.lazy_decay import DECAY, DECAYED
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import StateSpec

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


DecayMode = Literal["l2", "decoupled", "lazy"]
BOUNDS = ("clip_value", "clip_row_norm", "clip_row_ratio", "max_norm")
TABLE_STEP = "table_step"
"""The state that counts a table's steps, for rounding and for counts of rows."""
ROW_COUNT, ROW_STEP = "row_count", "row_step"
"""How many steps touched a row, and the number of the last of them, 0 before the first."""


class RowCounts(NamedTuple):
    """Counts of the rows [first_id, first_id + R) of a table.

    Attributes:
        first_id: The id of the first of them.
        steps: Steps that touched each row, repeats in one of them counted once, (R,), int64.
        last: The number of the last of them among the table's steps, from 1 on; 0 where there was none, (R,), int64.
    """

    first_id: int
    steps: Tensor
    last: Tensor


class RowOptions(TypedDict, total=False):
    """Keyword arguments of every sparse optimizer, and numbers of its groups; steps of a row in this order.

    Attributes:
        maximize: Go up the gradient.
        clip_value: Largest absolute value of a number of a row's merged gradient; None: any.
        clip_row_norm: Largest Euclidean norm of a row's merged gradient; None: any.
        clip_row_ratio: r of CowClip: the norm of a row's merged gradient is at most ``max(r |w|, clip_row_least)``;
            None: any.
        clip_row_least: Of that bound, so that rows of zeros move.
        weight_decay: A row decays in the steps that touch it, if the mode is not ``"lazy"``.
        weight_decay_mode: ``"l2"``, the default as in torch: ``weight_decay * w`` joins the gradient; ``"decoupled"``,
            the default of AdamW: the row shrinks by ``1 - lr * weight_decay``; ``"lazy"``: every row does so in every
            step of its table, as a dense optimizer's would, which is made up for when it is read, updated or saved.
            LAMB and LARS have their own formulas.
        max_norm: Largest Euclidean norm of a row after a step that touched it; None: any.
        count_power: A row moves by ``n ** -count_power`` of the rule's step, n being the steps that touched it, this
            one too: large for rare rows, small for those of hubs. It needs ``count_rows``.
        count_rows: Count the steps that touch each row (``emb.row_counts()``). The same for all groups.
        state_dtype: ``torch.bfloat16`` keeps the rule's own state (moments, sums) in half the memory, rounded by chance
            so that it follows small changes; None: float32, of float64 tables float64. The same for all groups.
        stochastic_rounding: Round rows of float16 or bfloat16 by chance, so that steps smaller than half a unit in the
            last place count on average. The same for all groups, as the seed.
        rounding_seed: Of these chances, which also depends on step, original id and column alone.
    """

    maximize: bool
    clip_value: float | None
    clip_row_norm: float | None
    clip_row_ratio: float | None
    clip_row_least: float
    weight_decay: float
    weight_decay_mode: DecayMode
    max_norm: float | None
    count_power: float
    count_rows: bool
    state_dtype: torch.dtype | str | None
    stochastic_rounding: bool
    rounding_seed: int


FIXED_OPTIONS = ("state_dtype", "count_rows", "stochastic_rounding", "rounding_seed")
ROW_OPTIONS: RowOptions = {
    "maximize": False,
    "clip_value": None,
    "clip_row_norm": None,
    "clip_row_ratio": None,
    "clip_row_least": 1e-5,
    "weight_decay": 0.0,
    "weight_decay_mode": "l2",
    "max_norm": None,
    "count_power": 0.0,
}


def split_options(kind: str, options: RowOptions, others: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options that are fixed for the life of an optimizer, and those that are numbers of its groups.

    Args:
        kind: The optimizer's name, and ``others`` its own options: what an error shows.
    Raises:
        ConfigError: an unknown option, or one without effect.
    """
    given: dict[str, Any] = dict(options)
    for name in given:
        if name not in (*ROW_OPTIONS, *FIXED_OPTIONS):
            raise unknown_name(f"{kind} option", name, [*others, *ROW_OPTIONS, *FIXED_OPTIONS])
    fixed = {name: given.pop(name) for name in FIXED_OPTIONS if name in given}
    if (narrow := fixed.get("state_dtype")) is not None:
        fixed["state_dtype"] = str(narrow).removeprefix("torch.")  # as checkpoints write it
    if "rounding_seed" in fixed and not (fixed.get("stochastic_rounding") or narrow):
        raise ConfigError("rounding_seed has no effect without stochastic_rounding or state_dtype; leave it out")
    return {name: value for name, value in fixed.items() if value is not False and value is not None}, given


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules: learning rate, decay and bounds of touched rows, limits on every number.

    The steps of a row, in this order: the merged gradient's numbers are clipped to ``clip_value``, then its norm to
    ``clip_row_norm`` and to ``max(clip_row_ratio * |w|, clip_row_least)`` (CowClip: Zheng et al. 2023, "CowClip:
    reducing CTR prediction model training time from 12 hours to 10 minutes on 1 GPU", with the gradient summed over the
    row's occurrences and their number not in the bound); ``weight_decay`` joins the gradient (``"l2"``) or shrinks the
    row by ``1 - lr * weight_decay`` (``"decoupled"``: Loshchilov and Hutter 2019); the rule moves the row; a norm above
    ``max_norm`` is scaled down to it. A row decays in the steps that touch it. None switches a bound off.

    With ``"lazy"`` every row shrinks in every step of its table, before the bounds. The state keeps the sum of
    ``-log(1 - lr * weight_decay)`` over the steps, of the table and as of the row's last one: their difference is what
    the row lacks, whatever the rates were.

    With ``count_rows`` the state counts the steps that touched a row; the rule's move, without decay, is multiplied by
    the count to the power of ``-count_power``.

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
    clip_row_ratio: float | None = None
    clip_row_least: float = 1e-5
    max_norm: float | None = None
    count_power: float = 0.0
    count_rows: bool = False
    state_dtype: str | None = None
    stochastic_rounding: bool = False
    rounding_seed: int = 0

    per_occurrence: ClassVar[bool] = False
    own_decay: ClassVar[DecayMode | None] = None
    limits: ClassVar[dict[str, tuple[float, float]]] = {
        name: (0.0, math.inf) for name in ("lr", "weight_decay", "clip_row_least", "count_power")
    }
    """Field to (lowest allowed, first value that is too large)."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"weight_decay_mode": ("l2", "decoupled", "lazy")}
    """Field to the words that it takes."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name, (low, high) in self.limits.items():
            if not _finite(value := getattr(self, name)) or not low <= value < high:
                raise ConfigError(f"{kind}: {name}={value!r} is outside [{low:g}, {high:g})")
        for name in BOUNDS:
            if (value := getattr(self, name)) is not None and (not _finite(value) or value <= 0):
                raise ConfigError(f"{kind}: {name}={value!r} must be above 0 and finite, or None")
        check_flags(**{f"{kind}: {name}": getattr(self, name) for name in ("stochastic_rounding", "count_rows")})
        if self.state_dtype not in (None, "bfloat16"):
            raise ConfigError(f"{kind}: state_dtype={self.state_dtype!r} must be torch.bfloat16, or None")
        if self.count_power and not self.count_rows:
            raise ConfigError(f"{kind}: count_power={self.count_power!r} needs count_rows=True")
        if self.lazy and self.lr * self.weight_decay >= 1.0:
            raise ConfigError(
                f"{kind}: lr={self.lr!r} times weight_decay={self.weight_decay!r} leaves nothing of a row; with "
                "weight_decay_mode='lazy' it must be below 1"
            )
        seed = self.rounding_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ConfigError(f"{kind}: rounding_seed={seed!r} must be an integer in [0, 2**63)")
        for name, known in self.choices.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)

    def state_specs(self) -> tuple[StateSpec, ...]:
        """The state that the rule keeps for each row, and what its options need."""
        wide, whole = torch.float64, torch.int64
        found = list(self.own_specs())
        if self.state_dtype:
            narrow = [replace(spec, dtype=torch.bfloat16) if spec.dtype is None else spec for spec in found]
            if narrow == found:
                raise ConfigError(
                    f"state_dtype={self.state_dtype!r} has no effect: {type(self).__name__} keeps no state"
                )
            found = narrow
        if self.lazy:
            found += [StateSpec(DECAYED, "row", wide), StateSpec(DECAY, "table", wide)]
        if self.count_rows:
            found += [StateSpec(ROW_COUNT, "row", whole), StateSpec(ROW_STEP, "row", whole)]
        if self.stochastic_rounding or self.count_rows or self.state_dtype:
            found.append(StateSpec(TABLE_STEP, "table", whole))
        return tuple(found)

    @property
    def lazy(self) -> bool:
        """Whether untouched rows decay."""
        return self.weight_decay_mode == "lazy"

    def step_decay(self, state: Mapping[str, Any]) -> Any:
        """What a step adds to the table's sum of ``"lazy"`` decay."""
        share = self.rate(state) * self.weight_decay
        return -torch.log1p(-share) if isinstance(share, Tensor) else -math.log1p(-share)

    def own_specs(self) -> tuple[StateSpec, ...]:
        """The state of the rule's own formula."""
        return ()

    def prepare(self, grads: Tensor) -> Tensor:
        """The columns that are summed over the duplicates of an id: the gradients, shape (B, D)."""
        return grads

    def rate(self, state: Mapping[str, Any]) -> Any:
        """The learning rate of this step: a number, or a tensor () where it follows a clock on a device."""
        return self.lr

    def decays(self, state: Mapping[str, Any]) -> tuple[float, Any]:
        """What weight decay adds of a row to its gradient, and the factor by which it shrinks the row."""
        if not self.weight_decay or self.lazy or self.weight_decay_mode == self.own_decay:
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
        new: State = {}
        if self.lazy:
            new[DECAY] = state[DECAY] + self.step_decay(state)
            new[DECAYED] = torch.maximum(state[DECAYED], new[DECAY])
            weight = weight * torch.exp(state[DECAYED] - new[DECAYED]).unsqueeze(1).to(weight)
        if self.clip_row_ratio is not None:
            own = at_most(own, (self.clip_row_ratio * row_norm(weight)).clamp(min=self.clip_row_least))
        if added:
            own = own + added * weight
        if isinstance(factor, Tensor) or factor != 1.0:
            weight = weight * factor
        moved, moments = self.move(weight, torch.cat([own, prepared], dim=1) if prepared.shape[1] else own, state)
        if TABLE_STEP in state:
            new[TABLE_STEP] = state[TABLE_STEP] + 1
        if self.count_rows:
            new[ROW_COUNT] = state[ROW_COUNT] + 1
            new[ROW_STEP] = new[TABLE_STEP].expand_as(state[ROW_STEP]).clone()
            if self.count_power:
                moved = weight + (moved - weight) * self.count_rate(new[ROW_COUNT]).unsqueeze(1).to(weight)
        return at_most(moved, self.max_norm), {**moments, **new}

    def count_rate(self, counts: Tensor) -> Tensor:
        """The share of the rule's step that a row takes whose steps are counted, shape (R,), float64."""
        return counts.double().pow(-self.count_power)

    @abstractmethod
    def move(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """The rule's own formula: new rows and new state, arguments as ``SparseRule.update``; mutates nothing."""


def advance(rule: Any, shard: EmbeddingShard, steps: int = 1) -> None:
    """Count steps of a table that are taken elsewhere: what ``update`` does to its clocks."""
    if shard.lazy:  # first: its rate may follow a clock
        shard.state[DECAY].add_(steps * rule.step_decay(shard.state))
    for name, clock in shard.state.items():
        if shard.state_specs[name].kind == "table" and name != DECAY:
            clock.add_(steps)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def at_most(rows: Tensor, norm: float | Tensor | None) -> Tensor:
    """Rows (R, D), those of a larger Euclidean norm scaled down to it; one for all, or (R, 1)."""
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
    """1 - beta ** step in float64, where step lies, then in the dtype of ``like``; shape of step."""
    return (1.0 - torch.pow(beta, step.double())).to(like)
