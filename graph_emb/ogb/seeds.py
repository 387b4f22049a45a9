"""Seeds that are run once: a record for each in a folder, and the numbers over them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from graph_emb.core.errors import ConfigError
from graph_emb.ogb.record import SeedRecord, SeedResult, read_record, write_record
from graph_emb.ogb.settings import differences


def finished_or_run(path: Path, started: SeedRecord, run: Callable[[], SeedResult]) -> SeedRecord:
    """The record of one seed: read from ``path`` if it is there and finished, else made by ``run`` and written there.

    While ``run`` works, and for good when it is interrupted, the file holds ``started``.

    Raises:
        ConfigError: path holds a record that other settings made.
        DataError: path is no record.
    """
    if path.exists():
        found = read_record(path)
        _check_same(path, found, started)
        if found.status == "finished":
            return found
    write_record(path, started)
    record = started.model_copy(update={"status": "finished", "result": run()})
    write_record(path, record)
    return record


def _check_same(path: Path, found: SeedRecord, wanted: SeedRecord) -> None:
    names = ("dataset", "model", "seed", "embedding_seed", "settings_selected_on", "validation_edges")
    told = {name: (getattr(found, name), getattr(wanted, name)) for name in names}
    told = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    told.update(differences(found.settings, wanted.settings))
    if told:
        text = ", ".join(f"{name}={there!r} there, {now!r} now" for name, (there, now) in told.items())
        raise ConfigError(f"{path}: a seed that other options made ({text}); choose another --out")


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """OGB's two numbers: ``torch.mean`` and the unbiased ``torch.std``, which one value does not have (NaN)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else float("nan")


def as_text(values: Sequence[float]) -> str:
    """Mean and std as a leaderboard writes them: ``0.2642 ± 0.0610``."""
    mean, std = mean_std(values)
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {std:.4f}"
