"""OGB's link predictor: a small network on the element-wise product of two embeddings."""

# B pairs, D width of an embedding, H hidden width, R rows, E edges.

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from graph_emb.data.non_edges import NonEdges
from graph_emb.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate.link_prediction import hits
from graph_emb.models.dropped_relu import dropped_relu_

# Pairs that run through the network at once. Their activations stay in the cache, which halves an epoch's time; the
# gradients of a batch's chunks add up to the batch's.
CHUNK = 8192
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LinkPredictorConfig:
    """The recipe; the defaults are those of OGB's ``examples/linkproppred/ddi/mlp.py``.

    Attributes:
        hidden_dim: H.
        num_layers: Linear layers, at least 2.
        dropout: After each hidden layer, at least 0 and below 1.
        lr: Adam's learning rate.
        batch_size: Edges of a step; as many non-edges join them.
        epochs: Passes over the training edges.
        eval_every: Epochs between two evaluations.
        patience: Evaluations without a better validation Hits@``select`` after which training ends; None: never.
        hits: The K of Hits@K.
        select: The K that ``patience`` watches, one of ``hits``.
        precision: Of the products in training; scores and ranks are always float32.
    Raises:
        ConfigError: a value is outside its limits.
    """

    hidden_dim: int = 256
    num_layers: int = 3
    dropout: float = 0.5
    lr: float = 0.01
    batch_size: int = 64 * 1024
    epochs: int = 200
    eval_every: int = 5
    patience: int | None = None
    hits: tuple[int, ...] = (10, 20, 30, 50, 100)
    select: int = 20
    precision: str = "float32"

    def __post_init__(self) -> None:
        for field in ("hidden_dim", "batch_size", "epochs", "eval_every"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.num_layers < 2:
            raise ConfigError(f"num_layers is {self.num_layers}; a hidden and an output layer are the least")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"lr is {self.lr}; it must be positive and finite")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience is {self.patience}; give at least 1, or None to train all epochs")
        if self.epochs < self.eval_every:
            raise ConfigError(f"epochs={self.epochs} ends before the first evaluation, eval_every={self.eval_every}")
        if self.select not in self.hits:
            raise ConfigError(f"select={self.select} is not among hits={self.hits}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {self.precision!r}; known: {', '.join(PRECISIONS)}")


class LinkPredictor(nn.Module):
    """``logit(i, j) = MLP(x_i * x_j)``: linear layers with ReLU and dropout between them, one output.

    OGB's ``LinkPredictor`` without its sigmoid: float32 sigmoids saturate at a logit of 17 and make ties.

    Args:
        in_dim: D.
        config: Sizes and dropout.
        seed: Of the initial weights (torch's ``nn.Linear`` distribution) and of the dropout masks.
    """

    def __init__(self, in_dim: int, config: LinkPredictorConfig | None = None, *, seed: int = 0) -> None:
        super().__init__()
        config = config or LinkPredictorConfig()
        self.dropout = config.dropout
        self._generator = torch.Generator().manual_seed(seed)
        widths = [in_dim, *[config.hidden_dim] * (config.num_layers - 1), 1]
        self.layers = nn.ModuleList(nn.utils.skip_init(nn.Linear, a, b) for a, b in pairwise(widths))
        for layer in self._linears():
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=self._generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=self._generator)

    @property
    def num_parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _linears(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.layers))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Logits of B pairs.

        Args:
            left, right: Embeddings of the two ends, shape (B, D), float32.
        Returns:
            Shape (B,), float32, or bfloat16 under autocast.
        """
        x = left * right
        scale = 1.0
        *hidden, last = self._linears()
        for layer in hidden:
            x = F.linear(x, layer.weight * scale, layer.bias)
            if self.training and self.dropout > 0:
                x = dropped_relu_(x, self.dropout, self._generator)
                scale = 1 / (1 - self.dropout)  # of what dropout kept; the next layer's weight carries it
            else:
                x = F.relu(x)
        return F.linear(x, last.weight * scale, last.bias).squeeze(-1)


class RowSource(Protocol):
    """Where the predictor's rows come from, and where their gradients go."""

    dim: int
    num_parameters: int

    def gather(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (R, D) and, for pairs (B, 2) of node ids, the positions (B, 2) of their rows among these.

        While gradients are enabled, rows that learn come as a leaf that requires a gradient.
        """

    def step(self, rows: Tensor) -> None:
        """Learns from the gradient of the rows that the last ``gather`` returned."""


class FrozenRows:
    """Embeddings that were trained before and stay as they are.

    Args:
        embeddings: Shape (N, D), float32.
        num_parameters: Numbers that were learned for them; None: as many as there are (one table).
    Raises:
        ShapeError: embeddings is no float32 matrix.
    """

    def __init__(self, embeddings: Tensor, num_parameters: int | None = None) -> None:
        if embeddings.dim() != 2 or embeddings.dtype != torch.float32:
            raise ShapeError(
                f"embeddings have shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; give float32 (N, D)"
            )
        self.embeddings = embeddings.detach()
        self.dim = embeddings.shape[1]
        self.num_parameters = embeddings.numel() if num_parameters is None else num_parameters

    def gather(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """All rows and the pairs as they are: nothing has to be collected."""
        return self.embeddings, pairs

    def step(self, rows: Tensor) -> None:
        """Nothing learns."""


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes:
        epoch: 1-based.
        loss: Mean over the epoch's edges.
        valid: Hits@K on the validation pairs by K.
        test: The same on the test pairs; None where no K's validation value is the best so far.
    """

    epoch: int
    loss: float
    valid: dict[int, float]
    test: dict[int, float] | None


@dataclass(frozen=True)
class LinkPredictorResult:
    """The evaluations of one training run, with the predictor as it was after the last epoch.

    Attributes:
        predictor: The trained network.
        history: In order of epochs.
        num_parameters: Of all stages: embeddings and network.
        seconds_per_epoch: Wall time of training, evaluations left out.
    """

    predictor: LinkPredictor
    history: tuple[Evaluation, ...]
    num_parameters: int
    seconds_per_epoch: float

    def best(self, k: int) -> Evaluation:
        """The first evaluation with the highest validation Hits@k; its ``test`` is what OGB's logger reports."""
        return max(self.history, key=lambda evaluation: evaluation.valid[k])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: per K the epoch, valid and test; the history; counts and times."""
        best = {k: self.best(k) for k in self.history[0].valid}
        return {
            "hits": {
                str(k): {"epoch": e.epoch, "valid": e.valid[k], "test": (e.test or {})[k]} for k, e in best.items()
            },
            "history": [{"epoch": e.epoch, "loss": e.loss, "valid": e.valid, "test": e.test} for e in self.history],
            "num_parameters": self.num_parameters,
            "seconds_per_epoch": self.seconds_per_epoch,
        }


def score_links(predictor: LinkPredictor, rows: RowSource, pairs: Tensor) -> Tensor:
    """Logits in float32 without dropout.

    Args:
        predictor: The network; its training mode is left as found.
        rows: The embeddings.
        pairs: Node ids, shape (B, 2), int64.
    Returns:
        Shape (B,), float32.
    """
    was_training = predictor.training
    predictor.eval()
    logits = []
    with torch.no_grad():
        for chunk in pairs.split(CHUNK):
            gathered, local = rows.gather(chunk)
            logits.append(predictor(gathered.index_select(0, local[:, 0]), gathered.index_select(0, local[:, 1])))
    predictor.train(was_training)
    return torch.cat(logits) if logits else torch.empty(0)


def train_link_predictor(
    rows: RowSource,
    link_split: Mapping[str, Mapping[str, Any]],
    num_nodes: int,
    config: LinkPredictorConfig | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
) -> LinkPredictorResult:
    """Trains a predictor on the training edges against random non-edges and evaluates it as OGB does.

    The loss is ``mean(-log sigmoid(edge)) + mean(-log(1 - sigmoid(non-edge)))``, taken on logits. The test pairs are
    scored only at epochs whose validation value is the best so far, and nothing is chosen by them.

    Args:
        rows: The embeddings, frozen or learning.
        link_split: ``{"train": {"edge"}, "valid": {"edge", "edge_neg"}, "test": {"edge", "edge_neg"}}``, arrays (E, 2).
        num_nodes: N.
        config: The recipe.
        seed: Of the network, the order of the edges, the non-edges and the dropout.
        progress: Shows a bar.
    Raises:
        DataError: a part of the split is missing or empty.
    """
    config = config or LinkPredictorConfig()
    pairs = _as_pairs(link_split)
    network_seed, order_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    predictor = LinkPredictor(rows.dim, config, seed=network_seed)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(order_seed)
    negatives = NonEdges(pairs["train/edge"], num_nodes)
    best = dict.fromkeys(config.hits, -1.0)
    history: list[Evaluation] = []
    stale, seconds = 0, 0.0
    bar = tqdm(range(1, config.epochs + 1), desc="link predictor", unit="epoch", disable=not progress)
    for epoch in bar:
        begin = time.perf_counter()
        loss = _train_epoch(predictor, optimizer, rows, pairs["train/edge"], negatives, config, generator)
        seconds += time.perf_counter() - begin
        if epoch % config.eval_every:
            continue
        valid = _hits(predictor, rows, pairs, "valid", config.hits)
        better = [k for k in config.hits if valid[k] > best[k]]
        best.update({k: valid[k] for k in better})
        test = _hits(predictor, rows, pairs, "test", config.hits) if better else None
        history.append(Evaluation(epoch, loss, valid, test))
        bar.set_postfix({"loss": f"{loss:.3f}", f"valid hits@{config.select}": f"{valid[config.select]:.4f}"})
        stale = 0 if config.select in better else stale + 1
        if stale == config.patience:
            break
    bar.close()
    total = rows.num_parameters + predictor.num_parameters
    return LinkPredictorResult(predictor, tuple(history), total, seconds / epoch)


def _train_epoch(
    predictor: LinkPredictor,
    optimizer: torch.optim.Optimizer,
    rows: RowSource,
    edges: Tensor,
    negatives: NonEdges,
    config: LinkPredictorConfig,
    generator: torch.Generator,
) -> float:
    """One pass over the edges in a random order; returns the mean loss."""
    predictor.train()
    total = 0.0
    for batch in torch.randperm(len(edges), generator=generator).split(config.batch_size):
        optimizer.zero_grad()
        pairs = torch.cat([edges[batch], negatives.sample(len(batch), generator)])
        sign = torch.ones(len(pairs))
        sign[len(batch) :] = -1.0
        gathered, local = rows.gather(pairs)
        for chunk, chunk_sign in zip(local.split(CHUNK), sign.split(CHUNK), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
                logits = predictor(gathered.index_select(0, chunk[:, 0]), gathered.index_select(0, chunk[:, 1]))
            loss = -F.logsigmoid(chunk_sign * logits.float()).sum() / len(batch)
            loss.backward()
            total += loss.item() * len(batch)
        optimizer.step()
        rows.step(gathered)
    return total / len(edges)


def _hits(
    predictor: LinkPredictor, rows: RowSource, pairs: Mapping[str, Tensor], part: str, at: tuple[int, ...]
) -> dict[int, float]:
    edges = score_links(predictor, rows, pairs[f"{part}/edge"])
    others = score_links(predictor, rows, pairs[f"{part}/edge_neg"])
    return hits(edges, others, at)


def _parts() -> Iterator[tuple[str, str]]:
    yield "train", "edge"
    for part in ("valid", "test"):
        yield from ((part, "edge"), (part, "edge_neg"))


def _as_pairs(link_split: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """The split's arrays as int64 tensors (E, 2) by "part/kind"."""
    pairs = {}
    for part, kind in _parts():
        if part not in link_split or kind not in link_split[part] or len(link_split[part][kind]) == 0:
            raise DataError(f"the link split has no {part} {kind!r}; a predictor needs train, valid and test pairs")
        pairs[f"{part}/{kind}"] = torch.as_tensor(link_split[part][kind]).long()
    return pairs
