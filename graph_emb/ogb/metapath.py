"""metapath2vec on a data set with several node types, then OGB's MLP on the labelled one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from graph_emb.compat.ogb import OGBHetero
from graph_emb.core.errors import DataError
from graph_emb.core.settings import Count
from graph_emb.evaluate.mlp import MLPConfig
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import SkipGram, train_skipgram
from graph_emb.ogb.methods import Reads, Recipe, Run, judge_nodes
from graph_emb.ogb.record import SeedResult
from graph_emb.run.families.metapath import rows_by_type, whole_graph
from graph_emb.sampling.metapath_walks import Metapath, MetapathSampler


class MetapathRecipe(Recipe):
    """Walks along a path of node types and skip-gram; the MLP reads features and embedding of the labelled type.

    Attributes:
        skipgram: Its recipe.
        metapath: Node types joined by "-", relations in brackets where several join two types.
        mlp: The network's recipe.
        num_walks: Walks from each node of the first type.
        walk_length: Nodes of a walk.
    """

    skipgram: SkipGramConfig
    metapath: str
    mlp: MLPConfig
    num_walks: Count = Field(default=5, ge=1)
    walk_length: Count = Field(default=64, ge=1)

    reads: ClassVar[Reads] = "typed"
    short: ClassVar[Mapping[str, str]] = {"epochs": "mlp.epochs", "batch_size": "mlp.batch_size"}

    @property
    def freezable(self) -> bool:
        """The rows are learned before the network."""
        return True

    def run(self, data: OGBHetero, run: Run) -> SeedResult:
        """Walk over the whole graph; the epoch of the MLP is the best on the validation nodes."""
        begin, name = time.perf_counter(), data.metadata.name
        (ntype,) = data.labels
        if ntype not in data.node_feat:
            raise DataError(f"{name}: nodes of type {ntype!r} have no features here; complete its files")
        embedding, learned = self._embed(data, ntype, run)
        matrix = torch.cat([torch.from_numpy(data.node_feat[ntype]).float(), embedding], dim=1)
        split = {part: by_type[ntype] for part, by_type in data.split.items()}
        seconds = {"embedding": time.perf_counter() - begin}
        return judge_nodes(name, matrix, data.labels[ntype], split, self.mlp, run, learned, seconds)

    def _embed(self, data: OGBHetero, ntype: str, run: Run) -> tuple[Tensor, int]:
        """Rows of a type, (N, D), and the parameters of all types."""
        edges = {triplet: (index[0], index[1]) for triplet, index in data.edge_index.items()}
        graph = HeteroGraph(dict(data.num_nodes), edges, name=data.metadata.name)
        path = Metapath.parse(self.metapath, graph)
        states = whole_graph(graph, path)
        walks = MetapathSampler(states, num_walks=self.num_walks, walk_length=self.walk_length, seed=run.embedding_seed)
        tables = SkipGram(states.num_nodes, self.skipgram, seed=run.embedding_seed)
        trained = train_skipgram(
            walks, model=tables, seed=run.embedding_seed, num_threads=run.threads, progress=run.progress
        )
        if trained.interrupted:
            raise KeyboardInterrupt
        rows = rows_by_type(tables.embeddings(), graph, path)[ntype].weights
        return torch.from_numpy(rows), tables.num_parameters
