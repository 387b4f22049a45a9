"""Ten-line dense oracles: every rule again, row by row in float64 numpy, with the duplicates merged first.

An oracle is a function (weight, memory, per-row list of occurrence gradients) -> None that mutates weight and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from graph_emb.optim.rule import Rule
from graph_emb.optim.rules import (
    LAMB,
    LARS,
    SGD,
    Adagrad,
    Adam,
    OccurrenceRowAdagrad,
    RowAdagrad,
    RowAdam,
    RowLAMB,
)

EPS = 0.01  # large enough that its place beside or inside the root shows
Occurrences = dict[int, list[np.ndarray]]
Oracle = Callable[[np.ndarray, dict, Occurrences], None]


def rules_below(base: type[Rule]) -> list[type[Rule]]:
    """Every rule of the library; those of tests are left out."""
    found = [rule for rule in base.__subclasses__() if rule.__module__.startswith("graph_emb.")]
    return [*found, *(rule for one in found for rule in rules_below(one))]


RULES = rules_below(Rule)


def sgd(w: np.ndarray, memory: dict, touched: Occurrences, lr: float = 0.1, momentum: float = 0.0) -> None:
    buffer = memory.setdefault("b", np.zeros_like(w))
    for r, grads in touched.items():
        buffer[r] = momentum * buffer[r] + sum(grads)
        w[r] -= lr * buffer[r]


def adagrad(w: np.ndarray, memory: dict, touched: Occurrences, start: float = 0.0) -> None:
    total = memory.setdefault("s", np.full_like(w, start))
    for r, grads in touched.items():
        g = sum(grads)
        total[r] += g * g
        w[r] -= 0.1 * g / (np.sqrt(total[r]) + EPS)


def row_adagrad(w: np.ndarray, memory: dict, touched: Occurrences) -> None:
    total = memory.setdefault("s", np.zeros(len(w)))
    for r, grads in touched.items():
        g = sum(grads)
        total[r] += np.mean(g * g)
        w[r] -= 0.1 * g / (np.sqrt(total[r]) + EPS)


def occurrence_row_adagrad(w: np.ndarray, memory: dict, touched: Occurrences) -> None:
    total = memory.setdefault("s", np.zeros(len(w)))
    for r, grads in touched.items():
        total[r] += sum(np.mean(g * g) for g in grads)
        w[r] -= 0.1 * sum(grads) / (np.sqrt(total[r]) + EPS)


def adam(
    w: np.ndarray,
    memory: dict,
    touched: Occurrences,
    clock: str = "global",
    raw: bool = True,
    decay: float = 0.0,
    by_row: bool = False,
) -> None:
    b1, b2, eps, lr = 0.9, 0.999, 1e-3, 0.05
    m, v, n = (memory.setdefault(key, np.zeros_like(w)) for key in "mvn")
    memory["t"] = memory.get("t", 0) + 1
    for r, grads in touched.items():
        g = sum(grads)
        n[r] += 1
        t = n[r, 0] if clock == "row" else memory["t"]
        m[r] = b1 * m[r] + (1 - b1) * g
        v[r] = b2 * v[r] + (1 - b2) * (np.mean(g * g) if by_row else g * g)
        root = np.sqrt(v[r] / (1 - b2**t)) + eps / (np.sqrt(1 - b2**t) if raw else 1.0)
        w[r] = w[r] - lr * decay * w[r] - lr * m[r] / (1 - b1**t) / root


def ratio(norm: float, divisor: float) -> float:
    return norm / divisor if norm > 0 and divisor > 0 else 1.0


def lamb(w: np.ndarray, memory: dict, touched: Occurrences, decay: float = 0.0, by_row: bool = False) -> None:
    """The step of ``adam`` without its rate, and then You et al.'s ratio of norms."""
    moved = np.zeros_like(w)
    adam(moved, memory, touched, raw=False, by_row=by_row)
    for r in touched:
        step = -moved[r] / 0.05 + decay * w[r]
        w[r] -= 0.05 * ratio(np.linalg.norm(w[r]), np.linalg.norm(step)) * step


def lars(w: np.ndarray, memory: dict, touched: Occurrences, decay: float = 0.0) -> None:
    buffer = memory.setdefault("b", np.zeros_like(w))
    for r, grads in touched.items():
        g, norm = sum(grads), np.linalg.norm(w[r])
        local = 0.5 * ratio(0.1 * norm, np.linalg.norm(g) + decay * norm)
        buffer[r] = 0.9 * buffer[r] + local * (g + decay * w[r])
        w[r] -= buffer[r]


def bounded(rule: Any, oracle: Oracle) -> Oracle:
    """An oracle between the bounds and the decay of the rule's options."""

    def run(w: np.ndarray, memory: dict, touched: Occurrences) -> None:
        merged = {}
        if rule.lazy:
            w *= 1 - rule.lr * rule.weight_decay  # every row
        for r, grads in touched.items():
            g = np.clip(sum(grads), -rule.clip_value, rule.clip_value)
            g = g * min(1.0, rule.clip_row_norm / max(np.linalg.norm(g), 1e-30))
            if rule.clip_row_ratio:
                bound = max(rule.clip_row_ratio * np.linalg.norm(w[r]), rule.clip_row_least)
                g = g * min(1.0, bound / max(np.linalg.norm(g), 1e-30))
            if rule.weight_decay_mode != rule.own_decay:
                if rule.weight_decay_mode == "l2":
                    g = g + rule.weight_decay * w[r]
                elif rule.weight_decay_mode == "decoupled":
                    w[r] *= 1 - rule.lr * rule.weight_decay
            merged[r] = [g]
        oracle(w, memory, merged)
        for r in touched:
            w[r] *= min(1.0, rule.max_norm / np.linalg.norm(w[r]))

    return run


def counted(rule: Any, oracle: Oracle) -> Oracle:
    """An oracle whose rows take a share of each step, the smaller the more often they were touched."""

    def run(w: np.ndarray, memory: dict, touched: Occurrences) -> None:
        times, before = memory.setdefault("times", np.zeros(len(w))), w.copy()
        oracle(w, memory, touched)
        for r in touched:
            times[r] += 1
            w[r] = before[r] + (w[r] - before[r]) * times[r] ** -rule.count_power

    return run


_ADAM = {"lr": 0.05, "eps": 1e-3}
_GLOBAL_RAW = {"clock": "global", "eps_placement": "raw"}
_ROW_CORRECTED = {"clock": "row", "eps_placement": "corrected"}

CASES: dict[str, tuple[Any, Oracle]] = {
    "sgd": (SGD(0.1), sgd),
    "sgd momentum": (SGD(0.1, momentum=0.9), lambda w, s, t: sgd(w, s, t, momentum=0.9)),
    "adagrad": (Adagrad(0.1, EPS), adagrad),
    "adagrad start": (Adagrad(0.1, EPS, initial_accumulator_value=0.5), lambda w, s, t: adagrad(w, s, t, 0.5)),
    "row_adagrad": (RowAdagrad(0.1, EPS), row_adagrad),
    "occurrence_row_adagrad": (OccurrenceRowAdagrad(0.1, EPS), occurrence_row_adagrad),
    "adam": (Adam(**_ADAM, **_GLOBAL_RAW), adam),
    "adam row clock": (Adam(**_ADAM, **_ROW_CORRECTED), lambda w, s, t: adam(w, s, t, "row", False)),
    "adamw": (
        Adam(**_ADAM, weight_decay=0.3, weight_decay_mode="decoupled"),
        lambda w, s, t: adam(w, s, t, decay=0.3),
    ),
    "row_adam": (RowAdam(**_ADAM, **_GLOBAL_RAW), lambda w, s, t: adam(w, s, t, by_row=True)),
    "row_adam row clock": (
        RowAdam(**_ADAM, **_ROW_CORRECTED, weight_decay=0.3, weight_decay_mode="decoupled"),
        lambda w, s, t: adam(w, s, t, "row", False, decay=0.3, by_row=True),
    ),
    "lamb": (LAMB(**_ADAM, weight_decay=0.3, weight_decay_mode="decoupled"), lambda w, s, t: lamb(w, s, t, 0.3)),
    "row_lamb": (RowLAMB(**_ADAM), lambda w, s, t: lamb(w, s, t, by_row=True)),
    "lars": (LARS(0.5, eta=0.1, weight_decay=0.3), lambda w, s, t: lars(w, s, t, 0.3)),
}
_BOUNDS = {"clip_value": 1.5, "clip_row_norm": 2.0, "max_norm": 1.75, "weight_decay": 0.2}
_COW = {"clip_row_ratio": 1.2, "clip_row_least": 0.3}
for _name, (_rule, _oracle) in list(CASES.items()):
    if not _rule.weight_decay and not _rule.per_occurrence:
        for _mode in [mode for mode in ("l2", "decoupled", "lazy") if mode != _rule.own_decay]:
            _bounded = replace(_rule, **_BOUNDS, **(_COW if _mode == "lazy" else {}), weight_decay_mode=_mode)
            CASES[f"{_name} {_mode} bounded"] = (_bounded, bounded(_bounded, _oracle))
    if not _rule.weight_decay:
        _counted = replace(_rule, count_rows=True, count_power=0.5)
        CASES[f"{_name} counted"] = (_counted, counted(_counted, _oracle))
for _name, _own in {"lamb": partial(lamb, decay=0.3), "lars": partial(lars, decay=0.3)}.items():
    _bounded = replace(CASES[_name][0], **{**_BOUNDS, "weight_decay": 0.3})
    CASES[f"{_name} bounded"] = (_bounded, bounded(_bounded, _own))
"""Name to (rule, oracle). Every registered rule must appear (tests/optim/test_rules.py checks)."""


def batches(num_rows: int, dim: int, steps: int = 20, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of ids and gradients with duplicates, empty batches and rows that first appear late."""
    rng = np.random.default_rng(seed)
    made = []
    for step in range(steps):
        seen = num_rows // 2 if step < steps // 2 else num_rows
        size = 0 if step in (3, 11) else int(rng.integers(1, 3 * num_rows))
        ids = rng.integers(0, seen, size)
        made.append((ids, rng.normal(size=(size, dim)) * 10.0 ** rng.integers(-2, 2, (size, 1))))
    return made


def occurrences(ids: np.ndarray, grads: np.ndarray, mean: bool) -> Occurrences:
    """Gradients by row, in the order of position; with mean, one averaged gradient a row."""
    touched: Occurrences = {}
    for i, g in zip(ids.tolist(), grads, strict=True):
        touched.setdefault(i, []).append(g)
    return {r: [sum(g) / len(g)] for r, g in touched.items()} if mean else touched
