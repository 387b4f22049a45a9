"""Settings of a tree of dataclasses, by path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.ogb.settings import changed, parse, parse_value


@dataclass(frozen=True)
class Inner:
    size: int = 4
    chunk: int = 2
    lr: float = 0.1
    patience: int | None = None
    names: tuple[str, ...] = ("a",)
    fanouts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.size % self.chunk:
            raise ConfigError(f"size {self.size} is no multiple of chunk {self.chunk}")


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    word: str = "none"


def test_values_change_by_path_and_the_rest_stays() -> None:
    made = changed(Outer(), {"inner.lr": 1, "word": "raw", "inner.patience": 3, "inner.names": ["b", "c"]})
    assert made == Outer(Inner(lr=1.0, patience=3, names=("b", "c")), "raw")
    assert isinstance(made.inner.lr, float)
    assert changed(Outer(), {}) == Outer()
    assert changed(made, {"inner.patience": None}).inner.patience is None
    assert changed(Outer(), {"inner.fanouts": [5, 3]}).inner.fanouts == (5, 3)


def test_limits_that_join_two_values_hold_for_both_at_once() -> None:
    assert changed(Outer(), {"inner.size": 9, "inner.chunk": 3}).inner.size == 9
    with pytest.raises(ConfigError, match="size 9 is no multiple"):
        changed(Outer(), {"inner.size": 9})


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("inner.siez", 3, r"unknown setting 'inner.siez'.*did you mean 'inner.size'"),
        ("wrod", "x", "did you mean 'word'"),
        ("inner", 3, "is a group; name one of its fields: size, chunk, lr"),
        ("word.size", 3, "word is a value, 'none', and has no fields"),
        ("inner.size", 2.5, "'inner.size' is 2.5; give an int such as 4"),
        ("inner.size", "x", "give an int"),
        ("inner.lr", True, "give a float such as 0.1"),
        ("word", 3, "give a str"),
        ("word", None, "give a str such as 'none'"),
        ("inner.patience", "abc", "'inner.patience' is 'abc'; give an int or null"),
        ("inner.patience", 2.5, "is 2.5; give an int or null"),
        ("inner.patience", [3], "give an int or null"),
        ("inner.fanouts", ["x"], "is 'x'; give an int or null"),
        ("inner.names", [3], r"is 3; give a str such as \('a',\)"),
    ],
)
def test_what_does_not_fit_is_named(path: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        changed(Outer(), {path: value})


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-3", 0.001), ("null", None), ("true", True), ("raw", "raw"), ('["a", "b"]', ["a", "b"])],
)
def test_a_value_is_json_or_text(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert parse(f"inner.lr={text}") == ("inner.lr", value)


def test_a_setting_without_a_value_is_refused() -> None:
    for text in ("inner.lr", "=3"):
        with pytest.raises(ConfigError, match="is not of the form path=value"):
            parse(text)
