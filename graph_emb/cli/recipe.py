"""``graph-emb train --recipe``: a published recipe by name, seed by seed, as the scripts of examples/ogb run it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable

from graph_emb.cli.console import show_progress
from graph_emb.cli.seeds import parse_seeds
from graph_emb.config.schema import MAX_SEED
from graph_emb.core.errors import ConfigError


def run(args: argparse.Namespace, refused: Iterable[str]) -> int:
    """Train the seeds that are not finished, print the table; each seed leaves its record in ``<out>/<model>``.

    Args:
        args: Of ``graph-emb train``.
        refused: Flags that mean nothing to a recipe, by their names in ``args``.
    """
    from graph_emb.ogb.recipes import recipe_named
    from graph_emb.ogb.script import Script

    dataset, model = recipe_named(args.recipe)
    for name in refused:
        if getattr(args, name):
            flag = name if name == "model" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} {getattr(args, name)} has no effect on a recipe, whose settings change by path=value, such as "
                "predictor.epochs=50; leave it out"
            )
    if args.seed is not None and args.seeds is not None:
        raise ConfigError(f"--seed {args.seed} and --seeds {args.seeds}: give one of them")
    seeds = [_count("seed", args.seed or "0", 0)] if args.seeds is None else parse_seeds(args.seeds)
    words = ["--model", model, "--out", args.out or f"runs/{dataset}", "--seeds", *map(str, seeds)]
    if args.root is not None:
        words += ["--root", args.root]
    if args.threads is not None:
        words += ["--threads", str(_count("threads", args.threads, 1))]
    if args.overrides:
        words += ["--set", *args.overrides]
    if show_progress(args):
        words.append("--progress")
    script = Script.of(dataset, file="graph-emb train", description=args.recipe)
    script.run(words, shlex.join(["graph-emb", *args.argv]))
    return 0


def _count(flag: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= MAX_SEED):
        raise ConfigError(f"--{flag} {text}: give an integer in [{least}, {MAX_SEED}]")
    return int(text)
