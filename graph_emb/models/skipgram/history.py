"""Counts, clock, progress bar and history of a skip-gram training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil
import torch
from tqdm import tqdm

from graph_emb.core.errors import ConfigError
from graph_emb.models.skipgram.local_sgd import ExchangeSteps
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.steps import InPlaceSteps, PacedSteps, Steps, WalkBatch
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.transport.pace import JobPace, PaceMeter, with_job, without_job

SAMPLED_ROWS = 1024


@dataclass(frozen=True)
class SkipGramProgress:
    """A line of the training's history.

    Attributes:
        epoch: The epoch in progress or just ended, from 0.
        walks, tokens: Trained so far; a token is a node of a walk.
        seconds: Time of walking and training, callbacks excluded.
        loss: Mean loss per context pair of a sample of the walks since the line before; NaN without a pair.
        lr: The learning rate of the next walk.
        local_share: Where several ranks train: the share of needed rows that lay with the rank that needed them.
        bytes_sent: Walkers, ids, rows and gradients sent between ranks so far.
        exchange_seconds: Mean over the ranks of the time of exchanges of rows so far: laying out, travelling, waiting
            for others, adding up.
        hidden_share: The share of it during which the rank trained; 0 where exchanges do not overlap.
        job: Of several ranks the pace of all, in tokens; None of one.

    With several ranks every number but ``seconds`` counts all of them, and every rank has the same lines.
    """

    epoch: int
    walks: int
    tokens: int
    seconds: float
    loss: float
    lr: float
    local_share: float = 1.0
    bytes_sent: int = 0
    exchange_seconds: float = 0.0
    hidden_share: float = 0.0
    job: JobPace | None = None

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a line of JSON; an unknown loss is None, and one rank has no ``job``."""
        return {**without_job(asdict(self)), "loss": None if math.isnan(self.loss) else self.loss}

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> SkipGramProgress:
        """The line of ``as_dict``."""
        return cls(**{**with_job(line), "loss": math.nan if line["loss"] is None else line["loss"]})


class RankTotals:
    """Sums over the ranks whose walkers move together, for the log; of one process its own numbers.

    Every rank calls the same methods in the same order: ``sum`` may wait for the others.

    Args:
        sampler: The walks, with their ranks.
        transport: Of the tables.
        steps: The stepper of this rank.
    """

    def __init__(self, sampler: PartitionedWalkSampler, transport: Any, steps: Steps) -> None:
        self._sampler, self._transport, self._steps = sampler, transport, steps
        self.rank, self.num = sampler.rank, 1 if sampler.group is None else sampler.world_size
        self._before = (0, 0, 0) if sampler.group is None else self._counted()
        self.meter = None if self.num == 1 or sampler.group is None else PaceMeter(sampler.group.link, transport.link)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum of ``values`` over all ranks, on every rank."""
        group = self._sampler.group
        return values if group is None else group.sum(torch.from_numpy(values), "training log").numpy()

    def sum_with_pace(self, values: np.ndarray) -> tuple[np.ndarray, JobPace | None]:
        """``sum``, and in the same call the pace of all ranks; None of one rank."""
        if self.meter is None:
            return self.sum(values), None
        of_ranks = self.meter.table(self.rank, self.num)
        found = self.sum(np.concatenate([values, of_ranks.ravel()]))
        return found[: len(values)], JobPace.of(found[len(values) :].reshape(of_ranks.shape).tolist())

    def traffic(self) -> tuple[int, int, int]:
        """Rows that this rank needed, those of them that it owns, and bytes that it sent, so far."""
        if self._sampler.group is None:
            return 0, 0, 0
        needed, own, sent = (now - before for now, before in zip(self._counted(), self._before, strict=True))
        if isinstance(self._steps, PacedSteps) and isinstance(self._steps.steps, InPlaceSteps):
            return 0, 0, sent  # all rows are here
        if isinstance(self._steps, ExchangeSteps):  # own rows are not even asked for
            return self._steps.used, self._steps.own, sent
        return needed, own, sent

    def exchange_seconds(self) -> tuple[float, float]:
        """Time of this rank's exchanges so far, and the part of it that training hid."""
        return self._steps.exchange_seconds if isinstance(self._steps, ExchangeSteps) else (0.0, 0.0)

    def _counted(self) -> tuple[int, int, int]:
        traffic = self._transport.traffic
        return traffic.distinct, traffic.local, traffic.bytes_sent + self._sampler.bytes_sent


class TrainingLog:
    """Sums up the batches' losses and writes a line of history every ``interval`` seconds of the first rank.

    Args:
        bar: Counts tokens.
        model: Its rows are checked at every line.
        lr_at: The learning rate after a number of walks.
        interval: Seconds between lines; 0 writes one for every batch.
        on_line: Called with every line.
        sampler, steps: The walks and the stepper of this rank.
    """

    def __init__(
        self,
        bar: tqdm,
        model: SkipGram,
        lr_at: Callable[[int], float],
        interval: float,
        on_line: Callable[[SkipGramProgress], None] | None,
        sampler: PartitionedWalkSampler,
        steps: Steps,
    ) -> None:
        self.history: list[SkipGramProgress] = []
        self.walks, self.tokens = 0, 0
        self._bar, self._model, self._lr_at, self._interval, self._on_line = bar, model, lr_at, interval, on_line
        self._ranks = RankTotals(sampler, model.embedding.transport, steps)
        self._loss, self._pairs = 0.0, 0.0
        self._begin = time.perf_counter()
        self._paused, self._last_line = 0.0, 0.0
        self._seen = np.empty(0, np.int32)
        self._process = psutil.Process()
        if (meter := self._ranks.meter) is not None:
            meter.begin()

    @property
    def seconds(self) -> float:
        """Since the start, without the time of callbacks."""
        return time.perf_counter() - self._begin - self._paused

    def position(self, epoch: int, batch: WalkBatch, step: int) -> dict[str, Any]:
        """The position of the training after a batch, for a checkpoint; of the lines already written the last one."""
        counts = {"walks": self.walks, "tokens": self.tokens, "seconds": self.seconds}
        last = self.history[-1].as_dict() if self.history else None
        log = {**counts, "loss": self._loss, "pairs": self._pairs, "line": last}
        return {"epoch": epoch, "first": batch.first + batch.total, "step": step, "log": log}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the ``log`` of a position of this process or another."""
        self.walks, self.tokens = int(state["walks"]), int(state["tokens"])
        self._loss, self._pairs = state["loss"], state["pairs"]
        if (line := state.get("line")) is not None:  # older checkpoints have none; it must not be written again
            self.history.append(SkipGramProgress.of(line))
        self._begin -= state["seconds"]
        self._last_line = self.seconds
        self._bar.update(self.tokens)

    def add(self, batch: WalkBatch, loss: float, pairs: float, stop: bool = False) -> bool:
        """Count a trained batch and write a line if one is due.

        Args:
            batch: The walks.
            loss, pairs: Sums over a sample of them.
            stop: Whether this rank asks to stop.
        Returns:
            Whether any rank asks to stop.
        """
        begin = batch.walks[:SAMPLED_ROWS]
        self._seen = begin[begin >= 0][:SAMPLED_ROWS]
        num_nodes = np.count_nonzero(batch.walks >= 0)
        if (meter := self._ranks.meter) is not None:
            meter.items += int(num_nodes)
        due = self._ranks.rank == 0 and self.seconds - self._last_line >= self._interval
        tokens, loss, pairs, line, stops = self._ranks.sum(np.array([num_nodes, loss, pairs, due, stop], np.float64))
        self.walks += batch.total
        self.tokens += int(tokens)
        self._loss, self._pairs = self._loss + float(loss), self._pairs + float(pairs)
        self._bar.update(batch.total * batch.walks.shape[1])
        if line:
            self.write(batch.epoch)
        return bool(stops)

    def write(self, epoch: int) -> None:
        """Write a line, unless no walk was trained since the last one."""
        if self.history and self.history[-1].walks == self.walks:
            return
        loss = self._loss / self._pairs if self._pairs else math.nan
        seconds, lr = self.seconds, self._lr_at(self.walks)
        told = np.array([*self._ranks.traffic(), *self._ranks.exchange_seconds()], np.float64)
        sums, pace = self._ranks.sum_with_pace(told)
        used, own, sent = (int(number) for number in sums[:3])
        share, hidden = own / used if used else 1.0, float(sums[4] / sums[3]) if sums[3] else 0.0
        of_rank = float(sums[3]) / self._ranks.num
        line = SkipGramProgress(epoch, self.walks, self.tokens, seconds, loss, lr, share, sent, of_rank, hidden, pace)
        rows = self._model.embedding.weight[torch.from_numpy(self._seen)]
        # The loss cannot tell: the kernel's sigmoid clamps its argument.
        if self._ranks.sum(np.array([not torch.isfinite(rows).all()], np.float64))[0]:
            raise ConfigError(
                f"skip-gram diverged: rows are not finite after {self.tokens} tokens at lr={lr:g}; lower lr"
            )
        self.history.append(line)
        travel = "" if pace is None else pace.said()
        travel += f", {share:.0%} local" if used else ""
        travel += f", {hidden:.0%} of exchanges hidden" if hidden else ""
        travel += "".join(f", {own.told(seconds, f'{side} rows')}" for side, own in self._model.cache_stats().items())
        self._bar.set_postfix_str(f"loss {loss:.4f}, {self._process.memory_info().rss / 2**20:,.0f} MiB{travel}")
        self._loss, self._pairs, self._last_line = 0.0, 0.0, seconds
        if self._on_line is not None:
            self.pause(self._on_line, line)

    def pause(self, callback: Callable[[SkipGramProgress], None], line: SkipGramProgress) -> None:
        """Call back with the clock stopped."""
        begin, meter = time.perf_counter(), self._ranks.meter
        if meter is not None:
            meter.end()
        callback(line)
        if meter is not None:
            meter.begin()
        self._paused += time.perf_counter() - begin
