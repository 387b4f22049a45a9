"""Named implementations of one idea (rules, models, readers), found by name with a helpful error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from graph_emb.core.errors import ConfigError, unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping for users that implementations fill by decoration.

    Args:
        kind: The word that errors use for an entry, such as ``"rule"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files an implementation under ``name``; a name is given once."""

        def file(entry: T) -> T:
            if name in self._entries:
                raise ConfigError(f"{self.kind} {name!r} is registered already; choose another name")
            self._entries[name] = entry
            return entry

        return file

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
