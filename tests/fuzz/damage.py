"""Damage for files and for documents, drawn by Hypothesis, so that a failing input shrinks to a small one."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# Numbers at the limits of what a file may say, texts that break parsers, and values of a type that is not expected.
ODD_NUMBERS = [-(2**63), -1, 0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1]
ODD_TEXTS = [
    "",
    " ",
    "\0",
    "nan",
    "inf",
    "1e999",
    "9" * 400,
    "-1",
    "0x10",
    "../../x",
    "/",
    "a\nb",
    "é\u202e\u2028",
    "\ufeff",
]
ODD_VALUES: list[Any] = [
    None, True, False, [], {}, [[]], [None], {"": None}, 0.5, -0.0, 1e308, 2**64, -(2**70), *ODD_NUMBERS, *ODD_TEXTS,
]  # fmt: skip
ODD_BYTES = [
    *(struct.pack(form, value) for value in ODD_NUMBERS for form in ("<q", ">q")),
    *(struct.pack("<I", value) for value in (0, 1, 2**16, 2**31, 2**32 - 1)),
    *(text.encode() for text in ODD_TEXTS),
    b"\xff", b"\x00" * 16, b"\r", b"\n\n", b"\t", b",,,,", b'"', b"{", b"}", b"[" * 200, b"&a;",
    b"<", b">", b"%", b"# ",
]  # fmt: skip

_PLACE = st.floats(0, 1, exclude_max=True)
_NEW = st.sampled_from(ODD_BYTES) | st.binary(min_size=1, max_size=8)
_DAMAGE = st.tuples(
    st.sampled_from(["overwrite", "insert", "remove", "repeat", "cut"]), _PLACE, _NEW, st.integers(1, 64)
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to four places of damage."""
    for kind, place, new, length in draw(st.lists(_DAMAGE, min_size=1, max_size=4)):
        at = int(place * len(data))
        before, after = data[:at], data[at:]
        data = {
            "overwrite": before + new + after[len(new) :],
            "insert": before + new + after,
            "remove": before + after[length:],
            "repeat": before + after[:length] + after,
            "cut": before,
        }[kind]
    return data


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value of a JSON document below its root."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


@st.composite
def odd_document(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three values replaced by odd ones, removed or given twice."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            return document
        *way, key = draw(st.sampled_from(places))
        holder = document
        for step in way:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "replace", "remove", "again"])):
            case "replace":
                holder[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            case "remove":
                del holder[key]
            case "again" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[f"{key}x"] = copy.deepcopy(holder[key])
    return document


def json_bytes(document: Any) -> bytes:
    """As JSON, with what Python's writer allows beyond the standard (NaN, Infinity)."""
    return json.dumps(document).encode()
