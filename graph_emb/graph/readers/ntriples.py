"""RDF N-Triples: subjects and objects become nodes, predicates become relations (W3C N-Triples, 2014)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from graph_emb.core.errors import DataError, unknown_name
from graph_emb.core.progress import reading, text_bytes
from graph_emb.graph.csr_readers.layout import MAX_ID_LENGTH
from graph_emb.graph.csr_readers.source import checked_file
from graph_emb.graph.csr_readers.text import line_blocks
from graph_emb.graph.ids import number_strings
from graph_emb.graph.readers.source import Contents, has_suffix, register
from graph_emb.graph.readers.triples import Relations, check_relations, relation_graph

Literals = Literal["keep", "drop"]
_BLOCK_BYTES = 1 << 23

_IRI = r"<[^<>\x00-\x20]*>"
_BLANK = r"_:[^\s<>\"]+?"
_LITERAL = r"\"(?:[^\"\\\n\r]|\\.)*\"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^" + _IRI + r")?"
_LINE = (
    rf"^[ \t]*(?P<s>{_IRI}|{_BLANK})[ \t]*(?P<p>{_IRI})[ \t]*(?P<o>{_IRI}|{_LITERAL}|{_BLANK})"
    r"[ \t]*\.[ \t]*(?:#.*)?\r?$"
)


@register("ntriples", has_suffix(".nt", ".nt.gz", ".ntriples", ".ntriples.gz"))
def read_ntriples(source: Any, *, relations: Relations = "types", literals: Literals = "keep") -> Contents:
    """Nodes are the terms as they are written: ``<iri>``, ``_:blank`` and ``"literal"``.

    Args:
        relations: As for triples; an edge type is called by the last part of its IRI where that is unambiguous.
        literals: ``keep`` makes each distinct literal a node, ``drop`` leaves their statements out.
    """
    check_relations(relations)
    if literals not in get_args(Literals):
        raise unknown_name("literals policy", literals, get_args(Literals))
    import pyarrow as pa

    file = checked_file(source)
    columns: dict[str, list[Any]] = {"s": [], "p": [], "o": []}
    dropped = 0
    with reading(file.name, text_bytes(file)) as advance:
        for first, block in line_blocks(file, _BLOCK_BYTES):
            found, left = _terms(file, first, block, literals)
            dropped += left
            for key, chunks in columns.items():
                chunks.append(found.field(key))
            advance(len(block))
    subjects, predicates, objects = (pa.chunked_array(chunks, type=pa.string()) for chunks in columns.values())
    if not len(subjects):
        raise DataError(f"{file}: has no statements to read; expected at least 1")
    heads, tails, names = number_strings(subjects, objects)
    numbers, _, relation_names = number_strings(predicates, predicates.slice(0, 0))
    assert names is not None  # strings are always numbered
    assert relation_names is not None
    graph = relation_graph(
        heads,
        numbers,
        tails,
        relation_names,
        len(names),
        relations,
        node_ids=names,
        counts={"literals dropped": dropped} if dropped else {},
        name=file.name.partition(".")[0],
        short=True,
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
