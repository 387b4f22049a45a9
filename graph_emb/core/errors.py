"""Errors that a caller can cause: each names the thing, the value, the limit and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class GraphEmbError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(GraphEmbError, ValueError):
    """An option or argument is unknown, of the wrong type or outside its limits."""


class DataError(GraphEmbError, ValueError):
    """A file, graph or label set cannot be read or does not fit the others."""


class LackingError(DataError):
    """Sound data lacks what was asked of it: labels, a split, held-out edges, features or relations."""


class PartitionError(GraphEmbError, IndexError):
    """An id lies outside its id space, or a partition book is inconsistent."""


class ShapeError(GraphEmbError, ValueError):
    """A tensor has the wrong shape, dtype or device."""


class CompatError(GraphEmbError, ImportError):
    """The installed versions of two packages cannot work together."""


class ModeError(GraphEmbError, RuntimeError):
    """A call does not fit the current mode or state of the library."""


class PeerError(GraphEmbError, RuntimeError):
    """Another process of the job died, hangs or does something else than this one.

    Attributes:
        final: Whether the same would happen again, because an input was refused.
    """

    final = False


class StorageError(GraphEmbError, OSError):
    """The file in which a table's rows lie cannot be read or written: names table, file and offset."""


def check_flags(none: bool = False, **flags: object) -> None:
    """Refuse a switch that is neither True nor False, such as ``"no"``, which Python takes for true.

    Args:
        none: Whether None is allowed too.
        flags: The values by the names of their arguments.
    Raises:
        ConfigError: a value is no such thing.
    """
    for name, value in flags.items():
        if not isinstance(value, bool) and not (none and value is None):
            raise ConfigError(f"{name}={value!r} must be True or False{', or None' if none else ''}")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """An error for a name that is not known, with the nearest known one as the next step."""
    options = sorted(known)
    return ConfigError(f"unknown {kind} {name!r}; known: {', '.join(options)}{did_you_mean(name, options)}")


def printable(name: str) -> str:
    """A name that a file gave, to be shown in a line."""
    return name if name.isprintable() and len(name) <= 60 else repr(name[:60])


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """The end of a message that names the nearest known word; empty where none is near."""
    near = nearest(str(name), known)
    return f" (did you mean {near!r}?)" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one was meant for."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


class Registry(dict[str, T]):
    """Implementations by name, which they take by decoration.

    Args:
        kind: The word that errors use for an entry, such as ``"rule"``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files an implementation under ``name``; a name is given once."""

        def file(entry: T) -> T:
            if name in self:
                raise ConfigError(f"{self.kind} {name!r} is registered already; choose another name")
            self[name] = entry
            return entry

        return file

    def __missing__(self, name: str) -> NoReturn:
        raise unknown_name(self.kind, name, self)


def difference(first: Mapping[str, Any], other: Mapping[str, Any], on_first: str) -> str:
    """The first entry in which two mappings differ, as words about the other one; empty where they are equal."""
    for name in {**first, **other}:
        there, here = first.get(name, "not given"), other.get(name, "not given")
        if there != here:
            return f"{name} is {here}, and {there} on {on_first}"
    return ""
