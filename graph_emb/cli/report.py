"""``graph-emb report`` and ``compare``: the page of a run, and runs side by side."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from graph_emb.core.errors import GraphEmbError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import replace_json, replace_text
from graph_emb.core.terminal import say
from graph_emb.run.family import family_of
from graph_emb.run.report.compare import compare as compare_runs
from graph_emb.run.report.facts import RunFacts, labels_of
from graph_emb.run.report.page import write_report
from graph_emb.run.run_folder import METRICS, read_metrics


def report(args: argparse.Namespace) -> int:
    """Write the page of a finished run again, perhaps with another map; print its path."""
    place = user_path(args.run)
    facts = RunFacts.of_folder(place)
    data = facts.config.dataset if args.root is None else facts.config.dataset.model_copy(update={"root": args.root})
    try:  # its labels colour the map
        family = family_of(facts.config.model_copy(update={"dataset": data}))
        facts = replace(facts, labels=labels_of(family.load(), facts.tables))
    except (GraphEmbError, OSError) as error:
        say(args, f"graph-emb: the map has no labels: {error}")
    path = write_report(place, facts, args.map)
    metrics = read_metrics(place)
    replace_json(place / METRICS, {**metrics, "files": sorted({*metrics["files"], path.name})})
    print(path)
    return 0


def compare(args: argparse.Namespace) -> int:
    """Print runs side by side; --html and --json write them."""
    places = [user_path(run) for run in args.runs]
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = list(args.runs)
    found = compare_runs([RunFacts.of_folder(place) for place in places], names)
    if args.json is not None:
        replace_json(args.json, found.as_dict())
    if args.html is not None:
        replace_text(Path(args.html), found.page())
    print(found)
    return 0
