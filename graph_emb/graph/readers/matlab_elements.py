"""The tags of a MATLAB 5 file, checked before scipy parses it.

scipy 1.17 looks a data type up by the number in the file and follows a null pointer where there is none such, so that
one damaged byte ends the process. Layout: "MAT-File Format", MathWorks, chapter 1.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from graph_emb.core.errors import DataError

_HEADER_BYTES = 128
_MAX_DEPTH = 32
"""Elements inside elements; each costs scipy a few levels of Python's stack."""
_MATRIX, _COMPRESSED = 14, 15
_FLAGS_TAG = (6, 8)  # type and bytes of a matrix's first element
_KNOWN_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13, _MATRIX, _COMPRESSED, 16, 17, 18})


def check_elements(file: Path, content: bytes) -> None:
    """Every tag has a known type and values inside its element; a MATLAB 4 file, which has no tags, passes.

    Raises:
        DataError: byte offset and value of the first tag that does not fit.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER_BYTES])
    if order is not None:
        _check(file, order, content, _HEADER_BYTES, len(content))
    elif content.startswith(b"MATLAB 5"):
        raise DataError(f"{file}: the header is damaged or cut off; fetch it again")


def _check(file: Path, order: str, content: bytes, at: int, limit: int, depth: int = 0) -> None:
    if depth > _MAX_DEPTH:
        raise _fault(file, at, f"nested deeper than {_MAX_DEPTH}")
    while at < limit:
        if at + 8 > limit:
            raise _fault(file, at, f"expected a tag of 8 bytes, but {limit - at} are left")
        kind, size = struct.unpack_from(order + "II", content, at)
        begin, room = at + 8, limit - at - 8
        is_small = kind >> 16 != 0  # size and type share a word, the values are in the next
        if is_small:
            kind, size, begin, room = kind & 0xFFFF, kind >> 16, at + 4, 4
        if kind not in _KNOWN_TYPES:
            raise _fault(file, at, f"unknown data type {kind}")
        if size > room:
            raise _fault(file, at, f"{size} bytes of values, but {room} are left")
        if kind == _COMPRESSED:
            try:
                inner = zlib.decompress(content[begin : begin + size])
            except zlib.error as error:
                raise _fault(file, at, f"damaged data ({error})") from error
            _check(file, order, inner, 0, len(inner), depth + 1)
        elif kind == _MATRIX and size:
            flags = content[begin : begin + 8]
            if flags != struct.pack(order + "II", *_FLAGS_TAG):  # scipy takes these 8 bytes for granted
                raise _fault(file, begin, f"array flags {flags.hex()}, expected type 6 and 8 bytes")
            _check(file, order, content, begin, begin + size, depth + 1)
        padded = size if kind == _COMPRESSED else -(-size // 8) * 8
        at = at + 8 if is_small else begin + padded


def _fault(file: Path, at: int, what: str) -> DataError:
    return DataError(f"{file}: byte {at}: {what}; is the file whole?")
