"""One run from a configuration to judged embeddings: what ``graph_emb.pipeline`` and ``graph-emb train`` do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.config import RunConfig, config_from, config_text, place_key, read_config_file
from graph_emb.data.datasets import Dataset
from graph_emb.data.export import Embeddings, save_embeddings
from graph_emb.data.walks import WalkSampler, thread_count
from graph_emb.errors import ConfigError, GraphEmbError
from graph_emb.models.skipgram import SkipGramConfig, SkipGramProgress, SkipGramResult, train_skipgram
from graph_emb.train import parallel
from graph_emb.train.evaluation import Finding, evaluate
from graph_emb.train.inputs import absolute_paths, load_dataset
from graph_emb.train.run_folder import CONFIG, RunFolder, check_place
from graph_emb.train.versions import peak_memory_mib, versions

FINISHED, INTERRUPTED = "finished", "interrupted"
STATE_SHARE = {"sgd": 0.0, "row_adagrad": 0.0, "row_adam": 1.0, "adagrad": 1.0, "adam": 2.0}
"""Optimizer state of each rule as a share of the tables."""
TEXT_BYTES = 12
"""Bytes of a number in word2vec's text form."""


class EvaluationError(GraphEmbError):
    """The rows were trained and kept, but could not be judged; the cause says why."""


@dataclass(frozen=True)
class PipelineResult:
    """What a run gave.

    Attributes:
        config: The complete configuration.
        metrics: What metrics.json holds.
        embeddings: Rows and their original ids; None on every rank but the first.
        dataset: The data that was trained on; None on every rank but the first.
        findings: Evaluations, each printable as a table.
        folder: The run folder; None when nothing was written.
    """

    config: RunConfig
    metrics: dict[str, Any]
    embeddings: Embeddings | None
    dataset: Dataset | None
    findings: list[Finding] = field(default_factory=list)
    folder: Path | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early; what was trained is kept."""
        return self.metrics["status"] == INTERRUPTED


def pipeline(
    model: str | None = None,
    dataset: str | Path | None = None,
    *,
    root: str | Path | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    evaluate: bool | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool = False,
    **overrides: Any,
) -> PipelineResult:
    """Train embeddings of a graph and judge them by what the data allows; ``graph-emb train`` in Python.

    Args:
        model: "deepwalk" or "node2vec"; brings its preset.
        dataset: A known data set or the path of a graph file.
        root: Folder of the known data sets.
        out: Run folder to write; None writes nothing.
        seed: Of walks, first rows, negatives, held-out edges and label shuffles; default 0.
        config: A configuration, its sections, or the path of a YAML file, below the arguments here.
        evaluate: Whether to evaluate after training, default True; or fields of that section.
        overwrite: Replace a run that is in ``out``.
        progress: Show progress bars on stderr.
        overrides: Fields of the configuration by name (``dim=64, lr=0.05``), or sections (``train={"lr": 0.05}``).
    Raises:
        ConfigError: an unknown field, a value outside its limits, or an ``out`` that is taken.
        DataError: data that is missing, damaged, empty, or not of one graph.
        EvaluationError: the rows were trained, and kept in ``out``, but could not be judged.
        OSError: files that cannot be written.
    Example:
        >>> ge.pipeline(model="deepwalk", dataset="ogbl-ddi", root="../shared/data", out="runs/ddi", seed=0)
    """
    switch = "evaluate" if isinstance(evaluate, Mapping) else "evaluate.enabled"
    given = {"model": model, "dataset": dataset, "root": root, "seed": seed, switch: evaluate}
    named = {key: os.fspath(v) if isinstance(v, Path) else v for key, v in given.items() if v is not None}
    layers = [place_key(key, value) for key, value in {**named, **overrides}.items()]
    return run(config_from(_sections(config), *layers), out=out, overwrite=overwrite, progress=progress)


def run(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
    add_files: AddFiles | None = None,
) -> PipelineResult:
    """Do what a configuration says. Arguments and errors as ``pipeline``.

    An error while training leaves nothing behind. An error while evaluating keeps the run, and says where.

    Args:
        add_files: Called with the result and the folder when all but metrics.json is in it, to add files to the run.
    """
    if config.parallel.mode == "local":
        return _run(config, out, overwrite, progress, add_files, None)
    ranks = parallel.start(config)
    try:
        if ranks.rank == 0:
            return _run(config, out, overwrite, progress, add_files, ranks)
        return _help(config, ranks)
    finally:
        ranks.close()


def _run(
    config: RunConfig,
    out: str | Path | None,
    overwrite: bool,
    progress: bool,
    add_files: AddFiles | None,
    ranks: parallel.Ranks | None,
) -> PipelineResult:
    if out is None:
        return _Run(config, progress, ranks).train(None)
    check_place(Path(os.path.realpath(Path(out).expanduser())), overwrite)
    started = _Run(config, progress, ranks)  # reads the data first: bad data makes no folder
    with RunFolder(out, overwrite=overwrite) as folder:
        return started.train(folder, add_files)


AddFiles = Callable[[PipelineResult, Path], None]


def _help(config: RunConfig, ranks: parallel.Ranks) -> PipelineResult:
    """The share of a rank that is not the first: it trains; the graph, the judging and the files are the first's."""
    skipgram = _skipgram_config(config)
    trained = parallel.train(ranks, config, skipgram, None, progress=False)
    metrics = {"status": INTERRUPTED if trained.result.interrupted else FINISHED, "rank": ranks.rank}
    return PipelineResult(config, metrics, None, None)


class _Run:
    """The state of one run: data, clock, metrics."""

    def __init__(self, config: RunConfig, progress: bool, ranks: parallel.Ranks | None) -> None:
        self.progress, self.ranks = progress, ranks
        self.skipgram = _skipgram_config(config)
        self.config = _resolved(config, self.skipgram)
        self.seconds: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.dataset = self._timed("load", lambda: load_dataset(config.dataset, config.seed))
        check_memory(self.dataset.graph.num_nodes, self.skipgram)

    def train(self, folder: RunFolder | None, add_files: AddFiles | None = None) -> PipelineResult:
        """Train, save, evaluate, publish."""
        if folder is not None:
            folder.write_text(CONFIG, config_text(self.config))
            folder.check_space(self._output_bytes())
        trained, rows = self._timed("train", lambda: self._train_rows(folder))
        graph = self.dataset.graph
        ids = graph.ids_of(np.arange(graph.num_nodes))
        embeddings = Embeddings(rows.numpy(), ids)
        if folder is not None:
            self._timed("save", lambda: self._save(embeddings, folder.path))
        metrics = self._metrics(trained)
        failure = None
        if self.config.evaluate.enabled and not trained.interrupted:
            failure = self._timed("evaluate", lambda: self._evaluate(embeddings.weights))
        metrics["evaluation"] = {finding.name: finding.scores.as_dict() for finding in self.findings}
        metrics["seconds"] = {part: round(seconds, 3) for part, seconds in self.seconds.items()}
        if isinstance(failure, KeyboardInterrupt):
            metrics["status"] = INTERRUPTED
        elif failure is not None:
            metrics["evaluation"]["error"] = str(failure)
        result = PipelineResult(self.config, metrics, embeddings, self.dataset, self.findings)
        if folder is not None:
            if add_files is not None and metrics["status"] == FINISHED and failure is None:
                add_files(result, folder.path)
            result = replace(result, folder=folder.publish(metrics))
        if failure is not None and not isinstance(failure, KeyboardInterrupt):
            kept = "" if result.folder is None else f"; the embeddings are in {result.folder}"
            raise EvaluationError(f"trained, but not evaluated: {failure}{kept}") from failure
        return result

    def _train_rows(self, folder: RunFolder | None) -> tuple[SkipGramResult, torch.Tensor]:
        def log(line: SkipGramProgress) -> None:
            if folder is not None:
                folder.append(line.as_dict())

        if self.ranks is not None:
            graph = self.dataset.graph
            made = parallel.train(self.ranks, self.config, self.skipgram, graph, progress=self.progress, log=log)
            assert made.rows is not None
            return made.result, made.rows
        model, train = self.config.model, self.config.train
        sampler = WalkSampler(
            self.dataset.graph,
            num_walks=model.num_walks,
            walk_length=model.walk_length,
            p=getattr(model, "p", 1.0),  # DeepWalk has no p and q
            q=getattr(model, "q", 1.0),
            seed=self.config.seed,
        )
        trained = train_skipgram(
            sampler,
            self.skipgram,
            seed=self.config.seed,
            num_threads=train.threads,
            progress=self.progress,
            log_interval=train.log_interval,
            on_batch=log,
        )
        return trained, trained.embeddings(self.config.output.context)

    def _evaluate(self, weights: NDArray[np.floating]) -> BaseException | None:
        """Fills ``findings``; what went wrong is returned, because the trained rows must be kept first."""
        try:
            self.findings = evaluate(
                weights,
                self.dataset,
                self.config.evaluate,
                self.config.seed,
                threads=self.config.train.threads,
                progress=self.progress,
            )
        except (GraphEmbError, OSError, MemoryError, KeyboardInterrupt) as error:
            return error
        return None

    def _metrics(self, trained: SkipGramResult) -> dict[str, Any]:
        graph, last = self.dataset.graph, trained.history[-1] if trained.history else None
        seconds = last.seconds if last else 0.0
        return {
            "status": INTERRUPTED if trained.interrupted else FINISHED,
            "model": self.config.model.name,
            "dataset": {
                "name": self.dataset.name,
                "nodes": graph.num_nodes,
                "edges": graph.num_edges,
                "directed": graph.directed,
            },
            "train": {
                **(last.as_dict() if last else {}),
                "tokens_per_second": round(last.tokens / seconds) if last and seconds else None,
                "threads": thread_count(self.config.train.threads),
                "parameters": trained.model.num_parameters,
                "peak_memory_mib": peak_memory_mib(),
            },
            "versions": versions(),
        }

    def _save(self, embeddings: Embeddings, folder: Path) -> None:
        save_embeddings(folder, embeddings.weights, embeddings.node_ids, self.config.output.formats)

    def _output_bytes(self) -> int:
        width = self.config.model.dim * (2 if self.config.output.context == "concat" else 1)
        numbers = self.dataset.graph.num_nodes * width
        return sum(numbers * (TEXT_BYTES if name == "word2vec" else 4) for name in self.config.output.formats)

    def _timed(self, part: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[part] = time.perf_counter() - start


def check_memory(num_nodes: int, skipgram: SkipGramConfig) -> None:
    """Raise a ConfigError when the tables cannot fit, before the system has to end the process.

    Counted are weights, optimizer state, and the copy of the rows that is returned and saved.
    """
    import psutil

    tables = skipgram.tables * (1 + STATE_SHARE[skipgram.rule]) + 1
    needed, free = int(num_nodes * skipgram.dim * 4 * tables), psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"model.dim = {skipgram.dim}: {num_nodes} nodes need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of "
            "memory is free; lower model.dim or model.tables, or take a rule with less state"
        )


def _skipgram_config(config: RunConfig) -> SkipGramConfig:
    model, train = config.model, config.train
    batch: dict[str, Any] = {} if train.batch_size is None else {"batch_size": train.batch_size}
    return SkipGramConfig(
        dim=model.dim,
        window=model.window,
        window_weighting=model.window_weighting,
        num_negatives=model.num_negatives,
        shared_negatives=model.shared_negatives,
        negative_power=model.negative_power,
        subsample=model.subsample,
        tables=model.tables,
        block=model.block,
        rule=train.rule,
        lr=train.lr,
        lr_decay=train.lr_decay,
        epochs=train.epochs,
        path=train.path,
        negative_scope=config.parallel.negatives,
        exchange_walks=config.parallel.exchange_walks,
        negative_pool=config.parallel.negative_pool,
        **batch,
    )


def _resolved(config: RunConfig, skipgram: SkipGramConfig) -> RunConfig:
    """The configuration as it is written: values that depend on others filled in, paths absolute."""
    rates = {"lr": skipgram.first_lr, "lr_decay": "linear" if skipgram.decays else "none"}
    return config.model_copy(
        update={"train": config.train.model_copy(update=rates), "dataset": absolute_paths(config.dataset)}
    )


def _sections(config: RunConfig | Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    if isinstance(config, RunConfig):
        return config.model_dump(mode="json")
    return read_config_file(config) if isinstance(config, (str, Path)) else config
