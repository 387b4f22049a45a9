"""LINE: embeddings from single edges, by the compiled skip-gram on walks of two nodes."""

# N nodes, D width of the result.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.formats.gathered_rows import joined_rows
from graph_emb.models.skipgram.config import LineConfig
from graph_emb.models.skipgram.training import SkipGram, SkipGramProgress, nodes_of_own_rows, train_skipgram
from graph_emb.sampling.walks import EdgeSampler
from graph_emb.table.placement import AUTO


@dataclass(frozen=True)
class LineResult:
    """Trained models by order, with the history of their training.

    Attributes:
        config: The recipe.
        num_parameters: Learned parameters, all orders together, those too that Ctrl-C kept from being trained.
        models: The tables of each order that was trained; after Ctrl-C perhaps not all.
        history: Lines of each order in the order of time.
        interrupted: Whether Ctrl-C ended the training; the trained rows are kept.
    """

    config: LineConfig
    num_parameters: int
    models: dict[str, SkipGram] = field(default_factory=dict)
    history: dict[str, list[SkipGramProgress]] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def num_draws(self) -> int:
        """Drawn edges, all orders together."""
        return sum(lines[-1].walks for lines in self.history.values() if lines)

    @property
    def seconds(self) -> float:
        """Time of drawing and training, all orders together."""
        return sum(lines[-1].seconds for lines in self.history.values() if lines)

    def embeddings(self) -> Tensor:
        """A copy of the rows, shape (N, D); see ``LineConfig.normalize``."""
        rows = [model.embeddings() for model in self.models.values()]
        file = next(iter(self.models.values())).file
        join = partial(side_by_side, normalize=self.config.normalize)
        return joined_rows(join, rows, None if file is None else file.path)


def side_by_side(*orders: Tensor, normalize: bool) -> Tensor:
    """Concatenate the rows (N, D_i) of each order to (N, sum D_i), each scaled to length 1 if ``normalize``."""
    return torch.cat([functional.normalize(rows) if normalize else rows for rows in orders], dim=1)


def row_lengths(*orders: Tensor) -> Tensor:
    """The lengths of the rows (N, D_i) of each order, (N, number of orders)."""
    return torch.stack([order.norm(dim=1) for order in orders], dim=1)


def train_line(
    sampler: EdgeSampler,
    config: LineConfig | None = None,
    *,
    part_policy: Any = None,
    seed: int = 0,
    num_threads: int | None = None,
    progress: bool = True,
    log_interval: float = 1.0,
    on_batch: Callable[[str, SkipGramProgress], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    name: str | None = None,
    placement: Any = AUTO,
    levels: Any = None,
    first: Mapping[str, tuple[Any, Any]] | None = None,
) -> LineResult:
    """Train LINE on the edges of a sampler; in collective and kvstore mode every rank calls it with its part.

    Args:
        sampler: The edges; its graph's degrees weigh the negatives.
        config: The recipe.
        part_policy: The owner of each row, as in ``DistEmbedding``.
        seed, num_threads, progress, log_interval: As in ``train_skipgram``.
        on_batch: Called with the order and each line of its history.
        checkpoints: As in ``train_skipgram``; one order at a time.
        name: Of the tables, followed by the order; None chooses names.
        placement: Of each table, as in ``SkipGram``.
        levels: As in ``SkipGram``.
        first: By order the first token and context rows, ``init_func`` and ``context_func`` of ``SkipGram``.
    Raises:
        ConfigError: the first order of a directed graph, checkpoints of both orders, or rows that diverged.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.models.skipgram.line import LineConfig, train_line
        >>> from graph_emb.sampling.walks import EdgeSampler
        >>> ring = Graph.from_edges(range(12), [*range(1, 12), 0])
        >>> edges = EdgeSampler.of_graph(ring, draws_per_edge=20)
        >>> result = train_line(edges, LineConfig(dim=8), num_threads=1, progress=False)
        >>> result.num_draws, result.embeddings().shape  # 12 edges, 20 draws each, two orders
        (480, torch.Size([12, 8]))
    """
    config = config or LineConfig()
    recipes = {order: config.skipgram(order, directed=sampler.graph.directed) for order in config.orders}
    if checkpoints is not None and len(recipes) > 1:
        raise ConfigError(
            "order 'both' trains one order after the other and cannot resume; train 'first' and 'second' as two runs"
        )
    models = {  # all of them first: what memory cannot hold ends here, not after the first order
        order: SkipGram(
            sampler.num_nodes,
            recipe,
            seed=seed,
            part_policy=part_policy,
            name=None if name is None else f"{name}.{order}",
            placement=placement,
            levels=levels,
            own_rows=nodes_of_own_rows(sampler, recipe, part_policy),
            **({} if first is None else dict(zip(("init_func", "context_func"), first[order], strict=True))),
        )
        for order, recipe in recipes.items()
    }
    result = LineResult(config, sum(model.num_parameters for model in models.values()))
    interrupted = False
    for order, model in models.items():
        trained = train_skipgram(
            sampler,
            model=model,
            seed=seed,
            num_threads=num_threads,
            progress=progress,
            log_interval=log_interval,
            on_batch=None if on_batch is None else partial(on_batch, order),
            checkpoints=checkpoints,
        )
        result.models[order], result.history[order] = model, trained.history
        if trained.interrupted:
            interrupted = True
            break
    return replace(result, interrupted=interrupted)
