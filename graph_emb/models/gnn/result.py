"""Results of training a graph network, of one seed or several."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.models.epochs import Evaluation, best, best_values


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
        return best(self.history, metric)

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "metrics": best_values(self.history),
            "history": [evaluation.as_dict() for evaluation in self.history],
            "num_parameters": self.num_parameters,
            "seconds_per_epoch": self.seconds_per_epoch,
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
