"""How a table grows: which ids get a row, and which rows leave; decided by ids, counts and steps alone.

Legend: P places of an owner, of which some have no row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.table.selection import Sums, lowest

LOW_WATER = 0.95
"""The share of a limit that a pass leaves once there are more than the limit."""


def _check(what: str, name: str, value: Any, least: float, whole: bool = True) -> None:
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
        raise ConfigError(
            f"{what}: {name}={value!r} must be {'an integer' if whole else 'a number'} of at least {least}"
        )


Count = Literal["steps", "occurrences"]
MOST_USES = 0xFFFFFFFF
"""Counts go no further."""
CANDIDATE_STEPS = 1_000_000


def _check_count(count: Any) -> None:
    if count not in ("steps", "occurrences"):
        raise unknown_name("count", count, ("steps", "occurrences"))


@dataclass(frozen=True)
class SeenAtLeast:
    """An id gets its row in the step that uses it for the ``uses``-th time; that step's gradient is applied.

    Until then it reads as its first value and its gradients are dropped, as if no step had touched it.

    Args:
        uses: From 1, which admits every id, to 2**32 - 1.
        candidate_steps: Steps without a use after which an id that has no row begins to count anew.
        max_candidates: Ids of the whole table that may wait for a row. Where a step leaves more, those unused for
            longest, ties by the lowest id, begin to count anew, until .95 of it are left. None: no limit.
        count: ``"steps"``: a use is a step whose gradients touch the id, however often and on however many ranks.
            ``"occurrences"``: each time that it stands in the batches of all ranks is a use.
    """

    uses: int
    candidate_steps: int = CANDIDATE_STEPS
    max_candidates: int | None = None
    count: Count = "steps"

    def __post_init__(self) -> None:
        _check("SeenAtLeast", "uses", self.uses, 1)
        if self.uses > MOST_USES:
            raise ConfigError(f"SeenAtLeast: uses={self.uses} must be at most {MOST_USES}")
        _check_count(self.count)
        _check("SeenAtLeast", "candidate_steps", self.candidate_steps, 1)
        if self.max_candidates is not None:
            _check("SeenAtLeast", "max_candidates", self.max_candidates, 1)
        for name, value, default in (
            ("candidate_steps", self.candidate_steps, CANDIDATE_STEPS),
            ("max_candidates", self.max_candidates, None),
            ("count", self.count, "steps"),
        ):
            if self.uses == 1 and value != default:
                raise ConfigError(
                    f"SeenAtLeast: {name}={value!r} has no effect where uses=1 admits every id; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class Eviction(ABC):
    """Which rows leave: those of the lowest scores, ties by the lowest id. Frozen rows never do.

    A pass is made after every ``every``-th step of the table, and by ``emb.evict()``; the same ids leave for any number
    of ranks and threads.

    Args:
        every: Steps from pass to pass.
        floor: Rows that always stay.
        per_pass: The most rows that one pass takes; None: no limit.
        max_rows: Rows of the whole table beyond which a pass takes more than those that leave anyhow; None: no limit.
        low_water: What such a pass leaves, as a share of ``max_rows``; None: .95.
    """

    every: int = 1
    floor: int = 0
    per_pass: int | None = None
    max_rows: int | None = None
    low_water: float | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        _check(name, "every", self.every, 1)
        _check(name, "floor", self.floor, 0)
        if self.per_pass is not None:
            _check(name, "per_pass", self.per_pass, 1)
        if self.max_rows is None and self.low_water is not None:
            raise ConfigError(f"{name}: low_water={self.low_water!r} has no effect without max_rows; leave it out")
        if self.max_rows is not None:
            _check(name, "max_rows", self.max_rows, 1)
            if self.floor > self.max_rows:
                raise ConfigError(f"{name}: floor={self.floor} is above max_rows={self.max_rows}")
        if self.low_water is not None:
            _check(name, "low_water", self.low_water, 0, whole=False)
            if self.low_water > 1:
                raise ConfigError(f"{name}: low_water={self.low_water!r} must be from 0 to 1")

    @abstractmethod
    def scores(self, rows: Counted) -> np.ndarray:
        """The score of the row at each place, (P,), unsigned; anything where there is none."""

    def too_low(self, rows: Counted) -> int | None:
        """The score below which rows leave whatever their number; None: there is none."""
        return None

    def surplus(self, num_rows: int) -> int:
        """How many are too many of all owners' rows whose scores are not ``too_low``."""
        if self.max_rows is None or num_rows <= self.max_rows:
            return 0
        return num_rows - int((LOW_WATER if self.low_water is None else self.low_water) * self.max_rows)


class Counted(Protocol):
    """Rows of an owner as an eviction sees them; places without a row may have anything.

    Attributes:
        step: The table's.
        last, count: Of each row the last step that used it, and how many steps or occurrences did, (P,) uint32.
    """

    step: int

    @property
    def last(self) -> np.ndarray: ...
    @property
    def count(self) -> np.ndarray: ...
    def norms(self) -> np.ndarray:
        """The Euclidean norm of each row, (P,), float64."""


@dataclass(frozen=True)
class Unused(Eviction):
    """Rows that no step has used for more than ``steps`` steps, and, beyond ``max_rows``, those unused for longest.

    ``max_rows`` counts what the first limit leaves: None, the default, leaves all of it.
    """

    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("Unused", "steps", self.steps, 1)

    def scores(self, rows: Counted) -> np.ndarray:
        return rows.last

    def too_low(self, rows: Counted) -> int | None:
        return max(0, rows.step - self.steps)


@dataclass(frozen=True, kw_only=True)
class LeastRecent(Eviction):
    """Beyond ``max_rows`` rows of the whole table those that have been unused for longest (LRU) leave."""

    max_rows: int = field()  # without a default, which Eviction has

    def scores(self, rows: Counted) -> np.ndarray:
        return rows.last


@dataclass(frozen=True, kw_only=True)
class LeastUsed(Eviction):
    """Beyond ``max_rows`` rows of the whole table those used least often (LFU) leave.

    Args:
        half_life: Steps after which all counts are halved (rounded down), so that old uses die; None: never.
        count: ``"steps"``, or ``"occurrences"``: see ``SeenAtLeast``. Counts end at 2**32 - 1.
    """

    max_rows: int = field()
    half_life: int | None = None
    count: Count = "steps"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count(self.count)
        if self.half_life is not None:
            _check("LeastUsed", "half_life", self.half_life, 1)

    def scores(self, rows: Counted) -> np.ndarray:
        return rows.count


@dataclass(frozen=True, kw_only=True)
class SmallNorm(Eviction):
    """Rows whose Euclidean norm is below ``threshold``, or, beyond ``max_rows``, those of the smallest norms."""

    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.threshold is None) == (self.max_rows is None):
            raise ConfigError("SmallNorm: give threshold or max_rows, one of them")
        if self.threshold is not None:
            _check("SmallNorm", "threshold", self.threshold, 0, whole=False)

    def scores(self, rows: Counted) -> np.ndarray:
        return rows.norms().view(np.uint64)  # bits of floats of at least 0 are in the order of their values

    def too_low(self, rows: Counted) -> int | None:
        return None if self.threshold is None else int(np.float64(self.threshold).view(np.uint64))


def by_occurrence(rule: SeenAtLeast | Eviction | None) -> bool:
    """Whether a policy counts the occurrences of an id in a step, not the step."""
    return isinstance(rule, (SeenAtLeast, LeastUsed)) and rule.count == "occurrences"


def times_counted(rule: SeenAtLeast | Eviction | None, num: int, occurrences: np.ndarray | None) -> np.ndarray | None:
    """How often a step uses each of ``num`` ids as a policy counts, (num,); None: once, however often one stands there.

    Args:
        occurrences: For how many gradients of the step each stands, (num,); None: for one.
    """
    if not by_occurrence(rule):
        return None
    return np.ones(num, np.int64) if occurrences is None else occurrences


Missing = Literal["first", "zeros", "error"]
OnEvict = Literal["drop", "demote"]


@dataclass(frozen=True)
class Growth:
    """What a growing table is made by: ``ge.growing(...)`` with the policies of the table.

    Attributes:
        max_rows: Rows of the whole table; more are an error.
        missing: What an id without a row reads as: its first value, zeros, or an error.
        admission: None admits every id at its first gradient.
        eviction: None: rows stay.
        on_evict: What becomes of rows that leave: they are dropped, or moved to the file of the table's placement.
    """

    max_rows: int
    missing: Missing = "first"
    admission: SeenAtLeast | None = None
    eviction: Eviction | None = None
    on_evict: OnEvict = "drop"

    def __post_init__(self) -> None:
        _check("growing", "max_rows", self.max_rows, 1)
        if self.missing not in ("first", "zeros", "error"):
            raise unknown_name("missing", self.missing, ("first", "zeros", "error"))
        if self.on_evict not in ("drop", "demote"):
            raise unknown_name("on_evict", self.on_evict, ("drop", "demote"))
        for name, kind in (("admission", SeenAtLeast), ("eviction", Eviction)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{name}={value!r} must be an object such as ge.{_EXAMPLES[name]}, or None")
        most = None if self.eviction is None else self.eviction.max_rows
        if most is not None and most >= self.max_rows:
            raise ConfigError(
                f"{type(self.eviction).__name__}: max_rows={most} is not below that of the table, {self.max_rows}: it "
                "would be full before a row leaves; raise that of ge.growing by the new ids of some steps"
            )

    @property
    def counts_occurrences(self) -> bool:
        """Whether any policy does, so that merged gradients say for how many they stand."""
        return by_occurrence(self.admission) or by_occurrence(self.eviction)


_EXAMPLES = {"admission": "SeenAtLeast(3)", "eviction": "Unused(steps=10_000)"}


def leaving(
    rule: Eviction, rows: Counted, ids: np.ndarray, live: np.ndarray, free: np.ndarray
) -> Sums[tuple[np.ndarray, int]]:
    """Which places' rows leave in a pass, (P,) bool, and how many of all owners'. Every owner runs it.

    Args:
        ids: Of the rows at the places, (P,) int64.
        live: Whether each place has a row, (P,) bool.
        free: Whether it has one that may leave, (P,) bool.
    """
    scores = rule.scores(rows)
    low = rule.too_low(rows)
    below = 0 if low is None else int(np.count_nonzero(free & (scores < np.uint64(low))))
    counts = np.array([np.count_nonzero(live), np.count_nonzero(free), below])
    num_rows, may, num_below = (yield counts).tolist()
    num = num_below + rule.surplus(num_rows - num_below)
    num = min(num, may, max(0, num_rows - rule.floor), num if rule.per_pass is None else rule.per_pass)
    return (yield from lowest(scores, ids, free, num)), num
