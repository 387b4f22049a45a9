"""The YAML file of a heterogeneous graph, checked: an unknown key or a wrong value is an error with the field's path.

.. code-block:: yaml

    name: shop
    nodes:
      user:
        files: users.csv             # one path, a list, or a pattern; a row is a node
        id: user_id                  # the column of ids; without it a row's number is the id
        features: {feat: [age, income]}
        label: segment               # text is numbered in sorted order, a missing value is -1
        masks: {train: train.csv}    # a column of 0 and 1, or a file with an id in each row
      item: {num_nodes: 100, features: {feat: items.npy}}
    edges:
      - type: [user, buys, item]
        files: [buys-*.parquet]
        source: user_id
        destination: item_id
        weight: amount
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.settings import limit_of
from graph_emb.core.yaml_text import parse_yaml
from graph_emb.graph.readers.source import MASKS
from graph_emb.graph.typed import checked_edge_type, checked_type_name

MAX_BYTES = 1 << 20


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
Masks = dict[Literal["train", "valid", "test"], str]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TypeFiles(_Section):
    """Keys that node and edge types share.

    Attributes:
        files: Paths or patterns, relative to the YAML file.
        separator: Of text files; None: as the first line shows.
        id_type: How ids are read: as integers, as text, or as they look.
        features: Name of the data to its columns, or to one ``.npy`` file.
        label: A column or a ``.npy`` file.
        masks: For train, valid and test a column, a ``.npy`` mask or, of nodes, a text file of ids.
    """

    files: Names | None = None
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    id_type: Literal["auto", "int", "str"] = "auto"
    features: dict[str, Names] = {}
    label: str | None = None
    masks: Masks = {}

    @model_validator(mode="after")
    def _names_are_given_once(self) -> TypeFiles:
        reserved = {"label", "weight", *MASKS.values()} & set(self.features)
        if reserved:
            raise ValueError(f"features.{min(reserved)}: this name has a key of its own")
        for name in self.features:
            if not name or "/" in name:
                raise ValueError(f"features.{name}: a name must not be empty or hold '/'")
        return self


class NodeFiles(TypeFiles):
    """One node type; without ``files`` and ``num_nodes`` its nodes are the ids that edges name."""

    id: str | None = None
    num_nodes: Annotated[int, Field(ge=1, strict=True)] | None = None

    @model_validator(mode="after")
    def _columns_need_files(self) -> NodeFiles:
        if self.files is None and (self.id is not None or self.separator is not None or self.id_type != "auto"):
            raise ValueError("id, id_type and separator need files")
        if self.files is None and self.num_nodes is None and (self.features or self.label or self.masks):
            raise ValueError("data needs files or num_nodes: otherwise no one knows which row is which node")
        return self


class EdgeFiles(TypeFiles):
    """One edge type; without column names the first two columns are source and destination."""

    type: tuple[str, str, str]
    files: Names
    source: str | None = None
    destination: str | None = None
    weight: str | None = None

    @field_validator("type", mode="after")
    @classmethod
    def _names_fit_dgl(cls, value: tuple[str, str, str]) -> tuple[str, str, str]:
        return checked_edge_type(value)

    @model_validator(mode="after")
    def _both_ends(self) -> EdgeFiles:
        if (self.source is None) != (self.destination is None):
            raise ValueError("source and destination go together: name both columns or none")
        return self


class Description(_Section):
    """The whole file."""

    name: str | None = None
    nodes: dict[str, NodeFiles] = {}
    edges: Annotated[list[EdgeFiles], Field(min_length=1)]

    @model_validator(mode="after")
    def _types_are_distinct(self) -> Description:
        for ntype in self.nodes:
            checked_type_name(ntype)
        types = [edge.type for edge in self.edges]
        for etype in types:
            if types.count(etype) > 1:
                raise ValueError(f"edge type {':'.join(etype)} is given twice; list all its files under one")
        return self


def read_description(file: Path) -> Description:
    """The checked description.

    Raises:
        DataError: not a YAML text.
        ConfigError: an unknown key or a wrong value; names the file and the field's path.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file}: above the limit of {MAX_BYTES} bytes; is it a description of a graph?")
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a YAML text: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds {type(content).__name__} at the top; expected the keys 'nodes' and 'edges'")
    try:
        return Description.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """Path, value and limit of the first field that pydantic refused."""
    detail = error.errors(include_url=False)[0]
    path = ".".join(map(str, detail["loc"])) or "the file"
    is_value = detail["type"] != "missing" and not isinstance(detail["input"], dict | list)
    shown = f" = {str(detail['input'])[:60]!r}" if is_value else ""
    return f"{path}{shown}: {'unknown key' if detail['type'] == 'extra_forbidden' else limit_of(detail)}"
