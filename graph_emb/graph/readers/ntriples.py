"""RDF N-Triples: subjects and objects become nodes, predicates become relations (W3C N-Triples, 2014)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graph_emb.core.errors import DataError
from graph_emb.core.progress import reading, text_bytes
from graph_emb.graph.ids import number_ids
from graph_emb.graph.readers.edge_list import name_of
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import Contents, checked_file, has_suffix, register
from graph_emb.graph.readers.tables import MAX_ID_LENGTH, line_blocks
from graph_emb.graph.readers.triples import relation_graph
from graph_emb.graph.typed import NODE_TYPE

_BLOCK_BYTES = 1 << 23

_IRI = r"<[^<>\x00-\x20]*>"
_BLANK = r"_:[^\s<>\"]+?"
_LITERAL = r"\"(?:[^\"\\\n\r]|\\.)*\"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^" + _IRI + r")?"
_LINE = (
    rf"^[ \t]*(?P<s>{_IRI}|{_BLANK})[ \t]*(?P<p>{_IRI})[ \t]*(?P<o>{_IRI}|{_LITERAL}|{_BLANK})"
    r"[ \t]*\.[ \t]*(?:#.*)?\r?$"
)


@register("ntriples", has_suffix(".nt", ".nt.gz", ".ntriples", ".ntriples.gz"), "relations", "literals")
def read_ntriples(source: Any, options: ReadOptions) -> Contents:
    """Nodes are the terms as they are written: ``<iri>``, ``_:blank`` and ``"literal"``.

    An edge type is called by the last part of its relation's IRI where that is unambiguous.
    """
    file = checked_file(source)
    columns: dict[str, list[Any]] = {"s": [], "p": [], "o": []}
    dropped = 0
    with reading(file.name, text_bytes(file)) as advance:
        for first, block in line_blocks(file, _BLOCK_BYTES):
            found, left = _terms(file, first, block, options.literals)
            dropped += left
            for key, chunks in columns.items():
                chunks.append(found.field(key))
            advance(len(block))
    if not any(map(len, columns["s"])):
        raise DataError(f"{file}: has no statements to read; expected at least 1")
    (heads, tails), names, num_nodes = number_ids(columns["s"], columns["o"])
    (numbers,), relation_names, _ = number_ids(columns["p"])
    assert relation_names is not None  # strings are always numbered
    graph = relation_graph(
        (heads, numbers, tails),
        relation_names,
        num_nodes,
        options.relations,
        short=True,
        node_ids={} if names is None else {NODE_TYPE: names},
        counts={"literals dropped": dropped} if dropped else {},
        name=name_of(file),
    )
    return Contents(graph)


def _terms(file: Path, first: int, block: bytes, literals: str) -> tuple[Any, int]:
    """The statements of a block as a struct array of s, p and o; and how many with a literal were dropped."""
    import pyarrow as pa
    from pyarrow import compute

    try:
        lines = compute.split_pattern(pa.scalar(block.decode("utf-8")), "\n").values
    except UnicodeDecodeError as error:
        line = first + block[: error.start].count(b"\n")
        raise DataError(f"{file}, line {line}: byte {block[error.start]:#x} is not UTF-8 text") from None
    text = compute.utf8_trim_whitespace(lines)
    is_statement = compute.and_(compute.not_equal(text, ""), compute.invert(compute.starts_with(text, "#")))
    statements = compute.extract_regex(lines, _LINE)
    faulty = compute.and_(is_statement, statements.is_null())
    if compute.any(faulty).as_py():
        row = compute.index(faulty, True).as_py()
        raise DataError(
            f"{file}, line {first + row}: {lines[row].as_py()[:80]!r} is no statement; "
            "expected: subject predicate object ."
        )
    rows = compute.indices_nonzero(is_statement)
    statements = statements.take(rows)
    objects = statements.field("o")
    is_literal = compute.starts_with(objects, '"')
    if literals == "drop":
        kept = statements.filter(compute.invert(is_literal))
        return kept, len(statements) - len(kept)
    too_long = compute.greater(compute.utf8_length(objects), MAX_ID_LENGTH)
    if compute.any(too_long).as_py():
        place = compute.index(too_long, True).as_py()
        length = compute.utf8_length(objects[place]).as_py()
        raise DataError(
            f"{file}, line {first + rows[place].as_py()}: an object of {length} characters; a node's id has at most "
            f"{MAX_ID_LENGTH}; pass literals='drop'"
        )
    return statements, 0
