"""The interface of a partitioning method, and the registry of them.

Legend: N nodes of all types, P parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.registry import Registry
from graph_emb.graph.typed import HeteroGraph
from partition.adjacency import RelationWeights, SymmetricAdjacency, symmetric
from partition.constraints import Constraints


@dataclass
class Problem:
    """Input of a method.

    Attributes:
        num_parts: P, at least 2.
        constraints: What must be even; only names that the method promised.
        seed: Where all random choices come from.
        num_threads: Changes the time, not the result.
        relation_weights: What edges of a type weigh in the cut; others weigh 1.
    """

    graph: HeteroGraph
    num_parts: int
    constraints: Constraints
    seed: int = 0
    num_threads: int = 1
    relation_weights: RelationWeights | None = None

    @cached_property
    def adjacency(self) -> SymmetricAdjacency:
        """The symmetric graph, built when first asked for."""
        return symmetric(self.graph, self.relation_weights, num_threads=self.num_threads)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.total_nodes

    def rng(self) -> np.random.Generator:
        """A fresh generator from the seed."""
        return np.random.default_rng(self.seed)


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
    balance: tuple[str, ...]
    seeded: bool
    weighted: bool

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


def method(
    name: str,
    *,
    refusal: Callable[[Sequence[str]], str],
    balance: tuple[str, ...] = ("nodes", "edges"),
    seeded: bool = True,
    weighted: bool = True,
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Decorator that registers a function as a method."""

    def file(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        METHODS.register(name)(Method(name, run, refusal, balance, seeded, weighted))
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
    """An integer option, checked.

    Raises:
        ConfigError: not an integer, or below ``low``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ConfigError(f"{option} is {value!r}; it must be an integer of at least {low}")
    return int(value)
