"""Knowledge-graph triples as text: head, relation and tail in each line, names or integers."""

# T triples, N entities

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.graph.csr_readers.source import IdsPolicy, checked_file, split_suffix
from graph_emb.graph.ids import number_ids, number_strings
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.source import Contents, register
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeteroGraph

Relations = Literal["types", "column"]
RELATION = "relation"
"""The column of edge data with the number of each edge's relation, where relations are no edge types."""
_PARTS = ("train", "valid", "test")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")


@register("triples", lambda source: False)  # three columns may as well be weighted edges: format= must say it
def read_triples(
    source: Any,
    *,
    relations: Relations = "types",
    order: str = "hrt",
    ids: IdsPolicy = "auto",
    separator: str | None = None,
) -> Contents:
    """Triples without a header row: csv, tsv, txt, also gzipped, or Parquet with three columns.

    Of a folder with files called train, valid and test, only train's triples become edges; the entities of all three
    become nodes, so that what is held out can be ranked.

    Args:
        relations: ``types``: each relation is an edge type, its name cleaned of what DGL's files cannot hold;
            ``column``: one edge type, with the relation's number in the column ``relation``.
        order: Which column is which, a permutation of ``hrt``.
        ids: Of the entities: ``int``, ``str``, or as the first lines show.
        separator: None: as the first line shows.
    """
    check_relations(relations)
    if sorted(order) != ["h", "r", "t"]:
        raise ConfigError(f"order={order!r}: expected a permutation of 'hrt', such as 'htr'")
    if ids not in get_args(IdsPolicy):
        raise unknown_name("ids policy", ids, get_args(IdsPolicy))
    files = _files(Path(source))
    read = [_read(file, order, ids, separator) for file in files.values()]
    kinds = {isinstance(part[0], np.ndarray) for part in read}
    if len(kinds) > 1:
        raise DataError(f"{source}: entities are numbers in some files and names in others; pass ids='str'")
    heads, rels, tails = (_joined([part[place] for part in read]) for place in range(3))
    heads, tails, names = number_ids(heads, tails) if kinds == {True} else number_strings(heads, tails)
    num_nodes = len(names) if names is not None else 1 + int(max(heads.max(), tails.max()))
    numbers, _, relation_names = number_strings(rels, rels.slice(0, 0))
    assert relation_names is not None  # strings are always numbered
    train, counts = _train_only(files, [len(part[0]) for part in read])
    graph = relation_graph(
        heads[:train],
        numbers[:train],
        tails[:train],
        relation_names,
        num_nodes,
        relations,
        node_ids=names,
        counts=counts,
        name=Path(source).name.partition(".")[0],
    )
    return Contents(graph)


def check_relations(relations: str) -> None:
    if relations not in get_args(Relations):
        raise unknown_name("relations policy", relations, get_args(Relations))


def _files(path: Path) -> dict[str, Path]:
    """The file, or the train, valid and test files of a folder in this order; else all of its files."""
    if not path.is_dir():
        return {"all": checked_file(path)}
    known = ("csv", "tsv", "txt", "parquet", "pq")
    entries = sorted(entry for entry in path.iterdir() if entry.is_file() and split_suffix(entry)[0] in known)
    by_stem = {entry.name.partition(".")[0].lower(): entry for entry in entries}
    if "train" in by_stem:
        return {part: by_stem[part] for part in _PARTS if part in by_stem}
    if not entries:
        raise DataError(f"{path}: holds no file of triples; expected one of .{', .'.join(known)}")
    return {entry.name: entry for entry in entries}


def _read(file: Path, order: str, ids: str, separator: str | None) -> list[Any]:
    """Head, relation (as strings) and tail columns of a file."""
    names = tables.column_names(file, separator)
    if len(names) != 3:
        raise DataError(f"{file}: {len(names)} column(s) in the first line, expected 3: head, relation, tail")
    keys = names if tables.is_parquet(file) else ["0", "1", "2"]
    place = {letter: keys[order.index(letter)] for letter in "hrt"}
    text = [place["r"]] if ids != "str" else keys
    read = tables.read_columns(file, separator=separator, header=False, text=text)
    if not len(read[place["r"]]):
        raise DataError(f"{file}: has no triples; expected at least 1")
    kinds = dict(zip("hrt", (ids, "str", ids), strict=True))
    columns = {letter: tables.ids_of(file, word, read[place[letter]], kinds[letter]) for letter, word in _WORDS.items()}
    if isinstance(columns["h"], np.ndarray) != isinstance(columns["t"], np.ndarray):
        raise DataError(f"{file}: heads and tails are of two kinds, numbers and names; pass ids='str'")
    return [columns[letter] for letter in "hrt"]


_WORDS = {"h": "head", "r": "relation", "t": "tail"}


def _joined(columns: list[Any]) -> Any:
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import pyarrow as pa

    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


def _train_only(files: Mapping[str, Path], sizes: list[int]) -> tuple[int, dict[str, int]]:
    """How many of the triples, which lie file after file, become edges; and what is left out."""
    if "train" not in files:
        return sum(sizes), {}
    left_out = {f"{part} edges left out": size for part, size in zip(files, sizes, strict=True) if part != "train"}
    return sizes[0], left_out


def relation_graph(
    heads: np.ndarray,
    relations: np.ndarray,
    tails: np.ndarray,
    relation_names: np.ndarray,
    num_nodes: int,
    policy: Relations,
    *,
    node_ids: np.ndarray | None = None,
    counts: dict[str, int] | None = None,
    name: str = "graph",
    short: bool = False,
) -> HeteroGraph:
    """A graph of one node type from numbered triples.

    Args:
        heads, relations, tails: Shape (T,), integers.
        relation_names: Shape (relations,), strings.
        policy: As ``relations`` of ``read_triples``.
        short: Name edge types by the last part of an IRI where that is unambiguous.
    """
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    edge_data: dict[EdgeType, dict[str, np.ndarray]] = {}
    heads, tails = heads.astype(np.int64, copy=False), tails.astype(np.int64, copy=False)
    if policy == "column":
        edges[EDGE_TYPE] = (heads, tails)
        edge_data[EDGE_TYPE] = {RELATION: relations.astype(np.int64)}
    else:
        order = np.argsort(relations, kind="stable")
        ends = np.cumsum(np.bincount(relations, minlength=len(relation_names)))
        for type_name, own in zip(type_names(relation_names, short), np.split(order, ends[:-1]), strict=True):
            if len(own):  # a relation of held-out triples only has no edges here
                edges[NODE_TYPE, type_name, NODE_TYPE] = (heads[own], tails[own])
        relation_names = relation_names[np.diff(ends, prepend=0) > 0]
    return HeteroGraph(
        {NODE_TYPE: num_nodes},
        edges,
        edge_data=edge_data,
        node_ids={} if node_ids is None else {NODE_TYPE: node_ids},
        relation_names=relation_names,
        counts=counts or {},
        name=name or "graph",
    )


def type_names(relation_names: np.ndarray, short: bool = False) -> list[str]:
    """A name for each relation that DGL's keys and files can hold; distinct, the same for the same relations."""
    full = [_UNSAFE.sub("_", str(name)).strip("_") or "relation" for name in relation_names]
    last = [_UNSAFE.sub("_", re.split(r"[#/:]", str(name).strip("<>"))[-1]).strip("_") for name in relation_names]
    chosen = [s if short and s and last.count(s) == 1 else f for s, f in zip(last, full, strict=True)]
    seen: dict[str, int] = {}
    names = []
    for name in chosen:
        seen[name] = seen.get(name, 0) + 1
        while seen[name] > 1 and f"{name}_{seen[name]}" in chosen:
            seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names
