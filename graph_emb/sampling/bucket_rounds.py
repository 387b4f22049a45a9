"""An order of training in which several buckets of triples train at once, of parts that no two of them share.

The entities lie in p parts, so each triple in one of p x p buckets (``graph_emb.sampling.buckets``). A *round* is up to
W buckets, one at each *place*; a part is in one place of a round. As in PyTorch-BigGraph (Lerer et al. 2019) ranks that
train one place each need nothing of each other's parts until the next round, but the order is the lock: all ranks
compute it, and no server hands out buckets.

The pairs of parts are those of a tournament (circle method), whose matchings are cut to W pairs; what is left over of
them is put together first-fit. A pair trains as bucket (i, j) in a round and as (j, i) in the one beside it, so that
these need no swap. Which buckets make a round is a function of (seed, p, W); their order, and the place of each, of the
epoch too: a place keeps parts that it has.

Legend: p parts, W places, R rounds.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from graph_emb.core.errors import ConfigError

NONE = -1
"""Instead of a part where a place has nothing to do."""
CHOICE = 32
"""Rounds among which the one that needs the fewest swaps comes next."""

Pair = tuple[int, int]


def matchings(parts: int) -> list[list[Pair]]:
    """All pairs of parts, as rounds of a tournament: no part stands twice in one."""
    turning = parts - 1 + parts % 2  # an odd number has a part without a partner in each round
    found = []
    for turn in range(turning):
        pairs = [((turn + k) % turning, (turn - k) % turning) for k in range(1, (turning + 1) // 2)]
        found.append([(turn, turning), *pairs] if parts % 2 == 0 else pairs)
    return found


def disjoint_pairs(parts: int, places: int) -> list[list[Pair]]:
    """All pairs of parts in few groups of up to ``places`` pairs, of which no two share a part."""
    full: list[list[Pair]] = []
    partial: list[tuple[list[Pair], set[int]]] = []
    for pairs in matchings(parts):
        end = len(pairs) - len(pairs) % places
        full += [pairs[start : start + places] for start in range(0, end, places)]
        for pair in pairs[end:]:
            own = next((one for one in partial if not one[1].intersection(pair)), None)
            if own is None:
                partial.append(own := ([], set()))
            own[0].append(pair)
            own[1].update(pair)
            if len(own[0]) == places:
                partial.remove(own)
                full.append(own[0])
    return full + [group for group, _ in partial]


class RoundSchedule:
    """The rounds of a table's parts, epoch for epoch.

    Args:
        parts: p, at least 2 W.
        places: W, buckets that train at once, at least 2.
        num_rows: Of the table; part k has the rows ``bounds[k]`` to ``bounds[k + 1]``.
        seed: Any integer.
    Attributes:
        bounds: Shape (p + 1,).
    Raises:
        ConfigError: numbers out of their limits.
    Example:
        >>> from graph_emb.sampling.bucket_rounds import RoundSchedule
        >>> schedule = RoundSchedule(4, 2, num_rows=100)
        >>> schedule.epoch(0).shape  # 16 buckets, 2 at once
        (8, 2, 2)
    """

    def __init__(self, parts: int, places: int, num_rows: int, seed: int = 0) -> None:
        if places < 2 or not 2 * places <= parts <= num_rows:
            raise ConfigError(
                f"buckets of {parts} parts of {num_rows} rows, {places} buckets at once: at least 2 at once, at least "
                f"twice as many parts, here {2 * places}, so that no two buckets share one, and at most one a row"
            )
        self.parts, self.places, self._seed = parts, places, seed
        self.bounds = np.arange(parts + 1) * num_rows // parts
        names = np.random.default_rng((seed, 0, 3)).permutation(parts).tolist()
        alone = [[(part, part) for part in names[k : k + places]] for k in range(0, parts, places)]
        pairs = [[(names[i], names[j]) for i, j in group] for group in disjoint_pairs(parts, places)]
        self._groups: list[list[Pair]] = alone + pairs

    @property
    def resident(self) -> int:
        """Parts in memory at a time, of all places."""
        return 2 * self.places

    def epoch(self, epoch: int) -> np.ndarray:
        """Parts of heads and tails of the bucket at each place of each round, (R, W, 2); ``NONE`` of no bucket."""
        rng = np.random.default_rng((self._seed, epoch, 4))
        waiting = [self._groups[k] for k in rng.permutation(len(self._groups)).tolist()]
        held: list[set[int]] = [set() for _ in range(self.places)]
        rounds = []
        while waiting:
            group, placed = self._next(waiting, held)
            held = [set(pair) if pair[0] != NONE else set() for pair in placed]
            rounds.append(placed)
            if any(head != tail for head, tail in group):
                back = [(tail, head) for head, tail in placed]
                rounds[-1:] = [placed, back] if rng.random() < 0.5 else [back, placed]
        return np.array(rounds, np.int64)

    def _next(self, waiting: list[list[Pair]], held: list[set[int]]) -> tuple[list[Pair], list[Pair]]:
        """Take the group out of those that wait that comes next; it, and its pairs at their places.

        It is one of which most pairs stay at a part, of these one of the fewest swaps, then one of whose new parts most
        rest in the round before: these can travel meanwhile.
        """
        home = {part: place for place, parts in enumerate(held) for part in parts}
        best: tuple[tuple[int, int, int], int, list[Pair]] | None = None
        for k, group in enumerate(waiting[:CHOICE]):
            placed = self._placed(group, home)
            new = [part for pair, own in zip(placed, held, strict=True) for part in {*pair} - own - {NONE}]
            kept = sum(any(part in home for part in pair) for pair in group)
            worth = kept, -len(new), sum(part not in home for part in new)
            if best is None or worth > best[0]:
                best = worth, k, placed
        assert best is not None
        return waiting.pop(best[1]), best[2]

    def _placed(self, group: list[Pair], home: dict[int, int]) -> list[Pair]:
        """The pairs of a round at their places: where one of the parts is, if no earlier pair went there."""
        placed: list[Pair | None] = [None] * self.places
        others = []
        for pair in group:
            able = [home[part] for part in pair if part in home and placed[home[part]] is None]
            if able:
                placed[able[0]] = pair
            else:
                others.append(pair)
        for place, own in enumerate(placed):
            if own is None:
                placed[place] = others.pop() if others else (NONE, NONE)
        return [pair for pair in placed if pair is not None]

    def num_moves(self, rounds: np.ndarray) -> int:
        """Parts that come to a place which did not have them, those of the first round not counted."""
        held = [[{*parts} - {NONE} for parts in places] for places in rounds.tolist()]
        return sum(len(new - old) for now, then in pairwise(held) for old, new in zip(now, then, strict=True))

    def ranges(self, parts: np.ndarray) -> list[tuple[int, int]]:
        """The rows [low, high) of parts, each once, in their order; ``NONE`` has none."""
        own = dict.fromkeys(part for part in parts.ravel().tolist() if part != NONE)
        return [(int(self.bounds[part]), int(self.bounds[part + 1])) for part in own]
