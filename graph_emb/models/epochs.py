"""Epochs with evaluations and early stopping, shared by the models that are chosen on a validation part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import bar
from graph_emb.models.schedule import Plateau
from graph_emb.transport.pace import JobPace, with_job, without_job

Values = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """Metrics after an epoch.

    Attributes:
        epoch: 1-based.
        loss: Mean over the epoch's nodes, or edges with as many negatives.
        valid: Metrics of the validation part; None where there is none.
        test: Metrics of the test part; None where no validation value is the best so far.
        job: Of several ranks their pace in the epochs since the evaluation before; None of one.
    """

    epoch: int
    loss: float
    valid: Values | None
    test: Values | None
    job: JobPace | None = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file; one rank has no ``job``."""
        return without_job(asdict(self))


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A training with evaluations.

    Attributes:
        history: Evaluations in order; empty where Ctrl-C came before the first.
        num_parameters: Of networks and tables.
        seconds_per_epoch: Wall time of training, evaluations left out.
    """

    values_key: ClassVar[str] = "metrics"
    """Where ``as_dict`` has the best values."""

    history: tuple[Evaluation, ...]
    num_parameters: int
    seconds_per_epoch: float

    def best(self, metric: str | None = None) -> Evaluation:
        """The first evaluation with the highest validation value of a metric; its ``test`` is the value to report.

        Without a metric the first one decides; without a validation part the last evaluation is returned.
        """
        valid = self.history[-1].valid
        if valid is None:
            return self.history[-1]
        name = metric or next(iter(valid))
        return max(self.history, key=lambda evaluation: (evaluation.valid or {})[name])

    def best_values(self) -> dict[str, dict[str, Any]]:
        """By metric, at its best evaluation: ``epoch``, ``valid`` and ``test``; empty without an evaluation."""
        names = (self.history[-1].valid or self.history[-1].test or {}) if self.history else {}
        chosen = {name: self.best(name) for name in names}
        return {
            name: {"epoch": e.epoch, "valid": (e.valid or {}).get(name), "test": (e.test or {}).get(name)}
            for name, e in chosen.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: the best values, the history without the pace, counts and times."""
        return {
            self.values_key: self.best_values(),
            "history": [replace(evaluation, job=None).as_dict() for evaluation in self.history],
            "num_parameters": self.num_parameters,
            "seconds_per_epoch": self.seconds_per_epoch,
        }


class Schedule(Protocol):
    """The settings that ``run_epochs`` reads from a recipe."""

    @property
    def epochs(self) -> int: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def patience(self) -> int | None: ...


def run_epochs(
    schedule: Schedule,
    train_epoch: Callable[[int], float],
    evaluate: Callable[[str], Values],
    *,
    has_valid: bool = True,
    select: str | None = None,
    description: str = "graph network",
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    begun: Mapping[str, Any] | None = None,
    plateau: Plateau | None = None,
    after_epoch: Callable[[int, Callable[[], dict[str, Any]]], object] | None = None,
    on_interrupt: Callable[[], object] | None = None,
    stops: Callable[[], bool] = lambda: False,
    pace: Callable[[], JobPace | None] = lambda: None,
    unit: str = "items",
) -> tuple[tuple[Evaluation, ...], float, int]:
    """Train and evaluate; the test part is evaluated only where a validation value is the best so far.

    Without a validation part nothing is chosen: all epochs are trained and the last one is evaluated.

    Args:
        schedule: A recipe with ``epochs``, ``eval_every`` and ``patience``.
        train_epoch: Trains one epoch, given its number from 1; returns the mean loss.
        evaluate: Metrics of "valid" or "test".
        has_valid: Whether there is a validation part.
        select: The metric that ``patience`` watches; None: the first one.
        description: Of the bar.
        progress: Shows a bar.
        on_evaluation: Called with each evaluation.
        begun: The position from which a resumed training continues, as given to ``after_epoch``.
        plateau: Reduced by validations that are no better in the metric of ``select``; None: nothing is.
        after_epoch: Called after each epoch with its number and a function that returns the position.
        on_interrupt: Called when Ctrl-C ends the training early; None: it raises.
        stops: Asked after each epoch whether to end there.
        pace: Asked before each evaluation how fast all ranks trained since the last one; None of one rank.
        unit: What its rate counts, a plural.
    Returns:
        The evaluations, the seconds of an epoch, and the epochs that were trained.
    Raises:
        ConfigError: patience or a plateau without a validation part.
    """
    if schedule.patience is not None and not has_valid:
        raise ConfigError(f"patience={schedule.patience} needs a validation part in the split; leave it out")
    if plateau is not None and not has_valid:
        raise ConfigError("lr_decay='plateau' needs a validation part in the split; take cosine, linear or none")
    at = _Progress(**begun) if begun else _Progress()
    if plateau is not None:
        plateau.scale = at.scale
    epochs = bar(total=schedule.epochs, desc=description, unit="epoch", initial=at.epoch, shown=progress)
    try:
        while at.epoch < schedule.epochs and (schedule.patience is None or at.stale < schedule.patience):
            begin = time.perf_counter()
            loss = train_epoch(at.epoch + 1)
            at.epoch += 1
            at.seconds += time.perf_counter() - begin
            epochs.update()
            if at.epoch % schedule.eval_every == 0 if has_valid else at.epoch == schedule.epochs:
                found = at.evaluate(loss, evaluate, has_valid, select, pace())
                if plateau is not None and plateau.due(at.stale):
                    plateau.reduce()
                    at.scale = plateau.scale
                if on_evaluation is not None:
                    on_evaluation(found)
                shown = [select] if select else list(at.best)[:1]
                bests = "".join(f", best {n}={at.best[n]:.4f}" for n in shown)
                job = "" if found.job is None else found.job.said(unit)
                epochs.set_postfix_str(f"loss={loss:.3f}{bests}{job}")
            if after_epoch is not None:
                after_epoch(at.epoch, partial(asdict, at))
            if stops():
                break
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
    epochs.close()
    return tuple(Evaluation(**with_job(entry)) for entry in at.history), at.seconds / max(1, at.epoch), at.epoch


@dataclass
class _Progress:
    """The position of a training."""

    epoch: int = 0  # epochs trained
    history: list[dict[str, Any]] = field(default_factory=list)  # Evaluation.as_dict() of each
    best: Values = field(default_factory=dict)  # the best validation value of each metric
    stale: int = 0  # evaluations since the selected metric's best
    seconds: float = 0.0
    scale: float = 1.0  # of the rates

    def evaluate(
        self,
        loss: float,
        evaluate: Callable[[str], Values],
        has_valid: bool,
        select: str | None,
        job: JobPace | None,
    ) -> Evaluation:
        """Evaluate the validation part, and the test part where a metric is the best so far."""
        valid = evaluate("valid") if has_valid else None
        better = [name for name, value in (valid or {}).items() if value > self.best.get(name, float("-inf"))]
        self.best.update({name: (valid or {})[name] for name in better})
        test = evaluate("test") if better or not has_valid else None
        found = Evaluation(self.epoch, loss, valid, test, job)
        self.history.append(found.as_dict())
        self.stale = 0 if valid is None or (select or next(iter(valid))) in better else self.stale + 1
        return found
