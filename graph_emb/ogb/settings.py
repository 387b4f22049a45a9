"""Hyper-parameters of a recipe, which is a tree of frozen dataclasses: changed, written out and compared by path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.settings import Settings

T = TypeVar("T")


def changed(recipe: T, values: Mapping[str, Any]) -> T:
    """The recipe with some values replaced, all at once: limits that join two of them hold afterwards.

    Args:
        recipe: A dataclass, whose fields may be dataclasses.
        values: By field names joined by dots, "embedding.skipgram.dim": a value of the type that the field is
            annotated with.
    Raises:
        ConfigError: an unknown field, a value of another type or outside its limits.
    """
    return _changed(recipe, values, "")


def as_plain(recipe: Any) -> Any:
    """A recipe as nested mappings of plain values."""
    if isinstance(recipe, Settings):
        return recipe.model_dump(mode="json")
    if is_dataclass(recipe):
        return {field.name: as_plain(getattr(recipe, field.name)) for field in fields(recipe)}
    return list(recipe) if isinstance(recipe, tuple) else recipe


def _fields_of(group: Any) -> list[str]:
    return list(type(group).model_fields) if isinstance(group, Settings) else [field.name for field in fields(group)]


def _changed(recipe: Any, values: Mapping[str, Any], prefix: str) -> Any:
    known = _fields_of(recipe)
    grouped: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if name not in known:
            raise unknown_name("setting", prefix + path, [prefix + other for other in known])
        grouped.setdefault(name, {})[rest] = value
    if isinstance(recipe, Settings):  # it checks its values itself
        return recipe.replace(**{name: _value(getattr(recipe, name), v, prefix + name) for name, v in grouped.items()})
    kinds = get_type_hints(type(recipe))
    new = {
        name: _new_value(getattr(recipe, name), kinds[name], inner, prefix + name) for name, inner in grouped.items()
    }
    return replace(recipe, **new)


def _new_value(old: Any, kind: Any, inner: Mapping[str, Any], path: str) -> Any:
    if is_dataclass(old) or isinstance(old, Settings):
        if "" in inner:
            raise ConfigError(f"setting {path!r} is a group; name one of its fields: {', '.join(_fields_of(old))}")
        return _changed(old, inner, f"{path}.")
    return _as_annotated(kind, _value(old, inner, path), old, path)


def _value(old: Any, inner: Mapping[str, Any], path: str) -> Any:
    if "" not in inner:
        raise ConfigError(f"setting '{path}.{next(iter(inner))}': {path} is a value, {old!r}, and has no fields")
    return inner[""]


def _as_annotated(kind: Any, value: Any, old: Any, path: str) -> Any:
    """The value as ``kind``: a type, a tuple of one type, or either of them ``| None``."""
    choices = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in choices:
        return None
    (kind,) = (choice for choice in choices if choice is not NoneType)
    if get_origin(kind) is tuple:
        return tuple(
            _as_annotated(get_args(kind)[0], v, old, path) for v in (value if isinstance(value, list) else [value])
        )
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        word = f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
        hint = " or null" if old is None else f" such as {old!r}"
        raise ConfigError(f"setting {path!r} is {value!r}; give {word}{hint}")
    return value


def parse(text: str) -> tuple[str, Any]:
    """``path=value`` with the value as JSON, or as text where it is none.

    Raises:
        ConfigError: no ``=``.
    """
    path, sign, value = text.partition("=")
    if not sign or not path:
        raise ConfigError(f"setting {text!r} is not of the form path=value, such as embedding.skipgram.dim=64")
    return path, parse_value(value)


def parse_value(text: str) -> Any:
    """A value as JSON, or the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
