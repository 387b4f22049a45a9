"""Objects as notebooks show them: a small table of facts, beside the short ``repr`` of consoles."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

MOST = 300
"""Characters of a fact that are shown."""


def card(title: str, facts: Mapping[str, Any]) -> str:
    """A table of HTML, a row for each fact that is not None; all text is escaped."""

    def shown(value: Any) -> str:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        return escape(text if len(text) <= MOST else f"{text[:MOST]} ...")

    left = "text-align: left"
    rows = "".join(
        f'<tr><th style="{left}; font-weight: normal; opacity: .7">{escape(str(name))}</th>'
        f'<td style="{left}">{shown(value)}</td></tr>'
        for name, value in facts.items()
        if value is not None
    )
    return f'<table><caption style="{left}"><b>{escape(title)}</b></caption><tbody>{rows}</tbody></table>'


class Card:
    """A base of objects that have ``_facts``."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return card(type(self).__name__, self._facts())
