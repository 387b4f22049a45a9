"""Memory, disk and time of a run, by training a few seconds of it: the probe is the run itself, stopped early."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graph_emb.config import RunConfig, config_from, config_text, place_key
from graph_emb.core.errors import ConfigError
from graph_emb.run.continuing import CONTEXT, LENGTHS
from graph_emb.run.inputs import absolute_paths
from graph_emb.run.machine import STATE_SHARE
from graph_emb.run.run_folder import LOG, read_metrics
from graph_emb.transport.process_group import SHARED_VARIABLE

PROBE_S = 8.0
"""Seconds of training between two lines of the history that are enough."""
PATIENCE, LEAST_S = 12, 60.0
"""Times that many seconds, and these at least, a probe may train before it is stopped, whatever it has logged."""
LOOK_S = 0.2
COMPILED_S = 0.1
"""Of compiling kernels, at most, in a probe that counts."""

Line = Mapping[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Estimate:
    """What a run will take, evaluation left out.

    Attributes:
        parameters: Numbers in all tables and networks.
        table_mib, state_mib: Of tables, and of the optimizer's rows, over all trainers.
        memory_mib: Peak of the first trainer, which takes most; graph, torch and copies included.
        trainers: Processes that train; each takes about as much but for what the first alone holds.
        disk_mib: Of the rows in the run folder, context rows too, and of the checkpoints beside it.
        load_seconds, train_seconds: Of reading the data, and of training.
        measured: Share of the training that was measured, from 0 to 1.
    """

    parameters: int
    table_mib: float
    state_mib: float
    memory_mib: int
    trainers: int
    disk_mib: float
    load_seconds: float
    train_seconds: float
    measured: float

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    def __str__(self) -> str:
        from tabulate import tabulate

        of_each = f" of the first of {self.trainers} trainers" if self.trainers > 1 else ""
        rows = [
            ("parameters", f"{self.parameters:,}"),
            ("tables", f"{self.table_mib:,.1f} MiB"),
            ("optimizer state", f"{self.state_mib:,.1f} MiB"),
            (f"peak memory{of_each}", f"{self.memory_mib:,} MiB"),
            ("disk", f"{self.disk_mib:,.1f} MiB"),
            ("reading the data", f"{self.load_seconds:,.1f} s"),
            ("training", f"{_duration(self.train_seconds)}, of which {self.measured:.0%} was measured"),
        ]
        return tabulate(rows, tablefmt="plain", disable_numparse=True)


def estimate(
    model: str | None = None,
    dataset: str | None = None,
    *,
    seconds: float = PROBE_S,
    config: RunConfig | Mapping[str, Any] | None = None,
    **settings: Any,
) -> Estimate:
    """Memory, disk and time of a run before it is started.

    A process of its own trains with these settings, several trainers where they ask for that, and is stopped when it
    has logged enough. Nothing of it is kept. Evaluation is not estimated.

    Args:
        model, dataset, settings: As of ``ge.pipeline``; the data set is a name or a path.
        config: A configuration, or its sections, below the arguments here.
        seconds: Of training to measure; more for a run whose steps are uneven.
    Raises:
        ConfigError: a setting that the run would refuse, tables that memory cannot hold among them; then with the
            width that would fit.
    Example:
        >>> print(ge.estimate("deepwalk", "ogbl-ddi", root="../shared/data", dim=256))
    """
    layers = [config.sections() if isinstance(config, RunConfig) else dict(config or {})]
    named = {"model": model, "dataset": dataset, **settings}
    layers += [place_key(key, value) for key, value in named.items() if value is not None]
    return estimate_of(config_from(*layers), seconds)


def quiet_settings(train: dict[str, Any]) -> dict[str, Any]:
    """What a probe sets: it keeps nothing, and nobody follows it."""
    return {
        "train": train,
        "evaluate": {"enabled": False},
        "output": {"report": "none", "trackers": []},
        "checkpoint": {"every": None, "keep_last": 2, "background": False},
    }


def estimate_of(config: RunConfig, seconds: float = PROBE_S) -> Estimate:
    """As ``estimate``, of a whole configuration."""
    if config.dataset.held is not None or config.dataset.digest is not None:
        raise ConfigError(
            "estimate reads the data in a process of its own; give a data set's name or path, not a graph"
        )
    if not 0 < seconds <= 3_600:
        raise ConfigError(f"seconds={seconds} of a probe; give at most 3600, above 0")
    often = min(config.train.log_interval, seconds / 8)
    quiet = quiet_settings({} if "train.log_interval" in config.model.without else {"log_interval": often})
    held = config.model_copy(update={"dataset": absolute_paths(config.dataset)})
    probed = config_from(held.sections(), quiet)
    with tempfile.TemporaryDirectory(prefix="graph-emb-estimate-") as folder:
        stages, metrics, rows = probed_run(Path(folder), probed, seconds)
        orders = orders_of(config.model)
        for order in orders[len(stages) :]:  # LINE was stopped before it came to them
            alone = {"model": {"order": order, "dim": getattr(config.model, "dim", 0) // len(orders)}}
            Path(folder, order).mkdir()
            more, _, own = probed_run(Path(folder, order), config_from(probed.sections(), alone), seconds)
            stages, rows = [*stages, *more], rows + own
    return _estimated(config, metrics, stages, rows)


def probed_run(
    place: Path, config: RunConfig, seconds: float, sockets: bool = False
) -> tuple[list[list[Line]], dict[str, Any], int]:
    """The stages and metrics of a run that was stopped after some seconds, and the bytes of its rows.

    A probe that compiled kernels is run again, once: the run finds them in the cache, and needs neither the time (2.5
    times the training of a small network) nor the memory of a compiler.
    """
    (place / "config.yaml").write_text(config_text(config), encoding="utf-8")
    lines = _probe(place, seconds, config, sockets)
    if read_metrics(place / "run")["seconds"]["compile"] > COMPILED_S:
        shutil.rmtree(place / "run")
        lines = _probe(place, seconds, config, sockets)
    files = [file for name in ("embeddings.*", CONTEXT, LENGTHS) for file in (place / "run").rglob(name)]
    rows = sum(file.stat().st_size for file in files)
    return stages_of(lines), read_metrics(place / "run"), rows


def orders_of(model: Any) -> tuple[str, ...]:
    """The trainings of LINE, one after the other; of any other model one without a name."""
    return getattr(model, "orders", ("",))


def stages_of(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of each order of LINE, of any other model all of them, each with seconds since its stage began.

    A draw of LINE's second order takes up to twice as long as one of its first: each has its own pace.
    """
    found: dict[str, list[Line]] = {}
    begun = end = 0.0
    for line in lines:
        order, at = line.get("order", ""), _seconds(line)
        if order not in found:
            begun = end
        found.setdefault(order, []).append({**line, "elapsed": at - begun})
        end = at
    return list(found.values())


def _seconds(line: Line) -> float:
    seconds: float = line.get("elapsed", line.get("seconds", 0.0))
    return seconds


def _probe(
    place: Path, seconds: float, config: RunConfig, sockets: bool = False, stop: bool = True
) -> list[dict[str, Any]]:
    """Train in another process until it has logged enough, and return its history.

    Where it was told to stop when it had ended by itself and was saving, it trains again, to its end.

    Args:
        stop: Tell it to, when it has logged enough.
    Raises:
        ConfigError: it refused, or broke off, with its last line.
    """
    words = ["-q", "train", "--config", str(place / "config.yaml"), "--out", str(place / "run")]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if config.parallel.trainers > 1 and sockets:
        environment[SHARED_VARIABLE] = "0"
    process = subprocess.Popen(
        [sys.executable, "-m", "graph_emb", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun, told, logged, most = math.inf, False, False, max(LEAST_S, PATIENCE * seconds)
    try:
        while process.poll() is None:
            time.sleep(LOOK_S)
            if begun == math.inf and any(place.glob(".run.partial-*")):  # the data is read
                begun = time.monotonic()
            stages = stages_of(_history(place))
            points = progress_of(config, stages[-1] if stages else [], None)
            enough = len(points) > 1 and points[-1][0] - points[0][0] >= seconds
            if stop and not told and (enough or time.monotonic() - begun > most):
                told, logged = True, enough
                process.send_signal(signal.SIGINT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
    if not (place / "run" / "metrics.json").is_file():
        if logged:
            return _probe(place, seconds, config, sockets, stop=False)
        if told:
            raise ConfigError(f"the probe logged no progress in {most:.0f} s; measure more seconds")
        last = errors.strip().splitlines()[-1] if errors.strip() else f"exit code {process.returncode}"
        raise ConfigError(last.removeprefix("graph-emb: error: ").removeprefix("graph-emb: "))
    return _history(place)


def _history(place: Path) -> list[dict[str, Any]]:
    """The lines so far of the run, unfinished or finished."""
    found = [*place.glob(f".run.partial-*/{LOG}"), *place.glob(f"run/{LOG}")]
    lines = []
    for line in found[-1].read_text(encoding="utf-8").splitlines() if found else ():
        try:
            lines.append(json.loads(line))
        except ValueError:  # half a line
            break
    return lines


def _estimated(
    config: RunConfig, metrics: dict[str, Any], stages: Sequence[Sequence[Line]], row_bytes: int
) -> Estimate:
    train, model = metrics["train"], config.model
    spent = metrics["seconds"]["train"]
    total, measured = spent, 1.0
    if metrics["status"] != "finished":
        found = [extrapolated(progress_of(config, stage, metrics["dataset"])) for stage in stages] or [(math.nan, 0.0)]
        total, measured = sum(took for took, _ in found), sum(share for _, share in found) / len(found)
    if math.isnan(total) and train.get("seconds_per_epoch"):  # a network that was stopped before its first evaluation
        total, measured = train["seconds_per_epoch"] * getattr(model, "epochs", 1), 0.0
    if math.isnan(total):
        raise ConfigError("the probe ended before its first line of progress; give it more seconds")
    weight, state = model.number_bytes
    tables = train["parameters"] * weight
    states = train["parameters"] * state * STATE_SHARE[model.rule]
    kept = config.checkpoint.keep_last * (tables + states) if config.checkpoint.every is not None else 0
    return Estimate(
        parameters=train["parameters"],
        table_mib=tables / 2**20,
        state_mib=states / 2**20,
        memory_mib=train["peak_memory_mib"],
        trainers=config.parallel.trainers,
        disk_mib=(row_bytes + kept) / 2**20,
        load_seconds=metrics["seconds"]["load"],
        train_seconds=total,
        measured=measured,
    )


def progress_of(
    config: RunConfig, lines: Sequence[Line], dataset: Mapping[str, Any] | None
) -> list[tuple[float, float]]:
    """Seconds since the start and the share of a stage that was done by then, of each of its lines that tells it.

    The share follows from what is counted, else from a learning rate that falls linearly to zero, else from epochs.

    Args:
        dataset: The counts of the data set; None: not known yet, so that shares are of epochs at best.
    """
    model, found = config.model, []
    epochs = getattr(model, "epochs", 1)
    sizes = dataset or {}
    whole = {"triples": sizes.get("triples", 0) * epochs}
    if hasattr(model, "num_walks") and "nodes" in sizes and model.family == "walks":
        whole["walks"] = sizes["nodes"] * model.num_walks * epochs
    if hasattr(model, "draws_per_edge") and "edges" in sizes:
        whole["walks"] = sizes["edges"] * model.draws_per_edge * epochs
    decay = getattr(model, "decay", getattr(model, "lr_decay", None))
    linear = decay == "linear" and not getattr(model, "warmup", 0.0)
    for line in lines:
        unit = next((unit for unit, count in whole.items() if count and unit in line), None)
        if unit is not None:
            share = line[unit] / whole[unit]
        elif linear and line.get("lr") is not None:
            share = 1 - line["lr"] / model.first_lr
        elif "epoch" in line:
            share = line["epoch"] / epochs
        else:
            continue
        found.append((_seconds(line), share))
    return found


def extrapolated(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds of the whole from points of time and share, and the share that was measured; NaN without progress.

    The time before the first point, in which kernels are compiled and buffers filled, counts once.
    """
    if not points or points[-1][1] <= 0:
        return math.nan, 0.0
    (begin, first), (end, last) = points[0], points[-1]
    if last <= first or end <= begin:
        return end / last, last
    return begin + (1 - first) * (end - begin) / (last - first), last


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
