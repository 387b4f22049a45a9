"""Several seeds of one training: each is run once and finished ones are kept; mean and spread over them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from graph_emb.core.errors import ConfigError

T = TypeVar("T")


def each_seed(
    seeds: Sequence[int], run: Callable[[int], T], finished: Callable[[int], T | None] | None = None
) -> Iterator[tuple[int, T]]:
    """Every seed with its result, in order, as they come; a result is not held here while the next seed runs.

    Args:
        seeds: Distinct.
        run: Gets a seed that is not finished.
        finished: The result of a seed that an earlier job has run; None where it has to run.
    Raises:
        ConfigError: no seed, or one twice.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={list(seeds)}: give at least one, each once")
    for seed in seeds:
        kept = None if finished is None else finished(seed)
        yield seed, run(seed) if kept is None else kept
        del kept


def mean_std(values: Sequence[float]) -> dict[str, float | None]:
    """OGB's two numbers: ``torch.mean`` and the unbiased ``torch.std``, which one value does not have (None)."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def as_text(values: Sequence[float]) -> str:
    """Mean and std as a leaderboard writes them: ``0.2642 ± 0.0610``."""
    found = mean_std(values)
    return f"{found['mean']:.4f}" if found["std"] is None else f"{found['mean']:.4f} ± {found['std']:.4f}"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, std and the values themselves, for a JSON file."""
    return {**mean_std(values), "values": list(values)}


@dataclass(frozen=True)
class SeedsResult:
    """The same training with several seeds.

    Attributes:
        seeds: In order; none where the first one was interrupted.
        runs: Of each seed a mapping with "metrics": by metric, the values of its parts.
    """

    seeds: tuple[int, ...]
    runs: tuple[dict[str, Any], ...]

    def values(self, part: str, metric: str) -> list[float]:
        """A metric of "valid" or "test" of each seed, at the epoch that the validation part chose."""
        return [run["metrics"][metric][part] for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: mean and standard deviation by metric and part."""
        found: dict[str, Any] = {}
        for metric, values in self.runs[0]["metrics"].items() if self.runs else ():
            parts = [part for part in ("valid", "test") if values[part] is not None]
            found[metric] = {part: summary(self.values(part, metric)) for part in parts}
        return {"seeds": list(self.seeds), "summary": found, "runs": list(self.runs)}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [metric, part, spread["mean"], spread["std"], len(self.seeds)]
            for metric, parts in self.as_dict()["summary"].items()
            for part, spread in parts.items()
        ]
        return tabulate(rows, ["metric", "part", "mean", "std", "seeds"], floatfmt=".4f", missingval="-")
