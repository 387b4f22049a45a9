"""The record that a leaderboard asks for, from the records of the seeds: as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from graph_emb.config import place_key
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.ogb.recipes import rows_of, text_of
from graph_emb.ogb.record import SeedRecord, flat, read_record
from graph_emb.ogb.rules import check
from graph_emb.run.evaluation import as_text, mean_std

SEED_FILES = "seed-*.json"
MISSING = "(to be filled in)"


@dataclass(frozen=True)
class Submission:
    """Answers to a leaderboard's form that a run does not know.

    Attributes:
        method: Name of the row; None: the model's name.
        contact: Name and address.
        code: Public repository.
        paper: Address of the paper.
        external_data: Whether data other than the data set was used; a run that says so counts as well.
    """

    method: str | None = None
    contact: str | None = None
    code: str | None = None
    paper: str | None = None
    external_data: bool = False


@dataclass(frozen=True)
class Report:
    """Numbers over the seeds of one method, with the rest of a leaderboard's form.

    Attributes:
        records: By seed.
        notes: Facts to disclose, such as a missing seed.
        tried: By setting, the values that were compared.
        submission: Fields of the form.
    """

    records: tuple[SeedRecord, ...]
    notes: tuple[str, ...]
    tried: Mapping[str, Sequence[Any]]
    submission: Submission = field(default_factory=Submission)

    @property
    def metric(self) -> str:
        """OGB's metric of the data set."""
        return self.records[0].finished().metric

    def values(self, part: str, metric: str | None = None) -> list[float]:
        """One value a seed, of "valid" or "test"; those of the same epoch."""
        return [getattr(record.finished().scores[metric or self.metric], part) for record in self.records]

    @property
    def parameters(self) -> dict[str, int]:
        """By stage."""
        return self.records[0].finished().parameters

    def hyper_parameters(self) -> dict[str, str]:
        """Every setting with its tried values, the chosen one marked: ``[0.01, 0.05*]``."""
        found = {}
        for path, chosen in flat(self.records[0].settings).items():
            values = self.tried.get(path, [chosen])
            found[path] = "[" + ", ".join(f"{value}*" if value == chosen else str(value) for value in values) + "]"
        return found

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        first, told = self.records[0], self.submission
        score = {part: mean_std(self.values(part)) for part in ("test", "valid")}
        return {
            "kind": "graph_emb OGB report",
            "dataset": first.dataset,
            "method": told.method or first.model,
            "metric": self.metric,
            **score,
            "seeds": [record.seed for record in self.records],
            "values": {part: self.values(part) for part in ("test", "valid")},
            "other_metrics": self._other_metrics(),
            "parameters": {"sum": sum(self.parameters.values()), **self.parameters},
            "hyper_parameters": self.hyper_parameters(),
            "settings_selected_on": first.settings_selected_on,
            "epoch_selected_on": first.finished().selected_on,
            "validation_edges": first.validation_edges,
            "external_data": self._external_data(),
            "contact": told.contact,
            "code": told.code,
            "paper": told.paper,
            "commands": _distinct(record.command for record in self.records),
            "hardware": _distinct(record.hardware.model_dump() for record in self.records),
            "versions": _distinct(record.versions for record in self.records),
            "seconds": [record.finished().seconds for record in self.records],
            "peak_memory_mib": max(record.finished().peak_memory_mib for record in self.records),
            "notes": list(self.notes),
            "published": [asdict(row) for row in rows_of(first.dataset)],
        }

    def markdown(self) -> str:
        """For a person, and for a repository's README."""
        first = self.records[0]
        title = f"# {first.dataset}: {self.submission.method or first.model}"
        commands = "\n".join(_distinct(record.command for record in self.records))
        sections = [
            title,
            "\n".join(f"**{note}**" if note.startswith("PARTIAL") else f"* {note}" for note in self.notes),
            _table(self._result_rows(), ["", self.metric + " test", self.metric + " valid", "seeds", "parameters"]),
            _table(self._form_rows(), ["field", "value"]),
            "Seeds\n\n" + _table(self._seed_rows(), ["seed", "epoch", "test", "valid", "seconds"]),
            "Hyper-parameters, tried values in brackets, `*` chosen\n\n"
            + _table([[f"`{path}`", text] for path, text in self.hyper_parameters().items()], ["setting", "values"]),
            f"Commands\n\n```text\n{commands}\n```",
        ]
        return "\n\n".join(section for section in sections if section) + "\n"

    def _result_rows(self) -> list[list[Any]]:
        total = f"{sum(self.parameters.values()):,}"
        ours = ["**this run**", as_text(self.values("test")), as_text(self.values("valid")), len(self.records), total]
        rows: list[list[Any]] = [ours]
        for row in rows_of(self.records[0].dataset):
            counted = "" if row.parameters is None else f"{row.parameters:,}"
            rows.append([f"{row.method} ({row.source})", text_of(row.test), text_of(row.valid), "", counted])
        return rows

    def _form_rows(self) -> list[list[Any]]:
        first, told = self.records[0], self.submission
        stages = " + ".join(f"{count:,} {stage}" for stage, count in self.parameters.items())
        chosen = first.settings_selected_on
        rows = [
            ["OGB version", " / ".join(_distinct(record.versions.get("ogb", "") for record in self.records))],
            ["parameters", f"{sum(self.parameters.values()):,} = {stages}"],
            ["epoch chosen on", first.finished().selected_on],
            ["settings chosen on", "taken as they are, nothing was compared" if chosen == "none" else chosen],
            ["validation edges", first.validation_edges],
            ["external data", "yes" if self._external_data() else "no"],
            ["hardware", " / ".join(_distinct(_machine(record) for record in self.records))],
            ["versions", " / ".join(_distinct(", ".join(map(" ".join, r.versions.items())) for r in self.records))],
            ["peak memory", f"{max(record.finished().peak_memory_mib for record in self.records):,} MiB"],
        ]
        rows += [[name, getattr(told, name) or MISSING] for name in ("contact", "code", "paper")]
        return rows + [[f"{name} test", as_text(self.values("test", name))] for name in self._other_metrics()]

    def _seed_rows(self) -> list[list[Any]]:
        rows = []
        for record in self.records:
            result = record.finished()
            score = result.scores[self.metric]
            spent = result.seconds.get("all")
            epoch = "last" if score.epoch is None else score.epoch
            rows.append(
                [record.seed, epoch, f"{score.test:.4f}", f"{score.valid:.4f}", "" if spent is None else round(spent)]
            )
        return rows

    def _other_metrics(self) -> dict[str, Any]:
        return {
            metric: {part: mean_std(self.values(part, metric)) for part in ("test", "valid")}
            for metric in self.records[0].finished().scores
            if metric != self.metric
        }

    def _external_data(self) -> bool:
        return self.submission.external_data or any(record.external_data for record in self.records)


def make_report(
    runs: Sequence[str | Path],
    *,
    partial: bool = False,
    tried: Mapping[str, Sequence[Any]] | None = None,
    submission: Submission | None = None,
) -> Report:
    """The report of one method on one data set.

    Args:
        runs: Folders of seed files, or the files themselves.
        partial: Accept fewer seeds than the rules ask for, or others; the report then says so.
        tried: By setting, named as an override names it ("predictor.lr"), the values that were compared, the chosen one
            among them.
        submission: Fields of the leaderboard's form.
    Raises:
        DataError: no seeds there, or a file that is no record.
        ConfigError: the rules forbid it: see ``rules``; or a tried setting that does not exist or was not chosen.
    """
    records = sorted((read_record(path) for path in _files(runs)), key=lambda record: record.seed)
    notes = check(records, partial=partial)
    settings = flat(records[0].settings)
    named = [flat(place_key(path, values, settings)) for path, values in (tried or {}).items()]
    given = {path: values for one in named for path, values in one.items()}
    for path, values in given.items():
        if settings[path] not in values:
            raise ConfigError(f"{path} is {settings[path]!r}, which is not among the tried values {list(values)}")
        if len(values) > 1 and records[0].settings_selected_on == "none":
            raise ConfigError(
                f"{path}: {len(values)} values were tried, and the runs do not say on which part they were compared; "
                "run the seeds with --settings-selected-on valid"
            )
    if records[0].settings_selected_on != "none" and not any(len(values) > 1 for values in given.values()):
        notes.append("Settings were compared, and the values that were tried are not told; leaderboards ask for them.")
    return Report(tuple(records), tuple(notes), given, submission or Submission())


def _files(runs: Sequence[str | Path]) -> list[Path]:
    found: list[Path] = []
    for run in map(Path, runs):
        if not run.is_dir():
            if not run.exists():
                raise DataError(f"{run}: no such file or folder; give what a script of examples/ogb wrote below --out")
            found.append(run)
            continue
        inside = sorted(run.glob(SEED_FILES))
        if not inside:
            models = sorted({path.parent.name for path in run.glob(f"*/{SEED_FILES}")})
            hint = f"; give one of its models: {', '.join(models)}" if models else ""
            raise DataError(f"{run}: holds no {SEED_FILES}{hint}")
        found += inside
    return found


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _machine(record: SeedRecord) -> str:
    hardware = record.hardware
    gpus = "".join(f", {name}" for name in hardware.gpus)
    return f"{hardware.cpu}, {hardware.cores} cores, {hardware.memory_gib} GiB{gpus}"


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
