"""The kinds of values that the readers' options take, checked before anything is read.

Options that choose one of a few words are checked by their readers, which know the words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """What an option may be.

    Attributes:
        fits: Whether a value is of this kind.
        words: The kind in words, for errors.
        optional: Whether None is a value, too.
    """

    fits: Callable[[Any], bool]
    words: str
    optional: bool = False


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not _is_flag(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_list_of_text(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_text, value)) and all(map(_is_integer, value.values()))
    return _is_integer(value)


KINDS = {
    "columns": Kind(_is_list_of_text, "a list of names", optional=True),
    "comment": Kind(_is_text, "text, '' for no comments"),
    "download": Kind(_is_flag, "True or False"),
    "edge_attributes": Kind(_is_list, "a list of names", optional=True),
    "edge_type": Kind(lambda value: _is_text(value) or _is_list_of_text(value), "three names", optional=True),
    "format": Kind(_is_text, "text", optional=True),
    "header": Kind(_is_flag, "True, False or None", optional=True),
    "index": Kind(_is_integer, "an integer", optional=True),
    "name": Kind(_is_text, "text", optional=True),
    "node_attributes": Kind(_is_list, "a list of names", optional=True),
    "num_nodes": Kind(_is_count, "an integer, or one for each node type", optional=True),
    "order": Kind(_is_text, "text, such as 'hrt'"),
    "progress": Kind(_is_flag, "True, False or None", optional=True),
    "reverse_types": Kind(_is_flag, "True or False"),
    "root": Kind(lambda value: isinstance(value, str | os.PathLike), "a path", optional=True),
    "separator": Kind(_is_text, "one character", optional=True),
    "undirected": Kind(_is_flag, "True, False or None", optional=True),
}


def check_kinds(options: Mapping[str, Any]) -> None:
    """Raise a ConfigError for the first option whose value is of another kind."""
    for option, value in options.items():
        kind = KINDS.get(option)
        if kind is None or (value is None and kind.optional) or kind.fits(value):
            continue
        raise ConfigError(f"{option}={value!r}: expected {kind.words}")
