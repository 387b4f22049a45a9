"""A build in bounded memory: scan, assign, shuffle, order, write, each step restartable and shared by workers.

Legend: N nodes, E edges, P parts.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import PendingFolder, replace_text
from graph_emb.core.terminal import Advance, progress_shown, reading
from graph_emb.graph.dgl_format import BlockColumn
from graph_emb.graph.readers.source import WEIGHT
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition import writer
from partition.assignment import Assignment
from partition.kernels import sorting as kernels
from partition.manifest import FORMS, NAME, FileSet, PartitionManifest, WrittenFiles, facts_of, write_listed
from partition.methods.base import METHODS, Problem, finish
from partition.methods.effort import MultilevelSettings
from partition.methods.nodewise import checked_passes
from partition.nesting import checked_levels, store_levels
from partition.options import BuildOptions
from partition.partitioned import PartitionedGraph, load, pending_partition
from partition.problem import Constraints, constraints
from partition.relabel import PartArrays, inverse, relabel, type_name
from partition.streaming.edges import Links, Shuffle, ShuffleLayout, check_largest, cut_buckets, number_type
from partition.streaming.levels import REFINEMENTS, DiskLevel, DiskMultilevel, streamed
from partition.streaming.nesting import by_type, check_room, nested_by_parts
from partition.streaming.shared_stages import Facts, Removed, Workers, Workplace
from partition.streaming.source import Budget, EdgeSource, Plan, Scan

TEMPORARY_VERSION = 2
"""Of the temporary files; those of another version are thrown away."""
WITHOUT_EDGES = ("hash", "random", "range")
"""Methods that need no edge, so they run as they are on a graph without any."""
STREAMED = ("fennel", "ldg", "multilevel")
BALANCED = ("nodes", "edges")
AUTO = "ldg"
AUTO_WHY = "auto: parts that do not depend on the memory, within any limit that holds the nodes"
INT64, ONE_TYPE = np.dtype(np.int64), np.empty(0, np.int32)


@dataclass(frozen=True)
class Streaming:
    """A streaming method and its options."""

    method: str
    options: Mapping[str, Any]

    @property
    def settings(self) -> MultilevelSettings | None:
        """Of multilevel; a ConfigError for a value out of range."""
        return MultilevelSettings.of(**self.options) if self.method == "multilevel" else None

    def passes(self, fits: bool) -> int:
        """Times that all neighbours are read, about; ``fits``: the graph can be partitioned in memory."""
        if self.settings is None:
            return checked_passes(**self.options)
        return 1 if fits else self.settings.effort.rounds + 1 + REFINEMENTS

    @classmethod
    def of(cls, options: BuildOptions) -> Streaming | None:
        """How neighbours assign the nodes, None without edges; a ConfigError where that needs the whole graph."""
        name = AUTO if options.method == "auto" else options.method
        if options.assignment is not None or name in WITHOUT_EDGES:
            return None
        if name not in STREAMED:
            known = ", ".join(sorted((*WITHOUT_EDGES, *STREAMED)))
            raise ConfigError(f"method {name!r} needs the whole graph in memory; with memory= there are: {known}")
        method, given = METHODS[name], options.method_options or {}
        balance = method.balance if options.balance is None else options.balance
        method.check(balance, options.seed, None, given)
        for kind in balance:
            if kind not in BALANCED:
                raise ConfigError(
                    f"balance {kind!r} needs the whole graph in memory; with memory= there are nodes, edges"
                )
        found = cls(name, {**method.options, **given})
        found.passes(fits=False)  # checks the options
        return found


class PartFiles:
    """Writes parts and id maps from a finished shuffle; no part's edges are ever all in memory.

    The same arrays as ``partition.relabel`` makes, a block at a time; ``tick`` is told the edges or ids written.
    """

    def __init__(self, workplace: Workplace, shuffle: Shuffle, tick: Advance) -> None:
        self.workplace, self.shuffle, self.tick = workplace, shuffle, tick
        self.layout = shuffle.layout

    def _write(self, files: writer.Files, count: int) -> Facts:
        """Make files of the partition: their facts by name."""
        found = {name: write_listed(self.workplace.out, name, write) for name, write in files.items()}
        self.tick(count)
        return found

    def part(self, part: int) -> Facts:
        """``part<i>/`` of one part; facts of its files by name."""
        start, stop = self.layout.nodes.of_part(part)
        first, end = self.layout.edges.of_part(part)
        outer = self.shuffle.outer(part)
        # local id by new id; new ids of halo nodes, ascending
        local = np.full(self.layout.nodes.total, kernels.UNSEEN, np.int64)
        found, num_found = np.empty(len(local), np.int64), 0
        for name in ("src", "dst"):
            for block in self._ends(name, part):
                num_found = kernels.mark_outside(block, start, stop, local, found, num_found)
        halo = np.sort(found[:num_found])
        del found
        local[halo] = np.arange(stop - start, stop - start + num_found)
        shape = (end - first + len(outer),)

        def edge_ids() -> Iterator[np.ndarray]:
            for begin in range(first, end, self.shuffle.step):
                yield np.arange(begin, min(begin + self.shuffle.step, end))
            for block in outer.chunks():
                yield block["id"]

        def local_ends(name: str) -> BlockColumn:
            def chunks() -> Iterator[np.ndarray]:
                for ids in self._ends(name, part):
                    kernels.to_local(ids, start, stop, local)
                    yield ids

            return BlockColumn(shape, INT64, chunks)

        nodes = np.concatenate([np.arange(start, stop), halo])
        owners = np.concatenate([np.full(stop - start, part), self.layout.nodes.owners(halo)])
        del halo
        ids, ends = BlockColumn(shape, INT64, edge_ids), [local_ends(name) for name in ("src", "dst")]
        arrays = PartArrays(stop - start, end - first, ends[0], ends[1], nodes, owners, ids, ONE_TYPE, ONE_TYPE)
        weights: writer.Columns = {}
        if self.layout.weight is not None:
            weights[f"{type_name(EDGE_TYPE)}/{WEIGHT}"] = self.shuffle.column(WEIGHT, part)
        return self._write(writer.part_files(part, arrays, {}, weights), end - first)

    def _ends(self, name: str, part: int) -> Iterator[np.ndarray]:
        """One end of every edge that a part stores, new ids, int64."""
        for block in self.shuffle.column(name, part).chunks():
            yield block.astype(np.int64)
        for block in self.shuffle.outer(part).chunks():
            yield block[name].astype(np.int64)

    def node_maps(self, order: np.ndarray) -> Facts:
        """The nodes' id maps; ``order`` is the original position of each new id."""
        paths = writer.id_map_paths("node", NODE_TYPE)
        contents = writer.id_map_files(order, inverse(order), self.layout.nodes.sizes[:, 0])
        return self._write({paths[form]: content for form, content in contents.items()}, len(order))

    def edge_map(self, form: str) -> Facts:
        """One file of the edges' id map; facts by name."""
        shuffle, total = self.shuffle, self.layout.edges.total

        def new_ids() -> Iterator[np.ndarray]:
            yield from map(shuffle.new_ids, range(shuffle.num_position_ranges))

        back = BlockColumn((total,), number_type(total), new_ids)
        contents = writer.id_map_files(shuffle.column("position"), back, self.layout.edges.sizes[:, 0])
        return self._write({writer.id_map_paths("edge", type_name(EDGE_TYPE))[form]: contents[form]}, total)


class Job:
    """One build out of memory.

    Args:
        source: A path to edge files.
        options: Those of the build, with ``memory``.
    Raises:
        ConfigError, DataError: the source or an option does not allow it, see ``partition.build``.
    """

    workplace: Workplace

    def __init__(self, source: Any, options: BuildOptions) -> None:
        self.options = options
        self.streaming = Streaming.of(options)
        self.num_passes = 0  # over all neighbours
        self.source = EdgeSource(source, options.reader_options)
        self.name = options.name or self.source.name
        writer.check_names(graph_without_edges(1, self.name), writer.TAKEN_NAMES)
        assert options.memory is not None
        multilevel = self.streaming is not None and self.streaming.settings is not None
        self.budget = Budget.of(options.memory, multilevel=multilevel or options.levels is not None)

    def run(self) -> PartitionedGraph:
        """The finished partition; what a killed run has left is used.

        Raises:
            As ``partition.build``.
        """
        workers = Workers.of_environment()
        with ExitStack() as stack:
            stack.enter_context(progress_shown(self.options.progress if workers.rank == 0 else False))
            place = Path(os.path.realpath(user_path(self.options.out)))
            pending = None
            if workers.rank == 0:
                pending = stack.enter_context(pending_partition(place, overwrite=self.options.overwrite))
            options = self.options
            facts = {  # all that the files depend on
                **self.source.facts(),
                "request": [options.total_parts, options.method, options.seed, options.balance],
                "options": [options.tolerance, options.method_options, _described(options.assignment)],
                "memory": self.budget.memory,
                "layout": [self.name, options.halo, TEMPORARY_VERSION],
            }
            self.workplace = workplace = Workplace(place, facts, workers)
            try:
                self._run(pending)
            except Exception as error:
                late = isinstance(error, Removed | FileNotFoundError) and workplace.removed
                if not late:
                    workplace.say_failed(error)
                    workplace.close(remove=workers.world_size == 1)
                    raise
            except BaseException:
                workplace.close(remove=False)
                raise
            workplace.close(remove=True)
        return load(place)

    def _run(self, pending: PendingFolder | None) -> None:
        source, budget, workplace = self.source, self.budget, self.workplace
        with reading("counting edges and nodes", None, " edges") as tick:
            scan = Scan(source, workplace, budget, tick)
            slices = workplace.run("scan", len(source.slices), scan.slice)
        num_nodes, num_edges = max(found["num_nodes"] for found in slices), sum(found["rows"] for found in slices)
        num_nodes = source.options.id_limit or num_nodes
        self._check_counts(num_nodes, slices)
        weight = np.dtype(slices[0]["dtype"]) if any(found["weighted"] for found in slices) else None
        writer.check_names(graph_without_edges(num_nodes, self.name, weight))
        workplace.run("gaps", 1, lambda _: scan.check_no_gaps(num_nodes))
        self._check_plan(num_nodes, num_edges, weight)
        links = None
        if self.streaming is not None:
            with reading("grouping neighbours", num_edges, " edges") as tick:
                links = Links(workplace, source, budget, num_nodes, tick)
                links.run(partial(scan.degrees, num_nodes=num_nodes))

        def place(_: int) -> dict[str, Any]:
            with reading("assigning nodes", num_nodes * self.num_passes, " nodes") as tick:
                return self._placed(scan, links, num_nodes, weight is not None, tick)

        placed = workplace.run("place", 1, place)[0]
        assigned = placed.pop("assignment")
        shuffle = self._shuffled(ShuffleLayout.of(placed, [found["rows"] for found in slices], weight))
        facts = self._written(shuffle)
        if pending is not None:
            workplace.wait_arrived()
            self._publish(pending, shuffle.layout, assigned, facts)

    def _check_counts(self, num_nodes: int, slices: Iterable[Mapping[str, Any]]) -> None:
        num_parts, given = self.options.total_parts, self.options.assignment
        if num_parts < 1 or num_parts > num_nodes:
            raise ConfigError(f"num_parts is {num_parts}; it must lie in 1 .. {num_nodes}, the number of nodes")
        if self.options.levels is not None:
            checked_levels(self.options.levels, num_parts, num_nodes)
        found = num_nodes if given is None else len(given.parts.get(NODE_TYPE, ()))
        if found != num_nodes:
            raise PartitionError(f"the assignment has {found} nodes of type {NODE_TYPE!r}; the graph has {num_nodes}")
        if len({found["dtype"] for found in slices}) > 1:
            raise ConfigError(f"{self.source.path}: only some files have weights; add them or say weights='ignore'")

    def _check_plan(self, num_nodes: int, num_edges: int, weight: np.dtype | None) -> None:
        work, num_parts = self.budget.work_bytes(num_nodes), self.options.total_parts
        rows, fits = self.budget.bucket_rows(work), self.budget.holds(num_nodes, 2 * num_edges, num_parts, work)
        if self.streaming is not None:
            self.num_passes = self.streaming.passes(fits)
        pieces = max(self.options.levels or (0,)) // num_parts
        if pieces > 1:
            each = -(-num_nodes // num_parts), num_edges // num_parts
            check_room(self.budget, work, "an even part", each, pieces)
        plan = Plan(
            input_bytes=self.source.num_bytes,
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_parts=num_parts,
            neighbour_passes=self.num_passes,
            weight_bytes=0 if weight is None else weight.itemsize,
            num_slices=len(self.source.slices),
            num_buckets=num_parts - 1 + -(-num_edges // rows),
            both_ends=self.options.halo == "dgl",
            coarsens=self.streaming is not None and self.streaming.settings is not None and not fits,
        )
        workplace = self.workplace
        if workplace.workers.rank == 0:
            if self.options.progress is not False:
                print(plan.text(self.budget), file=sys.stderr, flush=True)
            already = sum(path.stat().st_size for path in workplace.path.rglob("*") if path.is_file())
            plan.check_disk(workplace.path, already)

    def _placed(self, scan: Scan, links: Links | None, num_nodes: int, weighted: bool, tick: Advance) -> Facts:
        """Write new id and original position of each node; returns what ``ShuffleLayout.of`` takes."""
        assignment = self._assigned(scan, links, num_nodes, tick)
        made = relabel(graph_without_edges(num_nodes, self.name), assignment)
        order = made.node_order[NODE_TYPE]
        folder = self.workplace.folder("nodes")
        np.save(folder / "node_ids.npy", made.node_ids[NODE_TYPE].astype(number_type(num_nodes)))
        np.save(folder / "order.npy", order.astype(number_type(num_nodes)))
        parts, starts = assignment.parts[NODE_TYPE], np.append(made.nodes.starts[:, 0], num_nodes)
        del made
        degrees = scan.degrees("in", num_nodes)
        balance = dict(assignment.balance)  # one that was given keeps what it says of itself
        if self.options.assignment is None:
            for name, weights in (("nodes", np.ones(len(parts), np.int64)), ("edges", degrees)):
                one = Constraints((name,), weights[None], np.zeros(1))
                balance[name] = one.balance(parts, assignment.num_parts)[name]
        degrees = degrees[order]
        del order, parts
        most = self.budget.bucket_rows(self.budget.work_bytes(num_nodes))
        first_nodes, bucket_parts, first_edges = cut_buckets(degrees, starts, most)
        check_largest(degrees, most, "in-edges")
        sizes = np.diff(np.append(0, np.cumsum(degrees))[starts])
        if weighted and not sizes.all():
            raise PartitionError(
                f"part {int(np.argmin(sizes))} of {len(sizes)} owns no edge, but edges have weights: DGL's "
                "servers die on that; use fewer parts or another method"
            )
        return {
            "first_nodes": first_nodes.tolist(),
            "parts": bucket_parts.tolist(),
            "first_edges": first_edges.tolist(),
            "nodes": np.diff(starts).tolist(),
            "edges": sizes.tolist(),
            "position_rows": most,
            "assignment": {"method": assignment.method, "why": assignment.why, "balance": balance},
        }

    def _assigned(self, scan: Scan, links: Links | None, num_nodes: int, tick: Advance) -> Assignment:
        options, num_parts, graph = self.options, self.options.total_parts, graph_without_edges(num_nodes, self.name)
        if links is None or self.streaming is None:
            return options.assigned(graph)
        chosen = self.streaming
        degrees = scan.degrees("in", num_nodes)
        names = METHODS[chosen.method].balance if options.balance is None else options.balance
        rows = [degrees if name == "edges" else np.ones(num_nodes, np.int64) for name in names]
        # by node, as the loops take them: one array for both
        wanted = replace(constraints(graph, names, options.tolerance), weights=np.stack(rows, axis=1).T)
        del degrees, rows
        parts, why = np.zeros(num_nodes, np.int32), AUTO_WHY if options.method == "auto" else "asked for"
        if num_parts > 1:
            level = DiskLevel(links.counts[:], links.others, None, wanted.weights.T)
            if chosen.settings is None:
                rng = np.random.default_rng(options.seed)
                parts = streamed(level, wanted, num_parts, rng, chosen.method, **chosen.options, tick=tick)
            else:
                found = DiskMultilevel(self.workplace, self.budget, wanted, num_parts, chosen.settings, tick)
                parts, how = found.parts(level, options.seed)
                why += f"; {how}"
            del level
        why += finish(Problem(graph, num_parts, wanted), parts, chosen.method, "destination", with_cut=False)
        return Assignment({NODE_TYPE: parts}, num_parts, chosen.method, options.seed, why)

    def _shuffled(self, layout: ShuffleLayout) -> Shuffle:
        workplace = self.workplace
        shuffle = Shuffle(workplace, layout, self.budget, both_ends=self.options.halo == "dgl")
        with reading("moving edges to their parts", layout.edges.total, " edges") as tick:
            node_ids = np.load(workplace.folder("nodes") / "node_ids.npy")
            task = partial(shuffle.slice, source=self.source, node_ids=node_ids, tick=tick)
            del node_ids
            workplace.run("shuffle", len(self.source.slices), task)
            del task
        with reading("ordering edges", layout.edges.total, " edges") as tick:
            order = partial(shuffle.bucket, tick=tick)
            workplace.run("order", len(layout.parts), order, shuffle.loose.remove)  # the unordered edges then
        return shuffle

    def _written(self, shuffle: Shuffle) -> dict[str, Any]:
        """Facts of all files, in the order in which a build in memory writes them."""
        layout, workplace = shuffle.layout, self.workplace
        num_parts = len(layout.nodes.starts)
        with reading("writing the parts", layout.edges.total, " edges") as tick:
            found = workplace.run("part", num_parts, PartFiles(workplace, shuffle, tick).part)
        with reading("writing the id maps", layout.nodes.total + len(FORMS) * layout.edges.total, " ids") as tick:
            files, order = PartFiles(workplace, shuffle, tick), workplace.folder("nodes") / "order.npy"
            found += workplace.run("nodes", 1, lambda _: files.node_maps(np.load(order)))
            found += workplace.run("edges", len(FORMS), lambda index: files.edge_map(FORMS[index]))
        return {name: facts for each in found for name, facts in each.items()}

    def _publish(
        self, pending: PendingFolder, layout: ShuffleLayout, assigned: Mapping[str, Any], facts: Facts
    ) -> None:
        """Move the files to where they become the partition; they stay in the workplace until then."""
        seed = (self.options.assignment or self.options).seed
        assignment = Assignment({}, self.options.total_parts, seed=seed, **assigned)
        num_edges = {type_name(EDGE_TYPE): layout.edges.total}
        made = facts_of(assignment, {NODE_TYPE: layout.nodes.total}, num_edges, {})
        manifest = PartitionManifest(f"{self.name}.json", "destination", self.options.halo, 1, made, files=facts)
        for kind, name in (("node", NODE_TYPE), ("edge", type_name(EDGE_TYPE))):
            manifest.id_maps[kind] = {name: writer.id_map_paths(kind, name)}
        for name in facts:
            target = pending.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.workplace.out / name, target)
        config = writer.dgl_config(
            [NODE_TYPE], [EDGE_TYPE], layout.nodes, layout.edges, self.name, assigned["method"], 1
        )
        writer.finish(FileSet(pending, manifest), config)
        if self.options.levels is not None:
            whole = load(pending.path)
            found, quality = nested_by_parts(
                whole, self.options.levels, self.budget, seed=self.options.seed, num_threads=1
            )
            store_levels(WrittenFiles(pending.path, manifest), by_type(whole, found), quality)
            replace_text(pending.path / NAME, manifest.to_json())
        pending.publish()


def build_streaming(source: Any, options: BuildOptions) -> PartitionedGraph:
    """``partition.build`` of edge files in bounded memory."""
    return Job(source, options).run()


def graph_without_edges(num_nodes: int, name: str, weight: np.dtype | None = None) -> HeteroGraph:
    """The graph's nodes and names alone."""
    none = np.empty(0, np.int64)
    data = {} if weight is None else {EDGE_TYPE: {WEIGHT: np.empty(0, weight)}}
    return HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: (none, none)}, edge_data=data, name=name)


def _described(assignment: Assignment | None) -> str | None:
    """Checksum of a given assignment; None without one."""
    if assignment is None:
        return None
    facts = (assignment.num_parts, assignment.method, assignment.seed, assignment.balance)
    digest = hashlib.sha256(repr(facts).encode())
    for name, parts in assignment.parts.items():
        digest.update(name.encode() + np.ascontiguousarray(parts, np.int32).tobytes())
    return digest.hexdigest()
