"""A report as one HTML page: tables and charts, no script, no other file, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

from partition.report.charts import charts
from partition.report.report import PartitionReport, written

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
    images = "\n".join(_image(name, content) for name, content in charts(report).items())
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
{_rows(report.rows())}
</table>
<p class="note">{escape(report.assumptions())}</p>
{images}
</body>
</html>
"""
    return written(text, path)


def _rows(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = []
    for label, given, random in rows:
        inner = ' class="inner"' if label.startswith(" ") else ""
        lines.append(
            f"<tr><td{inner}>{escape(label.strip())}</td><td>{escape(given)}</td><td>{escape(random)}</td></tr>"
        )
    return "\n".join(lines)


def _image(title: str, content: bytes) -> str:
    data = base64.b64encode(content).decode("ascii")
    return f'<h2>{escape(title)}</h2>\n<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
