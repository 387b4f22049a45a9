"""Checkpoints at intervals while a training runs, and the newest complete one to go on from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn, optim

from graph_emb.checkpoint.loading import load_checkpoint
from graph_emb.checkpoint.manifest import NAME, CheckpointManifest, check_replaceable
from graph_emb.checkpoint.saving import PendingCheckpoint, save_checkpoint
from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError, DataError, check_flags
from graph_emb.core.hidden import remove_folder
from graph_emb.core.json_codec import decode
from graph_emb.core.settings import parse_interval
from graph_emb.core.storage import replace_text
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.transport.agreement import agree

POSITION, ABOUT, LINES = "position", "about", "lines"
HISTORY = "history.jsonl"


class PeriodicCheckpoints:
    """Saves ``folder/<step>`` at intervals; ``start`` loads the newest one that is complete.

    In a mode with several ranks, all of them make one with equal arguments and call it together.

    Args:
        folder: Of the checkpoints; other files in it are left alone.
        every: Steps (``500``) or a time (``"90s"``, ``"10m"``, ``"2h"``; the first rank's clock decides). None: none
            is saved, ``start`` only.
        keep_last: Complete checkpoints that stay; older ones are removed when a newer one is complete.
        background: Go on training while the files are written; see ``save_checkpoint``.
        resume: Whether ``start`` loads. Otherwise checkpoints that are in the folder already are an error.
        overwrite: Without ``resume``: whether ``start`` removes checkpoints that are in the folder instead.
        about: What must be equal when a run goes on, as JSON; a difference is an error that names it.
        read_about: Gives the ``about`` of a checkpoint as this version would write it; None: as it stands.
        replay: Called by ``start`` with each line that was given to ``record`` before the checkpoint; first rank only.
    Raises:
        ConfigError: ``every`` or ``keep_last`` is no such thing; or checkpoints are there, to be neither resumed nor
            removed.
    """

    def __init__(
        self,
        folder: str | Path,
        every: int | str | None,
        *,
        keep_last: int = 2,
        background: bool = False,
        resume: bool = False,
        overwrite: bool = False,
        about: Mapping[str, Any] | None = None,
        read_about: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        replay: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        check_flags(background=background, resume=resume, overwrite=overwrite)
        self.folder = Path(folder)
        self._steps, self._seconds = (None, None) if every is None else parse_interval(every)
        if keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}; keep at least 1 checkpoint")
        self._keep_last, self._background, self._resume = keep_last, background, resume
        self._about, self._replay, self._read_about = json.loads(json.dumps(about or {})), replay, read_about
        self._lines = 0
        self._what: dict[str, Any] = {}
        self._tables: Sequence[DistEmbedding | ComposedEmbedding] = ()
        self._pending: PendingCheckpoint | None = None
        self._last_step, self._last_time = 0, time.monotonic()
        found = newest(self.folder)
        if found is not None and not resume and not overwrite:
            raise ConfigError(f"{found} is a checkpoint of an earlier run; resume it, or remove {self.folder}")

    @property
    def goes_on(self) -> bool:
        """Whether ``start`` finds a checkpoint to load, so that first rows need not be made."""
        return self._resume and newest(self.folder) is not None

    def start(
        self,
        tables: Sequence[DistEmbedding | ComposedEmbedding],
        optimizers: Sequence[SparseOptimizer] = (),
        *,
        model: nn.Module | None = None,
        torch_optimizers: Sequence[optim.Optimizer] = (),
        schedulers: Sequence[Any] = (),
        generators: Mapping[str, Any] | None = None,
    ) -> Any:
        """Say what is trained, and bring it to the newest checkpoint's state.

        Returns:
            The position that was saved with it; None where there is no checkpoint, or ``resume`` is False.
        Raises:
            ConfigError: the checkpoint is of a run with other settings.
            DataError: it is damaged.
        """
        self._tables = tables
        self._what = {
            "optimizers": optimizers,
            "model": model,
            "torch_optimizers": torch_optimizers,
            "schedulers": schedulers,
            "generators": generators,
        }
        self._last_time, transport = time.monotonic(), tables[0].transport
        place = newest(self.folder) if self._resume else None
        if transport.votes(place is not None) not in (0, transport.world_size):
            raise ConfigError(f"{self.folder}: some ranks see a checkpoint there, others none; it must be one folder")
        if place is None:
            agree(transport, lambda: self._clear() if transport.rank == 0 else None, f"checkpoints {self.folder}")
            return None
        self._check(place)
        loaded = load_checkpoint(place, tables=tables, **self._what)
        self._last_step, self._lines = loaded.step, loaded.extra[LINES]
        if transport.rank == 0:
            self._restore_history()
        return loaded.extra[POSITION]

    def record(self, line: dict[str, Any]) -> None:
        """Keep a line of the training's history, so that a run that goes on has it; on the first rank only."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._lines += 1

    def after(self, step: int, position: Callable[[], Any]) -> bool:
        """Save if it is time; every rank calls it after the same steps.

        Args:
            step: Steps of the whole training so far.
            position: Called when it is time: where in the data the training stands, as JSON.
        Returns:
            Whether a checkpoint was begun.
        """
        transport = self._tables[0].transport
        if self._steps is not None:
            due = step - self._last_step >= self._steps
        elif self._seconds is not None:
            due = transport.votes(transport.rank == 0 and time.monotonic() - self._last_time >= self._seconds) > 0
        else:
            return False
        if due:
            self.save(step, position())
        return due

    def save(self, step: int, position: Any) -> None:
        """Save now; every rank calls it."""
        self.finish()
        if self._lines and self._tables[0].transport.rank == 0:  # a checkpoint counts lines: they go to the disk before
            with (self.folder / HISTORY).open("rb+") as file:
                os.fsync(file.fileno())
        saved = save_checkpoint(
            self.folder / str(step),
            tables=self._tables,
            step=step,
            extra={POSITION: position, ABOUT: self._about, LINES: self._lines},
            keep_last=self._keep_last,
            background=self._background,
            **self._what,
        )
        self._pending = saved if isinstance(saved, PendingCheckpoint) else None
        self._last_step, self._last_time = step, time.monotonic()

    def finish(self) -> None:
        """Wait for a checkpoint that is being written; its error, if it has one, is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def _clear(self) -> None:
        """Remove what an earlier run left here; asked for by ``overwrite``, or nothing complete is here."""
        places = _complete(self.folder)
        for place in places:
            check_replaceable(place)
        for place in places:
            remove_folder(place)
        (self.folder / HISTORY).unlink(missing_ok=True)

    def _restore_history(self) -> None:
        """Forget lines that were written after the checkpoint, and tell the others."""
        file = self.folder / HISTORY
        text = file.read_text(encoding="utf-8").splitlines()[: self._lines] if file.is_file() else []
        if len(text) < self._lines:
            raise DataError(f"{file}: has {len(text)} lines, the checkpoint was taken after {self._lines}")
        if text or file.is_file():
            replace_text(file, "".join(f"{line}\n" for line in text))
        if self._replay is not None:
            for line in text:
                self._replay(json.loads(line))

    def _check(self, place: Path) -> None:
        saved = _about_at(place)
        if saved is None:
            raise ConfigError(f"{place} was not saved by PeriodicCheckpoints; load it with load_checkpoint")
        if self._read_about is not None:
            saved = json.loads(json.dumps(self._read_about(saved)))
        for name in sorted({*saved, *self._about}):
            if saved.get(name) != self._about.get(name):
                raise ConfigError(
                    f"{place} is of a run with {name} = {saved.get(name)!r}, this one has {self._about.get(name)!r}; "
                    "resume with equal settings, or start anew in another folder"
                )


def newest(folder: str | Path) -> Path | None:
    """The checkpoint with the most steps in ``folder``; None where there is none. Unfinished ones do not count."""
    return max(_complete(Path(folder)), key=lambda entry: int(entry.name), default=None)


def about_of(folder: str | Path) -> dict[str, Any] | None:
    """The ``about`` of the newest checkpoint in ``folder``; None where there is none, or it was saved otherwise."""
    place = newest(folder)
    return None if place is None else _about_at(place)


def _about_at(place: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = decode(CheckpointManifest.read(place).extra).get(ABOUT)
    return found


def _complete(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if entry.name.isdecimal() and (entry / NAME).is_file()]
