"""``graph-emb ogb report``: the record that a leaderboard of OGB asks for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from graph_emb.cli.console import listed
from graph_emb.core.errors import ConfigError
from graph_emb.core.storage import replace_json
from graph_emb.core.yaml_text import parse_yaml


def run(args: argparse.Namespace) -> int:
    """Check the seeds against the rules and print the record as Markdown."""
    from graph_emb.ogb.report import Submission, make_report

    tried = dict(_tried(text) for text in args.tried)
    told = Submission(args.method, args.contact, args.code, args.paper, args.external_data)
    report = make_report(args.runs, partial=args.partial, tried=tried, submission=told)
    text = report.markdown()
    if args.markdown is not None:
        Path(args.markdown).write_text(text, encoding="utf-8")
    if args.json is not None:
        replace_json(args.json, report.as_dict())
    print(text, end="")
    return 0


def _tried(text: str) -> tuple[str, list[Any]]:
    path, sign, values = text.partition("=")
    if not sign or not path or not listed(values):
        raise ConfigError(f"--tried {text!r} is not of the form SETTING=V,V, such as predictor.lr=0.001,0.01")
    return path, [_value(text) for text in listed(values)]


def _value(text: str) -> Any:
    """A value as an override's; 1e-3, which is a text in YAML, is the number that a setting makes of it."""
    value = parse_yaml(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
