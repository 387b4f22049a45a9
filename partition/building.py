"""From any graph to a partition on disk: read, assign, relabel, write, report."""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.storage import json_text, read_json, replace_text, sha256_of
from graph_emb.core.terminal import progress_shown, reading
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.typed import DUPLICATES_KEPT, HeteroGraph
from partition import writer
from partition.assignment import Assignment
from partition.manifest import NAME, TIMINGS, FileSet, PartitionManifest, WrittenFiles, facts_of
from partition.nesting import checked_levels, nested, qualities, store_levels
from partition.options import BuildOptions, with_options
from partition.partitioned import PartitionedGraph, load, pending_partition
from partition.problem import symmetric
from partition.relabel import PartBuilder, relabel, type_name
from partition.trainers import parts_of_trainers, without_trainers

log = logging.getLogger("graph_emb.partition.building")


@with_options
def build(
    graph: Any, num_parts: int | None = None, method: str = "auto", *, out: str | Path, **options: Any
) -> PartitionedGraph:
    """Partition a graph and write it in DGL's distributed format.

    Args:
        graph: A HeteroGraph, or whatever ``graph_emb.load_dataset`` takes: a path, the name of a data set, a
            DGL, networkx or scipy graph.
        num_parts: Parts to make; taken from ``assignment`` when that is given.
        method: A name in ``partition.methods``; ``"auto"`` picks one and says why.
        out: Folder of the partition; it appears when the partition is complete.
        options: The others of ``partition.options.BuildOptions``, which says what each of them does.
    Raises:
        ConfigError: an option is wrong, or ``out`` is taken.
        DataError: the graph cannot be read or written in DGL's format.
        PartitionError: the assignment does not fit the graph.
        CompatError: graphbolt is asked for but is not there.
        OSError: ``out`` cannot be written or the disk is full; nothing is left behind.
    """
    chosen = BuildOptions.of(num_parts=num_parts, method=method, out=out, **options)
    if chosen.memory is None:
        return _build(graph, chosen)
    from partition.streaming.building import build_streaming

    return build_streaming(graph, chosen)


@partial(with_options, without=["assignment"])
def repartition(
    source: str | Path, num_parts: int | None = None, method: str = "auto", *, out: str | Path, **options: Any
) -> PartitionedGraph:
    """Partition the graph of a partition anew; node and edge data move along.

    Original positions and ids stay those of the first input where the source has id maps; a partition that DGL wrote
    without them, or without those of nodes or of edges, counts there as an input in its own order.

    Args:
        source: A partition that ``build`` or DGL wrote.
        num_parts, method, out: As for ``build``.
        options: The other options of ``build``, without ``assignment``.
    Raises:
        What ``build`` raises.
    """
    whole = load(source)
    without = [f"{kind}s" for kind in ("node", "edge") if not whole.has_id_map(kind)]
    if without:
        log.warning(
            "%s has no id maps of its %s: their 'original' ids in the new partition are the ids in this one",
            whole.path,
            " and ".join(without),
        )
    return build(without_trainers(whole.to_graph()), num_parts, method, out=out, **options)


def refine(
    source: str | Path,
    levels: Sequence[int],
    *,
    seed: int = 0,
    num_threads: int | None = None,
    memory: str | int | None = None,
) -> PartitionedGraph:
    """Add levels to a partition that exists, or put others in their place; nothing else of it changes.

    Args:
        source: A partition that ``build`` wrote, all of whose parts are here.
        levels, seed, num_threads: As for ``build``.
        memory: What this process may hold, such as ``"2GB"``: parts are then split one by one. None: the whole graph.
    Returns:
        The partition, opened again.
    Raises:
        ConfigError: levels that do not fit the number of parts, or a part does not fit into ``memory``.
        DataError: DGL wrote the partition, without a manifest, or a part is missing.
    """
    whole = load(source)
    if whole.manifest is None:
        raise DataError(f"{whole.path}: DGL wrote this partition; `python -m partition repartition` gives it levels")
    checked_levels(levels, whole.num_parts, whole.num_nodes())
    before = whole.manifest.made.get("levels", {}).get("file")
    files = WrittenFiles(whole.path, whole.manifest)
    nesting: dict[str, Any] = {"seed": seed, "num_threads": num_threads}
    if memory is None:
        orders = {ntype: whole.node_map(ntype) for ntype in whole.ntypes}
        write_levels(files, whole.to_graph(), whole.assignment(), levels, orders, **nesting)
    else:
        from partition.streaming.nesting import by_type, nested_by_parts
        from partition.streaming.source import Budget

        found, quality = nested_by_parts(whole, levels, Budget.of(memory, multilevel=True), **nesting)
        store_levels(files, by_type(whole, found), quality)
    if before not in (None, whole.manifest.made["levels"]["file"]):
        del whole.manifest.files[before]
        replace_text(whole.path / NAME, whole.manifest.to_json())
        (whole.path / before).unlink(missing_ok=True)
    else:
        replace_text(whole.path / NAME, whole.manifest.to_json())
    return load(whole.path)


def write_levels(
    files: FileSet | WrittenFiles,
    graph: HeteroGraph,
    assignment: Assignment,
    levels: Sequence[int],
    orders: Mapping[str, np.ndarray],
    **options: Any,
) -> None:
    """Make the levels of a partition and write the nodes' parts, by type in partition order.

    Args:
        assignment: Where it has parts of these levels already, those are written.
        orders: Original position of each partition-order id, by node type.
        options: Of ``nested``.
    """
    if tuple(levels) == assignment.level_sizes:
        found = np.concatenate(list(assignment.levels.values()))
        threads, weights = thread_count(options.get("num_threads")), options.get("relation_weights")
        quality = qualities(symmetric(graph, num_threads=threads, relation_weights=weights), found, levels)
    else:
        found, quality = nested(graph, levels, assignment.homogeneous(), assignment.num_parts, **options)
    tensors = {}
    for ntype, start in graph.node_offsets.items():
        tensors[ntype] = np.ascontiguousarray(found[start : start + graph.num_nodes[ntype]][orders[ntype]])
    store_levels(files, tensors, quality)


def _build(source: Any, options: BuildOptions) -> PartitionedGraph:
    pending = pending_partition(options.out, overwrite=options.overwrite)
    with progress_shown(options.progress), pending as folder:
        graph = _read(source, options)
        writer.check_names(graph, writer.TAKEN_NAMES)
        folder.check_space(writer.estimated_bytes(graph))
        if options.levels is not None:
            checked_levels(options.levels, options.total_parts, graph.total_nodes)
        graph, assignment = parts_of_trainers(graph, options)
        num_edges = {type_name(etype): len(src) for etype, (src, _) in graph.edges.items()}
        # duplicates that are kept change nothing, and a streaming build does not count them
        changes = {what: number for what, number in graph.counts.items() if what != DUPLICATES_KEPT}
        facts = facts_of(
            assignment, graph.num_nodes, num_edges, changes, symmetric=graph.symmetric, repeats=graph.repeats
        )
        manifest = PartitionManifest(f"{graph.name}.json", options.edge_owner, options.halo, options.num_hops, facts)
        files = FileSet(folder, manifest)
        made = relabel(graph, assignment, options.edge_owner, num_threads=options.num_threads)
        levels = options.levels or assignment.level_sizes
        if levels:
            orders = {ntype: order for ntype, order in made.kinds["node"][1].items()}
            weights = (options.method_options or {}).get("relation_weights")
            nesting = {"seed": options.seed, "num_threads": options.num_threads, "relation_weights": weights}
            write_levels(files, graph, assignment, levels, orders, **nesting)
        if not options.allow_empty:
            writer.check_no_empty_features(made)
        builder = PartBuilder(made, halo=options.halo, num_hops=options.num_hops, num_threads=options.num_threads)
        # once in the parts and once in the id maps, side by side: they share nothing
        with (
            reading("writing the parts", 2 * made.edges.total + made.nodes.total, " rows") as tick,
            ThreadPool(thread_count(options.num_threads)) as threads,
        ):
            threads.run(
                [
                    partial(writer.write_parts, files, builder, tick, options.formats),
                    partial(writer.write_id_maps, files, made, tick),
                ]
            )
        writer.write_relation_names(files, graph.relation_names)
        writer.write_held_out(files, graph)
        config = writer.dgl_config(
            graph.ntypes, graph.etypes, made.nodes, made.edges, graph.name, assignment.method, options.num_hops
        )
        del made, builder  # the report needs memory of its own
        if options.report is not False:
            _write_report(files, graph, assignment, options)
        if options.graphbolt:
            config = _add_graphbolt(files, config)
        writer.finish(files, config)
        return load(folder.publish())


def _read(source: Any, options: BuildOptions) -> HeteroGraph:
    if not isinstance(source, HeteroGraph):
        from graph_emb.graph.datasets import read_source

        return read_source(source, name=options.name, progress=options.progress, **(options.reader_options or {}))
    if options.reader_options:
        raise ConfigError(f"reader_options {sorted(options.reader_options)} have no effect on a graph in memory")
    return source if options.name in (None, source.name) else replace(source, name=options.name)


def _write_report(files: FileSet, graph: HeteroGraph, assignment: Assignment, options: BuildOptions) -> None:
    from partition.report import report, to_html

    began = time.perf_counter()
    levels = files.manifest.made.get("levels", {}).get("of", ())
    found = report(graph, assignment, edge_owner=options.edge_owner, levels=levels, progress=options.progress)
    files.write_text("report.json", found.to_json())
    files.write_text("report.html", to_html(found))
    timings = {
        "assign_seconds": assignment.seconds,
        "assign_peak_bytes": assignment.peak_bytes,
        "report_seconds": time.perf_counter() - began,
    }
    files.write_unlisted(TIMINGS, json_text(timings))


def _add_graphbolt(files: FileSet, config: dict[str, Any]) -> dict[str, Any]:
    """Let DGL add its sampling graphs; returns its version of the JSON."""
    convert = importlib.import_module("dgl.distributed.partition").dgl_partition_to_graphbolt
    draft = files.folder.path / ".graphbolt.json"
    draft.write_text(json.dumps(config), encoding="utf-8")
    convert(str(draft), store_eids=True, store_inner_node=True, store_inner_edge=True)
    config = read_json(draft)
    draft.unlink()
    for part in range(config["num_parts"]):
        name = config[f"part-{part}"]["part_graph_graphbolt"]
        path = files.folder.path / name
        files.manifest.files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return config
