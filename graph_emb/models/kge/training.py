"""Training of knowledge-graph models in any mode: sparse steps, validation, early stopping."""

# T triples, K chunks, C triples of a chunk, E entities, R relations, D and W widths of their rows.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import expanded
from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import bar
from graph_emb.core.terminal import deferred_interrupts
from graph_emb.core.threads import torch_threads
from graph_emb.embedding import DistEmbedding
from graph_emb.evaluate.dealt_triples import rank_part_dealt
from graph_emb.evaluate.triple_ranks import check_candidates
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.announcing import announced
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.best_rows import BestRows
from graph_emb.models.kge.bucket_ranks import HeldParts, RoundBatches, check_exact, train_places
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.queries import QueryBatches
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.sampling.bucket_rounds import RoundSchedule
from graph_emb.sampling.buckets import BucketSchedule
from graph_emb.sampling.known_triples import EntityParts, KnownAnswers
from graph_emb.sampling.partitioned_triples import OwnTriples
from graph_emb.sampling.stored_triples import TriplesOnDisk
from graph_emb.sampling.walk_kernels import thread_count
from graph_emb.table.own_rows import of_highest_degree
from graph_emb.table.placement import AUTO, Buckets
from graph_emb.table.tier.shard import TieredShard
from graph_emb.transport.pace import JobPace, PaceMeter, with_job, without_job

BATCHES_AHEAD = 4
VOTE_STEPS = 32
"""Steps of a rank between two votes of several on Ctrl-C."""


@dataclass(frozen=True)
class KGEProgress:
    """A line of the training's history, written after an epoch.

    Attributes:
        epoch: Epochs that were trained.
        triples: Trained so far, of all ranks.
        seconds: Spent on training; validation does not count.
        loss: Mean over the epoch's triples of this rank.
        lr: Of the next step.
        valid_mrr: Both sides, realistic ties; None where the epoch was not validated.
        job: Of several ranks the pace of all, in triples, of k-vs-all in queries; None of one.
    """

    epoch: int
    triples: int
    seconds: float
    loss: float
    lr: float
    valid_mrr: float | None = None
    job: JobPace | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON; one rank has no ``job``."""
        return without_job(asdict(self))


@dataclass(frozen=True, eq=False)
class KGEResult:
    """A trained model with its best rows and its history.

    Attributes:
        model: Scorer and tables after the last step.
        history: A line for each epoch.
        entities, relations: Rows of the best validated epoch, else of the last: shapes (E, D) and (R, W). None on
            every rank but the first.
        best_epoch: Their epoch, from 1.
        interrupted: Whether Ctrl-C ended the training.
    """

    model: KGEModel
    history: list[KGEProgress]
    entities: Tensor | None
    relations: Tensor | None
    best_epoch: int
    interrupted: bool = False


def train_kge(
    graph: KnowledgeGraph,
    config: KGEConfig | None = None,
    *,
    seed: int = 0,
    part_policy: Any = None,
    own: OwnTriples | None = None,
    known: Sequence[KnownAnswers] | None = None,
    num_threads: int | None = None,
    placement: Any = AUTO,
    device: torch.device | str | None = None,
    progress: bool = False,
    on_epoch: Callable[[KGEProgress], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    levels: Any = None,
    first: tuple[Any, Any] | None = None,
    on_disk: TriplesOnDisk | None = None,
    early: int = 0,
) -> KGEResult:
    """Train a model on the triples of a knowledge graph, in the mode that ``graph_emb.init`` chose.

    Every rank calls it with the same arguments; rows are stored as the mode has them. A rank holds all triples, or with
    ``own`` those of its entities: the steps are the same. With a ``part_policy`` of several parts a rank trains the
    triples whose heads it owns, as far as all have equally much to do. With a validation part the rows of the best
    validation are returned and training stops early (``KGEConfig.patience``).
    In local and collective mode the steps are the same at any number of ranks, but where these share rows
    (``init(hogwild=True)``): then they take whole steps in turn, as in kvstore mode, each on its own.

    Args:
        graph: Triples; with ``own`` its training triples are not read, and held-out ones on the first rank only.
        config: The recipe.
        seed: Of initial values, order, negatives and validation triples. Runs with one seed and mode are equal.
        part_policy: Of the entities' table, which counts rows in partition order; the graph keeps its own.
        own: This rank's training triples, on every rank or on none.
        known: By side the answers that validation leaves out, on the first rank; None: those of the graph's triples.
        num_threads: Of torch and of the kernels; None: ``torch.get_num_threads()``. Results differ by no more than
            rounding in matrix products.
        placement: Of the entities' table, as in ``DistEmbedding``. One in a file hears of the next batches' entities.
        device: Where rows lie and are scored, of one process alone; None: as in ``DistEmbedding``. Ranks of validation
            are made on the processor.
        progress: Show a bar on the first rank.
        on_epoch: Called with each line of the history, on the first rank.
        checkpoints: Saves the training at intervals, and resumes it.
        levels: The part of each entity at each level, (E, L), in the order of the graph; for ``config.table`` of
            position.
        first: Initializers of entities and relations, those of a multilevel start; None: the model's own.
        on_disk: The training triples, for ``config.buckets``, where the graph holds none; ``known`` is given then.
        early: Bytes that each of several ranks with a bucket of its own (``config.at_once``) takes, beside the parts
            that it holds, for parts of entities in files which travel while the round before trains; 0: none does.
    Raises:
        ConfigError: the loss is no longer finite; candidates that cannot be sampled; levels that are missing, or the
            first rows of a multilevel start, which a run makes; ``early`` without such ranks.

    Example:
        >>> from graph_emb.graph.triples import KnowledgeGraph
        >>> from graph_emb.models.kge.config import KGEConfig, TripleSettings
        >>> from graph_emb.models.kge.training import train_kge
        >>> follows = np.array([(head, 0, (head + 1) % 10) for head in range(10)])
        >>> graph = KnowledgeGraph("ring", num_entities=10, num_relations=1, parts={"train": follows})
        >>> config = KGEConfig(model="distmult", dim=8, num_negatives=4, chunk_size=5, batch_size=10, epochs=3)
        >>> result = train_kge(graph, config, num_threads=1)
        >>> result.entities.shape, len(result.history)
        (torch.Size([10, 8]), 3)
    """
    config = config or KGEConfig()
    names = ("", "") if checkpoints is None else ("entity", "relation")
    given: Any = {"seed": seed, "part_policy": part_policy, "names": names, "placement": placement}
    given |= {"device": device, "levels": levels, "first": first}
    if config.own_rows:
        degrees = graph.occurrences() if own is None else own.occurrences()
        (given["own_rows"],) = of_highest_degree([degrees], config.own_rows, "entities")
    if config.multilevel is not False and first is None and not (checkpoints is not None and checkpoints.goes_on):
        raise ConfigError(
            f"multilevel = {config.multilevel!r} is made by a run (ge.pipeline); give first= here, or leave it out"
        )
    model = KGEModel(graph.num_entities, graph.num_relations, config, **given)
    training = _KGETraining(graph, model, seed, checkpoints, own, known, on_disk, early)
    transport = model.entity.transport
    steps = config.epochs * training.batches.steps_per_epoch
    shown = progress and transport.rank == 0
    with (
        bar(total=steps, desc=config.name, unit="step", shown=shown) as moved,
        torch_threads(thread_count(num_threads)),
        deferred_interrupts(transport.world_size > 1) as pressed,  # the others wait for this rank
    ):
        moved.update(training.step)
        try:
            while not training.done:
                if training.run_epoch(moved, pressed):
                    return training.result(interrupted=True)
                if on_epoch is not None and transport.rank == 0:
                    on_epoch(training.history[-1])
        except KeyboardInterrupt:
            if transport.world_size > 1:  # the second one
                raise
            return training.result(interrupted=True)
        finally:
            if checkpoints is not None:
                checkpoints.finish()
    return training.result()


def check_over_all(graph: KnowledgeGraph, config: KGEConfig, own: OwnTriples | None) -> None:
    """Refuse a loss over all entities where some cannot answer, or where the answers are elsewhere.

    Raises:
        ConfigError: entities of several types, or kvsall of trainers that hold triples of their own.
    """
    if graph.entity_types is not None and len(graph.entity_types) > 1:
        raise ConfigError(
            f"training={config.training}: the entities of {graph.name} have types, and those of one type answer a "
            "query; take training=negatives"
        )
    if own is not None and config.training == "kvsall":
        raise ConfigError(
            "training=kvsall needs all training triples in each process, and trainers hold their own; take 1vsall or "
            "parallel.trainers=1"
        )


class _KGETraining:
    """The state of a training between two steps."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        model: KGEModel,
        seed: int,
        checkpoints: PeriodicCheckpoints | None,
        own: OwnTriples | None,
        known: Sequence[KnownAnswers] | None,
        on_disk: TriplesOnDisk | None,
        early: int,
    ) -> None:
        self.graph, self.model, self.seed, self.checkpoints = graph, model, seed, checkpoints
        config, self.transport = model.config, model.entity.transport
        transport = self.transport
        # Then ranks take whole steps in turn, as trainers of servers do, each on the rows of all.
        self.sharing = transport.world_size > 1 and transport.lockstep and transport.hogwild and not config.at_once
        ranks = transport.rank, transport.world_size, transport.lockstep and not self.sharing
        self.batches: Batches | QueryBatches | RoundBatches
        buckets = self._buckets()
        if config.against_all:
            check_over_all(graph, config, own)
        if config.training == "kvsall":
            self.batches = QueryBatches(graph, config, seed, *ranks)
        elif isinstance(buckets, RoundSchedule):
            if own is not None or on_disk is not None:
                raise ConfigError(f"train.at_once = {config.at_once} needs all training triples in each process")
            self.batches = RoundBatches(graph, config, seed, *ranks[:2], buckets, model.rows)
        else:
            parts = EntityParts.of(model.entity.book, model.rows)
            self.batches = Batches(graph, config, seed, *ranks, parts, own, buckets, model.rows, on_disk)
        self._held: list[tuple[int, int]] = []
        self.plateau = config.new_plateau()
        self.optimizer = OPTIMIZERS[config.rule](model.tables, lr=config.first_lr, **config.numbers(seed))
        self.held: HeldParts | None = None
        if isinstance(self.batches, RoundBatches):
            check_exact(self.optimizer, self.batches.schedule)
            self.held = HeldParts(model, self.batches, early) if transport.world_size > 1 else None
        if early and self.held is None:
            raise ConfigError(f"early = {early}: it is for ranks that train a bucket each (at_once); leave it out")
        if buckets is not None and self.model.entities_in_file and self.held is None:
            self._check_room(buckets)
        self.history: list[KGEProgress] = []
        self.group = getattr(transport, "group", None) if own is None else own.group
        links = [transport.link, *([] if self.group is None else [self.group.link])]
        self.meter = PaceMeter(*links) if transport.world_size > 1 else None
        self.step, self.seconds, self.sums, self.stopped = 0, 0.0, np.zeros(2), False
        self.best = BestRows(None if checkpoints is None else checkpoints.folder)
        self.chosen, self.known = self._validation(known)
        position = None if checkpoints is None else checkpoints.start(model.tables, [self.optimizer])
        if position is not None:
            self.step, self.seconds = position["step"], position["seconds"]
            self.sums, self.stopped = np.array(position["sums"]), position["stopped"]
            self.history = [KGEProgress(**with_job(line)) for line in position["history"]]
            self.plateau.scale = position.get("scale", 1.0)
            if transport.rank == 0:
                self.best.resume(position["best"])
        self.alone: AbstractContextManager[Any] = self.held or nullcontext()
        if self.sharing:
            self.alone = transport.in_place([table.name for table in expanded(model.tables)])
        with self.alone:
            if not transport.lockstep:
                self.optimizer.take_turns(transport.rank, transport.world_size)

    def _buckets(self) -> BucketSchedule | RoundSchedule | None:
        """The order of ``config.buckets``."""
        config, entity = self.model.config, self.model.entity
        placement = entity.spec.placement if isinstance(entity, DistEmbedding) else None
        if isinstance(placement, Buckets) and placement.parts != config.buckets:
            raise ConfigError(
                f"placement of {placement.parts} parts, train.buckets = {config.buckets}: they must be the same"
            )
        if not config.buckets:
            return None
        if config.at_once:
            return RoundSchedule(config.buckets, config.at_once, self.graph.num_entities, self.seed)
        sizes = (config.buckets, config.resident_parts, self.graph.num_entities)
        return BucketSchedule(*sizes, self.seed, config.passes)

    def _check_room(self, schedule: BucketSchedule | RoundSchedule) -> None:
        """Raise a ConfigError where memory does not hold as many parts, with their state, as train together."""
        entity = self.model.entity
        if not (isinstance(entity, DistEmbedding) and isinstance(shard := entity.shard, TieredShard)):
            raise ConfigError(f"train.buckets = {schedule.parts}: servers hold the files of the entities; leave it out")
        ends = np.clip(schedule.bounds - shard.first_id, 0, shard.num_rows).tolist()
        if (held := shard.num_held([*pairwise(ends)])) < schedule.resident:
            lower = f", or lower train.resident to {held}" if held > 1 else ""
            raise ConfigError(
                f"train.memory holds {held} of {schedule.parts} parts of the entities, train.resident = "
                f"{schedule.resident} train together; raise train.memory or train.buckets{lower}"
            )

    @property
    def done(self) -> bool:
        """Whether all epochs are over, or validation ended the training."""
        return self.stopped or self.step >= self.model.config.epochs * self.batches.steps_per_epoch

    def run_epoch(self, moved: tqdm, pressed: Callable[[], bool]) -> bool:
        """Train an epoch, or the rest of one, and validate if it is due.

        Several ranks ask each other every VOTE_STEPS steps, trainers of servers after the epoch, whether Ctrl-C was
        ``pressed`` at one of them: then all stop there.

        Returns:
            Whether it was.
        """
        epoch, first = divmod(self.step, self.batches.steps_per_epoch)
        begin, size = time.perf_counter(), self.batches.steps_per_epoch
        self._measure(True)
        for step, batch in self._announced(self.batches.epoch(epoch, first)):
            self._set_rate(epoch * size + step)
            self._hold(epoch, step)
            with self.alone:
                own = batch if isinstance(batch, tuple) else (batch,)
                self.sums += train_places(self.model, self.optimizer, own)
            if self.meter is not None:
                self.meter.items += sum(np.count_nonzero(one.weights) for one in own)
            moved.update(1 if self._together else self.transport.world_size)
            trained = self._trained_by_all(step)
            if trained is not None and trained < size:
                self.step = epoch * size + trained
                self.seconds, begin = self.seconds + time.perf_counter() - begin, time.perf_counter()
                self._measure(False)
                self._checkpoint()
                self._measure(True)
                votes = self.transport.world_size > 1 and (self.sharing or self.step % VOTE_STEPS == 0)
                if votes and self.transport.votes(pressed()):
                    return True
        self._flush()
        total, weight = self.sums
        mean, self.sums = float(total / weight) if weight else 0.0, np.zeros(2)
        told = [] if self.meter is None else self.meter.take()
        failed, *paces = zip(*self.transport.gather([int(not math.isfinite(mean)), *told]), strict=True)
        pace = JobPace.of([*zip(*paces, strict=True)]) if paces else None
        self._measure(False)
        self.seconds += time.perf_counter() - begin  # of all: the slowest has trained its steps
        self.step = (epoch + 1) * size
        if any(failed):
            raise ConfigError(f"{self.model.config.name}: the loss is {mean} in epoch {epoch}; lower train.lr")
        mrr, rate = self._validate(epoch), self._set_rate(self.step)
        done = (epoch + 1) * self.graph.num_triples
        self.history.append(KGEProgress(epoch + 1, done, self.seconds, mean, rate, mrr, pace))
        best = f", best mrr {self.best.mrr:.4f}" if self.best.epoch else ""
        best += "" if pace is None else pace.said("queries" if self.model.config.training == "kvsall" else "triples")
        moved.set_postfix_str(f"loss {mean:.4f}{best}{self.model.told_of_file(self.seconds)}")
        self._checkpoint()
        return self.transport.world_size > 1 and self.transport.votes(pressed()) > 0

    def _measure(self, training: bool) -> None:
        """Let the meter of the pace run while the ranks train."""
        if self.meter is not None:
            (self.meter.begin if training else self.meter.end)()

    @property
    def _together(self) -> bool:
        """Whether all ranks share each step."""
        return self.transport.world_size == 1 or (self.transport.lockstep and not self.sharing)

    def _trained_by_all(self, step: int) -> int | None:
        """The steps of the epoch that all ranks have trained after this one of this rank's, where all stand there.

        None: others may be ahead or behind, as those that take steps in turn are but for every VOTE_STEPS of their own.
        """
        if self._together:
            return step + 1
        turns = step // self.transport.world_size + 1
        return turns * self.transport.world_size if self.sharing and turns % VOTE_STEPS == 0 else None

    def _hold(self, epoch: int, step: int) -> None:
        """Bring the parts that a step needs into memory, and begin with those of the next ones."""
        if self.held is not None:
            self.held.begin(epoch, step)
        if isinstance(self.batches, QueryBatches) or not self.model.entities_in_file:
            return
        ranges = self.batches.ranges(epoch, step)
        if ranges is not None and ranges != self._held:
            assert isinstance(self.model.entity, DistEmbedding)
            self.model.entity.hold(ranges)
            self._held = ranges

    def _announced(self, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Batches, whose entities a table in a file hears of ``BATCHES_AHEAD`` batches before."""
        model = self.model
        if not model.entities_in_file or self.transport.world_size > 1 or model.config.buckets:
            return batches
        return announced(batches, lambda one: model.entity.prefetch(model.entities_of(one[1])), BATCHES_AHEAD)

    def result(self, interrupted: bool = False) -> KGEResult:
        """The best rows, or the last ones where nothing was validated."""
        self._flush()
        rows, epoch = self.best.rows, self.best.epoch
        del self.batches  # the order of triples: memory that rows of files are short of
        if self.chosen is None or (interrupted and not self.transport.votes(rows is not None)):  # the first rank's
            rows, epoch = self._gather(), len(self.history)
        entities, relations = rows or (None, None)
        return KGEResult(self.model, self.history, entities, relations, epoch, interrupted)

    def _set_rate(self, step: int) -> float:
        config = self.model.config
        steps = config.epochs * self.batches.steps_per_epoch
        rate = config.first_lr * self.plateau.scale * config.share_of_step(step, steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _validation(self, known: Sequence[KnownAnswers] | None) -> tuple[np.ndarray | None, Sequence[KnownAnswers]]:
        """Numbers of the triples to validate on (None: no validation) and the known answers, on the first rank only."""
        first, valid = self.transport.rank == 0, self.graph.parts.get("valid")
        if not self.model.config.valid_every or not self.transport.votes(first and valid is not None):
            if self.model.config.lr_decay == "plateau":
                raise ConfigError("lr_decay='plateau' needs a validation part in the split; take cosine or linear")
            return None, []
        if not first or valid is None:
            return np.empty(0, np.int64), []
        check_candidates(self.graph, ["valid"], self.model.config.candidates)
        order = np.random.default_rng((self.seed, 0, 1)).permutation(len(valid))
        chosen = np.sort(order[: self.model.config.valid_triples or None])
        return chosen, KnownAnswers.to(valid[chosen], self.graph) if known is None else known

    def _validate(self, epoch: int) -> float | None:
        """The validation's MRR if one is due; all ranks agree on whether it ends the training."""
        config, mrr = self.model.config, None
        if self.chosen is None or ((epoch + 1) % config.valid_every and epoch + 1 < config.epochs):
            return None
        rows = self._gather()
        sampled: Any = {"num_candidates": config.candidates, "seed": self.seed}
        chosen: Any = {"chosen": self.chosen, "known": self.known}
        ranks = rank_part_dealt(self.group, self.model.scorer, rows, self.graph, "valid", **chosen, **sampled)
        if ranks is not None and rows is not None:
            self.best.add(mrr := ranks.mrr().realistic, epoch + 1, rows)
        due = rows is not None and self.plateau.due(self.best.since)
        if config.lr_decay == "plateau" and self.transport.votes(due):
            self.plateau.reduce()
        self.stopped = self.transport.votes(config.patience > 0 and self.best.since >= config.patience) > 0
        return mrr

    def _checkpoint(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.after(self.step, self._position)

    def _flush(self) -> None:
        """Let the owners have all rows."""
        if self.held is not None:
            self.held.give_back()
        self.transport.flush()

    def _position(self) -> dict[str, Any]:
        self._flush()
        return {
            "step": self.step,
            "seconds": self.seconds,
            "sums": self.sums.tolist(),
            "stopped": self.stopped,
            "history": [line.as_dict() for line in self.history],
            "best": {"epoch": self.best.epoch, "since": self.best.since},
            "scale": self.plateau.scale,
        }

    def _gather(self) -> tuple[Tensor, Tensor] | None:
        """Gather all rows on the first rank; every rank must call it."""
        self.transport.barrier()
        entities, relations = (all_rows(table, self.transport.rank == 0) for table in self.model.tables)
        self.transport.barrier()
        if entities is None or relations is None:
            return None
        rows = self.model.rows
        in_order = rows is None or bool((np.diff(rows) == 1).all())  # no second copy of a table beyond memory
        return entities if in_order else entities[rows], relations
