"""YAML of configurations, descriptions and overrides: plain values within limits, whatever the text."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

from graph_emb.core.errors import ConfigError

MAX_DEPTH = 32
_PLAIN_TAG = "!"


class _PlainLoader(yaml.SafeLoader):
    """Null, booleans, decimal numbers, texts, lists, and mappings with distinct words as keys; nothing else.

    YAML 1.1 also has dates, sexagesimal numbers, sets and merge keys, of which some raise whatever Python raises, and
    aliases, by which a few hundred bytes grow to gigabytes.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise _fault(
                event, f"{'an alias' if isinstance(event, yaml.AliasEvent) else 'an anchor'}, which is not read"
            )
        if getattr(event, "tag", None) not in (None, _PLAIN_TAG):
            raise _fault(event, f"the tag {event.tag!r}, which is not read")
        if self.depth == MAX_DEPTH:
            raise _fault(event, f"nested deeper than {MAX_DEPTH}")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _fault(key_node, f"key {key!r} is not a word")
            if key in found:
                raise _fault(key_node, f"key {key!r} is given twice")
            found[key] = self.construct_object(value_node, deep=True)
        return found


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]{0,39})", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
):
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), [*_first, ""])


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ConfigError: no YAML, nested too deeply, an alias, an anchor or a tag, or a key that is no word or given twice;
            names the line.
    """
    try:
        return deepcopy(_loaded(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ConfigError(f"{line}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(" ".join(str(error).split())[:160]) from None


@lru_cache(maxsize=4)
def _loaded(text: str) -> Any:
    """The value of a text; whoever goes on with a run reads its configuration more than once."""
    return yaml.load(text, Loader=_PlainLoader)


def _fault(place: Any, what: str) -> ConfigError:
    return ConfigError(f"line {place.start_mark.line + 1}: {what}")
