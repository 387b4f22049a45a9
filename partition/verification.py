"""Checks of a whole partition: checksums, ranges, halo, every edge once, data with its nodes, id maps.

Everything is checked from the files, by other code than the writer's. Legend: N nodes of all types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, check_flags
from graph_emb.core.storage import sha256_of
from graph_emb.core.terminal import progress_shown, reading
from graph_emb.graph.datasets import read_source
from graph_emb.graph.dgl_format import storable
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.manifest import UNLISTED, PartitionManifest
from partition.part import Part
from partition.partitioned import PartitionedGraph, load
from partition.relabel import RESERVED_DATA, type_name
from partition.trainers import TRAINER


@dataclass
class Verification:
    """Result of a verification.

    Attributes:
        checked: Number of checked things of each kind.
        problems: One line each; empty when the partition is sound.
    """

    checked: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def count(self, what: str, number: int = 1) -> None:
        """Count checked things."""
        self.checked[what] = self.checked.get(what, 0) + int(number)

    def expect(self, truth: bool | np.bool_, problem: str) -> bool:
        """Note a problem unless something holds; returns whether it does."""
        if not truth:
            self.problems.append(problem)
        return bool(truth)

    def raise_problems(self) -> None:
        """Raise a DataError with the first problem and the number of the others."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more problems)" if len(self.problems) > 1 else ""
            raise DataError(f"{self.problems[0]}{more}")


def verify(
    path: str | Path,
    graph: Any = None,
    *,
    checksums: bool = True,
    reader_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Verification:
    """Check a partition that ``build`` or DGL wrote.

    Args:
        path: The folder or the JSON in it.
        graph: The graph that was partitioned, whatever ``build`` takes: a HeteroGraph, a path, the name of a data set,
            a DGL, networkx or scipy graph; every edge, column and id is then compared with it.
        checksums: Read every file again to compare its checksum; False: compare sizes only.
        reader_options: Of the graph, as ``build`` was given them.
        progress: Show bars for what lasts longer than two seconds; None: where standard error is a terminal.
    Raises:
        DataError, PartitionError: the folder holds no partition, or its JSON is damaged; or the graph cannot be read.
        ConfigError: reader_options without a graph to read.
    """
    check_flags(checksums=checksums)
    check_flags(none=True, progress=progress)
    if reader_options and (graph is None or isinstance(graph, HeteroGraph)):
        raise ConfigError(f"reader_options {sorted(reader_options)} have no effect without a graph to read")
    if graph is not None and not isinstance(graph, HeteroGraph):
        graph = read_source(graph, progress=progress, **(reader_options or {}))
    whole = load(path)
    found = Verification()
    with progress_shown(progress):
        if whole.manifest is not None:
            _check_files(found, whole.path, whole.manifest, checksums)
            if not found.sound:
                return found  # what follows would trip over the same damage
        try:
            _check_content(found, whole, graph)
        except Exception as error:  # damage can make any step of the checks fail
            found.problems.append(f"{whole.path}: {type(error).__name__}: {error}")
    return found


def _check_files(found: Verification, folder: Path, manifest: PartitionManifest, checksums: bool) -> None:
    with reading("checksums", sum(facts["bytes"] for facts in manifest.files.values())) as tick:
        for name, facts in manifest.files.items():
            path = folder / name
            found.count("files")
            if not found.expect(path.is_file(), f"{path}: missing"):
                continue
            size = path.stat().st_size
            if not found.expect(size == facts["bytes"], f"{path}: {size} bytes; the manifest says {facts['bytes']}"):
                continue
            if checksums:
                found.count("checksums")
                found.expect(sha256_of(path) == facts["sha256"], f"{path}: its sha256 differs from the manifest's")
            tick(size)
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    extra = sorted(present - set(manifest.files) - UNLISTED)
    found.expect(not extra, f"{folder}: {len(extra)} files that the manifest does not know: {', '.join(extra[:3])}")


def _check_content(found: Verification, whole: PartitionedGraph, graph: HeteroGraph | None) -> None:
    parts = [whole.part(index) for index in range(whole.num_parts)]
    checks: list[Callable[[], None]] = [partial(_check_part, found, whole, part) for part in parts]
    degrees = np.zeros((2, whole.nodes.total), np.int64)
    checks += [partial(_count_ends, degrees, part) for part in parts]
    checks += [partial(_check_halo, found, whole, part, degrees) for part in parts]
    checks += [partial(_check_outer_edges, found, whole, parts, part) for part in parts]
    checks.append(partial(_check_id_maps, found, whole))
    if graph is not None:
        checks.append(partial(_check_against, found, whole, parts, graph))
    with reading("verifying", len(checks), " steps") as tick:
        for step, check in enumerate(checks):
            if step >= len(parts) and not found.sound:
                return  # what follows takes the parts to be sound in themselves
            check()
            tick(1)


def _check_part(found: Verification, whole: PartitionedGraph, part: Part) -> None:
    """Shapes, ids, types and owners inside one part."""
    where, graph = f"part {part.index}", part.graph
    num_nodes, num_edges = graph.num_nodes, len(graph.src)
    kinds = (("node", graph.node_data, num_nodes, whole.nodes), ("edge", graph.edge_data, num_edges, whole.edges))
    for kind, data, length, _ in kinds:
        for name in ("_ID", f"inner_{kind}"):
            present = found.expect(name in data, f"{where}: the graph has no {kind} data {name!r}")
            if not present or not found.expect(
                len(data[name]) == length, f"{where}: {kind} data {name!r} has {len(data[name])} rows for {length}"
            ):
                return
    if num_edges:
        low, high = min(graph.src.min(), graph.dst.min()), max(graph.src.max(), graph.dst.max())
        if not found.expect(low >= 0 and high < num_nodes, f"{where}: an edge ends outside its {num_nodes} nodes"):
            return
    for kind, data, length, ranges in kinds:
        (start, stop), ids = ranges.of_part(part.index), data["_ID"]
        own, outside = ids[: stop - start], ids[stop - start :]
        found.count(f"inner {kind}s", stop - start)
        found.count(f"halo {kind}s", length - (stop - start))
        found.expect(
            np.array_equal(own, np.arange(start, stop)),
            f"{where}: its own {kind} ids are not {start} .. {stop - 1} in this order",
        )
        marked = np.array_equal(data[f"inner_{kind}"] != 0, np.arange(length) < stop - start)
        found.expect(marked, f"{where}: inner_{kind} does not mark the first {stop - start}")
        found.expect(
            not len(outside) or (outside.min() >= 0 and outside.max() < ranges.total),
            f"{where}: an id of another part's {kind} is outside [0, {ranges.total})",
        )
        found.expect(
            not ((outside >= start) & (outside < stop)).any() and len(np.unique(outside)) == len(outside),
            f"{where}: stores the same {kind} twice",
        )
    if found.sound:
        _check_types(found, whole, part)
        for _, name, rows, columns in _typed(part):
            num = rows.stop - rows.start
            for column, values in columns.items():
                found.count("columns")
                lengths = f"column {column!r} of {name} has {len(values)} rows for {num}"
                found.expect(len(values) == num, f"{where}: {lengths}")


def _typed(part: Part) -> Iterator[tuple[str, str, slice, dict[str, np.ndarray]]]:
    """(kind, name, rows that the part owns, its data) of each node type and edge type."""
    for ntype in part.whole.ntypes:
        yield "node", ntype, part.node_rows(ntype), part.node_data(ntype)
    for etype in part.whole.etypes:
        yield "edge", type_name(etype), part.edge_rows(etype), part.edge_data(etype)


def _check_types(found: Verification, whole: PartitionedGraph, part: Part) -> None:
    where, graph = f"part {part.index}", part.graph
    owners, node_types, _ = whole.nodes.split(part.node_ids)
    edge_types = whole.edges.split(part.edge_ids)[1]
    if "part_id" in graph.node_data:
        found.expect(np.array_equal(graph.node_data["part_id"], owners), f"{where}: part_id names a wrong owner")
    typed = len(whole.ntypes) > 1 or len(whole.etypes) > 1
    for data, types in ((graph.node_data, node_types), (graph.edge_data, edge_types)):
        if typed or "_TYPE" in data:
            found.expect("_TYPE" in data and np.array_equal(data["_TYPE"], types), f"{where}: a wrong _TYPE")
    ends = np.array([[whole.ntypes.index(e[0]), whole.ntypes.index(e[2])] for e in whole.etypes], np.int64)
    found.expect(
        np.array_equal(node_types[graph.src], ends[edge_types, 0])
        and np.array_equal(node_types[graph.dst], ends[edge_types, 1]),
        f"{where}: an edge ends at a node of a type that its relation does not have",
    )
    first, stop = whole.edges.of_part(part.index)
    src, dst = (side[: stop - first] < part.num_inner_nodes for side in (graph.src, graph.dst))
    owned = {"destination": dst, "source": src, "balanced": src | dst}[whole.edge_owner]
    elsewhere = "ends are" if whole.edge_owner == "balanced" else f"{whole.edge_owner} is"
    found.expect(owned.all(), f"{where}: owns an edge whose {elsewhere} elsewhere")


def _count_ends(degrees: np.ndarray, part: Part) -> None:
    """Add the edges that a part owns to (2, N) degrees by homogeneous id: out-degrees, in-degrees."""
    num = part.num_inner_edges
    for side, ends in enumerate((part.graph.src, part.graph.dst)):
        degrees[side, part.node_ids] += np.bincount(ends[:num], minlength=part.graph.num_nodes)


def _check_halo(found: Verification, whole: PartitionedGraph, part: Part, degrees: np.ndarray) -> None:
    """Every node that the layout promises to show whole has all its in-edges (and, inside, its out-edges)."""
    hops = whole.manifest.num_hops if whole.manifest else int(whole.config.get("halo_hops", 1))
    graph, inner = part.graph, part.num_inner_nodes
    shown = np.arange(graph.num_nodes) < (inner if hops else 0)
    for _ in range(hops - 1):
        shown[graph.src[shown[graph.dst]]] = True
    nodes = np.flatnonzero(shown)
    found.count("neighbourhoods", len(nodes))
    stored = np.bincount(graph.dst, minlength=graph.num_nodes)
    lacking = nodes[stored[nodes] != degrees[1, part.node_ids[nodes]]]
    found.expect(
        not len(lacking), f"part {part.index}: {len(lacking)} nodes lack in-edges, such as local node {lacking[:1]}"
    )
    if whole.manifest is not None and whole.manifest.halo == "dgl":
        stored = np.bincount(graph.src, minlength=graph.num_nodes)[:inner]
        complete = np.array_equal(stored, degrees[0, part.node_ids[:inner]])
        found.expect(complete, f"part {part.index}: a node of its own lacks out-edges")


def _check_outer_edges(found: Verification, whole: PartitionedGraph, parts: list[Part], part: Part) -> None:
    """An edge that a part stores without owning it is the owner's edge."""
    outer = slice(part.num_inner_edges, None)
    ids = part.edge_ids[outer]
    ends = part.node_ids[part.graph.src[outer]], part.node_ids[part.graph.dst[outer]]
    owners = whole.edges.owners(ids)
    for other in np.unique(owners):
        chosen, home = owners == other, parts[other]
        local = ids[chosen] - whole.edges.of_part(int(other))[0]
        theirs = home.node_ids[home.graph.src[local]], home.node_ids[home.graph.dst[local]]
        found.expect(
            np.array_equal(ends[0][chosen], theirs[0]) and np.array_equal(ends[1][chosen], theirs[1]),
            f"part {part.index}: an edge of part {other} has other ends than there",
        )


def _check_id_maps(found: Verification, whole: PartitionedGraph) -> None:
    keys: list[tuple[str, str, EdgeType | str]] = [("node", ntype, ntype) for ntype in whole.ntypes]
    keys += [("edge", type_name(etype), etype) for etype in whole.etypes]
    for kind, name, key in keys:
        if not whole.has_id_map(kind):
            continue
        num, forward, back = whole.books[key].num_rows, whole.id_map(kind, key), whole.id_map(kind, key, inverted=True)
        found.count("id maps", 2)
        inside = len(forward) == num and (not num or (forward.min() >= 0 and forward.max() < num))
        if not found.expect(inside, f"{kind} type {name}: an id map is not over 0 .. {num - 1}"):
            continue
        undone = len(back) == num and np.array_equal(back[forward], np.arange(num))
        found.expect(undone, f"{kind} type {name}: the id maps do not undo each other")
        if whole.manifest is not None:
            found.count("id maps")
            path = whole.path / whole.manifest.id_maps[kind][name]["parquet"]
            found.expect(_same_positions(path, forward), f"{path}: its positions are not those of the npy file")


def _same_positions(path: Path, order: np.ndarray) -> bool:
    """Whether a Parquet id map has the same positions, in the same order; read a batch at a time."""
    import pyarrow.parquet as pq

    done = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["position"]):
        if not np.array_equal(batch.column(0).to_numpy(), order[done : done + len(batch)]):
            return False
        done += len(batch)
    return done == len(order)


def _check_against(found: Verification, whole: PartitionedGraph, parts: list[Part], graph: HeteroGraph) -> None:
    """Everything equals the graph that was partitioned."""
    if not found.expect(
        graph.num_nodes == {n: whole.num_nodes(n) for n in whole.ntypes}
        and {e: len(graph.edges[e][0]) for e in graph.edges} == {e: whole.num_edges(e) for e in whole.etypes},
        f"{whole.path}: types or counts differ from the graph's",
    ):
        return
    given, held = (
        {} if own is None else own.to_arrays(graph.edges) for own in (graph.held_out, whole.held_out(graph.edges))
    )
    same = given.keys() == held.keys() and all(np.array_equal(values, held[name]) for name, values in given.items())
    found.expect(same, f"{whole.path}: what is held out differs from the graph's")
    orders = {"node": {n: whole.node_map(n) for n in whole.ntypes}}
    orders["edge"] = {type_name(e): whole.edge_map(e) for e in whole.etypes}
    expected = {"node": graph.node_data, "edge": {type_name(e): data for e, data in graph.edge_data.items()}}
    for ntype, ids in graph.node_ids.items():
        same = np.array_equal(whole.original_ids(ntype), ids[orders["node"][ntype]])
        found.expect(same, f"node type {ntype}: other original ids")
    for part in parts:
        for etype in whole.etypes:
            positions = orders["edge"][type_name(etype)][part.edge_rows(etype)]
            for side, ends, original in zip((0, 2), part.ends(etype), graph.edges[etype], strict=True):
                found.expect(
                    np.array_equal(orders["node"][etype[side]][ends], original[positions]),
                    f"part {part.index}: edges of {type_name(etype)} end elsewhere than in the graph",
                )
        for kind, name, rows, stored in _typed(part):
            where, positions = f"part {part.index}, {name}", orders[kind][name][rows]
            columns = expected[kind].get(name, {})
            names = sorted(set(columns) - RESERVED_DATA)
            if TRAINER not in columns:  # a build for several trainers per machine added it
                stored = {column: values for column, values in stored.items() if column != TRAINER}
            found.expect(sorted(stored) == names, f"{where}: columns {sorted(stored)}; the graph has {names}")
            for column in set(names) & set(stored):
                values = columns[column][positions].astype(storable(columns[column].dtype))
                same = np.array_equal(values, stored[column], equal_nan=values.dtype.kind == "f")
                found.expect(same, f"{where}: column {column!r} differs from the graph's")
    found.count("edges compared with the graph", graph.total_edges)
