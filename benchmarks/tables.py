"""Tables whose rows nodes share beside a row for each node: score, learnt numbers and processor time, a line a run.

    python benchmarks/tables.py --model complex --dataset fb15k237 --score "mrr" --set model.dim=64 train.epochs=5 \\
        --rates 0.05 0.1 0.2 --seeds 0 1 2 --json tables.json

Every kind of table gets the same settings and the same few rates. A kind's rate is chosen on the first seed, by the
validation part of the score where the data set has one; else by the score itself, and that seed is then not counted,
unless it is the only one. The other seeds train with that rate. Lines that ``--json`` has already are not run again,
so a command that was cut off goes on, and the summary is of all of them. ``--own-rows`` gives each composed kind a row
of its own for as many nodes of highest degree, one kind after the other for each number. Of networks that are validated
while they train it also has the processor time until a validation reached the best of the first kind's of the same
seed: all since the data were read, so that levels, first rows and the evaluations on the way count. ``--mark`` names
the validation to reach instead, for kinds with settings of their own, and a network's run ends with the evaluation that
reaches it; rates fall by the whole schedule.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from graph_emb.config import config_from, parse_override
from graph_emb.run.family import Family, TrainingJob, family_of
from graph_emb.run.scores import scores_of

Line = dict[str, Any]


class Runs:
    """Runs of one comparison, kept in a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.lines = args, []
        self.best: dict[int, float] = {}  # by seed, of the first kind
        if args.json is not None and args.json.exists():
            self.lines = [json.loads(line) for line in args.json.read_text().splitlines()]
        self.common = {"model": args.model, "dataset": args.dataset, "settings": sorted(args.set)}

    def line(self, kind: str, own: int, rate: float | None, seed: int) -> Line:
        """Of a run, trained unless the file has it; lines of earlier versions, without ``own_rows``, have none."""
        wanted = {**self.common, "kind": kind, "own_rows": own or None, "rate": rate, "seed": seed}
        wanted["mark"] = self.args.mark
        wanted["levels"] = self.args.levels if kind.startswith("position") else None
        wanted["buckets"] = self.args.buckets if kind.endswith("hash") else None
        for line in self.lines:
            if all(line.get(name) == value for name, value in wanted.items()):
                return line
        field = "model.inputs" if self.args.model in ("rgcn", "sage") else "model.table"
        fields = {**dict(text.split("=", 1) for text in self.args.set), field: kind}
        if field == "model.inputs" and kind == "full":
            fields[field] = "table"
        if kind.startswith("position") and self.args.levels:
            fields["model.levels"] = self.args.levels
        if kind.endswith("hash") and self.args.buckets:
            fields["model.num_buckets"] = self.args.buckets
        if own:
            fields["model.own_rows"] = str(own)
        if rate is not None:
            fields["train.lr"] = str(rate)
        section: dict[str, Any] = {"model": {"name": self.args.model}, "seed": seed}
        section["dataset"] = {"name": self.args.dataset, "root": self.args.root}
        section["train"] = {"threads": self.args.threads}
        layers = [parse_override(f"{name}={value}", self.args.model) for name, value in fields.items()]
        made = self.trained(family_of(config_from(section, *layers)))
        self.lines.append({**wanted, **made})
        if self.args.json is not None:
            with self.args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.lines[-1]) + "\n")
        print(", ".join(f"{name} {value}" for name, value in self.lines[-1].items()), flush=True)
        return self.lines[-1]

    def trained(self, family: Family) -> Line:
        """Train until the mark, or to the end, and judge."""
        dataset, mark = family.load(), self.args.mark
        told: list[tuple[Line, float]] = []
        begin, processor = time.perf_counter(), time.process_time()

        def log(line: Line) -> None:
            if not isinstance(line.get("valid"), dict):  # no evaluation of a network
                return
            told.append((line, time.process_time() - processor))
            if mark is not None and self.validation(line) >= mark:
                raise KeyboardInterrupt  # which ends a training early, with what it has

        trained = family.train(dataset, TrainingJob(log=log))
        made: Line = {"parameters": trained.metrics["parameters"], "seconds": time.perf_counter() - begin}
        made["processor_seconds"] = time.process_time() - processor
        if told:
            made["epochs"] = [line["epoch"] for line, _ in told]
            made["curve"] = [self.validation(line) for line, _ in told]
            made["processor_curve"] = [spent for _, spent in told]
            made["epoch_seconds"] = trained.metrics["seconds_per_epoch"]
        elif mark is not None:
            raise SystemExit(f"--mark {mark}: {self.args.model} is not validated as a network; leave it out")
        if trained.interrupted:
            if mark is None or made["curve"][-1] < mark:
                raise KeyboardInterrupt
            (last, _) = told[-1]
            return {**made, "score": self.args.score, "valid": made["curve"][-1], "test": self.of_score(last["test"])}
        found = family.judge(trained, dataset, progress=False)
        scores = scores_of({finding.name: finding.scores.as_dict() for finding in found})
        test = next(name for name in scores if self.args.score in name and not name.startswith("valid"))
        valid = scores.get(test.replace("test", "valid", 1)) if "test" in test else None
        return {**made, "score": test, "valid": valid, "test": scores[test]}

    def of_score(self, values: dict[str, float]) -> float:
        return next(value for name, value in values.items() if self.args.score in name)

    def validation(self, line: Line) -> float:
        """Of an evaluation while a network trains."""
        return self.of_score(line["valid"])

    def until(self, line: Line) -> float:
        """Processor seconds until a line's validation reached the mark; NaN where it did not, or was not told."""
        mark = self.args.mark if self.args.mark is not None else self.best.get(line["seed"])
        told = zip(line.get("curve", []), line.get("processor_curve", []), strict=False)
        return next((spent for valid, spent in told if mark is not None and valid >= mark), float("nan"))

    def row(self, kind: str, own: int) -> dict[str, Any]:
        """A kind's mean with the spread over seeds, at the rate of the first seed's best."""
        first, *others = self.args.seeds
        tried = [self.line(kind, own, rate, first) for rate in self.args.rates]
        best = max(tried, key=lambda line: line["test"] if line["valid"] is None else line["valid"])
        lines = [self.line(kind, own, best["rate"], seed) for seed in others]
        if not lines or len(tried) == 1 or best["valid"] is not None:
            lines.insert(0, best)
        scores = [line["test"] for line in lines]
        valid = [line["valid"] for line in lines if line["valid"] is not None]
        for line in lines if valid else []:
            self.best.setdefault(line["seed"], line["valid"])
        mark = f"{self.args.kinds[0]}'s best" if self.args.mark is None else self.args.mark
        return {
            "kind": kind, "own rows": own, "rate": best["rate"], "learnt numbers": best["parameters"],
            "valid": np.mean(valid) if valid else float("nan"),
            "std of valid": np.std(valid, ddof=1) if len(valid) > 1 else float("nan"),
            best["score"]: np.mean(scores), "std": np.std(scores, ddof=1) if len(scores) > 1 else float("nan"),
            "seeds": len(scores),
            "processor s": np.mean([line.get("processor_seconds", float("nan")) for line in lines]),
            f"processor s to {mark}": np.mean([self.until(line) for line in lines]),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--score", required=True, help="the first score whose name has this in it, of no validation")
    parser.add_argument("--kinds", nargs="+", default=["full", "position", "position-hash", "hash"])
    parser.add_argument("--levels", help="of position kinds, such as [8,64,512]")
    parser.add_argument("--buckets", help="of hash kinds")
    parser.add_argument("--own-rows", nargs="+", type=int, default=[0], help="of composed kinds, such as 0 100 500")
    parser.add_argument("--rates", nargs="+", type=float, default=[None], help="default: the model's own")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings of every kind")
    parser.add_argument("--mark", type=float, help="a validation that ends a network's run; default: none does")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="lines are added to this file")
    args = parser.parse_args()
    runs = Runs(args)
    kinds = [(kind, own) for kind in args.kinds for own in (args.own_rows if kind != "full" else [0])]
    rows = [runs.row(*kind) for kind in kinds]
    print(tabulate(rows, headers="keys", floatfmt=".4f", intfmt=","))


if __name__ == "__main__":
    main()
