"""A report as one HTML page: tables and charts drawn without a display, no script, no other file, nothing fetched."""

# P parts, L nodes of a walk

from __future__ import annotations

import io
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.storage import replace_text
from partition.report.report import PartitionReport

_OURS, _RANDOM, _MEAN = "#1f6f8b", "#c9a66b", "#444444"
_DPI = 110
_MOST_RELATIONS = 25
_MOST_NUMBERS = 12  # parts up to which the matrix has its numbers written in
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
table.numbers td + td, table.numbers th + th { text-align: right; font-variant-numeric: tabular-nums; }
table.numbers tr + tr td { border-top: 1px solid #ddd; } td.inner { padding-left: 1.2rem; color: #555; }
img { max-width: 100%; } p.note { color: #555; }
"""


def to_html(report: PartitionReport, path: str | Path | None = None) -> str:
    """A page that needs no other file, charts included; also written to ``path`` where one is given."""
    title = f"{report.name} in {report.num_parts} parts"
    facts = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in report.facts())
    numbers = "\n".join(_row(*row) for row in report.rows())
    images = "\n".join(
        f'<h2>{escape(name)}</h2>\n<img alt="{escape(name)}" src="data:image/png;base64,{b64encode(image).decode()}">'
        for name, image in charts(report).items()
    )
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<table>
{facts}
</table>
<h2>Numbers</h2>
<table class="numbers">
<tr><th></th><th>{escape(report.method)}</th><th>random</th></tr>
{numbers}
</table>
<p class="note">{escape(report.assumptions())}</p>
{images}
</body>
</html>
"""
    if path is not None:
        replace_text(path, text)
    return text


def _row(label: str, given: str, random: str) -> str:
    inner = ' class="inner"' if label.startswith(" ") else ""
    return f"<tr><td{inner}>{escape(label.strip())}</td><td>{escape(given)}</td><td>{escape(random)}</td></tr>"


def charts(report: PartitionReport) -> dict[str, bytes]:
    """PNG images by their titles, in the order of a page."""
    drawn = {
        "Nodes, edges and halo of each part": _sizes(report),
        "Edges from part to part": _matrix(report),
        "Against random parts": _against_random(report),
        "Remote rows along a walk": _walk(report),
    }
    if len(report.given.cut.cut_by_relation) > 1:
        drawn["Cut of each relation"] = _relations(report)
    images = {title: io.BytesIO() for title in drawn}
    for title, figure in drawn.items():
        figure.savefig(images[title], format="png", dpi=_DPI, bbox_inches="tight")
    return {title: stream.getvalue() for title, stream in images.items()}


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    return figure, figure.subplots(1, columns)


def _tidy(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _: int = 0) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _sizes(report: PartitionReport) -> Any:
    cut = report.given.cut
    figure, panels = _figure(11, 3.2, 3)
    parts = np.arange(cut.num_parts)
    for axes, title, sizes in zip(
        panels, ("nodes", "edges", "halo nodes"), (cut.nodes, cut.edges, cut.halo), strict=True
    ):
        axes.bar(parts, sizes, color=_OURS, width=0.8)
        axes.axhline(sizes.mean(), color=_MEAN, linewidth=1, linestyle="--")
        axes.set_title(f"{title} (dashed: mean)", fontsize=10)
        axes.set_xlabel("part")
        _tidy(axes)
    return figure


def _matrix(report: PartitionReport) -> Any:
    from matplotlib.colors import LogNorm

    counts = report.given.cut.edge_matrix.astype(float)
    size = min(4.0 + 0.2 * len(counts), 6.5)
    figure, axes = _figure(size + 1.2, size)
    largest = max(counts.max(), 2.0)
    least = min(counts[counts > 0].min(initial=largest), largest / 2)
    image = axes.imshow(np.maximum(counts, least), cmap="YlGnBu", norm=LogNorm(vmin=least, vmax=largest))
    figure.colorbar(image, ax=axes, label="edges", shrink=0.8)
    axes.set(xlabel="part of the destination", ylabel="part of the source")
    if len(counts) <= _MOST_NUMBERS:
        axes.set(xticks=range(len(counts)), yticks=range(len(counts)))
        for row, column in np.ndindex(*counts.shape):
            color = "white" if counts[row, column] > largest**0.6 else "black"  # on dark and light ground
            axes.text(column, row, _short(counts[row, column]), ha="center", va="center", color=color, fontsize=8)
    return figure


def _against_random(report: PartitionReport) -> Any:
    names = ["cut edges", f"walks of {report.walk_length}"]
    names += [f"{hop + 1}-hop samples" for hop in range(len(report.fanouts))]
    figure, axes = _figure(8, 3.4)
    places = np.arange(len(names))
    for shift, quality, color, label in (
        (-0.2, report.given, _OURS, report.method),
        (0.2, report.random, _RANDOM, "random"),
    ):
        shares = [quality.cut.cut, quality.walks.share, *(hop.share for hop in quality.hops)]
        bars = axes.bar(places + shift, [100 * share for share in shares], 0.4, color=color, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(places, [names[0], *(f"remote rows,\n{name}" for name in names[1:])])
    axes.set(ylabel="%", ylim=(0, 112))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2, loc="upper left")
    return figure


def _walk(report: PartitionReport) -> Any:
    figure, axes = _figure(8, 3.2)
    for quality, color, label in ((report.given, _OURS, report.method), (report.random, _RANDOM, "random")):
        walks = quality.walks
        alive = walks.visits > 0
        steps = np.flatnonzero(alive)
        axes.plot(steps, 100 * walks.remote[alive] / walks.visits[alive], color=color, label=label, marker=".")
    axes.set(xlabel="steps from the start", ylabel="remote visits, %")
    axes.set_ylim(bottom=0)
    _tidy(axes)
    axes.legend(frameon=False)
    return figure


def _relations(report: PartitionReport) -> Any:
    by_relation = report.given.cut.cut_by_relation
    largest = sorted(by_relation, key=lambda etype: -report.num_edges[":".join(etype)])[:_MOST_RELATIONS]
    figure, axes = _figure(9, 1.2 + 0.27 * len(largest))
    places = np.arange(len(largest))[::-1]
    bars = axes.barh(places, [100 * by_relation[etype] for etype in largest], color=_OURS)
    axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    names = [":".join(etype) if etype[0] != etype[2] else etype[1] for etype in largest]
    axes.set_yticks(places, [name if len(name) <= 40 else name[:37] + "..." for name in names], fontsize=8)
    axes.set(xlabel=f"cut edges, % (the {len(largest)} largest relations)", xlim=(0, 108))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
