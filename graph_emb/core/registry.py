"""Named implementations of one idea (rules, models, readers), found by name with a helpful error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from graph_emb.core.errors import ConfigError, unknown_name

T = TypeVar("T")


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
