"""A build in bounded memory: scan, assign, shuffle, order, write, each step restartable and shared by workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.progress import progress_shown, reading
from graph_emb.core.storage import PendingFolder
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from partition.assignment import Assignment
from partition.manifest import FileSet, PartitionManifest, facts_of
from partition.options import BuildOptions
from partition.partitioned import PartitionedGraph, load, pending_partition
from partition.streaming.edges import Shuffle, ShuffleLayout
from partition.streaming.links import Links
from partition.streaming.parts import PartFiles
from partition.streaming.placing import (
    Placing,
    check_method,
    described,
    graph_without_edges,
    layout_of,
    num_passes,
    streaming_method,
)
from partition.streaming.plan import Budget, Plan
from partition.streaming.scan import Scan
from partition.streaming.shared_stages import Removed, Workers, Workplace
from partition.streaming.source import EdgeSource
from partition.writer import check_config_name, check_names, dgl_config, finish, id_map_paths, type_name

TEMPORARY_VERSION = 1
"""Of the temporary files; those of another version are thrown away."""
FORMS = ("to_original", "to_partition", "parquet")


@dataclass
class Job:
    """One build out of memory.

    Attributes:
        source: The edges.
        options: Those of the build.
        budget: The limit on memory of each worker.
        name: The graph's name in DGL.
    """

    source: EdgeSource
    options: BuildOptions
    budget: Budget
    name: str

    def run(self) -> PartitionedGraph:
        """The finished partition; what a killed run has left is used.

        Raises:
            As ``partition.build``.
        """
        workers = Workers.of_environment()
        with ExitStack() as stack:
            stack.enter_context(progress_shown(self.options.progress if workers.rank == 0 else False))
            place = Path(os.path.realpath(Path(self.options.out).expanduser()))
            pending = None
            if workers.rank == 0:
                pending = stack.enter_context(pending_partition(place, overwrite=self.options.overwrite))
            workplace = Workplace(place, self._facts(), workers)
            try:
                self._run(workplace, pending)
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
            workplace.wait_removed()
        return load(place)

    def _facts(self) -> dict[str, Any]:
        """All that the files depend on."""
        options = self.options
        return {
            **self.source.facts(),
            "request": [options.total_parts, options.method, options.seed, options.balance],
            "options": [options.tolerance, options.method_options, described(options.assignment)],
            "memory": self.budget.memory,
            "layout": [self.name, options.halo, TEMPORARY_VERSION],
        }

    def _run(self, workplace: Workplace, pending: PendingFolder | None) -> None:
        source, budget = self.source, self.budget
        with reading("counting edges and nodes", None, " edges") as tick:
            scan = Scan(source, workplace, budget, tick)
            slices = workplace.run("scan", len(source.slices), scan.slice)
        num_nodes, num_edges = max(found["num_nodes"] for found in slices), sum(found["rows"] for found in slices)
        num_nodes = source.options.id_limit or num_nodes
        self._check_counts(num_nodes, slices)
        weight = np.dtype(slices[0]["dtype"]) if any(found["weighted"] for found in slices) else None
        check_names(graph_without_edges(num_nodes, self.name, weight), self.name)
        workplace.run("gaps", 1, lambda _: scan.check_no_gaps(num_nodes))
        self._check_plan(workplace, num_nodes, num_edges, weight)
        placing = self._placing(workplace, scan, num_nodes, num_edges)

        def place(_: int) -> dict[str, Any]:
            with reading("assigning nodes", num_nodes * num_passes(self.options), " nodes") as tick:
                return placing.place(num_nodes, weight is not None, tick)

        placed = workplace.run("place", 1, place)[0]
        layout = layout_of(placed, [found["rows"] for found in slices], weight)
        shuffle = self._shuffled(workplace, layout, placing)
        facts = self._written(workplace, shuffle, placing)
        if pending is not None:
            workplace.wait_arrived()
            self._publish(workplace, pending, layout, placed["assignment"], facts)

    def _placing(self, workplace: Workplace, scan: Scan, num_nodes: int, num_edges: int) -> Placing:
        links = None
        if streaming_method(self.options) is not None:
            with reading("grouping neighbours", num_edges, " edges") as tick:
                links = Links(workplace, self.source, self.budget, num_nodes, tick)
                links.run(partial(scan.degrees, num_nodes=num_nodes))
        return Placing(workplace, self.options, self.budget, scan, self.name, links)

    def _check_counts(self, num_nodes: int, slices: Iterable[Mapping[str, Any]]) -> None:
        num_parts, given = self.options.total_parts, self.options.assignment
        if num_parts < 1 or num_parts > num_nodes:
            raise ConfigError(f"num_parts is {num_parts}; it must lie in 1 .. {num_nodes}, the number of nodes")
        if given is not None and len(given.parts.get(NODE_TYPE, ())) != num_nodes:
            raise PartitionError(
                f"the assignment has {len(given.parts.get(NODE_TYPE, ()))} nodes of type {NODE_TYPE!r}; the graph has "
                f"{num_nodes}"
            )
        if len({found["dtype"] for found in slices}) > 1:
            raise ConfigError(f"{self.source.path}: only some files have weights; add them or say weights='ignore'")

    def _check_plan(self, workplace: Workplace, num_nodes: int, num_edges: int, weight: np.dtype | None) -> None:
        rows = self.budget.bucket_rows(self.budget.work_bytes(num_nodes))
        plan = Plan(
            input_bytes=self.source.num_bytes,
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_parts=self.options.total_parts,
            neighbour_passes=num_passes(self.options),
            weight_bytes=0 if weight is None else weight.itemsize,
            num_slices=len(self.source.slices),
            num_buckets=self.options.total_parts - 1 + -(-num_edges // rows),
            both_ends=self.options.halo == "dgl",
        )
        if workplace.workers.rank == 0:
            if self.options.progress is not False:
                print(plan.text(self.budget), file=sys.stderr, flush=True)
            already = sum(path.stat().st_size for path in workplace.path.rglob("*") if path.is_file())
            plan.check_disk(workplace.path, already)

    def _shuffled(self, workplace: Workplace, layout: ShuffleLayout, placing: Placing) -> Shuffle:
        shuffle = Shuffle(workplace, layout, self.budget, both_ends=self.options.halo == "dgl")
        with reading("moving edges to their parts", layout.edges.total, " edges") as tick:
            task = partial(shuffle.slice, source=self.source, node_ids=placing.node_ids(), tick=tick)
            workplace.run("shuffle", len(self.source.slices), task)
            del task
        with reading("ordering edges", layout.edges.total, " edges") as tick:
            workplace.run("order", layout.num_buckets, lambda bucket: shuffle.bucket(bucket, tick), shuffle.remove_runs)
        return shuffle

    def _written(self, workplace: Workplace, shuffle: Shuffle, placing: Placing) -> dict[str, Any]:
        """Facts of all files, in the order in which a build in memory writes them."""
        layout = shuffle.layout
        num_parts = len(layout.nodes.starts)
        with reading("writing the parts", layout.edges.total, " edges") as tick:
            files = PartFiles(workplace, shuffle, tick)
            found = workplace.run("part", num_parts, files.part)
        with reading("writing the id maps", layout.nodes.total + len(FORMS) * layout.edges.total, " ids") as tick:
            files = PartFiles(workplace, shuffle, tick)
            found += workplace.run("nodes", 1, lambda _: files.node_maps(placing.order()))
            found += workplace.run("edges", len(FORMS), lambda index: files.edge_map(FORMS[index]))
        return {name: facts for each in found for name, facts in each.items()}

    def _publish(
        self,
        workplace: Workplace,
        pending: PendingFolder,
        layout: ShuffleLayout,
        assigned: Mapping[str, Any],
        facts: dict[str, Any],
    ) -> None:
        """Move the files to where they become the partition; they stay in the workplace until then."""
        seed = (self.options.assignment or self.options).seed
        assignment = Assignment({}, self.options.total_parts, seed=seed, **assigned)
        num_edges = {type_name(EDGE_TYPE): layout.edges.total}
        made = facts_of(assignment, {NODE_TYPE: layout.nodes.total}, num_edges, {})
        manifest = PartitionManifest(f"{self.name}.json", "destination", self.options.halo, 1, made, files=facts)
        for kind, name in (("node", NODE_TYPE), ("edge", type_name(EDGE_TYPE))):
            manifest.id_maps[kind] = {name: id_map_paths(kind, name)}
        for name in facts:
            target = pending.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(workplace.out / name, target)
        config = dgl_config([NODE_TYPE], [EDGE_TYPE], layout.nodes, layout.edges, self.name, assigned["method"], 1)
        finish(FileSet(pending, manifest), config)
        pending.publish()


def build_streaming(source: Any, options: BuildOptions) -> PartitionedGraph:
    """``partition.build`` of edge files in bounded memory."""
    check_method(options)
    assert options.memory is not None
    edges = EdgeSource(source, options.reader_options)
    name = options.name or edges.name
    check_config_name(name)
    check_names(graph_without_edges(1, name), name)
    return Job(edges, options, Budget.of(options.memory), name).run()
