"""How walks become updates: the fused kernel on the rows, or autograd and a sparse optimizer."""

# N nodes, B walks, L nodes of a walk.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch

from graph_emb.data.negatives import NegativeSampler
from graph_emb.errors import ConfigError
from graph_emb.models import skipgram_kernels
from graph_emb.models.skipgram_config import SkipGramConfig
from graph_emb.models.skipgram_model import SkipGram, cut_blocks, distance_ramp, num_blocks
from graph_emb.optimizer import (
    SparseAdagrad,
    SparseAdam,
    SparseOptimizer,
    SparseRowAdagrad,
    SparseRowAdam,
    SparseSGD,
)

OPTIMIZERS: dict[str, type[SparseOptimizer]] = {
    "sgd": SparseSGD,
    "adagrad": SparseAdagrad,
    "row_adagrad": SparseRowAdagrad,
    "adam": SparseAdam,
    "row_adam": SparseRowAdam,
}


class LinearDecay:
    """The learning rate as a function of the walks that were trained.

    Args:
        first: At the start.
        total: Walks of the whole training; None: the rate stays.
    """

    def __init__(self, first: float, total: int | None) -> None:
        self.first = first
        self.slope = 0.0 if total is None else -first / total

    def at(self, done: int) -> float:
        """The rate of the walk after ``done`` others."""
        return max(0.0, self.first + done * self.slope)


def learning_rate(config: SkipGramConfig, optimizer: SparseOptimizer | None, total_walks: int) -> LinearDecay:
    """The rate of the rule in the recipe, or of a given optimizer, which falls only where the recipe says so."""
    if optimizer is None:
        return LinearDecay(config.first_lr, total_walks if config.decays else None)
    return LinearDecay(optimizer.param_groups[0]["lr"], total_walks if config.lr_decay == "linear" else None)


class Steps(Protocol):
    """Trains on a batch of walks."""

    def run(self, walks: np.ndarray, epoch: int, first: int, done: int) -> tuple[float, float]:
        """Update the tables.

        Args:
            walks: Shape (B, L), int32, padded with -1 at the end.
            epoch, first: Of the first walk, for its negatives.
            done: Walks of the training before this batch, for the learning rate.
        Returns:
            Loss and weight of the positive pairs of a sample of the walks.
        """
        ...


class FusedSteps:
    """SGD by the compiled kernel; threads share the rows without locks (Hogwild), one thread is deterministic."""

    def __init__(
        self, model: SkipGram, negatives: NegativeSampler, decay: LinearDecay, pool: ThreadPoolExecutor, threads: int
    ) -> None:
        config = model.config
        self._rows = [table.shard.weight.numpy() for table in (model.embedding, model.context)]
        self._shape = (distance_ramp(config), config.window, config.block)
        self._shared = config.shared_negatives
        self._negative_weight = np.float32(config.num_negatives / config.shared_negatives)
        self._negatives, self._decay, self._pool, self._threads = negatives, decay, pool, threads

    @staticmethod
    def fits(model: SkipGram) -> bool:
        """Whether the rows of all tables are here, in float32 and on the CPU."""
        shards = [(table, table.shard) for table in model.tables]
        return all(
            shard.num_rows == table.num_embeddings
            and shard.weight.dtype == torch.float32
            and shard.weight.device.type == "cpu"
            for table, shard in shards
        )

    def run(self, walks: np.ndarray, epoch: int, first: int, done: int) -> tuple[float, float]:
        """See ``Steps.run``."""
        draws = (self._negatives.accept, self._negatives.other, self._shared, self._negative_weight)
        key = self._negatives.key(epoch)

        def part(low: int, high: int) -> tuple[float, float]:
            rate = (self._decay.at(done + low), self._decay.slope)
            return skipgram_kernels.train_walks(
                walks[low:high], *self._rows, *self._shape, *draws, *rate, key, first + low
            )

        edges = [len(walks) * i // self._threads for i in range(self._threads + 1)]
        sums = list(self._pool.map(part, edges[:-1], edges[1:]))
        return sum(s[0] for s in sums), sum(s[1] for s in sums)


class AutogradSteps:
    """Any rule: ``batch_size`` walks, one backward, one step of the optimizer."""

    def __init__(
        self, model: SkipGram, negatives: NegativeSampler, decay: LinearDecay, optimizer: SparseOptimizer
    ) -> None:
        self._model, self._negatives, self._decay, self._optimizer = model, negatives, decay, optimizer

    def run(self, walks: np.ndarray, epoch: int, first: int, done: int) -> tuple[float, float]:
        """See ``Steps.run``."""
        config = self._model.config
        per_walk = num_blocks(walks.shape[1], config) * config.shared_negatives
        loss_sum, pairs = 0.0, 0.0
        for low in range(0, len(walks), config.batch_size):
            part = walks[low : low + config.batch_size]
            drawn = self._negatives.sample(len(part), per_walk, epoch=epoch, first=first + low)
            blocks = cut_blocks(part, drawn, config)
            loss = self._model.loss(blocks)
            loss.backward()
            if self._decay.slope:
                for group in self._optimizer.param_groups:
                    group["lr"] = self._decay.at(done + low)
            self._optimizer.step()
            self._optimizer.zero_grad()
            loss_sum += float(loss.detach())
            pairs += blocks.num_pairs
        return loss_sum, pairs


def choose_steps(
    model: SkipGram,
    negatives: NegativeSampler,
    decay: LinearDecay,
    optimizer: SparseOptimizer | None,
    pool: ThreadPoolExecutor,
    threads: int,
) -> Steps:
    """The fused kernel where it can be used, else autograd; ``config.path`` may insist.

    Raises:
        ConfigError: the kernel is insisted on and cannot be used.
    """
    config: SkipGramConfig = model.config
    possible = optimizer is None and config.rule == "sgd" and FusedSteps.fits(model)
    if config.path == "fused" and not possible:
        raise ConfigError(
            "path='fused' needs rule='sgd', no optimizer of your own and float32 tables on the CPU of this process; "
            "use path='auto'"
        )
    if possible and config.path != "autograd":
        return FusedSteps(model, negatives, decay, pool, threads)
    if optimizer is None:
        optimizer = OPTIMIZERS[config.rule](model.tables, lr=config.first_lr)
    return AutogradSteps(model, negatives, decay, optimizer)
