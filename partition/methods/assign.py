"""From a graph to checked parts, by any method."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.threads import thread_count
from graph_emb.graph.typed import HeteroGraph
from partition.adjacency import RelationWeights
from partition.assignment import Assignment, EdgeOwner
from partition.constraints import constraints
from partition.methods.base import METHODS, Problem
from partition.methods.repair import needed, repair

SEED_LIMIT = 2**63


def assign(
    graph: HeteroGraph,
    num_parts: int,
    method: str = "auto",
    *,
    balance: Sequence[str] | None = None,
    tolerance: float | Mapping[str, float] | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    edge_owner: EdgeOwner = "destination",
    relation_weights: RelationWeights | None = None,
    **options: Any,
) -> Assignment:
    """The part of every node.

    Every part gets a node, a node of each type with data and an edge of each type with data, where there are enough.

    Args:
        num_parts: From 1 to the number of nodes.
        method: A name in ``METHODS``, or ``"auto"``; ``why`` in the result says what it took.
        balance: Names as in ``constraints``; None: nodes and edges, or what the method can promise of them.
        tolerance: What a part may hold above the mean; None: 0.05. A number, or a number by name.
        seed: Of all random choices, at least 0. The same seed gives the same parts on any number of threads.
        num_threads: None: all that the process may use.
        edge_owner: Which end's part owns an edge, for the constraint ``"edges"``.
        relation_weights: What an edge of a type (three names, or joined by ":") weighs in the cut; others weigh 1.
        **options: Of the method.
    Raises:
        ConfigError: an option is unknown, out of range, or one that the method would have to ignore.
        CompatError: the method's package is not installed.
        PartitionError: the method left a part above its limit, or without what it needs.
    """
    started, memory = time.perf_counter(), _Memory()
    if num_parts < 1 or num_parts > graph.total_nodes:
        raise ConfigError(f"num_parts is {num_parts}; it must lie in 1 .. {graph.total_nodes}, the number of nodes")
    if not 0 <= seed < SEED_LIMIT:
        raise ConfigError(f"seed is {seed}; it must lie in [0, 2^63)")
    threads = thread_count(num_threads)
    name, why = _chosen(graph, method, balance)
    chosen = METHODS[name]
    names = tuple(chosen.balance if balance is None else balance)
    chosen.check(names, seed, relation_weights, options)
    wanted = constraints(graph, names, tolerance, edge_owner=edge_owner, num_threads=threads)
    problem = Problem(graph, num_parts, wanted, seed, threads, relation_weights)
    parts = np.zeros(graph.total_nodes, np.int32) if num_parts == 1 else chosen.run(problem, **options)
    moved = repair(problem, parts, edge_owner, with_cut=chosen.follows_edges and name not in _WITHOUT_ADJACENCY)
    if moved:
        why += f"; {moved} nodes moved so that every part has what it needs"
    _check_needs(problem, parts, edge_owner, name)
    wanted.check(parts, num_parts, name)
    told = tuple(dict.fromkeys(("nodes", "edges", *wanted.names)))
    report = wanted if told == wanted.names else constraints(graph, told, edge_owner=edge_owner, num_threads=threads)
    return Assignment.of_homogeneous(
        graph,
        parts,
        num_parts,
        method=name,
        seed=seed,
        why=why,
        seconds=time.perf_counter() - started,
        peak_bytes=memory.risen(),
        balance=report.balance(parts, num_parts),
    )


_WITHOUT_ADJACENCY = ("metis",)
"""DGL makes a symmetric graph of its own; ours is not built for a repair alone."""


def _chosen(graph: HeteroGraph, method: str, balance: Sequence[str] | None) -> tuple[str, str]:
    """(name, why)."""
    if method != "auto":
        METHODS[method]
        return method, "asked for"
    counted = all(name == "nodes" or name.startswith("type") for name in balance or ("nodes",))
    if graph.total_edges == 0 and counted:
        return "range", "auto: no edges, so ranges of ids balance the nodes and cut nothing"
    return "multilevel", "auto: the lowest cut under several limits at once, the same for a seed on any thread count"


def _check_needs(problem: Problem, parts: np.ndarray, edge_owner: EdgeOwner, name: str) -> None:
    for mask in needed(problem, edge_owner):
        counts = np.bincount(parts[mask], minlength=problem.num_parts)
        if not counts.all():
            part = int(np.flatnonzero(counts == 0)[0])
            raise PartitionError(
                f"{name}: part {part} of {problem.num_parts} has none of {int(counts.sum())} nodes of a kind that "
                "every part needs (a node type or edge type with data); use fewer parts"
            )


class _Memory:
    """How far this process's peak rises from now on."""

    def __init__(self) -> None:
        self._before, self._peak = psutil.Process().memory_info().rss, _peak_bytes()

    def risen(self) -> int:
        """0 where the peak stayed below an earlier one, or where the system does not tell."""
        peak = _peak_bytes()
        return peak - self._before if peak > self._peak else 0


def _peak_bytes() -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
