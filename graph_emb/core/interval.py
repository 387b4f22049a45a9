"""Intervals of a training: a number of steps, or a time."""

from __future__ import annotations

import re

from graph_emb.core.errors import ConfigError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_interval(every: int | str) -> tuple[int | None, float | None]:
    """Steps, or seconds, of ``500``, ``"500"``, ``"90s"``, ``"10m"`` or ``"1.5h"``; the other one is None.

    Raises:
        ConfigError: neither, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(every).strip())
    if found is None or float(found[1]) == 0 or (not found[2] and "." in found[1]):
        raise ConfigError(f"interval {every!r}: write a number of steps (500) or a time (90s, 10m, 2h), above zero")
    return (None, float(found[1]) * UNITS[found[2]]) if found[2] else (int(found[1]), None)
