"""Files of held-out edges and triples, matched to the ids of a graph."""

# E edges or triples

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.ids import are_among
from graph_emb.graph.label_files import SPLIT, TEXT_SUFFIXES
from graph_emb.graph.readers.edge_list import SOURCE_NAMES
from graph_emb.graph.readers.source import PART_WORDS, checked_file, split_suffix
from graph_emb.graph.readers.tables import LARGEST_ID, PARQUET, is_integer, place_of, rows_of
from graph_emb.graph.triples import KnowledgeGraph

HELD_OUT = ("valid", "test")

HeldOut = dict[str, NDArray[np.int64]]
"""Rows by part, in the order of the file; a part without any is left out."""
_Row = tuple[str, list[str]]
"""The place of a row for errors, and its cells."""


def read_held_out_edges(path: str | Path, graph: Graph) -> HeldOut:
    """The edges (E, 2) of a file with rows ``source,target[,part]``, as node numbers.

    csv, tsv, txt [.gz] or Parquet; ends are the ids that the graph's file used. The part is test, where there is none,
    or valid. A repeated edge counts once; of an undirected graph both directions are one edge, smaller node first.

    Raises:
        DataError: no such file, damaged, or of another graph; an unknown part, an edge in two parts, or of a node to
            itself: names file and line.
    """
    takes_names = graph.node_ids is not None and graph.node_ids.dtype.kind == "U"

    def numbers(rows: Sequence[_Row]) -> NDArray[np.int64]:
        asked = [[cell if takes_names else _as_id(cell) for cell in cells] for _, cells in rows]
        ends = graph.find_nodes(np.array(asked).ravel()).reshape(-1, 2)
        for fault in np.flatnonzero((ends < 0).any(axis=1) | (ends[:, 0] == ends[:, 1]))[:1]:
            where, cells = rows[fault]
            missing = np.flatnonzero(ends[fault] < 0)
            if not len(missing):
                raise DataError(f"{where}: an edge of node {cells[0][:60]!r} to itself is not predicted; leave it out")
            raise DataError(
                f"{where}: node {cells[missing[0]][:60]!r} is not among the {graph.num_nodes} nodes of the graph; "
                "are the edges of another graph?"
            )
        return ends if graph.directed else np.sort(ends, axis=1)

    def is_header(cells: Sequence[str]) -> bool:
        return cells[0].lower() in SOURCE_NAMES or not (takes_names or is_integer(cells[0]))

    return _read(path, 2, "source,target", is_header, numbers)


def read_held_out_triples(path: str | Path, graph: KnowledgeGraph) -> HeldOut:
    """The triples (E, 3) of a file with rows ``head,relation,tail[,part]``; rest and errors as for edges."""
    entities, relations = _numbers(graph.entities), _numbers(graph.relations)

    def number(where: str, word: str, text: str, known: Mapping[str, int] | None, limit: int) -> int:
        found = known.get(text, -1) if known is not None else _as_id(text)
        if not 0 <= found < limit:
            raise DataError(
                f"{where}: {word} {text[:60]!r} is not among the {limit} of the graph; are the triples of another one?"
            )
        return found

    def numbers(rows: Sequence[_Row]) -> NDArray[np.int64]:
        found = [
            [
                number(where, "entity", head, entities, graph.num_entities),
                number(where, "relation", relation, relations, graph.num_relations),
                number(where, "entity", tail, entities, graph.num_entities),
            ]
            for where, (head, relation, tail) in rows
        ]
        return np.array(found, np.int64)

    return _read(path, 3, "head,relation,tail", lambda cells: cells[0].lower() == "head", numbers)


def without_held_out(graph: KnowledgeGraph, held: HeldOut) -> tuple[KnowledgeGraph, int]:
    """The graph with these triples in its parts and not in training, and how many training triples went.

    Raises:
        DataError: no triple is left to train on.
    """
    sizes = (graph.num_entities, graph.num_relations, graph.num_entities)
    keys = [np.ravel_multi_index(own.T, sizes) for own in (graph.train, np.concatenate(list(held.values())))]
    kept = ~are_among(*keys)
    if not kept.any():
        raise DataError(f"{graph.name}: all {len(kept)} training triples are held out; none is left to train on")
    return replace(graph, parts={**graph.parts, "train": graph.train[kept], **held}), int((~kept).sum())


def _numbers(names: Sequence[str] | Sequence[int] | None) -> dict[str, int] | None:
    return None if names is None else {str(name): place for place, name in enumerate(names)}


def _as_id(text: str) -> int:
    """A cell as an integer id; -1 where it is none."""
    return min(max(int(text), -1), LARGEST_ID) if is_integer(text) else -1


def _read(
    path: str | Path,
    width: int,
    columns: str,
    is_header: Callable[[Sequence[str]], bool],
    numbers: Callable[[Sequence[_Row]], NDArray[np.int64]],
) -> HeldOut:
    """The rows of a file by part.

    Args:
        width: Cells before the part.
        columns: Their names, for errors.
        is_header: Whether the first row of a text names columns.
        numbers: Of the cells of all rows, shape (rows, width).
    """
    file = checked_file(path)
    suffix, _ = split_suffix(file)
    if suffix not in (*TEXT_SUFFIXES, *PARQUET):
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET))
        raise DataError(f"{file}: suffix '.{suffix}' is no file of held-out edges; known: {known}")
    rows: list[_Row] = []
    parts: list[str] = []
    for count, (row, cells) in enumerate(rows_of(file)):
        where = place_of(file, row)
        if len(cells) not in (width, width + 1):
            raise DataError(f"{where}: {len(cells)} columns; expected {columns}[,{SPLIT}]")
        if count == 0 and (not row or is_header(cells) or cells[width:] == [SPLIT]):
            continue
        word = cells[width].lower() if len(cells) > width else "test"
        if PART_WORDS.get(word) not in HELD_OUT:
            raise DataError(f"{where}: part {word[:60]!r}; held-out edges are of test or valid")
        rows.append((where, cells[:width]))
        parts.append(PART_WORDS[word])
    if "test" not in parts:
        raise DataError(f"{file}: has no test edges; expected rows {columns}[,{SPLIT}]")
    first: dict[tuple[int, ...], int] = {}
    for place, own in enumerate(map(tuple, numbers(rows).tolist())):
        earlier = first.setdefault(own, place)
        if parts[earlier] != parts[place]:
            raise DataError(
                f"{rows[place][0]}: this edge is in {parts[place]}, and in {parts[earlier]} by {rows[earlier][0]}"
            )
    found = {part: [own for own, place in first.items() if parts[place] == part] for part in HELD_OUT}
    return {part: np.array(own, np.int64) for part, own in found.items() if own}
