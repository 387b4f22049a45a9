"""Runs side by side: their scores, costs, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from graph_emb.config import fields_of
from graph_emb.core.errors import ConfigError
from graph_emb.run.report.charts import line_chart, number
from graph_emb.run.report.curves import Curve, curves_of
from graph_emb.run.report.facts import RunFacts
from graph_emb.run.report.page import page, shown, table
from graph_emb.run.scores import scores_of


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Runs side by side; each row holds a value of each run, None where a run has none.

    Attributes:
        names: Of the runs.
        scores: By name, higher is better.
        costs: Seconds, memory, parameters.
        settings: By path, of the settings in which the runs differ; None too where a model has no such setting.
        curves: Of each run.
    """

    names: tuple[str, ...]
    scores: dict[str, list[float | None]]
    costs: dict[str, list[float | None]]
    settings: dict[str, list[Any]]
    curves: tuple[list[Curve], ...]

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"runs": list(self.names), "scores": self.scores, "costs": self.costs, "settings": self.settings}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = {name: [_told(value, "{:.4f}".format) for value in row] for name, row in self.scores.items()}
        rows |= {name: [_told(value, number) for value in row] for name, row in self.costs.items()}
        align = ("left", *["right"] * len(self.names))
        lines = [[name, *row] for name, row in rows.items()]
        numbers = tabulate(lines, ["", *self.names], disable_numparse=True, colalign=align)
        lines = self._texts()
        if not lines:
            return f"{numbers}\n\nno setting differs"
        return f"{numbers}\n\n{tabulate(lines, ['setting', *self.names], disable_numparse=True)}"

    def page(self) -> str:
        """The comparison as a page, with the curves of all runs in one chart each."""
        heads = ("", *self.names)
        body = [f"<section><h2>Scores</h2>{table(heads, _rows(self.scores))}</section>"] if self.scores else []
        body.append(f"<section><h2>Costs</h2>{table(heads, _rows(self.costs))}</section>")
        texts = self._texts()
        settings = table(("setting", *self.names), texts) if texts else "<p>No setting differs.</p>"
        body.append(f"<section><h2>Settings that differ</h2>{settings}</section>")
        charts = "".join(
            f"<figure><figcaption>{escape(curve.title)}</figcaption>"
            f"{line_chart(curve.series, curve.x_title, curve.title, from_zero=curve.from_zero)}</figure>"
            for curve in self._overlaid()
        )
        if charts:
            body.append(f'<section><h2>Training</h2><div class="charts">{charts}</div></section>')
        return page(f"{len(self.names)} runs", "", body)

    def _texts(self) -> list[list[str]]:
        rows = self.settings.items()
        return [[path, *("-" if value is None else shown(value) for value in row)] for path, row in rows]

    def _overlaid(self) -> list[Curve]:
        """One curve a title and x axis, with the series of every run that has it."""
        found: dict[tuple[str, str], Curve] = {}
        for name, curves in zip(self.names, self.curves, strict=True):
            for curve in curves:
                whole = found.setdefault(
                    (curve.title, curve.x_title), Curve(curve.title, curve.x_title, {}, curve.from_zero)
                )
                whole.series.update({f"{name} {own}".strip(): points for own, points in curve.series.items()})
        return list(found.values())


def compare(runs: Sequence[RunFacts], names: Sequence[str] | None = None) -> SideBySide:
    """Put runs side by side.

    Args:
        runs: Two at least.
        names: Of the runs; None: their folders'.
    Raises:
        ConfigError: fewer than two runs, or two of one name.
    """
    names = [run.name for run in runs] if names is None else names
    if len(runs) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"compare {', '.join(names) or 'nothing'}: give at least two runs, each once")
    scores = [scores_of(run.metrics.get("evaluation", {})) for run in runs]
    settings = [fields_of(run.config) for run in runs]
    paths = dict.fromkeys(path for own in settings for path in own if path != "dataset.root")
    differing = {path: [own.get(path) for own in settings] for path in paths}
    return SideBySide(
        tuple(names),
        {name: [own.get(name) for own in scores] for name in dict.fromkeys(name for own in scores for name in own)},
        {name: row for name, row in _costs(runs).items() if any(value is not None for value in row)},
        {path: row for path, row in differing.items() if any(value != row[0] for value in row[1:])},
        tuple(curves_of(run.history) for run in runs),
    )


def _costs(runs: Sequence[RunFacts]) -> dict[str, list[float | None]]:
    trained = [run.metrics.get("train", {}) for run in runs]
    return {
        "seconds of training": [run.metrics.get("seconds", {}).get("train") for run in runs],
        "peak memory, MiB": [train.get("peak_memory_mib") for train in trained],
        "parameters": [train.get("parameters") for train in trained],
    }


def _told(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _rows(rows: dict[str, list[float | None]]) -> list[tuple[Any, ...]]:
    return [(name, *("-" if value is None else value for value in row)) for name, row in rows.items()]
