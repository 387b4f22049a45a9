"""The base of settings: frozen, closed, and a refusal that names path, value, limit and the nearest name."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import pytest
from pydantic import Field, model_validator

from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import Count, Number, Settings


class Inner(Settings):
    rate: Number = Field(default=0.5, gt=0, le=1)


class Outer(Settings):
    size: Count = Field(default=4, ge=1)
    word: Literal["first", "second"] = "first"
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _second_is_small(self) -> Outer:
        if self.word == "second" and self.size > 9:
            raise ValueError(f"size = {self.size}: word=second takes at most 9")
        return self


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, r"^Outer.size = 0: should be greater than or equal to 1$"),
        ({"size": True}, r"Outer.size = True: must be a number"),
        ({"word": "frist"}, r"Outer.word = 'frist': should be 'first' or 'second' \(did you mean 'first'\?\)"),
        ({"siez": 3}, r"Outer.siez = 3: unknown field; known: size, word, inner \(did you mean 'size'\?\)"),
        ({"inner": {"rate": 2}}, r"Outer.inner.rate = 2: should be less than or equal to 1"),
        ({"inner": {"rate": float("inf")}}, r"Outer.inner.rate = inf: should be a finite number"),
        ({"size": 0, "word": 3}, r"\(and 1 more\)$"),
        ({"size": 10, "word": "second"}, r"^Outer: size = 10: word=second takes at most 9$"),
    ],
)
def test_a_refusal_names_path_value_and_limit(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Outer(**values)


def test_replace_checks_the_fields_together() -> None:
    large = Outer(size=20)
    assert large.replace(inner=Inner(rate=0.25)) == Outer(size=20, inner=Inner(rate=0.25))
    with pytest.raises(ConfigError, match="at most 9"):
        large.replace(word="second")
    assert large.given() == {"size": 20}


def test_settings_are_frozen_and_travel_between_processes() -> None:
    settings = Outer(size=3)
    with pytest.raises(ValueError, match="frozen"):
        settings.size = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_are_built_when_they_are_first_used() -> None:
    """A start built those of all models, 60 ms for the one that it trains."""

    class Later(Settings):
        epochs: Count = Field(default=1, ge=1)

    assert not Later.__pydantic_complete__
    assert Later.model_fields["epochs"].default == 1
    with pytest.raises(ConfigError, match=r"Later\.epochs = 0"):
        Later(epochs=0)
    assert Later.__pydantic_complete__
    assert Later(epochs=2).replace(epochs=3).epochs == 3
