"""The interface of a partitioning method, the registry of them, and checked parts by any of them.

Legend: N nodes of all types, P parts.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import psutil

from graph_emb.core.errors import ConfigError, PartitionError, Registry, unknown_name
from graph_emb.core.threads import thread_count
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.kernels.sorting import move_costs
from partition.problem import Problem, RelationWeights, constraints

SEED_LIMIT = 2**63


def check_seed(seed: int) -> None:
    """Raise a ConfigError unless a seed is an integer in [0, 2**63)."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < SEED_LIMIT:
        raise ConfigError(f"seed is {seed!r}; it must be an integer in [0, 2^63)")


SERIAL_EDGES = 250_000
"""Up to so many edges a second thread saves no time: it works as long as its start and the waits for it take."""


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes:
        name: In the registry.
        run: ``run(problem, **options) -> (N,) int32`` parts by homogeneous node id.
        refusal: Says why the method cannot balance these names, or returns "".
        balance: What it balances when nothing is asked for.
        seeded: Whether the seed changes the result.
        weighted: Whether it takes the weights of edges.
    """

    name: str
    run: Callable[..., np.ndarray]
    refusal: Callable[[Sequence[str]], str]
    balance: tuple[str, ...] = ("nodes", "edges")
    seeded: bool = True
    weighted: bool = True

    @cached_property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults."""
        parameters = inspect.signature(self.run).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check(self, balance: Sequence[str], seed: int, relation_weights: object, options: Mapping[str, object]) -> None:
        """Raise a ConfigError for whatever this method would have to ignore."""
        for name in options:
            if name not in self.options:
                raise unknown_name(f"option of method {self.name!r}", name, self.options)
        why = self.refusal(balance)
        if why:
            raise ConfigError(f"method {self.name!r} cannot balance {', '.join(balance) or 'nothing'}: {why}")
        if seed and not self.seeded:
            raise ConfigError(f"method {self.name!r} takes no seed, but seed is {seed}; leave it at 0")
        if relation_weights and not self.weighted:
            raise ConfigError(
                f"method {self.name!r} takes no weights of edges; leave relation_weights out, or use multilevel"
            )


METHODS: Registry[Method] = Registry("partition method")


def method(name: str, **facts: Any) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Decorator that registers a function as a method; ``facts`` are the other fields of ``Method``."""

    def file(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        METHODS.register(name)(Method(name, run, **facts))
        return run

    return file


def any_but_none(names: Sequence[str]) -> str:
    """For methods that take every constraint, and need one."""
    return "" if names else "without a limit everything ends in one part; give at least one of nodes, edges, ..."


def node_counts_only(names: Sequence[str]) -> str:
    """For methods that deal out nodes without looking at anything else."""
    other = [name for name in names if name != "nodes" and not name.startswith("type")]
    return f"it promises nodes and node types, not {', '.join(other)}; try multilevel" if other else ""


def one_only(names: Sequence[str]) -> str:
    """For libraries with a single constraint."""
    return "" if len(names) == 1 else "it takes exactly one constraint; try multilevel"


def at_least(option: str, value: object, low: int) -> int:
    """An integer option, at least ``low``; a ConfigError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ConfigError(f"{option} is {value!r}; it must be an integer of at least {low}")
    return int(value)


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
        num_threads: None: all that the process may use. Small graphs take one.
        edge_owner: Which end's part owns an edge, for the constraint ``"edges"``.
        relation_weights: What an edge of a type (three names, or joined by ":") weighs in the cut; others weigh 1.
        **options: Of the method.
    Raises:
        ConfigError: an option is unknown, out of range, or one that the method would have to ignore.
        CompatError: the method's package is not installed.
        PartitionError: the method left a part above its limit, or without what it needs.
    """
    started, held, peak = time.perf_counter(), psutil.Process().memory_info().rss, _peak_bytes()
    if num_parts < 1 or num_parts > graph.total_nodes:
        raise ConfigError(f"num_parts is {num_parts}; it must lie in 1 .. {graph.total_nodes}, the number of nodes")
    check_seed(seed)
    threads = thread_count(num_threads)
    if graph.total_edges <= SERIAL_EDGES:
        threads = 1
    name, why = method, "asked for"
    if method == "auto":
        counted = all(kind == "nodes" or kind.startswith("type") for kind in balance or ("nodes",))
        name = "multilevel"
        why = "auto: the lowest cut under several limits at once, the same for a seed on any thread count"
        if graph.total_edges == 0 and counted:
            name, why = "range", "auto: no edges, so ranges of ids balance the nodes and cut nothing"
    chosen = METHODS[name]
    names = tuple(chosen.balance if balance is None else balance)
    chosen.check(names, seed, relation_weights, options)
    wanted = constraints(graph, names, tolerance, edge_owner=edge_owner, num_threads=threads)
    problem = Problem(graph, num_parts, wanted, seed, threads, relation_weights)
    parts = np.zeros(graph.total_nodes, np.int32) if num_parts == 1 else chosen.run(problem, **options)
    why += finish(problem, parts, name, edge_owner, with_cut=chosen.weighted)
    told = tuple(dict.fromkeys(("nodes", "edges", *wanted.names)))
    report = wanted if told == wanted.names else constraints(graph, told, edge_owner=edge_owner, num_threads=threads)
    risen = _peak_bytes()
    return Assignment.of_homogeneous(
        graph,
        parts,
        num_parts,
        method=name,
        seed=seed,
        why=why,
        seconds=time.perf_counter() - started,
        peak_bytes=risen - held if risen > peak else 0,  # it may stay below an earlier peak
        balance=report.balance(parts, num_parts),
    )


def finish(problem: Problem, parts: np.ndarray, name: str, edge_owner: EdgeOwner, *, with_cut: bool) -> str:
    """Repair parts in place and check them: what to add to the reason for the method.

    A DGL server dies where a part has no row of a node or edge type with data.

    Args:
        name: Of the method, for errors.
        with_cut: Whether the cost of a move is the cut it adds; else the lightest node moves.
    Raises:
        PartitionError: a part lacks what it needs, or holds more than its limit.
    """
    masks = _needed(problem, edge_owner)
    moved = _repair(problem, parts, masks, with_cut)
    for mask in masks:
        counts = np.bincount(parts[mask], minlength=problem.num_parts)
        if not counts.all():
            part = int(np.flatnonzero(counts == 0)[0])
            raise PartitionError(
                f"{name}: part {part} of {problem.num_parts} has none of {int(counts.sum())} nodes of a kind that "
                "every part needs (a node type or edge type with data); use fewer parts"
            )
    problem.constraints.check(parts, problem.num_parts, name)
    return f"; {moved} nodes moved so that every part has what it needs" if moved else ""


def _needed(problem: Problem, edge_owner: EdgeOwner) -> np.ndarray:
    """Boolean masks, (kinds, N): every part must hold one node of each kind.

    All nodes; the nodes of each type with data; the owning ends of each edge type with data (the destination where the
    owner depends on the load: its part keeps one edge). Kinds of fewer nodes than parts cannot be had by all and are
    left out.
    """
    graph, offsets = problem.graph, problem.graph.node_offsets
    side = 0 if edge_owner == "source" else 1
    members: list[slice | np.ndarray] = [slice(None)]
    members += [slice(offsets[t], offsets[t] + graph.num_nodes[t]) for t, data in graph.node_data.items() if data]
    members += [graph.edges[e][side] + offsets[e[2 * side]] for e, data in graph.edge_data.items() if data]
    masks = np.zeros((len(members), problem.num_nodes), bool)
    for mask, nodes in zip(masks, members, strict=True):
        mask[nodes] = True
    return masks[masks.sum(axis=1) >= problem.num_parts]


def _repair(problem: Problem, parts: np.ndarray, member: np.ndarray, with_cut: bool) -> int:
    """Move the cheapest nodes, in place, until every part holds one of each kind: how many were moved."""
    counts = np.stack([np.bincount(parts[mask], minlength=problem.num_parts) for mask in member])
    if (counts > 0).all():
        return 0
    limits = problem.constraints.limits(problem.num_parts)
    loads = problem.constraints.loads(parts, problem.num_parts)
    moved = 0
    for kind, part in np.argwhere(counts == 0):
        if counts[kind, part]:
            continue  # an earlier move brought one
        spare = np.ones(problem.num_nodes, bool)
        for mask, count in zip(member, counts, strict=True):
            spare &= ~mask | (count[parts] > 1)
        candidates = np.flatnonzero(member[kind] & spare)
        if not len(candidates):
            continue  # the last of some other kind everywhere: the check that follows names what is missing
        weights = problem.constraints.weights[:, candidates]
        room = (loads[:, part, None] + weights <= limits[:, None]).all(axis=0)
        costs = weights.sum(axis=0)
        if with_cut:
            rows = problem.adjacency
            costs = move_costs(rows.indptr, rows.indices, rows.weight_array, parts, candidates, int(part))
        node = candidates[np.lexsort((costs, ~room))[0]]
        own = parts[node]
        loads[:, own] -= problem.constraints.weights[:, node]
        loads[:, part] += problem.constraints.weights[:, node]
        counts[:, own] -= member[:, node]
        counts[:, part] += member[:, node]
        parts[node] = part
        moved += 1
    return moved


def _peak_bytes() -> int:
    """The most that this process ever held; 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
