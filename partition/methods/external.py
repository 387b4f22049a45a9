"""Partitioners of other packages: DGL's METIS, and three for one constraint each.

KaMinPar: fast, little memory; its Python package reads graphs from files only. Mt-KaHyPar: the best cuts, much time and
memory. METIS by pymetis: edge weights, a seed and a tolerance.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from graph_emb.core.errors import CompatError, ConfigError, PartitionError, unknown_name
from graph_emb.core.hidden import scratch_folder
from partition.methods.base import Problem, method, one_only

PRESETS = ("deterministic", "deterministic_quality")
"""Presets of Mt-KaHyPar with the same parts on any number of threads; its 1.7 ignores the seed then: none is taken."""


def _refusal_of_metis(names: Sequence[str]) -> str:
    types = [name for name in names if name.startswith("type:") or name == "types"]
    other = [name for name in names if name not in ("nodes", "edges") and name not in types]
    if other:
        return f"DGL's call knows nodes, node types and edges, not {', '.join(other)}; try multilevel"
    return "" if names else "it always balances nodes; give nodes"


@method("metis", refusal=_refusal_of_metis, seeded=False, weighted=False)
def metis(problem: Problem) -> np.ndarray:
    """``dgl.partition.metis_partition_assignment``; it takes neither seed nor tolerance nor relation weights.

    Raises:
        PartitionError: METIS gives up.
        ConfigError: types without all of them.
    """
    from graph_emb.compat import dgl as compat_dgl

    graph, names = problem.graph, problem.constraints.names
    typed = [name for name in names if name.startswith("type:")]
    if typed and len(typed) < len(graph.ntypes):
        raise ConfigError(f"method 'metis' balances all node types or none; got {', '.join(typed)}")
    dgl = compat_dgl.load()
    import torch
    from dgl.partition import metis_partition_assignment

    offsets = graph.node_offsets
    src = np.concatenate([np.empty(0, np.int64), *(s + offsets[t[0]] for t, (s, _) in graph.edges.items())])
    dst = np.concatenate([np.empty(0, np.int64), *(d + offsets[t[2]] for t, (_, d) in graph.edges.items())])
    homogeneous = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.total_nodes)
    types = np.repeat(np.arange(len(graph.ntypes)) * bool(typed), list(graph.num_nodes.values()))
    # Without types METIS balances in-degrees alone and lets the nodes go.
    balance = torch.from_numpy(types) if typed or "nodes" in names else None
    with contextlib.redirect_stdout(io.StringIO()):  # DGL prints its timings
        parts = metis_partition_assignment(
            homogeneous, problem.num_parts, balance_ntypes=balance, balance_edges="edges" in names
        )
    if parts is None:
        raise PartitionError(f"METIS found no partition into {problem.num_parts} parts; use multilevel")
    return parts.numpy().astype(np.int32)


@method("kaminpar", refusal=one_only, balance=("nodes",))
def kaminpar(problem: Problem) -> np.ndarray:
    """``KaMinPar.compute_partition`` on one thread: with more, the same seed gives other parts.

    Raises CompatError where kaminpar is not installed.
    """
    package = _load("kaminpar")
    weights, tolerance = problem.constraints.weights[0], float(problem.constraints.tolerances[0])
    adjacency, costs = problem.adjacency, _edge_weights(problem)
    with scratch_folder("graph-emb-kaminpar") as folder:
        path = folder / "graph.metis"
        with path.open("w", encoding="ascii") as out:  # METIS's text format with node and edge weights, ids from 1
            out.write(f"{adjacency.num_nodes} {adjacency.num_entries // 2} 011\n")
            for node in range(adjacency.num_nodes):
                row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
                pairs = np.stack([adjacency.indices[row] + 1, costs[row]], axis=1).ravel().tolist()
                out.write(" ".join(map(str, [int(weights[node]), *pairs])) + "\n")
        package.reseed(problem.seed % 2**31)
        instance = package.KaMinPar(num_threads=1, ctx=package.default_context())
        graph = package.load_graph(str(path), package.GraphFileFormat.METIS, compress=False)
        parts = instance.compute_partition(graph, k=problem.num_parts, eps=tolerance)
    return np.asarray(parts, np.int32)


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
    package = _load("mtkahypar")
    weights, tolerance = problem.constraints.weights[0], float(problem.constraints.tolerances[0])
    adjacency = problem.adjacency
    sources = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    once = sources < adjacency.indices
    edges = list(zip(sources[once].tolist(), adjacency.indices[once].tolist(), strict=True))
    solver = package.initialize(problem.num_threads, False)  # False: no warning that an earlier call has done so
    context = solver.context_from_preset(getattr(package.PresetType, preset.upper()))
    context.set_partitioning_parameters(problem.num_parts, tolerance, package.Objective.CUT)
    context.logging = False
    costs = _edge_weights(problem)[once].tolist()
    graph = solver.create_graph(context, adjacency.num_nodes, len(edges), edges, weights.tolist(), costs)
    made = graph.partition(context)
    return np.array([made.block_id(node) for node in range(adjacency.num_nodes)], np.int32)


@method("pymetis", refusal=one_only, balance=("nodes",))
def pymetis(problem: Problem) -> np.ndarray:
    """``pymetis.part_graph``, k-way. Raises CompatError where pymetis is not installed."""
    package = _load("pymetis")
    weights, tolerance = problem.constraints.weights[0], float(problem.constraints.tolerances[0])
    adjacency = problem.adjacency
    rows = package.CSRAdjacency(adjacency.indptr, adjacency.indices.astype(np.int64))
    # METIS counts imbalance in thousandths, at least one
    options = package.Options(seed=problem.seed % 2**31, ufactor=max(1, int(tolerance * 1000)))
    costs = _edge_weights(problem)
    _, parts = package.part_graph(
        problem.num_parts, adjacency=rows, vweights=weights, eweights=costs, recursive=False, options=options
    )
    return np.asarray(parts, np.int32)


def _load(package: str) -> ModuleType:
    """An optional package. Raises CompatError, which names the extra, where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise CompatError(
            f"method {package!r} needs the package {package}: pip install 'graph_emb[{package}]'"
        ) from error


def _edge_weights(problem: Problem) -> np.ndarray:
    """(M,), int64: the weight of each stored entry, ones where all are the same."""
    adjacency = problem.adjacency
    return np.ones(adjacency.num_entries, np.int64) if adjacency.weights is None else adjacency.weights.astype(np.int64)
