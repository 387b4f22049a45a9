"""DeepWalk and node2vec: skip-gram on random walks."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.checkpoint.export import save_ids
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.views import PlainDataset
from graph_emb.models.skipgram.config import PlainWalkConfig, SkipGramTraining
from graph_emb.models.skipgram.training import (
    SkipGram,
    SkipGramProgress,
    SkipGramResult,
    train_skipgram,
)
from graph_emb.run import parallel
from graph_emb.run.evaluation import Finding, check_section, evaluate
from graph_emb.run.family import Log, Trained
from graph_emb.run.inputs import absolute_paths, edge_policy, read_plain_dataset
from graph_emb.run.memory import check_memory
from graph_emb.run.versions import peak_memory_mib
from graph_emb.run.warm_start import absolute_path, first_rows
from graph_emb.sampling.walkers import thread_count
from graph_emb.sampling.walks import WalkSampler


class WalkFamily:
    """See ``graph_emb.run.family.Family``."""

    def __init__(self, config: RunConfig) -> None:
        self.config = absolute_path(with_rates(config))
        assert isinstance(self.config.model, PlainWalkConfig)
        self.model = self.config.model

    def load(self) -> PlainDataset:
        """The graph with what its embeddings are judged by."""
        config = self.config
        dataset = read_plain_dataset(config.dataset, config.seed, **edge_policy(self.model))
        check_section(self.config.evaluate, dataset)
        check_memory(dataset.graph.num_nodes, self.model.dim, self.model.tables, self.model.rule)
        return dataset

    def describe(self, dataset: PlainDataset) -> dict[str, Any]:
        """Name and size of the graph."""
        return describe_graph(dataset)

    def num_saved(self, dataset: PlainDataset) -> int:
        """A row for each node."""
        width = self.model.dim * (2 if self.config.output.context == "concat" else 1)
        return dataset.graph.num_nodes * width

    def train(
        self,
        dataset: PlainDataset | None,
        *,
        ranks: parallel.Trainers | None,
        log: Log,
        progress: bool,
        checkpoints: PeriodicCheckpoints | None,
    ) -> Trained:
        """Walk and train, in this process or with other ranks."""

        def line(entry: SkipGramProgress) -> None:
            log(entry.as_dict())

        if checkpoints is not None and dataset is not None and dataset.graph.node_ids is not None:
            save_ids(checkpoints.folder, parallel.TABLE, dataset.graph.node_ids)
        if ranks is None:
            assert dataset is not None
            result = self._train_alone(dataset, line, progress, checkpoints)
            rows = result.embeddings(self.config.output.context)
        else:
            graph = None if dataset is None else dataset.graph
            made = parallel.train(
                ranks,
                self.config,
                self.model,
                graph,
                progress=progress,
                log=None if graph is None else line,
                checkpoints=checkpoints,
            )
            if made.rows is None:
                return Trained({}, made.result.interrupted, {})
            result, rows = made.result, made.rows
        assert dataset is not None
        ids = dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))
        metrics = training_metrics(result, self.config.train.threads)
        return Trained({parallel.TABLE: Embeddings(rows.numpy(), ids)}, result.interrupted, metrics)

    def judge(self, trained: Trained, dataset: PlainDataset, *, progress: bool) -> list[Finding]:
        """Node classes and held-out edges."""
        config = self.config
        weights = trained.tables[parallel.TABLE].weights
        return evaluate(weights, dataset, config.evaluate, config.seed, threads=config.train.threads, progress=progress)

    def _train_alone(
        self, dataset: PlainDataset, log: Any, progress: bool, checkpoints: PeriodicCheckpoints | None
    ) -> SkipGramResult:
        model, train = self.model, self.config.train
        p, q = model.bias
        sampler = WalkSampler(
            dataset.graph,
            num_walks=model.num_walks,
            walk_length=model.walk_length,
            p=p,
            q=q,
            seed=self.config.seed,
        )
        name = None if checkpoints is None else parallel.TABLE
        seed = self.config.seed
        first = first_rows(model, seed, dataset.graph.node_ids)
        tables = SkipGram(dataset.graph.num_nodes, self.model, seed=seed, name=name, init_func=first)
        return train_skipgram(
            sampler,
            model=tables,
            checkpoints=checkpoints,
            seed=seed,
            num_threads=train.threads,
            progress=progress,
            log_interval=train.log_interval,
            on_batch=log,
        )


def training_metrics(result: SkipGramResult, threads: int | None) -> dict[str, Any]:
    """The ``train`` section of metrics.json: the last line of the history, speed, parameters, memory."""
    last = result.history[-1] if result.history else None
    seconds = last.seconds if last else 0.0
    return {
        **(last.as_dict() if last else {}),
        "tokens_per_second": round(last.tokens / seconds) if last and seconds else None,
        "threads": thread_count(threads),
        "parameters": result.model.num_parameters,
        "peak_memory_mib": peak_memory_mib(),
    }


def describe_graph(dataset: PlainDataset) -> dict[str, Any]:
    """Name and size of a plain graph, and the edges that its view merged and added."""
    graph = dataset.graph
    sizes = {"name": dataset.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "directed": graph.directed}
    return {**sizes, "counts": dict(dataset.counts)} if dataset.counts else sizes


def with_rates(config: RunConfig) -> RunConfig:
    """The configuration as it is written: values that depend on others filled in, paths absolute."""
    model = config.model
    assert isinstance(model, SkipGramTraining)
    rates = {"lr": model.first_lr, "lr_decay": "linear" if model.decays else "none"}
    update = {"model": model.model_copy(update=rates), "dataset": absolute_paths(config.dataset)}
    return config.model_copy(update=update)
