"""Shared steps of the backends in other packages."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from graph_emb.core.errors import CompatError
from partition.methods.base import Problem


def load(package: str) -> ModuleType:
    """An optional package.

    Raises:
        CompatError: it is not installed; names the extra.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise CompatError(
            f"method {package!r} needs the package {package}: pip install 'graph_emb[{package}]'"
        ) from error


def single_constraint(problem: Problem) -> tuple[np.ndarray, float]:
    """((N,) weights, tolerance) of the only constraint."""
    return problem.constraints.weights[0], float(problem.constraints.tolerances[0])


def edge_weights(problem: Problem) -> np.ndarray:
    """(M,), int64: the weight of each stored entry, ones where all are the same."""
    adjacency = problem.adjacency
    return np.ones(adjacency.num_entries, np.int64) if adjacency.weights is None else adjacency.weights.astype(np.int64)
