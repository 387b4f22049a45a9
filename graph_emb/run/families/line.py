"""LINE on the edges of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.checkpoint.export import save_ids
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.views import PlainDataset
from graph_emb.models.skipgram.config import LineConfig
from graph_emb.models.skipgram.line import LineResult, side_by_side, train_line
from graph_emb.models.skipgram.training import SkipGramProgress
from graph_emb.run import parallel
from graph_emb.run.evaluation import Finding, check_section, evaluate
from graph_emb.run.families.walks import describe_graph, with_rates
from graph_emb.run.family import Log, Trained
from graph_emb.run.inputs import edge_policy, read_plain_dataset
from graph_emb.run.memory import check_memory
from graph_emb.run.versions import peak_memory_mib
from graph_emb.sampling.edge_sampler import EdgeSampler
from graph_emb.sampling.walkers import thread_count


class LineFamily:
    """See ``graph_emb.run.family.Family``."""

    def __init__(self, config: RunConfig) -> None:
        self.config = with_rates(config)
        assert isinstance(self.config.model, LineConfig)
        self.line = self.config.model

    def load(self) -> PlainDataset:
        """The graph with what its embeddings are judged by."""
        config = self.config
        dataset = read_plain_dataset(config.dataset, config.seed, **edge_policy(self.line))
        check_section(self.config.evaluate, dataset)
        for order in self.line.orders:
            self.line.skipgram(order, directed=dataset.graph.directed)  # refuses what has no meaning on the graph
        check_memory(dataset.graph.num_nodes, self.line.dim, 2, self.line.rule)
        return dataset

    def describe(self, dataset: PlainDataset) -> dict[str, Any]:
        """Name and size of the graph."""
        return describe_graph(dataset)

    def num_saved(self, dataset: PlainDataset) -> int:
        """A row for each node."""
        return dataset.graph.num_nodes * self.line.dim

    def train(
        self,
        dataset: PlainDataset | None,
        *,
        ranks: parallel.Trainers | None,
        log: Log,
        progress: bool,
        checkpoints: PeriodicCheckpoints | None,
    ) -> Trained:
        """Draw and train, in this process or with other ranks."""
        config = self.config
        first = dataset is not None

        def line(order: str, entry: SkipGramProgress) -> None:
            if first:
                log({"order": order, **entry.as_dict()})

        if checkpoints is not None and dataset is not None and dataset.graph.node_ids is not None:
            save_ids(checkpoints.folder, parallel.TABLE, dataset.graph.node_ids)
        share = None
        if ranks is None:
            assert dataset is not None
            sampler = EdgeSampler.of_graph(dataset.graph, draws_per_edge=self.line.draws_per_edge, seed=config.seed)
        else:
            share = parallel.share_of(ranks, config, None if dataset is None else dataset.graph)
            sampler = EdgeSampler(share.graph, ranks.group, draws_per_edge=self.line.draws_per_edge, seed=config.seed)
        result = train_line(
            sampler,
            self.line,
            part_policy=None if share is None else share.policy,
            seed=config.seed,
            num_threads=config.train.threads,
            progress=progress and first,
            log_interval=config.train.log_interval,
            on_batch=line,
            checkpoints=checkpoints,
            name=None if checkpoints is None else parallel.TABLE,
        )
        if ranks is None or share is None:
            rows = result.embeddings()
        else:
            orders = [parallel.gathered_rows(ranks, made, "none", share.order) for made in result.models.values()]
            if dataset is None:
                return Trained({}, result.interrupted, {})
            rows = side_by_side([order for order in orders if order is not None], self.line.normalize)
        assert dataset is not None
        ids = dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))
        return Trained({parallel.TABLE: Embeddings(rows.numpy(), ids)}, result.interrupted, self._metrics(result))

    def judge(self, trained: Trained, dataset: PlainDataset, *, progress: bool) -> list[Finding]:
        """Node classes and held-out edges."""
        config, weights = self.config, trained.tables[parallel.TABLE].weights
        return evaluate(weights, dataset, config.evaluate, config.seed, threads=config.train.threads, progress=progress)

    def _metrics(self, result: LineResult) -> dict[str, Any]:
        last = {order: lines[-1].as_dict() for order, lines in result.history.items() if lines}
        return {
            "orders": last,
            "seconds": result.seconds,
            "edges": result.num_draws,
            "edges_per_second": round(result.num_draws / result.seconds) if result.seconds else None,
            "threads": thread_count(self.config.train.threads),
            "parameters": result.num_parameters,
            "peak_memory_mib": peak_memory_mib(),
        }
