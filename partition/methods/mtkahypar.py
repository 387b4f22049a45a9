"""Mt-KaHyPar: one constraint, the best cuts, much time and memory."""

from __future__ import annotations

import numpy as np

from graph_emb.core.errors import unknown_name
from partition.methods.base import Problem, method, one_only
from partition.methods.external import edge_weights, load, single_constraint

PRESETS = ("deterministic", "deterministic_quality")
"""Those that give the same parts on any number of threads; Mt-KaHyPar 1.7 gives them for every seed: none is taken."""


@method("mtkahypar", seeded=False, refusal=one_only, balance=("nodes",))
def mtkahypar(problem: Problem, *, preset: str = "deterministic") -> np.ndarray:
    """``graph.partition`` of the mtkahypar package.

    Args:
        preset: ``"deterministic"`` or ``"deterministic_quality"``.
    Raises:
        CompatError: mtkahypar is not installed.
        ConfigError: another preset.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    package = load("mtkahypar")
    weights, tolerance = single_constraint(problem)
    adjacency = problem.adjacency
    sources = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    once = sources < adjacency.indices
    edges = list(zip(sources[once].tolist(), adjacency.indices[once].tolist(), strict=True))
    solver = package.initialize(problem.num_threads, False)  # False: no warning that an earlier call has done so
    context = solver.context_from_preset(getattr(package.PresetType, preset.upper()))
    context.set_partitioning_parameters(problem.num_parts, tolerance, package.Objective.CUT)
    context.logging = False
    costs = edge_weights(problem)[once].tolist()
    graph = solver.create_graph(context, adjacency.num_nodes, len(edges), edges, weights.tolist(), costs)
    made = graph.partition(context)
    return np.array([made.block_id(node) for node in range(adjacency.num_nodes)], np.int32)
