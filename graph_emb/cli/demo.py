"""``graph-emb demo``: scikit-learn's digits as a graph, embedded by DeepWalk, judged and drawn in under a minute.

The graph joins each image to its nearest ones. A tenth of the edges is held out; one training on the others gives
the embeddings for both evaluations. One thread trains, so a seed repeats the numbers exactly.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.cli.train import summary
from graph_emb.config import config_from, parse_override
from graph_emb.core.imports import importing
from graph_emb.core.terminal import INTERRUPTED, say
from graph_emb.evaluate.projection import project

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from graph_emb.run.pipeline import PipelineResult

PLACE = "runs/demo"
MAP, TABLE = "map.png", "table.md"
F1 = ("micro", "macro")
CONFIG: dict[str, Any] = {
    "dataset": {"name": "digits", "hold_out": 0.1},
    "model": {"name": "deepwalk", "dim": 64, "num_walks": 20, "walk_length": 40, "window": 5},
    "train": {"threads": 1},
    "evaluate": {"ratios": [tenth / 10 for tenth in range(1, 10)], "shuffles": 3, "scorer": "cosine"},
}


def run(args: argparse.Namespace) -> int:
    """Train, judge, draw; print the tables and the places of the files."""
    start = time.perf_counter()
    config = config_from(CONFIG, parse_override(f"seed={args.seed}"))
    say(args, "graph-emb demo: handwritten digits, each joined to its nearest ones; DeepWalk learns the graph")
    with importing():
        from graph_emb.run.pipeline import run as run_pipeline

    result = run_pipeline(
        config,
        out=args.out or PLACE,
        overwrite=args.overwrite or args.out is None,
        progress=not args.quiet,
        add_files=write_pictures,
    )
    assert result.dataset is not None  # one process
    held_out = len(result.dataset.link_split["test"]["edge"]) if result.dataset.link_split else 0
    print(f"{summary(result.metrics)}\n{held_out:,} further edges were held out to judge link prediction")
    for finding in result.findings:
        print(f"\n{finding}")
    if result.interrupted:
        say(args, f"graph-emb: interrupted; what was trained is in {result.folder}")
        return INTERRUPTED
    assert result.folder is not None
    print(f"\nmap:   {result.folder / MAP}\ntable: {result.folder / TABLE}")
    say(args, f"done in {time.perf_counter() - start:.0f} s")
    return 0


def write_pictures(result: PipelineResult, folder: Path) -> None:
    """The map of the embedding and the tables as Markdown."""
    assert result.dataset is not None
    assert result.embeddings is not None
    labels = result.dataset.labels
    assert labels is not None
    points = project(result.embeddings.weights, "tsne", result.config.seed)
    names = list(labels.class_names or map(str, range(labels.num_classes)))
    title = f"DeepWalk on {len(points):,} digits; colours show the classes, unseen in training"
    draw_map(folder / MAP, points, labels.to_single(), names, title)
    (folder / TABLE).write_text(markdown(result.metrics["evaluation"]), encoding="utf-8")


def markdown(evaluation: dict[str, Any]) -> str:
    """The two tables of the demo's metrics."""
    from tabulate import tabulate

    classes = [
        [f"{row['ratio']:.0%}", *(f"{100 * row[f'{kind}_mean']:.1f} ± {100 * row[f'{kind}_std']:.1f}" for kind in F1)]
        for row in evaluation["node_classification"]["ratios"]
    ]
    links = evaluation["link_prediction"]["parts"]["test"]["metrics"]
    values = [[name, f"{value['value']:.4f}"] for name, value in links.items()]
    return "\n\n".join(
        [
            tabulate(classes, ["labelled", "micro-F1 %", "macro-F1 %"], tablefmt="github"),
            tabulate(values, ["held-out edges", "test"], tablefmt="github", disable_numparse=True) + "\n",
        ]
    )


MAX_CLASSES = 20
BACKGROUND, INK = "#ffffff", "#22252b"


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
