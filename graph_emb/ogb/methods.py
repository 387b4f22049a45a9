"""Methods for OGB's link and node data sets: embeddings of the graph, then OGB's network on top of them."""

# N nodes, D width of an embedding, F features.

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from graph_emb.compat.ogb import metadata
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.settings import Count, Number, Settings
from graph_emb.evaluate.mlp import MLPConfig, train_mlp
from graph_emb.graph import Graph
from graph_emb.graph.views import PlainDataset
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.matrix_factorization import MatrixFactorizationConfig, train_matrix_factorization
from graph_emb.models.links.training import FrozenRows, LinkPredictorResult, train_link_predictor
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.ogb.record import BestScore, SeedResult
from graph_emb.ogb.rules import TRAINING_ON_VALIDATION
from graph_emb.run.versions import peak_memory_mib
from graph_emb.sampling.edge_sampler import EdgeSampler
from graph_emb.sampling.walks import WalkSampler

Features = Literal["none", "raw", "unit columns"]
Reads = Literal["plain", "triples", "typed"]
"""A view of a data set: one node type, triples, or several node types."""


@dataclass(frozen=True)
class Run:
    """Seed, threads and device of one run of a recipe.

    Attributes:
        seed: Of the network, its batches and negatives.
        embedding_seed: Of the embeddings below it.
        threads: Of walks and skip-gram; torch's own are set by the script.
        device: Where a network is trained, for recipes that say so.
        progress: Shows bars.
    """

    seed: int
    embedding_seed: int
    threads: int
    device: str = "cpu"
    progress: bool = False


class Recipe(Settings, ABC):
    """A method with its hyper-parameters.

    Attributes:
        short: Names of the script's short flags and the setting that each changes.
        uses_device: Whether it can train on a GPU.
        reads: The view of a data set that ``run`` takes.
    """

    short: ClassVar[Mapping[str, str]] = {}
    uses_device: ClassVar[bool] = False
    reads: ClassVar[Reads] = "plain"

    @property
    def freezable(self) -> bool:
        """Whether the embedding is trained before, and apart from, what is judged."""
        return False

    @abstractmethod
    def run(self, data: Any, run: Run) -> SeedResult:
        """Train one seed and judge it."""


class Embedder(Settings, ABC):
    """How the rows below a network are learned."""

    @abstractmethod
    def embed(self, data: PlainDataset, run: Run) -> FrozenRows:
        """Rows (N, D) and the parameters of all their tables."""


class WalkEmbedding(Embedder):
    """Random walks and skip-gram.

    Attributes:
        skipgram: Its recipe.
        num_walks: Walks from each node.
        walk_length: Nodes of a walk.
        p, q: node2vec's return and in-out parameters; 1 and 1 is DeepWalk.
        context: How the context rows reach the network: "none", "add" or "concat".
    """

    skipgram: SkipGramConfig
    num_walks: Count = Field(default=10, ge=1)
    walk_length: Count = Field(default=40, ge=1)
    p: Number = Field(default=1.0, gt=0)
    q: Number = Field(default=1.0, gt=0)
    context: Literal["none", "add", "concat"] = "none"

    def embed(self, data: PlainDataset, run: Run) -> FrozenRows:
        """Walks over the training graph. The parameters of all tables count, whatever of them the network sees."""
        shape = {"num_walks": self.num_walks, "walk_length": self.walk_length}
        walks = WalkSampler(data.graph, **shape, p=self.p, q=self.q, seed=run.embedding_seed)
        trained = train_skipgram(
            walks, self.skipgram, seed=run.embedding_seed, num_threads=run.threads, progress=run.progress
        )
        if trained.interrupted:
            raise KeyboardInterrupt
        return FrozenRows(trained.embeddings(self.context), num_parameters=trained.model.num_parameters)


class LineEmbedding(Embedder):
    """LINE.

    Attributes:
        line: Its recipe.
        draws_per_edge: Draws of an epoch for each edge.
    """

    line: LineConfig
    draws_per_edge: Count = Field(default=100, ge=1)

    def embed(self, data: PlainDataset, run: Run) -> FrozenRows:
        """Draws edges of the training graph. The parameters of both orders count, with those of the contexts."""
        edges = EdgeSampler.of_graph(data.graph, draws_per_edge=self.draws_per_edge, seed=run.embedding_seed)
        trained = train_line(edges, self.line, seed=run.embedding_seed, num_threads=run.threads, progress=run.progress)
        if trained.interrupted:
            raise KeyboardInterrupt
        return FrozenRows(trained.embeddings(), num_parameters=trained.num_parameters)


class LinkRecipe(Recipe):
    """Embeddings, then OGB's link predictor on them; or both at once, for matrix factorisation.

    Attributes:
        embedding: How the rows are learned.
        predictor: The network's recipe.
        features: Node features joined to the embedding: "none", "raw", or "unit columns", each divided by its length.
        validation_edges: "held out"; or "trained on": a first training finds the epoch, a second one with the
            validation edges among its own lasts as long and gives the test value. The rules allow it for ogbl-collab.
    Raises:
        ConfigError: an unknown word, or features under an embedding that learns with the predictor.
    """

    embedding: WalkEmbedding | LineEmbedding | MatrixFactorizationConfig
    predictor: LinkPredictorConfig
    features: Features = "none"
    validation_edges: Literal["held out", "trained on"] = "held out"

    short: ClassVar[Mapping[str, str]] = {
        "epochs": "predictor.epochs",
        "patience": "predictor.patience",
        "batch_size": "predictor.batch_size",
    }

    @model_validator(mode="after")
    def _features_have_a_place(self) -> LinkRecipe:
        if not self.freezable and self.features != "none":
            raise ValueError(f"features={self.features!r}: matrix factorisation learns its rows from edges alone")
        return self

    @property
    def freezable(self) -> bool:
        """Not for matrix factorisation, whose rows learn with the predictor."""
        return not isinstance(self.embedding, MatrixFactorizationConfig)

    def run(self, data: PlainDataset, run: Run) -> SeedResult:
        """Train on the training edges; the epoch of each metric is the best on the validation pairs."""
        if data.link_split is None:
            raise DataError(f"data set {data.name!r} has no link split; a link recipe needs one")
        if self.validation_edges == "trained on":
            return self._run_twice(data, run)
        begin, num_nodes = time.perf_counter(), data.graph.num_nodes
        if isinstance(self.embedding, MatrixFactorizationConfig):
            table, result = train_matrix_factorization(
                data.link_split, num_nodes, self.embedding, self.predictor, seed=run.seed, progress=run.progress
            )
            learned, embedded = table.num_embeddings * table.embedding_dim, begin
        else:
            rows = self.embedding.embed(data, run)
            learned, embedded = rows.num_parameters, time.perf_counter()
            joined = FrozenRows(with_features(rows.embeddings, data, self.features), rows.num_parameters)
            result = train_link_predictor(
                joined, data.link_split, num_nodes, self.predictor, seed=run.seed, progress=run.progress
            )
        return self._result(data.name, result, learned, {"embedding": embedded - begin, "all": _since(begin)})

    def _run_twice(self, data: PlainDataset, run: Run) -> SeedResult:
        if data.name not in TRAINING_ON_VALIDATION:
            allowed = ", ".join(TRAINING_ON_VALIDATION)
            raise ConfigError(f"validation_edges='trained on': the rules allow it for {allowed} only, not {data.name}")
        first = self.replace(validation_edges="held out").run(data, run)
        chosen = first.scores[first.metric]
        assert chosen.epoch is not None
        as_long = self.predictor.replace(epochs=chosen.epoch, eval_every=chosen.epoch, patience=None)
        again = self.replace(validation_edges="held out", predictor=as_long)
        second = again.run(with_validation_edges(data), run)
        score = chosen.model_copy(update={"test": second.scores[first.metric].test})
        seconds = {name: first.seconds[name] + second.seconds[name] for name in ("embedding", "all")}
        told = {"scores": {first.metric: score}, "seconds": seconds, "history": [*first.history, *second.history]}
        return first.model_copy(update={**told, "peak_memory_mib": second.peak_memory_mib})

    def _result(self, name: str, result: LinkPredictorResult, learned: int, seconds: dict[str, float]) -> SeedResult:
        told = result.as_dict()
        return SeedResult(
            metric=metadata(name).eval_metric,
            selected_on="valid",
            scores={metric: BestScore(**values) for metric, values in told["scores"].items()},
            parameters={"embedding": learned, "link predictor": result.predictor.num_parameters},
            seconds={**seconds, "epoch of the link predictor": result.seconds_per_epoch},
            peak_memory_mib=peak_memory_mib(),
            history=told["history"],
        )


class NodeRecipe(Recipe):
    """Embeddings, then OGB's MLP on them.

    Attributes:
        embedding: How the rows are learned.
        mlp: The network's recipe.
        features: As in ``LinkRecipe``.
    """

    embedding: WalkEmbedding | LineEmbedding
    mlp: MLPConfig
    features: Features = "none"

    short: ClassVar[Mapping[str, str]] = {"epochs": "mlp.epochs", "batch_size": "mlp.batch_size"}

    @property
    def freezable(self) -> bool:
        """The rows are learned before the network."""
        return True

    def run(self, data: PlainDataset, run: Run) -> SeedResult:
        """Train on the training nodes; the epoch is the best on the validation nodes."""
        if data.labels is None or data.node_split is None:
            raise DataError(f"data set {data.name!r} has no labels or no node split; a node recipe needs both")
        begin = time.perf_counter()
        rows = self.embedding.embed(data, run)
        matrix = with_features(rows.embeddings, data, self.features)
        several = metadata(data.name).num_tasks != 1
        truth = data.labels.to_matrix().toarray().astype(np.float32) if several else data.labels.to_single()
        seconds = {"embedding": time.perf_counter() - begin}
        return judge_nodes(data.name, matrix, truth, data.node_split, self.mlp, run, rows.num_parameters, seconds)


def judge_nodes(
    name: str,
    matrix: Tensor,
    truth: NDArray[Any],
    split: Mapping[str, NDArray[np.int64]],
    mlp: MLPConfig,
    run: Run,
    learned: int,
    seconds: Mapping[str, float],
) -> SeedResult:
    """OGB's MLP on rows (N, D + F).

    Args:
        name: OGB's name of the data set.
        matrix: Input of the network.
        truth: Classes (N,), int64, or answers (N, T), float32.
        split: Node numbers of each part.
        mlp: The network's recipe.
        run: Seed and progress.
        learned: Parameters of the embedding.
        seconds: Wall time by stage so far.
    """
    begin, meta = time.perf_counter(), metadata(name)
    parts = {part: (matrix[torch.from_numpy(nodes)], torch.from_numpy(truth[nodes])) for part, nodes in split.items()}
    num_outputs = truth.shape[1] if truth.ndim == 2 else meta.num_classes
    assert num_outputs is not None  # master.csv has it for all node data sets
    found = train_mlp(parts, num_outputs, mlp, seed=run.seed, progress=run.progress)
    return SeedResult(
        metric=meta.eval_metric,
        selected_on="valid",
        scores={found.metric: BestScore(epoch=found.epoch, valid=found.scores["valid"], test=found.scores["test"])},
        parameters={"embedding": learned, "mlp": found.num_parameters},
        seconds={**seconds, "all": sum(seconds.values()) + time.perf_counter() - begin},
        peak_memory_mib=peak_memory_mib(),
        history=[{"epoch": found.epoch, **found.scores}],
    )


def with_features(rows: Tensor, data: PlainDataset, features: str) -> Tensor:
    """Embeddings (N, D) behind the node features (N, F), as OGB's scripts put them; as they are for "none".

    Raises:
        DataError: the data set has no features.
    """
    if features == "none":
        return rows
    if data.features is None:
        raise DataError(f"data set {data.name!r} has no node features here; take features=none, or complete its files")
    given = torch.from_numpy(np.ascontiguousarray(data.features)).float()
    return torch.cat([F.normalize(given, dim=0) if features == "unit columns" else given, rows], dim=1)


def with_validation_edges(data: PlainDataset) -> PlainDataset:
    """The data set with its validation edges in the graph and among the training edges.

    Weights of repeated edges add up; an edge without one counts 1.

    Args:
        data: With a link split.
    """
    split, graph = data.link_split, data.graph
    assert split is not None
    held = split["valid"]
    known = graph.edge_weights()
    weights = [np.ones(graph.num_edges, np.float32) if known is None else known, _weights(held)]
    ends = np.concatenate([graph.edges(), held["edge"]])
    joined = Graph.from_edges(
        ends[:, 0],
        ends[:, 1],
        graph.num_nodes,
        np.concatenate(weights),
        graph.directed,
        duplicates="sum",
    )
    train = {"edge": np.concatenate([split["train"]["edge"], held["edge"]])}
    return replace(data, graph=joined, link_split={**split, "train": train})


def _weights(tables: Mapping[str, Any]) -> np.ndarray:
    given = tables.get("weight")
    return np.ones(len(tables["edge"]), np.float32) if given is None else np.asarray(given, np.float32).reshape(-1)


def _since(begin: float) -> float:
    return time.perf_counter() - begin
