"""Main program of the scripts in examples/ogb: read the command line, run the missing seeds, print the table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import torch
from tabulate import tabulate

from graph_emb.compat.ogb import read_hetero_dataset
from graph_emb.config import override
from graph_emb.config.schema import MAX_SEED
from graph_emb.core.errors import ConfigError, DataError, GraphEmbError
from graph_emb.core.storage import replace_json
from graph_emb.core.threads import MOST_THREADS, start_numba
from graph_emb.graph import views
from graph_emb.graph.datasets import data_root, load_dataset
from graph_emb.ogb.methods import Reads, Recipe, Run
from graph_emb.ogb.published import rows_of, text_of
from graph_emb.ogb.recipes import recipes_of
from graph_emb.ogb.record import SeedRecord, finished_record, run_recorded, this_hardware
from graph_emb.run.seeds import as_text, each_seed, mean_std
from graph_emb.run.versions import versions

BAD_INPUT, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Script:
    """A data set with the recipes that a script offers.

    Attributes:
        file: Path of the script in the repository, for the record's command.
        dataset: OGB's name.
        recipes: By the name that ``--model`` takes; the first is the default.
        description: The script's docstring.
        load: From the root folder (None: $GRAPH_EMB_DATA) to what the recipes read.
    """

    file: str
    dataset: str
    recipes: Mapping[str, Recipe]
    description: str
    load: Callable[[Path | None], Any]

    @classmethod
    def of(cls, dataset: str, *, file: str, description: str) -> Script:
        """The script of a data set with all of its recipes."""
        recipes = recipes_of(dataset)
        return cls(file, dataset, recipes, description, LOADERS[next(iter(recipes.values())).reads](dataset))

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run what is missing, print the table.

        Args:
            argv: Words after the script's name; None takes those of the process.
        Returns:
            0; 2 on bad input, told in one line; 130 after Ctrl-C.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        args = self._parser().parse_args(words)
        try:
            self._run_args(args, shlex.join(["python", self.file, *words]))
        except (GraphEmbError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return BAD_INPUT
        except KeyboardInterrupt:
            print("interrupted; finished seeds are kept", file=sys.stderr)
            return INTERRUPTED
        return 0

    def run(self, words: Sequence[str], command: str) -> None:
        """As ``main``, with errors and Ctrl-C left to the caller.

        Args:
            words: As a person types them after the script's name.
            command: For the records.
        """
        self._run_args(self._parser().parse_args(words), command)

    def _run_args(self, args: argparse.Namespace, command: str) -> None:
        start_numba()
        torch.set_num_threads(args.threads)
        numba.set_num_threads(min(args.threads, MOST_THREADS))
        records = self._run_all(args, command)
        print(self._table(records))
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            replace_json(args.json, self._summary(records))

    def _run_all(self, args: argparse.Namespace, command: str) -> dict[str, list[SeedRecord]]:
        recipes = {model: self._recipe(model, args) for model in args.model}
        data = self.load(args.root)
        return {model: self._run_seeds(model, recipe, data, args, command) for model, recipe in recipes.items()}

    def _recipe(self, model: str, args: argparse.Namespace) -> Recipe:
        recipe, texts = self.recipes[model], []
        for flag in _short_flags(self.recipes):
            value = getattr(args, flag)
            if value is not None:
                if flag not in recipe.short:
                    raise ConfigError(f"--{flag.replace('_', '-')} {value} has no effect on {model}; leave it out")
                texts.append(f"{recipe.short[flag]}={value}")
        recipe = override(recipe, [*texts, *args.set])
        if args.device != "cpu" and not recipe.uses_device:
            raise ConfigError(f"--device {args.device} has no effect on {model}, which trains on the CPU; leave it out")
        if args.freeze_embedding and not recipe.freezable:
            raise ConfigError(
                f"--freeze-embedding: {model} trains its embedding with what is judged; name other models"
            )
        return recipe

    def _run_seeds(
        self, model: str, recipe: Recipe, data: Any, args: argparse.Namespace, command: str
    ) -> list[SeedRecord]:
        settings, frozen = recipe.model_dump(mode="json"), args.seeds[0] if args.freeze_embedding else None
        folder = args.out / (model if frozen is None else f"{model}-frozen-{frozen}")

        def path(seed: int) -> Path:
            return folder / f"seed-{seed}.json"

        def started(seed: int) -> SeedRecord:
            return SeedRecord(
                status="started",
                dataset=self.dataset,
                model=model,
                seed=seed,
                embedding_seed=seed if frozen is None else frozen,
                settings=settings,
                validation_edges=settings.get("validation_edges", "held out"),
                settings_selected_on=args.settings_selected_on,
                command=command,
                hardware=this_hardware(),
                versions=versions(),
            )

        def train(seed: int) -> SeedRecord:
            run = Run(seed, seed if frozen is None else frozen, args.threads, args.device, args.progress)
            return run_recorded(path(seed), started(seed), lambda: recipe.run(data, run))

        records = []
        for _, record in each_seed(args.seeds, train, lambda seed: finished_record(path(seed), started(seed))):
            print(_line(record), flush=True)  # a seed may take an hour
            records.append(record)
        return records

    def _table(self, records: dict[str, list[SeedRecord]]) -> str:
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
        for row in rows_of(self.dataset):
            total = "" if row.parameters is None else f"{row.parameters:,}"
            rows.append([f"{row.method}, published", metric, "", text_of(row.valid), text_of(row.test), total])
        headers = ["model", "metric", "seeds", "valid", "test", "parameters"]
        spent = f"longest seed: {seconds:.0f} s; peak memory {memory} MiB"
        return tabulate(rows, headers=headers, disable_numparse=True) + "\n" + spent

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
            prog=self.file, description=self.description, formatter_class=text, allow_abbrev=False
        )
        names = tuple(self.recipes)
        folder = self.dataset.replace("-", "_")
        parser.add_argument("--model", nargs="+", choices=names, default=names[:1], help="default: %(default)s")
        parser.add_argument("--root", type=Path, help=f"folder that holds {folder}; default: $GRAPH_EMB_DATA")
        parser.add_argument("--seeds", type=seed_number, nargs="+", default=list(range(10)), help="OGB asks for 0 .. 9")
        parser.add_argument("--out", type=Path, required=True, help="folder of finished seeds")
        parser.add_argument("--json", type=Path, help="write the numbers of the table there")
        parser.add_argument(
            "--set", nargs="+", action="extend", default=[], metavar="PATH=VALUE", help="change settings of the recipe"
        )
        for flag, paths in _short_flags(self.recipes).items():
            parser.add_argument(f"--{flag.replace('_', '-')}", type=positive, help=f"short for --set {paths}=...")
        parser.add_argument(
            "--settings-selected-on",
            choices=("none", "valid", "test"),
            default="none",
            help="say so where these settings won a comparison, and on which part; default: %(default)s",
        )
        parser.add_argument(
            "--freeze-embedding",
            action="store_true",
            help="one embedding, of the first seed, under the network of every seed, as OGB's own scripts do",
        )
        parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
        parser.add_argument("--device", default="cpu", help="of graph networks, such as cuda:0; default: %(default)s")
        parser.add_argument("--progress", action="store_true", help="show bars")
        return parser


def typed_graph(dataset: str) -> Callable[[Path | None], Any]:
    """A loader for ``Script.load`` of a data set with several node types: ``read_hetero_dataset``."""

    def load(root: Path | None) -> Any:
        found = data_root(root)
        if found is None:
            raise DataError(f"{dataset} needs --root, the folder that holds {dataset.replace('-', '_')}/")
        return read_hetero_dataset(dataset, found)

    return load


LOADERS: dict[Reads, Callable[[str], Callable[[Path | None], Any]]] = {
    "plain": lambda dataset: lambda root: views.plain_dataset(load_dataset(dataset, root)),
    "triples": lambda dataset: lambda root: views.knowledge_graph(load_dataset(dataset, root)),
    "typed": typed_graph,
}
"""By ``Recipe.reads``."""


def _line(record: SeedRecord) -> str:
    """A finished seed, by the data set's own metric."""
    result = record.finished()
    score, seconds = result.scores[result.metric], result.seconds.get("all", 0.0)
    values = f"valid {score.valid:.4f}, test {score.test:.4f}"
    return f"{record.model}, seed {record.seed}: {result.metric} {values}; {seconds:.0f} s"


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def seed_number(text: str) -> int:
    """An integer that every seed may be."""
    value = int(text)
    if not 0 <= value <= MAX_SEED:
        raise argparse.ArgumentTypeError(f"{value} is outside [0, {MAX_SEED}]")
    return value


def _short_flags(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """Flags of all recipes, each with the setting that it changes in the first recipe that has it."""
    found: dict[str, str] = {}
    for recipe in recipes.values():
        found = {**recipe.short, **found}
    return found
