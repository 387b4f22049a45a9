"""The trials of a search in a folder: a journal of finished ones, and claims on those that run."""

# k number of a trial, from 0.

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.storage import read_json, replace_json
from graph_emb.models.search import Range, Space, Span
from graph_emb.run.run_folder import check_out

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

ABOUT, JOURNAL, CLAIMS = "search.json", "journal.log", "claims"
NUMBER, SECONDS, PROBLEM = "number", "seconds", "problem"
"""What a finished trial says of itself besides its settings and value."""
STARTUP = 10
"""Trials that are drawn at random before the estimator of good settings has enough of them."""
MISSING = "graph-emb tune needs optuna: pip install 'graph_emb[tune]'"


def optuna() -> Any:
    """The library, which is an extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise ConfigError(MISSING) from error
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def check_arguments(out: object, trials: object, jobs: object, hours: object, metric: object, search: object) -> None:
    """Raise a ConfigError unless these arguments of ``tune`` are of their kinds."""
    check_out(out)
    counts = all(_is_above_0(count, Integral) for count in (trials, jobs))
    timed = hours is None or _is_above_0(hours, Real)
    if not counts or not timed:
        raise ConfigError(f"trials={trials!r}, jobs={jobs!r}, hours={hours!r}: whole numbers, and hours, above 0")
    if not isinstance(metric, str) or (metric != "valid" and not metric.startswith("valid.")):
        raise ConfigError(f"metric {metric!r}: a search compares validation values; write valid, or such as valid.mrr")
    if search is not None and not isinstance(search, Mapping):
        raise ConfigError(f"search={search!r} is no mapping; give ranges by setting: {{'window': one_of(2, 5)}}")


def _is_above_0(value: Any, kind: type) -> bool:
    return not isinstance(value, bool) and isinstance(value, kind) and bool(np.asarray(value) > 0)


class FileLock:
    """A lock on a file that ends with its process, so that a kill leaves none: what a journal's backend asks for."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; without ``wait`` False where another process has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._descriptor)
        self._descriptor = -1


class SearchFolder:
    """A search that any number of processes of a machine share, also one after the other.

    The journal holds finished trials only, one line each, so a kill costs the trial that ran. Trial k's settings are a
    function of the seed, k and the finished trials below ``k - jobs + 1``: with one job a search that was killed ends
    with the trials of one that was not, as far as a training repeats its value.

    Args:
        folder: Where it lies.
        about: What decides about its trials; a folder is continued with the same only.
        space: Range of each setting by name.
        seed: Of the draws.
        jobs: Trials at a time.
        resume: Continue; otherwise the folder must not hold a search.
    Raises:
        ConfigError: the folder is taken, or holds another search.
    """

    def __init__(
        self, folder: Path, about: Mapping[str, Any], space: Space, *, seed: int, jobs: int, resume: bool
    ) -> None:
        self.folder, self.seed, self.jobs = folder, seed, jobs
        self.distributions = {name: _distribution(own) for name, own in space.items()}
        place = folder / ABOUT
        if place.exists():
            _check_same(folder, read_json(place), about, resume=resume)
        elif folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} holds files but no search of graph-emb; give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        if not place.exists():  # first, so that what a kill leaves is a search
            replace_json(place, about)
        (folder / CLAIMS).mkdir(exist_ok=True)
        self._study = self._opened()

    def _opened(self) -> OptunaStudy:
        found = optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        journal, lock = self.folder / JOURNAL, FileLock(self.folder / f"{JOURNAL}.lock")
        as_backend: Any = lock  # its base class is in the extra
        lock.acquire()
        try:
            _cut_torn_line(journal)
        finally:
            lock.release()
        try:
            storage = JournalStorage(JournalFileBackend(str(journal), as_backend))
            return found.create_study(study_name="search", storage=storage, direction="maximize", load_if_exists=True)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:  # a line is no entry
            raise DataError(f"{journal}: is damaged ({error}); give another --out") from error

    def discard(self) -> None:
        """Take the search away where no trial is finished, so that its folder is free for another."""
        if self.finished():
            return
        for path in (
            *(self.folder / CLAIMS).iterdir(),
            *map(self.folder.joinpath, (JOURNAL, f"{JOURNAL}.lock", ABOUT)),
        ):
            path.unlink(missing_ok=True)
        (self.folder / CLAIMS).rmdir()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def finished(self) -> list[FrozenTrial]:
        """The finished trials by number: complete, pruned and failed ones."""
        by_number = {trial.user_attrs[NUMBER]: trial for trial in self._study.get_trials(deepcopy=False)}
        return [by_number[number] for number in sorted(by_number)]

    @contextmanager
    def next_trial(self, total: int) -> Iterator[int | None]:
        """The lowest number that is neither finished nor running in another process; None: there is none.

        It is this process's inside the block.
        """
        done = {trial.user_attrs[NUMBER] for trial in self.finished()}
        for number in range(total):
            claim = FileLock(self.folder / CLAIMS / str(number))
            if number in done or not claim.acquire(wait=False):
                continue
            try:
                if number in {trial.user_attrs[NUMBER] for trial in self.finished()}:  # since it was looked up
                    continue
                yield number
                return
            finally:
                claim.release()
        yield None

    def ask(self, number: int, first: Mapping[str, Any] | None) -> tuple[OptunaStudy, Trial]:
        """A trial with settings, and the study in memory that it is judged in while it runs.

        Args:
            number: k.
            first: The settings of trial 0; None: they are drawn as others.
        """
        found = optuna()
        draw = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
        sampler = found.samplers.TPESampler(seed=draw, n_startup_trials=STARTUP)
        pruner = found.pruners.MedianPruner(n_startup_trials=5)
        study = found.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        study.add_trials([trial for trial in self.finished() if trial.user_attrs[NUMBER] <= number - self.jobs])
        if number == 0 and first is not None:
            study.enqueue_trial(dict(first))
        return study, study.ask(dict(self.distributions))

    def add(self, trial: FrozenTrial, number: int, seconds: float, problem: str | None) -> None:
        """Write down a finished trial."""
        from optuna.trial import create_trial

        own = {NUMBER: number, SECONDS: seconds, **({} if problem is None else {PROBLEM: problem})}
        self._study.add_trial(
            create_trial(
                state=trial.state,
                value=trial.value,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=own,
                intermediate_values=trial.intermediate_values,
            )
        )

    @property
    def study(self) -> OptunaStudy:
        """All finished trials, for plots."""
        return self._study


def _check_same(folder: Path, saved: Mapping[str, Any], about: Mapping[str, Any], *, resume: bool) -> None:
    if not resume:
        raise ConfigError(f"{folder} holds a search; give another --out, or --resume to go on with it")
    for name in sorted({*saved, *about}):
        if saved.get(name) != about.get(name):
            raise ConfigError(
                f"{folder}: {name} is {saved.get(name)!r} in the search that is there and {about.get(name)!r} now; go "
                "on with the same, or give another --out"
            )


def _cut_torn_line(journal: Path) -> None:
    """Take away the end of a line that a kill cut off; whole lines stay."""
    if not journal.exists():
        return
    with journal.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def _distribution(own: Range) -> BaseDistribution:
    found = optuna().distributions
    if not isinstance(own, Span):
        return found.CategoricalDistribution(own.values)
    kind = found.IntDistribution if own.whole else found.FloatDistribution
    return kind(own.low, own.high, log=own.log)


def tried_values(trials: Iterable[FrozenTrial]) -> dict[str, list[Any]]:
    """By setting the distinct values that complete and pruned trials had, rising where they are numbers."""
    found: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in trial.params.items() if PROBLEM not in trial.user_attrs else ():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    numbers = {name: all(isinstance(value, int | float) for value in own) for name, own in found.items()}
    return {name: sorted(own) if numbers[name] else own for name, own in found.items()}
