"""A map of an embedding: one dot for each node, neighbours in the embedding near each other, classes in colours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CLASSES = 20
BACKGROUND, INK = "#ffffff", "#22252b"


def project(weights: NDArray[np.floating], seed: int = 0) -> NDArray[np.float64]:
    """Two coordinates for each row by t-SNE (van der Maaten and Hinton 2008) on unit vectors, from a PCA start.

    Args:
        weights: Shape (N, D), finite, N at least 2.
        seed: Fixes the layout.
    Returns:
        Shape (N, 2).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    unit = weights / np.maximum(lengths, np.finfo(np.float32).tiny)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=600)
    # One thread: 3 s of work for 2,000 rows, and OpenMP threads that spin on busy cores made it twenty times that
    with threadpool_limits(1):
        if min(unit.shape) > 50:  # the paper's own first step
            unit = PCA(50, random_state=seed).fit_transform(unit)
        return tsne.fit_transform(unit)


def draw_map(
    path: str | Path, points: NDArray[np.float64], classes: NDArray[np.int64], class_names: list[str], title: str
) -> None:
    """Write a PNG of points coloured by class, each class with its name at its middle.

    Args:
        path: Where the PNG goes.
        points: Shape (N, 2).
        classes: Shape (N,), in [0, C).
        class_names: C names.
        title: A line above the map.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), dpi=130, facecolor=BACKGROUND)  # no pyplot: no global state, no display
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.02, 0.02, 0.84, 0.90))
    colours = matplotlib.colormaps["tab10" if len(class_names) <= 10 else "tab20"]
    for label, name in enumerate(class_names):
        chosen = points[classes == label]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=13, color=colours(label % colours.N), alpha=0.8, linewidths=0, label=name
        )
    _name_classes(axes, points, classes, class_names)
    axes.set_axis_off()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, markerscale=2, labelcolor=INK)
    figure.text(0.03, 0.955, title, fontsize=13, color=INK)
    figure.savefig(path, format="png", facecolor=BACKGROUND)


def _name_classes(axes: Axes, points: NDArray[np.float64], classes: NDArray[np.int64], class_names: list[str]) -> None:
    """A class's name at its member nearest to the median, so that it stands on dots of the class."""
    from matplotlib.patheffects import withStroke

    for label, name in enumerate(class_names):
        chosen = points[classes == label]
        if not len(chosen):
            continue
        middle = chosen[np.argmin(((chosen - np.median(chosen, axis=0)) ** 2).sum(axis=1))]
        axes.annotate(
            name,
            middle,
            ha="center",
            va="center",
            fontsize=17,
            fontweight="bold",
            color=INK,
            path_effects=[withStroke(linewidth=4, foreground=BACKGROUND)],
        )
