"""Methods without regard for edges: ranges of ids, shuffled nodes, and a hash of the original id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_emb.core.splitmix import GOLDEN, mix64
from partition.methods.base import Problem, method, node_counts_only


@method("range", refusal=node_counts_only, balance=("nodes",), seeded=False, weighted=False)
def id_range(problem: Problem) -> np.ndarray:
    """Each type's ids in equal ranges; the parts that get one more go round from type to type.

    Good where the input's order already keeps neighbours together, as in crawls.
    """
    parts = np.empty(problem.num_nodes, np.int32)
    extra = 0
    for ntype, start in problem.graph.node_offsets.items():
        num, rest = divmod(problem.graph.num_nodes[ntype], problem.num_parts)
        sizes = np.full(problem.num_parts, num)
        sizes[(extra + np.arange(rest)) % problem.num_parts] += 1
        extra += rest
        stop = start + problem.graph.num_nodes[ntype]
        parts[start:stop] = np.repeat(np.arange(problem.num_parts, dtype=np.int32), sizes)
    return parts


@method("random", refusal=node_counts_only, balance=("nodes",), weighted=False)
def random(problem: Problem) -> np.ndarray:
    """Shuffle each type, then deal the types one after the other: counts of nodes and of types differ by 1 at most."""
    rng = problem.rng()
    parts = np.empty(problem.num_nodes, np.int32)
    dealt = 0
    for ntype, start in problem.graph.node_offsets.items():
        num = problem.graph.num_nodes[ntype]
        order = rng.permutation(num)
        parts[start + order] = (np.arange(dealt, dealt + num) % problem.num_parts).astype(np.int32)
        dealt += num
    return parts


def _promises_nothing(names: Sequence[str]) -> str:
    return f"a hash promises nothing, not {', '.join(names)}; try random or multilevel" if names else ""


@method("hash", refusal=_promises_nothing, balance=(), weighted=False)
def hash_of_id(problem: Problem) -> np.ndarray:
    """SplitMix64 of the original id (its characters, for strings), salted with the seed, modulo the parts.

    A node's part can be told from its id alone, on any machine.
    """
    graph = problem.graph
    out = [np.empty(0, np.int32)]
    for ntype, num in graph.num_nodes.items():
        ids = graph.node_ids.get(ntype)
        hashed = hashes(np.arange(num) if ids is None else ids, problem.seed)
        out.append((hashed % np.uint64(problem.num_parts)).astype(np.int32))
    return np.concatenate(out)


def hashes(ids: np.ndarray, seed: int) -> np.ndarray:
    """(N,), uint64, of integers or strings; a string's hash does not depend on the width of the array."""
    salt = _mixed(np.full(len(ids), seed & (2**64 - 1), np.uint64))
    if ids.dtype.kind in "iu":
        return _mixed(ids.astype(np.uint64) ^ salt)
    text = np.ascontiguousarray(ids.astype(str))
    letters = text.view(np.uint32).reshape(len(ids), -1) if len(ids) else np.empty((0, 0), np.uint32)
    for column in letters.T:
        salt = np.where(column == 0, salt, _mixed(salt ^ column.astype(np.uint64)))
    return salt


def _mixed(values: np.ndarray) -> np.ndarray:
    return mix64(values + GOLDEN)
