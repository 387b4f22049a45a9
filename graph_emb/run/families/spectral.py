"""Spectral embeddings of graphs with one node type: NetMF and ProNE."""

from __future__ import annotations

import time

import numpy as np

from graph_emb.core.threads import torch_threads
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.views import PlainDataset
from graph_emb.models.spectral.factorise import check_size, spectral_rows
from graph_emb.run import parallel
from graph_emb.run.families.plain import PlainFamily
from graph_emb.run.family import Trained, TrainingJob


class SpectralFamily(PlainFamily):
    """See ``graph_emb.run.family.Family``."""

    def _check(self, dataset: PlainDataset) -> None:
        super()._check(dataset)
        check_size(dataset.graph.num_nodes, self.model)

    def _num_tables(self) -> float:
        return 1.0

    def train(self, dataset: PlainDataset | None, job: TrainingJob) -> Trained:
        """Compute the rows in this process."""
        assert dataset is not None
        begin = time.perf_counter()
        with torch_threads(self.config.train.threads):
            rows = spectral_rows(dataset.graph, self.model, self.config.seed)
        seconds = time.perf_counter() - begin
        job.log({"seconds": seconds})
        ids = dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))
        return Trained({parallel.TABLE: Embeddings(rows, ids)}, False, {"seconds": seconds, "parameters": rows.size})
