"""The folder of a run: its configuration, metrics and log, and the rule which folders a run may replace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.config import RunConfig, config_from, read_config_file
from graph_emb.core.errors import ConfigError, check_flags, unknown_name
from graph_emb.core.hidden import MARK
from graph_emb.core.paths import user_path
from graph_emb.core.storage import OutputFile, PendingFolder, foreign_file, plain, replace_json, replace_text

if TYPE_CHECKING:
    from graph_emb.formats.embedding_files import Embeddings

CONFIG, METRICS, LOG = "config.yaml", "metrics.json", "metrics.jsonl"


class RunFolder(PendingFolder):
    """A run under construction in a hidden folder that takes its name on ``publish_run``; see ``PendingFolder``.

    Args:
        place: Where the run will be.
        overwrite: Replace a run that is there. Only a folder that holds nothing but the files of a run of this
            library is ever replaced, and only when the new run is complete.
    Raises:
        ConfigError: place is taken and may not be replaced.
        OSError: place cannot be written.
    """

    def __init__(self, place: str | Path, *, overwrite: bool = False) -> None:
        check_flags(overwrite=overwrite)
        check_out(place)
        super().__init__(place, lambda taken: _check_taken(taken, overwrite), what="run")
        self._log: OutputFile | None = None

    def close(self) -> None:
        """As in ``PendingFolder``."""
        if self._log is not None:
            self._log.abandon()
        super().close()

    def write_text(self, name: str, text: str) -> None:
        """Put a small text file into the run."""
        replace_text(self.path / name, text)

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl; readers see it when this returns."""
        if self._log is None:
            self._log = OutputFile(self.path / LOG)
        self._log.write((json.dumps(plain(record), allow_nan=False) + "\n").encode())
        self._log.flush()

    def publish_run(self, metrics: dict[str, Any]) -> Path:
        """Write metrics.json with the list of files and move the run to its place.

        Returns:
            The place.
        Raises:
            ConfigError: the place was taken meanwhile; the complete run stays where the message says.
        """
        log = self._log or OutputFile(self.path / LOG)
        log.close()
        names = {p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file()}
        replace_json(self.path / METRICS, {**metrics, "files": sorted(names - {MARK} | {METRICS})})
        self.keep()
        try:
            return self.publish()
        except (ConfigError, OSError) as error:
            raise ConfigError(f"{error}; the complete run is in {self.path}") from error


def check_out(out: object) -> None:
    """Raise a ConfigError unless ``out`` names a place that can be in a folder."""
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise ConfigError(f"out={out!r} is no path; give that of a folder to write")
    above = next(parent for parent in run_place(out).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise ConfigError(f"{os.fspath(out)} cannot be written: {above} is a file; give another --out")


def run_place(out: str | os.PathLike[str]) -> Path:
    """Where a run is written that is to be in ``out``: links and ``~`` are followed."""
    return Path(os.path.realpath(user_path(out)))


def checkpoint_folder(out: str | Path) -> Path:
    """Where the checkpoints of a run in ``out`` lie, beside it."""
    return run_place(out).with_name(f"{run_place(out).name}-checkpoints")


def check_place(place: Path, overwrite: bool) -> None:
    """Raise a ConfigError unless a run may be written to ``place``: absent, empty, or a run with ``overwrite``."""
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise ConfigError(f"{place} is a file; a run needs a folder of its own")
    if any(place.iterdir()):
        _check_taken(place, overwrite)


def _check_taken(place: Path, overwrite: bool) -> None:
    if not is_run(place):
        raise ConfigError(f"{place} holds files but no run of graph-emb; give another --out")
    if not overwrite:
        raise ConfigError(f"{place} holds a run; give another --out, or --overwrite to replace it")
    foreign = foreign_file(place, read_metrics(place)["files"])
    if foreign is not None:
        raise ConfigError(f"{place} holds {foreign}, which the run did not write; move it before --overwrite")


def is_run(folder: str | Path) -> bool:
    """Whether ``folder`` is a run that this library wrote."""
    try:
        folder = Path(folder)
        return (folder / CONFIG).is_file() and isinstance(read_metrics(folder)["files"], list)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_metrics(folder: Path) -> dict[str, Any]:
    """The content of a run's metrics.json."""
    return json.loads((folder / METRICS).read_text(encoding="utf-8"))


def table_names(folder: Path) -> list[str]:
    """The tables of a run, the main one first, whose rows lie in the folder itself; each other one has its own."""
    metrics = read_metrics(folder)
    if metrics.get("tables"):
        return list(metrics["tables"])
    inner = sorted({name.partition("/")[0] for name in metrics["files"] if "/" in name})
    return ["entity" if "relation" in inner else "node", *inner]  # runs of earlier versions do not say it


def folder_of_table(place: Path, table: str | None) -> Path:
    """Where the rows of a table of a run lie; None: those of its main one, or embeddings that are no run.

    Raises:
        ConfigError: no run, or it has no such table.
    """
    if table is None:
        return place
    if not is_run(place):
        raise ConfigError(f"--table {table}: {place} is no run folder; leave it out")
    names = table_names(place)
    if table not in names:
        raise unknown_name("table", table, names)
    return place if table == names[0] else place / table


def read_run(folder: str | Path) -> tuple[RunConfig, dict[str, Any], dict[str, Embeddings]]:
    """Configuration, metrics and tables of a run folder, the main table first.

    Raises:
        ConfigError: the folder is no run.
        DataError: damaged files.
    """
    place = user_path(folder)
    if not is_run(place):
        raise ConfigError(f"{place} is no run folder: it has no {CONFIG} or no metrics.json; give the --out of a run")
    from graph_emb.formats.embedding_files import load_embeddings  # needs torch: a launcher checks folders alone

    config, metrics = config_from(read_config_file(place / CONFIG)), read_metrics(place)
    tables = {name: load_embeddings(place / name if at else place) for at, name in enumerate(table_names(place))}
    return config, metrics, tables
