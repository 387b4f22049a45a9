"""A partition on disk: books, policies, id maps and the arrays of each part, read without DGL.

Partitions that DGL wrote open as well; they lack the id maps unless its pipeline saved them.
Legend: P parts, N and E the ids of one type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError, check_flags, unknown_name
from graph_emb.core.notebook import Card
from graph_emb.core.paths import user_path
from graph_emb.core.storage import PendingFolder, foreign_file, read_json
from graph_emb.graph.dgl_format import read_tensors
from graph_emb.graph.readers.tables import read_npy
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, EdgeType, HeldOut, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.manifest import FORMS, UNLISTED, PartitionManifest
from partition.part import Part
from partition.relabel import Ranges, inverse, type_name

if TYPE_CHECKING:  # they import torch, which most of this does without
    from graph_emb.graph.original_ids import OriginalIds
    from graph_emb.graph.partition_book import RangeBook

DGL_ID_MAPS = {"node": "orig_nids.dgl", "edge": "orig_eids.dgl"}
"""Files of each part that ``dispatch_data.py --save-orig-nids`` and ``--save-orig-eids`` write."""


@dataclass(frozen=True)
class PartPolicy:
    """Which part owns each id of a type; ``DistEmbedding`` takes it as ``part_policy``.

    Attributes:
        policy_str: DGL's name of it, ``node~<type>`` or ``edge~<source:relation:destination>``.
        book: The ranges of the parts, in partition order.
        original_ids: The position in the input of each id; read only where it is asked for. None where DGL wrote the
            partition without id maps.
    """

    policy_str: str
    book: RangeBook
    original_ids: OriginalIds | None = None


class PartitionedGraph(Card):
    """A partition on disk.

    Args:
        config: The JSON that DGL opens.
    Raises:
        DataError: the JSON or the manifest is damaged.
        PartitionError: the ranges in the JSON do not fit together.
    """

    def __init__(self, config: str | Path) -> None:
        self.config_path = Path(config)
        self.path = self.config_path.parent
        self.config = read_json(self.config_path)
        self.manifest = PartitionManifest.read(self.path)
        try:
            self.name = str(self.config["graph_name"])
            self.num_parts = int(self.config["num_parts"])
            self.ntypes = _by_id(self.config.get("ntypes", {NODE_TYPE: 0}))
            if not self.ntypes:
                raise ValueError("ntypes names no type of nodes")
            names = _by_id(self.config.get("etypes", {type_name(EDGE_TYPE): 0}))
            self.nodes = _ranges(self.config["node_map"], self.ntypes, self.num_parts)
            self.edges = _ranges(self.config["edge_map"], names, self.num_parts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"{self.config_path}: no partition of DGL ({type(error).__name__}: {error})") from error
        self.etypes: list[EdgeType] = []
        for name in names:
            words = name.split(":")
            if len(words) != 3:
                raise DataError(
                    f"{self.config_path}: edge type {name!r} is not source:relation:destination, as DGL before 1.0 "
                    "wrote it; convert the file with DGL's tools/change_etype_to_canonical_etype.py"
                )
            self.etypes.append((words[0], words[1], words[2]))
        self._names = {"node": self.ntypes, "edge": names}
        self._ranges = {"node": self.nodes, "edge": self.edges}
        maps = {} if self.manifest is None else self.manifest.id_maps
        for kind, name in ((kind, name) for kind, of_kind in self._names.items() for name in of_kind):
            if self.manifest is not None and set(maps.get(kind, {}).get(name, ())) != set(FORMS):
                raise DataError(f"{self.path}: the manifest lacks id maps of {kind} type {name!r}; build it again")

    def __repr__(self) -> str:
        return f"PartitionedGraph({str(self.path)!r}: {self.num_parts} parts, {self.num_nodes()} nodes)"

    def _facts(self) -> dict[str, Any]:
        sizes = {"nodes": self.num_nodes(), "edges": self.num_edges()}
        types = {"node types": ", ".join(self.ntypes), "edge types": ", ".join(map(":".join, self.etypes))}
        return {"path": self.path, "name": self.name, "parts": self.num_parts, **sizes, **types}

    def __fspath__(self) -> str:
        return str(self.path)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Nodes of a type; of all types by default."""
        return self.nodes.total if ntype is None else int(self.nodes.typed_starts[-1, self.node_type_id(ntype)])

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        """Edges of a type; of all types by default."""
        return self.edges.total if etype is None else int(self.edges.typed_starts[-1, self.edge_type_id(etype)])

    @cached_property
    def books(self) -> dict[str | EdgeType, RangeBook]:
        """The book of each node type (by name) and edge type (by triple)."""
        from graph_emb.graph.partition_book import RangeBook

        keys: list[str | EdgeType] = [*self.ntypes, *self.etypes]
        bounds = np.concatenate([self.nodes.typed_starts, self.edges.typed_starts], axis=1).T.tolist()
        return {key: RangeBook(ends) for key, ends in zip(keys, bounds, strict=True)}

    def policy(self, ntype: str | None = None, *, etype: EdgeType | str | None = None) -> PartPolicy:
        """The policy of a node type or of an edge type; of the only node type by default.

        Args:
            ntype: A node type.
            etype: (source, relation, destination), the same joined by ":", or a relation that only one type has.
        Raises:
            ConfigError: both are given, the type is unknown, or there are several node types and none is named.
        """
        if ntype is not None and etype is not None:
            raise ConfigError(f"policy(ntype={ntype!r}, etype={etype!r}): give one of both")
        from graph_emb.graph.original_ids import ArrayIds, FileIds

        kind, given = ("node", ntype) if etype is None else ("edge", etype)
        t = self._type_id(kind, given)
        name = self._names[kind][t]
        book = self.books[name if etype is None else self.etypes[t]]
        original_ids: OriginalIds | None = None
        if self.manifest is not None:
            paths = {form: self.path.absolute() / path for form, path in self.manifest.id_maps[kind][name].items()}
            original_ids = FileIds(paths["to_original"], paths["to_partition"])
        elif self.has_id_map(kind):
            original_ids = ArrayIds(partial(self.id_map, kind, given), book.num_rows)
        return PartPolicy(f"{kind}~{name}", book, original_ids)

    @cached_property
    def at_hand(self) -> int:
        """The first part whose files are here: a machine's copy may hold the parts of its trainers only."""
        places = (self.path / self.config[f"part-{part}"]["part_graph"] for part in range(self.num_parts))
        return next((part for part, place in enumerate(places) if place.is_file()), 0)

    def part(self, part: int) -> Part:
        """The arrays of one part.

        Raises:
            PartitionError: there is no such part.
        """
        if not 0 <= part < self.num_parts:
            raise PartitionError(f"part {part} is outside [0, {self.num_parts})")
        return Part(self, part)

    def node_map(self, ntype: str | None = None, *, inverse: bool = False) -> np.ndarray:
        """Original position of each partition-order id of a node type, (N,), integers; ``inverse``: the other way.

        Raises:
            DataError: the partition was saved without id maps of nodes.
        """
        check_flags(inverse=inverse)
        return self.id_map("node", ntype, inverse)

    def edge_map(self, etype: EdgeType | str | None = None, *, inverse: bool = False) -> np.ndarray:
        """Original position of each partition-order id of an edge type, (E,), integers; ``inverse``: the other way.

        Raises:
            DataError: the partition was saved without id maps of edges.
        """
        check_flags(inverse=inverse)
        return self.id_map("edge", etype, inverse)

    def original_ids(self, ntype: str | None = None) -> np.ndarray:
        """The id that the input gave each node, by partition-order id, (N,): numbers or strings."""
        name = self.ntypes[self.node_type_id(ntype)]
        if self.manifest is None:
            return self.node_map(name)
        return _parquet_column(self.path / self.manifest.id_maps["node"][name]["parquet"], "original_id")

    def input_ids(self, ntype: str | None = None) -> np.ndarray | None:
        """The id that the input gave each node of a type, in the order of the input, (N,); None: its position."""
        if self.manifest is None:
            return None
        ids, order = self.original_ids(ntype), self.node_map(ntype)
        return ids[inverse(order)] if ids.dtype.kind == "U" or not np.array_equal(ids, order) else None

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Numbers of parts by level of a nested partition, coarsest first; none where it has no levels."""
        made = {} if self.manifest is None else self.manifest.made.get("levels", {})
        return tuple(int(level["num_parts"]) for level in made.get("of", ()))

    def levels(self, ntype: str | None = None) -> np.ndarray:
        """The part of each node of a type at each level, (N, L), int64, by partition-order id; coarsest level first.

        A part of a level lies in one part of every coarser level. ``level_sizes`` says how many a level has.

        Raises:
            ConfigError: the partition has no levels, or the type is unknown.
        """
        if not self.level_sizes:
            raise ConfigError(
                f"{self.path} has no levels; build it with levels=[8, 64, 512], or partition.refine(path, [8, 64, 512])"
            )
        assert self.manifest is not None
        name = self.ntypes[self.node_type_id(ntype)]
        return read_tensors(self.path / self.manifest.made["levels"]["file"])[name].astype(np.int64)

    @property
    def symmetric(self) -> bool:
        """Whether the reverse of each edge is among the edges, see ``HeteroGraph``."""
        return self.manifest is not None and self.manifest.made.get("symmetric") is True

    @property
    def repeats(self) -> Literal["sum"] | None:
        """Whether weights of repeated edges add up, see ``HeteroGraph``."""
        return "sum" if self.manifest is not None and self.manifest.made.get("repeats") == "sum" else None

    @property
    def relation_names(self) -> np.ndarray | None:
        """The names of a knowledge graph's relations, see ``HeteroGraph``; None where there are none."""
        if self.manifest is None or self.manifest.relation_names is None:
            return None
        return _parquet_column(self.path / self.manifest.relation_names, "name")

    def held_out(self, edges: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]] | None = None) -> HeldOut | None:
        """What the rows are judged by, in the order of the input; None where the partition has nothing of that.

        Args:
            edges: The whole graph's, in its original order; without them the training edges of a link split are
                left out where they are these.
        """
        if self.manifest is None or self.manifest.held_out is None:
            return None
        return HeldOut.of_arrays(read_tensors(self.path / self.manifest.held_out), edges)

    @property
    def edge_owner(self) -> EdgeOwner:
        """Which end's part owns an edge; DGL's rule, the destination, where there is no manifest."""
        return "destination" if self.manifest is None else self.manifest.edge_owner

    def has_id_map(self, kind: str) -> bool:
        """Whether the maps of ``"node"`` or ``"edge"`` types are there; DGL's pipeline can save one kind alone."""
        return self.manifest is not None or (self.path / "part0" / DGL_ID_MAPS[kind]).is_file()

    def to_graph(self) -> HeteroGraph:
        """The whole graph in its original order; in partition order what has no id map.

        Raises:
            DataError: a part is not here, or damaged.
        """
        files = (self.path / self.config[f"part-{part}"]["part_graph"] for part in range(self.num_parts))
        if away := [part for part, file in enumerate(files) if not file.is_file()]:
            raise DataError(f"{self.path}: the whole graph takes all {self.num_parts} parts; parts {away} are not here")
        positions = {name: self._positions("node", name) for name in self.ntypes}
        edge_positions = {etype: self._positions("edge", etype) for etype in self.etypes}
        ends = {etype: (np.empty(len(p), np.int64), np.empty(len(p), np.int64)) for etype, p in edge_positions.items()}
        node_data: dict[str, dict[str, np.ndarray]] = {}
        edge_data: dict[EdgeType, dict[str, np.ndarray]] = {}
        for index in range(self.num_parts):
            part = self.part(index)
            for ntype in self.ntypes:
                columns, rows = part.node_data(ntype), part.node_rows(ntype)
                _scatter(node_data.setdefault(ntype, {}), columns, positions[ntype], rows)
            for etype in self.etypes:
                rows = part.edge_rows(etype)
                places = edge_positions[etype][rows]
                for out, ids, ntype in zip(ends[etype], part.ends(etype), (etype[0], etype[2]), strict=True):
                    out[places] = positions[ntype][ids]
                _scatter(edge_data.setdefault(etype, {}), part.edge_data(etype), edge_positions[etype], rows)
        given = {ntype: self.input_ids(ntype) for ntype in self.ntypes}
        node_ids = {ntype: ids for ntype, ids in given.items() if ids is not None}
        return HeteroGraph(
            {ntype: self.num_nodes(ntype) for ntype in self.ntypes},
            ends,
            {ntype: columns for ntype, columns in node_data.items() if columns},
            {etype: columns for etype, columns in edge_data.items() if columns},
            node_ids,
            name=self.name,
            relation_names=self.relation_names,
            symmetric=self.symmetric,
            repeats=self.repeats,
            held_out=self.held_out(ends),
        )

    def assignment(self) -> Assignment:
        """The part of each node in the order of ``to_graph``."""
        numbers, parts = np.arange(self.num_parts, dtype=np.int32), {}
        for t, ntype in enumerate(self.ntypes):
            parts[ntype] = np.empty(self.num_nodes(ntype), np.int32)
            parts[ntype][self._positions("node", ntype)] = np.repeat(numbers, self.nodes.sizes[:, t])
        made = self.manifest.made if self.manifest else {}
        return Assignment(
            parts,
            self.num_parts,
            method=str(made.get("method", self.config.get("part_method", "unknown"))),
            seed=int(made.get("seed", 0)),
            why=f"read from {self.path}",
            balance=dict(made.get("balance", {})),
        )

    def _positions(self, kind: str, given: EdgeType | str) -> np.ndarray:
        if self.has_id_map(kind):
            return self.id_map(kind, given)
        return np.arange(int(self._ranges[kind].typed_starts[-1, self._type_id(kind, given)]))

    def id_map(self, kind: str, given: EdgeType | str | None, inverted: bool = False) -> np.ndarray:
        """``node_map`` or ``edge_map``, for ``kind`` ``"node"`` or ``"edge"``."""
        check_flags(inverted=inverted)
        name = self._names[kind][self._type_id(kind, given)]
        if self.manifest is not None:
            paths = self.manifest.id_maps[kind][name]
            return read_npy(self.path / paths["to_partition" if inverted else "to_original"])
        if not self.has_id_map(kind):
            raise DataError(
                f"{self.path}: DGL wrote this partition without original ids of its {kind}s; use "
                "`python -m partition build`, or dispatch_data.py with --save-orig-nids --save-orig-eids"
            )
        pieces = [read_tensors(self.path / f"part{part}" / DGL_ID_MAPS[kind])[name] for part in range(self.num_parts)]
        order = np.concatenate(pieces).astype(np.int64)
        return inverse(order) if inverted else order

    def node_type_id(self, ntype: str | None = None) -> int:
        """The type id of a node type; of the only one by default. Raises ConfigError for an unknown one."""
        return self._type_id("node", ntype)

    def edge_type_id(self, etype: EdgeType | str | None = None) -> int:
        """The type id of an edge type, see ``policy``; of the only one by default. Raises ConfigError."""
        return self._type_id("edge", etype)

    def _type_id(self, kind: str, given: EdgeType | str | None) -> int:
        names = self._names[kind]
        if given is None:
            if len(names) != 1:
                raise ConfigError(f"the graph has {len(names)} {kind} types; name one: {', '.join(names)}")
            return 0
        name = type_name(given)
        found = [t for t, known in enumerate(names) if name == known or (kind == "edge" and name == self.etypes[t][1])]
        if len(found) != 1:
            raise unknown_name(f"{kind} type", name, names)
        return found[0]


def load(path: str | Path) -> PartitionedGraph:
    """Open a partition that ``build`` or DGL wrote.

    Args:
        path: The folder, or the JSON in it that DGL opens.
    Raises:
        DataError: there is no partition.
        PartitionError: its ranges do not fit together.
    """
    path = user_path(path)
    if path.is_file():
        return PartitionedGraph(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such partition; give the folder or the JSON file in it")
    manifest = PartitionManifest.read(path)
    names = [manifest.config] if manifest else sorted(p.name for p in path.glob("*.json") if _is_config(p))
    if len(names) != 1 or not (path / names[0]).is_file():
        what = f"several partitions: {', '.join(names)}; give one of the files" if len(names) > 1 else "no partition"
        raise DataError(f"{path}: holds {what}")
    return PartitionedGraph(path / names[0])


def is_partition(folder: Path) -> bool:
    """Whether a folder holds a partition that this library wrote completely."""
    try:
        return load(folder).manifest is not None
    except (DataError, PartitionError, OSError):
        return False


def pending_partition(out: str | Path, *, overwrite: bool) -> PendingFolder:
    """The folder of a partition under construction; see ``PendingFolder``."""
    return PendingFolder(out, partial(check_replaceable, overwrite=overwrite), is_ours=is_partition)


def check_replaceable(place: Path, *, overwrite: bool) -> None:
    """Raise a ConfigError unless the folder may give way: a partition of ours without foreign files, and asked for."""
    if not is_partition(place):
        raise ConfigError(f"{place} holds files but no partition that this library wrote; give another --out")
    if not overwrite:
        raise ConfigError(f"{place} holds a partition; give another --out, or --overwrite to replace it")
    manifest = PartitionManifest.read(place)
    assert manifest is not None  # is_partition has read it
    foreign = foreign_file(place, {*manifest.files, *UNLISTED})
    if foreign is not None:
        raise ConfigError(f"{place} holds {foreign}, which is no part of the partition; move it before --overwrite")


def _is_config(path: Path) -> bool:
    try:
        return {"graph_name", "num_parts", "node_map"} <= set(read_json(path))
    except DataError:
        return False


def _parquet_column(path: Path, name: str) -> np.ndarray:
    import pyarrow.parquet as pq

    values = pq.read_table(path, columns=[name]).column(0)
    return np.array(values.to_pylist(), dtype=str) if values.type == "string" else values.to_numpy()


def _by_id(ids: dict[str, int]) -> list[str]:
    names = sorted(ids, key=lambda name: ids[name])
    if [ids[name] for name in names] != list(range(len(names))):
        raise ValueError(f"type ids {ids} are not 0 .. {len(names) - 1}")
    return names


def _ranges(maps: Any, names: list[str], num_parts: int) -> Ranges:
    if isinstance(maps, list):  # DGL before 0.7: one type
        maps = {names[0]: maps}
    if not isinstance(maps, dict):
        raise TypeError(f"ranges are {type(maps).__name__}, not a dictionary")
    if set(maps) != set(names):
        raise PartitionError(f"ranges of the types {sorted(maps)}, but the types are {sorted(names)}")
    columns = []
    for name in names:
        bounds = maps[name]
        if bounds and not isinstance(bounds[0], list):  # only ends
            bounds = [list(pair) for pair in zip([0, *bounds[:-1]], bounds, strict=True)]
        if len(bounds) != num_parts:
            raise PartitionError(f"type {name!r}: ranges of {len(bounds)} parts; num_parts is {num_parts}")
        columns.append(np.asarray(bounds, np.int64).reshape(num_parts, 2))
    table = np.stack(columns, axis=1) if columns else np.zeros((num_parts, 0, 2), np.int64)
    ranges = Ranges.of_sizes(table[:, :, 1] - table[:, :, 0])
    if (table[:, :, 0] != ranges.starts[:, :-1]).any() or (ranges.sizes < 0).any():
        part, t = np.argwhere((table[:, :, 0] != ranges.starts[:, :-1]) | (ranges.sizes < 0))[0]
        raise PartitionError(
            f"type {names[t]!r}, part {part}: range {table[part, t].tolist()} does not begin where the one before ends "
            f"({ranges.starts[part, t]})"
        )
    return ranges


def _scatter(into: dict[str, np.ndarray], columns: dict[str, np.ndarray], positions: np.ndarray, rows: slice) -> None:
    """Put the rows of one part where they were in the input."""
    for name, values in columns.items():
        if name not in into:
            into[name] = np.zeros((len(positions), *values.shape[1:]), values.dtype)
        into[name][positions[rows]] = values
