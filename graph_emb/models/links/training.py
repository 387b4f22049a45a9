"""OGB's link predictor: a small network on the element-wise product of two embeddings."""

# B pairs, D width of an embedding, H hidden width, R rows, E edges.

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from graph_emb.core.errors import ShapeError
from graph_emb.evaluate.judged_pairs import JudgedPairs
from graph_emb.evaluate.link_prediction import metric_values
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.dropped_relu import dropped_relu_
from graph_emb.models.links.pair_products import pair_products
from graph_emb.models.links.pairs import LinkSplit, NegativeDraw, judged_pairs, negative_draw, training_edges

# Pairs that run through the network at once. Their activations stay in the cache, which takes a quarter off an epoch's
# time; the gradients of a batch's chunks add up to the batch's.
CHUNK = 4096


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
        self.generator = torch.Generator().manual_seed(seed)
        widths = [in_dim, *[config.hidden_dim] * (config.num_layers - 1), 1]
        self.layers = nn.ModuleList(nn.utils.skip_init(nn.Linear, a, b) for a, b in pairwise(widths))
        for layer in self._linears():
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=self.generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=self.generator)

    @property
    def num_parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _linears(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.layers))

    def forward(self, rows: Tensor, pairs: Tensor, row_grads: Tensor | None = None) -> Tensor:
        """Logits of B pairs.

        Args:
            rows: Embeddings, shape (R, D), float32.
            pairs: Positions of the two ends among them, shape (B, 2), int64.
            row_grads: Where the backward pass adds the gradient of rows; see ``pair_products``.
        Returns:
            Shape (B,), float32, or the dtype of autocast under it.
        """
        kind = rows.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
        x = pair_products(rows, pairs, dtype=dtype, row_grads=row_grads)
        scale = 1.0
        *hidden, last = self._linears()
        for layer in hidden:
            x = F.linear(x, layer.weight * scale, layer.bias)
            if x.device.type != "cpu":
                x = F.dropout(F.relu(x), self.dropout, self.training)
            elif self.training and self.dropout > 0:
                x = dropped_relu_(x, self.dropout, self.generator)
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

    def step(self, row_grads: Tensor | None) -> None:
        """Learns from the gradient (R, D) of the rows that the last ``gather`` returned; None where none learn."""


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
        """All rows, and the pairs on their device: nothing has to be collected."""
        return self.embeddings, pairs.to(self.embeddings.device)

    def step(self, row_grads: Tensor | None) -> None:
        """Nothing learns."""


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes:
        epoch: 1-based.
        loss: Mean over the epoch's edges.
        valid: Validation values by metric.
        test: The same on the test pairs; None where no metric's validation value is the best so far.
    """

    epoch: int
    loss: float
    valid: dict[str, float]
    test: dict[str, float] | None


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

    def best(self, metric: str) -> Evaluation:
        """The first evaluation with the highest validation value; its ``test`` is what OGB's logger reports."""
        return max(self.history, key=lambda evaluation: evaluation.valid[metric])

    def best_values(self) -> dict[str, dict[str, Any]]:
        """By metric, at its best evaluation: ``epoch``, ``valid`` and ``test``."""
        best = {metric: self.best(metric) for metric in self.history[0].valid}
        return {
            metric: {"epoch": e.epoch, "valid": e.valid[metric], "test": (e.test or {})[metric]}
            for metric, e in best.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: the best values, the history, counts and times."""
        return {
            "scores": self.best_values(),
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
            logits.append(predictor(gathered, local))
    predictor.train(was_training)
    return torch.cat(logits) if logits else torch.empty(0)


def train_link_predictor(
    rows: RowSource,
    link_split: LinkSplit,
    num_nodes: int,
    config: LinkPredictorConfig | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
) -> LinkPredictorResult:
    """Trains a predictor on the training edges against random negatives and evaluates it as OGB does.

    The loss is ``mean(-log sigmoid(edge)) + mean(-log(1 - sigmoid(negative)))``, taken on logits. The test pairs are
    scored only at epochs whose validation value is the best so far, and nothing is chosen by them.

    Args:
        rows: The embeddings, frozen or learning.
        link_split: Arrays: ``edge`` (E, 2) of train, valid and test; for the last two ``edge_neg`` (M, 2), or
            ``target_node_neg`` (E, M), wrong targets for the source of each edge.
        num_nodes: N.
        config: The recipe.
        seed: Of the network, the order of the edges, the negatives and the dropout.
        progress: Shows a bar.
    Raises:
        DataError: a part of the split is missing or empty.
        ShapeError: a table of another shape.
    """
    config = config or LinkPredictorConfig()
    edges = training_edges(link_split)
    valid_pairs, test_pairs = (judged_pairs(link_split, part) for part in ("valid", "test"))
    draw = negative_draw(config.negatives, link_split, num_nodes)
    network_seed, order_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    predictor = LinkPredictor(rows.dim, config, seed=network_seed)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(order_seed)
    best = dict.fromkeys(config.metrics, -1.0)
    history: list[Evaluation] = []
    stale, seconds = 0, 0.0
    bar = tqdm(range(1, config.epochs + 1), desc="link predictor", unit="epoch", disable=not progress)
    for epoch in bar:
        begin = time.perf_counter()
        loss = _train_epoch(predictor, optimizer, rows, edges, draw, config, generator)
        seconds += time.perf_counter() - begin
        if epoch % config.eval_every:
            continue
        valid = _judge(predictor, rows, valid_pairs, config)
        better = [name for name in config.metrics if valid[name] > best[name]]
        best.update({name: valid[name] for name in better})
        test = _judge(predictor, rows, test_pairs, config) if better else None
        history.append(Evaluation(epoch, loss, valid, test))
        bar.set_postfix({"loss": f"{loss:.3f}", f"valid {config.select}": f"{valid[config.select]:.4f}"})
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
    draw: NegativeDraw,
    config: LinkPredictorConfig,
    generator: torch.Generator,
) -> float:
    """One pass over the edges in a random order; returns the mean loss."""
    predictor.train()
    total = 0.0
    for numbers in torch.randperm(len(edges), generator=generator).split(config.batch_size):
        optimizer.zero_grad()
        batch = edges[numbers]
        pairs = torch.cat([batch, draw(numbers, batch, generator)])
        sign = torch.ones(len(pairs))
        sign[len(batch) :] = -1.0
        gathered, local = rows.gather(pairs)
        row_grads = torch.zeros_like(gathered) if gathered.requires_grad else None
        for chunk, chunk_sign in zip(local.split(CHUNK), sign.split(CHUNK), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
                logits = predictor(gathered, chunk, row_grads)
            loss = -F.logsigmoid(chunk_sign * logits.float()).sum() / len(batch)
            loss.backward()
            total += loss.item() * len(batch)
        optimizer.step()
        rows.step(row_grads)
    return total / len(edges)


def _judge(
    predictor: LinkPredictor, rows: RowSource, pairs: JudgedPairs, config: LinkPredictorConfig
) -> dict[str, float]:
    return metric_values(pairs.ranks(lambda some: score_links(predictor, rows, some)), config.metrics)
