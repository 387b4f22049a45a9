"""Training of skip-gram embeddings on streamed walks: the public face of the skip-gram model."""

# N nodes, D width, B walks, L nodes of a walk.

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import expanded
from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import bar
from graph_emb.core.terminal import deferred_interrupts
from graph_emb.core.threads import torch_threads
from graph_emb.graph.original_ids import as_original_ids
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.shared_rows import SharedRows
from graph_emb.models.skipgram.bucket_steps import BucketSteps, episode_walks
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.history import SkipGramProgress, TrainingLog
from graph_emb.models.skipgram.kernels import drop_frequent
from graph_emb.models.skipgram.local_sgd import ExchangeSteps, batching, walks_together
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.steps import (
    AutogradSteps,
    GradientSteps,
    InPlaceSteps,
    PacedSteps,
    Steps,
    WalkBatch,
    WalkRates,
    learning_rate,
)
from graph_emb.models.tables import Table
from graph_emb.optimizer import OPTIMIZERS, SparseOptimizer
from graph_emb.sampling.buckets import GridSchedule
from graph_emb.sampling.metapath_walks import MetapathSampler
from graph_emb.sampling.negatives import NegativeSampler, PartNegatives, TypedNegativeSampler
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler as Sampler
from graph_emb.sampling.walk_kernels import stream_key, thread_count
from graph_emb.sampling.walks import WalkSampler
from graph_emb.table.own_rows import of_highest_degree

__all__ = ["SkipGram", "SkipGramConfig", "SkipGramProgress", "SkipGramResult", "train_skipgram"]

TOKENS_PER_BATCH = 1 << 18  # about 0.1 s of the fused kernel: the progress bar's grain and Ctrl-C's delay
FILE_INTERVALS = 8
"""Intervals of a batch where rows lie in files."""
TOKENS_PER_ROUND = 1 << 21  # of each rank in lockstep: walkers that travel together, so that ranks wait less often


@dataclass(frozen=True)
class SkipGramResult:
    """A trained model with the history of its training.

    Attributes:
        model: The tables.
        history: Lines in the order of time; the last one is that of the end.
        interrupted: Whether Ctrl-C ended the training; the trained rows are kept.
        first_lr: The learning rate at the start.
    """

    model: SkipGram
    history: list[SkipGramProgress] = field(default_factory=list)
    interrupted: bool = False
    first_lr: float = 0.0

    @property
    def embedding(self) -> Table:
        """The table of the token rows."""
        return self.model.embedding

    def embeddings(self, context: str = "none") -> torch.Tensor:
        """See ``SkipGram.embeddings``."""
        return self.model.embeddings(context)


def train_skipgram(
    sampler: Sampler,
    config: SkipGramConfig | None = None,
    *,
    model: SkipGram | None = None,
    optimizer: SparseOptimizer | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    progress: bool = True,
    log_interval: float = 1.0,
    on_batch: Callable[[SkipGramProgress], None] | None = None,
    on_epoch: Callable[[SkipGramProgress], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    levels: Any = None,
) -> SkipGramResult:
    """Train skip-gram embeddings on the walks of a sampler, streamed, one batch in memory at a time.

    Same seed and ``num_threads=1``: same rows. With more threads the fused kernel's threads write shared rows without
    locks (Hogwild, Niu et al. 2011), so runs differ in rounding and in the rare lost update; walks and negatives stay
    the same.

    In collective mode every rank calls this with the same arguments and a ``PartitionedWalkSampler`` of its part, and
    trains on the walks that start at its own nodes; SGD exchanges rows every ``exchange_walks`` walks (see
    ``ExchangeSteps``), other rules step together. In kvstore mode trainers do the same, but other rules push on their
    own and wait for each other as often. The first Ctrl-C or SIGTERM at any rank ends the training of all after the
    batch.

    Args:
        sampler: The walks; its graph's degrees weigh the negatives.
        config: The recipe; None: the model's own, else the defaults.
        model: Tables to continue with; None makes new ones.
        optimizer: Trains ``model.tables`` instead of ``config.rule``, at its own learning rate, which falls only where
            ``config.lr_decay`` is ``linear``.
        seed: Of first rows, negatives and subsampling; the sampler has its own.
        num_threads: Threads of walks, kernel and torch; None: ``torch.get_num_threads()``.
        progress: Show a bar with tokens/s, loss, time left and memory; on the first rank.
        log_interval: Seconds between lines of the history.
        on_batch: Called with each line of the history.
        on_epoch: Called with the last line of each epoch.
        checkpoints: Saves the training between batches (its steps, of about 260,000 tokens each; by buckets an episode
            each; where exchanges overlap, every eighth one) and, where it is told to resume, continues from the newest
            checkpoint at the same walk: one thread gives the rows of a training that was never stopped.
        levels: As in ``SkipGram``, of which this makes new tables.
    Returns:
        The model, also after Ctrl-C (``interrupted`` is then True).
    Raises:
        ConfigError: arguments do not fit each other, or the rows are no longer finite.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.models.skipgram.training import SkipGramConfig, train_skipgram
        >>> from graph_emb.sampling.walks import WalkSampler
        >>> ring = Graph.from_edges(range(12), [*range(1, 12), 0])
        >>> walks = WalkSampler(ring, num_walks=50, walk_length=10)
        >>> config = SkipGramConfig(dim=8, window=2, epochs=5)
        >>> rows = train_skipgram(walks, config, num_threads=1, progress=False).embeddings()
        >>> cosine = torch.nn.functional.cosine_similarity
        >>> bool(cosine(rows[0], rows[1], dim=0) > cosine(rows[0], rows[6], dim=0))  # neighbours are alike
        True
    """
    model = _fitting_model(sampler, config, model, optimizer, seed, levels)
    config = model.config
    negatives, keep = _negatives(sampler, model, seed)
    total_walks = config.epochs * sampler.num_walks_per_epoch
    decay = learning_rate(config, optimizer, sampler)
    first, interrupted = model.embedding.transport.rank == 0 or isinstance(sampler, WalkSampler), False
    import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS; a limit reaches only libraries that are loaded

    with (
        torch_threads(thread_count(num_threads)) as threads,
        ThreadPoolExecutor(threads) as pool,
        threadpool_limits(1, "blas"),  # its products here are too small to be split
        bar(
            desc="skip-gram",
            total=total_walks * sampler.walk_length,
            unit="tok",
            unit_scale=True,
            shown=progress and first,
        ) as moved,
        deferred_interrupts(not isinstance(sampler, WalkSampler)) as pressed,
    ):
        steps = choose_steps(sampler, model, negatives, decay, optimizer, pool, threads, seed)
        log = TrainingLog(moved, model, decay.at, log_interval, on_batch, sampler, steps)
        epoch = first_epoch = begin = step = 0
        if checkpoints is not None:
            # SGD alone: in place or not, as the mode has it
            stateless = optimizer is None and config.rule == "sgd" and not _keeps_state(steps.optimizer)
            trainers = [] if stateless or steps.optimizer is None else [steps.optimizer]
            position = checkpoints.start(model.tables, trainers)
            if position is not None:
                epoch = first_epoch = position["epoch"]
                begin, step = position["first"], position["step"]
                log.restore(position["log"])
        try:
            for epoch in range(first_epoch, config.epochs):
                for batch in _batches(sampler, steps, epoch, begin, keep, seed, threads):
                    interrupted = log.add(batch, *steps.run(batch), pressed())
                    if interrupted:
                        if not batch.whole:  # what is under way arrives
                            rest = batch.after()
                            log.add(rest, *steps.run(rest))
                        break
                    step += 1
                    if checkpoints is not None and batch.whole:
                        checkpoints.after(step, partial(log.position, epoch, batch, step))
                begin = 0
                log.write(epoch)
                if interrupted:
                    break
                if on_epoch is not None:
                    log.pause(on_epoch, log.history[-1])
        except KeyboardInterrupt:
            if sampler.group is not None:  # the second one, or a callback's: the others are not here
                raise
            interrupted = True
            log.write(epoch)
        if checkpoints is not None:
            checkpoints.finish()
    return SkipGramResult(model, log.history, interrupted, decay.first)


def nodes_of_own_rows(sampler: Sampler, config: SharedRows, part_policy: Any = None) -> np.ndarray | None:
    """Original ids of the ``config.own_rows`` nodes with most arcs; None: none. Every rank calls it.

    Args:
        part_policy: Of the tables.
    Raises:
        ConfigError: there are fewer nodes.
    """
    if not config.own_rows:
        return None
    degrees = sampler.degrees(weighted=False)
    original = as_original_ids(None, part_policy, len(degrees), "nodes")
    if original is not None:
        degrees = degrees[original.find(np.arange(len(degrees)))]
    return of_highest_degree([degrees], config.own_rows)[0]


def choose_steps(
    sampler: Sampler,
    model: SkipGram,
    negatives: NegativeSampler | PartNegatives,
    decay: WalkRates,
    optimizer: SparseOptimizer | None,
    pool: ThreadPoolExecutor,
    threads: int,
    seed: int = 0,
) -> Steps:
    """The stepper for rule, path, mode and Hogwild, by the table in ``graph_emb.models.skipgram.steps``."""
    config, transport = model.config, model.embedding.transport
    in_place = optimizer is None and config.in_place
    ranks = sampler.world_size
    paced = ranks > 1 and not transport.lockstep
    total_walks = config.epochs * sampler.num_walks_per_epoch
    if isinstance(negatives, PartNegatives):
        if optimizer is not None:
            raise ConfigError(f"buckets = {config.buckets}: sgd in place trains by buckets; pass no optimizer")
        size = episode_walks(config, model.num_nodes, sampler.walk_length, total_walks)
        return BucketSteps(model, negatives, decay, pool, threads, sampler.num_walks_per_epoch, size, seed)
    shared = in_place and InPlaceSteps.fits(model)
    together = walks_together(model, ranks, sampler.walk_length, total_walks, decay.first, shared=shared)
    if shared:
        alone = InPlaceSteps(model, negatives, decay, pool, threads)
        return PacedSteps(alone, transport, together) if ranks > 1 else alone
    fits = in_place and ExchangeSteps.fits(model)
    if paced:  # a trainer sees the frozen rows of its own machine only
        fits = transport.votes(fits) == ranks
    steps: Steps
    if fits:
        wait = transport.barrier if paced else None
        steps = ExchangeSteps(model, negatives, decay, pool, threads, together, wait)
    else:
        if optimizer is None:
            optimizer = OPTIMIZERS[config.rule](model.tables, lr=config.first_lr, **config.numbers(seed))
        kind = AutogradSteps if config.path == "autograd" else GradientSteps
        steps = kind(model, negatives, decay, optimizer, pool, threads)
    return PacedSteps(steps, transport, together) if paced else steps


def _keeps_state(optimizer: SparseOptimizer | None) -> bool:
    groups = [] if optimizer is None else optimizer.param_groups
    return optimizer is not None and any(optimizer.rule_of(group).state_specs() for group in groups)


def _negatives(
    sampler: Sampler, model: SkipGram, seed: int
) -> tuple[NegativeSampler | PartNegatives, np.ndarray | None]:
    """The source of negatives, of parts for buckets, and each node's chance to be kept where frequent ones drop out."""
    config = model.config
    if isinstance(sampler, WalkSampler) or config.negative_scope == "global" or config.subsample:
        degrees = sampler.degrees()
    keep = None if config.subsample == 0 else _keep_chances(degrees, config.subsample)
    if config.buckets:
        bounds = GridSchedule(config.buckets, model.num_nodes).bounds
        options: Any = {"power": config.negative_power, "seed": seed}
        folder = None if model.file is None else model.file.path
        return PartNegatives(degrees, bounds, config.shared_negatives, **options, folder=folder), keep
    if config.typed_negatives:
        if not isinstance(sampler, MetapathSampler):
            raise ConfigError(
                "typed_negatives needs the walks of a MetapathSampler; nodes of other walks have no types"
            )
        kinds = (sampler.metapath.node_kinds, sampler.metapath.path_kinds)
        power = config.negative_power
        return TypedNegativeSampler(degrees, *kinds, config.shared_negatives, power, seed=seed), keep
    low = 0
    if not isinstance(sampler, WalkSampler) and config.negative_scope == "local":
        degrees, low = sampler.own_degrees()
        empty = not (degrees**config.negative_power).any()
        if sampler.group is not None and any(sampler.group.gather_objects(empty, "local negatives")):
            raise ConfigError(
                "negative_scope is 'local' and the nodes of a rank have no arcs; take 'global', or fewer ranks"
            )
    return NegativeSampler(degrees, config.negative_power, seed=seed, low=low), keep


def _fitting_model(
    sampler: Sampler,
    config: SkipGramConfig | None,
    model: SkipGram | None,
    optimizer: SparseOptimizer | None,
    seed: int,
    levels: Any,
) -> SkipGram:
    if sampler.walk_length < 2:
        raise ConfigError("walk_length is 1; skip-gram needs walks of at least 2 nodes to have a pair")
    if model is None:
        if optimizer is not None:
            raise ConfigError("an optimizer is given without the model whose tables it trains; pass model= as well")
        book = None if isinstance(sampler, WalkSampler) else RangeBook(sampler.layout.bounds.tolist())
        own_rows = nodes_of_own_rows(sampler, config or SkipGramConfig(), book)
        model = SkipGram(sampler.num_nodes, config, seed=seed, part_policy=book, levels=levels, own_rows=own_rows)
        config = levels = None
    if levels is not None:
        raise ConfigError("levels are given and a model, which has its own; pass one of them")
    transport = model.embedding.transport
    parts = sampler.world_size
    if parts != transport.world_size and (parts > 1 or transport.lockstep):
        raise ConfigError(
            f"the walks are those of {parts} ranks and the tables of {transport.world_size}; in collective mode give "
            "each rank a PartitionedWalkSampler of its part and the transport's group"
        )
    if config is not None and config != model.config:
        raise ConfigError("config differs from the model's own; pass one of them")
    if model.num_nodes != sampler.num_nodes:
        raise ConfigError(f"the model has {model.num_nodes} rows and the graph {sampler.num_nodes} nodes")
    if optimizer is not None and model.config.lr is not None:
        raise ConfigError(f"lr is {model.config.lr} and an optimizer is given; set lr in the optimizer")
    if optimizer is not None and {table.name for table in expanded(model.tables)} - set(optimizer.tables):
        raise ConfigError("the optimizer does not train all tables of the model; make it from model.tables")
    return model


def _keep_chances(degrees: np.ndarray, threshold: float) -> np.ndarray | None:
    """word2vec's chance to keep a node, with its degree as its frequency, shape (N,), float32; None keeps all."""
    if threshold == 0 or degrees.sum() == 0:
        return None
    with np.errstate(divide="ignore"):
        ratio = threshold / (degrees / degrees.sum())
    return np.minimum(1.0, np.sqrt(ratio) + ratio).astype(np.float32)


def joint_walks(ranks: int, walk_length: int, size: int, least: int = 1) -> int:
    """Walks of a batch of ranks that walk together: at least so many steps of ``size`` walks."""
    wanted = ranks * max(1, TOKENS_PER_ROUND // walk_length)
    return max(least, wanted // size) * size


def _batches(
    sampler: Sampler, steps: Steps, epoch: int, first: int, keep: np.ndarray | None, seed: int, threads: int
) -> Iterator[WalkBatch]:
    """Walks of an epoch from ``first``, without tokens that subsampling drops; whole steps of ``steps.size`` walks."""
    size, batches = max(1, TOKENS_PER_BATCH // sampler.walk_length), 1
    if isinstance(steps, BucketSteps):
        size = steps.size
    elif isinstance(steps, ExchangeSteps) and sampler.world_size == 1:
        size = min(size, FILE_INTERVALS * steps.size)  # rows come from a disk: log, and who presses Ctrl-C, do not wait
    elif not isinstance(sampler, WalkSampler):
        least, batches = batching(steps.config) if isinstance(steps, ExchangeSteps) else (1, 1)
        size = joint_walks(sampler.world_size, sampler.walk_length, steps.size, least)
    per_epoch = sampler.num_walks_per_epoch
    for walks, index in sampler.numbered_batches(size, epoch=epoch, first=first, num_threads=threads):
        if keep is not None:
            drop_frequent(walks, keep, stream_key(seed, epoch, 2), index)
        total = min(size, per_epoch - first)
        whole = (first // size + 1) % batches == 0 or first + total == per_epoch
        yield WalkBatch(walks, index, epoch, first, total, epoch * per_epoch, whole)
        first += total
