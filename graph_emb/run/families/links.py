"""Matrix factorisation: rows that learn with OGB's link predictor, by which they are judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, LackingError
from graph_emb.core.threads import torch_threads
from graph_emb.evaluate.link_prediction import link_part, metric_values
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.formats.network_files import KeptNetwork
from graph_emb.graph.views import PlainDataset
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.matrix_factorization import train_matrix_factorization
from graph_emb.models.links.training import FrozenRows, LinkPredictor, score_links
from graph_emb.run import parallel
from graph_emb.run.evaluation import Finding, last_network, predictor_finding
from graph_emb.run.families.plain import PlainFamily
from graph_emb.run.family import Trained, TrainingJob
from graph_emb.run.machine import pages_of_rows
from graph_emb.table.placement import in_memory


class LinkFamily(PlainFamily):
    """See ``graph_emb.run.family.Family``."""

    def _check(self, dataset: PlainDataset) -> None:
        if not {"train", "valid", "test"} <= (dataset.link_split or {}).keys():
            raise LackingError(
                f"{dataset.name} holds out no edges for validation and test, by which mf is trained; "
                "dataset.test_edges names a file of both"
            )
        section, num = self.config.train, dataset.graph.num_nodes
        if section.memory is not None and pages_of_rows(num, self.model, section.table_placement())[0] < 1:
            raise ConfigError(
                f"train.memory = {section.memory!r} does not hold a page of {num:,} nodes with their state; raise it"
            )

    def _num_tables(self) -> float:
        return 1.0

    def train(self, dataset: PlainDataset | None, job: TrainingJob) -> Trained:
        """Train rows and predictor in this process; nothing is saved on the way."""
        assert dataset is not None
        assert dataset.link_split is not None
        if self._plan and job.progress:
            print(self._plan, file=sys.stderr)
        config, nodes = self.config, np.arange(dataset.graph.num_nodes)
        predictor = config.evaluate.predictor or LinkPredictorConfig()
        how: dict[str, Any] = {"seed": config.seed, "progress": job.progress}
        how["placement"] = placement = config.train.table_placement()
        with torch_threads(config.train.threads):
            table, result = train_matrix_factorization(dataset.link_split, len(nodes), self.model, predictor, **how)
            rows = all_rows(table, wanted=True)
        assert rows is not None
        for evaluation in result.history:
            job.log(evaluation.as_dict())
        metrics: dict[str, Any] = {"seconds_per_epoch": result.seconds_per_epoch, "parameters": rows.numel()}
        if not in_memory(placement):
            metrics["cache"] = table.cache_stats().as_dict()
        embeddings = Embeddings(rows.numpy(), dataset.graph.ids_of(nodes))
        about = {"epoch": result.epochs, "predictor": predictor.model_dump(mode="json")}
        network = KeptNetwork.of(result.predictor, about)
        return Trained({parallel.TABLE: embeddings}, False, metrics, result, network)

    def judge(self, trained: Trained, dataset: PlainDataset, *, progress: bool) -> list[Finding]:
        """The predictor's scores."""
        return [predictor_finding(trained.model)]

    def judge_rows(
        self,
        tables: dict[str, Embeddings],
        dataset: PlainDataset,
        network: KeptNetwork | None = None,
        *,
        progress: bool,
    ) -> list[Finding]:
        """By the predictor that learned with the rows; as other rows where ``evaluate.predictor`` is another one."""
        recipe, findings = self.config.evaluate.predictor or LinkPredictorConfig(), []
        if network is not None and network.about["predictor"] == recipe.model_dump(mode="json"):
            assert dataset.link_split is not None
            split, rows = dataset.link_split, tables[parallel.TABLE].weights
            found = {part: link_part(split, part, len(rows)) for part in ("valid", "test")}
            with torch_threads(self.config.train.threads):
                scores = kept_scores(network, rows)
                parts = {part: metric_values(own.ranks(scores), recipe.metrics) for part, own in found.items()}
            findings.append(last_network("links", network.about["epoch"], parts, network.num_parameters))
        if not findings or self.config.evaluate.predictor is None:
            findings += super().judge(Trained(tables, False), dataset, progress=progress)
        return findings


def kept_scores(network: KeptNetwork, weights: NDArray[np.floating]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Scores (B,) of pairs of rows (B, 2) by the predictor of a run of ``mf``."""
    rows = FrozenRows(torch.from_numpy(weights))
    predictor = LinkPredictor(rows.dim, LinkPredictorConfig(**network.about["predictor"]))
    network.load_into(predictor)
    return lambda pairs: score_links(predictor, rows, pairs)
