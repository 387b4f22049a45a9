"""Published recipes, seed by seed, for ``graph-emb train --recipe`` and the scripts of examples/ogb.

A seed is a run of ``graph_emb.run.pipeline``; its record tells whether it has to run, and a table stands at the end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numba
import torch
from tabulate import tabulate

from graph_emb.config import RunConfig, config_from, parse_override, place_key
from graph_emb.config.schema import MAX_SEED
from graph_emb.core.errors import ConfigError, GraphEmbError
from graph_emb.core.storage import replace_json
from graph_emb.core.terminal import BAD_INPUT, INTERRUPTED, code_of
from graph_emb.core.threads import MOST_THREADS, start_numba
from graph_emb.ogb.recipes import Sections, recipes_of, rows_of, text_of
from graph_emb.ogb.record import (
    SeedRecord,
    SeedResult,
    finished_record,
    result_of,
    run_recorded,
    settings_of,
    this_hardware,
)
from graph_emb.ogb.rules import TRAINING_ON_VALIDATION
from graph_emb.run import pipeline
from graph_emb.run.evaluation import as_text, each_seed, mean_std
from graph_emb.run.launch.command import Start, layers_of, machines_of, others_started, starts_job, with_job
from graph_emb.run.launch.flags import JOB_FLAGS, PLACING, add_flags, add_placing, without
from graph_emb.run.machine import versions

SHORT = {
    "predictor": {
        "epochs": "evaluate.predictor.epochs",
        "patience": "evaluate.predictor.patience",
        "batch_size": "evaluate.predictor.batch_size",
    },
    "mlp": {"epochs": "evaluate.mlp.epochs", "batch_size": "evaluate.mlp.batch_size"},
    "gnn": {"epochs": "train.epochs", "patience": "model.patience", "batch_size": "train.batch_size"},
    "kge": {"epochs": "train.epochs", "dim": "model.dim", "batch_size": "train.batch_size"},
}
"""Short flags of the scripts and the settings that they change, by what is judged."""

FIRST = -1
"""Stands for the first of the seeds, where --freeze-embedding names none."""
Train = Callable[[RunConfig, Path, bool], "pipeline.PipelineResult | None"]
"""Runs a configuration, given a place for its run folder and whether what is there may be replaced; None where another
process did, and wrote the seed's record."""


@dataclass(frozen=True)
class RecipeRuns:
    """A recipe with its settings, to be run with several seeds.

    Attributes:
        config: The recipe's, with whatever was changed; each run gets a seed of its own.
        model: The recipe's name within its data set.
        out: Folder of the models' folders.
        command: For the records.
        train: Trains and judges one seed.
        frozen: The seed of the embedding below every network; None: the network's own.
        selected_on: The part by which these settings won a comparison.
        again: Also run seeds that are finished.
    """

    config: RunConfig
    model: str
    out: Path
    command: str
    train: Train
    frozen: int | None = None
    selected_on: Literal["none", "valid", "test"] = "none"
    again: bool = False

    def __post_init__(self) -> None:
        config, dataset = self.config, self.config.dataset.name
        if not config.evaluate.enabled:
            raise ConfigError("evaluate.enabled = False: the scores of a recipe are its result; leave it out")
        if self.frozen is not None and (_judged(config) not in ("predictor", "mlp") or config.model.name == "mf"):
            raise ConfigError(
                f"--freeze-embedding: {self.model} trains its embedding with what is judged; name other models"
            )
        if config.dataset.validation_edges is not None and dataset not in TRAINING_ON_VALIDATION:
            allowed = ", ".join(TRAINING_ON_VALIDATION)
            raise ConfigError(
                f"dataset.validation_edges = 'trained on': the rules allow it for {allowed} only, not {dataset}"
            )
        if config.dataset.validation_edges is not None and config.parallel.mode != "local":
            raise ConfigError(
                "dataset.validation_edges = 'trained on' is two trainings of one process; set --mode local"
            )

    @property
    def folder(self) -> Path:
        """Of the records and run folders of the seeds."""
        return self.out / (self.model if self.frozen is None else f"{self.model}-frozen-{self.frozen}")

    def each(self, seeds: Sequence[int]) -> Iterator[SeedRecord]:
        """The record of every seed, in order, as they come; finished ones are kept."""

        for _, record in each_seed(seeds, self._run, self.record):
            yield record

    def records(self, seeds: Sequence[int], start: Start) -> list[SeedRecord] | None:
        """The records of all seeds, each printed as it comes.

        Returns:
            None on every machine but the first, which has the records, and in the processes that a launcher started.
        """
        launched, helps, left = "RANK" in os.environ, os.environ.get("RANK", "0") != "0", list(seeds)
        if len(start.machines.hosts) > 1:
            left = start.unfinished(seeds, lambda seed: self.record(seed) is not None)
            helps = start.machines.index > 0
        if helps:
            for seed in left:
                self.train(self.config_of(seed), self.place(seed), True)
            return None
        if launched:
            list(self.each(seeds))
            return None
        return told(self.each(seeds))

    def record(self, seed: int) -> SeedRecord | None:
        """The record of a seed that need not run."""
        return None if self.again else finished_record(self._path(seed), self._started(seed))

    def place(self, seed: int) -> Path:
        """Of a seed's run folder."""
        return self.folder / f"seed-{seed}"

    def config_of(self, seed: int) -> RunConfig:
        """What a seed runs."""
        config = self.config.model_copy(update={"seed": seed if self.frozen is None else self.frozen})
        if self.frozen is not None:
            config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"seed": seed})})
        return config

    def _path(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}.json"

    def _started(self, seed: int) -> SeedRecord:
        return SeedRecord(
            status="started",
            dataset=self.config.dataset.name,
            model=self.model,
            seed=seed,
            embedding_seed=seed if self.frozen is None else self.frozen,
            settings=settings_of(self.config),
            validation_edges=self.config.dataset.validation_edges or "held out",
            settings_selected_on=self.selected_on,
            command=self.command,
            hardware=this_hardware(),
            versions=versions(),
        )

    def _run(self, seed: int) -> SeedRecord:
        path, started, place, config = self._path(seed), self._started(seed), self.place(seed), self.config_of(seed)
        replace = self.again or path.exists()  # a run folder is there of a seed that broke off
        train = self._once if config.dataset.validation_edges is None else self._twice
        return run_recorded(path, started, lambda: train(config, place, replace))

    def _once(self, config: RunConfig, place: Path, replace: bool) -> SeedResult | None:
        run = self.train(config, place, replace)
        if run is None:
            return None
        if run.interrupted:
            raise KeyboardInterrupt
        return result_of(run)

    def _twice(self, config: RunConfig, place: Path, replace: bool) -> SeedResult:
        """A first training finds the epoch; a second one with the validation edges lasts as long and gives the test
        value.
        """
        held_out = config.replace(dataset={"validation_edges": None})
        first = self._once(held_out, place.with_name(f"{place.name}-held-out"), replace)
        assert first is not None  # one process
        chosen = first.scores[first.metric]
        as_long = {"epochs": chosen.epoch, "eval_every": chosen.epoch, "patience": None}
        second = self._once(config.replace(evaluate={"predictor": as_long}), place, replace)
        assert second is not None
        score = chosen.model_copy(update={"test": second.scores[first.metric].test})
        seconds = {name: first.seconds[name] + second.seconds[name] for name in first.seconds}
        told = {"scores": {first.metric: score}, "seconds": seconds, "history": [*first.history, *second.history]}
        return first.model_copy(update={**told, "peak_memory_mib": second.peak_memory_mib})


def _judged(config: RunConfig) -> str:
    """What is judged, a key of ``SHORT``."""
    network = "predictor" if config.evaluate.predictor is not None else "mlp"
    return network if getattr(config.evaluate, network) is not None else config.model.family


@dataclass(frozen=True)
class Script:
    """A data set with the recipes that a script offers.

    Attributes:
        file: Path of the script, which trainers run too.
        dataset: OGB's name.
        recipes: By the name that ``--model`` takes; the first is the default.
        description: The script's docstring.
    """

    file: str
    dataset: str
    recipes: Mapping[str, Sections]
    description: str

    @property
    def name(self) -> str:
        """The script's path in the repository, for the record's command."""
        return "/".join(Path(self.file).parts[-3:])

    @property
    def _program(self) -> list[str]:
        return [str(Path(self.file).resolve())]

    @classmethod
    def of(cls, dataset: str, *, file: str, description: str) -> Script:
        """The script of a data set with all of its recipes."""
        return cls(file, dataset, recipes_of(dataset), description)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run what is missing, print the table.

        Args:
            argv: Words after the script's name; None takes those of the process.
        Returns:
            0; 2 on bad input, 3 where a peer is lost, told in one line; 130 after Ctrl-C.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        args = self._parser().parse_args(words)
        try:
            self._run(args, words)
        except (GraphEmbError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return code_of(error)
        except KeyboardInterrupt:
            print("interrupted; finished seeds are kept", file=sys.stderr)
            return INTERRUPTED
        return 0

    def _run(self, args: argparse.Namespace, words: Sequence[str]) -> None:
        start_numba()
        if args.threads is not None:
            torch.set_num_threads(args.threads)
            numba.set_num_threads(min(args.threads, MOST_THREADS))
        frozen = args.seeds[0] if args.freeze_embedding == FIRST else args.freeze_embedding
        configs = {model: self.config(model, args) for model in args.model}
        parallel = configs[args.model[0]].parallel
        machines = machines_of(args, None, parallel.servers, parallel.trainers)
        with others_started(args, machines, words, program=self._program) as lost:
            start = Start(machines, bool(args.hosts), args.progress, lost)
            command = shlex.join(["python", self.name, *words])
            runs = [
                RecipeRuns(
                    *(config, model, args.out, command, self._trainer(model, frozen, args.progress, words, start)),
                    *(frozen, args.settings_selected_on),
                )
                for model, config in configs.items()
            ]
            found = {run.model: run.records(args.seeds, start) for run in runs}
        records = {model: own for model, own in found.items() if own is not None}
        if not records:
            return
        print(table(self.dataset, records))
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            replace_json(args.json, self._summary(records))

    def _trainer(self, model: str, frozen: int | None, progress: bool, words: Sequence[str], start: Start) -> Train:
        """Trains a seed here, or by processes that run the script for this model and seed alone."""

        def train(config: RunConfig, place: Path, replace: bool) -> pipeline.PipelineResult | None:
            if not starts_job(config):
                return pipeline.run(config, progress=progress)  # a script keeps records alone
            seed = config.seed if frozen is None else config.evaluate.seed
            own = [*without(words, PLACING), "--model", model, "--seeds", str(seed)]
            own += [] if frozen is None else ["--freeze-embedding", str(frozen)]
            counts = start.counts(config)
            own += ["--set", *counts] if counts else []
            command = [sys.executable, *self._program, *own]
            check_accepted(start.run(command, config, place, overwrite=replace))
            return None

        return train

    def config(self, model: str, args: argparse.Namespace) -> RunConfig:
        """A recipe's configuration with what the command line changes."""
        sections = self.recipes[model]
        layers = [sections, {"train": {"threads": args.threads, "device": args.device}}]
        if args.root is not None:
            layers.append(place_key("dataset.root", str(args.root)))
        short = SHORT[_judged(config_from(sections))]
        for flag in _short_flags(self.recipes):
            value = getattr(args, flag)
            if value is not None:
                if flag not in short:
                    raise ConfigError(f"--{flag.replace('_', '-')} {value} has no effect on {model}; leave it out")
                layers.append(place_key(short[flag], value))
        layers += [*layers_of(args, JOB_FLAGS), *map(parse_override, args.set)]
        return config_from(*with_job(layers, args.hosts))

    def _summary(self, records: dict[str, list[SeedRecord]]) -> dict[str, Any]:
        """The table as numbers, with the records behind it."""
        models = {}
        for model, found in records.items():
            results = [record.finished() for record in found]
            scores = {
                metric: {
                    part: mean_std([getattr(r.scores[metric], part) for r in results]) for part in ("valid", "test")
                }
                for metric in results[0].scores
            }
            runs = [record.model_dump(mode="json") for record in found]
            models[model] = {"scores": scores, "parameters": results[0].parameters, "runs": runs}
        published = [asdict(row) for row in rows_of(self.dataset)]
        return {"dataset": self.dataset, "models": models, "published": published}

    def _parser(self) -> argparse.ArgumentParser:
        text = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            prog=self.name, description=self.description, formatter_class=text, allow_abbrev=False
        )
        names = tuple(self.recipes)
        folder = self.dataset.replace("-", "_")
        parser.add_argument("--model", nargs="+", choices=names, default=names[:1], help="default: %(default)s")
        parser.add_argument("--root", type=Path, help=f"folder that holds {folder}; default: $GRAPH_EMB_DATA")
        parser.add_argument("--seeds", type=whole(0), nargs="+", default=list(range(10)), help="OGB asks for 0 .. 9")
        parser.add_argument("--out", type=Path, required=True, help="folder of finished seeds")
        parser.add_argument("--json", type=Path, help="write the numbers of the table there")
        parser.add_argument(
            "--set", nargs="+", action="extend", default=[], metavar="PATH=VALUE", help="change settings of the recipe"
        )
        for flag, paths in _short_flags(self.recipes).items():
            parser.add_argument(f"--{flag.replace('_', '-')}", type=whole(1), help=f"short for --set {paths}=...")
        parser.add_argument(
            "--settings-selected-on",
            choices=("none", "valid", "test"),
            default="none",
            help="say so where these settings won a comparison, and on which part; default: %(default)s",
        )
        parser.add_argument(
            "--freeze-embedding",
            nargs="?",
            type=whole(0),
            const=FIRST,
            metavar="SEED",
            help="one embedding, of the first seed or SEED, under the network of every seed, as OGB's own scripts do",
        )
        add_flags(parser, JOB_FLAGS)
        add_placing(parser)
        parser.add_argument("--threads", type=whole(1), help="of each trainer; default: all cores, shared evenly")
        parser.add_argument("--device", default="cpu", help="of graph networks, such as cuda:0; default: %(default)s")
        parser.add_argument("--progress", action="store_true", help="show bars")
        return parser


def told(records: Iterator[SeedRecord]) -> list[SeedRecord]:
    """All records, each printed as it comes: a seed may take an hour."""
    found = []
    for record in records:
        result = record.finished()
        score = result.scores[result.metric]
        values = f"{result.metric} valid {score.valid:.4f}, test {score.test:.4f}"
        print(f"{record.model}, seed {record.seed}: {values}; {result.seconds.get('all', 0.0):.0f} s", flush=True)
        found.append(record)
    return found


def table(dataset: str, records: Mapping[str, Sequence[SeedRecord]]) -> str:
    """Ours, a row for each metric, above the published rows, which are of the data set's own metric."""
    rows: list[list[Any]] = []
    seconds, memory = 0.0, 0
    for model, found in records.items():
        results = [record.finished() for record in found]
        for metric in results[0].scores:
            valid, test = ([getattr(r.scores[metric], part) for r in results] for part in ("valid", "test"))
            total = f"{sum(results[0].parameters.values()):,}"
            rows.append([model, metric, len(found), as_text(valid), as_text(test), total])
        seconds = max([seconds, *(result.seconds.get("all", 0.0) for result in results)])
        memory = max([memory, *(result.peak_memory_mib for result in results)])
        metric = results[0].metric
    for row in rows_of(dataset):
        total = "" if row.parameters is None else f"{row.parameters:,}"
        rows.append([f"{row.method}, published", metric, "", text_of(row.valid), text_of(row.test), total])
    headers = ["model", "metric", "seeds", "valid", "test", "parameters"]
    spent = f"longest seed: {seconds:.0f} s; peak memory {memory} MiB"
    return tabulate(rows, headers=headers, disable_numparse=True) + "\n" + spent


def check_accepted(code: int | None) -> None:
    """Raise a ConfigError where the first trainer refused its input; what ``Start.run`` gave says so."""
    if code == BAD_INPUT:
        raise ConfigError("trainer 0 refused its input, and says above why")


def whole(low: int, high: int = MAX_SEED) -> Callable[[str], int]:
    """What reads an integer in [low, high] for argparse."""

    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is below {low}" if value < low else f"{value} is above {high}")
        return value

    return read


def _short_flags(recipes: Mapping[str, Sections]) -> dict[str, str]:
    """Flags of all recipes, each with the setting that it changes in the first recipe that has it."""
    found: dict[str, str] = {}
    for sections in recipes.values():
        found = {**SHORT[_judged(config_from(sections))], **found}
    return found
