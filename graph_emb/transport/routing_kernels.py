"""One pass over a batch of ids: duplicates found, owners looked up, distinct ids laid out owner after owner.

Legend: B asked ids, R distinct ids, W ranks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graph_emb.optim.grouping import group


@njit(cache=True, nogil=True)
def route(ids, bounds, ranks, world_size, last):
    """Distinct ids grouped by owner in the order of ranks, but rank ``last``, if any, at the end.

    Args:
        ids: Shape (B,), int64, inside the bounds.
        bounds, ranks: Range i of ids, [bounds[i], bounds[i + 1]), lies with rank ranks[i].
        world_size: W.
        last: The rank whose ids go to the end, or -1.
    Returns:
        distinct (R,) and, for each, its first position in ids (R,); following (B,): the next position of the same
        id or -1; place (B,): where each position's id stands in distinct; counts (W,).
    """
    found, first, following = group(ids)
    num = len(found)
    owner = np.empty(num, np.int32)
    counts = np.zeros(world_size, np.int64)
    for k in range(num):
        low, high = 0, len(ranks)
        while high - low > 1:
            middle = (low + high) >> 1
            if bounds[middle] <= found[k]:
                low = middle
            else:
                high = middle
        owner[k] = ranks[low]
        counts[owner[k]] += 1
    ends = np.empty(world_size, np.int64)
    start = 0
    for rank in range(world_size):
        if rank != last:
            ends[rank] = start
            start += counts[rank]
    if last >= 0:
        ends[last] = start
    distinct = np.empty(num, np.int64)
    firsts = np.empty(num, np.int64)
    place = np.empty(len(ids), np.int64)
    for k in range(num):
        at = ends[owner[k]]
        ends[owner[k]] += 1
        distinct[at] = found[k]
        firsts[at] = first[k]
        i = first[k]
        while i >= 0:
            place[i] = at
            i = following[i]
    return distinct, firsts, following, place, counts
