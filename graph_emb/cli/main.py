"""Entry of the command line: parse, run one command, and turn every failure into an exit code and one line."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from graph_emb.cli.parser import build_parser, parse
from graph_emb.core.command_line import BAD_INPUT, INTERRUPTED, one_line
from graph_emb.core.errors import GraphEmbError
from partition.cli import COMMANDS as partition_commands

COMMANDS = {
    "demo": "graph_emb.cli.demo",
    "train": "graph_emb.cli.train",
    "launch": "graph_emb.cli.launch",
    "eval node-class": "graph_emb.cli.evaluate",
    "eval link": "graph_emb.cli.evaluate",
    "export": "graph_emb.cli.export",
    "checkpoint inspect": "graph_emb.cli.checkpoint",
    "info": "graph_emb.cli.describe",
    "ogb report": "graph_emb.cli.ogb",
    **{f"partition {name}": "graph_emb.cli.partition" for name in partition_commands},
}
"""Module of each command; its ``run(args)`` returns the exit code. Imported when the command is chosen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    Returns:
        0 on success, 2 on bad input or a full disk or memory, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks is shown escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings(), _noted_interrupts() as interrupted:
        _show_own_warnings_only(debug)
        try:
            code = _run(words)
            sys.stdout.flush()  # here, where a reader that has left is no error
            return code
        except BrokenPipeError:  # the reader of our output, such as head, has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            return _say_interrupted()
        except (GraphEmbError, OSError, MemoryError) as error:
            if debug:
                traceback.print_exc()
            print(f"graph-emb: error: {one_line(error, 'use a smaller model.dim or a smaller graph')}", file=sys.stderr)
            return BAD_INPUT
        except Exception:
            if interrupted() and not debug:  # an import turns Ctrl-C into an ImportError or a SystemError
                return _say_interrupted()
            raise


def _say_interrupted() -> int:
    print("graph-emb: interrupted", file=sys.stderr)
    return INTERRUPTED


def _run(words: list[str]) -> int:
    args = parse(words)
    args.argv = words
    if args.version:
        from importlib.metadata import version

        print(f"graph-emb {version('graph_emb')}")
        return 0
    if args.command is None:
        build_parser()[0].print_help()
        return 0
    return _command(args)


def _command(args: argparse.Namespace) -> int:
    args.quiet = getattr(args, "quiet", False)
    return importlib.import_module(COMMANDS[args.command]).run(args)


@contextmanager
def _noted_interrupts() -> Iterator[Callable[[], bool]]:
    """A scheduler's SIGTERM keeps what was trained, as Ctrl-C does. Yields whether one of them came."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        before[signal.SIGINT] = signal.default_int_handler
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_own_warnings_only(debug: bool) -> None:
    """Warnings of the libraries below us are for developers; ours stay."""
    if debug:
        return
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module=r"graph_emb(\..*)?$")
    warnings.showwarning = lambda message, *_, **__: print(f"graph-emb: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
