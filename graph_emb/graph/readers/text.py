"""Edge lists as text (csv, tsv, txt, also gzipped), parsed by Arrow block by block.

A block is a run of whole lines. Arrow parses it in native code; only when that fails, or a value is out of range, is
the same block read again line by line, to name the line at fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.graph.readers.layout import MAX_ID_LENGTH, Layout, fault_of_line, find_layout
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import GZIP_ERRORS, open_bytes, split_suffix

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 25
_HEAD_BYTES = 1 << 20
_LINE_STARTS = (b"\n", b" ", b"\t")  # what a comment can follow; looking for these three is far cheaper than a regex
_BLANK_LINE = re.compile(rb"(?m)^[ \t]+\r?$")
_BLANKS = re.compile(rb"[ \t]+")


@dataclass(frozen=True)
class EdgeBlock:
    """Some consecutive edges of a file.

    Attributes:
        src, dst: Shape (E,), int64 arrays, or Arrow string arrays where ids are names.
        weights: Shape (E,), float32 of text and as stored of Parquet, or None where none is read.
    """

    src: NDArray[np.int64] | pa.Array
    dst: NDArray[np.int64] | pa.Array
    weights: NDArray | None


def edge_blocks(file: Path, options: ReadOptions, block_bytes: int = BLOCK_BYTES) -> Iterator[EdgeBlock]:
    """The edges of a text file in order, in blocks of about ``block_bytes`` bytes of text.

    Raises:
        DataError: file, line, value and limit of the first line that is wrong.
    """
    layout = layout_of(file, options, block_bytes)
    if layout is None:
        return
    for first_line, text in line_blocks(file, block_bytes):
        block = _Block(file, text, first_line, layout, options).parse()
        if len(block.src):
            yield block


def layout_of(file: Path, options: ReadOptions, block_bytes: int = BLOCK_BYTES) -> Layout | None:
    """The layout of a text file by its first lines; None where it has only blank lines and comments."""
    found = list(
        islice(
            (
                numbered
                for first_line, text in line_blocks(file, min(block_bytes, _HEAD_BYTES))
                for numbered in numbered_lines(file, text, first_line, options.comment)
            ),
            2,
        )
    )
    if not found:
        return None
    return find_layout(file, [line for _, line in found], found[0][0], options)


def line_blocks(file: Path, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Number of the first line (from 1) and the bytes of each run of whole lines."""
    line, rest = 1, b""
    try:
        with open_bytes(file, split_suffix(file)[1]) as stream:
            while True:
                chunk = stream.read(block_bytes)
                if line == 1 and not rest:
                    chunk = chunk.removeprefix(b"\xef\xbb\xbf")
                cut = chunk.rfind(b"\n") + 1
                if chunk and not cut:
                    rest += chunk
                    if len(rest) > 2 * block_bytes:
                        raise DataError(f"{file}, line {line}: longer than {2 * block_bytes} bytes; is it text?")
                    continue
                text, rest = rest + chunk[:cut], chunk[cut:]
                if b"\0" in text:
                    raise DataError(f"{file}: a null byte after line {line - 1}; expected UTF-8 text")
                if text:
                    yield line, text
                    line += text.count(b"\n")
                if not chunk:
                    return
    except GZIP_ERRORS as error:
        raise DataError(f"{file}: damaged or cut off after line {line - 1}: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error


def numbered_lines(file: Path, text: bytes, first_line: int, comment: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a block that is neither blank nor a comment."""
    start, number = 0, first_line
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        try:
            line = text[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}, line {number}: byte {error.object[error.start]:#x} is not UTF-8 text") from None
        stripped = line.strip()
        if stripped and not (comment and stripped[0] in comment):
            yield number, line
        start, number = end + 1, number + 1


@dataclass(frozen=True)
class _Block:
    file: Path
    text: bytes
    first_line: int
    layout: Layout
    options: ReadOptions

    def parse(self) -> EdgeBlock:
        import pyarrow as pa

        try:
            text = self._cleaned()
            if text.isspace() or not text:
                table = None
            else:
                try:
                    table = self._parse(text)
                except pa.ArrowInvalid:  # rare: lines of blanks; dropping them costs a pass
                    table = self._parse(_BLANK_LINE.sub(b"", text))
        except (pa.ArrowException, ValueError) as error:
            raise self._fault(str(error)) from error
        return self._checked(table)

    def _cleaned(self) -> bytes:
        """The text as Arrow expects it: no header, no comments, single blanks between cells."""
        text = self.text
        header = self.layout.header_line
        if header is not None and header >= self.first_line:
            past = header - self.first_line + 1
            lines = text.split(b"\n", past)
            text = lines[past] if len(lines) > past else b""
        marks = [mark.encode() for mark in self.options.comment if mark.encode() in text]
        if any(text.startswith(mark) or before + mark in text for mark in marks for before in _LINE_STARTS):
            any_mark = b"|".join(re.escape(mark) for mark in marks)
            text = re.sub(rb"(?m)^[ \t]*(?:" + any_mark + rb").*$", b"", text)
        if self.layout.separator == " ":
            if b"\r" in text:
                text = text.replace(b"\r", b"")
            if b"\t" in text or b"  " in text:
                text = _BLANKS.sub(b" ", text)
            if text.startswith(b" ") or b"\n " in text:
                text = text.removeprefix(b" ").replace(b"\n ", b"\n")
            if b" \n" in text or text.endswith(b" "):
                text = text.removesuffix(b" ").replace(b" \n", b"\n")
        return text

    def _parse(self, text: bytes) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        layout = self.layout
        names = [f"c{place}" for place in range(layout.num_columns)]
        kind = pa.int64() if layout.ids == "int" else pa.string()
        types: dict[str, pa.DataType] = {names[place]: kind for place in layout.places[:2]}
        if layout.has_weight:
            types[names[layout.places[2]]] = pa.float64()
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(column_names=names, block_size=1 << 22),
            parse_options=csv.ParseOptions(
                delimiter=layout.separator, quote_char='"' if layout.separator == "," else False
            ),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=[names[place] for place in layout.places],
                null_values=[],
            ),
        )

    def _checked(self, table: Any) -> EdgeBlock:
        """The columns, once their values lie in range."""
        if table is None:
            empty = np.zeros(0, dtype=np.int64)
            return EdgeBlock(empty, empty, None)
        columns = [table.column(place) for place in range(table.num_columns)]
        weights = None
        if self.layout.has_weight:
            with np.errstate(over="ignore"):
                weights = columns[2].to_numpy().astype(np.float32)
            if not (np.isfinite(weights) & (weights > 0)).all():
                raise self._fault("a weight is not finite and above 0")
        if self.layout.ids == "str":
            return EdgeBlock(self._checked_names(columns[0]), self._checked_names(columns[1]), weights)
        src, dst = (column.to_numpy() for column in columns[:2])
        largest = max(src.max(initial=0), dst.max(initial=0))
        limit = self.options.id_limit
        if min(src.min(initial=0), dst.min(initial=0)) < 0 or (limit is not None and largest >= limit):
            raise self._fault("an id is out of range")
        return EdgeBlock(src, dst, weights)

    def _checked_names(self, column: Any) -> Any:
        from pyarrow import compute

        names = compute.utf8_trim_whitespace(column.combine_chunks())
        if len(names):
            lengths = compute.min_max(compute.utf8_length(names)).as_py()
            if lengths["min"] == 0 or lengths["max"] > MAX_ID_LENGTH:
                raise self._fault("an id is empty or too long")
        return names

    def _fault(self, reason: str) -> DataError:
        """The error that names the first line at fault."""
        lines = numbered_lines(self.file, self.text, self.first_line, self.options.comment)
        try:
            for number, line in lines:
                if number == self.layout.header_line:
                    continue
                fault = fault_of_line(line, self.layout, self.options.id_limit)
                if fault is not None:
                    return DataError(f"{self.file}, line {number}: {fault}")
        except DataError as error:
            return error
        last = self.first_line + self.text.count(b"\n")
        short = " ".join(reason.split())[:160]
        return DataError(f"{self.file}: lines {self.first_line} to {last} cannot be parsed: {short}")
