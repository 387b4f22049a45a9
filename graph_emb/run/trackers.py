"""Where a run's numbers go besides metrics.jsonl: TensorBoard, MLflow and Weights & Biases, imported when asked for."""

# N rows, D width.

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import RunConfig, fields_of
from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import note
from graph_emb.formats.embedding_files import Embeddings

Line = Mapping[str, Any]
PROJECTED = 10_000
"""Rows that the projector gets, spread evenly over the table; its page holds more badly."""


@dataclass(frozen=True)
class Ending:
    """What a tracker gets at the end of a run.

    Attributes:
        scores: By short names, such as "test hits@10".
        tables: By name, the main one first.
        labels: A text for each row of the main table, shape (N,); None: it has none.
    """

    scores: Mapping[str, float]
    tables: Mapping[str, Embeddings]
    labels: NDArray[Any] | None


class Tracker(Protocol):
    """One run's numbers on their way elsewhere. Called by the first process, in this order, ``log`` for each line."""

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...
    def finish(self, ending: Ending) -> None: ...
    def close(self, failed: bool) -> None: ...


class TensorBoard:
    """Curves and, in the projector, rows with their names and labels, in ``tensorboard`` inside the run folder."""

    def __init__(self, module: ModuleType, name: str, config: RunConfig, folder: Path | None) -> None:
        if folder is None:
            raise ConfigError("output.trackers = tensorboard writes into the run folder; give out")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))
        lines = "\n".join(f"    {path}: {value}" for path, value in fields_of(config).items())
        self._writer.add_text("config", lines)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """A point of each curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, ending: Ending) -> None:
        """Scores as points, and the main table's rows."""
        for name, value in ending.scores.items():
            self._writer.add_scalar(f"scores/{name}", value, 0)
        name, table = next(iter(ending.tables.items()))
        kept = np.unique(np.linspace(0, len(table.weights) - 1, PROJECTED).astype(np.int64))
        names = [str(id) for id in table.node_ids[kept].tolist()]
        heads = ["id"] if ending.labels is None else ["id", "label"]
        told = names if ending.labels is None else list(zip(names, map(str, ending.labels[kept]), strict=True))
        self._writer.add_embedding(
            table.weights[kept], told, tag=name, metadata_header=heads if len(heads) > 1 else None
        )

    def close(self, failed: bool) -> None:
        """Nothing is told of a failure."""
        self._writer.close()


class MLflow:
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` say."""

    def __init__(self, module: ModuleType, name: str, config: RunConfig, folder: Path | None) -> None:
        self._mlflow = module
        module.start_run(run_name=name)
        module.log_params({path: str(value)[:500] for path, value in fields_of(config).items()})

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Metrics of a step."""
        self._mlflow.log_metrics({_plain(name): value for name, value in numbers.items()}, step=step)

    def finish(self, ending: Ending) -> None:
        """Scores as metrics."""
        self._mlflow.log_metrics({_plain(name): value for name, value in ending.scores.items()})

    def close(self, failed: bool) -> None:
        """Finished or failed."""
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


class WandB:
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads it."""

    def __init__(self, module: ModuleType, name: str, config: RunConfig, folder: Path | None) -> None:
        mode, project = os.environ.get("WANDB_MODE", "offline"), os.environ.get("WANDB_PROJECT", "graph_emb")
        values = {path: value for path, value in fields_of(config).items()}
        self._run = module.init(project=project, name=name, config=values, mode=mode)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""
        self._run.log(dict(numbers), step=step)

    def finish(self, ending: Ending) -> None:
        """Scores as the summary."""
        self._run.summary.update(dict(ending.scores))

    def close(self, failed: bool) -> None:
        """Finished or failed."""
        self._run.finish(exit_code=int(failed))


KINDS: dict[str, tuple[Any, str, str]] = {
    "tensorboard": (TensorBoard, "torch.utils.tensorboard", "tensorboard"),
    "mlflow": (MLflow, "mlflow", "mlflow"),
    "wandb": (WandB, "wandb", "wandb"),
}
"""By name: the class, the module that it is given, and the extra that installs it."""


def check_trackers(names: Sequence[str]) -> dict[str, ModuleType]:
    """The modules of trackers.

    Raises:
        ConfigError: one is not installed; the message has the command that installs it.
    """
    found = {}
    for name in names:
        _, module, extra = KINDS[name]
        try:
            found[name] = importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"output.trackers = {name} needs a package that is not here ({error}): pip install 'graph_emb[{extra}]'"
            ) from error
    return found


class Trackers:
    """All trackers of a run; one that fails says so once and is left out, and the run goes on.

    Args:
        config: Names them; their packages must be there.
        name: Of the run.
        folder: The run folder under construction; None: there is none.
    Raises:
        ConfigError: one cannot begin.
    """

    def __init__(self, config: RunConfig, name: str, folder: Path | None) -> None:
        self._kept: dict[str, Tracker] = {}
        self._step = 0
        modules = check_trackers(config.output.trackers)
        for tracker, module in modules.items():
            try:
                self._kept[tracker] = KINDS[tracker][0](module, name, config, folder)
            except Exception as error:  # of its settings or its service, before anything is trained
                self.close(failed=True)
                raise ConfigError(f"output.trackers = {tracker}: {' '.join(str(error).split())}") from error

    def log(self, line: Line) -> None:
        """A line of metrics.jsonl; its numbers go on, with the line's number, from 1, as the step."""
        self._step += 1
        numbers = dict(numbers_of(line))
        self._each(lambda tracker: tracker.log(numbers, self._step))

    def finish(self, ending: Ending) -> None:
        """The end of a training whose rows were judged, or not."""
        self._each(lambda tracker: tracker.finish(ending))

    def close(self, failed: bool = False) -> None:
        """End all; the second call does nothing."""
        self._each(lambda tracker: tracker.close(failed))
        self._kept = {}

    def _each(self, call: Any) -> None:
        for name, tracker in list(self._kept.items()):
            try:
                call(tracker)
            except Exception as error:  # of somebody else's service: no reason to lose a training
                note(f"{name} failed and gets no more numbers: {' '.join(str(error).split()) or type(error).__name__}")
                del self._kept[name]


def numbers_of(line: Line, before: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line by name; those of a mapping inside it as ``valid/mrr``."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{before}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)


def is_evaluation(line: Line) -> bool:
    """Whether a line of the history holds scores of the validation or test part."""
    return any(line.get(name) is not None for name in line if name.startswith(("valid", "test")))


def _plain(name: str) -> str:
    """A name of the letters that MLflow takes."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
