"""One run from a configuration to judged embeddings: what ``graph_emb.pipeline`` and ``graph-emb train`` do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig, config_from, config_text, fields_of, place_key, read_config_file
from graph_emb.core.compiled import COMPILING
from graph_emb.core.errors import ConfigError, GraphEmbError, check_flags
from graph_emb.core.notebook import Card
from graph_emb.core.storage import write_file
from graph_emb.core.terminal import held_interrupts, note
from graph_emb.core.threads import thread_count
from graph_emb.evaluate.by_degree import with_degrees
from graph_emb.evaluate.projection import METHODS, check_method
from graph_emb.formats.embedding_files import Embeddings, save_embeddings, write_npy
from graph_emb.formats.network_files import KeptNetwork
from graph_emb.graph.readers.source import is_object_of
from graph_emb.run import parallel, sharing
from graph_emb.run.about import about, about_now
from graph_emb.run.continuing import check_stays
from graph_emb.run.evaluation import Finding
from graph_emb.run.family import Family, Log, Trained, TrainingJob, family_of
from graph_emb.run.inputs import following, in_memory, lacks_explained
from graph_emb.run.machine import memory_mib, peak_memory_mib, versions
from graph_emb.run.report.facts import RunFacts, classes_of, labels_of
from graph_emb.run.report.page import REPORT, write_report
from graph_emb.run.run_folder import CONFIG, RunFolder, check_out, check_place, checkpoint_folder, run_place
from graph_emb.run.scores import scores_of
from graph_emb.run.shared_folder import check_shared
from graph_emb.run.trackers import Ending, Trackers, check_trackers, is_evaluation, numbers_of
from graph_emb.transport import runtime
from graph_emb.transport.job import job_section
from graph_emb.transport.local import LocalTransport

FINISHED, INTERRUPTED = "finished", "interrupted"
TEXT_BYTES = 12
"""Bytes of a number in word2vec's text form."""


class EvaluationError(GraphEmbError):
    """The rows were trained and kept, but could not be judged; the cause says why."""


@dataclass(frozen=True, repr=False)
class PipelineResult(Card):
    """Result of a run.

    Attributes:
        config: The complete configuration.
        metrics: What metrics.json holds.
        embeddings: Rows of the model's main table and their original ids; None on every rank but the first.
        dataset: The data that was trained on; None on every rank but the first.
        findings: Evaluations, each printable as a table.
        folder: The run folder; None when nothing was written.
        tables: Rows and ids of every table that was saved, by name, the main one first.
        history: The lines of metrics.jsonl.
        network: The trained network of models that have one, which the run folder keeps.
    """

    config: RunConfig
    metrics: dict[str, Any]
    embeddings: Embeddings | None
    dataset: Any
    findings: list[Finding] = field(default_factory=list)
    folder: Path | None = None
    tables: dict[str, Embeddings] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    network: KeptNetwork | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"PipelineResult({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _facts(self) -> dict[str, Any]:
        sizes = {name: "{:,} x {}".format(*table.weights.shape) for name, table in self.tables.items()}
        scores = {name: f"{value:.4f}" for name, value in scores_of(self.metrics.get("evaluation", {})).items()}
        named = {"model": self.config.model.name, "dataset": self.config.dataset.name, "status": self.metrics["status"]}
        place = {} if self.folder is None else {"folder": self.folder}
        return {**named, **{f"rows of {name}": size for name, size in sizes.items()}, **scores, **place}

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early; what was trained is kept."""
        return self.metrics["status"] == INTERRUPTED


def pipeline(
    model: str | None = None,
    dataset: Any = None,
    *,
    root: str | Path | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    evaluate: bool | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    on_evaluation: OnEvaluation | None = None,
    **overrides: Any,
) -> PipelineResult:
    """Train embeddings of a graph and judge them by what the data allows; ``graph-emb train`` in Python.

    In a process of a job (torchrun, ``graph-emb launch``) that names no mode it joins the others: all train one run.

    Args:
        model: One of ``graph_emb.config.MODELS``, such as "deepwalk"; brings its defaults.
        dataset: A known data set or the path of a graph file; or a partition (its folder, or opened), whose parts the
            trainers of a job take; or a graph in memory: what ``load_dataset`` gives, or a HeteroGraph, Graph, DGL
            graph, networkx graph, matrix of scipy or numpy, or data frame of edges. The run
            folder then keeps a description of it, and resume needs the same graph again.
        root: Folder of the known data sets.
        out: Run folder to write; None writes nothing.
        seed: Of walks, first rows, negatives, held-out edges and label shuffles; default 0.
        config: A configuration, its sections, or the path of a YAML file, below the arguments here.
        evaluate: Whether to evaluate after training, default True; or fields of that section.
        overwrite: Replace a run that is in ``out``, and its checkpoints.
        resume: Go on from the newest checkpoint of a run that was stopped, in ``<out>-checkpoints``; from the start
            where there is none yet.
        progress: Show progress bars on stderr.
        on_evaluation: Called on the first rank with the numbers of each validation, such as ``{"epoch": 5.0,
            "valid/mrr": 0.31, ...}``, and at the end with the scores, such as ``{"test mrr": 0.3}``, where there are
            some. An exception of it ends the run.
        overrides: Fields of the configuration by name (``dim=64, lr=0.05``), or sections (``train={"lr": 0.05}``).
    Raises:
        ConfigError: an unknown field, a value outside its limits, or an ``out`` that is taken.
        DataError: data that is missing, damaged, empty, or not of one graph.
        EvaluationError: the rows were trained, and kept in ``out``, but could not be judged.
        OSError: files that cannot be written.
    Example:
        >>> ge.pipeline(model="deepwalk", dataset="ogbl-ddi", root="../shared/data", out="runs/ddi", seed=0)
    """
    given = {"model": model, "dataset": dataset, "root": root, "seed": seed, "evaluate": evaluate}
    options: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "progress": progress}
    return run(config_of(config, given, overrides), out=out, on_evaluation=on_evaluation, **options)


def config_of(
    config: RunConfig | Mapping[str, Any] | str | Path | None, given: Mapping[str, Any], overrides: Mapping[str, Any]
) -> RunConfig:
    """The configuration that the arguments of ``pipeline`` stand for, which holds a data set in memory.

    Args:
        config: As there.
        given: Its named arguments ``model``, ``dataset``, ``root``, ``seed`` and ``evaluate``.
        overrides: Other fields, or sections.
    Raises:
        ConfigError, DataError: as there.
    """
    dataset, evaluate = given["dataset"], given["evaluate"]
    switch = "evaluate" if isinstance(evaluate, Mapping) else "evaluate.enabled"
    named = {**{name: value for name, value in given.items() if name != "evaluate"}, switch: evaluate}
    held = None
    if isinstance(dataset, str | os.PathLike):  # of a PartitionedGraph its folder
        named["dataset"] = {"name": os.fspath(dataset), "digest": None}
    elif dataset is not None and not is_section(dataset):
        held, named["dataset"] = in_memory(dataset)
    named = {**{key: value for key, value in named.items() if value is not None}, **overrides}
    layers = [place_key(key, os.fspath(v) if isinstance(v, os.PathLike) else v) for key, v in named.items()]
    layers.insert(0, dict(_sections(config)))
    said: dict[str, Any] = {}
    for layer in layers:
        said |= layer.get("parallel") or {}
    joined = {} if isinstance(runtime.begun(), LocalTransport) else job_section(said)  # local by name stays local
    checked = config_from({"parallel": joined}, *layers)
    checked.dataset.hold(held)
    return checked


def run(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    add_files: AddFiles | None = None,
    command: str | None = None,
    watch: Log | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> PipelineResult:
    """Do what a configuration says. Arguments and errors as ``pipeline``.

    An error while training leaves nothing behind. An error while evaluating keeps the run, and says where.

    Args:
        add_files: Called with the result and the folder when all but metrics.json is in it, to add files to the run.
        command: The command line, for metrics.json and the report.
        watch: Called with each line of the history when it is there; an exception of it ends the run.
        on_evaluation: As of ``pipeline``.
    """
    check_flags(overwrite=overwrite, resume=resume, progress=progress)
    if on_evaluation is not None and not callable(on_evaluation):
        raise ConfigError(f"on_evaluation={on_evaluation!r} must be a function of the numbers of a validation")
    config = following(config)
    check_trackers(config.output.trackers)
    if out is not None and config.output.report in METHODS:
        check_method(config.output.report)
    if out is not None:
        check_out(out)
    elif overwrite:
        raise ConfigError("overwrite=True has no effect without out, the run folder that it replaces; leave it out")
    saved = checkpoint_folder(out) if resume and out is not None else None
    before = None if saved is None else sharing.of_checkpoint(saved)
    travel = None if saved is None else sharing.travel_of_checkpoint(saved)
    ranks, config = parallel.start(config, before)
    try:
        checkpoints = _checkpoints(config, out, overwrite, resume)
        if ranks is not None and out is not None and (resume or config.checkpoint.every is not None):
            check_shared(ranks.group, checkpoint_folder(out))
        with runtime.fixed_tables():
            if ranks is not None and ranks.rank > 0:
                ranks, config = parallel.settle_travel(ranks, config)
                job = TrainingJob(ranks)  # it trains; the graph, the judging and the files are the first rank's
                family = family_of(config)  # it fills fields in that checkpoints name
                with held_interrupts():
                    trained = family.train(None, replace(job, checkpoints=checkpoints(job.log, family.config)))
                metrics = {"status": INTERRUPTED if trained.interrupted else FINISHED, "rank": ranks.rank}
                return PipelineResult(config, metrics, None, None)
            if out is not None:
                check_stays(config, run_place(out))
                check_place(run_place(out), overwrite)
            # It reads the data first: bad data makes no folder.
            started = _Run(config, progress, ranks, checkpoints, watch, on_evaluation, travel)
            if out is None:
                return started.train(None)
            with RunFolder(out, overwrite=overwrite) as folder:
                return started.train(folder, add_files, command)
    finally:
        if ranks is not None:
            ranks.close()


AddFiles = Callable[[PipelineResult, Path], None]
OnEvaluation = Callable[[dict[str, float]], None]
Checkpoints = Callable[[Log, RunConfig], PeriodicCheckpoints | None]
"""Opens the checkpoints of one training, given what takes the lines of the history so far, and the configuration when
the data has been read; None: none are wanted."""
CHOSEN = ("train.buckets", "train.resident", "train.at_once")
"""Fields that a run may choose by the data and its memory."""


def _checkpoints(config: RunConfig, out: str | Path | None, overwrite: bool, resume: bool) -> Checkpoints:
    """Where and when a run is saved, as its configuration says.

    Raises:
        ConfigError: there is no run folder, which their place is named after.
    """
    section = config.checkpoint
    if not resume and section.every is None:
        return lambda replay, own: None
    if out is None:
        what = "resume" if resume else f"checkpoint.every = {section.every!r}"
        raise ConfigError(f"{what} needs out, the run folder beside which the checkpoints lie")

    def opened(replay: Log, own: RunConfig) -> PeriodicCheckpoints:
        fields = fields_of(own)
        told = {path: fields.get(path) for path in sharing.TOLD}

        def read_about(saved: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**about_now({path: value for path, value in saved.items() if path not in told}, config), **told}

        return PeriodicCheckpoints(
            checkpoint_folder(out),
            section.every,
            keep_last=section.keep_last,
            background=section.background,
            resume=resume,
            overwrite=overwrite,
            about={**about(config), **told, **{path: value for path, value in fields.items() if path in CHOSEN}},
            read_about=read_about,
            replay=replay,
        )

    return opened


class _Run:
    """The state of one run: data, clock, metrics."""

    def __init__(
        self,
        config: RunConfig,
        progress: bool,
        ranks: parallel.Trainers | None,
        checkpoints: Checkpoints,
        watch: Log | None,
        on_evaluation: OnEvaluation | None,
        travel: sharing.Travel | None,
    ) -> None:
        self.on_evaluation = on_evaluation
        self.progress, self.ranks, self.checkpoints, self.watch = progress, ranks, checkpoints, watch
        self.family: Family = family_of(config)
        self.config = self.family.config
        self.asked = fields_of(self.config)
        self.seconds: dict[str, float] = {}
        self.compiled_before = COMPILING.seconds()
        self.findings: list[Finding] = []
        self.history: list[dict[str, Any]] = []
        with lacks_explained(self.config.dataset, trainers=ranks is not None):
            self.dataset = self._timed("load", self.family.load)
        if ranks is not None:
            loads = self.family.walk_loads(self.dataset)
            self.ranks, settled = parallel.settle_travel(ranks, self.family.config, loads, travel)
            self.family.take(settled)

    def train(
        self, folder: RunFolder | None, add_files: AddFiles | None = None, command: str | None = None
    ) -> PipelineResult:
        """Train, save, evaluate, publish."""
        name = f"{self.config.model.name}-{self.config.dataset.name}" if folder is None else folder.place.name
        self.trackers = Trackers(self.config, name, None if folder is None else folder.path)
        try:
            result, failure = self._trained(folder, add_files, command)
        except BaseException:
            self.trackers.close(failed=True)
            raise
        if failure is not None and not isinstance(failure, KeyboardInterrupt):
            kept = "" if result.folder is None else f"; the embeddings are in {result.folder}"
            raise EvaluationError(f"trained, but not evaluated: {failure}{kept}") from failure
        return result

    def _trained(
        self, folder: RunFolder | None, add_files: AddFiles | None, command: str | None
    ) -> tuple[PipelineResult, BaseException | None]:
        """The result, and what kept the rows from being judged."""
        if folder is not None:
            folder.write_text(CONFIG, config_text(self.config))
            numbers, kept = self.family.num_saved(self.dataset), self.family.num_kept(self.dataset)
            formats = self.config.output.formats
            rows = sum(numbers * (TEXT_BYTES if name == "word2vec" else 4) for name in formats)
            folder.check_space(rows + 4 * kept)
        with held_interrupts(self.ranks is not None) as pressed:  # the other ranks take part until the rows are here
            trained = self._timed("train", lambda: self._train(folder))
            self.config = self.family.config  # with what follows from the data
            if folder is not None:
                folder.write_text(CONFIG, config_text(self.config))
                formats = self.config.output.formats
                self._timed("save", lambda: save_tables(trained.tables, folder.path, formats, trained.network))
                for name, array in trained.files.items():
                    write_file(folder.path / name, partial(write_npy, array=array))
        if pressed():
            trained = replace(trained, interrupted=True)
        metrics = {
            "status": INTERRUPTED if trained.interrupted else FINISHED,
            "model": self.config.model.name,
            "dataset": self.family.describe(self.dataset),
            "tables": list(trained.tables),
            "train": trained.metrics,
            "chosen": [path for path, value in fields_of(self.config).items() if value != self.asked[path]],
            "versions": versions(),
            **({} if command is None else {"command": command}),
        }
        failure = None
        if self.config.evaluate.enabled and not trained.interrupted:
            failure = self._timed("evaluate", lambda: self._judge(trained))
        graph = getattr(self.dataset, "graph", None)
        metrics["evaluation"] = {
            finding.name: with_degrees(finding.scores, finding.scores.as_dict(), graph) for finding in self.findings
        }
        spent = {**self.seconds, "compile": COMPILING.seconds() - self.compiled_before}
        metrics["seconds"] = {part: round(seconds, 3) for part, seconds in spent.items()}
        if isinstance(failure, KeyboardInterrupt):
            metrics["status"] = INTERRUPTED
        elif failure is not None:
            metrics["evaluation"]["error"] = str(failure)
        main = next(iter(trained.tables.values()))
        tables, history = trained.tables, self.history
        found, network = self.findings, trained.network
        result = PipelineResult(self.config, metrics, main, self.dataset, found, None, tables, history, network)
        self._tell(result)
        if folder is not None:
            if add_files is not None and metrics["status"] == FINISHED and failure is None:
                add_files(result, folder.path)
            if self.config.output.report != "none":
                self._timed("report", lambda: self._report(folder.path, result))
                metrics["seconds"]["report"] = round(self.seconds["report"], 3)
            result = replace(result, folder=folder.publish_run(metrics))
        return result, failure

    def _tell(self, result: PipelineResult) -> None:
        """Scores and rows to the trackers, which end here, and scores to ``on_evaluation``."""
        scores = scores_of(result.metrics["evaluation"])
        if self.config.output.trackers:
            labels = labels_of(self.dataset, result.tables).get(next(iter(result.tables)))
            shown = None
            if labels is not None:
                classes, names = classes_of(labels)
                shown = np.array([*names, ""])[classes]
            self.trackers.finish(Ending(scores, result.tables, shown))
        self.trackers.close()
        if self.on_evaluation is not None and scores:
            self.on_evaluation(scores)

    def _report(self, folder: Path, result: PipelineResult) -> None:
        """Write the page; a page that cannot be made is no reason to lose what was trained."""
        labels = labels_of(self.dataset, result.tables)
        facts = RunFacts(folder.name, self.config, result.metrics, self.history, result.tables, labels)
        method = self.config.output.report
        try:
            write_report(folder, facts, None if method == "auto" else method)
        except (GraphEmbError, MemoryError, KeyboardInterrupt) as error:
            note(f"no {REPORT}: {str(error) or type(error).__name__}")

    def _train(self, folder: RunFolder | None) -> Trained:
        for line in () if self.ranks is None else filter(None, (self.ranks.sharing, self.ranks.wire)):
            note(line)
        before: float | None = None
        start = time.perf_counter()

        def write(line: dict[str, Any]) -> None:
            self.history.append(line)
            self.trackers.log(line)
            if folder is not None:
                folder.append(line)

        checkpoints = self.checkpoints(write, self.family.config)

        def log(line: dict[str, Any]) -> None:
            nonlocal before
            if before is None:  # by now the lines of a run that goes on are here
                before = self.history[-1].get("elapsed", 0.0) if self.history else 0.0
            elapsed = round(before + time.perf_counter() - start, 3)
            line = {**line, "elapsed": elapsed, "memory_mib": memory_mib()}
            write(line)
            if checkpoints is not None:
                checkpoints.record(line)
            if self.watch is not None:
                self.watch(line)
            if self.on_evaluation is not None and is_evaluation(line):
                self.on_evaluation(dict(numbers_of(line)))

        trained = self.family.train(self.dataset, TrainingJob(self.ranks, log, self.progress, checkpoints))
        threads = thread_count(self.config.train.threads)
        when = sharing.repeats(self.config, threads)
        common = {"threads": threads, "repeats": when, "peak_memory_mib": peak_memory_mib()}
        if self.ranks is not None and self.ranks.sharing:
            common["sharing"] = self.ranks.sharing
        if self.ranks is not None and self.ranks.link is not None:
            common["link"] = self.ranks.link.as_dict()
        if self.ranks is not None and self.ranks.wire:
            common["wire"] = self.ranks.wire
        return replace(trained, metrics={**trained.metrics, **common})

    def _judge(self, trained: Trained) -> BaseException | None:
        """Fills ``findings``; what went wrong is returned, because the trained rows must be kept first."""
        try:
            self.findings = self.family.judge(trained, self.dataset, progress=self.progress)
        except (GraphEmbError, OSError, MemoryError, KeyboardInterrupt) as error:
            return error
        return None

    def _timed(self, part: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[part] = time.perf_counter() - start


def save_tables(
    tables: Mapping[str, Embeddings], folder: Path, formats: Sequence[str], network: KeptNetwork | None = None
) -> None:
    """The main table into the run folder, each other one into a folder of its name, and the network that reads them."""
    if network is not None:
        network.save(folder)
    for position, (name, table) in enumerate(tables.items()):
        place = folder / name if position else folder
        save_embeddings(place, table.weights, table.node_ids, formats)


def is_section(dataset: Any) -> bool:
    """Whether a data set is said by fields of its section; scipy's dok_array and edges of networkx are mappings too."""
    return isinstance(dataset, Mapping) and not any(is_object_of(dataset, of) for of in ("scipy", "networkx"))


def _sections(config: RunConfig | Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    if isinstance(config, RunConfig):
        return config.sections()
    if isinstance(config, (str, Path)):
        return read_config_file(config)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config is a {type(config).__name__}; give a RunConfig, a mapping of sections or a YAML file"
        )
    return config
