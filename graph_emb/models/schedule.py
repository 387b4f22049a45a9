"""The learning rate of a step as a share of the first one: warm-up, then a decay."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from graph_emb.core.settings import Count, Number, Settings
from graph_emb.models.settings import At

ScheduleName = Literal["linear", "cosine", "plateau", "none"]


def share_of_rate(decay: str, warmup: float, done: float) -> float:
    """The share of the first rate where a training is ``done``, in [0, 1].

    It rises linearly in the first ``warmup`` of the training, beginning above 0 with the first step, and then falls to
    0 at its end: in a straight line, or along half a cosine (Loshchilov and Hutter, ICLR 2017). ``plateau`` and
    ``none`` stay at 1: the one follows validations, see ``Plateau``.

    Args:
        decay: A ``ScheduleName``.
        warmup: In [0, 1).
        done: Of the training, in [0, 1]; for a warm-up from the first step on, of the step's own end.
    """
    if done < warmup:
        return done / warmup
    rest = min(1.0, (done - warmup) / (1.0 - warmup))
    if decay == "linear":
        return 1.0 - rest
    return (1.0 + math.cos(math.pi * rest)) / 2 if decay == "cosine" else 1.0


class Plateau:
    """A factor of the rate that shrinks whenever validations stop to improve.

    Args:
        factor: What a reduction multiplies it by, in (0, 1).
        patience: Validations without a better value before each reduction, at least 1.
        scale: The factor so far.
    """

    def __init__(self, factor: float, patience: int, scale: float = 1.0) -> None:
        self._factor, self._patience, self.scale = factor, patience, scale

    def due(self, since: int) -> bool:
        """Whether to reduce after ``since`` validations that were no better than the best one."""
        return since > 0 and since % self._patience == 0

    def reduce(self) -> None:
        """Take one step down."""
        self.scale *= self._factor


def share_of_step(decay: str, warmup: float, step: float, total: int) -> float:
    """``share_of_rate`` of a step, counted from 0, of ``total``."""
    done = min(step + 1, warmup * total) if step < warmup * total else step
    return share_of_rate(decay, warmup, done / total)


class WarmUp(Settings):
    """How the learning rate of a training begins."""

    warmup: Annotated[Number, At("train.warmup")] = Field(
        default=0.0, ge=0, lt=1, description="share of the training in which the rate rises to its first value"
    )


class RateSchedule(WarmUp):
    """How a model's learning rates change while it trains.

    Attributes:
        lr_decay: ``plateau`` multiplies the rates by ``lr_factor`` after each ``lr_patience`` validations in a row
            that were no better.
    """

    lr_decay: Annotated[ScheduleName, At("train.lr_decay")] = Field(
        default="none", description="linear or cosine: to zero over all epochs; plateau: by the validation; none"
    )
    lr_factor: Annotated[Number | None, At("train.lr_factor")] = Field(
        default=None, gt=0, lt=1, description="of the rate at a plateau; null: 0.5"
    )
    lr_patience: Annotated[Count | None, At("train.lr_patience")] = Field(
        default=None, ge=1, description="validations that are no better before a plateau's step; null: 1"
    )

    def new_plateau(self) -> Plateau:
        """At its start."""
        return Plateau(self.lr_factor or 0.5, self.lr_patience or 1)

    def share_of_step(self, step: int, total: int) -> float:
        """See the function of that name."""
        return share_of_step(self.lr_decay, self.warmup, step, total)

    @model_validator(mode="after")
    def _only_a_plateau_has_its_numbers(self) -> Self:
        for name in ("lr_factor", "lr_patience") if self.lr_decay != "plateau" else ():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} = {getattr(self, name)!r} belongs to lr_decay=plateau; leave it out")
        return self
