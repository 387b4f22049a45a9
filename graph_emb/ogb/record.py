"""Record of one seed of one method on one OGB data set, a JSON file for each seed, and a seed's run with its record."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from graph_emb.compat.ogb import metadata
from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.storage import replace_json
from graph_emb.run.about import FREE_FIELDS
from graph_emb.run.evaluation import NetworkScores, SeedsResult
from graph_emb.run.machine import peak_memory_mib
from graph_emb.run.pipeline import PipelineResult

OGB_WORDS = {"accuracy": "acc"}
"""Names of metrics that OGB calls otherwise."""


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BestScore(_Facts):
    """A metric at the epoch that was chosen by it; ``epoch`` is None where nothing was to choose."""

    epoch: PositiveInt | None
    valid: float
    test: float


class SeedResult(_Facts):
    """Scores, sizes and times of a finished seed.

    Attributes:
        metric: OGB's metric of the data set: "hits@K", "mrr", "rocauc" or "acc".
        selected_on: The part whose value chose the epoch; "none" where the last one was taken.
        scores: By metric, each at its own best epoch, as OGB's logger takes them.
        parameters: Numbers that were learned, by stage; a leaderboard asks for their sum.
        seconds: Wall time by stage.
        peak_memory_mib: Of the process.
        history: Evaluations in order, for plots.
    """

    metric: str
    selected_on: Literal["valid", "test", "train", "none"]
    scores: dict[str, BestScore]
    parameters: dict[str, NonNegativeInt] = Field(min_length=1)
    seconds: dict[str, float] = {}
    peak_memory_mib: NonNegativeInt = 0
    history: list[dict[str, Any]] = []

    @model_validator(mode="after")
    def _has_its_metric(self) -> SeedResult:
        if self.metric not in self.scores:
            raise ValueError(f"scores lack {self.metric!r}, the data set's metric")
        return self


class Hardware(_Facts):
    """The machine of a run."""

    cpu: str
    cores: int
    memory_gib: float
    gpus: list[str] = []


class SeedRecord(_Facts):
    """One seed.

    Attributes:
        status: "started" from the first moment, "finished" with a result: an interrupted seed stays "started".
        dataset: OGB's name.
        model: Name of the method in the script.
        seed: Of the network that is judged, its batches and negatives.
        embedding_seed: Of the embeddings below it; equal to ``seed`` unless they were frozen.
        settings: Every hyper-parameter, nested.
        settings_selected_on: "valid" or "test" where several settings were compared, and by which part's values; "none"
            where they were taken as they are.
        validation_edges: "trained on" where validation edges were added to the training edges.
        external_data: Whether data other than the data set was used.
        command: The command line of the run.
    """

    format: Literal[1] = 1
    kind: Literal["graph_emb OGB seed"] = "graph_emb OGB seed"
    status: Literal["started", "finished"]
    dataset: str
    model: str
    seed: NonNegativeInt
    embedding_seed: NonNegativeInt
    settings: dict[str, Any]
    settings_selected_on: Literal["none", "valid", "test"] = "none"
    validation_edges: Literal["held out", "trained on"] = "held out"
    external_data: bool = False
    command: str
    hardware: Hardware
    versions: dict[str, str]
    result: SeedResult | None = None

    @model_validator(mode="after")
    def _result_when_finished(self) -> SeedRecord:
        if (self.status == "finished") != (self.result is not None):
            raise ValueError(
                f"status is {self.status!r} and the result is {'absent' if self.result is None else 'there'}"
            )
        return self

    @property
    def frozen(self) -> bool:
        """Whether the embeddings are those of another seed."""
        return self.seed != self.embedding_seed

    def finished(self) -> SeedResult:
        """The result.

        Raises:
            ConfigError: the seed was interrupted.
        """
        if self.result is None:
            raise ConfigError(
                f"{self.dataset} {self.model}: seed {self.seed} was started and not finished; "
                f"run it again: {self.command}"
            )
        return self.result


def read_record(path: Path) -> SeedRecord:
    """The record in a file.

    Raises:
        DataError: the file is no record of a seed.
    """
    try:
        return SeedRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: not the record of a seed ({place}: {first['msg']}); remove it to run the seed"
        ) from error


def write_record(path: Path, record: SeedRecord) -> None:
    """Write the file, complete or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, record.model_dump(mode="json"))


def finished_record(path: Path, wanted: SeedRecord) -> SeedRecord | None:
    """The record of a seed that an earlier job finished; None where it has to run.

    Raises:
        ConfigError: path holds a record that other settings made.
        DataError: path is no record.
    """
    if not path.exists():
        return None
    found = read_record(path)
    names = ("dataset", "model", "seed", "embedding_seed", "settings_selected_on", "validation_edges")
    told = {name: (getattr(found, name), getattr(wanted, name)) for name in names}
    told = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    if "model" in wanted.settings and "model" not in found.settings:
        raise ConfigError(f"{path}: a seed of an earlier version, whose settings had other names; choose another --out")
    told.update(differences(found.settings, wanted.settings))
    if told:
        text = ", ".join(f"{name}={there!r} there, {now!r} now" for name, (there, now) in told.items())
        raise ConfigError(f"{path}: a seed that other options made ({text}); choose another --out")
    return found if found.status == "finished" else None


def run_recorded(path: Path, started: SeedRecord, run: Callable[[], SeedResult | None]) -> SeedRecord:
    """The record of ``run``'s result, written to ``path``; None means that another process has written it, with the
    words that it was given in the place of the command's.

    While ``run`` works, and for good when it is interrupted, the file holds ``started``. Data or settings that ``run``
    refuses leave nothing.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    fresh = not path.exists()
    write_record(path, started)
    try:
        result = run()
    except (ConfigError, DataError):
        with suppress(OSError):  # a folder in which something else lies stays
            if fresh:
                path.unlink()
            for folder in made:
                folder.rmdir()
        raise
    if result is None:
        record = read_record(path).model_copy(update={"command": started.command})
    else:
        record = started.model_copy(update={"status": "finished", "result": result})
    write_record(path, record)
    return record


def result_of(run: PipelineResult) -> SeedResult:
    """The scores of a finished run: of the network on its rows, of the graph network, or of the ranks of triples."""
    metric, train = metadata(run.config.dataset.name).eval_metric, run.metrics["train"]
    history, sizes = run.history, {name: table.weights.size for name, table in run.tables.items()}
    learned, scores, epoch_seconds = train["parameters"], run.findings[0].scores, train.get("seconds_per_epoch")
    if isinstance(scores, NetworkScores):
        chosen, history = scores.metrics, scores.history
        network, epoch_seconds = run.findings[0].name.replace("_", " "), scores.seconds_per_epoch
        parameters = {"embedding": learned, network: scores.num_parameters}
    elif isinstance(scores, SeedsResult):
        chosen, history = scores.runs[0]["metrics"], scores.runs[0]["history"]
        chosen = {OGB_WORDS.get(name, name): values for name, values in chosen.items()}
        parameters = {"embedding": sum(sizes.values()), "network": learned - sum(sizes.values())}
    else:
        valid, test = (ogb_values(finding.scores) for finding in run.findings)
        epoch = None if train["best_valid_mrr"] is None else train["best_epoch"]  # without validation the last one
        chosen = {name: {"epoch": epoch, "valid": valid[name], "test": test[name]} for name in test}
        parameters = {"entities": sizes["entity"], "relations": sizes["relation"]}
    seconds = {part: run.metrics["seconds"][part] for part in ("train", "evaluate")}
    seconds["all"] = sum(seconds.values())
    if epoch_seconds is not None:
        seconds["epoch"] = epoch_seconds
    return SeedResult(
        metric=metric,
        selected_on="none" if chosen[metric]["epoch"] is None else "valid",
        scores={name: BestScore(**values) for name, values in chosen.items()},
        parameters=parameters,
        seconds=seconds,
        peak_memory_mib=peak_memory_mib(),
        history=history,
    )


def ogb_values(ranks: Any) -> dict[str, float]:
    """OGB's four numbers of ``TripleRanks``: MRR and Hits@1, 3, 10 over both sides, a tie counting half in the rank."""
    return {"mrr": ranks.mrr().realistic, **{f"hits@{k}": ranks.hits(k).realistic for k in (1, 3, 10)}}


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What decides a seed's scores, as ``config.yaml`` says it, without what is null: no seeds, places or threads."""
    sections = config.sections()
    kept: dict[str, Any] = {
        "dataset": {**config.dataset.read_options(), "validation_edges": config.dataset.validation_edges}
    }
    kept["model"] = sections["model"]
    kept["train"] = {name: value for name, value in sections["train"].items() if name not in FREE_FIELDS["train"]}
    kept["evaluate"] = {name: sections["evaluate"][name] for name in ("predictor", "mlp", "node_features")}
    kept["output"] = {"context": config.output.context}
    if config.parallel.mode != "local":
        kept["parallel"] = sections["parallel"]
    return {name: {key: v for key, v in values.items() if v is not None} for name, values in kept.items()}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by path."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        found.update(flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value})
    return found


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The paths at which two settings differ, with both values; a path that one lacks is None there."""
    one, other = flat(left), flat(right)
    return {
        path: (one.get(path), other.get(path)) for path in sorted({*one, *other}) if one.get(path) != other.get(path)
    }


def this_hardware() -> Hardware:
    """Processor, cores, memory and GPUs of this machine."""
    import psutil
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return Hardware(cpu=_cpu_name(), cores=cores, memory_gib=memory, gpus=gpus)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
