"""A heterogeneous graph from tables: a YAML file names the files and columns of each node and edge type."""

# N nodes, E edges of a type

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.ids import number_ids
from graph_emb.graph.readers import tables
from graph_emb.graph.readers.columns import Rows, data_of, mask_columns, rows_of
from graph_emb.graph.readers.description import Description, EdgeFiles, NodeFiles, read_description
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import WEIGHT, Contents, check_ids, checked_file, has_suffix, parsing, register
from graph_emb.graph.typed import EdgeType, HeteroGraph

Ids = Any  # int64 (N,), or an Arrow string column


@register("yaml", has_suffix(".yaml", ".yml"))
def read_yaml(source: Any, options: ReadOptions) -> Contents:
    """The graph that a YAML file describes; its paths are relative to it. See ``graph_emb.graph.readers.description``.

    Node types with a file are numbered in the order of its rows; the others by the sorted ids of their edges.
    """
    file = checked_file(source)
    described = read_description(file)
    nodes = {ntype: _Nodes(file, ntype, section) for ntype, section in described.nodes.items()}
    ends = [_ends(file, place, section) for place, section in enumerate(described.edges)]
    for ntype in {end for section in described.edges for end in (section.etype[0], section.etype[2])} - set(nodes):
        nodes[ntype] = _Nodes(file, ntype, NodeFiles())
    numbers = _number_all(nodes, described, ends)
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
    edge_data: dict[EdgeType, dict[str, np.ndarray]] = {}
    for place, (section, end) in enumerate(zip(described.edges, ends, strict=True)):
        edges[section.etype] = numbers[place]
        columns = _edge_columns(file, f"edges.{place}", section, end.rows)
        if columns:
            edge_data[section.etype] = columns
    node_data = {ntype: node.columns() for ntype, node in nodes.items()}
    with parsing(file, "a graph"):
        graph = HeteroGraph(
            {ntype: node.num for ntype, node in nodes.items()},
            edges,
            node_data={ntype: columns for ntype, columns in node_data.items() if columns},
            edge_data=edge_data,
            node_ids={ntype: node.kept for ntype, node in nodes.items() if node.kept is not None},
            name=described.name or file.stem,
        )
    return Contents(graph)


class _Nodes:
    """The nodes of one type: their number, their ids and their data."""

    def __init__(self, file: Path, ntype: str, section: NodeFiles) -> None:
        self.file, self.ntype, self.section = file, ntype, section
        self.text = [section.id] if section.id is not None and section.id_type == "str" else []
        self.rows: Rows | None = None
        if section.files is not None:
            self.rows = rows_of(file, section.files, section.separator, text=self.text)
        self.ids: Ids | None = None
        self.num = -1 if section.num_nodes is None else section.num_nodes
        self.kept: np.ndarray | None = None
        if self.rows is not None:
            self._of_rows(self.rows)

    def _of_rows(self, rows: Rows) -> None:
        if self.num >= 0 and self.num != rows.num:
            raise DataError(
                f"{self.file}: nodes.{self.ntype}.num_nodes = {self.num}, but its files have {rows.num} rows"
            )
        self.num = rows.num
        name = self.section.id
        if name is None:
            return
        self.ids = rows.ids(name, self.section.id_type)
        self.kept = self.ids if isinstance(self.ids, np.ndarray) else self.ids.to_numpy().astype(str)
        ordered = np.sort(self.kept)
        repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
        if repeated.size:
            value = ordered[repeated[0]].item()
            row = int(np.flatnonzero(self.kept == value)[1])
            raise DataError(f"{rows.place(row)}: {name} {value!r} is given twice; ids must be distinct")
        if isinstance(self.ids, np.ndarray) and np.array_equal(self.ids, np.arange(self.num)):
            self.kept = None

    @property
    def is_open(self) -> bool:
        """Whether the nodes are known only by their edges."""
        return self.num < 0

    def numbers(self, word: str, rows: Rows, ids: Ids) -> np.ndarray:
        """Node numbers (E,) of ids; the error names the edge's file, row and id."""
        from pyarrow import compute

        if self.ids is None:
            if not isinstance(ids, np.ndarray):
                shown = repr(ids[0].as_py())
                raise DataError(f"{rows.place(0)}: {word} {shown} is a name, but nodes.{self.ntype} has no id column")
            bad = ids >= self.num
            if bad.any():
                row = int(np.argmax(bad))
                raise DataError(f"{rows.place(row)}: {word} {int(ids[row])} is outside [0, {self.num})")
            return ids
        if isinstance(self.ids, np.ndarray) != isinstance(ids, np.ndarray):
            kind = "numbers" if isinstance(ids, np.ndarray) else "names"
            raise DataError(f"{rows.place(0)}: {word} holds {kind}, unlike the ids of {self.ntype!r}; set id_type: str")
        found = compute.index_in(_arrow(ids), value_set=_arrow(self.ids))
        if found.null_count:
            row = int(np.argmax(np.asarray(found.is_null())))
            value = ids[row].item() if isinstance(ids, np.ndarray) else ids[row].as_py()
            raise DataError(f"{rows.place(row)}: {word} {value!r} is no id of {self.ntype!r}")
        return found.to_numpy().astype(np.int64)

    def columns(self) -> dict[str, np.ndarray]:
        """Features, label and masks."""
        where, section = f"nodes.{self.ntype}", self.section
        columns = data_of(self.file, where, section, self.rows, self.num)
        return columns | mask_columns(self.file, where, section.masks, self.rows, self.num, self._positions)

    def _positions(self, file: Path) -> np.ndarray:
        """Node numbers of the ids in a split file."""
        read = tables.read_columns(file, header=False, text=["0"] if self.text else [])
        ids = tables.ids_of(file, "0", read["0"])
        rows = Rows([(file, {}, len(ids))])
        if isinstance(ids, np.ndarray) and self.ids is None:
            check_ids(file, "id", ids, self.num)
            return ids
        return self.numbers("id", rows, ids)


class _Ends:
    """The source and destination ids of one edge type, as its files have them."""

    def __init__(self, rows: Rows, source: Ids, destination: Ids) -> None:
        self.rows, self.source, self.destination = rows, source, destination


def _ends(file: Path, place: int, section: EdgeFiles) -> _Ends:
    rows = rows_of(file, section.files, section.separator, text=_text_columns(section))
    if rows.num == 0:
        raise DataError(f"{file}: edges.{place}.files: have no rows; expected at least 1")
    names = rows.names
    if section.source is None and section.destination is None and len(names) < 2:
        raise DataError(f"{rows.place(0)}: {len(names)} column(s); expected source and destination")
    source, destination = section.source or names[0], section.destination or names[1]
    return _Ends(rows, rows.ids(source, section.id_type), rows.ids(destination, section.id_type))


def _text_columns(section: EdgeFiles) -> tuple[str, ...]:
    if section.id_type != "str":
        return ()
    if section.source is None or section.destination is None:
        raise ConfigError(f"edge type {section.type}: id_type: str needs the names of source and destination")
    return (section.source, section.destination)


def _number_all(
    nodes: dict[str, _Nodes], described: Description, ends: list[_Ends]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both ends of every edge type as node numbers; types without files are numbered by all edges that touch them."""
    numbers: list[list[np.ndarray | None]] = [[None, None] for _ in ends]
    touching: dict[str, list[tuple[int, int]]] = {}
    for place, (section, end) in enumerate(zip(described.edges, ends, strict=True)):
        for side, word, ids in ((0, "source", end.source), (1, "destination", end.destination)):
            node = nodes[section.etype[2 * side]]
            if node.is_open:
                touching.setdefault(node.ntype, []).append((place, side))
            else:
                numbers[place][side] = node.numbers(word, end.rows, ids)
    for ntype, places in touching.items():
        columns = [ends[place].destination if side else ends[place].source for place, side in places]
        if len({isinstance(column, np.ndarray) for column in columns}) > 1:
            raise DataError(f"node type {ntype!r}: ids are numbers in some files and names in others; set id_type: str")
        own, nodes[ntype].kept, nodes[ntype].num = number_ids(*([column] for column in columns))
        for (place, side), column in zip(places, own, strict=True):
            numbers[place][side] = column.astype(np.int64, copy=False)
    return [(src, dst) for src, dst in numbers if src is not None and dst is not None]


def _arrow(ids: Ids) -> Any:
    import pyarrow as pa

    if isinstance(ids, np.ndarray):
        return pa.array(ids)
    return pa.array(ids.combine_chunks()) if not isinstance(ids, pa.ChunkedArray) else ids.combine_chunks()


def _edge_columns(file: Path, where: str, section: EdgeFiles, rows: Rows) -> dict[str, np.ndarray]:
    columns = data_of(file, where, section, rows, rows.num)
    if section.weight is not None:
        weights = rows.numbers(section.weight)
        if weights.ndim != 1 or (weights.dtype.kind == "f" and not np.isfinite(weights).all()):
            row = 0 if weights.ndim != 1 else int(np.argmax(~np.isfinite(weights)))
            raise DataError(f"{rows.place(row)}: {section.weight} is no finite number; drop the edge or set a weight")
        columns[WEIGHT] = weights
    return columns | mask_columns(file, where, section.masks, rows, rows.num, None)
