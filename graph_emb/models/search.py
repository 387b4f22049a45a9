"""Ranges of settings that a search tries; each model declares its own beside its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import Settings, fault_of, short


@dataclass(frozen=True)
class Span:
    """Numbers from low to high, both included; integers where both are.

    Args:
        low, high: Bounds.
        log: Whether their logarithms are drawn evenly; then low is above 0.
    Raises:
        ConfigError: no such numbers.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) and isfinite(end) for end in ends)
        if not numbers or not self.low < self.high or (self.log and self.low <= 0):
            said = f"{self.low}:{self.high}{':log' if self.log else ''}"
            raise ConfigError(f"{short(said)} is no range; give finite numbers that rise, above 0 for their logarithms")

    @property
    def whole(self) -> bool:
        """Whether its numbers are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: Any) -> bool:
        """Whether a value can be drawn."""
        kinds = int if self.whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class OneOf:
    """Some values: numbers, words, truth values or None."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value can be drawn."""
        return any(value == own and isinstance(value, bool) == isinstance(own, bool) for own in self.values)


Range = Span | OneOf
Space = Mapping[str, Range]


def check_range(path: str, own: Range, settings: Settings, name: str) -> None:
    """Raise a ConfigError where the field of this name may not have one of the values, or an end of the numbers."""
    for value in own.values if isinstance(own, OneOf) else (own.low, own.high):
        if (fault := fault_of(settings, name, value)) is not None:
            raise ConfigError(f"search {path}: {short(value)} cannot be drawn, it {fault}")


def one_of(*values: Any) -> OneOf:
    """Some values."""
    return OneOf(values)


def parse_range(text: str) -> tuple[str, Range]:
    """A setting with the range that ``NAME=V,V,V``, ``NAME=LOW:HIGH`` or ``NAME=LOW:HIGH:log`` gives it.

    Raises:
        ConfigError: no such text.
    """
    from graph_emb.core.yaml_text import parse_yaml

    name, sign, values = (part.strip() for part in text.partition("="))
    if not sign or not name or not values:
        raise ConfigError(f"search {text!r}: write NAME=V,V,V or NAME=LOW:HIGH[:log], such as train.lr=0.01:0.3:log")
    if ":" not in values:
        return name, OneOf(tuple(parse_yaml(value.strip()) for value in values.split(",")))
    low, high, *rest = (parse_yaml(value.strip()) for value in values.split(":"))
    try:
        if rest in ([], ["log"]):
            return name, Span(low, high, bool(rest))
    except ConfigError:
        pass
    raise ConfigError(f"search {short(text)}: {values} is no range; write LOW:HIGH or LOW:HIGH:log, rising")
