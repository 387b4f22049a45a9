"""Search for a model's settings on a data set by its validation data: what ``graph-emb tune`` and ``ge.tune`` do."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from graph_emb.config import RunConfig, config_text, fields_of
from graph_emb.config.schema import DatasetSection
from graph_emb.core.errors import ConfigError, GraphEmbError, check_flags, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.core.progress import bar
from graph_emb.core.storage import plain, replace_text
from graph_emb.core.terminal import started, starting_processes
from graph_emb.models.search import OneOf, Range, Space, Span, check_range, parse_range
from graph_emb.models.settings import paths_of
from graph_emb.run.inputs import read_dataset
from graph_emb.run.pipeline import config_of
from graph_emb.run.pipeline import run as run_pipeline
from graph_emb.tuning.page import page_text
from graph_emb.tuning.study import NUMBER, PROBLEM, SECONDS, SearchFolder, check_arguments, optuna, tried_values
from graph_emb.tuning.validation import valid_values, without_test

BEST, TABLE, PAGE, TRIED = "best.yaml", "trials.tsv", "search.html", "tried.txt"
REFUSED = {
    "dataset.hold_out": "edges that it holds out have no validation part; tune on a data set with a split of its edges",
    "dataset.test_edges": "its test edges would be read; tune on a data set with a validation part",
    "dataset.validation_edges": "settings are compared by the validation edges; set it in training",
    "checkpoint.every": "a trial that is stopped is trained again; leave it out",
}
"""Fields without a meaning in a search, by path, and why."""
OF_THE_PLACE = ("dataset.root", "dataset.download", "train.threads", "train.log_interval")
"""Fields that do not decide about a search's trials."""


@dataclass(frozen=True)
class TrialRow:
    """A finished trial.

    Attributes:
        number: From 0, the one with the settings that were given, or the defaults.
        state: complete, pruned or failed.
        value: Of the metric; of a pruned trial its last; None of a failed one.
        settings: By path in a run's configuration.
        seconds: Wall time.
        problem: Why it failed, or None.
    """

    number: int
    state: str
    value: float | None
    settings: dict[str, Any]
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, eq=False)
class TuneResult:
    """A search.

    Attributes:
        metric: By what trials are compared.
        trials: Finished ones by number.
        config: The best configuration, for ``ge.pipeline(config=...)``; None where no trial is complete.
        folder: Where best.yaml, trials.tsv, search.html, tried.txt and the journal are.
        interrupted: Whether Ctrl-C ended it.
    """

    metric: str
    trials: list[TrialRow]
    config: RunConfig | None
    folder: Path
    interrupted: bool = field(default=False)

    @property
    def best(self) -> TrialRow | None:
        """The complete trial of the highest value, the first of equals."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return max(complete, key=lambda trial: trial.value or 0.0, default=None)

    def __str__(self) -> str:
        from tabulate import tabulate

        ranked = sorted(self.trials, key=lambda trial: (trial.state != "complete", -(trial.value or 0.0)))
        names = sorted({name for trial in self.trials for name in trial.settings})
        rows = [
            [trial.number, trial.state, trial.value, *(trial.settings.get(name) for name in names), trial.seconds]
            for trial in ranked
        ]
        heads = ["trial", "state", self.metric, *(name.partition(".")[2] for name in names), "s"]
        return tabulate(rows, heads, floatfmt=".4g", missingval="-")


def tune(
    model: str | None = None,
    dataset: Any = None,
    *,
    out: str | Path,
    trials: int = 30,
    hours: float | None = None,
    metric: str = "valid",
    search: Mapping[str, Range] | None = None,
    jobs: int = 1,
    root: str | Path | None = None,
    seed: int | None = None,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    evaluate: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = False,
    **overrides: Any,
) -> TuneResult:
    """Try settings of a model, and keep those with the best validation value; test data are never read.

    Trial 0 has the settings that are given, and the defaults for the rest; later ones are drawn from the ranges that
    the model declares, by Optuna's estimator of good settings. A setting that is given is not searched. Trainings with
    a validation curve end early where it lies below the median of the others.

    Args:
        model, dataset, root, seed, config, evaluate, overrides: As of ``pipeline``.
        out: Folder of the search.
        trials: How many there shall be, those of earlier calls included.
        hours: No trial begins later than that after the call.
        metric: Name of a validation value, such as "valid.mrr"; "valid": the usual one of the data.
        search: Ranges by setting, in place of the model's or besides them.
        jobs: Processes, each with a trial at a time; train.threads is of each of them.
        resume: Go on with the search in ``out``.
        progress: Show the trainings' bars on stderr; of several jobs one of the trials.
    Raises:
        ConfigError: optuna is not installed; nothing to search; an unknown metric; every trial failed.
        LackingError: the data set has nothing to validate on.
    Example:
        >>> ge.tune("deepwalk", "cora", root="../shared/data", out="searches/cora", trials=30).config
    """
    given = {"model": model, "dataset": dataset, "root": root, "seed": seed, "evaluate": evaluate}
    base = config_of(config, given, overrides)
    return tune_config(
        base,
        out=out,
        trials=trials,
        hours=hours,
        metric=metric,
        search=search,
        jobs=jobs,
        resume=resume,
        progress=progress,
    )


def tune_config(
    base: RunConfig,
    *,
    out: str | Path,
    trials: int = 30,
    hours: float | None = None,
    metric: str = "valid",
    search: Mapping[str, Range] | None = None,
    jobs: int = 1,
    resume: bool = False,
    progress: bool = False,
    on_trial: Callable[[TrialRow], None] | None = None,
) -> TuneResult:
    """``tune`` of a configuration; ``on_trial`` is called with each trial that this call ran."""
    check_flags(resume=resume, progress=progress)
    check_arguments(out, trials, jobs, hours, metric, search)
    _check(base)
    optuna()  # refuses before data are read
    space = space_of(base, search or {})
    section = base.dataset
    networks = base.model.family in ("gnn", "links") or base.evaluate.mlp is not None
    read = read_dataset(section, file_format="triples" if base.model.family == "kge" else None)
    blind = without_test(read, networks=networks, seed=base.seed)
    held = DatasetSection(name=section.name, root=section.root)
    held.hold(blind)
    job = _Search(base, base.replace(dataset=held), space, metric, user_path(out), int(trials), int(jobs))
    job.folder(resume=resume)  # refuses another search
    until = None if hours is None else time.time() + 3600 * float(hours)
    told = progress, on_trial
    try:
        interrupted = job.run(until, *told) if jobs == 1 else _in_processes(job, until, jobs, *told)
    except UnknownMetric:
        job.folder(resume=True).discard()
        raise
    return job.result(interrupted)


def space_of(base: RunConfig, search: Mapping[str, Range]) -> dict[str, Range]:
    """The range of each setting that is searched, by its path.

    Args:
        base: What it sets of the model stays.
        search: Ranges by setting, in place of the model's or besides them.
    Raises:
        ConfigError: an unknown setting, or nothing left to search.
    """
    model, paths = base.model, paths_of(type(base.model))
    fields = {path: name for name, path in paths.items() if name != "name"}
    declared: Space = model.search_space()
    found = {paths[name]: own for name, own in declared.items() if name not in model.model_fields_set}
    for key, own in search.items():
        if not isinstance(own, Span | OneOf):
            raise ConfigError(f"search {key}={own!r}: give Span(low, high) or one_of(2, 5) of graph_emb.models.search")
        named = [path for path in fields if path == key or path.endswith(f".{key}")]
        if len(named) > 1 and key not in fields:
            raise ConfigError(f"search {key}: which one of {', '.join(sorted(named))}?")
        if not named:
            raise unknown_name(f"setting of {model.name}", key, fields)
        path = key if key in fields else named[0]
        check_range(path, own, model, fields[path])
        found[path] = own
    if not found:
        raise ConfigError(
            f"nothing to search: all of {', '.join(declared)} are set; leave some out, or give ranges (--search)"
        )
    return found


def _check(base: RunConfig) -> None:
    if base.parallel.mode != "local":
        raise ConfigError(
            f"parallel.mode = {base.parallel.mode!r}: a trial trains in one process; --jobs runs several trials"
        )
    fields = fields_of(base)
    for path, why in REFUSED.items():
        if fields.get(path):
            raise ConfigError(f"{path} = {fields[path]!r} in a search: {why}")
    if not base.evaluate.enabled and base.model.family != "kge":
        raise ConfigError("evaluate.enabled = False: a search compares evaluations; leave it out")


@dataclass(frozen=True)
class _Search:
    """What every process of a search knows."""

    base: RunConfig
    blind: RunConfig
    space: Mapping[str, Range]
    metric: str
    out: Path
    total: int
    jobs: int

    def folder(self, *, resume: bool) -> SearchFolder:
        """Open the folder."""
        fixed = {path: value for path, value in fields_of(self.base).items() if path not in OF_THE_PLACE}
        about = {
            "metric": self.metric,
            "jobs": self.jobs,
            "search": {k: str(v) for k, v in self.space.items()},
            **fixed,
        }

        return SearchFolder(self.out, plain(about), self.space, seed=self.base.seed, jobs=self.jobs, resume=resume)

    def first(self) -> dict[str, Any] | None:
        """The settings of trial 0; None where a range does not hold one."""
        model, names = self.base.model, {path: name for name, path in paths_of(type(self.base.model)).items()}
        values = {path: getattr(model, names[path]) for path in self.space}
        if values.get("train.lr", 0) is None and not self.space["train.lr"].holds(None):
            values["train.lr"] = model.first_lr
        return values if all(self.space[path].holds(value) for path, value in values.items()) else None

    def with_settings(self, config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
        """A configuration with other settings of the model."""
        names = {path: name for name, path in paths_of(type(config.model)).items()}
        return config.replace(model={names[path]: value for path, value in settings.items()})

    def run(self, until: float | None, progress: bool, on_trial: Callable[[TrialRow], None] | None) -> bool:
        """Run trials until all are finished or the time is over; returns whether Ctrl-C ended it."""
        folder = self.folder(resume=True)
        while until is None or time.time() < until:
            with folder.next_trial(self.total) as number:
                if number is None:
                    return False
                try:
                    row = self._trial(folder, number, progress)
                except KeyboardInterrupt:
                    return True
            if row is None:
                return True
            if on_trial is not None:
                on_trial(row)
        return False

    def _trial(self, folder: SearchFolder, number: int, progress: bool) -> TrialRow | None:
        """Train and judge with the settings of a number, and write the trial down; None after Ctrl-C."""
        study, trial = folder.ask(number, self.first())
        pruned, states = optuna().TrialPruned, optuna().trial.TrialState
        begin, problem = time.perf_counter(), None

        def watch(line: Mapping[str, Any]) -> None:
            value = self._of_line(line)
            if value is not None and self.base.model.family != "links":
                trial.report(value, int(line["epoch"]))
                if trial.should_prune():
                    raise pruned

        try:
            result = run_pipeline(self.with_settings(self.blind, trial.params), progress=progress, watch=watch)
            if result.interrupted:
                return None
            told = study.tell(trial, self._value(valid_values(result)))
        except pruned:
            told = study.tell(trial, state=states.PRUNED)
        except (GraphEmbError, MemoryError) as error:
            if isinstance(error, UnknownMetric):
                raise
            problem = str(error) or type(error).__name__
            told = study.tell(trial, state=states.FAIL)
        seconds = round(time.perf_counter() - begin, 3)
        folder.add(told, number, seconds, problem)
        return TrialRow(number, WORDS[told.state.name], told.value, dict(told.params), seconds, problem)

    def _of_line(self, line: Mapping[str, Any]) -> float | None:
        """The metric in a line of the history."""
        if line.get("valid_mrr") is not None:
            return line["valid_mrr"] if self.metric in ("valid", "valid.mrr") else None
        values = line.get("valid")
        if not isinstance(values, Mapping) or not values:
            return None
        found = next(iter(values.values())) if self.metric == "valid" else values.get(self.metric[len("valid.") :])
        return None if found is None else float(found)

    def _value(self, values: Mapping[str, float]) -> float:
        if self.metric == "valid" and values:
            return next(iter(values.values()))
        if self.metric not in values:
            raise UnknownMetric(str(unknown_name("metric", self.metric, list(values))))
        return values[self.metric]

    def result(self, interrupted: bool) -> TuneResult:
        """Write what a search ends with, and return it.

        Raises:
            ConfigError: every trial failed.
        """
        folder = self.folder(resume=True)
        found = folder.finished()
        rows = [
            TrialRow(
                trial.user_attrs[NUMBER],
                WORDS[trial.state.name],
                trial.value,
                dict(trial.params),
                trial.user_attrs[SECONDS],
                trial.user_attrs.get(PROBLEM),
            )
            for trial in found
        ]
        done = TuneResult(self.metric, rows, None, self.out, interrupted)
        best = done.best
        if best is None:
            problems = [row.problem for row in rows if row.problem]
            if len(problems) == len(rows) and rows and not interrupted:
                raise ConfigError(f"every trial failed; the first one: {problems[0]}")
            return done
        config = self.with_settings(self.base, best.settings)
        replace_text(self.out / BEST, config_text(config))
        replace_text(self.out / TABLE, table_text(rows, self.metric))
        tried = tried_values(found)
        values = [f"{path}={','.join(map(_word, values))}" for path, values in sorted(tried.items())]
        replace_text(self.out / TRIED, "".join(f"--tried {shlex.quote(word)}\n" for word in values))
        replace_text(self.out / PAGE, page_text(folder.study, done))
        return TuneResult(self.metric, rows, config, self.out, interrupted)


WORDS = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


class UnknownMetric(ConfigError):
    """No run has the metric, so that every trial would fail."""


def _word(value: Any) -> str:
    """A value as YAML reads it back."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def table_text(rows: list[TrialRow], metric: str) -> str:
    """The trials with a tab between columns, a line each."""
    names = sorted({name for row in rows for name in row.settings})
    lines = ["\t".join(["trial", "state", metric, *names, "seconds", "problem"])]
    for row in rows:
        values = [
            row.number,
            row.state,
            row.value,
            *(row.settings.get(name) for name in names),
            row.seconds,
            row.problem,
        ]
        lines.append("\t".join("" if value is None else str(value).replace("\n", " ") for value in values))
    return "\n".join(lines) + "\n"


def _in_processes(
    job: _Search, until: float | None, jobs: int, progress: bool, on_trial: Callable[[TrialRow], None] | None
) -> bool:
    """Run the trials in processes, with a bar of the trials; returns whether Ctrl-C ended it.

    Raises:
        ConfigError: one of them failed.
    """
    context, before = multiprocessing.get_context("spawn"), len(job.folder(resume=True).finished())
    workers, pipes = [], []
    try:
        with starting_processes():
            for _ in range(jobs):
                mine, theirs = context.Pipe(duplex=False)
                workers.append(context.Process(target=_work, args=(job, job.blind.dataset.held, until, theirs)))
                workers[-1].start()
                theirs.close()
                pipes.append(mine)
        trials = bar(total=job.total, initial=before, desc="trials", unit="trial", shown=progress)
        failures = _follow(pipes, trials, on_trial)
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:  # a terminal's reached all of them, a scheduler's this process alone
        for worker in workers:
            worker.join(GRACE_S)
            if worker.is_alive():
                os.kill(worker.pid or 0, signal.SIGINT)
        for worker in workers:
            worker.join()
        return True
    if failures:
        raise failures[0]
    codes = [worker.exitcode for worker in workers]
    if any(code not in (0, INTERRUPTED) for code in codes):
        raise ConfigError(f"a process of the search failed (exit codes {codes}); its message is above")
    return INTERRUPTED in codes


def _follow(
    pipes: list[Connection], trials: Any, on_trial: Callable[[TrialRow], None] | None
) -> list[GraphEmbError | OSError]:
    """Tell of the trials of other processes, and move their bar, until all of those have ended; their errors."""
    failures: list[GraphEmbError | OSError] = []
    try:
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    row = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
                    continue
                if isinstance(row, GraphEmbError | OSError):
                    failures.append(row)
                    continue
                trials.update()
                if on_trial is not None:
                    on_trial(row)
    finally:
        trials.close()
    return failures


INTERRUPTED = 130
GRACE_S = 1.0
"""Until a process of a search that was interrupted is told so."""


def _work(job: _Search, held: Any, until: float | None, told: Connection) -> None:
    job.blind.dataset.hold(held)
    try:
        started()
        interrupted = job.run(until, False, told.send)
    except (KeyboardInterrupt, BrokenPipeError):  # between trials; or who asked for them is gone
        interrupted = True
    except (GraphEmbError, OSError) as error:
        told.send(error)
        return
    if interrupted:
        sys.exit(INTERRUPTED)


def ranges_of(texts: list[str]) -> dict[str, Range]:
    """Ranges as the command line says them; see ``parse_range``.

    Raises:
        ConfigError: as there, or a setting is given twice.
    """
    found: dict[str, Range] = {}
    for name, own in map(parse_range, texts):
        if name in found:
            raise ConfigError(f"--search {name} is given twice; give all its values at once, as {name}=2,5,10")
        found[name] = own
    return found
