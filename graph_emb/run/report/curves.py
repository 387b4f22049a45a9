"""Curves of a training from the lines of metrics.jsonl, whatever model wrote them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

UNITS = ("tokens", "triples", "edges", "draws")
"""What models count while they train, by which throughput is told."""
GROUPS = {"order": "", "seed": "seed "}
"""Fields that tell several trainings of one run apart, and what stands before their values."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """A quantity over a training.

    Attributes:
        title: What y is.
        x_title: "epoch", or "seconds" where an epoch has several lines.
        series: By name, the points in order.
        from_zero: Whether the axis of y begins at 0: of speed, memory and shares.
    """

    title: str
    x_title: str
    series: dict[str, list[tuple[float, float]]]
    from_zero: bool = False


def curves_of(history: Sequence[Line]) -> list[Curve]:
    """The curves that a history has at least two points of: loss, validation, throughput, memory and others."""
    groups = _groups(history)
    x_title = _x_of(groups)
    units = {**{unit: unit for unit in UNITS}, "epochs": "epoch"}
    if any("order" in line for line in history):  # of LINE, whose walk is an edge
        units = {"edges": "walks"}

    def of(title: str, name: str, from_zero: bool = False) -> Curve:
        series = _series(groups, x_title, lambda line: {"": line[name]} if name in line else {})
        return Curve(title, x_title, series, from_zero)

    found = [
        of("loss", "loss"),
        Curve("validation", x_title, _series(groups, x_title, _validation)),
        of("learning rate", "lr"),
        *(_throughput(groups, name, unit) for name, unit in units.items()),
        of("memory of the first process, MiB", "memory_mib", from_zero=True),
        of("share of local rows", "local_share", from_zero=True),
        of("share of exchange time hidden by training", "hidden_share", from_zero=True),
        Curve("pace of the slowest trainer, of the mean", x_title, _series(groups, x_title, _slowest), from_zero=True),
    ]
    kept = [replace(one, series={n: p for n, p in one.series.items() if len(p) > 1}) for one in found]
    named = {one.title for one in kept if one.series}
    counted = any(title.startswith(f"{unit} per") for title in named for unit in UNITS)
    return [one for one in kept if one.series and not (counted and one.title == "epochs per second")]


def _groups(history: Sequence[Line]) -> dict[str, list[Line]]:
    key = next((key for key in GROUPS if len({line.get(key) for line in history}) > 1), None)
    groups: dict[str, list[Line]] = {}
    for line in history:
        groups.setdefault("" if key is None else f"{GROUPS[key]}{line.get(key)}", []).append(line)
    return groups


def _x_of(groups: Mapping[str, Sequence[Line]]) -> str:
    """Epochs where each has its own line."""
    for lines in groups.values():
        epochs = [line.get("epoch") for line in lines]
        if None in epochs or len(set(epochs)) < len(epochs):
            return "seconds"
    return "epoch"


def _series(
    groups: Mapping[str, Sequence[Line]], x_title: str, values: Callable[[Line], dict[str, Any]]
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for group, lines in groups.items():
        for line in lines:
            x = line.get(x_title, line.get("elapsed"))
            for name, value in values(line).items():
                if x is not None and is_number(value):
                    found.setdefault(" ".join(filter(None, (group, name))), []).append((float(x), float(value)))
    return found


def _validation(line: Line) -> dict[str, Any]:
    """Metrics of the validation part: a mapping of graph networks, one number of knowledge graphs."""
    found = {name.removeprefix("valid_"): value for name, value in line.items() if name.startswith("valid_")}
    return found | dict(line["valid"] if isinstance(line.get("valid"), Mapping) else {})


def _slowest(line: Line) -> dict[str, Any]:
    """How far the slowest of several trainers is behind."""
    job = line.get("job")
    return {"": job.get("slowest_share")} if isinstance(job, Mapping) else {}


def _throughput(groups: Mapping[str, Sequence[Line]], name: str, unit: str) -> Curve:
    """Units per second between one line and the next; ``name`` is their plural."""
    series: dict[str, list[tuple[float, float]]] = {}
    for group, lines in groups.items():
        clock = "seconds" if all("seconds" in line for line in lines) else "elapsed"
        known = [line for line in lines if is_number(line.get(unit)) and is_number(line.get(clock))]
        before = {unit: 0, clock: 0.0}
        for line in known:
            spent = line[clock] - before[clock]
            if spent > 0 and line[unit] > before[unit]:
                series.setdefault(group, []).append((line[clock], (line[unit] - before[unit]) / spent))
            before = {unit: line[unit], clock: line[clock]}
    return Curve(f"{name} per second", "seconds", series, from_zero=True)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
