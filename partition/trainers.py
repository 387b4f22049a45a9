"""The trainer of each node and edge within its part, as ``dgl.distributed.partition_graph`` gives them.

Legend: N trainers of a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import thread_count
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment
from partition.options import BuildOptions

TRAINER = "trainer_id"
"""DGL's name of the column: part * N + trainer, int64."""


def parts_of_trainers(graph: HeteroGraph, options: BuildOptions) -> tuple[HeteroGraph, Assignment]:
    """The parts of a build; of several trainers per machine from a piece for each, with the graph that names them.

    Types of which a part has no row get no column: DGL's servers die where a part has data of no rows.
    """
    number = options.num_trainers_per_machine
    if number > 1 and options.total_parts * number > graph.total_nodes:
        raise ConfigError(
            f"{options.total_parts} parts of {number} trainers are {options.total_parts * number} pieces of "
            f"{graph.total_nodes} nodes; use fewer"
        )
    pieces = options.assigned(graph, number)
    if number == 1:
        return graph, pieces
    from partition.methods.base import constraints

    nodes = {ntype: parts.astype(np.int64) for ntype, parts in pieces.parts.items()}
    side = 1 if options.edge_owner == "destination" else 0
    edges = {etype: nodes[etype[2 * side]][ends[side]] for etype, ends in graph.edges.items()}
    parts = np.arange(options.total_parts)
    node_data = {ntype: dict(graph.node_data.get(ntype, {})) for ntype in graph.ntypes}
    edge_data = {etype: dict(graph.edge_data.get(etype, {})) for etype in graph.etypes}
    for ntype, ids in nodes.items():
        if np.isin(parts, ids // number).all():
            node_data[ntype][TRAINER] = ids
    for etype, ids in edges.items():
        if np.isin(parts, ids // number).all():
            edge_data[etype][TRAINER] = ids
    named = replace(graph, node_data=node_data, edge_data=edge_data)
    made = replace(
        pieces,
        parts={ntype: parts // np.int32(number) for ntype, parts in pieces.parts.items()},
        num_parts=pieces.num_parts // number,
        why=f"{pieces.why}; {number} trainers in each part",
    )
    threads = thread_count(options.num_threads)
    weights = constraints(graph, tuple(pieces.balance), edge_owner=options.edge_owner, num_threads=threads)
    return named, replace(made, balance=weights.balance(made.homogeneous(), made.num_parts))


def without_trainers(graph: HeteroGraph) -> HeteroGraph:
    """A graph without the trainers that an earlier partition gave."""
    node_data = {ntype: _without(columns) for ntype, columns in graph.node_data.items()}
    edge_data = {etype: _without(columns) for etype, columns in graph.edge_data.items()}
    return replace(graph, node_data=node_data, edge_data=edge_data)


def _without(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in columns.items() if name != TRAINER}
