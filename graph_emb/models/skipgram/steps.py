"""Steppers: they turn walks into updates, by SGD on the rows in place or by gradients and a sparse optimizer.

``training.choose_steps`` takes one by rule and path, mode and Hogwild:

| rule and path                       | local         | collective    | kvstore              |
|-------------------------------------|---------------|---------------|----------------------|
| sgd, path auto                      | InPlaceSteps  | ExchangeSteps | ExchangeSteps, paced |
| the same, Hogwild                   |               | InPlaceSteps, paced (1)              |
| other rules, path optimizer, own    | GradientSteps | GradientSteps | GradientSteps, paced |
| path autograd                       | AutogradSteps | AutogradSteps | AutogradSteps, paced |

With ``SkipGramConfig.buckets`` one process takes ``BucketSteps`` in the first line, wherever its rows lie.
"Paced" wraps the stepper in ``PacedSteps``; "own" is an optimizer that the caller made.
(1) Where this machine holds all rows; else ``ExchangeSteps``, paced, which copies the rows of other machines.
One process whose rows lie in files takes ``ExchangeSteps`` in the first line, several take the third one.
The first two lines need float32 rows on the CPU, none of them frozen, on every trainer; otherwise the third one holds.

Their steppers reach memory past the sparse optimizers: ``Transport.in_reach`` hands out the rows that this
process may change in place, and the compiled kernel writes there. All others go through ``DistEmbedding`` and
``SparseOptimizer``.
"""

# B walks, L nodes of a walk, S blocks of a walk, K shared negatives, R rows.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graph_emb.models.schedule import share_of_step
from graph_emb.models.settings import DecayName
from graph_emb.models.skipgram import kernels as skipgram_kernels
from graph_emb.models.skipgram.config import STEP_WALKS, SkipGramConfig
from graph_emb.models.skipgram.model import SkipGram, cut_blocks, distance_ramp, num_blocks
from graph_emb.models.skipgram.rates import rate_of_walks
from graph_emb.optimizer import SparseOptimizer
from graph_emb.sampling.negatives import NegativeKinds, NegativeSampler
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.transport.base import Reach, Transport

Pair = tuple[np.ndarray, np.ndarray]
POINTS = 1025  # at which a schedule of rates is told
MOST_CHANGE = 2.0  # of a score by one block of SGD in place; a larger one overshoots on hubs and tiny graphs
PART_WALKS, PART_TOKENS = 32, 1280  # the least size of a step's part: enough work for a thread
MOST_PARTS = 16  # of a step: each pulls its rows and sums their gradients by itself


class WalkRates:
    """The learning rate as a function of the number of trained walks.

    The schedule is told at ``POINTS`` numbers of walks and is straight between them, whatever walks are cut into.

    Args:
        first: The rate from which it falls.
        total: Walks of the whole training.
        decay, warmup: See ``share_of_step``.
    """

    def __init__(self, first: float, total: int, decay: DecayName = "linear", warmup: float = 0.0) -> None:
        self.first, self._stays = first, decay == "none" and not warmup
        total = max(1, total)
        risen = warmup * total
        self._walks = np.unique([*np.linspace(0, total, POINTS), max(0.0, risen - 1), risen])
        self._rates = np.array([first * share_of_step(decay, warmup, walk, total) for walk in self._walks])

    def at(self, done: int) -> float:
        """The rate of the walk after ``done`` others."""
        return float(np.interp(done, self._walks, self._rates))

    def of(self, done: np.ndarray) -> np.ndarray:
        """The rates of walks after others, (B,) to (B,), float32."""
        return np.interp(done, self._walks, self._rates).astype(np.float32)

    def apply_to(self, optimizer: SparseOptimizer, done: int) -> None:
        """Set the rate of all groups, unless it stays as it is."""
        if not self._stays:
            for group in optimizer.param_groups:
                group["lr"] = self.at(done)


def learning_rate(
    config: SkipGramConfig, optimizer: SparseOptimizer | None, sampler: PartitionedWalkSampler
) -> WalkRates:
    """The schedule of the recipe's rule, or of a given optimizer, whose rate falls only if ``lr_decay`` says so.

    Every rank calls it.
    """
    total_walks = config.epochs * sampler.num_walks_per_epoch
    if optimizer is None:
        first = config.first_lr
        if config.rate_follows_walks:
            first = config.rate_share * rate_of_sampler(sampler, config.epochs)
        return WalkRates(first, total_walks, config.decay, config.warmup)
    return WalkRates(optimizer.param_groups[0]["lr"], total_walks, config.lr_decay or "none", config.warmup)


def rate_of_sampler(sampler: PartitionedWalkSampler, epochs: int) -> float:
    """``rate_of_walks``, as if walks began at all nodes: where few are starts, arcs near them are passed as often.

    Every rank calls it.
    """
    tokens = epochs * sampler.num_walks * sampler.num_nodes * sampler.walk_length
    return rate_of_walks(tokens, sampler.num_arcs())


def cut_sizes(done: int, total: int, size: int, growth: float = 0.0, most: int | None = None) -> Iterator[int]:
    """The sizes of the pieces of a batch of ``total`` walks after ``done`` ones, see ``WalkBatch.cut``."""
    end = done + total
    while done < end:
        grown = int(growth * done) if most is None else min(int(growth * done), most)
        piece = min(max(size, grown), end - done)
        yield piece
        done += piece


@dataclass(frozen=True)
class WalkBatch:
    """This rank's walks of a batch.

    Attributes:
        walks: Shape (B, L), int32, padded with -1 at the end; B may be 0.
        index: The number of each walk in the epoch, shape (B,), int64, rising.
        epoch: The epoch.
        first, total: The number in the epoch of the batch's first walk, and its size, over all ranks.
        begun: Walks of the previous epochs.
        whole: Whether every row is whole once it is trained: a checkpoint may follow. Else the last of its walks may
            be trained with the next batch.
    """

    walks: np.ndarray
    index: np.ndarray
    epoch: int
    first: int
    total: int
    begun: int
    whole: bool = True

    @property
    def done(self) -> int:
        """Walks of the training before this batch."""
        return self.begun + self.first

    def cut(self, size: int, growth: float = 0.0, most: int | None = None) -> Iterator[WalkBatch]:
        """Pieces of ``size`` walks of all ranks; every rank gets the same number of pieces.

        Args:
            growth: A piece is longer where that is this share of the walks before it.
            most: So many walks, at most, then.
        """
        first = self.first
        for total in cut_sizes(self.done, self.total, size, growth, most):
            low, high = np.searchsorted(self.index, (first, first + total))
            yield replace(self, walks=self.walks[low:high], index=self.index[low:high], first=first, total=total)
            first += total

    def joined(self, following: WalkBatch) -> WalkBatch:
        """These walks and those of the batch after it."""
        walks, index = (np.concatenate(both) for both in ((self.walks, following.walks), (self.index, following.index)))
        return replace(following, walks=walks, index=index, first=self.first, total=self.total + following.total)

    def after(self) -> WalkBatch:
        """A batch of no walk after this one, whose rows are whole."""
        first = self.first + self.total
        return replace(self, walks=self.walks[:0], index=self.index[:0], first=first, total=0, whole=True)


class Steps(Protocol):
    """Trains on batches of walks; made once a training, by ``training.choose_steps``, on every rank.

    ``train_skipgram`` calls ``run`` once for each batch, in the order of the walks and from one thread. Ranks that walk
    together make the same number of calls: each of them comes for a batch of which it has no walk, because a stepper
    may wait for the others inside. After a batch that says so (``WalkBatch.whole``) every row is whole, so that a
    checkpoint may be taken; after others changes may be under way between ranks.

    Attributes:
        size: Walks of one step, counted over all ranks that step together; batches are multiples of it, but for the
            last one of an epoch and for one process that walks alone.
    """

    size: int

    @property
    def optimizer(self) -> SparseOptimizer | None:
        """The optimizer whose state a checkpoint keeps with the tables; None where there is no state."""
        ...

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """Update the tables by the batch's walks (B, L), B >= 0.

        Returns:
            Loss and weight of the positive pairs, both summed over the walks that are sampled for the log; (0, 0)
            where none is.
        Raises:
            PeerError: another rank is gone.
            ConfigError: a gradient or a learning rate that the optimizer refuses.
        """
        ...


class Kernel:
    """The compiled kernel with the arguments that are constant over a training.

    Args:
        config: The recipe.
        negatives: The source of negatives.
    """

    def __init__(self, config: SkipGramConfig, negatives: NegativeSampler) -> None:
        self._negatives = negatives
        self._blocks = (distance_ramp(config), config.window, config.block)
        self._config = config

    def draw(self, walks: np.ndarray, epoch: int, index: np.ndarray, pool: np.ndarray | None = None) -> np.ndarray:
        """Negatives of walks (B, L) by their numbers in the epoch (B,), of a pool or of all; shape (B, S * K)."""
        per_walk = num_blocks(walks.shape[1], self._config) * self._config.shared_negatives
        return self._negatives.sample_for(index, per_walk, epoch=epoch, pool=pool)

    def kinds(self, walks: np.ndarray) -> NegativeKinds:
        """The negatives that count for each context of walks (B, L)."""
        return self._negatives.kinds(walks.shape[1], self._config.shared_negatives)

    def run(
        self,
        walks: np.ndarray,
        negatives: np.ndarray,
        tables: Pair,
        outs: Pair,
        rates: np.ndarray,
        most: float,
        index: np.ndarray,
        far: Pair | None = None,
        frozen: bool = False,
    ) -> tuple[float, float]:
        """See ``skipgram_kernels.train_walks``; without ``far`` all rows are in the tables."""
        kinds = self.kinds(walks)
        drawing = (kinds.places, kinds.drawn, kinds.shares(self._config.num_negatives))
        rate = (*drawing, rates, np.float32(most))
        rest = far or (tables[0][:0], tables[1][:0])
        return skipgram_kernels.train_walks(
            walks, negatives, *tables, *outs, *rest, frozen, *self._blocks, *rate, index
        )


def trainable_in_place(reach: Reach) -> bool:
    """Whether the compiled kernel can train these rows: float32 on the CPU, none frozen."""
    return reach.weight.dtype == torch.float32 and reach.weight.device.type == "cpu" and not reach.frozen


class InPlaceSteps:
    """SGD on the rows in place; threads, and in Hogwild mode the processes of a machine, share the rows without locks
    (Niu et al. 2011); one thread alone is deterministic.

    A block's step is shortened for rows whose scores it could change by more than ``MOST_CHANGE``, which bounds what
    the plain sum over a block does to hubs; ordinary rows of ordinary graphs are not touched by it.
    """

    def __init__(
        self, model: SkipGram, negatives: NegativeSampler, decay: WalkRates, pool: ThreadPoolExecutor, threads: int
    ) -> None:
        self._kernel = Kernel(model.config, negatives)
        self.size, self.optimizer = 1, None
        reach = model.embedding.transport.in_reach
        self._tables = (reach(model.embedding.name).weight.numpy(), reach(model.context.name).weight.numpy())
        self._decay, self._pool, self._threads = decay, pool, threads

    @staticmethod
    def fits(model: SkipGram) -> bool:
        """Whether this process may change all rows of all tables in place, in float32 and on the CPU."""
        return all(
            len(reach.weight) == model.num_nodes and trainable_in_place(reach)
            for reach in (table.transport.in_reach(table.name) for table in model.tables)
        )

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """See ``Steps.run``."""

        def part(low: int, high: int) -> tuple[float, float]:
            walks, index = batch.walks[low:high], batch.index[low:high]
            drawn = self._kernel.draw(walks, batch.epoch, index)
            rates = self._decay.of(batch.begun + index)
            return self._kernel.run(walks, drawn, self._tables, self._tables, rates, MOST_CHANGE, index)

        return in_parts(part, len(batch.walks), self._pool, self._threads)


def in_parts(
    part: Callable[[int, int], tuple[float, float]], size: int, pool: ThreadPoolExecutor, threads: int
) -> tuple[float, float]:
    """Run ``part(low, high)`` on equal shares of [0, size), one thread each, and sum the results."""
    parts = min(threads, size)
    edges = [size * i // max(parts, 1) for i in range(parts + 1)]
    return summed(pool.map(part, edges[:-1], edges[1:]))


def summed(sums: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The sum of losses and the sum of weights."""
    loss, pairs = 0.0, 0.0
    for one in sums:
        loss, pairs = loss + one[0], pairs + one[1]
    return loss, pairs


class GradientSteps:
    """Steps of any rule in any mode: pull rows, sum up their gradients by the kernel, apply them by the optimizer.

    A step's walks are cut into parts (see ``part_walks``), whatever the number of threads, so that sums do not depend
    on it. In lockstep they are one part: each step pulls each table once, and the ranks take the place of threads.
    """

    def __init__(
        self,
        model: SkipGram,
        negatives: NegativeSampler,
        decay: WalkRates,
        optimizer: SparseOptimizer,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._kernel = Kernel(model.config, negatives)
        self._model, self._decay, self._pool, self.optimizer = model, decay, pool, optimizer
        self._threads = threads
        transport = model.embedding.transport
        self._lockstep = transport.lockstep
        self.size = (model.config.batch_size or STEP_WALKS) * (transport.world_size if self._lockstep else 1)
        self._places = np.full(model.num_nodes, -1, np.int32)

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """See ``Steps.run``."""
        sums: list[tuple[float, float]] = []
        for piece in batch.cut(self.size):
            sums += self._backward(piece)
            self._decay.apply_to(self.optimizer, piece.done)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return summed(sums)

    def _backward(self, piece: WalkBatch) -> Iterator[tuple[float, float]]:
        """Leave the gradients of a step with the tables; loss and weight of its parts."""
        size = self.size if self._lockstep else part_walks(self.size, piece.walks.shape[1])
        started = (self._start(part) for part in piece.cut(size))
        for pulled, gradients in started if self._threads == 1 else list(started):  # one thread computes or pulls
            grads, own = gradients.result()
            torch.autograd.backward(pulled, [torch.from_numpy(grad) for grad in grads])
            yield own

    def _start(self, part: WalkBatch) -> tuple[list[Tensor], Future]:
        """Pull the rows of each table that the walks need, and start computing their gradients in the pool."""
        drawn = self._kernel.draw(part.walks, part.epoch, part.index)
        found, num_tokens, walks, negatives = localize(part.walks, drawn, self._model.config, self._places)
        ids = torch.from_numpy(found)
        pulled = [self._model.context(ids, dtype=torch.float32)]
        if self._model.context is not self._model.embedding:
            pulled.insert(0, self._model.embedding(ids[:num_tokens], dtype=torch.float32))
        return pulled, self._pool.submit(self._gradients, walks, negatives, pulled, part.index)

    def _gradients(
        self, walks: np.ndarray, negatives: np.ndarray, pulled: list[Tensor], index: np.ndarray
    ) -> tuple[list[np.ndarray], tuple[float, float]]:
        values = [table.detach().contiguous().numpy() for table in pulled]
        sums = [np.zeros_like(table) for table in values]
        tables, outs = (values[0], values[-1]), (sums[0], sums[-1])
        return sums, self._kernel.run(walks, negatives, tables, outs, gradient_rates(len(walks)), np.inf, index)


def gradient_rates(num_walks: int) -> np.ndarray:
    """The rates by which the kernel's steps are gradients, (B,)."""
    return np.full(num_walks, -1.0, np.float32)


class AutogradSteps(GradientSteps):
    """The reference: torch's gradient of ``SkipGram.loss`` over ``batch_size`` walks, then one optimizer step."""

    def _backward(self, piece: WalkBatch) -> Iterator[tuple[float, float]]:
        drawn = self._kernel.draw(piece.walks, piece.epoch, piece.index)
        blocks = cut_blocks(piece.walks, drawn, self._model.config, self._kernel.kinds(piece.walks))
        loss = self._model.loss(blocks)
        loss.backward()
        yield float(loss.detach()), blocks.num_pairs


class PacedSteps:
    """Steps of trainers that step on their own, with a barrier every ``together`` walks.

    Without it a trainer that starts late, or shares its core, would train the last of its walks on rows that the
    others have finished with, at a rate that they have left.

    Args:
        steps: The stepper of this trainer.
        transport: Of the tables.
        together: Walks of all trainers between two barriers; rounded up to whole steps.
    """

    def __init__(self, steps: Steps, transport: Transport, together: int) -> None:
        self.steps, self._transport = steps, transport
        self.size = -(-together // steps.size) * steps.size

    @property
    def optimizer(self) -> SparseOptimizer | None:
        """See ``Steps.optimizer``."""
        return self.steps.optimizer

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """See ``Steps.run``."""
        sums = []
        for piece in batch.cut(self.size):
            sums.append(self.steps.run(piece))
            self._transport.flush()
            self._transport.barrier()
        return summed(sums)


def part_walks(size: int, length: int) -> int:
    """Walks of each part of a step: enough work for a thread, and at most ``MOST_PARTS`` parts.

    Args:
        size: Walks of the step.
        length: Nodes of a walk.
    """
    return max(PART_WALKS, PART_TOKENS // length, -(-size // MOST_PARTS))


def localize(
    walks: np.ndarray, negatives: np.ndarray, config: SkipGramConfig, places: np.ndarray
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Collect the rows that get a gradient from walks (B, L) with negatives (B, S * K), and no others.

    Walks of one node and the negatives of blocks that hold no token are left out: a rule such as Adam would move
    their rows even by a gradient of zero.

    Args:
        places: Scratch of shape (N,), int32, -1 everywhere, before and after.
    Returns:
        The distinct nodes, (R,), int64, those of walks first, then those that are negatives only; the number of the
        former; walks and negatives with positions among them instead of nodes.
    """
    own, out = (0, 0), (np.empty_like(walks), np.empty_like(negatives))
    block = (config.block, config.shared_negatives)
    ids, num_tokens, _, _ = skipgram_kernels.number_rows(walks, negatives, *block, *own, places, *out)
    return ids, num_tokens, *out
