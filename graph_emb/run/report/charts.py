"""Charts as inline SVG: lines, bars and maps. Marks carry what hovering shows in ``data-tip``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

COLOURS = (
    "#1f77b4", "#d95f02", "#2a9d5c", "#c0392b", "#8460b5", "#8c564b", "#d6569f", "#6b7280", "#a0a020", "#17a2b8",
    "#0b4f8a", "#f0a35e",
)  # fmt: skip
"""Of series and classes in their order; of further classes the last one, a grey."""
OTHER = "#c3c7cf"
WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 38
MOST_POINTS = 400
"""Of a line; longer ones are thinned evenly, the last point kept."""

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], x_title: str, y_title: str, *, from_zero: bool = False) -> str:
    """Lines over a common axis, each with its name in the legend.

    Args:
        series: By name, points in the order of x, finite, at least one in all.
        x_title: Below the axis, such as "epoch".
        y_title: What y is, for readers of the page aloud.
        from_zero: The axis of y begins at 0.
    """
    lines = {name: thinned(points) for name, points in series.items() if points}
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x_ticks = ticks(min(xs), max(xs), whole=all(x.is_integer() for x in map(float, xs)))
    y_ticks = ticks(min([*ys, 0.0]) if from_zero else min(ys), max(ys))
    place_x, place_y = _Scale(x_ticks, LEFT, WIDTH - RIGHT), _Scale(y_ticks, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_title)}">']
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(_short(tick))}</text>')
    for tick in x_ticks:
        x = place_x(tick)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(_short(tick))}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_title)}</text>')
    for place, (name, points) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            tip = escape(f"{name}: {number(y)} at {x_title} {number(x)}")
            parts.append(
                f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="{3 if len(points) <= 60 else 2}" '
                f'fill="{colour}" data-tip="{tip}"/>'
            )
    parts.append("</svg>")
    return "".join(parts) + (legend(list(lines)) if len(lines) > 1 else "")


def bar_chart(bars: Sequence[tuple[str, float, str]], most: float = 1.0) -> str:
    """Bars from left to right by name, value and what hovering adds; ``most`` is the full width."""
    height = 26 * len(bars) + 6
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img">']
    for place, (name, value, more) in enumerate(bars):
        y, length = 26 * place + 4, max(0.0, min(1.0, value / most)) * (WIDTH - 170)
        parts.append(f'<text x="112" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="118" y="{y}" width="{length:.1f}" height="20" fill="{COLOURS[0]}" '
            f'data-tip="{escape(f"{name}: {number(value)} {more}")}"/>'
        )
        parts.append(f'<text x="{122 + length:.1f}" y="{y + 15}">{escape(number(value))}</text>')
    return "".join([*parts, "</svg>"])


def scatter(
    points: NDArray[np.floating], names: Sequence[str], classes: NDArray[np.integer], class_names: Sequence[str]
) -> str:
    """A map of points.

    Args:
        points: Shape (N, 2), finite.
        names: N names, shown on hovering.
        classes: Shape (N,), in [0, C), or -1 for points of no class.
        class_names: C names, the largest class first; empty where nothing has a class.
    """
    size = 620
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = 12 + (points - low) / np.maximum(high - low, 1e-12) * (size - 24)
    radius = 5 if len(points) <= 200 else 3.4 if len(points) <= 1200 else 2.4
    parts = [f'<svg id="map" class="map" viewBox="0 0 {size} {size}" role="img" aria-label="map of the rows">']
    for (x, y), name, own in zip(scaled.tolist(), names, classes.tolist(), strict=True):
        title = name if own < 0 else f"{name} ({class_names[own]})"
        colour = class_colour(own) if class_names else COLOURS[0]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{size - y:.1f}" r="{radius}" fill="{colour}" class="c{own}" '
            f'data-tip="{escape(title)}" data-name="{escape(name)}"/>'
        )
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str], classes: bool = False) -> str:
    """Names with their colours; those of classes are buttons that show and hide the class."""
    tag = "button" if classes else "span"
    parts = [
        f'<{tag} class="key"{f" data-class={place}" if classes else ""}>'
        f'<i style="background:{class_colour(place)}"></i>{escape(name)}</{tag}>'
        for place, name in enumerate(names)
    ]
    return f'<div class="legend">{"".join(parts)}</div>'


def class_colour(place: int) -> str:
    """Of the class at a place; grey for none and for those after the twelfth."""
    return COLOURS[place] if 0 <= place < len(COLOURS) else OTHER


def thinned(points: Points) -> Points:
    """At most ``MOST_POINTS`` of the points, evenly taken, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[at] for at in np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int).tolist()]


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Round numbers from below ``low`` to above ``high``, 2 to ``most`` + 1 of them; ``whole`` leaves out fractions."""
    if not high > low:
        pad = 1.0 if whole else abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = max((high - low) / (most - 1), 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
    step = next(step for step in steps if step >= raw * 0.999 and not (whole and step % 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [at * step for at in range(first, last + 1)]


def number(value: float) -> str:
    """A number for people: 1,234,567, 0.1234 or 3e-05."""
    if value == 0 or (float(value).is_integer() and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _short(value: float) -> str:
    """A number beside an axis, where there is room for seven letters."""
    return f"{number(value / 1e6)}M" if abs(value) >= 1e6 else number(value)


class _Scale:
    """From the range of ticks to that of pixels."""

    def __init__(self, marks: Sequence[float], start: float, end: float) -> None:
        self.low, self.span = marks[0], marks[-1] - marks[0]
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / self.span * (self.end - self.start)
