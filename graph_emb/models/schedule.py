"""The learning rate of a step as a share of the first one: warm-up, then a decay."""

from __future__ import annotations

import math
from typing import Literal

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
