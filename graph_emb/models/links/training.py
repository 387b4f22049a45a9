"""OGB's link predictor: a small network on the element-wise product of two embeddings, and its training."""

# B pairs or edges, K negatives of an edge, D width of an embedding, H hidden width, R rows, E edges.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.evaluate.link_prediction import LinkPart, LinkSplit, link_part, metric_values, pairs_of
from graph_emb.models.announcing import announced
from graph_emb.models.epochs import TrainingResult, run_epochs
from graph_emb.models.links.config import LinkLossName, LinkPredictorConfig, PrecisionName
from graph_emb.models.links.kernels import dropped_relu_, pair_products
from graph_emb.models.links.losses import LINK_LOSSES
from graph_emb.models.schedule import RateSchedule
from graph_emb.optimizer import SparseOptimizer
from graph_emb.sampling.negatives import NonEdges

NegativeDraw = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Numbers (B,) and pairs (B, 2) of a batch's edges and the source of randomness, to as many negatives (B, 2)."""

CHUNK = 4096
"""Pairs that run through the network at once. Their activations stay in the cache, which takes a quarter off an
epoch's time; the gradients of a batch's chunks add up to the batch's."""
DEVICE_CHUNK = 1 << 18
"""The same on a GPU, which wants few large products."""
BATCHES_AHEAD = 1
"""Batches before its own in which the source of rows hears of a batch's pairs."""
POWER = 0.75
"""Of degrees by which targets are drawn, word2vec's."""


class LinkPredictor(nn.Module):
    """``logit(i, j) = MLP(x_i * x_j)``: linear layers with ReLU and dropout between them, one output.

    OGB's ``LinkPredictor`` without its sigmoid: float32 sigmoids saturate at a logit of 17 and make ties.

    Args:
        in_dim: D.
        config: Sizes and dropout.
        seed: Of the initial weights (torch's ``nn.Linear`` distribution) and of the dropout masks.

    Example:
        >>> from graph_emb.models.links.training import LinkPredictor
        >>> predictor = LinkPredictor(in_dim=8, seed=1)
        >>> predictor(torch.randn(5, 8), torch.tensor([[0, 1], [3, 4]])).shape
        torch.Size([2])
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


class LinkRecipe(Protocol):
    """The settings of a loss: those of ``LinkPredictorConfig``, and of a graph network that predicts links."""

    loss: LinkLossName
    precision: PrecisionName


class EmbeddingSource(Protocol):
    """The source of the predictor's input rows, and the sink of their gradients.

    The training calls ``prefetch``, and when the batches before have been trained ``gather`` and then ``step``, once a
    batch; an evaluation calls ``gather`` alone, without gradients.
    """

    dim: int
    num_parameters: int
    optimizer: SparseOptimizer | None
    """Of rows that learn."""

    def prefetch(self, pairs: Tensor) -> None:
        """Start to bring the rows of pairs (B, 2) of node ids from where they lie."""

    def gather(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (R, D) and, for pairs (B, 2) of node ids, the positions (B, 2) of their rows among these.

        While gradients are enabled, rows that learn come as a leaf that requires a gradient.
        """

    def step(self, row_grads: Tensor | None) -> None:
        """Apply the gradient (R, D) of the rows that the last ``gather`` returned; None where none learn."""


class FrozenRows:
    """Pretrained embeddings, not trained further.

    Args:
        embeddings: Shape (N, D), of torch's default dtype, float32 unless it was set.
        num_parameters: Parameters of the model that made them; None: one for each number (one table).
    Raises:
        ShapeError: embeddings is no matrix of that dtype.
    """

    def __init__(self, embeddings: Tensor, num_parameters: int | None = None) -> None:
        if embeddings.dim() != 2 or embeddings.dtype != torch.get_default_dtype():
            raise ShapeError(
                f"embeddings have shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; "
                f"give {torch.get_default_dtype()} (N, D)"
            )
        self.embeddings = embeddings.detach()
        self.dim = embeddings.shape[1]
        self.num_parameters = embeddings.numel() if num_parameters is None else num_parameters
        self.optimizer: SparseOptimizer | None = None

    def prefetch(self, pairs: Tensor) -> None:
        """All rows are here."""

    def gather(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """All rows, and the pairs on their device; nothing is copied."""
        return self.embeddings, pairs.to(self.embeddings.device)

    def step(self, row_grads: Tensor | None) -> None:
        """Nothing learns."""


@dataclass(frozen=True, eq=False)
class LinkPredictorResult(TrainingResult):
    """The evaluations of a training, with the predictor after the last of ``epochs``; parameters are of all stages."""

    values_key: ClassVar[str] = "scores"

    predictor: LinkPredictor
    epochs: int


def score_links(predictor: LinkPredictor, rows: EmbeddingSource, pairs: Tensor) -> Tensor:
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


class _Rates:
    """The rates of a training by a schedule, each from its own first value.

    Args:
        schedule: Of all of them.
        optimizers: Whose rates it sets; None: left out.
        total: Steps of the training.
    """

    def __init__(
        self, schedule: RateSchedule, optimizers: Sequence[torch.optim.Optimizer | SparseOptimizer | None], total: int
    ) -> None:
        groups: list[dict[str, Any]] = [group for each in optimizers if each is not None for group in each.param_groups]
        self._groups = [(group, group["lr"]) for group in groups]
        self._schedule, self._total, self._step = schedule, total, 0
        self.plateau = schedule.new_plateau()

    def set_next(self) -> None:
        """Set those of the next step."""
        share = self.plateau.scale * self._schedule.share_of_step(self._step, self._total)
        self._step += 1
        for group, first in self._groups:
            group["lr"] = first * share


def train_link_predictor(
    rows: EmbeddingSource,
    link_split: LinkSplit,
    num_nodes: int,
    config: LinkPredictorConfig | None = None,
    *,
    schedule: RateSchedule | None = None,
    seed: int = 0,
    progress: bool = False,
) -> LinkPredictorResult:
    """Train a predictor on the training edges against random negatives and evaluate it as OGB does.

    The loss is ``config.loss``, taken on logits, by default OGB's. The test pairs are scored only at epochs whose
    validation value is the best so far, and nothing is chosen by them.

    Args:
        rows: The embeddings, frozen or learning.
        link_split: Arrays: ``edge`` (E, 2) of train, valid and test; for the last two ``edge_neg`` (M, 2), or
            ``target_node_neg`` (E, M), wrong targets for the source of each edge.
        num_nodes: N.
        config: The recipe.
        schedule: Of the rates of the network and of rows that learn; None: they stay as they are.
        seed: Of the network, the order of the edges, the negatives and the dropout.
        progress: Shows a bar.
    Raises:
        DataError: a part of the split is missing or empty.
        ShapeError: a table of another shape.

    Example:
        >>> from graph_emb.models.links.config import LinkPredictorConfig
        >>> from graph_emb.models.links.training import FrozenRows, train_link_predictor
        >>> pairs = torch.combinations(torch.arange(10))
        >>> edges, others = pairs[(pairs.sum(1) % 2) == 0], pairs[(pairs.sum(1) % 2) == 1]
        >>> split = {
        ...     "train": {"edge": edges[:10]},
        ...     "valid": {"edge": edges[10:15], "edge_neg": others[:12]},
        ...     "test": {"edge": edges[15:], "edge_neg": others[12:]},
        ... }
        >>> rows = FrozenRows(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)))
        >>> config = LinkPredictorConfig(hidden_dim=64, epochs=4, eval_every=2, metrics=("rocauc",), select="rocauc")
        >>> result = train_link_predictor(rows, split, 10, config)
        >>> [evaluation.epoch for evaluation in result.history]
        [2, 4]
    """
    config = config or LinkPredictorConfig()
    edges = pairs_of(link_split, "train", "edge", num_nodes)
    parts = {part: link_part(link_split, part, num_nodes) for part in ("valid", "test")}
    draw = negative_draw(config.negatives, link_split, num_nodes)
    network_seed, order_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    predictor = LinkPredictor(rows.dim, config, seed=network_seed)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(order_seed)
    schedule = schedule or RateSchedule()
    rates = _Rates(schedule, [optimizer, rows.optimizer], config.epochs * -(-len(edges) // config.batch_size))
    history, seconds, epochs = run_epochs(
        config,
        lambda number: _train_epoch(predictor, optimizer, rows, edges, draw, config, generator, rates),
        lambda part: _evaluate(predictor, rows, parts[part], config),
        select=config.select,
        plateau=rates.plateau if schedule.lr_decay == "plateau" else None,
        description="link predictor",
        progress=progress,
    )
    return LinkPredictorResult(history, rows.num_parameters + predictor.num_parameters, seconds, predictor, epochs)


def negative_draw(kind: str, link_split: LinkSplit, num_nodes: int) -> NegativeDraw:
    """The function that draws a batch's negatives; ``LinkPredictorConfig.negatives`` describes the kinds.

    Raises:
        DataError: "given" without as many training ``edge_neg`` as training edges.
    """
    edges = pairs_of(link_split, "train", "edge", num_nodes)
    if kind == "non_edges":
        non_edges = NonEdges(edges, num_nodes)
        return lambda numbers, batch, generator: non_edges.sample(len(batch), generator)
    if kind == "targets":
        return lambda numbers, batch, generator: torch.stack(
            [batch[:, 0], torch.randint(num_nodes, (len(batch),), generator=generator)], dim=1
        )
    if kind == "in_batch":
        return lambda numbers, batch, generator: _targets_of_others(numbers, batch, edges, generator)
    if kind == "by_degree":
        ends = torch.bincount(edges.flatten(), minlength=num_nodes).double().pow(POWER).cumsum(0)
        return lambda numbers, batch, generator: torch.stack([batch[:, 0], _drawn(ends, len(batch), generator)], dim=1)
    given = pairs_of(link_split, "train", "edge_neg", num_nodes)
    if len(given) != len(edges):
        raise DataError(f"{len(given)} training edge_neg for {len(edges)} edges; negatives 'given' needs as many")
    return lambda numbers, batch, generator: given[numbers]


def _targets_of_others(numbers: Tensor, batch: Tensor, edges: Tensor, generator: torch.Generator) -> Tensor:
    """Sources of edges (B, 2), each as often as it comes, with the target of another edge of the step.

    An edge that is alone in its step takes the target of any of ``edges`` (E, 2).
    """
    repeats = int((numbers == numbers[0]).sum())  # as of each of the others
    others = len(batch) // repeats - 1
    if others:
        far = torch.randint(1, others + 1, (len(batch),), generator=generator) * repeats
        targets = batch[(torch.arange(len(batch)) + far) % len(batch), 1]
    else:
        targets = edges[torch.randint(len(edges), (len(batch),), generator=generator), 1]
    return torch.stack([batch[:, 0], targets], dim=1)


def _drawn(ends: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers (count,) below N in proportion to shares, of which ``ends`` (N,) are the sums up to each."""
    draws = torch.rand(count, dtype=torch.float64, generator=generator) * ends[-1]
    return torch.searchsorted(ends, draws, right=True).clamp_max(len(ends) - 1)


def with_negatives(
    draw: NegativeDraw, numbers: Tensor, edges: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """Edges (B, 2) of these numbers (B,), each before its ``count`` negatives: shape (B, 1 + K, 2)."""
    drawn = draw(numbers.repeat_interleave(count), edges.repeat_interleave(count, dim=0), generator)
    return torch.cat([edges[:, None], drawn.view(len(edges), count, 2)], dim=1)


def link_chunks(items: Tensor) -> Sequence[Tensor]:
    """Edges with their negatives, (B, 1 + K, 2), as many at a time as run through the network at once."""
    pairs = CHUNK if items.device.type == "cpu" else DEVICE_CHUNK
    return items.split(max(1, pairs // items.shape[1]))


def link_loss(
    predictor: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    rows: Tensor,
    items: Tensor,
    row_grads: Tensor | None,
    config: LinkRecipe,
) -> Tensor:
    """The sum of the losses of edges with their negatives (B, 1 + K, 2), as ``LinkPredictor`` scores them; a scalar."""
    kind = rows.device.type
    with torch.autocast(kind, getattr(torch, config.precision), enabled=config.precision != "float32"):
        logits = predictor(rows, items.flatten(0, 1), row_grads)
    scores = logits.to(rows.dtype).view(items.shape[:2])
    return LINK_LOSSES[config.loss](scores[:, 0], scores[:, 1:]).sum()


def _train_epoch(
    predictor: LinkPredictor,
    optimizer: torch.optim.Optimizer,
    rows: EmbeddingSource,
    edges: Tensor,
    draw: NegativeDraw,
    config: LinkPredictorConfig,
    generator: torch.Generator,
    rates: _Rates,
) -> float:
    """One pass over the edges in a random order; returns the mean loss."""
    predictor.train()
    total = 0.0
    order = torch.randperm(len(edges), generator=generator).split(config.batch_size)
    drawn = (with_negatives(draw, numbers, edges[numbers], config.num_negatives, generator) for numbers in order)
    for items in announced(drawn, lambda coming: rows.prefetch(coming.flatten(0, 1)), BATCHES_AHEAD):
        rates.set_next()
        optimizer.zero_grad()
        gathered, local = rows.gather(items.flatten(0, 1))
        row_grads = torch.zeros_like(gathered) if gathered.requires_grad else None
        for chunk in link_chunks(local.view(items.shape)):
            loss = link_loss(predictor, gathered, chunk, row_grads, config)
            (loss / len(items)).backward()
            total += loss.item()
        optimizer.step()
        rows.step(row_grads)
    return total / len(edges)


def _evaluate(
    predictor: LinkPredictor, rows: EmbeddingSource, part: LinkPart, config: LinkPredictorConfig
) -> dict[str, float]:
    return metric_values(part.ranks(lambda pairs: score_links(predictor, rows, pairs)), config.metrics)
