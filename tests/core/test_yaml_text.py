"""YAML texts give plain values, or one line that names the fault."""

from __future__ import annotations

import math
import time

import pytest
import yaml

from graph_emb.core.errors import ConfigError
from graph_emb.core.yaml_text import MAX_DEPTH, parse_yaml


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "null",
            "~",
            "true",
            "No",
            "on",
            "3",
            "-17",
            "0",
            "+5",
            "1_000",
            "1e-3",
            "1.5",
            "-2.",
            "1.5e+3",
            ".5",
            ".inf",
        ),
        *("-.Inf", "word", "two words", "'7'", '"a\\tb"', "[1, a, [b]]", "{a: 1, b: {c: [true]}}", "|\n  block\n"),
        *("a: 1\nb:\n- x\n- y: z\n", "- 1\n- 2\n", "# nothing", "a: # nothing\n", "a: >\n  folded\n  text\n"),
    ],
)
def test_plain_values_are_those_of_yaml(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)
    assert type(parse_yaml(text)) is type(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text", ["2001-99-99", "2001-01-01", "0x_", "0b2", "0x1F", "010", "1:30", "=", "<<", "_", "._"]
)
def test_other_scalars_are_texts(text: str) -> None:
    """Dates that do not exist, ``0x_`` and others raised whatever Python raises."""
    assert parse_yaml(text) == text


def test_numbers_without_an_end_are_texts() -> None:
    assert math.isnan(parse_yaml(".nan"))
    assert parse_yaml("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!int x", "line 1: the tag 'tag:yaml.org,2002:int', which is not read"),
        ("!!python/object/apply:os.system [ls]", "line 1: the tag 'tag:yaml.org,2002:python"),
        ("a: !!set {b}", "line 1: the tag"),
        ("a: &x 1\nb: *x\n", "line 1: an anchor, which is not read"),
        ("b: *x\n", "line 1: an alias, which is not read"),
        ("a: 1\na: 2\n", "line 2: key 'a' is given twice"),
        ("1: 2\n", "line 1: key 1 is not a word"),
        ("{[1, 2]: 3}", r"line 1: key \[1, 2\] is not a word"),
        ("[" * 2000, f"line 1: nested deeper than {MAX_DEPTH}"),
        ("[" * 2000 + "]" * 2000, f"line 1: nested deeper than {MAX_DEPTH}"),
        ("{a: " * 2000, f"line 1: nested deeper than {MAX_DEPTH}"),
        ("\n".join(" " * depth + "a:" for depth in range(200)), f"line {MAX_DEPTH}: nested deeper"),
        ("a: [", "line 1: "),
        ("a: b: c", "line 1: mapping values are not allowed here"),
        ("%nonsense", "line 1: "),
        ("\x00", "unacceptable character"),
        ("- 1\n---\n- 2\n", "line 2: but found another document"),
    ],
)
def test_everything_else_is_one_line_that_names_it(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_value_is_its_readers_own() -> None:
    parse_yaml("a: [1]")["a"].append(2)
    assert parse_yaml("a: [1]") == {"a": [1]}


def test_a_bomb_of_aliases_ends_at_once() -> None:
    """Nine lines of nine aliases each took 100 s and 1.1 GB."""
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    began = time.thread_time()
    with pytest.raises(ConfigError, match="line 1: an anchor"):
        parse_yaml("\n".join(lines))
    assert time.thread_time() - began < 20
