"""What the OGB examples share: finished seeds on disk, mean and std over seeds, peak memory."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from graph_emb import ConfigError, DataError


def finished_or_run(path: Path, options: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The record of one seed: read from ``path`` if it is there, else made by ``run`` and written there.

    Raises:
        ConfigError: path holds a record that other options made.
        DataError: path is no record.
    """
    options = json.loads(json.dumps(options))  # tuples and integer keys as they come back from the file
    if not path.exists():
        record = {"options": options, "result": run()}
        write_json(path, record)
        return record["result"]
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        made_with, result = record["options"], record["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not the record of a finished seed ({error!r}); remove it to run the seed") from error
    if made_with != options:
        keys = sorted(key for key in {*made_with, *options} if made_with.get(key) != options.get(key))
        told = ", ".join(f"{key}={made_with.get(key)!r} there, {options.get(key)!r} now" for key in keys)
        raise ConfigError(f"{path}: a seed that other options made ({told}); choose another --out")
    return result


def write_json(path: Path, record: Any) -> None:
    """Writes the file beside its place and renames it, so that a killed run leaves no half record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """OGB's two numbers: ``torch.mean`` and the unbiased ``torch.std``, which one value does not have (NaN)."""
    tensor = torch.tensor(values, dtype=torch.float64)
    return tensor.mean().item(), tensor.std().item() if len(values) > 1 else float("nan")


def as_text(values: Sequence[float]) -> str:
    """Mean and std as a leaderboard writes them: ``0.2642 ± 0.0610``."""
    mean, std = mean_std(values)
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {std:.4f}"


def peak_memory_mib() -> float:
    """The largest resident set of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
