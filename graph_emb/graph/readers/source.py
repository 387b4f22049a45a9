"""The contract of readers: their options, their registry, the guard of parsers, and what every source obeys."""

# N nodes, E edges of a type

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from graph_emb.core.errors import (
    ConfigError,
    DataError,
    GraphEmbError,
    Registry,
    ShapeError,
    did_you_mean,
    unknown_name,
)
from graph_emb.graph.ids import are_among, first_outside
from graph_emb.graph.typed import DUPLICATES_KEPT, EdgeType, HeteroGraph

KeepOrDrop = Literal["keep", "drop"]
Relations = Literal["types", "column"]
MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
"""Part of a split to the column of node data that marks it, named as DGL names it."""
PART_WORDS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Words of a split, in lower case, and the part that each stands for; an empty word is none."""
WEIGHT = "weight"
"""The column of edge data that "sum" adds up and walks follow."""
Columns = dict[str, np.ndarray]
REVERSE_PREFIX = "rev_"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


_Integer = Annotated[int, BeforeValidator(_plain)]
_Flag = Annotated[bool | None, "True, False or None"]
_Names = Annotated[list[Any] | tuple[Any, ...] | None, "a list of names"]


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``read_graph``, whose docstring says what each does.

    Raises:
        ConfigError: a value of another kind or an unknown word.
    """

    name: Annotated[str | None, "text"] = None
    format: Annotated[str | None, "text"] = None
    directed: _Flag = None
    duplicates: Literal["keep", "first", "sum"] = "keep"
    self_loops: KeepOrDrop = "keep"
    isolated: KeepOrDrop = "keep"
    reverse_types: Annotated[bool, "True or False"] = False
    weight: Annotated[bool | str | None, "True, False or the name of a column"] = None
    progress: _Flag = None
    ids: Literal["auto", "int", "str"] = "auto"
    num_nodes: Annotated[int | Mapping[str, _Integer] | None, "an integer, or one for each node type"] = None
    header: _Flag = None
    separator: Annotated[str | None, Field(pattern=r'^[^\n\r"]$'), "one character that ends no line"] = None
    comment: Annotated[str, "text, '' for no comments"] = "#%"
    columns: Annotated[Sequence[str] | None, "a list of names"] = None
    edge_type: Annotated[Sequence[str] | str | None, "three names"] = None
    index: Annotated[int | None, "an integer"] = None
    node_attributes: _Names = None
    edge_attributes: _Names = None
    relations: Relations = "types"
    order: Annotated[str, "text, such as 'hrt'"] = "hrt"
    literals: KeepOrDrop = "keep"
    root: Annotated[str | os.PathLike[str] | None, "a path"] = None
    download: Annotated[bool, "True or False"] = False
    trust_pickle: Annotated[bool, "True or False"] = False

    def __post_init__(self) -> None:
        for option, kind in KINDS.items():
            value = _plain(getattr(self, option))
            object.__setattr__(self, option, value)
            if get_origin(kind) is Literal:
                if value not in get_args(kind):
                    raise unknown_name(f"{option} policy", value, get_args(kind))
            elif value is not getattr(ReadOptions, option):
                try:
                    TypeAdapter(kind).validate_python(value, strict=True)
                except ValidationError:
                    raise ConfigError(f"{option}={value!r}: expected {kind.__metadata__[-1]}") from None
        most = self.num_nodes
        counts = list(most.values()) if isinstance(most, Mapping) else [] if most is None else [most]
        if not all(1 <= count <= MOST_NODES for count in counts):
            raise ConfigError(f"num_nodes={most}: must be at least 1 and at most {MOST_NODES}")

    @property
    def id_limit(self) -> int | None:
        """``num_nodes`` where one number holds for every id."""
        return self.num_nodes if isinstance(self.num_nodes, int) else None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReadOptions:
        """The options of a mapping; an unknown name is refused with the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_name("option of a reader", name, known)
        return cls(**given)


KINDS: dict[str, Any] = get_type_hints(ReadOptions, include_extras=True)
"""The type of each option's value and, unless it chooses one of some words, the words for that type."""
MOST_NODES = 3_037_000_499
"""Of a type: pairs of them are numbered by int64."""
COMMON_OPTIONS = (
    *("name", "format", "directed", "duplicates", "self_loops", "isolated", "reverse_types", "weight"),
    "progress",
)
"""Options that every source obeys."""


@dataclass(frozen=True)
class Contents:
    """A source as it is stored, before the options of every source are applied.

    Attributes:
        graph: No edge was dropped, merged or turned round.
        both_ways: Each stored edge stands for both directions: the other one is added by default.
        undirected: The same, but some edges may be stored in both directions: only what is missing is added.
    """

    graph: HeteroGraph
    both_ways: bool = False
    undirected: bool = False


@dataclass(frozen=True)
class Reader:
    """One kind of source.

    Attributes:
        read: An object or a path and options to contents; raises DataError for whatever the source does wrong.
        options: Names of the options that mean something to it, those of every source included.
        objects: Whether an object in memory is of this kind.
        paths: Endings of its files (lower case, with their dot), which are not empty when they are read; or whether a
            path is of this kind; opens no file.
        fallback: Asked only when no other reader accepts the source.
    """

    read: Callable[[Any, ReadOptions], Contents]
    options: tuple[str, ...]
    objects: Callable[[Any], bool]
    paths: tuple[str, ...] | Callable[[Path], bool]
    fallback: bool

    def accepts(self, source: Any) -> bool:
        """Whether a source is of this kind; cheap."""
        path = as_path(source)
        if path is None:
            return self.objects(source)
        return path.name.lower().endswith(self.paths) if isinstance(self.paths, tuple) else self.paths(path)


READERS: Registry[Reader] = Registry("graph format")


def register(
    name: str,
    *options: str,
    objects: Callable[[Any], bool] = lambda source: False,
    paths: tuple[str, ...] | Callable[[Path], bool] = (),
    fallback: bool = False,
) -> Callable[[Callable[[Any, ReadOptions], Contents]], Callable[[Any, ReadOptions], Contents]]:
    """Decorator that files a reader under the name that ``format=`` chooses it by, with its own options."""

    def file(read: Callable[[Any, ReadOptions], Contents]) -> Callable[[Any, ReadOptions], Contents]:
        READERS.register(name)(Reader(read, (*COMMON_OPTIONS, *options), objects, paths, fallback))
        return read

    return file


def as_path(source: Any) -> Path | None:
    """The path that a string, a path object or the opened partition of a folder is, None for anything else."""
    return Path(source) if isinstance(source, str | os.PathLike) else None


def is_object_of(source: Any, package: str) -> bool:
    """Whether a source's class or one of its bases is defined in a package, which is not imported."""
    return any(base.__module__.partition(".")[0] == package for base in type(source).__mro__)


def is_networkx(source: Any) -> bool:
    """Whether a source is a graph of networkx, not its nodes or edges alone."""
    return is_object_of(source, "networkx") and hasattr(source, "is_directed")


def is_frame(source: Any) -> bool:
    """Whether a source is a pandas data frame, which is not imported to find out."""
    return is_object_of(source, "pandas") and hasattr(source, "columns")


def columns_of_frame(frame: Any, places: Sequence[int]) -> tuple[list[tuple[str, Any]], Path]:
    """Columns of a pandas data frame by position, as names and Arrow columns; and its name in errors.

    Raises:
        DataError: a column that holds values of several kinds, or an integer outside int64.
    """
    import pyarrow as pa

    where, found = Path("the data frame"), []
    for place in places:
        name = str(frame.columns[place])
        try:
            found.append((name, pa.chunked_array([pa.array(frame.iloc[:, place], from_pandas=True)])))
        except OverflowError as error:
            raise DataError(
                f"{where}: column {name!r} holds an integer outside int64; make such ids strings"
            ) from error
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{where}: column {name!r} holds values of several kinds; make them of one") from error
    return found, where


def part_of(word: str, where: str) -> str | None:
    """The part of a split that a word in lower case stands for, None for no word.

    Raises:
        DataError: an unknown word; the error begins with ``where``.
    """
    if word and word not in PART_WORDS:
        near = did_you_mean(word, list(PART_WORDS))
        raise DataError(f"{where}: unknown part {word[:60]!r} of a split; known: train, valid or val, test{near}")
    return PART_WORDS[word] if word else None


def mask_of(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Node numbers as a mask, (N,), bool."""
    mask = np.zeros(num_nodes, dtype=bool)
    mask[nodes] = True
    return mask


def check_ids(file: Path, word: str, ids: np.ndarray, limit: int, *, first_row: int = 1) -> None:
    """Ids lie in [0, limit); the error names the file, row (``first_row`` is that of the first id) and value."""
    row = first_outside(ids, limit)
    if row is not None:
        raise DataError(f"{file}, row {first_row + row}: {word} {int(ids[row])} is outside [0, {limit})")


def checked_file(path: str | Path) -> Path:
    """The path of an existing file that is not empty.

    Raises:
        DataError: no such file, a folder, or no bytes in it.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(f"{file}: is a folder; expected a file")
        if not file.exists():
            near = file.parent if file.parent.is_dir() else None
            hint = "check the name" if near else f"there is no folder {file.parent} either"
            raise DataError(f"{file}: no such file; {hint}")
        if file.is_file() and file.stat().st_size == 0:
            raise DataError(f"{file}: is empty (0 bytes); was it written to the end?")
    except (OSError, ValueError) as error:  # a name too long, a null byte in it, a folder without access
        if isinstance(error, DataError):
            raise
        raise DataError(f"{str(file)[:200]!r}: cannot be opened: {error}") from error
    return file


def split_suffix(file: Path) -> tuple[str, bool]:
    """The lower-case suffix without its dot, and whether ``.gz`` stood behind it."""
    name = file.name.lower()
    gzipped = name.endswith(".gz")
    _, dot, suffix = name.removesuffix(".gz").rpartition(".")
    return (suffix if dot else ""), gzipped


@contextmanager
def parsing(file: Path, what: str) -> Iterator[None]:
    """Turns whatever is raised on a damaged file into one DataError that names it; warnings are dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (DataError, ShapeError) as error:
        if str(error).startswith(str(file)):
            raise
        raise DataError(f"{file}: {error}") from error
    except GraphEmbError:
        raise
    except Exception as error:  # numpy, scipy, arrow, dgl and networkx raise some twenty types here
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise DataError(f"{file}: cannot be read as {what}: {reason}; is the file whole?") from error


def open_bytes(file: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where it is called ``.gz``; use ``parsing`` around reads."""
    return cast("IO[bytes]", gzip.open(file, "rb")) if split_suffix(file)[1] else file.open("rb")


def cleaned(contents: Contents, options: ReadOptions) -> HeteroGraph:
    """The graph after weights, self loops, directions, duplicates, reverse types and isolated nodes were seen to.

    Raises:
        ConfigError: ``directed=False`` for a graph without a type whose ends are of one type.
        DataError: a weight that was asked for is not there, a reverse type is, or no node is left.
    """
    graph = contents.graph
    counts = dict(graph.counts)
    says_undirected = contents.both_ways or contents.undirected
    mirror = says_undirected if options.directed is None else not options.directed
    if options.directed is False and not any(s == d for s, _, d in graph.edges):
        raise ConfigError("directed=False: no edge type has both ends of one node type; use reverse_types=True")
    edges, edge_data = {}, {}
    for etype, (src, dst) in graph.edges.items():
        table = _EdgeTable(src, dst, _with_weight(etype, graph.edge_data.get(etype, {}), options.weight))
        if etype[0] == etype[2]:
            if options.self_loops == "drop":
                loops = table.src == table.dst
                _count(counts, "self loops dropped", int(loops.sum()))
                table = table.take(~loops) if loops.any() else table
            if mirror and not graph.symmetric:
                table = _mirrored(table, contents.both_ways, graph.num_nodes[etype[0]], counts)
        table = _merged(table, options.duplicates, graph.num_nodes[etype[2]], counts)
        edges[etype], edge_data[etype] = (table.src, table.dst), table.data
    symmetric = mirror or (graph.symmetric and not options.directed)
    if options.reverse_types:
        for etype in [etype for etype in edges if not (symmetric and etype[0] == etype[2])]:
            reverse = (etype[2], REVERSE_PREFIX + etype[1], etype[0])
            if reverse in edges:
                raise DataError(f"edge type {':'.join(reverse)} is in the data already; leave out reverse_types=True")
            src, dst = edges[etype]
            edges[reverse], edge_data[reverse] = (dst.copy(), src.copy()), dict(edge_data[etype])
            _count(counts, "reverse edge types added", 1)
    graph = replace(graph, edges=edges, edge_data=edge_data, counts=counts, symmetric=symmetric)
    return _without_isolated(graph) if options.isolated == "drop" else graph


def _with_weight(etype: EdgeType, columns: Columns, weight: bool | str | None) -> Columns:
    """The columns with the one that is the weight called so, or without it."""
    if weight is None:
        return dict(columns)
    if weight is False:
        return {name: values for name, values in columns.items() if name != WEIGHT}
    name = WEIGHT if weight is True or WEIGHT in columns else weight
    if name not in columns:
        known = ", ".join(columns) or "none"
        raise DataError(f"edge type {':'.join(etype)} has no weight, but weight={weight!r}; its columns: {known}")
    return {WEIGHT if column == name else column: values for column, values in columns.items()}


@dataclass(frozen=True)
class _EdgeTable:
    src: np.ndarray
    dst: np.ndarray
    data: Columns

    def take(self, which: np.ndarray) -> _EdgeTable:
        """The edges at these positions, or where a mask is true."""
        return _EdgeTable(self.src[which], self.dst[which], {name: v[which] for name, v in self.data.items()})


def _count(counts: dict[str, int], what: str, number: int) -> None:
    if number:
        counts[what] = counts.get(what, 0) + number


def _mirrored(table: _EdgeTable, each: bool, num_nodes: int, counts: dict[str, int]) -> _EdgeTable:
    """With the reverse of every edge (``each``) or of those whose reverse is not there; loops are their own reverse."""
    add = table.src != table.dst
    if not each:
        forward, backward = _keys(table.src, table.dst, num_nodes), _keys(table.dst, table.src, num_nodes)
        add &= ~are_among(backward, forward)
    extra = table.take(add)
    _count(counts, "reverse edges added", len(extra.src))
    return _EdgeTable(
        np.concatenate([table.src, extra.dst]),
        np.concatenate([table.dst, extra.src]),
        {name: np.concatenate([values, extra.data[name]]) for name, values in table.data.items()},
    )


def _merged(table: _EdgeTable, policy: str, num_destinations: int, counts: dict[str, int]) -> _EdgeTable:
    """Each (source, destination) once, at its first place, with its first data; "sum" adds the weights up."""
    keys = _keys(table.src, table.dst, num_destinations)
    if policy == "keep":
        if not (keys[1:] > keys[:-1]).all():
            keys.sort()
        _count(counts, DUPLICATES_KEPT, int((keys[1:] == keys[:-1]).sum()))
        return table
    _, first, group, size = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    _count(counts, f"duplicate edges {'summed' if policy == 'sum' else 'dropped'}", len(keys) - len(first))
    if len(first) == len(keys) and (policy == "first" or WEIGHT in table.data):
        return table
    order = np.argsort(first)
    merged = table.take(first[order])
    if policy == "sum":
        weights = table.data.get(WEIGHT)
        if weights is None:
            total = size.astype(np.float32)
        else:
            kind = weights.dtype if weights.dtype.kind == "f" else np.int64
            with np.errstate(over="ignore"):  # a graph refuses a weight that is not finite
                total = np.bincount(group.ravel(), weights=weights.astype(np.float64)).astype(kind)
        merged.data[WEIGHT] = total[order]
    return merged


def _keys(src: np.ndarray, dst: np.ndarray, num_destinations: int) -> np.ndarray:
    """One int64 for each pair; ``MOST_NODES`` of a type fit."""
    return src.astype(np.int64) * max(num_destinations, 1) + dst


def _without_isolated(graph: HeteroGraph) -> HeteroGraph:
    """Without nodes that no edge touches; what is left keeps its order and its original ids."""
    keep = {ntype: np.zeros(num, dtype=bool) for ntype, num in graph.num_nodes.items()}
    for (source, _, destination), (src, dst) in graph.edges.items():
        keep[source][src] = True
        keep[destination][dst] = True
    num_nodes = {ntype: int(mask.sum()) for ntype, mask in keep.items()}
    if num_nodes == graph.num_nodes:
        return graph
    if not any(num_nodes.values()):
        raise DataError("no node has an edge, so isolated='drop' leaves nothing; use isolated='keep'")
    number = {ntype: np.cumsum(mask, dtype=np.int64) - 1 for ntype, mask in keep.items()}
    ids = dict(graph.node_ids)
    for ntype, mask in keep.items():
        if num_nodes[ntype] < len(mask):
            ids[ntype] = ids[ntype][mask] if ntype in ids else np.flatnonzero(mask)
    counts = dict(graph.counts)
    _count(counts, "isolated nodes dropped", graph.total_nodes - sum(num_nodes.values()))
    return replace(
        graph,
        num_nodes=num_nodes,
        edges={e: (number[e[0]][src], number[e[2]][dst]) for e, (src, dst) in graph.edges.items()},
        node_data={
            ntype: {name: values[keep[ntype]] for name, values in columns.items()}
            for ntype, columns in graph.node_data.items()
        },
        node_ids=ids,
        counts=counts,
        held_out=None,  # it names nodes that are gone
    )
