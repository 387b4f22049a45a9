"""What the training of a graph network gave, one seed or several."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from torch import nn
from tqdm import tqdm

from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.models.gnn.config import GNNConfig

Values = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    Attributes:
        epoch: 1-based.
        loss: Mean over the epoch's nodes, or edges with as many non-edges.
        valid: Metrics of the validation part; None where there is none.
        test: Of the test part; None where no validation value is the best so far.
    """

    epoch: int
    loss: float
    valid: Values | None
    test: Values | None

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {"epoch": self.epoch, "loss": self.loss, "valid": self.valid, "test": self.test}


@dataclass(frozen=True, eq=False)
class GNNResult:
    """A trained network; network and tables are as they were after the last epoch, or their averages until then.

    Attributes:
        model: The network; of link prediction a module with ``encoder`` and ``predictor``.
        tables: The learnable inputs by node type.
        history: Evaluations in order.
        num_parameters: Of network and tables.
        seconds_per_epoch: Wall time of training, evaluations left out.
        interrupted: Whether Ctrl-C ended the training; the history may then be empty.
    """

    model: nn.Module
    tables: dict[str, DistEmbedding]
    history: tuple[Evaluation, ...]
    num_parameters: int
    seconds_per_epoch: float
    interrupted: bool = False

    def best(self, metric: str | None = None) -> Evaluation:
        """The first evaluation with the highest validation value of a metric, by default the first one; without a
        validation part the last evaluation. Its ``test`` is what is reported.
        """
        last = self.history[-1]
        if last.valid is None:
            return last
        name = metric or next(iter(last.valid))
        return max(self.history, key=lambda evaluation: (evaluation.valid or {})[name])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        names = (self.history[-1].valid or self.history[-1].test or {}) if self.history else {}
        return {
            "metrics": {name: _of(self.best(name), name) for name in names},
            "history": [evaluation.as_dict() for evaluation in self.history],
            "num_parameters": self.num_parameters,
            "seconds_per_epoch": self.seconds_per_epoch,
        }


def _of(evaluation: Evaluation, name: str) -> dict[str, Any]:
    return {
        "epoch": evaluation.epoch,
        "valid": (evaluation.valid or {}).get(name),
        "test": (evaluation.test or {}).get(name),
    }


@dataclass(frozen=True)
class SeedsResult:
    """The same training with several seeds.

    Attributes:
        seeds: In order; none where the first one was interrupted.
        runs: ``GNNResult.as_dict()`` of each.
    """

    seeds: tuple[int, ...]
    runs: tuple[dict[str, Any], ...]

    def values(self, part: str, metric: str) -> list[float]:
        """A metric of "valid" or "test" of each seed, at the epoch that the validation part chose."""
        return [run["metrics"][metric][part] for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: mean and unbiased standard deviation (None of one seed) by metric and part."""
        summary: dict[str, Any] = {}
        for metric, found in self.runs[0]["metrics"].items() if self.runs else ():
            parts = [part for part in ("valid", "test") if found[part] is not None]
            summary[metric] = {part: _spread(self.values(part, metric)) for part in parts}
        return {"seeds": list(self.seeds), "summary": summary, "runs": list(self.runs)}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [metric, part, spread["mean"], spread["std"], len(self.seeds)]
            for metric, parts in self.as_dict()["summary"].items()
            for part, spread in parts.items()
        ]
        return tabulate(rows, ["metric", "part", "mean", "std", "seeds"], floatfmt=".4f", missingval="-")


def _spread(values: list[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "values": values}


def over_seeds(train: Callable[[int], GNNResult], seeds: Sequence[int]) -> SeedsResult:
    """Train once for each seed; a seed's network and tables are freed before the next one starts.

    Args:
        train: Gets the seed.
        seeds: Distinct.
    Raises:
        KeyboardInterrupt: a training was interrupted.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={list(seeds)}: give at least one, each once")
    return SeedsResult(tuple(seeds), tuple(_finished(train(seed)).as_dict() for seed in seeds))


def _finished(result: GNNResult) -> GNNResult:
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def run_epochs(
    config: GNNConfig,
    train_epoch: Callable[[int], float],
    judge: Callable[[str], Values],
    *,
    has_valid: bool,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    begun: Mapping[str, Any] | None = None,
    after_epoch: Callable[[int, Callable[[], dict[str, Any]]], object] | None = None,
    on_interrupt: Callable[[], object] | None = None,
) -> tuple[tuple[Evaluation, ...], float]:
    """Train and evaluate by a recipe's clock; the test part is looked at only where the validation part says best.

    Without a validation part nothing is chosen: all epochs are trained and the last one is judged.

    Args:
        config: ``epochs``, ``eval_every`` and ``patience``.
        train_epoch: One pass, given its number from 1; returns the mean loss.
        judge: Metrics of "valid" or "test"; the first one decides.
        has_valid: Whether there is a validation part.
        progress: Shows a bar.
        on_evaluation: Takes each evaluation as it is made.
        begun: The position from which the training goes on, as ``after_epoch`` was given it.
        after_epoch: Called after each epoch with its number and a function that returns the position.
        on_interrupt: Called when Ctrl-C ends the training early; None: it raises.
    Returns:
        The evaluations, and the seconds of an epoch.
    """
    if config.patience is not None and not has_valid:
        raise ConfigError(f"patience={config.patience} needs a validation part in the split; leave it out")
    at = _Clock(**begun) if begun else _Clock()
    bar = tqdm(range(1, config.epochs + 1), "graph network", unit="epoch", initial=at.epoch, disable=not progress)
    try:
        while at.epoch < config.epochs and (config.patience is None or at.stale < config.patience):
            begin = time.perf_counter()
            loss = train_epoch(at.epoch + 1)
            at.epoch += 1
            at.seconds += time.perf_counter() - begin
            bar.update()
            if at.epoch % config.eval_every == 0 if has_valid else at.epoch == config.epochs:
                found = at.evaluate(loss, judge, has_valid)
                if on_evaluation is not None:
                    on_evaluation(found)
                named = {name: f"{value:.4f}" for name, value in list(at.best.items())[:1]}
                bar.set_postfix({"loss": f"{loss:.3f}", **named})
            if after_epoch is not None:
                after_epoch(at.epoch, partial(asdict, at))
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
    bar.close()
    return tuple(Evaluation(**entry) for entry in at.history), at.seconds / max(1, at.epoch)


@dataclass
class _Clock:
    """Where a training stands.

    Attributes:
        epoch: Epochs that were trained.
        history: ``Evaluation.as_dict()`` of each evaluation.
        best: The best validation value of each metric.
        stale: Evaluations since the first metric's best.
        seconds: Of training.
    """

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: Values = field(default_factory=dict)
    stale: int = 0
    seconds: float = 0.0

    def evaluate(self, loss: float, judge: Callable[[str], Values], has_valid: bool) -> Evaluation:
        """Judge the validation part, and the test part where a metric is the best so far."""
        valid = judge("valid") if has_valid else None
        better = [name for name, value in (valid or {}).items() if value > self.best.get(name, float("-inf"))]
        self.best.update({name: (valid or {})[name] for name in better})
        found = Evaluation(self.epoch, loss, valid, judge("test") if better or not has_valid else None)
        self.history.append(found.as_dict())
        self.stale = 0 if valid is None or next(iter(valid)) in better else self.stale + 1
        return found
