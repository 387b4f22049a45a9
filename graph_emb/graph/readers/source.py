"""What every reader takes and gives, and the registry that ``read`` chooses from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.registry import Registry
from graph_emb.graph.typed import EdgeType, HeteroGraph

MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
"""Part of a split to the column of node data that marks it, named as DGL names it."""
WEIGHT = "weight"
"""The column of edge data that "sum" adds up and walks follow."""


@dataclass(frozen=True)
class Contents:
    """What a source holds, before the options of ``read`` are applied.

    Attributes:
        graph: As stored; no edge was dropped, merged or turned round.
        both_ways: Each stored edge stands for both directions, so ``read`` adds the other one by default.
        undirected: The same, but some edges may be stored in both directions: ``read`` adds what is missing by default.
    """

    graph: HeteroGraph
    both_ways: bool = False
    undirected: bool = False


@dataclass(frozen=True)
class Reader:
    """One kind of source.

    Attributes:
        accepts: Whether a source is of this kind; cheap, opens at most one file's first bytes, never raises.
        read: The source and this reader's own options (its keyword-only arguments) to its contents.
        fallback: Asked only when no other reader accepts the source.
    """

    accepts: Callable[[Any], bool]
    read: Callable[..., Contents]
    fallback: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that this reader obeys besides those of every reader."""
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


READERS: Registry[Reader] = Registry("graph format")


def register(
    name: str, accepts: Callable[[Any], bool], *, fallback: bool = False
) -> Callable[[Callable[..., Contents]], Callable[..., Contents]]:
    """Decorator that files a reader under the name that ``format=`` chooses it by."""

    def file(read: Callable[..., Contents]) -> Callable[..., Contents]:
        READERS.register(name)(Reader(accepts, read, fallback))
        return read

    return file


def as_path(source: Any) -> Path | None:
    """The path that a string or path object is, None for anything else."""
    return Path(source) if isinstance(source, str | Path) else None


def has_suffix(*suffixes: str) -> Callable[[Any], bool]:
    """Whether a source is a path with one of these endings (lower case, with their dot)."""

    def accepts(source: Any) -> bool:
        path = as_path(source)
        return path is not None and path.name.lower().endswith(suffixes)

    return accepts


def is_object_of(*modules: str) -> Callable[[Any], bool]:
    """Whether a source's class or one of its bases is defined in these packages; imports none of them."""

    def accepts(source: Any) -> bool:
        return any(base.__module__.partition(".")[0] in modules for base in type(source).__mro__)

    return accepts


def mask_of(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Node numbers as a mask, (N,), bool."""
    mask = np.zeros(num_nodes, dtype=bool)
    mask[nodes] = True
    return mask


def checked_edge_type(edge_type: Any) -> EdgeType:
    """Three names; DGL joins them with colons, so none may hold one.

    Raises:
        ConfigError: another shape, or a name that DGL's files cannot hold.
    """
    parts = tuple(edge_type.split(":")) if isinstance(edge_type, str) else tuple(edge_type)
    if len(parts) != 3 or not all(isinstance(part, str) and part for part in parts):
        raise ConfigError(f"edge type {edge_type!r}: expected three names: source type, relation, destination type")
    source, relation, destination = parts
    for part in parts:
        checked_type_name(part)
    return source, relation, destination


def checked_type_name(name: str) -> str:
    """A node type or relation that DGL's file names and keys can hold."""
    if not name or any(letter in name for letter in ":/\\\0"):
        raise ConfigError(
            f"type name {name!r}: must not be empty or hold ':', '/' or a backslash, by which DGL joins names"
        )
    return name


def check_ids(file: Path, word: str, ids: np.ndarray, limit: int, *, first_row: int = 1) -> None:
    """Ids lie in [0, limit); the error names the file, row (``first_row`` is that of the first id) and value."""
    if len(ids) and (ids.min() < 0 or ids.max() >= limit):
        row = int(np.flatnonzero((ids < 0) | (ids >= limit))[0])
        raise DataError(f"{file}, row {first_row + row}: {word} {int(ids[row])} is outside [0, {limit})")
