"""Training of knowledge-graph models: batches in chunks, sparse steps, early stopping; any mode."""

# T triples, K chunks, C triples of a chunk, E entities, R relations, D and W widths of their rows.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from graph_emb.data.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.data.triple_negatives import ChunkNegatives
from graph_emb.data.triples import KnowledgeGraph
from graph_emb.data.walkers import thread_count
from graph_emb.embedding import DistEmbedding
from graph_emb.errors import ConfigError
from graph_emb.evaluate.triple_ranks import rank_triples
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel, TripleBatch
from graph_emb.models.skipgram_steps import OPTIMIZERS

FIRST_COUNT = 3.0  # of a pair, beside its occurrences: RotatE's code starts at 4 with the first one
MOST_THREADS = int(getattr(numba.config, "NUMBA_NUM_THREADS"))  # noqa: B009  set at run time, unknown to mypy
CHUNK_ROWS = 1 << 16  # that travel to the first rank at a time


@dataclass(frozen=True)
class KGEProgress:
    """A line of the training's history, written after an epoch.

    Attributes:
        epoch: Epochs that were trained.
        triples: Trained so far, of all ranks that step together.
        seconds: Spent on training; validation does not count.
        loss: Mean over the epoch's triples of this rank.
        lr: Of the next step.
        valid_mrr: Filtered, both sides, realistic ties; None where the epoch was not validated.
    """

    epoch: int
    triples: int
    seconds: float
    loss: float
    lr: float
    valid_mrr: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class KGEResult:
    """What a training made.

    Attributes:
        model: Scorer and tables, as the last step left them.
        history: A line for each epoch.
        entities, relations: Rows of the best validated epoch, else of the last: shapes (E, D) and (R, W). None on
            every rank but the first.
        best_epoch: Their epoch.
        interrupted: Whether Ctrl-C ended the training.
    """

    model: KGEModel
    history: list[KGEProgress]
    entities: Tensor | None
    relations: Tensor | None
    best_epoch: int
    interrupted: bool = False


class Batches:
    """The training triples of each epoch, shuffled, in chunks with their negatives.

    The order and the draws depend on (seed, epoch) alone. Ranks in lockstep share each step's chunks, so that any
    number of them trains the same steps; other ranks take whole steps in turn.

    Args:
        graph: Triples.
        config: The recipe.
        seed: Of order and negatives.
        rank, world_size: This rank and how many share the work.
        lockstep: Whether they step together.
    """

    def __init__(
        self, graph: KnowledgeGraph, config: KGEConfig, seed: int, rank: int, world_size: int, lockstep: bool
    ) -> None:
        self._triples, self._config, self._seed = graph.train, config, seed
        self._rank, self._world_size, self._lockstep = rank, world_size, lockstep
        self._negatives = ChunkNegatives(
            graph,
            config.num_negatives,
            config.negative_power,
            in_batch=config.in_batch,
            filtered=config.filter_negatives,
            seed=seed,
        )
        self._weights = triple_weights(graph) if config.subsampling else np.ones(len(graph.train), np.float32)
        self.steps_per_epoch = -(-len(graph.train) // config.batch_size)

    def epoch(self, epoch: int) -> Iterator[tuple[int, TripleBatch]]:
        """This rank's batches of an epoch with the number of their step in it."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._triples))
        for step in range(self.steps_per_epoch):
            if self._lockstep or step % self._world_size == self._rank:
                yield step, self._batch(order, step, epoch)

    def _batch(self, order: np.ndarray, step: int, epoch: int) -> TripleBatch:
        size, chunk = self._config.batch_size, self._config.chunk_size
        chosen = order[step * size : (step + 1) * size]
        num_chunks = -(-len(chosen) // chunk)
        filled = np.concatenate([chosen, np.full(num_chunks * chunk - len(chosen), chosen[-1])])
        weights = self._weights[filled]
        weights[len(chosen) :] = 0.0
        numbers = np.arange(num_chunks)
        if self._lockstep:
            numbers = numbers[self._rank :: self._world_size]
        triples = self._triples[filled.reshape(num_chunks, chunk)[numbers]]
        side = TAIL if (epoch * self.steps_per_epoch + step) % 2 == 0 else HEAD
        drawn, excluded = self._negatives.draw(triples, numbers + step * (size // chunk), side, epoch)
        own = drawn[:, : self._config.num_negatives]
        share = weights.reshape(num_chunks, chunk)[numbers]
        return TripleBatch(triples, share, float(weights.sum(dtype=np.float64)), side, own, excluded)


def triple_weights(graph: KnowledgeGraph) -> np.ndarray:
    """``KGEConfig.subsampling`` of each training triple, shape (T,), float32."""
    counts = sum(
        KnownAnswers.of(graph.train, side, graph.num_relations).counts(graph.train) + FIRST_COUNT
        for side in (HEAD, TAIL)
    )
    return (1.0 / np.sqrt(counts)).astype(np.float32)


def train_kge(
    graph: KnowledgeGraph,
    config: KGEConfig | None = None,
    *,
    seed: int = 0,
    part_policy: Any = None,
    num_threads: int | None = None,
    progress: bool = False,
    on_epoch: Callable[[KGEProgress], None] | None = None,
) -> KGEResult:
    """Train a model on the triples of a knowledge graph, in the mode that ``graph_emb.init`` chose.

    Every rank calls it with the same arguments and holds the triples; rows lie where the mode puts them. With a
    validation part the rows of the best validation are returned and training stops early (``KGEConfig.patience``).

    Args:
        graph: Triples.
        config: The recipe.
        seed: Of first rows, order, negatives and validation triples. Runs with one seed and mode are equal.
        part_policy: Of the entities' table.
        num_threads: Of torch and of the kernels; None: ``torch.get_num_threads()``. It changes no result but by
            rounding in matrix products.
        progress: Show a bar on the first rank.
        on_epoch: Called with each line of the history, on the first rank.
    Raises:
        ConfigError: the loss is no longer finite.
    """
    config = config or KGEConfig()
    model = KGEModel(graph.num_entities, graph.num_relations, config, seed=seed, part_policy=part_policy)
    training = _Training(graph, model, seed)
    transport = model.entity.kvstore
    with tqdm(total=config.epochs * training.batches.steps_per_epoch, desc=config.model, unit="step", mininterval=0.5,
              disable=not (progress and transport.rank == 0)) as bar, _threads(num_threads):  # fmt: skip
        try:
            for epoch in range(config.epochs):
                stop = training.run_epoch(epoch, bar)
                if on_epoch is not None and transport.rank == 0:
                    on_epoch(training.history[-1])
                if stop:
                    break
        except KeyboardInterrupt:
            if transport.world_size > 1:  # the others wait for this rank
                raise
            return training.result(interrupted=True)
    return training.result()


@dataclass
class _Best:
    """The rows of the best validation, and how many came after it."""

    mrr: float = -1.0
    epoch: int = 0
    rows: tuple[Tensor, Tensor] | None = None
    since: int = 0


@dataclass
class _Training:
    graph: KnowledgeGraph
    model: KGEModel
    seed: int
    history: list[KGEProgress] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, transport = self.model.config, self.model.entity.kvstore
        self.transport = transport
        self.batches = Batches(self.graph, config, self.seed, transport.rank, transport.world_size, transport.lockstep)
        self.optimizer = OPTIMIZERS[config.rule](self.model.tables, lr=config.lr)
        self.best, self.seconds, self.triples = _Best(), 0.0, 0
        self.validation: np.ndarray | None = None
        if config.valid_every and "valid" in self.graph.parts:
            valid = self.graph.parts["valid"]
            chosen = np.random.default_rng((self.seed, 0, 1)).permutation(len(valid))[: config.valid_triples or None]
            self.validation = valid[np.sort(chosen)]
            if transport.rank == 0:
                everything = self.graph.all_triples()
                self.known = [KnownAnswers.of(everything, s, self.graph.num_relations) for s in (HEAD, TAIL)]

    def run_epoch(self, epoch: int, bar: tqdm) -> bool:
        """Train and, where it is due, validate; whether to stop."""
        begin, sums = time.perf_counter(), [torch.zeros(2)]
        for step, batch in self.batches.epoch(epoch):
            self._set_rate(epoch * self.batches.steps_per_epoch + step)
            loss = self.model.loss(batch)
            loss.backward()
            self.optimizer.step()
            sums.append(torch.tensor([float(loss.detach()) * batch.total_weight, float(batch.weights.sum())]))
            bar.update(1 if self.transport.lockstep else self.transport.world_size)
        self.transport.flush()
        self.seconds += time.perf_counter() - begin
        self.triples += len(self.graph.train)
        total, weight = torch.stack(sums).sum(dim=0).tolist()
        mean = total / weight if weight else 0.0
        if self.transport.votes(not math.isfinite(mean)):
            raise ConfigError(f"{self.model.config.model}: the loss is {mean} in epoch {epoch}; lower train.lr")
        mrr, stop = self._validate(epoch)
        rate = self._set_rate((epoch + 1) * self.batches.steps_per_epoch)
        self.history.append(KGEProgress(epoch + 1, self.triples, self.seconds, mean, rate, mrr))
        bar.set_postfix_str(f"loss {mean:.4f}" + ("" if self.best.rows is None else f", best mrr {self.best.mrr:.4f}"))
        return stop

    def result(self, interrupted: bool = False) -> KGEResult:
        """The best rows, or the last ones where nothing was validated."""
        if self.validation is None or (interrupted and self.best.rows is None):
            rows, epoch = self._gather(), len(self.history)
        else:
            rows, epoch = self.best.rows, self.best.epoch
        entities, relations = rows or (None, None)
        return KGEResult(self.model, self.history, entities, relations, epoch, interrupted)

    def _set_rate(self, step: int) -> float:
        config = self.model.config
        rate: float = config.lr
        if config.lr_decay == "linear":
            rate *= max(0.0, 1.0 - step / (config.epochs * self.batches.steps_per_epoch))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _validate(self, epoch: int) -> tuple[float | None, bool]:
        config, mrr, stop = self.model.config, None, False
        due = self.validation is not None and ((epoch + 1) % config.valid_every == 0 or epoch + 1 == config.epochs)
        if not due:
            return None, False
        rows = self._gather()
        if rows is not None and self.validation is not None:
            ranks = rank_triples(self.model.scorer, *rows, self.validation, self.known)
            mrr = ranks.mrr().realistic
            if mrr > self.best.mrr:
                self.best = _Best(mrr, epoch + 1, rows)
            else:
                self.best.since += 1
            stop = config.patience > 0 and self.best.since >= config.patience
        return mrr, self.transport.votes(stop) > 0

    def _gather(self) -> tuple[Tensor, Tensor] | None:
        """All rows on the first rank; the others answer."""
        self.transport.barrier()
        wanted = self.transport.rank == 0
        entities, relations = (_all_rows(table, wanted) for table in self.model.tables)
        self.transport.barrier()
        return None if entities is None or relations is None else (entities, relations)


@contextmanager
def _threads(num_threads: int | None) -> Iterator[None]:
    threads, before = thread_count(num_threads), (torch.get_num_threads(), numba.get_num_threads())
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, MOST_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


@torch.no_grad()
def _all_rows(table: DistEmbedding, wanted: bool) -> Tensor | None:
    out = torch.empty(table.num_embeddings, table.embedding_dim) if wanted else None
    for low in range(0, table.num_embeddings, CHUNK_ROWS):
        high = min(low + CHUNK_ROWS, table.num_embeddings)
        rows = table(torch.arange(low, high if wanted else low))
        if out is not None:
            out[low:high] = rows
    return out
