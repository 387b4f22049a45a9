"""Fennel, restreamed."""

from __future__ import annotations

import numpy as np

from partition.methods.base import Problem, any_but_none, method
from partition.methods.streaming import stream


@method("fennel", refusal=any_but_none)
def fennel(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part less a price for its size (Tsourakakis et al., WSDM 2014; gamma 1.5), every limit kept.

    The size is that of the constraint that is fullest, in units of nodes.

    Args:
        passes: 1 is Fennel, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return stream(problem, passes, order, fennel=True)
