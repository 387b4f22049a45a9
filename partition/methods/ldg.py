"""Linear deterministic greedy, restreamed."""

from __future__ import annotations

import numpy as np

from partition.methods.base import Problem, any_but_none, method
from partition.methods.streaming import stream


@method("ldg", refusal=any_but_none)
def ldg(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part times its free share (Stanton and Kliot, KDD 2012), every limit kept.

    Args:
        passes: 1 is LDG, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return stream(problem, passes, order, fennel=False)
