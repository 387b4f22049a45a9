"""The base of every settings object: typed, frozen fields with limits, and refusals that name path, value and limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import Self

from graph_emb.core.errors import ConfigError, did_you_mean

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _not_a_truth_value(value: Any) -> Any:
    # YAML reads yes/no/on/off as booleans and pydantic would take True for 1
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Count = Annotated[int, BeforeValidator(_not_a_truth_value)]
Number = Annotated[float, BeforeValidator(_not_a_truth_value)]
AutoIsNull = BeforeValidator(lambda value: None if value == "auto" else value)
"""Of a field whose null means that its value is chosen: ``auto`` says the same."""


class Settings(BaseModel):
    """A group of fields that refuses unknown keys, NaN and infinities.

    Raises:
        ConfigError: a field is unknown, or a value is missing, of the wrong type or outside its limits.
    Example:
        >>> class Training(Settings):
        ...     epochs: Count = Field(default=1, ge=1)
        >>> Training(epochs=0)
        ConfigError: Training.epochs = 0: should be greater than or equal to 1
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a file that is called 2024 reads as a number in YAML
        protected_namespaces=(),
        defer_build=True,  # most models' settings are never used in a process; building them takes 60 ms
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_refusal(type(self), error)) from None

    # Without the mark pydantic would call this constructor for nested settings and lose the path of a finding.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replace(self, **changes: Any) -> Self:
        """The same settings with some fields changed, checked together.

        Args:
            changes: Of a field that holds settings also a mapping: changes of those.
        Raises:
            ConfigError: as for new settings.
        """
        new = {}
        for name, change in changes.items():
            old = getattr(self, name, None)
            new[name] = old.replace(**change) if isinstance(old, Settings) and isinstance(change, Mapping) else change
        return type(self)(**{**self.given(), **new})

    def given(self) -> dict[str, Any]:
        """The fields that were set, not left at their default."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def fields_at_default(section: Settings) -> set[str]:
    """Fields that hold their default; a written configuration names them all."""
    return {name for name, field in type(section).model_fields.items() if getattr(section, name) == field.default}


def fault_of(settings: Settings, name: str, value: Any) -> str | None:
    """The limit of a field that another value of it breaks; None: it may have the value, whatever others then say."""
    try:
        type(settings).model_validate({**settings.given(), name: value})
    except ValidationError as error:
        found = (detail for detail in error.errors(include_url=False) if detail["loc"][:1] == (name,))
        return next(map(limit_of, found), None)
    return None


def limit_of(detail: ErrorDetails) -> str:
    """The limit that a value broke, with the nearest of the known words."""
    limit = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if detail["type"] != "literal_error":
        return limit
    choices = re.findall(r"'([^']*)'", detail.get("ctx", {}).get("expected", ""))
    return limit + did_you_mean(detail["input"], choices)


def short(value: Any) -> str:
    """A value for a message, of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def and_more(details: list[ErrorDetails]) -> str:
    """The end of a message that tells the first finding only."""
    return f" (and {len(details) - 1} more)" if len(details) > 1 else ""


def _refusal(settings: type[BaseModel], error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    path = ".".join([settings.__name__, *map(str, first["loc"])])
    if first["type"] == "missing":
        text = f"{path} is missing"
    elif first["type"] == "extra_forbidden":
        known = list(settings.model_fields)
        hint = did_you_mean(first["loc"][-1], known)
        text = f"{path} = {short(first['input'])}: unknown field; known: {', '.join(known)}{hint}"
    elif not first["loc"]:  # a finding about several fields names them itself
        text = f"{path}: {limit_of(first)}"
    else:
        text = f"{path} = {short(first['input'])}: {limit_of(first)}"
    return text + and_more(details)


def parse_interval(every: int | str) -> tuple[int | None, float | None]:
    """Steps, or seconds, of ``500``, ``"500"``, ``"90s"``, ``"10m"`` or ``"1.5h"``; the other one is None.

    Raises:
        ConfigError: neither, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(every).strip())
    if found is None or float(found[1]) == 0 or (not found[2] and "." in found[1]):
        raise ConfigError(f"interval {every!r}: write a number of steps (500) or a time (90s, 10m, 2h), above zero")
    return (None, float(found[1]) * _SECONDS[found[2]]) if found[2] else (int(found[1]), None)


def memory_bytes(memory: str | int) -> int:
    """Of ``"2GB"``, ``"800MiB"`` or a number of bytes; a ConfigError for anything else."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(memory, strict=isinstance(memory, bool)))
    except ValidationError:
        raise ConfigError(
            f"memory {memory!r}: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB"
        ) from None
