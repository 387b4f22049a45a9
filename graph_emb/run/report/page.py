"""``report.html`` of a run: one file without a link to any other, which any browser opens from the disk."""

# N rows, Q asked rows.

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import config_text
from graph_emb.core.errors import ConfigError
from graph_emb.core.storage import replace_text
from graph_emb.evaluate.nearest import NearestNeighbors
from graph_emb.evaluate.projection import project
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.run.report.charts import bar_chart, legend, line_chart, number, scatter
from graph_emb.run.report.curves import curves_of
from graph_emb.run.report.facts import RunFacts, classes_of
from graph_emb.run.report.style import SCRIPT, STYLE
from graph_emb.run.scores import scores_of

REPORT = "report.html"
MOST_ON_MAP = 2_500
"""Rows of a map; of larger tables a sample."""
TSNE_ROWS = 1_000
"""Labelled rows up to which the map is t-SNE by default: a second."""
ASKED, NEAREST = 6, 5
LONGEST_NAME = 60


def write_report(folder: Path, facts: RunFacts, method: str | None = None) -> Path:
    """Write ``report.html`` into a run folder and return its path. Arguments as ``report_page``."""
    replace_text(folder / REPORT, report_page(facts, method))
    return folder / REPORT


def report_page(facts: RunFacts, method: str | None = None) -> str:
    """The page of a run: scores, curves, map, neighbours, configuration, versions, command.

    Args:
        method: Of the map: "pca", "tsne", "umap"; None: t-SNE for at most ``TSNE_ROWS`` rows with labels, else PCA.
    Raises:
        ConfigError: an unknown method, or one that is not installed.
    """
    config, metrics = facts.config, facts.metrics
    title = f"{config.model.name} on {metrics['dataset'].get('name', config.dataset.name)}"
    body = [
        _tiles(facts),
        _section("Scores", _scores(metrics.get("evaluation", {}))),
        _section("Training", _curves(facts)),
        *_rows(facts, method),
        _section("Configuration", _configuration(facts)),
        _section("Versions and files", _versions(facts)),
    ]
    return page(title, metrics.get("status", ""), body)


def page(title: str, status: str, body: Iterable[str]) -> str:
    """A whole page with style and script of its own."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style></head><body><header><h1>{escape(title)}</h1><span>{escape(status)}</span></header>"
        f'<main>{"".join(body)}</main><div id="tip" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """A table of texts and numbers."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'


def _cell(value: Any) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        text = f"{value:.4f}" if isinstance(value, float) and 1e-3 <= abs(value) <= 1 else number(value)
        return f'<td class="n">{escape(text)}</td>'
    return f"<td>{escape(shown(value))}</td>"


def shown(value: Any) -> str:
    """A setting as YAML's one line says it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tiles(facts: RunFacts) -> str:
    """Numbers at a glance."""
    metrics, train = facts.metrics, facts.metrics.get("train", {})
    sizes = {name: count for name, count in metrics["dataset"].items() if type(count) is int}
    seconds = metrics.get("seconds", {}).get("train")
    told: dict[str, Any] = {**sizes, "parameters": train.get("parameters"), "seconds of training": seconds}
    told["peak memory, MiB"] = train.get("peak_memory_mib")
    cache = train.get("cache") or {}
    for side, stats in ({"": cache} if "hit_share" in cache else cache).items():  # of tables in files
        rows = f"{side} rows".strip()
        told[f"% of {rows} in memory"] = round(100 * stats["hit_share"], 1)
        told[f"seconds waiting for {rows}"] = round(stats["seconds_waited"], 1)
        told[f"MiB read and written, {rows}"] = round((stats["bytes_read"] + stats["bytes_written"]) / 2**20)
    tiles = [
        f"<div><b>{escape(number(value))}</b>{escape(name.replace('_', ' '))}</div>"
        for name, value in told.items()
        if value is not None
    ]
    command = metrics.get("command")
    line = f'<pre class="command">{escape(command)}</pre>' if command else ""
    return f'<div class="tiles">{"".join(tiles)}</div>{line}'


def _scores(evaluation: dict[str, Any]) -> str:
    if "error" in evaluation:
        return f'<p class="bad">not evaluated: {escape(str(evaluation["error"]))}</p>'
    found = scores_of(evaluation)
    content = table(("score", "value"), found.items(), "narrow") if found else "<p>Nothing was judged.</p>"
    for name, values in evaluation.items():
        rows = values.get("by_degree") if isinstance(values, dict) else None
        if rows:
            bars = [(_degrees(row), row["score"], f"of {row['num_nodes']:,} nodes") for row in rows]
            content += f"<h3>{escape(name.replace('_', ' '))} by degree</h3>{bar_chart(bars)}"
    return content


def _degrees(row: dict[str, Any]) -> str:
    least, most = row["least"], row["most"]
    return f"degree {least:,}" if least == most else f"{least:,} to {most:,}"


def _curves(facts: RunFacts) -> str:
    charts = [
        f"<figure><figcaption>{escape(curve.title)}</figcaption>"
        f"{line_chart(curve.series, curve.x_title, curve.title, from_zero=curve.from_zero)}</figure>"
        for curve in curves_of(facts.history)
        if curve.title != "share of local rows" or facts.config.parallel.mode != "local"
    ]
    if not charts:
        few = len(facts.history)
        return f"<p>The training logged {few} line{'' if few == 1 else 's'}: too few for curves.</p>"
    return f'<div class="charts">{"".join(charts)}</div>'


def _rows(facts: RunFacts, method: str | None) -> list[str]:
    """Map and neighbours of the table that has labels, else of the main one."""
    name = next((name for name in facts.tables if name in facts.labels), next(iter(facts.tables), None))
    if name is None:
        return []
    rows, labels = facts.tables[name], facts.labels.get(name)
    heading = "Map" if len(facts.tables) == 1 else f"Map of {name}"
    if len(rows.weights) < 3 or not np.isfinite(rows.weights).all():
        why = "has fewer than three rows" if len(rows.weights) < 3 else "holds numbers that are not finite"
        return [_section(heading, f"<p>The table {escape(why)}.</p>")]
    classes, class_names = (np.full(len(rows.weights), -1), []) if labels is None else classes_of(labels)
    generator = np.random.default_rng(facts.config.seed)
    chosen = _chosen(classes, generator)
    small = len(chosen) <= TSNE_ROWS and labels is not None
    used = method or ("tsne" if small else "pca")
    points = project(rows.weights[chosen], used, facts.config.seed)
    names = [_name(rows.node_ids[at]) for at in chosen]
    shown_rows = f"{len(chosen):,} of {len(rows.weights):,} rows" if len(chosen) < len(rows.weights) else "all rows"
    title = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}[used]
    several = ", the most frequent of a node" if labels is not None and not labels.is_single else ""
    unseen = "" if facts.config.model.family == "gnn" else ", unseen in training"
    note = f"{title} of {shown_rows}" + (f"; colours are the labels{several}{unseen}" if labels else "")
    keys = legend(class_names[:12], classes=True) if class_names else ""
    more = len(class_names) - 12
    keys += f"<p>{more} smaller classes are grey.</p>" if more > 0 else ""
    find = '<input id="find" type="search" placeholder="find a node" aria-label="find a node">'
    drawn = scatter(points, names, classes[chosen], class_names)
    near = _section("Nearest neighbours", _neighbors(rows, classes, class_names, generator))
    return [_section(heading, f"<p>{escape(note)}. {find}</p>{drawn}{keys}"), near]


def _chosen(classes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """At most ``MOST_ON_MAP`` row numbers, rows with a class first, in their order."""
    order = generator.permutation(len(classes))
    return np.sort(order[np.argsort(classes[order] < 0, kind="stable")][:MOST_ON_MAP])


def _neighbors(
    rows: Embeddings, classes: NDArray[np.int64], class_names: Sequence[str], generator: np.random.Generator
) -> str:
    """The nearest rows, by cosine, of a few rows that chance takes."""
    count = min(NEAREST, len(rows.weights) - 1)
    asked = np.sort(generator.permutation(len(rows.weights))[:ASKED])
    found = NearestNeighbors(rows.weights).nearest_rows(asked, count)

    def told(at: int) -> str:
        name = _name(rows.node_ids[at])
        return name if classes[at] < 0 else f"{name} ({class_names[classes[at]]})"

    lines = [
        [told(at), *(f"{told(near)} {score:.2f}" for near, score in zip(ids, scores, strict=True))]
        for at, ids, scores in zip(asked.tolist(), found.ids.tolist(), found.scores.tolist(), strict=True)
    ]
    return table(("node", *(f"{place + 1}." for place in range(count))), lines)


def _name(node: Any) -> str:
    """A name as it is, or its ends: those of one place differ at the end."""
    text = str(node)
    head = LONGEST_NAME // 4
    return text if len(text) <= LONGEST_NAME else f"{text[:head]}...{text[head + 3 - LONGEST_NAME :]}"


def _configuration(facts: RunFacts) -> str:
    try:
        changed = facts.changed()
    except ConfigError:  # a data set in memory, which a configuration alone cannot name
        changed = {}
    rows = [(path, shown(value), shown(usual)) for path, (value, usual) in changed.items()]
    content = table(("setting", "value", "default"), rows) if rows else "<p>Every setting has its default.</p>"
    return f"{content}<details><summary>all settings</summary><pre>{escape(config_text(facts.config))}</pre></details>"


def _versions(facts: RunFacts) -> str:
    versions = table(("package", "version"), facts.metrics.get("versions", {}).items(), "narrow")
    files = ", ".join(facts.metrics.get("files", []))
    return versions + (f"<p>Files: {escape(files)}</p>" if files else "")
