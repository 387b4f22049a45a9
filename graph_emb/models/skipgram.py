"""Training of skip-gram embeddings on streamed walks: the public face of the skip-gram model."""

# N nodes, D width, B walks, L nodes of a walk.

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from graph_emb.data.negatives import NegativeSampler, node_degrees
from graph_emb.data.walks import WalkSampler, stream_key, thread_count
from graph_emb.embedding import DistEmbedding
from graph_emb.errors import ConfigError
from graph_emb.models.skipgram_config import SkipGramConfig
from graph_emb.models.skipgram_kernels import drop_frequent
from graph_emb.models.skipgram_log import SkipGramProgress, TrainingLog
from graph_emb.models.skipgram_model import SkipGram
from graph_emb.models.skipgram_steps import choose_steps, learning_rate
from graph_emb.optimizer import SparseOptimizer

__all__ = ["SkipGram", "SkipGramConfig", "SkipGramProgress", "SkipGramResult", "train_skipgram"]

TOKENS_PER_BATCH = 1 << 18  # about 0.1 s of the fused kernel: the progress bar's grain and Ctrl-C's delay


@dataclass(frozen=True)
class SkipGramResult:
    """A trained model and how it came about.

    Attributes:
        model: The tables.
        history: Lines in the order of time; the last one is the end.
        interrupted: Whether Ctrl-C ended the training; what was trained is kept.
    """

    model: SkipGram
    history: list[SkipGramProgress] = field(default_factory=list)
    interrupted: bool = False

    @property
    def embedding(self) -> DistEmbedding:
        """The table of the token rows."""
        return self.model.embedding

    def embeddings(self, context: str = "none") -> torch.Tensor:
        """See ``SkipGram.embeddings``."""
        return self.model.embeddings(context)


def train_skipgram(
    sampler: WalkSampler,
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
) -> SkipGramResult:
    """Train skip-gram embeddings on the walks of a sampler, streamed, one batch in memory at a time.

    Same seed and ``num_threads=1``: same rows. With more threads the fused kernel's threads write shared rows without
    locks (Hogwild, Niu et al. 2011), so runs differ in rounding and in the rare lost update; walks and negatives stay
    the same.

    Args:
        sampler: The walks; its graph's degrees weigh the negatives.
        config: The recipe; None: the model's own, else the defaults.
        model: Tables to go on with; None makes new ones.
        optimizer: Trains ``model.tables`` by the autograd path instead of ``config.rule``, at its own learning rate,
            which falls only where ``config.lr_decay`` is ``linear``.
        seed: Of first rows, negatives and subsampling; the sampler has its own.
        num_threads: Threads of walks, kernel and torch; None: ``torch.get_num_threads()``.
        progress: Show a bar with tokens/s, loss, time left and memory.
        log_interval: Seconds between lines of the history.
        on_batch: Called with each line of the history.
        on_epoch: Called with the last line of each epoch.
    Returns:
        The model, also after Ctrl-C (``interrupted`` is then True).
    Raises:
        ConfigError: arguments do not fit each other, or the rows are no longer finite.
    """
    model = _fitting_model(sampler, config, model, optimizer, seed)
    config = model.config
    degrees = node_degrees(sampler.graph)
    keep = _keep_chances(degrees, config.subsample)
    negatives = NegativeSampler(degrees, config.negative_power, seed=seed)
    per_epoch = sampler.num_walks_per_epoch
    decay = learning_rate(config, optimizer, config.epochs * per_epoch)
    interrupted = False
    with _threads(num_threads) as (pool, threads), _bar(config.epochs * per_epoch, sampler, progress) as bar:
        steps = choose_steps(model, negatives, decay, optimizer, pool, threads)
        log = TrainingLog(bar, model, decay.at, log_interval, on_batch)
        epoch = 0
        try:
            for epoch in range(config.epochs):
                for walks in _batches(sampler, epoch, keep, seed, threads):
                    log.add(epoch, walks, *steps.run(walks, epoch, log.walks - epoch * per_epoch, log.walks))
                log.write(epoch)
                if on_epoch is not None:
                    log.pause(on_epoch, log.history[-1])
        except KeyboardInterrupt:
            interrupted = True
            log.write(epoch)
    return SkipGramResult(model, log.history, interrupted)


def _fitting_model(
    sampler: WalkSampler,
    config: SkipGramConfig | None,
    model: SkipGram | None,
    optimizer: SparseOptimizer | None,
    seed: int,
) -> SkipGram:
    if sampler.walk_length < 2:
        raise ConfigError("walk_length is 1; skip-gram needs walks of at least 2 nodes to have a pair")
    if model is None:
        if optimizer is not None:
            raise ConfigError("an optimizer is given without the model whose tables it trains; pass model= as well")
        return SkipGram(sampler.num_nodes, config, seed=seed)
    if config is not None and config != model.config:
        raise ConfigError("config differs from the model's own; pass one of them")
    if model.num_nodes != sampler.num_nodes:
        raise ConfigError(f"the model has {model.num_nodes} rows and the graph {sampler.num_nodes} nodes")
    if optimizer is not None and model.config.lr is not None:
        raise ConfigError(f"lr is {model.config.lr} and an optimizer is given; set lr in the optimizer")
    if optimizer is not None and {table.name for table in model.tables} - set(optimizer.tables):
        raise ConfigError("the optimizer does not train all tables of the model; make it from model.tables")
    return model


def _keep_chances(degrees: np.ndarray, threshold: float) -> np.ndarray | None:
    """word2vec's chance to keep a node, with its degree as its frequency, shape (N,), float32; None keeps all."""
    if threshold == 0 or degrees.sum() == 0:
        return None
    with np.errstate(divide="ignore"):
        ratio = threshold / (degrees / degrees.sum())
    return np.minimum(1.0, np.sqrt(ratio) + ratio).astype(np.float32)


@contextmanager
def _threads(num_threads: int | None) -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """A pool of threads that share the cores; BLAS stays out of it, its products here are too small to be cut."""
    import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS; a limit reaches only libraries that are loaded

    threads, before = thread_count(num_threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(threads) as pool, threadpool_limits(1, "blas"):
            yield pool, threads
    finally:
        torch.set_num_threads(before)


def _bar(total_walks: int, sampler: WalkSampler, shown: bool) -> tqdm:
    return tqdm(
        total=total_walks * sampler.walk_length,
        desc="skip-gram",
        unit="tok",
        unit_scale=True,
        mininterval=0.5,
        disable=not shown,
    )


def _batches(
    sampler: WalkSampler, epoch: int, keep: np.ndarray | None, seed: int, threads: int
) -> Iterator[np.ndarray]:
    """The walks of an epoch without the tokens that subsampling drops."""
    first = 0
    size = max(1, TOKENS_PER_BATCH // sampler.walk_length)
    for walks in sampler.batches(size, epoch=epoch, num_threads=threads):
        if keep is not None:
            drop_frequent(walks, keep, stream_key(seed, epoch, 2), first)
        first += len(walks)
        yield walks
