"""One-vs-rest logistic regression, its classes fitted side by side."""

# n fitted nodes, D width, C classes, B evaluated nodes.

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from graph_emb.core.errors import ConfigError

# liblinear copies the matrix into nodes of 16 bytes for each class it fits.
_BYTES_PER_VALUE = 16


@dataclass(frozen=True, eq=False)
class OneVsRest:
    """C fitted classifiers.

    Attributes:
        weights: Shape (D, C), float64.
        biases: Shape (C,); -inf for a class that no fitted node had, +inf for one that all had.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return self.weights.size + self.biases.size

    def decide(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logits of shape (B, C) for features (B, D); each orders the nodes as the class's probability does."""
        return features @ self.weights + self.biases


def fit_one_vs_rest(
    features: NDArray[np.float64],
    targets: NDArray[np.bool_],
    *,
    threads: int | None = None,
    progress: bool = False,
) -> OneVsRest:
    """scikit-learn's liblinear (C=1) on each class against the rest; L2-regularised, the bias included.

    liblinear works without the interpreter's lock, so threads share the matrix and scale.

    Args:
        features: Shape (n, D), float64, contiguous (or each class would copy it).
        targets: Shape (n, C).
        threads: Classes fitted at a time; None: all cores, as far as half of the free memory holds their copies.
        progress: Shows a bar.
    Raises:
        ConfigError: threads below 1.
    """
    num_classes = targets.shape[1]
    counts = targets.sum(axis=0)
    fitted = np.flatnonzero((counts > 0) & (counts < len(targets)))
    weights = np.zeros((features.shape[1], num_classes))
    biases = np.where(counts == 0, -np.inf, np.inf)

    def fit(column: np.int64) -> None:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(solver="liblinear", C=1.0).fit(features, targets[:, column])
        weights[:, column] = model.coef_[0]
        biases[column] = model.intercept_[0]

    # The largest classes take longest: they start first.
    fitted = fitted[np.argsort(-counts[fitted], kind="stable")]
    with ThreadPoolExecutor(num_threads(threads, features.size)) as pool:
        done = pool.map(fit, fitted)
        list(tqdm(done, desc="logistic regression", total=len(fitted), unit="class", disable=not progress))
    return OneVsRest(weights, biases)


def num_threads(asked: int | None, num_values: int) -> int:
    """Threads for a matrix of ``num_values`` numbers: as asked, else by cores and free memory."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"threads is {asked}; give at least 1, or None for all cores")
        return asked
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = psutil.virtual_memory().available // (2 * _BYTES_PER_VALUE * max(num_values, 1))
    return max(1, min(cores, fitting))
