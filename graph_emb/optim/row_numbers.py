"""The numbers that each touched row brings into an update: the decay that it lacks, and its share of the step.

Legend: R touched rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange

from graph_emb.core.compiled import njit
from graph_emb.core.threads import threads_for
from graph_emb.optim.rule import ROW_COUNT, ROW_STEP, TABLE_STEP
from graph_emb.table.lazy_decay import DECAY, DECAYED, settle_factors
from graph_emb.table.row_memory import prefetch

AHEAD = 32
"""Rows, each of one number, whose counts are asked for before they are needed."""
MOST_COUNTS = 1 << 12
"""Counts whose share of a step is looked up; those beyond are computed."""
NOTHING = np.empty(0, np.float32)


def row_numbers(rule: Any, state: dict[str, np.ndarray], touched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The factor of each touched row that makes up for lazy decay, and its share of the step; counts go on.

    Args:
        rule: With the options of this step.
        state: Of the shard: the counts and the decay of the touched rows are brought up to this step.
        touched: Distinct rows, shape (R,).
    Returns:
        Shapes (R,), float32, each empty where it is 1 of every row.
    """
    factor = NOTHING
    if rule.lazy:
        state[DECAY] += rule.step_decay(state)
        factor = np.empty(len(touched), np.float32)
        settle_factors(state[DECAYED], state[DECAY][0], touched, factor)
    return factor, _counted(rule, state, touched) if rule.count_rows else NOTHING


def _counted(rule: Any, state: dict[str, np.ndarray], touched: np.ndarray) -> np.ndarray:
    """Count a step of each row; the share of it that each takes, empty where all take the whole."""
    counts = np.empty(len(touched) if rule.count_power else 0, np.int64)
    with threads_for(len(touched)) as parts:
        _count(state[ROW_COUNT], state[ROW_STEP], touched, state[TABLE_STEP][0], parts, counts)
    if not rule.count_power:
        return NOTHING
    most = int(counts.max(initial=0))
    if most >= MOST_COUNTS:
        return rule.count_rate(torch.from_numpy(counts)).float().numpy()
    return rule.count_rate(torch.arange(most + 1)).float().numpy().take(counts)


@njit(parallel=True, cache=True, nogil=True)
def _count(counts, last, touched, step, parts, found):  # type: ignore[no-untyped-def]
    for part in prange(parts):
        low, high = part * len(touched) // parts, (part + 1) * len(touched) // parts
        for k in range(low, high):
            if k + AHEAD < high:
                prefetch(counts, touched[k + AHEAD])
                prefetch(last, touched[k + AHEAD])
            r = touched[k]
            counts[r] += 1
            last[r] = step
            if len(found) > 0:
                found[k] = counts[r]
