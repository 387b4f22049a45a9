"""Edge files as blocks of bounded size in slices that workers take one by one, the first pass over them, and the plan:
memory, passes and disk of a build out of memory, printed and checked before it begins.

Legend: N nodes, E edges, P parts. A slice is a run of row groups of Parquet files and of whole text files, in the
order of the edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.hidden import size_text
from graph_emb.core.settings import memory_bytes
from graph_emb.core.storage import check_space
from graph_emb.core.terminal import Advance
from graph_emb.graph.datasets import OWN_FILES, available, find_dataset
from graph_emb.graph.readers import format_of
from graph_emb.graph.readers.edge_list import TEXT, EdgeBlock, edge_blocks, edge_files, name_of, parquet_blocks
from graph_emb.graph.readers.source import ReadOptions, checked_file, parsing, split_suffix
from graph_emb.graph.readers.tables import PARQUET, is_parquet
from partition.kernels import sorting as kernels
from partition.streaming.shared_stages import Workplace, write

OPTIONS = ("ids", "num_nodes", "weight", "header", "separator", "comment", "columns")
"""Options of the reader of edge lists that work without the whole graph in memory."""
MAX_SLICES = 16
PARQUET_BUFFER = 1 << 20
MIB = 1 << 20
RUNTIME_BYTES = 230 * MIB
"""Python with numpy, numba and pyarrow and their compiled loops; measured 200 MiB, and what allocators keep."""
MULTILEVEL_BYTES = 176 * MIB
"""What the loops of multilevel take above that the first time, when they are compiled: measured 150 MiB."""
GROWTH_BYTES, MULTILEVEL_GROWTH_BYTES = 80 * MIB, 216 * MIB
"""What a process takes for libraries and loops after its imports, whatever these take: measured 80 and 215 MiB, where
loops compile. The kernel may map libraries' files in longer pieces: 50 MiB more of those of a new environment."""
NODE_BYTES = 80
"""Of all arrays with a value for each node that one step holds at the same time, at most."""
ROW_BYTES = 96
"""Of an edge of a bucket while it is ordered, copies included."""
GRAPH_BYTES, BUFFER_BYTES = (40, 160), (24, 120)
"""Of an entry (an edge is two) and of a node of a graph that multilevel holds, and of a buffer that it refines."""
TABLE_BYTES = 8
"""Of a node and a part: the weight between them."""
LEAST_WORK_BYTES = 32 * MIB
MAX_BLOCK_ROWS = 1 << 20
RECORD_BYTES = 24
"""Of an edge in a temporary file, at most, without its weight."""


@dataclass(frozen=True)
class Budget:
    """How a limit on memory is shared out.

    Attributes:
        memory: The limit, bytes.
        runtime: What the process holds without any graph.
    """

    memory: int
    runtime: int

    @classmethod
    def of(cls, memory: str | int, *, multilevel: bool = False) -> Budget:
        """Of a limit as users write it; a ConfigError where it is unreadable or too little for Python itself.

        Args:
            multilevel: Leave room for its compiled loops.
        """
        usual = RUNTIME_BYTES + (MULTILEVEL_BYTES if multilevel else 0)
        grown = psutil.Process().memory_info().rss + (MULTILEVEL_GROWTH_BYTES if multilevel else GROWTH_BYTES)
        budget = cls(memory_bytes(memory), max(usual, grown))
        if budget.most_nodes < 1:
            least = budget.runtime + LEAST_WORK_BYTES + NODE_BYTES
            raise ConfigError(
                f"memory {size_text(budget.memory)} is too little: Python and its libraries take "
                f"{size_text(budget.runtime)}; give at least {size_text(least)}"
            )
        return budget

    @property
    def most_nodes(self) -> int:
        """N that fits, with the least room to work in."""
        return (self.memory - self.runtime - LEAST_WORK_BYTES) // NODE_BYTES

    def work_bytes(self, num_nodes: int) -> int:
        """Bytes left after the arrays of the nodes; a ConfigError where too little is left."""
        if num_nodes > self.most_nodes:
            least = self.runtime + LEAST_WORK_BYTES + NODE_BYTES * num_nodes
            raise ConfigError(
                f"memory {size_text(self.memory)} is too little for {num_nodes:,} nodes of {NODE_BYTES} bytes each; "
                f"give at least {size_text(least)}"
            )
        return self.memory - self.runtime - NODE_BYTES * num_nodes

    def block_rows(self, work: int) -> int:
        """Edges that are read at a time."""
        return int(min(MAX_BLOCK_ROWS, work // ROW_BYTES // 2))

    def block_text(self, work: int) -> int:
        """Bytes of text that are read at a time; Arrow holds it several times over."""
        return int(min(32 * MIB, max(MIB, work // 16)))

    def holds(self, num_nodes: int, num_entries: int, num_parts: int, work: int) -> bool:
        """Whether a graph can be partitioned in memory."""
        entry, node = GRAPH_BYTES
        return num_entries * entry + num_nodes * (node + TABLE_BYTES * num_parts) <= work

    def buffer_costs(self, num_parts: int) -> tuple[int, int]:
        """Bytes of an entry and of a node of a buffer that is refined."""
        entry, node = BUFFER_BYTES
        return entry, node + TABLE_BYTES * num_parts

    def bucket_rows(self, work: int) -> int:
        """Edges that are ordered at a time."""
        return max(1, int(work // ROW_BYTES))


@dataclass(frozen=True)
class Plan:
    """The steps of one build in numbers.

    Attributes:
        input_bytes: Of the edge files.
        num_nodes, num_edges, num_parts: N, E, P.
        neighbour_passes: Times that a streaming method reads all neighbours; 0 for methods that do not look at edges.
        weight_bytes: Of an edge's weight; 0 without.
        num_slices, num_buckets: Runs that the input is cut into, and that the edges are ordered in.
        both_ends: Whether a cut edge is stored by both parts.
        coarsens: Whether coarser graphs are written.
    """

    input_bytes: int
    num_nodes: int
    num_edges: int
    num_parts: int
    neighbour_passes: int
    weight_bytes: int
    num_slices: int
    num_buckets: int
    both_ends: bool
    coarsens: bool = False

    @property
    def temporary_bytes(self) -> int:
        """At most, at any time: unordered and ordered edges, cut edges for the other part, counts, neighbours."""
        record = RECORD_BYTES + self.weight_bytes
        edges = self.num_edges * (2 * record + 16 + (24 if self.both_ends else 0))
        # both directions as pairs, and as neighbours; once more, with weights, for a coarser graph
        links = self.num_edges * (48 + (80 if self.coarsens else 0)) if self.neighbour_passes else 0
        return edges + self.num_nodes * (8 * self.num_slices + 40) + links

    @property
    def output_bytes(self) -> int:
        """At most: every edge in both parts, its numbers, flags and maps."""
        stored = 2 if self.both_ends and self.num_parts > 1 else 1
        nodes = self.num_nodes * min(self.num_parts, 8) * 17 + self.num_nodes * 24
        return self.num_edges * (25 * stored + 24 + self.weight_bytes) + nodes

    def check_disk(self, folder: Path, already: int) -> None:
        """Raise an OSError when the disk lacks room for what an earlier start has not written ``already``, in bytes."""
        check_space(folder, self.temporary_bytes + self.output_bytes - already, "the build")

    def text(self, budget: Budget) -> str:
        """The plan as text."""
        links = f", then {self.neighbour_passes} over all neighbours" if self.neighbour_passes else ""
        return (
            f"plan: {self.num_edges:,} edges between {self.num_nodes:,} nodes into {self.num_parts} parts\n"
            f"  memory {size_text(budget.memory)}: {size_text(budget.runtime)} for Python, "
            f"{size_text(NODE_BYTES * self.num_nodes)} for nodes, the rest for {self.num_buckets} buckets of edges\n"
            f"  passes: {3 if self.neighbour_passes else 2} over the input ({size_text(self.input_bytes)}), "
            f"2 over the ordered edges{links}\n"
            f"  disk: up to {size_text(self.temporary_bytes)} temporary, {size_text(self.output_bytes)} result"
        )


@dataclass(frozen=True)
class Unit:
    """A piece of input that is read in one go: a row group of a Parquet file, or a text file."""

    file: Path
    group: int
    num_bytes: int
    first_row: int


def _edge_lists(source: str | Path) -> Path:
    """The path of edge lists by path, or by their name below the folder of the data sets.

    Raises:
        ConfigError: a data set of another kind.
    """
    path, place = Path(source), find_dataset(source)
    if path.exists() or (place is None and str(source) not in available()):
        return path
    if place is None or not _holds_edge_lists(place):
        raise ConfigError(f"memory= reads edge lists, and {str(source)!r} is a data set of another kind; build without")
    return place


def _holds_edge_lists(place: Path) -> bool:
    return not any((place / file).is_file() for file in OWN_FILES) and format_of(place) == "edges"


class EdgeSource:
    """The edges of a file, or of all files of a folder.

    Args:
        path: csv, tsv, txt (also gzipped) or Parquet.
        options: Of the reader of edge lists.
    Attributes:
        name, num_bytes: The graph's name in the files, and their size.
    Raises:
        ConfigError: an option or a kind of source that needs the whole graph in memory.
        DataError: no such file, or no edges in it.
    """

    def __init__(self, path: Any, options: Mapping[str, Any] | None) -> None:
        if not isinstance(path, str | Path):
            raise ConfigError(f"memory= needs a path to edge files; a {type(path).__name__} is in memory already")
        self.path = _edge_lists(path)
        self.name = name_of(self.path)
        for option in options or {}:
            if option not in OPTIONS:
                raise ConfigError(
                    f"reader option {option!r} needs the whole graph in memory; with memory= there are: "
                    f"{', '.join(OPTIONS)}"
                )
        self.options = ReadOptions.of(options or {})
        limit = self.options.num_nodes
        if isinstance(limit, Mapping):
            raise ConfigError(f"num_nodes={limit!r}: with memory= it must be a number of at least 1")
        self.files = [checked_file(file) for file in edge_files(self.path)]
        for file in self.files:
            if split_suffix(file)[0] not in TEXT + PARQUET:
                raise ConfigError(f"{file}: memory= reads edge lists only ({', '.join(TEXT + PARQUET)})")
        self.num_bytes = sum(file.stat().st_size for file in self.files)
        self.slices = _slices([unit for file in self.files for unit in _units(file)])
        if not self.slices:
            raise DataError(f"{self.path}: has no edges; expected at least 1")
        kind = format_of(self.path)
        if kind != "edges":
            raise ConfigError(
                f"{self.path}: memory= reads edge lists only, and without it this is read as {kind!r}; "
                "leave memory out, or put the files of edges into a folder of their own"
            )

    def facts(self) -> dict[str, Any]:
        """Names, sizes and times of the files and the options: equal when the same edges are read again."""
        stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in self.files]
        return {"files": stats, "options": str(self.options)}

    def blocks(self, index: int, num_rows: int, num_bytes: int) -> Iterator[EdgeBlock]:
        """The edges of one slice in order; each block at most ``num_rows``, or ``num_bytes`` of text.

        After it Arrow gives back the memory that it keeps for later, which no budget counts: 50 MiB were measured.
        """
        import pyarrow

        for unit in self.slices[index]:
            file, options = unit.file, self.options
            if unit.group < 0:
                blocks = edge_blocks(file, options, num_bytes)
            else:
                place = {"group": unit.group, "first_row": unit.first_row + 1}
                blocks = parquet_blocks(file, options, num_rows=num_rows, buffer_size=PARQUET_BUFFER, **place)
            for block in blocks:
                if not (isinstance(block.src, np.ndarray) and isinstance(block.dst, np.ndarray)):
                    raise ConfigError(f"{unit.file}: its ids are names; memory= takes integers, so build without it")
                if len(block.src):
                    yield block
            del blocks
        pyarrow.default_memory_pool().release_unused()


def _units(file: Path) -> Iterator[Unit]:
    if not is_parquet(file):
        yield Unit(file, -1, file.stat().st_size, 0)
        return
    from pyarrow import parquet

    with parsing(file, "a Parquet file"), parquet.ParquetFile(file) as table:
        row = 0
        for group in range(table.metadata.num_row_groups):
            found = table.metadata.row_group(group)
            if found.num_rows:
                yield Unit(file, group, found.total_byte_size, row)
            row += found.num_rows


def _slices(units: list[Unit]) -> list[list[Unit]]:
    """Runs of units of about the same bytes, at most MAX_SLICES; they do not depend on the number of workers."""
    total = sum(unit.num_bytes for unit in units)
    slices: list[list[Unit]] = [[] for _ in range(MAX_SLICES)]
    before = 0
    for unit in units:
        slices[min(before * MAX_SLICES // max(total, 1), MAX_SLICES - 1)].append(unit)
        before += unit.num_bytes
    return [found for found in slices if found]


class Scan:
    """Counts edges, nodes and degrees one slice at a time, and whether weights say anything.

    The degrees of each slice go to the workplace; the budget bounds blocks and the number of nodes.
    """

    def __init__(self, source: EdgeSource, workplace: Workplace, budget: Budget, tick: Advance) -> None:
        self.source, self.budget, self.tick = source, budget, tick
        self.folder = workplace.folder("scan")
        self.limit = budget.most_nodes
        if source.options.id_limit is not None:
            budget.work_bytes(source.options.id_limit)

    def slice(self, index: int) -> dict[str, Any]:
        """Rows, nodes and weights of one slice; its in- and out-degrees go to files."""
        # While nodes are counted nothing else is held, and what a block takes is part of the least room.
        work = self.budget.work_bytes(self.limit)
        degrees = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
        rows, weighted, dtypes = 0, False, set()
        for block in self.source.blocks(index, self.budget.block_rows(work), self.budget.block_text(work)):
            num = 1 + int(max(block.src.max(), block.dst.max()))
            if num > self.limit:
                raise ConfigError(
                    f"{self.source.path}: node {num - 1} needs room for {num:,} nodes, the memory has room for "
                    f"{self.limit:,}; raise it, or number the nodes 0 .. N - 1 first"
                )
            for side, ids in enumerate((block.dst, block.src)):
                if num >= len(degrees[side]):
                    grown = np.zeros(max(num, min(2 * num, self.limit)) + 1, np.int64)
                    grown[: len(degrees[side])] = degrees[side]
                    degrees[side] = grown
                kernels.count_ids(ids, 1, degrees[side])
            rows += len(block.src)
            dtypes.add("" if block.weights is None else block.weights.dtype.str)
            weighted |= block.weights is not None and bool((block.weights != 1).any())
            self.tick(len(block.src))
        if len(dtypes) > 1:
            raise DataError(f"{self.source.path}: weights of several kinds or only in some files; say weights='ignore'")
        num_nodes = max(int(np.flatnonzero(counts)[-1]) if counts.any() else 0 for counts in degrees)
        for name, counts in zip(("in", "out"), degrees, strict=True):
            write(self.folder / f"{name}-{index}", counts[1 : num_nodes + 1].astype(np.int32))
        return {"rows": rows, "num_nodes": num_nodes, "weighted": weighted, "dtype": dtypes.pop()}

    def degrees(self, name: str, num_nodes: int) -> np.ndarray:
        """(N,), int64: ``in`` or ``out`` degrees over all slices."""
        total = np.zeros(num_nodes, np.int64)
        for index in range(len(self.source.slices)):
            counts = np.fromfile(self.folder / f"{name}-{index}", np.int32)
            total[: len(counts)] += counts
        return total

    def check_no_gaps(self, num_nodes: int) -> dict[str, Any]:
        """Raise a ConfigError for a node number that no edge has, unless the user said how many nodes there are.

        The reader in memory would number the nodes anew and keep their ids; here nothing is renumbered.
        """
        if self.source.options.id_limit is not None:
            return {"missing": None}
        unseen = np.flatnonzero((self.degrees("in", num_nodes) == 0) & (self.degrees("out", num_nodes) == 0))
        if len(unseen):
            raise ConfigError(
                f"{self.source.path}: no edge has node {unseen[0]} ({len(unseen):,} of {num_nodes:,} are missing); "
                f"with memory= say num_nodes={num_nodes} to keep them as nodes without edges"
            )
        return {"missing": 0}
