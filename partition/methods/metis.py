"""DGL's METIS."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np

from graph_emb.core.errors import PartitionError
from partition.methods.base import Problem, method


def _refusal(names: Sequence[str]) -> str:
    types = [name for name in names if name.startswith("type:") or name == "types"]
    other = [name for name in names if name not in ("nodes", "edges") and name not in types]
    if other:
        return f"DGL's call knows nodes, node types and edges, not {', '.join(other)}; try multilevel"
    return "" if names else "it always balances nodes; give nodes"


@method("metis", refusal=_refusal, seeded=False)
def metis(problem: Problem) -> np.ndarray:
    """``dgl.partition.metis_partition_assignment``; it takes neither seed nor tolerance nor relation weights.

    Raises:
        PartitionError: METIS gives up.
        ConfigError: relation weights, or types without all of them.
    """
    from graph_emb.compat import dgl as compat_dgl
    from graph_emb.core.errors import ConfigError

    graph, names = problem.graph, problem.constraints.names
    if problem.relation_weights:
        raise ConfigError(
            "method 'metis' passes no edge weights to METIS; leave relation_weights out, or use multilevel"
        )
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
