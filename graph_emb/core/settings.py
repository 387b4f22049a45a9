"""What all sections of a configuration are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _not_a_truth_value(value: Any) -> Any:
    # YAML reads yes/no/on/off as booleans and pydantic would take True for 1
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Count = Annotated[int, BeforeValidator(_not_a_truth_value)]
Number = Annotated[float, BeforeValidator(_not_a_truth_value)]


class Section(BaseModel):
    """A group of fields that refuses unknown keys, NaN and infinities."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a file that is called 2024 reads as a number in YAML
        protected_namespaces=(),
    )


class ModelBase(Section):
    """What the section of every model says beside its fields.

    Attributes:
        family: Who trains it; a key of ``graph_emb.run.family.FAMILIES``.
        preset: Values of other sections that are this model's defaults, as ``{"train": {"rule": "adagrad"}}``.
        without: Fields of other sections that mean nothing to it, by path; setting one is an error.
    """

    family: ClassVar[str]
    preset: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    without: ClassVar[tuple[str, ...]] = ()
