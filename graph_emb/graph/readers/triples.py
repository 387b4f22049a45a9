"""Knowledge-graph triples: text with head, relation and tail in each line, ``triples.npz``, and RDF N-Triples."""

# T triples, N entities

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.terminal import reading, text_bytes
from graph_emb.graph.ids import number_ids
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.edge_list import name_of
from graph_emb.graph.readers.matrices import load_arrays
from graph_emb.graph.readers.source import (
    Contents,
    ReadOptions,
    Relations,
    checked_file,
    columns_of_frame,
    is_frame,
    parsing,
    register,
    split_suffix,
)
from graph_emb.graph.readers.tables import MAX_ID_LENGTH, line_blocks
from graph_emb.graph.triples import PARTS, KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeldOut, HeteroGraph

RELATION = "relation"
"""The column of edge data with the number of each edge's relation, where relations are no edge types."""
ARRAYS = "triples.npz"
"""The file of arrays in a folder of triples."""
_WORDS = {"h": "head", "r": "relation", "t": "tail"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_BLOCK_BYTES = 1 << 23
_IRI = r"<[^<>\x00-\x20]*>"
_BLANK = r"_:[^\s<>\"]+?"
_LITERAL = r"\"(?:[^\"\\\n\r]|\\.)*\"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^" + _IRI + r")?"
_LINE = (
    rf"^[ \t]*(?P<s>{_IRI}|{_BLANK})[ \t]*(?P<p>{_IRI})[ \t]*(?P<o>{_IRI}|{_LITERAL}|{_BLANK})"
    r"[ \t]*\.[ \t]*(?:#.*)?\r?$"
)


@register(
    "triples",
    *("relations", "order", "ids", "separator"),
    objects=lambda source: isinstance(source, KnowledgeGraph) or _is_frame_of_triples(source),
    # of text only format= can say it: three columns may as well be weighted edges
    paths=lambda path: path.name == ARRAYS or (path / ARRAYS).is_file(),
)
def read_triples(source: Any, options: ReadOptions) -> Contents:
    """The training triples as edges; entities of all parts become nodes, so that what is held out can be ranked."""
    if is_frame(source):
        read = _of_frame(source, options)
    else:
        read = source if isinstance(source, KnowledgeGraph) else read_knowledge_graph(source, options)
    relation_names = read.relations or [f"relation_{number}" for number in range(read.num_relations)]
    number = np.arange(read.num_relations)
    if options.relations == "types":  # those of held-out triples only have none
        number = numbers_of_types(read.train[:, 1], read.num_relations)
    held_out, left = held_out_triples(read, number)
    graph = relation_graph(
        read.train.T,
        np.array(relation_names),
        read.num_entities,
        options.relations,
        node_ids={} if read.entities is None else {NODE_TYPE: np.array(read.entities)},
        counts={f"{part} edges left out": len(own) for part, own in read.parts.items() if part != "train"} | left,
        name=read.name or "graph",
        held_out=held_out,
    )
    return Contents(graph)


def numbers_of_types(relations: np.ndarray, num_relations: int) -> np.ndarray:
    """The place of each relation among those that training triples have, (R,); -1 of the others."""
    present = np.bincount(relations, minlength=num_relations) > 0
    return np.where(present, np.cumsum(present) - 1, -1)


def held_out_triples(triples: KnowledgeGraph, number: np.ndarray) -> tuple[HeldOut | None, dict[str, int]]:
    """The held-out parts with the numbers that a graph gives the relations, and how many triples it cannot name.

    Args:
        number: Of each relation, (R,); -1: the graph has none, and its held-out triples stay out.
    """
    parts, negatives, left = {}, {}, 0
    for part in PARTS[1:]:
        if part not in triples.parts:
            continue
        own = triples.parts[part]
        known = number[own[:, 1]] >= 0
        left += int((~known).sum())
        parts[part] = np.stack([own[known, 0], number[own[known, 1]], own[known, 2]], axis=1)
        if part in triples.negatives:
            given = triples.negatives[part]
            sides = {"heads": given.heads, "tails": given.tails}
            negatives[part] = {side: ids if known.all() else ids[known] for side, ids in sides.items()}
    if not parts:
        return None, {}
    return HeldOut(triples=parts, negatives=negatives), {
        "held-out triples of untrained relations": left
    } if left else {}


def read_knowledge_graph(path: Path, options: ReadOptions | None = None) -> KnowledgeGraph:
    """Numbered triples of all parts of a file or folder.

    * text without a header row: csv, tsv, txt, also gzipped, or Parquet, with three columns. A folder may hold files
      called train, valid and test; other files of a folder are one part. Entities and relations are numbered in sorted
      order of their names, over all parts; entities that are the integers 0 .. N - 1 have no names;
    * ``triples.npz``, or its folder: arrays ``train``, ``valid``, ``test`` of shape (T, 3), numbered already, with
      ``entities.txt.gz`` and ``relations.txt.gz`` (a name a line) where they are there.

    Args:
        options: ``order``, ``ids`` and ``separator`` of text.
    Raises:
        DataError: no such files, or not as described; names file, line, value and limit.
    """
    options = options or ReadOptions()
    if sorted(options.order) != ["h", "r", "t"]:
        raise ConfigError(f"order={options.order!r}: expected a permutation of 'hrt', such as 'htr'")
    arrays = path / ARRAYS if path.is_dir() else path
    if arrays.suffix == ".npz" and arrays.is_file():
        return _of_arrays(path.parent.name if path.name == ARRAYS else name_of(path), checked_file(arrays))
    files = _files(path)
    read = [_read(file, options) for file in files.values()]
    if len({isinstance(columns[0], np.ndarray) for columns in read}) > 1:
        raise DataError(f"{path}: entities are numbers in some files and names in others; pass ids='str'")
    return _numbered(name_of(path), list(files) if "train" in files else ["train"], read)


def _numbered(name: str, parts: Sequence[str], read: Sequence[Sequence[Any]]) -> KnowledgeGraph:
    """Triples of head, relation and tail columns; of one part all of them, else of each part its own."""
    (heads, tails), names, num_entities = number_ids(*([columns[end] for columns in read] for end in (0, 2)))
    (numbers,), relations, num_relations = number_ids([columns[1] for columns in read])
    assert relations is not None  # strings are always numbered
    triples = np.stack([heads, numbers, tails], axis=1, dtype=np.int64)
    ends = np.cumsum([len(columns[0]) for columns in read])
    own = [triples] if len(parts) == 1 else np.split(triples, ends[:-1])
    entities = None if names is None else tuple(names.tolist())
    by_part = dict(zip(parts, own, strict=True))
    return KnowledgeGraph(name, num_entities, num_relations, by_part, entities, tuple(relations.tolist()))


def _is_frame_of_triples(source: Any) -> bool:
    return is_frame(source) and {*_WORDS.values()} <= {*source.columns}


def _of_frame(frame: Any, options: ReadOptions) -> KnowledgeGraph:
    """The columns head, relation and tail of a pandas data frame."""
    if options.order != "hrt" or options.separator is not None:
        raise ConfigError("order= and separator= are for text; the columns of a data frame have names")
    columns, where = columns_of_frame(frame, [list(frame.columns).index(word) for word in _WORDS.values()])
    if not len(frame):
        raise DataError(f"{where}: has no triples; expected at least 1")
    return _numbered("graph", ["train"], [_ids_of_triples(where, dict(columns), options.ids)])


def _of_arrays(name: str, file: Path) -> KnowledgeGraph:
    arrays = load_arrays(file)
    parts = {part: arrays[part] for part in PARTS if part in arrays}
    if not parts:
        raise DataError(f"{file}: has none of the arrays {', '.join(PARTS)}; expected (T, 3) ids each")
    for part, triples in parts.items():
        if triples.dtype.kind not in "iu" or triples.ndim != 2 or triples.shape[1] != 3 or not len(triples):
            raise DataError(
                f"{file}: {part} has shape {triples.shape} of {triples.dtype}; expected (T, 3) of integers, T > 0"
            )
    parts = {part: triples.astype(np.int64) for part, triples in parts.items()}
    largest = np.max([triples.max(axis=0) for triples in parts.values()], axis=0)
    entities, relations = (read_names(file.with_name(f"{word}.txt.gz")) for word in ("entities", "relations"))
    num_entities = 1 + int(max(largest[0], largest[2])) if entities is None else len(entities)
    num_relations = 1 + int(largest[1]) if relations is None else len(relations)
    return KnowledgeGraph(name, num_entities, num_relations, parts, entities, relations)


def read_names(file: Path) -> tuple[str, ...] | None:
    """A name a line; None where there is no such file."""
    if not file.is_file():
        return None
    with parsing(file, "a list of names"), gzip.open(file, "rt", encoding="utf-8") as lines:
        return tuple(line.rstrip("\n") for line in lines)


def _files(path: Path) -> dict[str, Path]:
    """The file, or the train, valid and test files of a folder in this order; else all of its files."""
    if not path.is_dir():
        return {"all": checked_file(path)}
    known = ("csv", "tsv", "txt", *tables.PARQUET)
    entries = sorted(entry for entry in path.iterdir() if entry.is_file() and split_suffix(entry)[0] in known)
    by_stem = {entry.name.partition(".")[0].lower(): entry for entry in entries}
    if "train" in by_stem:
        return {part: by_stem[part] for part in PARTS if part in by_stem}
    if not entries:
        raise DataError(f"{path}: holds no file of triples; expected {ARRAYS} or one of .{', .'.join(known)}")
    return {entry.name: entry for entry in entries}


def _read(file: Path, options: ReadOptions) -> list[Any]:
    """Head, relation (as strings) and tail columns of a file."""
    ids, separator, parquet = options.ids, options.separator, tables.is_parquet(file)
    _, _, names = tables.head_of(file, separator)
    if len(names) != 3:
        raise DataError(f"{file}: {len(names)} column(s) in the first line, expected 3: head, relation, tail")
    keys = names if parquet else ["0", "1", "2"]
    place = {letter: keys[options.order.index(letter)] for letter in "hrt"}
    # with names at both ends of the first line of a text, NA and null are names like others
    shows_names = not parquet and not any(tables.is_integer(names[int(place[end])]) for end in "ht")
    text = keys if ids == "str" or shows_names else [place["r"]]
    read = tables.read_columns(file, separator=separator, header=False, text=text)
    if not len(read[place["r"]]):
        raise DataError(f"{file}: has no triples; expected at least 1")
    return _ids_of_triples(file, {word: read[place[letter]] for letter, word in _WORDS.items()}, ids)


def _ids_of_triples(file: Path, columns: Mapping[str, Any], ids: str) -> list[Any]:
    """Head, relation (as strings) and tail of columns that are called so."""
    kinds = {"head": ids, "relation": "str", "tail": ids}
    read = [tables.ids_of(file, word, columns[word], kind) for word, kind in kinds.items()]
    if isinstance(read[0], np.ndarray) != isinstance(read[2], np.ndarray):
        raise DataError(f"{file}: heads and tails are of two kinds, numbers and names; pass ids='str'")
    return read


def relation_graph(
    triples: Iterable[np.ndarray],
    relation_names: np.ndarray,
    num_nodes: int,
    policy: Relations,
    *,
    short: bool = False,
    **more: Any,
) -> HeteroGraph:
    """A graph of one node type from numbered triples.

    Args:
        triples: Heads, relations and tails, shape (T,) each, integers.
        relation_names: Shape (relations,), strings.
        policy: As ``relations`` of ``read_triples``.
        short: Name edge types by the last part of an IRI where that is unambiguous.
        more: Other fields of the graph.
    """
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    heads, relations, tails = (np.ascontiguousarray(column, np.int64) for column in triples)
    if policy == "column":
        edges[EDGE_TYPE] = (heads, tails)
    else:
        order = np.argsort(relations, kind="stable")
        ends = np.cumsum(np.bincount(relations, minlength=len(relation_names)))
        for type_name, own in zip(type_names(relation_names, short), np.split(order, ends[:-1]), strict=True):
            if len(own):  # a relation of held-out triples only has no edges here
                edges[NODE_TYPE, type_name, NODE_TYPE] = (heads[own], tails[own])
        relation_names = relation_names[np.diff(ends, prepend=0) > 0]
    edge_data = {EDGE_TYPE: {RELATION: relations}} if policy == "column" else {}
    return HeteroGraph({NODE_TYPE: num_nodes}, edges, edge_data=edge_data, relation_names=relation_names, **more)


def type_names(relation_names: np.ndarray, short: bool = False) -> list[str]:
    """A name for each relation that DGL's keys and files can hold; distinct, the same for the same relations."""
    full = [_UNSAFE.sub("_", str(name)).strip("_") or "relation" for name in relation_names]
    last = [_UNSAFE.sub("_", re.split(r"[#/:]", str(name).strip("<>"))[-1]).strip("_") for name in relation_names]
    chosen = [s if short and s and last.count(s) == 1 else f for s, f in zip(last, full, strict=True)]
    seen: Counter[str] = Counter()
    names = []
    for name in chosen:
        seen[name] += 1
        while seen[name] > 1 and f"{name}_{seen[name]}" in chosen:
            seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


@register("ntriples", "relations", "literals", paths=(".nt", ".nt.gz", ".ntriples", ".ntriples.gz"))
def read_ntriples(file: Path, options: ReadOptions) -> Contents:
    """Nodes are the terms as they are written: ``<iri>``, ``_:blank`` and ``"literal"``.

    An edge type is called by the last part of its relation's IRI where that is unambiguous.
    """
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
