"""Matrix factorisation: rows that learn with OGB's link predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import torch_threads
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.views import PlainDataset
from graph_emb.models.links.config import LinkPredictorConfig, MatrixFactorizationConfig
from graph_emb.models.links.matrix_factorization import train_matrix_factorization
from graph_emb.run.evaluation import Finding, predictor_finding
from graph_emb.run.families.walks import describe_graph
from graph_emb.run.family import Log, Trained
from graph_emb.run.inputs import absolute_paths, read_plain_dataset
from graph_emb.run.memory import check_memory
from graph_emb.run.parallel import TABLE, Trainers
from graph_emb.run.versions import peak_memory_mib


class LinkFamily:
    """See ``graph_emb.run.family.Family``."""

    def __init__(self, config: RunConfig) -> None:
        assert isinstance(config.model, MatrixFactorizationConfig)
        self.model = config.model
        self.predictor = config.evaluate.predictor or LinkPredictorConfig()
        self.config = config.model_copy(update={"dataset": absolute_paths(config.dataset)})

    def load(self) -> PlainDataset:
        """The graph with its held-out edges."""
        dataset = read_plain_dataset(self.config.dataset, self.config.seed)
        if not {"train", "valid", "test"} <= (dataset.link_split or {}).keys():
            raise ConfigError(f"{dataset.name} holds out no edges for validation and test, by which mf is trained")
        check_memory(dataset.graph.num_nodes, self.model.dim, 1, self.model.rule)
        return dataset

    def describe(self, dataset: PlainDataset) -> dict[str, Any]:
        """Name and size of the graph."""
        return describe_graph(dataset)

    def num_saved(self, dataset: PlainDataset) -> int:
        """A row for each node."""
        return dataset.graph.num_nodes * self.model.dim

    def train(
        self,
        dataset: PlainDataset | None,
        *,
        ranks: Trainers | None,
        log: Log,
        progress: bool,
        checkpoints: PeriodicCheckpoints | None,
    ) -> Trained:
        """Train rows and predictor in this process; nothing is saved on the way."""
        assert dataset is not None
        assert dataset.link_split is not None
        nodes = np.arange(dataset.graph.num_nodes)
        with torch_threads(self.config.train.threads) as threads:
            table, result = train_matrix_factorization(
                dataset.link_split, len(nodes), self.model, self.predictor, seed=self.config.seed, progress=progress
            )
            rows = table.weight[torch.from_numpy(nodes)]
        for evaluation in result.history:
            log(evaluation.as_dict())
        metrics = {
            "seconds_per_epoch": result.seconds_per_epoch,
            "parameters": rows.numel(),
            "threads": threads,
            "peak_memory_mib": peak_memory_mib(),
        }
        return Trained({TABLE: Embeddings(rows.numpy(), dataset.graph.ids_of(nodes))}, False, metrics, result)

    def judge(self, trained: Trained, dataset: PlainDataset, *, progress: bool) -> list[Finding]:
        """The predictor's scores."""
        return [predictor_finding(trained.model)]
