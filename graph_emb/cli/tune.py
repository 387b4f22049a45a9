"""``graph-emb tune``: a command line as of ``train`` becomes a search for its model's settings."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from graph_emb.cli.parser import TUNE_FLAGS
from graph_emb.cli.train import default_folder
from graph_emb.config import MODELS, config_from, parse_override, place_key, read_config_file
from graph_emb.core.errors import ConfigError
from graph_emb.core.imports import importing
from graph_emb.core.terminal import INTERRUPTED, say
from graph_emb.run.launch.command import layers_of


def run(args: argparse.Namespace) -> int:
    """Run the trials that are missing, print the table, name the files."""
    layers = [read_config_file(args.config)] if args.config else []
    if args.model is not None:
        layers.append(place_key("model.name", args.model))
    layers += layers_of(args, TUNE_FLAGS)
    layers.extend(parse_override(text) for text in args.overrides)
    if not any("dataset" in layer for layer in layers):
        raise ConfigError("no data set: give --dataset NAME, a path, or --config FILE")
    if not any("model" in layer for layer in layers):
        raise ConfigError(f"no model: write graph-emb tune NAME, or --config FILE; names: {', '.join(MODELS)}")
    config = config_from(*layers)
    out = Path(args.out) if args.out else Path("searches") / default_folder(config).name
    with importing():  # after the configuration: torch takes a second
        from graph_emb.tuning.search import TrialRow, ranges_of, tune_config

    def told(row: TrialRow) -> None:
        value = row.problem if row.value is None else f"{args.metric} {row.value:.4f}"
        say(args, f"trial {row.number} of {args.trials}: {row.state}, {value}, {row.seconds:.1f} s")

    result = tune_config(
        config,
        out=out,
        trials=args.trials,
        hours=args.hours,
        metric=args.metric,
        search=ranges_of(args.search),
        jobs=args.jobs,
        resume=args.resume,
        progress=not args.quiet,
        on_trial=told,
    )
    print(result)
    if result.best is not None:
        first = next((row for row in result.trials if row.number == 0 and row.value is not None), None)
        of_first = "" if first is None or first.value is None else f"; trial 0, the given settings: {first.value:.4f}"
        print(f"\nbest: trial {result.best.number}, {result.metric} {result.best.value:.4f}{of_first}")
        say(args, f"{out}: best.yaml, trials.tsv, search.html, tried.txt (for graph-emb ogb report)")
        say(args, f"graph-emb train --config {shlex.quote(str(out / 'best.yaml'))}")
    elif not result.interrupted:
        say(args, f"graph-emb: no trial of {out} is complete; --resume goes on, with more --trials or --hours")
    if result.interrupted:
        say(args, f"graph-emb: interrupted; --resume --out {shlex.quote(str(out))} goes on")
        return INTERRUPTED
    return 0
