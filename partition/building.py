"""From any graph to a partition on disk: read, assign, relabel, write, report."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from graph_emb.core.errors import CompatError, ConfigError, unknown_name
from graph_emb.core.progress import progress_shown, reading
from graph_emb.core.storage import PendingFolder
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.halo import Halo, PartBuilder, check_layout
from partition.manifest import FileSet, PartitionManifest
from partition.partitioned import PartitionedGraph, check_replaceable, load
from partition.relabel import relabel
from partition.writer import (
    Writer,
    check_config_name,
    check_names,
    check_no_empty_features,
    dgl_config,
    estimated_bytes,
    finish,
)

ASSIGN_ARGUMENTS = {
    "graph": "GRAPH",
    "num_parts": "--parts",
    "method": "--method",
    "balance": "--balance",
    "tolerance": "--tolerance",
    "seed": "--seed",
    "num_threads": "--threads",
    "edge_owner": "--edge-owner",
}
"""What ``partition.methods.assign`` takes besides options, and its flag."""
READ_ARGUMENTS = {"source": "GRAPH", "progress": "--quiet"}
"""The same of ``graph_emb.graph.readers.read_graph``; ``build`` has ``name`` too."""


def build(
    graph: Any,
    num_parts: int | None = None,
    method: str = "auto",
    *,
    out: str | Path,
    name: str | None = None,
    assignment: Assignment | None = None,
    balance: Sequence[str] | None = None,
    tolerance: float | Mapping[str, float] | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    method_options: Mapping[str, Any] | None = None,
    reader_options: Mapping[str, Any] | None = None,
    edge_owner: EdgeOwner = "destination",
    halo: Halo = "dgl",
    num_hops: int = 1,
    graphbolt: bool = False,
    allow_empty: bool = False,
    report: bool | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> PartitionedGraph:
    """Partition a graph and write it in DGL's distributed format.

    Args:
        graph: A HeteroGraph, or whatever ``readers.read_graph`` takes: a path, an OGB name, a DGL, networkx or
            scipy graph.
        num_parts: Parts to make; taken from ``assignment`` when that is given.
        method: A name in ``partition.methods``; ``"auto"`` picks one and says why.
        out: Folder of the partition; it appears when the partition is complete.
        name: The graph's name in DGL; default: the graph's own.
        assignment: Use this instead of a method; the options of methods are then refused, and a seed other than 0.
        balance, tolerance, seed: See ``partition.methods.assign``.
        num_threads: Of every step; changes the time, not the result. None: all that this process may use.
        method_options: Of the method, and ``relation_weights``.
        reader_options: Passed to ``graph_emb.graph.readers.read_graph``.
        edge_owner: ``"destination"``, ``"source"`` or ``"balanced"``, see ``partition.relabel.relabel``.
        halo, num_hops: See ``partition.halo.PartBuilder``.
        graphbolt: Add the sampling graphs of ``dgl.graphbolt``.
        allow_empty: Accept a part without rows of a type that has data; DGL's servers do not.
        report: Write report.json and report.html; None: unless ``memory`` is given, as the report needs the graph.
        memory: What this process may hold, such as ``"2GB"``: the edges of ``graph``, a path to edge lists with
            integer ids, are then never all in memory, and ``"auto"`` is ``"ldg"``. Under torchrun every worker must
            call, and each may hold as much. See ``docs/concepts/partition-streaming.md``.
        overwrite: Replace a partition that is in ``out``.
        progress: Show bars for what lasts longer than two seconds; None: where standard error is a terminal.
    Raises:
        ConfigError: an option is wrong, or ``out`` is taken.
        DataError: the graph cannot be read or written in DGL's format.
        PartitionError: the assignment does not fit the graph.
        CompatError: graphbolt is asked for but is not there.
        OSError: ``out`` cannot be written or the disk is full; nothing is left behind.
    """
    from partition.methods import assign

    # all of it now, not after an hour of reading and assigning
    if graphbolt:
        check_graphbolt()
    check_layout(halo, num_hops)
    refuse_arguments("method_options", method_options, ASSIGN_ARGUMENTS)
    refuse_arguments("reader_options", reader_options, {**READ_ARGUMENTS, "name": "--name"})
    if edge_owner not in get_args(EdgeOwner):
        raise unknown_name("edge owner", edge_owner, get_args(EdgeOwner))
    if num_parts is None and assignment is None:
        raise ConfigError("num_parts is missing; give the number of parts or an assignment")
    chosen = {"balance": balance, "tolerance": tolerance}
    if assignment is not None:
        _check_assigned(
            assignment,
            num_parts,
            {"method": None if method == "auto" else method, "seed": seed or None, **chosen},
            method_options,
        )
    if memory is not None:
        from partition.streaming.building import build_streaming
        from partition.streaming.placing import Request

        _check_streamed(report, edge_owner, num_hops, graphbolt, allow_empty)
        if num_threads is not None:
            raise ConfigError(f"num_threads={num_threads}: memory= works with one thread; start workers by torchrun")
        parts = num_parts if assignment is None else assignment.num_parts
        assert parts is not None
        names = None if balance is None else tuple(balance)
        request = Request(parts, method, seed, names, tolerance, dict(method_options or {}), assignment)
        return build_streaming(
            graph,
            request,
            memory=memory,
            out=out,
            name=name,
            reader_options=reader_options,
            halo=halo,
            overwrite=overwrite,
            progress=progress,
        )
    with progress_shown(progress), PendingFolder(out, partial(check_replaceable, overwrite=overwrite)) as folder:
        graph = _read(graph, name, reader_options, progress)
        check_config_name(graph.name)
        check_names(graph, graph.name)
        folder.check_space(estimated_bytes(graph))
        if assignment is None:
            assert num_parts is not None
            options = {**chosen, "num_threads": num_threads, **(method_options or {})}
            assignment = assign(graph, num_parts, method, seed=seed, edge_owner=edge_owner, **options)
        manifest = PartitionManifest(f"{graph.name}.json", edge_owner, halo, num_hops, facts(graph, assignment))
        files = FileSet(folder, manifest)
        made = relabel(graph, assignment, edge_owner, num_threads=num_threads)
        if not allow_empty:
            check_no_empty_features(made)
        builder = PartBuilder(made, halo=halo, num_hops=num_hops, num_threads=num_threads)
        write_parts(files, builder, num_threads)
        del builder
        config = dgl_config(made, graph.name, assignment.method, num_hops)
        del made  # the report needs memory of its own
        if report is not False:
            _write_report(files, graph, assignment, edge_owner, progress)
        if graphbolt:
            config = _add_graphbolt(folder.path, files, config)
        finish(files, config)
        return load(folder.publish())


def write_parts(files: FileSet, builder: PartBuilder, num_threads: int | None = None) -> None:
    """The files of every part and the id maps, which have nothing to do with each other."""
    made = builder.relabelled
    # once in the parts and once in the id maps
    with reading("writing the parts", 2 * made.edges.total + made.nodes.total, " rows") as tick:
        writer = Writer(files, made, tick)
        with ThreadPool(thread_count(num_threads)) as threads:
            threads.run([partial(writer.write_parts, builder), writer.write_id_maps])
        writer.write_relation_names()


def facts(graph: HeteroGraph, assignment: Assignment) -> dict[str, Any]:
    """How a partition was made, for its manifest; no times, so that equal partitions have equal bytes."""
    return {
        "method": assignment.method,
        "why": assignment.why,
        "seed": assignment.seed,
        "num_parts": assignment.num_parts,
        "balance": {key: float(value) for key, value in assignment.balance.items()},
        "num_nodes": dict(graph.num_nodes),
        "num_edges": {":".join(etype): len(src) for etype, (src, _) in graph.edges.items()},
        "reader": dict(graph.counts),
    }


def refuse_arguments(what: str, options: Mapping[str, Any] | None, arguments: Mapping[str, str]) -> None:
    """Raise a ConfigError for an option that is an argument of its own: one of both would win in silence, or collide.

    Args:
        what: What the options are called.
        arguments: Their names, each with its flag on the command line.
    """
    for name in options or {}:
        if name in arguments:
            place = f"{arguments[name]} on the command line"
            raise ConfigError(f"{what}: {name!r} is an argument of its own, {place}; give it there")


def check_graphbolt() -> None:
    """Raise a CompatError unless ``dgl.graphbolt`` works here."""
    from graph_emb.compat import dgl as compat_dgl
    from graph_emb.compat.graphbolt import StubModule

    version = compat_dgl.load().__version__
    try:
        found = importlib.import_module("dgl.graphbolt")
    except ImportError as error:
        raise CompatError(f"graphbolt of dgl {version}: {error}; build the partition without it") from error
    if isinstance(found, StubModule):
        raise CompatError(f"graphbolt of dgl {version}: {found.reason}; build the partition without it")


def _read(graph: Any, name: str | None, options: Mapping[str, Any] | None, progress: bool | None) -> HeteroGraph:
    if not isinstance(graph, HeteroGraph):
        from graph_emb.graph.readers import read_graph

        return read_graph(graph, name=name, progress=progress, **(options or {}))
    if options:
        raise ConfigError(f"reader_options {sorted(options)} have no effect on a graph in memory")
    if name is None or name == graph.name:
        return graph
    from dataclasses import replace

    return replace(graph, name=name)


def _check_assigned(
    assignment: Assignment, num_parts: int | None, chosen: Mapping[str, Any], options: Mapping[str, Any] | None
) -> None:
    """Refuse what would have no effect beside a given assignment."""
    if num_parts not in (None, assignment.num_parts):
        raise ConfigError(f"num_parts is {num_parts} but the assignment has {assignment.num_parts} parts")
    idle = [name for name, value in {**chosen, **(options or {})}.items() if value is not None]
    if idle:
        raise ConfigError(f"{idle[0]} has no effect on parts that are given; leave it or the assignment out")


def _check_streamed(report: bool | None, edge_owner: str, num_hops: int, graphbolt: bool, allow_empty: bool) -> None:
    """Refuse what needs the whole graph in memory."""
    refused = {
        "report=True": report,
        f"edge_owner={edge_owner!r}": edge_owner != "destination",
        f"num_hops={num_hops}": num_hops != 1,
        "graphbolt=True": graphbolt,
        "allow_empty=True": allow_empty,
    }
    for option, given in refused.items():
        if given:
            raise ConfigError(f"{option} needs the whole graph in memory; leave out it or memory")


def _write_report(
    files: FileSet, graph: HeteroGraph, assignment: Assignment, edge_owner: EdgeOwner, progress: bool | None
) -> None:
    from partition.report import report, to_html

    found = report(graph, assignment, edge_owner=edge_owner, progress=progress)
    files.write_text("report.json", found.to_json())
    files.write_text("report.html", to_html(found))


def _add_graphbolt(path: Path, files: FileSet, config: dict[str, Any]) -> dict[str, Any]:
    """Let DGL add its sampling graphs; returns its version of the JSON."""
    import json

    from partition.manifest import read_json, sha256_of

    convert = importlib.import_module("dgl.distributed.partition").dgl_partition_to_graphbolt
    draft = path / ".graphbolt.json"
    draft.write_text(json.dumps(config), encoding="utf-8")
    convert(str(draft), store_eids=True, store_inner_node=True, store_inner_edge=True)
    config = read_json(draft)
    draft.unlink()
    for part in range(config["num_parts"]):
        name = config[f"part-{part}"]["part_graph_graphbolt"]
        made = path / name
        files.manifest.files[name] = {"bytes": made.stat().st_size, "sha256": sha256_of(made)}
    return config
