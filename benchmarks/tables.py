"""Tables whose rows nodes share beside a row for each node: score, learnt numbers and processor time, a line a run.

    python benchmarks/tables.py --model complex --dataset fb15k237 --score "mrr" --set model.dim=64 train.epochs=5 \\
        --rates 0.05 0.1 0.2 --seeds 0 1 2 --json tables.json

Every kind of table gets the same settings and the same few rates. A kind's rate is chosen on the first seed, by the
validation part of the score where the data set has one; else by the score itself, and that seed is then not counted,
unless it is the only one. The other seeds train with that rate. Lines that ``--json`` has already are not run again,
so a command that was cut off goes on, and the summary is of all of them. ``--own-rows`` gives each composed kind a row
of its own for as many nodes of highest degree, one kind after the other for each number. Of networks that are validated
while they train it also has the seconds of training until a kind's validation reached the best of the first kind's.
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
from graph_emb.run.family import TrainingJob, family_of
from graph_emb.run.scores import scores_of

Line = dict[str, Any]


class Runs:
    """Runs of one comparison, kept in a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.lines = args, []
        self.best: dict[str, float] = {}
        if args.json is not None and args.json.exists():
            self.lines = [json.loads(line) for line in args.json.read_text().splitlines()]
        self.common = {"model": args.model, "dataset": args.dataset, "settings": sorted(args.set)}

    def line(self, kind: str, own: int, rate: float | None, seed: int) -> Line:
        """Of a run, trained unless the file has it; lines of earlier versions, without ``own_rows``, have none."""
        wanted = {**self.common, "kind": kind, "own_rows": own or None, "rate": rate, "seed": seed}
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
        family = family_of(config_from(section, *layers))
        dataset = family.load()
        begin, processor = time.perf_counter(), time.process_time()
        trained = family.train(dataset, TrainingJob())
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        found = family.judge(trained, dataset, progress=False)
        evaluation = {finding.name: finding.scores.as_dict() for finding in found}
        scores = scores_of(evaluation)
        test = next(name for name in scores if self.args.score in name and not name.startswith("valid"))
        valid = scores.get(test.replace("test", "valid", 1)) if "test" in test else None
        made: Line = {
            "parameters": trained.metrics["parameters"], "seconds": seconds, "processor_seconds": processor,
            "score": test, "valid": valid, "test": scores[test],
        }  # fmt: skip
        network = evaluation.get("graph_network")
        if network is not None and valid is not None:  # a network is judged while it trains
            (run,) = network["runs"]
            made["curve"] = [next(iter(told["valid"].values())) for told in run["history"]]
            made["epochs"] = [told["epoch"] for told in run["history"]]
            made["epoch_seconds"] = run["seconds_per_epoch"]
        self.lines.append({**wanted, **made})
        if self.args.json is not None:
            with self.args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.lines[-1]) + "\n")
        print(", ".join(f"{name} {value}" for name, value in self.lines[-1].items()), flush=True)
        return self.lines[-1]

    def until(self, line: Line, wanted: float) -> float:
        """Seconds of training until a line's validation reached a score; NaN where it did not, or was not told."""
        found = [
            epoch for epoch, valid in zip(line.get("epochs", []), line.get("curve", []), strict=True) if valid >= wanted
        ]
        return found[0] * line["epoch_seconds"] if found else float("nan")

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
        self.best.setdefault("valid", float(np.mean(valid)) if valid else float("nan"))  # of the first kind
        return {
            "kind": kind, "own rows": own, "rate": best["rate"], "learnt numbers": best["parameters"],
            best["score"]: np.mean(scores), "std": np.std(scores, ddof=1) if len(scores) > 1 else float("nan"),
            "seeds": len(scores),
            "processor s": np.mean([line.get("processor_seconds", float("nan")) for line in lines]),
            f"s to {self.args.kinds[0]}'s best": np.mean([self.until(line, self.best["valid"]) for line in lines]),
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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="lines are added to this file")
    args = parser.parse_args()
    runs = Runs(args)
    kinds = [(kind, own) for kind in args.kinds for own in (args.own_rows if kind != "full" else [0])]
    rows = [runs.row(*kind) for kind in kinds]
    print(tabulate(rows, headers="keys", floatfmt=".4f", intfmt=","))


if __name__ == "__main__":
    main()
