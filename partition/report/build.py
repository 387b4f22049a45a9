"""The one function that makes a report."""

# N nodes, P parts

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import progress_shown
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.report.flat import FlatGraph
from partition.report.forecast import forecast_walks
from partition.report.metrics import measure_cut
from partition.report.report import PartitionReport, Quality
from partition.report.sampling import forecast_samples
from partition.vertex_cut import vertex_cut


@dataclass(frozen=True)
class ForecastOptions:
    """The training that the forecasts assume.

    Attributes:
        walk_length: Nodes of a walk, the start included.
        fanouts: Sampled in-edges of a node and edge type, those of the seeds first.
        batch_size: Seeds of a batch.
        vertex_cut: Also run HDRF on the edges and tell its replication, which wins on graphs with hubs.
    Raises:
        ConfigError: a number is below 1.
    """

    walk_length: int = 40
    fanouts: tuple[int, ...] = (25, 10)
    batch_size: int = 1024
    vertex_cut: bool = False

    def __post_init__(self) -> None:
        numbers = {"walk_length": self.walk_length, "batch_size": self.batch_size}
        numbers |= {f"fanouts[{hop}]": fanout for hop, fanout in enumerate(self.fanouts)}
        for option, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
        if not self.fanouts:
            raise ConfigError("fanouts is empty: give one number for each hop, such as (25, 10)")


DEFAULTS = ForecastOptions()


def report(
    graph: HeteroGraph,
    assignment: Assignment,
    recipe: ForecastOptions = DEFAULTS,
    *,
    edge_owner: EdgeOwner = "destination",
    progress: bool | None = None,
) -> PartitionReport:
    """Measure an assignment of a graph, and a random one with parts of equal size.

    Memory: a byte for each node and part, four bytes an edge (twelve for ``"balanced"``), and up to 256 bytes a node.

    Args:
        edge_owner: Which edges are a part's own, see ``partition.vertex_cut.edge_owner``; the random parts' too.
        progress: Whether forecasts of more than two seconds show a bar; None: where standard error is a terminal.
    Raises:
        PartitionError: the assignment does not fit the graph.
    """
    assignment.check(graph)
    flat = FlatGraph(graph)
    dealt = random_parts(flat, assignment.num_parts, assignment.seed)
    with progress_shown(progress):
        both = [flat.parts_of(assignment), dealt]
        given, random = measure(flat, both, assignment.num_parts, recipe, edge_owner)
    streamed = vertex_cut(graph, assignment.num_parts) if recipe.vertex_cut and graph.total_edges else None
    return PartitionReport(
        name=graph.name,
        num_nodes=dict(graph.num_nodes),
        num_edges={":".join(etype): len(src) for etype, (src, _) in graph.edges.items()},
        counts=dict(graph.counts),
        num_parts=assignment.num_parts,
        method=assignment.method,
        why=assignment.why,
        seed=assignment.seed,
        given=given,
        random=random,
        walk_length=recipe.walk_length,
        fanouts=tuple(recipe.fanouts),
        batch_size=recipe.batch_size,
        is_weighted=flat.weights is not None,
        seeds="train nodes" if not flat.seeds.all() else "all nodes",
        vertex_cut=None
        if streamed is None
        else {"replication_factor": streamed.replication_factor, "edge_balance": streamed.edge_balance},
    )


def measure(
    flat: FlatGraph, parts: Sequence[np.ndarray], num_parts: int, recipe: ForecastOptions, edge_owner: EdgeOwner
) -> list[Quality]:
    """Counts and forecasts of several assignments, each (N,) parts, in shared passes over the edges."""
    walks = forecast_walks(flat, parts, num_parts, recipe.walk_length)
    hops = forecast_samples(flat, parts, num_parts, tuple(recipe.fanouts), recipe.batch_size)
    cuts = [measure_cut(flat, own, num_parts, edge_owner) for own in parts]
    return [Quality(*each) for each in zip(cuts, walks, hops, strict=True)]


def random_parts(flat: FlatGraph, num_parts: int, seed: int) -> np.ndarray:
    """Parts of equal size in each node type, drawn at random, (N,), int32: what a report compares with."""
    stream = np.random.default_rng([seed & (2**64 - 1), num_parts])
    parts = np.empty(flat.num_nodes, np.int32)
    for own in flat.types.values():
        parts[own] = stream.permutation(np.arange(own.stop - own.start, dtype=np.int32) % num_parts)
    return parts
