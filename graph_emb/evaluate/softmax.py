"""Multinomial logistic regression: one fit for all classes, where each node has one of them."""

# n nodes, D width, C classes.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graph_emb.core.progress import bar
from graph_emb.core.threads import torch_threads
from graph_emb.evaluate.node_classification import LinearClassifier, num_threads

ROWS_AT_ONCE = 1 << 13
MAX_STEPS = 300
LEAST_GAIN = 1e-6
"""Relative gain of a step below which the fit ends."""


def fit_softmax(
    features: NDArray[np.floating],
    classes: NDArray[np.integer],
    num_classes: int,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> LinearClassifier:
    """Minimise ``sum_i -log softmax(x_i W + b)[y_i] + |W|^2 / 2`` by L-BFGS (Liu and Nocedal 1989).

    As scikit-learn's ``LogisticRegression(C=1)`` on several classes; the bias is free. Products are float32, sums
    float64, in an order that does not depend on the threads.

    Args:
        features: Shape (n, D).
        classes: Shape (n,), in [0, C); a class that no node has is never predicted.
        num_classes: C.
        threads: Of the products; None: all cores.
        progress: Shows a bar of steps, of which there are at most ``MAX_STEPS``.
    Raises:
        ConfigError: threads below 1.
    """
    from scipy.optimize import minimize  # here: most runs have no split and need none of its fifth of a second

    used, targets = np.unique(classes, return_inverse=True)
    mean = features.mean(axis=0, dtype=np.float64)
    rows = torch.from_numpy((features - mean).astype(np.float32))  # with a free bias the optimum is the same
    truth, width = torch.from_numpy(targets), rows.shape[1]

    pieces = list(zip(rows.split(ROWS_AT_ONCE), truth.split(ROWS_AT_ONCE), strict=True))

    def piece_loss(weights: Tensor, piece: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        own, wanted = piece
        with torch.no_grad():
            logs = torch.addmm(weights[-1], own, weights[:-1]).log_softmax(dim=1)
            total = logs.gather(1, wanted[:, None]).sum(dtype=torch.float64)
            errors = logs.exp_()
            errors[torch.arange(len(wanted)), wanted] -= 1
            return total, own.T @ errors, errors.sum(dim=0)

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        found = torch.from_numpy(flat).view(width + 1, len(used))
        total, grads = 0.0, found.clone()
        grads[-1] = 0
        for log_of_truth, of_weights, of_biases in pool.map(partial(piece_loss, found.float()), pieces):
            total -= float(log_of_truth)
            grads[:-1] += of_weights
            grads[-1] += of_biases
        return total + float(found[:-1].square().sum()) / 2, grads.flatten().numpy()

    options = {"maxiter": MAX_STEPS, "ftol": LEAST_GAIN, "gtol": 0.0}
    start = np.zeros((width + 1) * len(used))
    with (
        torch_threads(1),  # pieces in threads wait for each other once a step, threads of torch at every product
        ThreadPoolExecutor(num_threads(threads, rows.numel())) as pool,
        bar(desc="softmax regression", total=MAX_STEPS, unit="step", shown=progress) as steps,
    ):
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options, callback=lambda _: steps.update())
    fitted = found.x.reshape(width + 1, len(used))
    weights, biases = np.zeros((width, num_classes)), np.full(num_classes, -np.inf)
    weights[:, used], biases[used] = fitted[:-1], fitted[-1] - mean @ fitted[:-1]
    return LinearClassifier(weights, biases)
