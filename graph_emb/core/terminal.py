"""Both command lines' parser, exit codes, errors of one line, interrupts, reading with a bar; imports nothing heavy."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from graph_emb.core.errors import ConfigError, GraphEmbError, PeerError, unknown_name

BAD_INPUT, PEER_LOST, INTERRUPTED = 2, 3, 130
"""Exit codes. Whoever lost a peer did nothing wrong: a launcher looks for another one to blame, and may start again."""
SILENT_S = 2.0
"""A read that ends within this many seconds shows nothing."""
AGAIN_S = 0.1
"""Seconds until a signal that Python dropped is sent once more."""
_GIGABYTE = 1 << 30
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Advance = Callable[[int], None]
_shown: list[bool] = []
"""Whether notes are shown, innermost last; of the process, as kernels are compiled in any of its threads."""
_PROGRESS: ContextVar[bool | None] = ContextVar("progress", default=None)


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError, with the nearest known word, instead of ending the process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse lists the choices without a suggestion; this hook is the same in 3.10 - 3.13
        if action.choices is not None and value not in action.choices:
            kind = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
            raise unknown_name(kind.lower(), value, [str(choice) for choice in action.choices])

    def flags(self) -> list[str]:
        """Every option of this parser."""
        return list(self._option_string_actions)

    def names(self) -> dict[str, str]:
        """How a message names each argument, by its attribute."""
        named = {action.dest: str(action.metavar or action.dest) for action in self._actions}
        return named | {action.dest: flag for flag, action in self._option_string_actions.items()}


def end_at_once(code: int) -> NoReturn:
    """End this process without ending the interpreter, under threads of C++ that would crash with it.

    DGL's wait for peers that are gone, some inside Python: SIGSEGV at the end of a survivor, which its launcher would
    blame instead of the process that died.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_TORCHS_ALLOCATION = re.compile(r"can't allocate memory: you tried to allocate \d+ bytes")
"""In the RuntimeError that torch (2.13, c10/core/impl/alloc_cpu.cpp) raises in place of a MemoryError."""


def exit_code(run: Callable[[list[str]], int], argv: Sequence[str] | None, prog: str, when_out_of_memory: str) -> int:
    """Run a command line and turn every failure into an exit code and one line.

    Args:
        run: Takes the arguments and returns the exit code.
        argv: Arguments after the program's name; None takes those of the process.
        prog: The program's name, in front of what goes to stderr.
        when_out_of_memory: The next step after a MemoryError.
    Returns:
        That of ``run``, 2 on bad input or a full disk or memory, 3 where a peer is lost, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks is shown escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    noted: list[int] = []

    def note(number: int) -> KeyboardInterrupt:
        noted.append(number)
        return KeyboardInterrupt()

    stops = [signal.SIGTERM]  # a scheduler's, which keeps what was trained, as Ctrl-C does
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a terminal that closes; nohup ignores it
        stops.append(signal.SIGHUP)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        stops.append(signal.SIGINT)
    with warnings.catch_warnings(), raising(note, *stops), _raised_again(noted):
        if not debug:  # warnings of the libraries below us are for developers; ours stay
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=r"(graph_emb|partition)(\..*)?$")
            warnings.showwarning = lambda message, *_, **__: tell(f"{prog}: warning: {message}")
        try:
            _check_current_folder()
            code = run(words)
            _flush_output()  # here, where a reader that has left is no error
            return code
        except BrokenPipeError:  # the reader of our output, such as head, has left
            _drop(sys.stdout)
            return 0
        except (GraphEmbError, OSError, MemoryError) as error:
            if debug:
                traceback.print_exc()
            tell(f"{prog}: error: {one_line(error, when_out_of_memory)}")
            return code_of(error)
        except (KeyboardInterrupt, Exception) as error:
            allocation = _TORCHS_ALLOCATION.search(str(error)) if isinstance(error, RuntimeError) else None
            if allocation is not None and not debug:
                told = one_line(MemoryError(allocation.group()), when_out_of_memory)
                tell(f"{prog}: error: {told}")
                return BAD_INPUT
            # an import turns Ctrl-C into an ImportError or a SystemError
            if isinstance(error, KeyboardInterrupt) or (noted and not debug):
                tell(f"{prog}: interrupted")
                return INTERRUPTED
            raise


@contextmanager
def _raised_again(noted: list[int]) -> Iterator[None]:
    """Send a signal once more whose KeyboardInterrupt Python drops: it rose in a finalizer or a callback of C.

    Args:
        noted: The signals that came.
    """
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if not noted or not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        main = threading.main_thread().ident
        again = threading.Timer(AGAIN_S, signal.pthread_kill, (main, noted[-1]))  # here it would be dropped again
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _open_missing_streams() -> None:
    """Give the null device to standard streams that are closed: the next file opened would get what is printed."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
            stream = open(os.devnull, mode)  # noqa: SIM115 - for good; a file that was opened meanwhile has the number
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - for good
        setattr(sys, name, stream)


def _check_current_folder() -> None:
    """A folder that was removed under a shell: relative names mean nothing there, and libraries end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder was removed; cd to one that is there") from None


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _drop(sys.stdout)
            error.filename = "standard output"
        raise


def _drop(stream: TextIO) -> None:
    """Drop what is still to be written to a stream that fails; the interpreter's end would try, and fail, once more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def tell(text: str) -> None:
    """A line on standard error; one that is full, or whose terminal is gone, ends nothing."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def code_of(error: BaseException) -> int:
    """The exit code of an error that a caller, the machine or a peer caused."""
    return PEER_LOST if isinstance(error, PeerError) and not error.final else BAD_INPUT


def one_line(error: BaseException, when_out_of_memory: str) -> str:
    """The error as one line for a person; after a MemoryError ``when_out_of_memory`` is the next step."""
    if isinstance(error, MemoryError):
        detail = f" ({' '.join(str(error).split())})" if str(error) else ""
        return f"out of memory{detail}; {when_out_of_memory}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        return f"{' '.join(error.strerror.split())}{where}"
    return " ".join(str(error).split()) or type(error).__name__


def say(args: argparse.Namespace, text: str) -> None:
    """A line for the person at the terminal, kept out of the results on stdout."""
    if not args.quiet:
        tell(text)


@contextmanager
def notes_shown(shown: bool) -> Iterator[None]:
    """Notes inside are shown always, or never; elsewhere where standard error is a terminal."""
    _shown.append(shown)
    try:
        yield
    finally:
        _shown.pop()


def note(text: str) -> None:
    """A line for whoever waits, such as why the first start is slow; programs without a terminal are left in peace."""
    if _shown[-1] if _shown else sys.stderr.isatty():
        tell(f"graph-emb: {text}")


def listed(text: str) -> list[str]:
    """The parts of ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]


@contextmanager
def progress_shown(progress: bool | None) -> Iterator[None]:
    """Bars inside show always (True), never (False), or as outside (None): by default where there is a terminal."""
    before = _PROGRESS.set(_PROGRESS.get() if progress is None else progress)
    try:
        yield
    finally:
        _PROGRESS.reset(before)


@contextmanager
def reading(what: str, total: int | None, unit: str = "B") -> Iterator[Advance]:
    """A bar on standard error that a read moves by calling what this yields with the units done since the last call.

    Args:
        what: Stands before the bar, a file's name for example.
        total: All units; None: not known, no time left is shown.
        unit: What is counted; bytes by default.
    """
    import psutil

    from graph_emb.core.progress import bar  # here, as parsing a command line needs no bar

    process, progress = psutil.Process(), _PROGRESS.get()
    shown = sys.stderr.isatty() if progress is None else progress
    with bar(
        total=total, desc=what, unit=unit, unit_scale=True, delay=SILENT_S, miniters=1, leave=False, shown=shown
    ) as moved:

        def advance(units: int) -> None:
            if moved.total is not None:  # estimates of a gzipped file's text may run over
                units = min(units, max(int(moved.total - moved.n), 0))
            if moved.disable:
                return
            moved.set_postfix_str(f"memory {process.memory_info().rss / _GIGABYTE:.1f} GB", refresh=False)
            moved.update(units)

        yield advance


def text_bytes(file: Path) -> int:
    """Bytes of text in a file; of a gzipped one what its last four bytes say (modulo 4 GiB, RFC 1952)."""
    size = file.stat().st_size
    if not file.name.lower().endswith(".gz") or size < 4:
        return size
    with file.open("rb") as stream:
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), size)


class _Deferral:
    """Handlers that note the first signal and then make room for the ones before them: the second signal raises."""

    def __init__(self) -> None:
        self.pressed = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Note signals from here on; a signal that nobody handles in Python keeps its effect."""
        if self._before or self.pressed.is_set():
            return
        for number in _STOPS:
            if callable(signal.getsignal(number)):
                self._before[number] = signal.signal(number, self._press)

    def end(self) -> None:
        """Let signals raise again."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed.set()
        self.end()


_held: list[_Deferral] = []


@contextmanager
def deferred_interrupts(deferred: bool = True) -> Iterator[Callable[[], bool]]:
    """Note the first Ctrl-C or SIGTERM inside instead of raising KeyboardInterrupt; the second one raises.

    Args:
        deferred: False changes nothing.
    Yields:
        Whether there was one.
    """
    if not deferred or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    deferral = _held[-1] if _held else _Deferral()
    deferral.begin()
    try:
        yield deferral.pressed.is_set
    finally:
        if not _held:
            deferral.end()


@contextmanager
def held_interrupts(held: bool = True) -> Iterator[Callable[[], bool]]:
    """Keep what ``deferred_interrupts`` begins inside until the end of this context: rows are still to be saved then.

    Args:
        held: False changes nothing.
    Yields:
        Whether a signal was noted.
    """
    if not held or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    deferral = _Deferral()
    _held.append(deferral)
    try:
        yield deferral.pressed.is_set
    finally:
        _held.remove(deferral)
        deferral.end()


@contextmanager
def raising(raised: Callable[[int], BaseException], *numbers: signal.Signals) -> Iterator[None]:
    """Raise ``raised(number)`` where one of these signals comes; of no effect outside the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise raised(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def postponed_interrupts() -> Iterator[None]:
    """Let a Ctrl-C or SIGTERM that comes inside raise at the end: what is half made would be lost between two lines."""
    came: list[tuple[int, FrameType | None]] = []
    ended = False

    def note(number: int, frame: FrameType | None) -> None:
        if ended:
            before[number](number, frame)
        else:
            came.append((number, frame))

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: handler for number in _STOPS if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        ended = True
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            before[number](number, frame)


@contextmanager
def starting_processes() -> Iterator[None]:
    """Processes that are spawned inside get Ctrl-C when they call ``started``, and not while they import.

    Theirs would end with a traceback of an import. This process gets its own when the block ends, and none half-way
    into a start. A scheduler's signal waits as well.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started inside, it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def started() -> None:
    """In a process of ``starting_processes``: a Ctrl-C that came meanwhile is raised here, and later ones as ever."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
