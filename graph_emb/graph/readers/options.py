"""The options of every reader: one object, checked in one place before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from graph_emb.core.errors import ConfigError, unknown_name

DuplicatesPolicy = Literal["keep", "first", "sum"]
KeepOrDrop = Literal["keep", "drop"]
IdsPolicy = Literal["auto", "int", "str"]
Relations = Literal["types", "column"]


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``read_graph``, whose docstring says what each does.

    Raises:
        ConfigError: a value of another kind or an unknown word.
    """

    name: str | None = None
    format: str | None = None
    directed: bool | None = None
    duplicates: DuplicatesPolicy = "keep"
    self_loops: KeepOrDrop = "keep"
    isolated: KeepOrDrop = "keep"
    reverse_types: bool = False
    weight: bool | str | None = None
    progress: bool | None = None
    ids: IdsPolicy = "auto"
    num_nodes: int | Mapping[str, int] | None = None
    header: bool | None = None
    separator: str | None = None
    comment: str = "#%"
    columns: Sequence[str] | None = None
    edge_type: Sequence[str] | str | None = None
    index: int | None = None
    node_attributes: Sequence[str] | None = None
    edge_attributes: Sequence[str] | None = None
    relations: Relations = "types"
    order: str = "hrt"
    literals: KeepOrDrop = "keep"
    root: str | os.PathLike[str] | None = None
    download: bool = False
    trust_pickle: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), field.default)
        if isinstance(self.num_nodes, np.integer):
            object.__setattr__(self, "num_nodes", int(self.num_nodes))

    @property
    def id_limit(self) -> int | None:
        """``num_nodes`` where one number holds for every id."""
        return self.num_nodes if isinstance(self.num_nodes, int) else None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReadOptions:
        """The options of a mapping; an unknown name is refused with the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_name("option of a reader", name, known)
        return cls(**given)


COMMON_OPTIONS = (
    *("name", "format", "directed", "duplicates", "self_loops", "isolated", "reverse_types", "weight"),
    "progress",
)
"""Options that every source obeys."""


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


_Integer = Annotated[int, BeforeValidator(_plain)]
_FLAG = (Annotated[bool, BeforeValidator(_plain)], "True or False")
KINDS: dict[str, tuple[Any, str]] = {
    "columns": (Sequence[str], "a list of names"),
    "comment": (str, "text, '' for no comments"),
    "directed": _FLAG,
    "download": _FLAG,
    "edge_attributes": (list[Any] | tuple[Any, ...], "a list of names"),
    "edge_type": (str | Sequence[str], "three names"),
    "format": (str, "text"),
    "header": _FLAG,
    "index": (_Integer, "an integer"),
    "name": (str, "text"),
    "node_attributes": (list[Any] | tuple[Any, ...], "a list of names"),
    "num_nodes": (_Integer | Mapping[str, _Integer], "an integer, or one for each node type"),
    "order": (str, "text, such as 'hrt'"),
    "progress": _FLAG,
    "reverse_types": _FLAG,
    "root": (str | os.PathLike, "a path"),
    "separator": (Annotated[str, Field(pattern=r'^[^\n\r"]$')], "one character that ends no line"),
    "trust_pickle": _FLAG,
    "weight": (_FLAG[0] | str, "True, False or the name of a column"),
}
"""The type of an option's value and the words for it; an option whose default is None may be None, too."""
WORDS = {
    "duplicates": get_args(DuplicatesPolicy),
    "ids": get_args(IdsPolicy),
    "isolated": get_args(KeepOrDrop),
    "literals": get_args(KeepOrDrop),
    "relations": get_args(Relations),
    "self_loops": get_args(KeepOrDrop),
}


def _check(option: str, value: Any, default: Any) -> None:
    if option in WORDS:
        if value not in WORDS[option]:
            raise unknown_name(f"{option} policy", value, WORDS[option])
        return
    if value is None and default is None:
        return
    kind, words = KINDS[option]
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        if default is None and words == _FLAG[1]:
            words = "True, False or None"
        raise ConfigError(f"{option}={value!r}: expected {words}") from None
    if option == "num_nodes" and min(value.values() if isinstance(value, Mapping) else [value], default=1) < 1:
        raise ConfigError(f"num_nodes={value}: must be at least 1")
