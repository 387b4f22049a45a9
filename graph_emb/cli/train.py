"""``graph-emb train``: a recipe, flags and overrides become a configuration, the pipeline does the rest."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graph_emb.cli.parser import TRAIN_FLAGS
from graph_emb.config import (
    MODELS,
    RunConfig,
    config_from,
    fields_of,
    parse_override,
    place_key,
    preset,
    read_config_file,
)
from graph_emb.core.errors import ConfigError
from graph_emb.core.imports import importing
from graph_emb.core.paths import user_path
from graph_emb.core.progress import on_terminal
from graph_emb.core.storage import replace_json
from graph_emb.core.terminal import INTERRUPTED, listed, say
from graph_emb.run.launch.command import (
    PACKAGE,
    Start,
    layers_of,
    machines_of,
    others_started,
    restarts_of,
    starts_job,
    with_job,
)
from graph_emb.run.launch.flags import PLACING, resumed, without
from graph_emb.run.launch.plan import Machines, Restarts

REPEATS = {
    "same threads": "the same seed gives the same bits with --threads {threads} only",
    "never": "the same seed gives other bits each time: rows are changed without an order (sgd: see --threads 1, and "
    "parallel.hogwild=false for several trainers)",
}
"""Of runs that do not give the same bits for every number of threads."""
NOT_OF_RECIPES = (
    *("model", "dataset", "new_edges", "labels", "split", "test_edges", "hold_out", "config", "directed"),
    *("trust_pickle", "no_eval"),
)
"""Flags that mean nothing beside ``--recipe``."""
WIRE = "parallel.wire_dtype"
LEFT_OUT = {"parallel.negative_pool": "0"}
"""Values that stand for no setting where null does not, by path."""


def run(args: argparse.Namespace) -> int:
    """Train every seed, print the tables, name the run folders."""
    if args.seed is not None and args.seeds is not None:
        raise ConfigError(f"--seed {args.seed} and --seeds {args.seeds}: give one of them")
    if args.seeds is not None and any(text.partition("=")[0].strip() == "seed" for text in args.overrides):
        raise ConfigError(
            f"an override of seed and --seeds {args.seeds}: every run would have the same; give one of them"
        )
    config = _following(config_of(args))
    machines = _machines(args, config)
    _restarts(args, config)
    if not args.hosts:
        return _run(args, config)
    with others_started(args, machines, args.argv) as lost:
        return _run(_with(args, lost=lost), config)


def _run(args: argparse.Namespace, config: RunConfig) -> int:
    if args.recipe is not None:
        return run_recipe(args, config)
    out = Path(args.out or default_folder(config))
    return run_one(args, config, out) if args.seeds is None else run_seeds(args, config, out)


def _machines(args: argparse.Namespace, config: RunConfig) -> Machines:
    parallel = config.parallel
    return machines_of(args, None, parallel.servers, parallel.trainers)


def _following(config: RunConfig) -> RunConfig:
    with importing():
        from graph_emb.run.inputs import following  # after the configuration, as the pipeline

    return following(config)


def estimate(args: argparse.Namespace) -> int:
    """Train a few seconds, print what the whole would take; --json writes it."""
    with importing():
        from graph_emb.run.cost import Forecast
        from graph_emb.run.estimate import PROBE_S, Estimate, estimate_of
        from graph_emb.run.estimate_hosts import estimate_on
        from graph_emb.transport.link import Link

    if args.link is not None and args.num_hosts is None:
        raise ConfigError("--link has no effect without --hosts; give the number of machines")
    link = Link.parse(args.link or "10gbit")
    say(args, "graph-emb: measuring a few seconds of this training; nothing of it is kept")
    job: dict[str, Any] = {}
    if args.num_hosts is not None:  # so that settings of the exchange have a meaning
        job = {"parallel": {"mode": "collective", "trainers": max(2, args.num_hosts), "oversubscribe": True}}
    config, seconds = _following(config_of(args, job)), PROBE_S if args.seconds is None else args.seconds
    found: Estimate | Forecast
    found = (
        estimate_of(config, seconds) if args.num_hosts is None else estimate_on(config, args.num_hosts, link, seconds)
    )
    if args.json is not None:
        replace_json(args.json, found.as_dict())
    print(found)
    return 0


def run_one(args: argparse.Namespace, config: RunConfig, out: Path) -> int:
    """Train with one seed, in this process or in those that it starts."""
    if starts_job(config):
        return launch(config, out, args)
    if goes_on(args) and is_finished(out, config, resumed=True):
        return tell_finished(args, out)
    with importing():  # after the configuration: torch takes a second
        from graph_emb.run.pipeline import run as run_pipeline
        from graph_emb.run.report.page import REPORT

    command = shlex.join(["graph-emb", *args.argv])
    options = {"overwrite": args.overwrite, "resume": args.resume, "progress": not args.quiet}
    result = run_pipeline(config, out=out, command=command, **options)
    if result.dataset is None:  # a rank that only helped
        return 0
    print(summary(result.metrics))
    for finding in result.findings:
        print(f"\n{finding}")
    if result.interrupted:
        say(args, f"graph-emb: interrupted; what was trained is in {result.folder}")
        return INTERRUPTED
    say(args, f"\nrun folder: {result.folder}")
    if result.folder is not None and (result.folder / REPORT).is_file():
        say(args, f"its page: {result.folder / REPORT}")
    return 0


def goes_on(args: argparse.Namespace) -> bool:
    """Whether a finished run in --out is what was asked for; with --overwrite it is made again."""
    return args.resume and not args.overwrite


def tell_finished(args: argparse.Namespace, out: Path, where: str = "") -> int:
    """Say that there is nothing to resume.

    Args:
        where: Of several machines the one that holds the run, if it is another.
    """
    from graph_emb.run.report.page import REPORT

    place = out / REPORT if (out / REPORT).is_file() else out
    say(args, f"graph-emb: nothing to resume, the run is complete{where}: {place}")
    return 0


def _with(args: argparse.Namespace, **changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), **changes})


def run_recipe(args: argparse.Namespace, config: RunConfig) -> int:
    """Train the seeds of a recipe that are not finished, print the table.

    Run folders and records are ``<out>/<model>/seed-<n>`` and ``seed-<n>.json`` beside it.
    """
    with importing():
        from graph_emb.ogb.recipes import recipe_named
        from graph_emb.ogb.script import RecipeRuns, check_accepted, table
        from graph_emb.run.pipeline import PipelineResult
        from graph_emb.run.pipeline import run as run_pipeline

    dataset, model = recipe_named(args.recipe)
    out = Path(args.out or f"runs/{dataset}")

    def train(config: RunConfig, place: Path, replace: bool) -> PipelineResult | None:
        if not starts_job(config):
            options = {"overwrite": replace, "resume": args.resume, "progress": not args.quiet}
            result = run_pipeline(config, out=place, **options)
            return None if result.dataset is None else result  # a rank that only helped
        own = _with(args, argv=words_of(args.argv, config.seed, out), overwrite=replace)
        check_accepted(launch(config, place, own))
        return None

    command = shlex.join(["graph-emb", *args.argv])
    chosen: Any = args.settings_selected_on or "none"
    runs = RecipeRuns(config, model, out, command, train, selected_on=chosen, again=args.overwrite)
    seeds = [config.seed] if args.seeds is None else parse_seeds(args.seeds)
    records = runs.records(seeds, _start(args, config))
    if records is not None:
        print(table(dataset, {model: records}))
    return 0


def launch(config: RunConfig, out: Path, args: argparse.Namespace) -> int:
    """Run this same command as the trainers of this machine and wait for them; their output stays beside the run."""
    start = _start(args, config)
    words = [*without(args.argv, PLACING), *start.counts(config)]
    python = [sys.executable, *PACKAGE]

    def again(machines: Machines) -> list[str]:
        trainers = sum(host.trainers for host in machines.hosts)
        # Who is left alone exchanges nothing, and settings of the exchange would be refused.
        over_wires = len(machines.hosts) > 1 if config.parallel.mode == "kvstore" else trainers > 1
        given = [path for path in config.exchange_settings if not (over_wires if path == WIRE else trainers > 1)]
        left_out = [f"{path}={LEFT_OUT.get(path, 'null')}" for path in given]
        return [*python, *resumed(words), *start.counts(config), f"parallel.trainers={trainers}", *left_out]

    def finished() -> bool:
        return goes_on(args) and args.recipe is None and is_finished(out, config, resumed=True)

    options = {"overwrite": args.overwrite, "again": again, "finished": finished}
    code = start.run([*python, *words], config, user_path(out), **options)
    if code is not None:
        return code
    first = start.machines.hosts[0].address
    return tell_finished(args, out, f" on {first}" if start.machines.index else "")


def _start(args: argparse.Namespace, config: RunConfig) -> Start:
    lost = args.lost if args.hosts else None
    return Start(
        _machines(args, config), bool(args.hosts), not args.quiet and on_terminal(), lost, _restarts(args, config)
    )


def _restarts(args: argparse.Namespace, config: RunConfig) -> Restarts | None:
    restarts = restarts_of(args)
    if restarts is None:
        return None
    if config.parallel.mode == "local":
        raise ConfigError("--restarts is about several processes; give --trainers or --hosts, or leave it out")
    if restarts.most and config.checkpoint.every is None:
        raise ConfigError(
            f"--restarts {restarts.most} goes on from the last checkpoint, and none is saved; give --checkpoint-every"
        )
    return restarts


def config_of(args: argparse.Namespace, below: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a command line: recipe, preset or --config < flags < key=value; all above ``below``.

    Args:
        below: Settings of a job; of a model that one process trains they are left out.
    """
    layers = [] if args.preset is None else [_preset(args)]
    if args.from_run is not None:
        layers = [_continued(args)]
    elif args.recipe is not None:
        layers = [_recipe(args)]
    elif args.config:
        layers = [read_config_file(args.config)]
    if args.settings_selected_on is not None and args.recipe is None:
        raise ConfigError(
            f"--settings-selected-on {args.settings_selected_on} is kept in the record of a recipe's seed; name one "
            "with --recipe, or leave it out"
        )
    if args.new_edges and args.from_run is None:
        layers.append(place_key("dataset.new_edges", args.new_edges))
    if args.model is not None:
        layers.append(place_key("model.name", args.model))
    layers += layers_of(args, TRAIN_FLAGS)
    model = next((name for layer in reversed(layers) if (name := model_of(layer)) is not None), None)
    layers.extend(parse_override(text, model) for text in args.overrides)
    if below and not (model in MODELS and "parallel.mode" in MODELS[model].without):
        layers.insert(0, dict(below))
    layers = with_job(layers, args.hosts)
    if not any("dataset" in layer for layer in layers):
        raise ConfigError("no data set: give --dataset NAME, a path, or --config FILE")
    if not any("model" in layer for layer in layers):
        raise ConfigError(f"no model: write graph-emb train NAME, or --config FILE; names: {', '.join(MODELS)}")
    return config_from(*layers)


def _preset(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of --preset, of the model that is named beside it."""
    given = {"--config": args.config, "--recipe": args.recipe, "--from": args.from_run}
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"--preset {args.preset} and {flag} {value}: both say all settings; give one of them")
    if args.model is None:
        raise ConfigError(f"--preset {args.preset} is a model's; write graph-emb train MODEL --preset {args.preset}")
    return preset(args.model, args.preset)


def _continued(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run of --from, with the new edges."""
    for flag, given in (("--config", args.config), ("--recipe", args.recipe)):
        if given is not None:
            raise ConfigError(f"{flag} {given} and --from {args.from_run}: the run has its settings; give one of them")
    with importing():
        from graph_emb.run.new_nodes import base_of

    sections = base_of(args.from_run, args.new_edges)
    was = sections["model"]["name"]
    if args.model is not None and {args.model, was} not in ({was}, {"deepwalk", "node2vec"}):
        raise ConfigError(f"{args.model} cannot go on with --from {args.from_run}, a run of {was}; leave the model out")
    return sections


def infer(args: argparse.Namespace) -> int:
    """Train rows of nodes that a run did not have, beside its own rows, which stay; write them."""
    with importing():
        from graph_emb.run.new_nodes import infer as infer_rows

    run = user_path(args.run).resolve()
    out = args.out or run.with_name(f"{run.name}-infer")
    found = infer_rows(
        args.run,
        args.edges,
        epochs=args.epochs,
        seed=args.seed,
        num_threads=args.threads,
        out=out,
        formats=listed(args.formats),
        overwrite=args.overwrite,
        progress=not args.quiet,
    )
    num, dim = found.weights.shape
    print(f"{num:,} new nodes, rows of {dim} numbers: {out}")
    return 0


def model_of(layer: Mapping[str, Any]) -> str | None:
    """The model that a layer of a configuration names."""
    section = layer.get("model")
    name = section.get("name") if isinstance(section, Mapping) else section
    return name if isinstance(name, str) else None


def _recipe(args: argparse.Namespace) -> dict[str, Any]:
    from graph_emb.ogb.recipes import RECIPES, recipe_named

    recipe_named(args.recipe)  # refuses an unknown one
    for name in NOT_OF_RECIPES:
        if getattr(args, name):
            flag = name if name == "model" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} {getattr(args, name)} has no effect on a recipe, whose settings change by path=value, such as "
                "predictor.epochs=50; leave it out"
            )
    return RECIPES[args.recipe]


def default_folder(config: RunConfig) -> Path:
    """``runs/<model>-<data set>``."""
    name = Path(config.dataset.name).name.removesuffix(".gz")
    stem = name.rpartition(".")[0] or name
    return Path("runs") / f"{config.model.name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', stem)}"


def summary(metrics: dict[str, Any]) -> str:
    """A run in a line or two."""
    data, train = metrics["dataset"], metrics["train"]
    sizes = [f"{n:,} {what.replace('_', ' ')}" for what, n in data.items() if type(n) is int]  # of nodes, triples, ...
    lines = [f"{metrics['model']} on {data['name']}: {', '.join(sizes)}, {train['parameters']:,} parameters"]
    if data.get("counts"):
        lines.append("edges: " + ", ".join(f"{count:,} {what}" for what, count in data["counts"].items()))
    rate = next((key for key in train if key.endswith("_per_second") and train[key]), None)
    if rate is not None:
        unit = rate.removesuffix("_per_second")  # tokens of walks, edges of LINE
        loss = f"loss {train['loss']:.4f}, " if train.get("loss") is not None else ""
        first = f"first rate {train['first_lr']:g}, " if train.get("first_lr") else ""
        lines.append(
            f"{train[unit]:,} {unit} in {train['seconds']:.1f} s ({train[rate]:,} {unit}/s), "
            f"{loss}{first}peak memory {train['peak_memory_mib']:,} MiB"
        )
    if line := REPEATS.get(train.get("repeats")):
        lines.append(line.format(**train))
    return "\n".join(lines)


def parse_seeds(text: str) -> list[int]:
    """Seeds of ``0,1,2`` or ``0-9``, each once.

    Raises:
        ConfigError: no such list.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        if found is None:
            raise ConfigError(f"seeds {text!r}: write 0,1,2 or 0-9")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"seeds {text!r}: {part.strip()} ends before it begins; write {last}-{first}")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise ConfigError(f"seeds {text!r}: give at least two, each once; for one there is --seed")
    return seeds


def words_of(words: Sequence[str], seed: int, out: Path) -> list[str]:
    """The command line of one seed: that of all of them with its own seed and folder."""
    return [*without(words, {"--seeds": 1, "--out": 1}), "--seed", str(seed), "--out", str(out)]


def run_seeds(args: argparse.Namespace, config: RunConfig, out: Path) -> int:
    """Run every seed into ``out/seed-<n>``, print the table, write ``out/seeds.json``; stops at the first failure.

    The finished run of a seed is kept unless ``--overwrite`` is given.
    """
    with importing():  # torch
        from tabulate import tabulate

        from graph_emb.run.evaluation import each_seed, summary
        from graph_emb.run.run_folder import read_metrics
        from graph_emb.run.scores import scores_of

    def one(seed: int) -> int:
        say(args, f"\n== seed {seed}")
        place = out / f"seed-{seed}"
        return run_one(_with(args, argv=words_of(args.argv, seed, place)), config.replace(seed=seed), place)

    def finished(seed: int) -> bool:
        return is_finished(out / f"seed-{seed}", config.replace(seed=seed))

    def kept(seed: int) -> int | None:
        if args.overwrite or not finished(seed):
            return None
        say(args, f"\n== seed {seed} is finished")
        return 0

    seeds = parse_seeds(args.seeds)
    if args.hosts and len((machines := _machines(args, config)).hosts) > 1:
        left = _start(args, config).unfinished(seeds, lambda seed: not args.overwrite and finished(seed))
        if machines.index:  # the runs, and the table, are the first machine's
            return next((code for seed in left if (code := one(seed))), 0)
    found = []
    for seed, code in each_seed(seeds, one, kept):
        if code != 0:
            return code
        found.append(scores_of(read_metrics(out / f"seed-{seed}")["evaluation"]))
    common = [name for name in found[0] if all(name in one for one in found)]
    rows = {name: [one[name] for one in found] for name in common}
    numbers = {name: summary(values) for name, values in rows.items()}
    replace_json(out / "seeds.json", {"seeds": seeds, "metrics": numbers})
    table = [[name, row["mean"], row["std"]] for name, row in numbers.items()]
    print(f"\n{len(seeds)} seeds, unbiased std")
    print(tabulate(table, ["metric", "mean", "std"], floatfmt=".4f"))
    return 0


def is_finished(folder: Path, config: RunConfig, *, resumed: bool = False) -> bool:
    """Whether the folder holds the finished and judged run of this very configuration.

    Args:
        resumed: Fields that may change while a run trains on do not count; those of what comes after it do.
    """
    from graph_emb.run.about import WAY_TO_TRAIN, is_free
    from graph_emb.run.family import family_of
    from graph_emb.run.pipeline import FINISHED
    from graph_emb.run.run_folder import CONFIG, read_metrics

    try:
        folder = user_path(folder)
        metrics = read_metrics(folder)
        there = fields_of(config_from(read_config_file(folder / CONFIG)))
        if metrics["status"] != FINISHED or "error" in metrics["evaluation"]:
            return False
    except (OSError, ValueError, KeyError):  # no run, or no whole one: running it says so
        return False
    asked = fields_of(family_of(config).config)
    chosen = [*metrics.get("chosen", ()), "parallel.hogwild"]  # by the run, of what was left open
    for path in chosen:
        if asked.get(path) is None and path in there:
            there[path] = None
    free = {path for path in asked if resumed and is_free(path, WAY_TO_TRAIN)}
    return all(there.get(path) == value for path, value in asked.items() if path not in free)
